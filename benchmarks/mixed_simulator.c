/* A pool of mixed-batching replicas, iteration by iteration: compiled and called by mixed_simulator.py, which says the rules. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { RANDOM, ROUND_ROBIN, TWO_CHOICES, SHORTEST };
enum { GONE = -2, PREEMPTED = -3, IN_PREFILL = -1 }; /* in place of the iteration at which a request ends */

typedef struct {
  long step;
  int request;
} Ending;

typedef struct {
  int *items, size, room;
} Stack;

typedef struct {
  double now, contexts, free, part_done, part_length, area;
  long step;
  int decodes, present, resident, busy, partial;
  int queue_first, queue_last, oldest, newest;
  Ending *endings; /* heap by iteration; entries of preempted requests are stale */
  int endings_size, endings_room;
  Stack evicted, finished; /* evicted: lowest number last */
} Replica;

typedef struct {
  Replica *replica;
  int *heap, size; /* busy replicas by the end of their iteration */
  int *next, *newer, *older, *made; /* by request: behind it in line, neighbours in memory, steps made before a preemption */
  long *end;
} Pool;

static uint64_t state;

static double uniform(void) { /* splitmix64 */
  uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int below(int n) { return (int)(uniform() * n); }

static void push(Stack *s, int value) {
  if (s->size == s->room) {
    s->room = s->room ? 2 * s->room : 16;
    s->items = realloc(s->items, sizeof(int) * s->room);
  }
  s->items[s->size++] = value;
}

static void add_ending(Replica *r, long step, int request) {
  if (r->endings_size == r->endings_room) {
    r->endings_room = r->endings_room ? 2 * r->endings_room : 64;
    r->endings = realloc(r->endings, sizeof(Ending) * r->endings_room);
  }
  int i = r->endings_size++;
  for (int up; i && r->endings[up = (i - 1) / 2].step > step; i = up) r->endings[i] = r->endings[up];
  r->endings[i] = (Ending){step, request};
}

static Ending first_ending(Replica *r) {
  Ending top = r->endings[0], last = r->endings[--r->endings_size];
  int i = 0;
  for (int down; (down = 2 * i + 1) < r->endings_size; i = down) {
    if (down + 1 < r->endings_size && r->endings[down + 1].step < r->endings[down].step) down++;
    if (r->endings[down].step >= last.step) break;
    r->endings[i] = r->endings[down];
  }
  r->endings[i] = last;
  return top;
}

static void start(Pool *p, int k) {
  int i = p->size++;
  for (int up; i && p->replica[p->heap[up = (i - 1) / 2]].now > p->replica[k].now; i = up) p->heap[i] = p->heap[up];
  p->heap[i] = k;
}

static int first_done(Pool *p) {
  int top = p->heap[0], last = p->heap[--p->size], i = 0;
  for (int down; (down = 2 * i + 1) < p->size; i = down) {
    if (down + 1 < p->size && p->replica[p->heap[down + 1]].now < p->replica[p->heap[down]].now) down++;
    if (p->replica[p->heap[down]].now >= p->replica[last].now) break;
    p->heap[i] = p->heap[down];
  }
  p->heap[i] = last;
  return top;
}

static void hold(Pool *p, Replica *r, int request) {
  p->older[request] = r->newest;
  p->newer[request] = -1;
  if (r->newest >= 0) p->newer[r->newest] = request;
  else r->oldest = request;
  r->newest = request;
  r->resident++;
}

static void drop(Pool *p, Replica *r, int request) {
  int a = p->older[request], b = p->newer[request];
  if (a >= 0) p->newer[a] = b;
  else r->oldest = b;
  if (b >= 0) p->older[b] = a;
  else r->newest = a;
  r->resident--;
}

static int route(const Pool *p, int replicas, int routing, int *turn) {
  if (replicas == 1) return 0;
  if (routing == RANDOM) return below(replicas);
  if (routing == ROUND_ROBIN) return (*turn)++ % replicas;
  if (routing == TWO_CHOICES) {
    int a = below(replicas), b = below(replicas - 1);
    b += b >= a;
    return p->replica[b].present < p->replica[a].present ? b : a;
  }
  int best = 0, ties = 0;
  for (int k = 0; k < replicas; k++) {
    int less = p->replica[k].present - p->replica[best].present;
    if (less < 0) best = k, ties = 1;
    else if (less == 0 && below(++ties) == 0) best = k;
  }
  return best;
}

/* cost: t0, w, b, c, h, g, a. totals: decodes held on average by a replica, mean iteration [s], preemptions. */
void simulate(const double *cost, long count, const double *prompt, const double *output, const double *arrival, double budget,
              double slots, double kv_tokens, int replicas, int routing, uint64_t seed, double *ttft, double *done,
              double *totals) {
  double iterations = 0, busy_s = 0, preempted = 0;
  Pool p = {.replica = calloc(replicas, sizeof(Replica)), .heap = malloc(sizeof(int) * replicas)};
  int **lists[] = {&p.next, &p.newer, &p.older, &p.made};
  for (int i = 0; i < 4; i++) *lists[i] = calloc(count, sizeof(int));
  p.end = malloc(sizeof(long) * count);
  for (int k = 0; k < replicas; k++) {
    Replica *r = p.replica + k;
    r->partial = r->queue_first = r->queue_last = r->oldest = r->newest = -1;
    r->free = kv_tokens;
  }
  state = seed;
  int turn = 0;
  for (long i = 0; i < count || p.size;) {
    int k;
    Replica *r;
    double now;
    if (i < count && (p.size == 0 || arrival[i] < p.replica[p.heap[0]].now)) {
      now = arrival[i];
      r = p.replica + (k = route(&p, replicas, routing, &turn));
      r->present++;
      p.next[i] = -1;
      if (r->queue_last >= 0) p.next[r->queue_last] = (int)i;
      else r->queue_first = (int)i;
      r->queue_last = (int)i++;
      if (r->busy) continue;
    } else { /* an iteration ends: the last tokens, then the first ones */
      r = p.replica + (k = first_done(&p));
      now = r->now;
      r->busy = 0;
      while (r->endings_size && r->endings[0].step <= r->step) {
        Ending e = first_ending(r);
        int q = e.request;
        if (p.end[q] != e.step) continue;
        double held = prompt[q] + output[q] - 1;
        p.end[q] = GONE;
        drop(&p, r, q);
        r->decodes--;
        r->contexts -= held;
        r->free += held;
        done[q] = now;
        r->present--;
      }
      for (int j = 0; j < r->finished.size; j++) {
        int q = r->finished.items[j];
        double held = prompt[q] + p.made[q], left = output[q] - p.made[q] - 1;
        if (p.made[q] == 0) ttft[q] = now - arrival[q];
        p.made[q] = 0;
        if (left <= 0) {
          p.end[q] = GONE;
          drop(&p, r, q);
          r->free += held;
          done[q] = now;
          r->present--;
        } else {
          p.end[q] = r->step + (long)left;
          add_ending(r, p.end[q], q);
          r->decodes++;
          r->contexts += held;
        }
      }
      r->finished.size = 0;
    }
    int evicts = 0;
    while (isfinite(kv_tokens) && r->decodes > r->free) { /* the newest is computed again, before those in line */
      int q = r->newest;
      drop(&p, r, q);
      evicts = 1;
      preempted++;
      if (p.end[q] == IN_PREFILL) {
        r->free += r->part_length;
        r->partial = -1;
      } else {
        double held = prompt[q] + output[q] - 1 - (double)(p.end[q] - r->step);
        r->free += held;
        r->contexts -= held;
        r->decodes--;
        p.made[q] = (int)(held - prompt[q]);
        p.end[q] = PREEMPTED;
      }
      push(&r->evicted, q);
      for (int z = r->evicted.size - 1; z > 0 && r->evicted.items[z - 1] < q; z--) {
        r->evicted.items[z] = r->evicted.items[z - 1];
        r->evicted.items[z - 1] = q;
      }
    }
    double n = r->decodes, left = budget - n, chunk = 0, pairs = 0;
    if (r->partial >= 0 && left > 0) {
      double need = r->part_length - r->part_done, part = fmin(need, left);
      pairs += part * (r->part_done + (part + 1) / 2);
      chunk += part;
      left -= part;
      r->part_done += part;
      if (part == need) {
        push(&r->finished, r->partial);
        r->partial = -1;
      }
    }
    while (!evicts && left > 0 && r->resident < slots) {
      int again = r->evicted.size > 0, q = again ? r->evicted.items[r->evicted.size - 1] : r->queue_first;
      if (q < 0) break;
      double length = prompt[q] + p.made[q], part = fmin(length, left);
      if (length > r->free - n) break;
      if (again) r->evicted.size--;
      else if ((r->queue_first = p.next[q]) < 0) r->queue_last = -1;
      hold(&p, r, q);
      p.end[q] = IN_PREFILL;
      r->free -= length;
      pairs += part * (part + 1) / 2;
      chunk += part;
      left -= part;
      if (part == length) push(&r->finished, q);
      else {
        r->partial = q;
        r->part_done = part;
        r->part_length = length;
      }
    }
    if (n + chunk <= 0) continue;
    r->free -= n;
    r->contexts += n;
    double lasts = cost[0] + fmax(cost[1], cost[2] * (n + chunk)) + cost[3] * (n + chunk) + cost[4] * n + cost[5] * r->contexts +
                   cost[6] * pairs;
    r->step++;
    r->area += n * lasts;
    iterations++;
    busy_s += lasts;
    r->now = now + lasts;
    r->busy = 1;
    start(&p, k);
  }
  double area = 0;
  for (int k = 0; k < replicas; k++) {
    Replica *r = p.replica + k;
    area += r->area;
    free(r->endings);
    free(r->evicted.items);
    free(r->finished.items);
  }
  totals[0] = area / (arrival[count - 1] * replicas);
  totals[1] = busy_s / iterations;
  totals[2] = preempted;
  for (int i = 0; i < 4; i++) free(*lists[i]);
  free(p.end);
  free(p.replica);
  free(p.heap);
}
