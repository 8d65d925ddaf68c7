/* The kernel: requests taken one by one through replicas, exactly; the rules are those of reference.py.
 *
 * A replica is three numbers and four lists: its n decodes hold K tokens in all, `free` blocks are left, and a heap says after which
 * iteration each decode ends. Between two of its events (a decode ends, memory runs short, an arrival that can be admitted) its
 * iterations are pure decode and the i-th lasts base + g (K + n i): a whole run of them is one sum, which an arrival cuts short.
 * So the cost is per request, not per token.
 *
 * Two drivers share these replicas. Where replicas and clients do not act on each other (open arrivals), a replica is
 * advanced only when an arrival reaches it or a gateway looks at it (`open_arrivals`); decode replicas follow the prefill replicas,
 * which they never hold up, a few arrivals behind. Otherwise everything goes by the clock (`together`): sessions, limits in flight,
 * common queues, outages.
 *
 * Plain C11: arithmetic and sqrt only, no globals, no threads, no output. Rows are numbered with int32; what a row is in (a queue, the
 * residents of a replica) are doubly linked lists over two columns. Memory is taken before a change, so that a refusal leaves
 * everything whole; `failed` then ends the replay. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#ifndef RESIZE /* the fuzzed build puts one here that refuses now and then */
#define RESIZE realloc
#define ZEROS calloc /* pages that nobody comes to are no work */
#endif
#define COLD_AFTER_S 0.1

/* --- what is asked: kernel.py reads the fields here, each of 8 bytes --------------------------------------------------------- */

enum { MIXED, SLOTS, SLOTS_SHARED };              /* engines */
enum { BLIND, BY_REQUESTS, BY_TOKENS };           /* what a gateway looks at */
enum { NO_AFFINITY, BY_SESSION, BY_PREFIX };
enum { TTFT, TPOT, E2E, METRICS };

typedef struct { /* the replicas of a pool and their gateway */
  double t0, w, b, c, tau, g, h, e, a, x, w_experts, expert_share, uneven, grown, half, m, h_m, e_m, rows;
  const double *durations; /* of the slots engine, in place of the model; may be NULL */
  double slots, token_budget, blocks, request_s, image_s, wake_s, shared_prefix, shared_blocks; /* of `blocks` those that begin every prompt */
  int64_t block, count, engine, one_token, supplied, reserve, floored, apart; /* one_token: prefill; supplied: decode pool */
  int64_t candidates, looks, in_turn, one_queue, affinity, gather;         /* candidates 0: all */
} Pool;

typedef struct { /* columns are called as those of records.py */
  int64_t rows, pools, sessions, classes, retries, caches, outages, leave;
  double max_queue, max_queued_tokens, timeout_s, retry_after_s, in_flight, helps_at;
  double cache_host_tokens, cache_host_tokens_per_s, cache_ttl_s, cache_windows, cache_disk_tokens, cache_disk_tokens_per_s, cache_copies;
  double limit_s[METRICS], late[METRICS];
  const double *arrival_s, *input_tokens, *output_tokens, *cached_tokens;
  const uint64_t *key;
  const double *weight, *images, *gap_s, *repeated_tokens, *shared_tokens, *transfer_s; /* may be NULL, as all below */
  const int32_t *priority, *session, *following;
  const int64_t *shared_offset, *shared_name, *outage_replica, *outage_ends;  /* outages: their ends and starts, in order of time */
  const double *outage_time;
  double *sent_s, *admitted_s, *first_s, *done_s;                                     /* answers, by row */
  int32_t *replica, *preempted, *attempts, *rejected, *given_up, *decode_replica; /* the last five NULL in open arrivals but rejected */
  double *found_tokens, *host_tokens, *moved_s;
  double *iterations, *busy_s, *resident_s, *decode_s;                              /* by replica */
  double *gaps, *totals;                                                      /* totals: recomputed, ended early */
} Ask;

/* --- small things -------------------------------------------------------------------------------------------------------- */

enum { CACHE_BLOCK = 16, CROWD = 32, GAP_BINS = 1024, GAP_PER_OCTAVE_BITS = 5, GAP_OCTAVES_BELOW_1 = 20, WHOLE_POWERS = 32, POWERS = 80 };

typedef struct { int32_t first, last; } List;
typedef struct { int64_t step; int32_t row, order; } End;      /* order: of admission, or what ends (slots) */
typedef struct { double key; int32_t row; } Length;            /* key: the step less what is held */
typedef struct { double time; int64_t turn; int32_t row, kind, sending; } Event;
typedef struct { double least; int64_t ties; } Node;
typedef struct { Node *at; int64_t leaves; } Tree;             /* least key and how many have it, over replicas */
typedef struct { double tokens, used, computed; int64_t name; int32_t call, pins, chain, older, newer; } Kept;
typedef struct { Kept *at; int32_t *buckets, size, room, spare, oldest, newest; int64_t mask; double held; } Cache;

static double whole_below(double x) { /* floor, of what fits int64 or is infinite */
  if (!(x < 9e15 && x > -9e15)) return x;
  double y = (double)(int64_t)x;
  return y > x ? y - 1 : y;
}
static double whole_above(double x) { /* of tokens and blocks: finite, >= 0 */
  double y = (double)(int64_t)x;
  return y < x ? y + 1 : y;
}
static double larger(double x, double y) { return x > y ? x : y; }
static double smaller(double x, double y) { return x < y ? x : y; }
static uint64_t bits_of(double time) { /* of times that are not negative: in the same order */
  uint64_t bits;
  memcpy(&bits, &time, sizeof bits);
  return bits;
}

/* The draw number `ordinal` of a key: splitmix64. */
static uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
static double uniform(uint64_t key, uint64_t ordinal) {
  return (double)(mixed(key + (ordinal + 1) * 0x9E3779B97F4A7C15u) >> 11) * (1.0 / 9007199254740992.0);
}

/* Room for `wanted` items of `size` bytes, at least twice what there was; 0 and `failed` where there is no memory. */
static int grow(int *failed, void **at, int32_t *room, int64_t wanted, size_t size) {
  if (wanted <= *room) return 1;
  int64_t more = *room * (int64_t)2 > wanted ? *room * (int64_t)2 : wanted;
  if (more < 16) more = 16;
  void *new = more > INT32_MAX ? NULL : RESIZE(*at, (size_t)more * size);
  if (!new) {
    *failed = 1;
    return 0;
  }
  *at = new;
  *room = (int32_t)more;
  return 1;
}
static void *zeros(int64_t count, size_t size) {
  size_t many = (size_t)(count > 0 ? count : 1);
#ifdef ZEROS
  return ZEROS(many, size);
#else
  void *at = RESIZE(NULL, many * size);
  if (at) memset(at, 0, many * size);
  return at;
#endif
}

/* --- heaps, in memory that there is ------------------------------------------------------------------------------------------ */

#define HEAP(Item, Heap, push, take, sooner)                                                                               \
  typedef struct { Item *at; int32_t size, room; } Heap;                                                                   \
  static void push(Heap *h, Item e) {                                                                                      \
    int32_t i = h->size++;                                                                                                 \
    for (; i && sooner(e, h->at[(i - 1) / 2]); i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];                             \
    h->at[i] = e;                                                                                                          \
  }                                                                                                                        \
  static Item take(Heap *h, int32_t i) {                                                                                   \
    Item gone = h->at[i], last = h->at[--h->size];                                                                         \
    for (; i && sooner(last, h->at[(i - 1) / 2]); i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];                          \
    for (int32_t d; (d = 2 * i + 1) < h->size; i = d) {                                                                    \
      if (d + 1 < h->size && sooner(h->at[d + 1], h->at[d])) d++;                                                          \
      if (!sooner(h->at[d], last)) break;                                                                                  \
      h->at[i] = h->at[d];                                                                                                 \
    }                                                                                                                      \
    h->at[i] = last;                                                                                                       \
    return gone;                                                                                                           \
  }
static int ends_sooner(End a, End b) { return a.step != b.step ? a.step < b.step : a.order < b.order; }
static int is_longer(Length a, Length b) { return a.key < b.key; }
static int is_earlier(Event a, Event b) {
  return a.time != b.time ? a.time < b.time : a.turn != b.turn ? a.turn < b.turn : a.sending < b.sending;
}
HEAP(End, Ends, end_push, end_take, ends_sooner)
HEAP(Length, Lengths, length_push, length_take, is_longer)
HEAP(Event, Events, event_push, event_take, is_earlier)

/* --- trees over replicas ---------------------------------------------------------------------------------------------------- */

static int tree_open(Tree *t, int64_t count) {
  for (t->leaves = 1; t->leaves < count; t->leaves *= 2) {}
  t->at = zeros(2 * t->leaves, sizeof(Node));
  for (int64_t i = 0; t->at && i < 2 * t->leaves; i++) t->at[i] = (Node){INFINITY, 1};
  return t->at != NULL;
}
static void tree_set(Tree *t, int64_t i, double key) {
  if (!t->at) return;
  i += t->leaves;
  t->at[i].least = key;
  while (i > 1) {
    Node l = t->at[i & ~(int64_t)1], r = t->at[i | 1], up = l.least < r.least ? l : r;
    if (l.least == r.least) up.ties = l.ties + r.ties;
    i /= 2;
    if (t->at[i].least == up.least && t->at[i].ties == up.ties) return;
    t->at[i] = up;
  }
}
/* The `nth` replica, by index, of those with the least key. */
static int64_t tree_nth(const Tree *t, int64_t nth) {
  int64_t i = 1;
  while (i < t->leaves) {
    Node l = t->at[i *= 2];
    if (l.least > t->at[i / 2].least) i++;
    else if (nth >= l.ties) nth -= l.ties, i++;
  }
  return i - t->leaves;
}

/* --- a replica ------------------------------------------------------------------------------------------------------------------- */

enum { ASLEEP, DUE, RUNNING };                                  /* states of a replica: DUE = its decision is, at `next` */
enum { NOWHERE, AT_DOOR, WAITING, EVICTED, LOADING, PREFILL, FINISHING, DECODE, GHOST, COMMON, STRANDED, HELD_BACK }; /* of a row */
enum { ANSWERED = 1, PINNED = 2, HELPED = 4 };                 /* flags of a row; helped: its decode replica computes its prompt too */

/* What is left of a resident whose client has gone, until its iteration ends; the row itself may be sent again meanwhile. Ghosts
 * have numbers after the rows, and the row's place among the residents. */
typedef struct { double blocks; int32_t row, spare; int8_t completes, pinned; } Ghost;

typedef struct {
  const Pool *pool;
  double next;                 /* when something happens here: its run ends or its decision is due; inf = asleep */
  double begin, end, lasts;    /* of the run: one iteration with prompts, or several without */
  double base, one, half, contexts, longest_then, free, part_done, part_length, finishing_tokens;
  int64_t run, step, n;        /* iterations of the run; iterations done; decodes */
  int32_t index, state, present, residents, partial, finishing, admissions;
  int8_t takes, prompts, open, dead, listed, odd; /* of the run: decodes take part, prompts do; arrivals cut it */
  List waiting, evicted, residing, at_door, loading;
  Ends ends;
  Lengths lengths;
  int32_t *residues, *tails;   /* decodes by (held - step) mod block; last waiting row by class */
  double arrived, entered, queued_tokens, link_free, mass, tick;
  int64_t queued;
  int32_t ghosts;
  Cache cache;
  double iterations, busy, resident_s, decode_s;
} Replica;

typedef struct { Replica *first; int32_t *alive, living; uint64_t turn; Tree present; List common; const Pool *pool; Cache sent; } Gate;

typedef struct {
  Ask ask;
  Pool pool[2];
  Gate gate[2];
  Replica *all;
  int32_t replicas, *due, dues;
  Tree times;
  int32_t *prev, *next, *ordinal, *tried, *home;
  int64_t *mark, *order;       /* mark: of a decode the step after which it ends, of others tokens emitted before */
  double *enter, *last;        /* when through the front end; last token of one that was not in the last iteration */
  uint8_t *where, *flags;
  Events events;
  Ghost *ghosts; int32_t haunting, ghosts_room, spare_ghost;
  List stranded, held_back;
  int64_t row, handed, checked[METRICS], turn, spoilt, under_way, work, stop, outage_at; /* handed: row before which the decode pool gets what is due */
  double recomputed, late[METRICS], powers[2][POWERS];
  int clocked, follows, watched, limited, pieces, failed, ended; /* follows: decode replicas, behind open arrivals */
} Sim;

static void remove_from(Sim *p, List *l, int32_t q) {
  int32_t a = p->prev[q], b = p->next[q];
  if (a >= 0) p->next[a] = b;
  else l->first = b;
  if (b >= 0) p->prev[b] = a;
  else l->last = a;
}
static void insert_after(Sim *p, List *l, int32_t a, int32_t q) { /* a = -1: at the beginning */
  int32_t b = a >= 0 ? p->next[a] : l->first;
  p->prev[q] = a;
  p->next[q] = b;
  if (a >= 0) p->next[a] = q;
  else l->first = q;
  if (b >= 0) p->prev[b] = q;
  else l->last = q;
}
static void append(Sim *p, List *l, int32_t q) { insert_after(p, l, l->last, q); }
static int32_t class_of(const Sim *p, int32_t q) { return p->ask.priority ? p->ask.priority[q] : 0; }
static int before(const Sim *p, int32_t a, int32_t b) { /* in order of class, then of coming */
  int32_t x = class_of(p, a), y = class_of(p, b);
  return x != y ? x < y : p->order ? p->order[a] < p->order[b] : a < b;
}
static void insert_in_order(Sim *p, List *l, int32_t q) {
  int32_t a = l->last;
  while (a >= 0 && before(p, q, a)) a = p->prev[a];
  insert_after(p, l, a, q);
}
static double weight(const Sim *p, int32_t q) { return p->ask.weight ? p->ask.weight[q] : 1.0; }

/* A request as a pool sees it: the decode pool gets the prompt and the first token, the prefill pool emits that one only. */
static int64_t supplied(const Sim *p, const Pool *c, int32_t q) { return c->supplied && !(p->flags && p->flags[q] & HELPED); }
static double prompt_of(const Sim *p, const Replica *r, int32_t q) { return p->ask.input_tokens[q] + (double)supplied(p, r->pool, q); }
static int64_t tokens_of(const Sim *p, const Replica *r, int32_t q) {
  return r->pool->one_token ? 1 : (int64_t)p->ask.output_tokens[q] - supplied(p, r->pool, q);
}

/* --- memory -------------------------------------------------------------------------------------------------------------------- */

static double blocks(const Pool *c, double tokens) { return c->block == 1 ? tokens : whole_above(tokens / (double)c->block); }
static int32_t *residue(const Replica *r, int64_t number) {
  int64_t b = r->pool->block, rest = b & (b - 1) ? number % b : number & (b - 1);
  return r->residues + (rest < 0 ? rest + b : rest);
}
/* What the decodes claim in the iteration that follows. */
static double claims(const Replica *r) { return r->pool->block == 1 ? (double)r->n : *residue(r, -r->step); }
static double claims_during(const Replica *r, int64_t j) {
  int64_t b = r->pool->block;
  if (b == 1) return (double)r->n * (double)j;
  double sum = (double)(j / b) * (double)r->n;
  for (int64_t i = 0; i < j % b; i++) sum += *residue(r, -(r->step + i));
  return sum;
}
/* Largest j <= most such that j decode iterations fit into the free blocks. */
static int64_t iterations_in_memory(const Replica *r, int64_t most) {
  double n = (double)r->n;
  int64_t b = r->pool->block;
  if (r->free >= claims_during(r, most)) return most;
  if (b == 1) return (int64_t)(r->free / n);
  int64_t j = (int64_t)smaller(whole_below(r->free / n), (double)(most / b));
  double left = r->free - (double)j * n;
  for (j *= b; j < most; j++) {
    double need = *residue(r, -(r->step + j));
    if (need > left) break;
    left -= need;
  }
  return j;
}
static double pieces_kept(Sim *p, Replica *r, int32_t q);
static void release(Sim *p, Replica *r, int32_t q, double now);
/* What of a request's blocks memory keeps once for all, and the request does not hold itself. */
static double kept_once(Sim *p, Replica *r, int32_t q) {
  if (p->pieces && !r->pool->supplied) return pieces_kept(p, r, q);
  return prompt_of(p, r, q) > r->pool->shared_prefix ? r->pool->shared_blocks : 0.0;
}
static double held_by(const Sim *p, const Replica *r, int32_t q) {
  switch (p->where[q]) {
    case DECODE: return prompt_of(p, r, q) + (double)(tokens_of(p, r, q) - 1 - (p->mark[q] - r->step));
    case FINISHING: return prompt_of(p, r, q) + (double)p->mark[q];
    default: return r->pool->reserve ? r->part_length : r->part_done;
  }
}
static int can_ever_hold(const Sim *p, const Gate *g, int32_t q) {
  const Pool *c = g->pool;
  double output = c->one_token ? 1.0 : p->ask.output_tokens[q], prompt = p->ask.input_tokens[q];
  if (c->blocks == INFINITY || (c->supplied && output < 2)) return 1;
  double once = prompt + (double)supplied(p, c, q) > c->shared_prefix ? c->shared_blocks : 0;
  return blocks(c, prompt + output - 1) - once <= c->blocks - c->shared_blocks;
}
static int can_hold(const Sim *p, int32_t q) {
  return can_ever_hold(p, p->gate, q) && (p->ask.pools < 2 || can_ever_hold(p, p->gate + 1, q));
}

/* --- durations ----------------------------------------------------------------------------------------------------------------- */

/* (1 - share)^T from its powers 1, 2, 4, .. and 1/2, 1/4, ... */
static double untouched(const double *powers, double tokens) {
  double product = 1.0, rest = tokens - whole_below(tokens);
  uint64_t bits = (uint64_t)tokens;
  for (int i = 0; bits; i++, bits >>= 1)
    if (bits & 1) product *= powers[i];
  for (int i = WHOLE_POWERS; rest > 0 && i < POWERS; i++)
    if ((rest *= 2) >= 1) rest -= 1, product *= powers[i];
  return product;
}
/* Linear layers and fixed cost of a batch: t0 + max(weights, staircase) + c T + grown n/(n + half). */
static double linear_time(const Sim *p, const Pool *c, double tokens, double n) {
  double rounded = tokens, weights = c->w;
  if (c->tau > 1 && tokens > 0.5 * c->tau) rounded = c->tau * whole_above(tokens / c->tau);
  if (c->w_experts > 0) {
    double rest = untouched(p->powers[c->supplied], tokens), touched = 1.0 - rest;
    if (c->uneven > 0) touched = smaller(touched + c->uneven * sqrt(touched * rest), 1.0);
    weights += c->w_experts * touched;
  }
  double host = c->grown > 0 ? c->grown * n / (n + c->half) : 0.0;
  return c->t0 + larger(weights, c->b * rounded) + c->c * tokens + host;
}
/* Longest context among the decodes, before the next claim. */
static double longest_context(const Sim *p, Replica *r) {
  for (; r->lengths.size; length_take(&r->lengths, 0)) {
    int32_t q = r->lengths.at[0].row;
    double held = (double)r->step - r->lengths.at[0].key;
    if (p->where[q] == DECODE && held == held_by(p, r, q)) return held;
  }
  return 0;
}
/* Sum over i = 1..j of max(g (K + n i), e (l + i)), j > 0: two lines, at most one crossing. */
static double attention_during(const Replica *r, double j) {
  double u0 = r->pool->g * r->contexts, u1 = r->pool->g * (double)r->n, u = j * (u0 + u1 * ((j + 1) / 2));
  double v0 = r->pool->e * r->longest_then, v1 = r->pool->e, v = j * (v0 + v1 * ((j + 1) / 2));
  int first = u0 + u1 >= v0 + v1, last = u0 + u1 * j >= v0 + v1 * j;
  if (first == last) return first ? u : v;
  /* the line that is higher until the crossing, then the other one */
  double k = smaller(larger(whole_below((v0 - u0) / (u1 - v1)), 1), j - 1), sign = first ? 1 : -1;
  while (k > 1 && sign * (u0 + u1 * k - v0 - v1 * k) < 0) k--;
  while (k < j - 1 && sign * (u0 + u1 * (k + 1) - v0 - v1 * (k + 1)) > 0) k++;
  double u_k = k * (u0 + u1 * ((k + 1) / 2)), v_k = k * (v0 + v1 * ((k + 1) / 2));
  return first ? u_k + v - v_k : v_k + u - u_k;
}
static int two_lines(const Replica *r) { return r->pool->e > r->pool->g && r->pool->engine == MIXED; }
/* Duration of the first j iterations of the run: j (one + half j), but for the longest context. */
static double span(const Replica *r, int64_t j) {
  if (r->prompts) return r->lasts;
  if (two_lines(r)) return (double)j * r->base + (j ? attention_during(r, (double)j) : 0.0);
  return (double)j * (r->one + r->half * (double)j);
}
/* Duration of the i-th iteration of the run. */
static double lasts_of(const Replica *r, int64_t i) {
  const Pool *c = r->pool;
  if (r->prompts) return r->lasts;
  if (c->engine != MIXED) return r->base;
  return r->base + larger(c->g * (r->contexts + (double)r->n * (double)i), c->e > c->g ? c->e * (r->longest_then + (double)i) : 0);
}
/* Smallest j in 1..most with at least `duration` in the first j iterations of the run (or most). */
static int64_t iterations_until(const Replica *r, double duration, int64_t most) {
  if (r->prompts || most <= 1) return most;
  if (two_lines(r)) {
    int64_t low = 0, high = most;
    while (high - low > 1) {
      int64_t middle = low + (high - low) / 2;
      if (span(r, middle) >= duration) high = middle;
      else low = middle;
    }
    return high;
  }
  double one = r->one, half = r->half, guess;
  if (half * duration <= 1e-12 * one * one) guess = one > 0 ? duration / one : (double)most;
  else guess = (sqrt(one * one + 4 * half * duration) - one) / (2 * half);
  int64_t j = guess >= (double)most ? most : guess <= 1 ? 1 : (int64_t)guess;
  while (j > 1 && (double)(j - 1) * (one + half * (double)(j - 1)) >= duration) j--;
  while (j < most && (double)j * (one + half * (double)j) < duration) j++;
  return j;
}
/* Iterations of the run that have ended at `time`. */
static int64_t ended_at(const Replica *r, double time) {
  if (r->state != RUNNING || time >= r->end) return r->state == RUNNING ? r->run : 0;
  if (time <= r->begin) return 0; /* of those without duration too the next has just begun */
  int64_t j = iterations_until(r, time - r->begin, r->run);
  return r->begin + span(r, j) <= time ? j : j - 1;
}
/* Let the run end at the first boundary at or after `time`. */
static void cut(Replica *r, double time) {
  if (r->state != RUNNING || r->run <= 1 || r->end <= time) return;
  int64_t kept = iterations_until(r, time - r->begin, r->run);
  if (kept >= r->run) return;
  r->run = kept;
  r->lasts = span(r, kept);
  r->next = r->end = r->begin + r->lasts;
}

/* --- gaps between tokens --------------------------------------------------------------------------------------------------------- */

static int gap_bin(double gap) { /* exponent and the first five bits of the mantissa, counted from 2^-20 */
  if (!(gap > 0)) return 0;
  int64_t bin = (int64_t)(bits_of(gap) >> (52 - GAP_PER_OCTAVE_BITS)) - ((int64_t)(1023 - GAP_OCTAVES_BELOW_1) << GAP_PER_OCTAVE_BITS);
  return bin < 0 ? 0 : bin >= GAP_BINS ? GAP_BINS - 1 : (int)bin;
}
/* The gaps of the first j iterations of a run, bin by bin: they do not become shorter within it. */
static void count_gaps(Sim *p, Replica *r, int64_t j) {
  int64_t i = 0;
  if (r->odd) { /* somebody's last token is not that of the last iteration: each by itself */
    double end = r->begin + span(r, 1);
    for (int32_t q = r->residing.first; q >= 0; q = p->next[q])
      if (p->where[q] == DECODE) {
        p->ask.gaps[gap_bin(end - (p->last[q] == p->last[q] ? p->last[q] : r->tick))] += weight(p, q);
        p->last[q] = NAN;
      }
    i = 1;
    r->odd = 0;
  }
  while (i < j && r->mass > 0) {
    int bin = gap_bin(lasts_of(r, i + 1));
    int64_t low = i + 1, high = j;
    while (low < high) { /* the last one of this bin */
      int64_t middle = high - (high - low) / 2;
      if (gap_bin(lasts_of(r, middle)) == bin) low = middle;
      else high = middle - 1;
    }
    p->ask.gaps[bin] += r->mass * (double)(low - i);
    i = low;
  }
}

/* --- residents ----------------------------------------------------------------------------------------------------------------- */

static void present_by(Sim *p, Replica *r, int32_t change) {
  r->present += change;
  Gate *g = &p->gate[r->pool->supplied];
  if (g->present.at) tree_set(&g->present, r - g->first, r->dead ? INFINITY : (double)r->present);
}
static int measures(const Pool *c) { return c->e > c->g || c->e_m > 0; }
/* Memory for one resident more, before anything changes. */
static int room_for_one(Sim *p, Replica *r) {
  int64_t ends = 2 * (int64_t)r->residents + 2;
  if (ends <= r->ends.room && (!measures(r->pool) || ends + 64 <= r->lengths.room)) return 1;
  return grow(&p->failed, (void **)&r->ends.at, &r->ends.room, r->pool->engine == SLOTS ? ends : ends / 2, sizeof(End)) &&
         (!measures(r->pool) || grow(&p->failed, (void **)&r->lengths.at, &r->lengths.room, ends + 64, sizeof(Length)));
}
/* A resident decodes from now on; it holds `held` tokens and emits `left` more. */
static void begin_decode(Sim *p, Replica *r, int32_t q, double held, int64_t left) {
  p->where[q] = DECODE;
  p->mark[q] = r->step + left;
  end_push(&r->ends, (End){p->mark[q], q, r->admissions++});
  r->n++;
  r->contexts += held;
  if (r->pool->block > 1) ++*residue(r, (int64_t)whole_above(held) - r->step);
  if (p->ask.gaps) r->mass += weight(p, q);
  if (!measures(r->pool)) return;
  Lengths *lengths = &r->lengths;
  if (lengths->size > 2 * r->n + 60) { /* drop those that have left, in place */
    int32_t all = lengths->size;
    lengths->size = 0;
    for (int32_t i = 0; i < all; i++) {
      Length l = lengths->at[i];
      if (l.row != q && p->where[l.row] == DECODE && (double)r->step - l.key == held_by(p, r, l.row)) length_push(lengths, l);
    }
  }
  length_push(lengths, (Length){(double)r->step - held, q});
}
static void part_ends(Replica *r) { /* no prompt is in its middle */
  r->partial = -1;
  r->part_length = r->part_done = 0;
}
/* A resident leaves, its memory is free; of a decode the entry in the heap of ends is gone or taken out by the caller. */
static void leave(Sim *p, Replica *r, int32_t q) {
  double held = held_by(p, r, q);
  r->free += blocks(r->pool, held) - kept_once(p, r, q);
  if (p->where[q] == DECODE) {
    r->n--;
    r->contexts = r->n ? r->contexts - held : 0;
    if (r->pool->block > 1) --*residue(r, (int64_t)whole_above(held) - r->step);
    if (p->ask.gaps) r->mass = r->n ? r->mass - weight(p, q) : 0;
  } else if (r->partial == q) part_ends(r);
  remove_from(p, &r->residing, q);
  r->residents--;
  p->where[q] = NOWHERE;
}
static void ghost_leaves(Sim *p, Replica *r, int32_t g) {
  r->free += p->ghosts[g - p->ask.rows].blocks;
  if (r->partial == g) part_ends(r);
  remove_from(p, &r->residing, g);
  r->residents--;
}
/* Back to the queue: it will compute prompt and emitted tokens again (decode pool: they are there). */
static void evict(Sim *p, Replica *r, int32_t q) {
  int64_t emitted = p->mark[q];
  if (p->where[q] == DECODE) {
    emitted = tokens_of(p, r, q) - (p->mark[q] - r->step);
    int32_t i = 0;
    while (r->ends.at[i].row != q) i++;
    end_take(&r->ends, i);
    if (p->last && p->last[q] != p->last[q]) p->last[q] = r->tick;
  }
  leave(p, r, q);
  if (p->flags) release(p, r, q, r->next);
  p->mark[q] = emitted;
  p->where[q] = EVICTED;
  insert_in_order(p, &r->evicted, q);
  if (p->ask.preempted) p->ask.preempted[q]++;
}
static int32_t victim(const Sim *p, const Replica *r) {
  int32_t worst = r->residing.last;
  if (p->ask.priority)
    for (int32_t q = worst; q >= 0; q = p->prev[q])
      if (before(p, worst, q)) worst = q;
  return worst;
}

/* --- what completions bring: below, with the clients ------------------------------------------------------------------------ */

static void first_token(Sim *p, int32_t q, double now);
static void completed(Sim *p, Replica *r, int32_t q, double now);
static void ghost_ends(Sim *p, Replica *r, int32_t g, double now);
static double supply(Sim *p, Replica *r, int32_t q);

/* The first j iterations of the run have ended: what they cost and claimed. */
static void commit(Sim *p, Replica *r, int64_t j, double lasts) {
  r->iterations += (double)j;
  r->busy += lasts;
  r->resident_s += lasts * r->residents;
  if (r->takes) {
    r->decode_s += lasts * (double)r->n;
    if (p->ask.gaps && r->mass > 0) count_gaps(p, r, j);
    if (r->pool->engine == MIXED) {
      if (r->free < INFINITY && r->n) r->free -= claims_during(r, j);
      r->contexts += (double)r->n * (double)j;
    }
    r->tick = r->begin + lasts;
  } else if (r->mass > 0) r->odd = 1;
  if (r->takes || !r->pool->apart) r->step += j;
}
static void slots_effects(Sim *p, Replica *r, double now);

/* Effects of the run that ends now. */
static void effects(Sim *p, Replica *r) {
  double now = r->end;
  commit(p, r, r->run, r->lasts);
  r->state = DUE;
  r->next = now;
  if (r->pool->engine != MIXED) {
    slots_effects(p, r, now);
    return;
  }
  List gone = {-1, -1};
  while (r->ends.size && r->ends.at[0].step <= r->step) {
    int32_t q = end_take(&r->ends, 0).row;
    leave(p, r, q);
    append(p, &gone, q);
  }
  /* the prompts that this iteration finished are among the last admitted */
  for (int32_t q = r->finishing, z; q >= 0; q = z) {
    z = p->next[q];
    if (p->where[q] == GHOST && p->ghosts[q - p->ask.rows].completes) {
      ghost_leaves(p, r, q);
      append(p, &gone, q);
    }
    if (p->where[q] != FINISHING) continue;
    int64_t emitted = p->mark[q], left = tokens_of(p, r, q) - emitted - 1;
    if (p->ask.gaps) {
      if (emitted > 0) p->ask.gaps[gap_bin(now - p->last[q])] += weight(p, q);
      p->last[q] = r->pool->apart ? now : NAN;
      r->odd |= (int8_t)r->pool->apart;
    }
    if (emitted == 0) first_token(p, q, now);
    if (left > 0) begin_decode(p, r, q, prompt_of(p, r, q) + (double)emitted, left);
    else {
      leave(p, r, q);
      append(p, &gone, q);
    }
  }
  r->finishing = -1;
  r->finishing_tokens = 0;
  if (!r->pool->apart) r->tick = now;
  for (int32_t q = gone.first, z; q >= 0; q = z) {
    z = p->next[q];
    present_by(p, r, -1);
    if (q < p->ask.rows) completed(p, r, q, now);
    else ghost_ends(p, r, q, now);
  }
  for (int32_t q = r->ghosts ? r->residing.first : -1, z; q >= 0; q = z) {
    z = p->next[q];
    if (p->where[q] != GHOST) continue;
    ghost_leaves(p, r, q);
    present_by(p, r, -1);
    ghost_ends(p, r, q, now);
  }
}

/* --- decisions ------------------------------------------------------------------------------------------------------------------- */

static void add_waiting(Sim *p, Replica *r, int32_t q) { /* at the end of its class */
  p->where[q] = WAITING;
  if (!p->ask.priority) {
    append(p, &r->waiting, q);
    return;
  }
  int32_t k = class_of(p, q), a = r->waiting.last;
  if (r->tails) {
    for (a = -1; k >= 0 && (a = r->tails[k]) < 0; k--) {}
    r->tails[class_of(p, q)] = q;
  } else
    while (a >= 0 && before(p, q, a)) a = p->prev[a];
  insert_after(p, &r->waiting, a, q);
}
static void remove_waiting(Sim *p, Replica *r, int32_t q) {
  int32_t k = class_of(p, q), a = p->prev[q];
  if (r->tails && r->tails[k] == q) r->tails[k] = a >= 0 && class_of(p, a) == k ? a : -1;
  remove_from(p, &r->waiting, q);
}
static int32_t head_of(const Sim *p, const Replica *r) {
  int32_t a = r->evicted.first, b = r->waiting.first;
  if (a < 0 || b < 0) return a < 0 ? b : a;
  return p->ask.priority && before(p, b, a) ? b : a;
}
static void start(Replica *r, double now) {
  r->state = RUNNING;
  r->begin = now;
  r->next = r->end = now + r->lasts;
}
static void rest(const Sim *p, Replica *r) { /* nothing to do, but perhaps for one that is on its way through the front end */
  r->state = r->at_door.first >= 0 ? DUE : ASLEEP;
  r->next = r->state == DUE ? p->enter[r->at_door.first] : INFINITY;
}
static void slots_decide(Sim *p, Replica *r, double now);

/* The decision due: one iteration with prompts, or a run of iterations of decodes alone, or sleep. */
static void decide(Sim *p, Replica *r) {
  const Pool *c = r->pool;
  double now = r->next;
  p->work++;
  while (r->at_door.first >= 0 && p->enter[r->at_door.first] <= now) {
    int32_t q = r->at_door.first;
    remove_from(p, &r->at_door, q);
    add_waiting(p, r, q);
  }
  if (c->engine != MIXED) {
    slots_decide(p, r, now);
    return;
  }
  int64_t until = 0; /* iterations until waiting prompts may begin */
  int evicts, waits;
  double budget, beside, claimed, chunks, pairs, host, reached;
  do {
    evicts = waits = 0;
    chunks = pairs = host = reached = 0;
    claimed = r->n ? claims(r) : 0;
    while (claimed > r->free && r->residents) {
      evict(p, r, victim(p, r));
      evicts = 1;
      claimed = claims(r);
    }
    beside = c->apart ? 0 : (double)r->n;
    if (c->apart) claimed = 0;
    budget = c->token_budget - c->rows * beside;
    if (c->floored) budget = whole_below(budget);
    if (r->partial >= 0 && budget > 0) {
      int32_t q = r->partial;
      double left = r->part_length - r->part_done, chunk = smaller(left, budget);
      double wanted = c->reserve ? 0 : blocks(c, r->part_done + chunk) - blocks(c, r->part_done);
      if (wanted > 0 && wanted > r->free - claimed) {
        evict(p, r, q);
        evicts = 1;
      } else {
        r->free -= wanted;
        pairs = chunk * (r->part_done + (chunk + 1) / 2);
        chunks = chunk;
        budget -= chunk;
        reached = r->part_done += chunk;
        if (chunk == left) {
          r->finishing = q;
          r->finishing_tokens = r->part_length;
          p->where[q] = FINISHING;
          part_ends(r);
        }
      }
    }
    if (c->gather > 1) until = r->n ? (c->gather - (int64_t)r->iterations % c->gather) % c->gather : 0;
    for (int32_t q; !evicts && (q = head_of(p, r)) >= 0;) {
      if (budget <= 0 || until || r->residents >= c->slots) {
        waits = 1;
        break;
      }
      int again = p->where[q] == EVICTED;
      int64_t emitted = again ? p->mark[q] : 0;
      double length = prompt_of(p, r, q) + (double)emitted, common = kept_once(p, r, q);
      double wanted = blocks(c, length) - common;
      if (wanted > r->free - claimed) {
        waits = 1;
        break;
      }
      if (!room_for_one(p, r)) return;
      double past = supply(p, r, q);
      if (again) {
        remove_from(p, &r->evicted, q);
        p->recomputed += larger(length - past, 0);
      } else {
        remove_waiting(p, r, q);
        r->queued--;
        r->queued_tokens = r->queued ? r->queued_tokens - p->ask.input_tokens[q] : 0;
        p->mark[q] = 0;
        if (!supplied(p, c, q)) p->ask.admitted_s[q] = now;
      }
      append(p, &r->residing, q);
      r->residents++;
      if (past >= length) { /* prefilled elsewhere: it decodes in this very iteration */
        r->free -= blocks(c, length - 1) - common;
        begin_decode(p, r, q, length - 1, tokens_of(p, r, q) - emitted);
        r->odd = 1;
        beside = c->apart ? 0 : (double)r->n;
        claimed = c->apart ? 0 : claims(r);
        budget -= c->rows;
        continue;
      }
      double left = length - past, chunk = smaller(left, budget);
      r->free -= c->reserve ? wanted : blocks(c, past + chunk) - common;
      host += c->request_s + (p->ask.images ? c->image_s * p->ask.images[q] : 0);
      pairs += chunk * (past + (chunk + 1) / 2);
      reached = larger(reached, past + chunk);
      chunks += chunk;
      budget -= chunk;
      if (chunk == left) {
        p->where[q] = FINISHING;
        if (r->finishing < 0) r->finishing = q;
        r->finishing_tokens += length;
      } else {
        p->where[q] = PREFILL;
        r->partial = q;
        r->part_done = past + chunk;
        r->part_length = length;
      }
    }
  } while (evicts && chunks == 0 && r->n == 0); /* the unfinished prompt was the only work */

  double n = (double)r->n;
  if (chunks > 0) {
    double tokens = c->rows * beside + chunks, lasts = host + linear_time(p, c, tokens, beside);
    if (beside > 0) {
      double contexts = r->contexts + n;
      lasts += c->x * n * chunks / tokens;
      if (c->m > 0) {
        double walked = c->e_m > 0 ? c->e_m * larger(longest_context(p, r) + 1, reached) : 0;
        lasts += larger(c->a * (pairs + c->m * contexts) + c->h_m * n, larger(walked, c->g * contexts));
      } else {
        double longest = c->e > c->g ? c->e * (longest_context(p, r) + 1) : 0;
        lasts += c->h * n + c->a * pairs + larger(c->g * contexts, longest);
      }
    } else lasts += larger(c->a * pairs, c->e_m * reached);
    r->prompts = 1;
    r->takes = beside > 0;
    r->run = 1;
    r->open = 0;
    r->lasts = lasts;
  } else if (r->n == 0) {
    rest(p, r);
    return;
  } else {
    int64_t j = r->ends.at[0].step - r->step;
    if (evicts) j = 1; /* the queue is looked at again after it */
    else if (j > 1 && r->free < INFINITY) j = iterations_in_memory(r, j);
    if (until && waits && j > until) j = until;
    r->prompts = 0;
    r->takes = 1;
    r->base = linear_time(p, c, c->rows * n, n) + c->h * n;
    r->half = 0.5 * c->g * n;
    r->one = r->base + c->g * r->contexts + r->half;
    r->longest_then = c->e > c->g ? longest_context(p, r) : 0;
    /* arrivals change nothing while the head waits for a completion, nor while every slot is taken */
    r->open = !waits && r->residents < c->slots && budget > 0;
    if ((r->open || p->ask.priority) && r->at_door.first >= 0) j = iterations_until(r, p->enter[r->at_door.first] - now, j);
    r->run = j;
    r->lasts = span(r, j);
  }
  start(r, now);
}

/* --- slots: a fixed number of sequences, iterations that know no contexts ------------------------------------------------ */

static void slots_effects(Sim *p, Replica *r, double now) {
  for (int32_t q = r->finishing, z; q >= 0; q = z) { /* their prompts shared the chunk */
    z = p->next[q];
    first_token(p, q, now);
    r->n++;
    r->mass += weight(p, q);
    end_push(&r->ends, (End){r->step + (int64_t)p->ask.output_tokens[q] - 1, q, 1});
  }
  r->finishing = -1;
  while (r->ends.size && r->ends.at[0].step <= r->step) {
    End e = end_take(&r->ends, 0);
    if (e.order == 0) {
      first_token(p, e.row, now);
      r->mass += weight(p, e.row);
      continue;
    }
    r->n--;
    r->mass = r->n ? r->mass - weight(p, e.row) : 0;
    r->residents--;
    r->finishing_tokens -= p->ask.input_tokens[e.row] + p->ask.output_tokens[e.row];
    present_by(p, r, -1);
    completed(p, r, e.row, now);
  }
}
static void slots_decide(Sim *p, Replica *r, double now) {
  const Pool *c = r->pool;
  for (int32_t q; (q = r->waiting.first) >= 0 && r->residents < c->slots;) {
    if (!room_for_one(p, r)) return;
    double left = p->ask.input_tokens[q] - p->ask.cached_tokens[q];
    remove_waiting(p, r, q);
    p->ask.admitted_s[q] = now;
    r->residents++;
    r->finishing_tokens += p->ask.input_tokens[q] + p->ask.output_tokens[q];
    p->where[q] = PREFILL;
    if (c->engine == SLOTS_SHARED) {
      append(p, &r->residing, q);
      if (r->residing.first == q) r->part_length = left;
      continue;
    }
    int64_t chunks = (int64_t)larger(whole_above(left / c->token_budget), 1);
    r->n++;
    end_push(&r->ends, (End){r->step + chunks + 1, q, 0});
    end_push(&r->ends, (End){r->step + chunks + (int64_t)p->ask.output_tokens[q], q, 1});
  }
  double budget = c->token_budget, used = 0;
  List finishing = {-1, -1};
  r->prompts = r->residing.first >= 0;
  for (int32_t q; budget > 0 && (q = r->residing.first) >= 0;) {
    double chunk = smaller(r->part_length, budget);
    used += chunk;
    budget -= chunk;
    if ((r->part_length -= chunk) > 0) break;
    remove_from(p, &r->residing, q);
    append(p, &finishing, q);
    int32_t after = r->residing.first;
    r->part_length = after >= 0 ? p->ask.input_tokens[after] - p->ask.cached_tokens[after] : 0;
  }
  r->finishing = finishing.first;
  if (!r->prompts && r->n == 0) {
    rest(p, r);
    return;
  }
  double n = (double)r->n, tokens = c->rows * n + used;
  r->base = c->durations ? c->durations[r->n] : linear_time(p, c, tokens, (double)n) + c->h * n + c->x * n * used / tokens;
  r->run = r->prompts ? 1 : r->ends.at[0].step - r->step;
  r->open = !r->prompts && r->residents < c->slots;
  r->takes = 1;
  r->one = r->base;
  r->half = 0;
  r->lasts = r->base * (double)r->run;
  start(r, now);
}

/* --- prefix caches: what is kept of sessions (by number) and of pieces that prompts share (~name), the least recent first --------- */

static int32_t cache_find(const Cache *c, int64_t name) {
  int32_t i = c->buckets ? c->buckets[mixed((uint64_t)name) & (uint64_t)c->mask] : -1;
  while (i >= 0 && c->at[i].name != name) i = c->at[i].chain;
  return i;
}
static void cache_unlink(Cache *c, int32_t i) { /* out of the order of use */
  int32_t a = c->at[i].older, b = c->at[i].newer;
  *(a >= 0 ? &c->at[a].newer : &c->oldest) = b;
  *(b >= 0 ? &c->at[b].older : &c->newest) = a;
  c->held -= c->at[i].tokens;
}
static void cache_drop(Cache *c, int32_t i) { /* what is in no order any more */
  int32_t *link = c->buckets + (mixed((uint64_t)c->at[i].name) & (uint64_t)c->mask);
  while (*link != i) link = &c->at[*link].chain;
  *link = c->at[i].chain;
  c->at[i].chain = c->spare;
  c->spare = i;
}
/* The entry of a name, a new one without a place in the order of use if need be; -1 = no memory. */
static int32_t cache_entry(Sim *p, Cache *c, int64_t name) {
  int32_t i = cache_find(c, name), room = c->room;
  if (i >= 0) return i;
  if (c->spare < 0) {
    if (!grow(&p->failed, (void **)&c->at, &room, (int64_t)c->size + 1, sizeof(Kept))) return -1;
    c->room = room;
    if (!c->buckets || c->size > c->mask) {
      int64_t buckets = c->buckets ? 2 * (c->mask + 1) : 64;
      int32_t *new = RESIZE(NULL, (size_t)buckets * sizeof(int32_t));
      if (!new) {
        p->failed = 1;
        return -1;
      }
      free(c->buckets);
      c->buckets = new;
      c->mask = buckets - 1;
      for (int64_t k = 0; k < buckets; k++) new[k] = -1;
      for (int32_t k = 0; k < c->size; k++) { /* none is spare here */
        int32_t *bucket = new + (mixed((uint64_t)c->at[k].name) & (uint64_t)c->mask);
        c->at[k].chain = *bucket;
        *bucket = k;
      }
    }
    i = c->size++;
  } else {
    i = c->spare;
    c->spare = c->at[i].chain;
  }
  int32_t *bucket = c->buckets + (mixed((uint64_t)name) & (uint64_t)c->mask);
  c->at[i] = (Kept){.name = name, .chain = *bucket, .older = -1, .newer = -1};
  *bucket = i;
  return i;
}
static void cache_take(Cache *c, int64_t name) { /* what is kept of it is held by a running request from now on */
  int32_t i = cache_find(c, name);
  if (i < 0 || c->at[i].pins) return;
  cache_unlink(c, i);
  cache_drop(c, i);
}
static void cache_put(Sim *p, Cache *c, int64_t name, double tokens, int32_t call, double now) {
  cache_take(c, name);
  int32_t i = cache_entry(p, c, name);
  if (i < 0) return;
  Kept *k = c->at + i;
  k->tokens = tokens, k->call = call, k->used = now, k->older = c->newest, k->newer = -1;
  *(c->newest >= 0 ? &c->at[c->newest].newer : &c->oldest) = i;
  c->newest = i;
  c->held += tokens;
}
/* Of tokens that were computed their sliding-window layers' blocks, which nobody finds again, grow old among what is kept. */
static void cache_spoil(Sim *p, Cache *c, double computed, double now) {
  if (p->ask.cache_windows * computed > 0) cache_put(p, c, INT64_MAX - p->spoilt++, p->ask.cache_windows * computed, 0, now);
}
static double in_blocks(double tokens) { return CACHE_BLOCK * whole_below(tokens / CACHE_BLOCK); }
/* What `room` and a tier behind it hold together; with `copies` the tier has all that stands before it too. */
static double behind(const Sim *p, double room, double tier) { return p->ask.cache_copies ? larger(room, tier) : room + tier; }
/* Drop from the end of the least recent prefix until all fits into `room` on the GPU, the host's memory and its disk. */
static void cache_trim(Sim *p, Cache *c, double room) {
  room = behind(p, behind(p, room, p->ask.cache_host_tokens), p->ask.cache_disk_tokens);
  while (c->held > room && c->oldest >= 0) {
    int32_t i = c->oldest;
    double left = in_blocks(c->at[i].tokens - (c->held - room));
    if (left > 0) {
      c->held -= c->at[i].tokens - left;
      c->at[i].tokens = left;
      return;
    }
    cache_unlink(c, i);
    cache_drop(c, i);
  }
}
static double on_gpu(const Cache *c, int32_t i, double room) { /* of an entry, among the `room` most recent tokens */
  for (int32_t k = c->newest; k >= 0 && k != i; k = c->at[k].older)
    if ((room -= c->at[k].tokens) <= 0) return 0;
  return in_blocks(smaller(larger(room, 0), c->at[i].tokens));
}
/* Free memory at `now`, less what the iterations begun until then claim. */
static double free_at(const Replica *r, double now) {
  if (r->state != RUNNING || !r->takes || r->free == INFINITY || !r->n) return r->free;
  int64_t j = ended_at(r, now) + 1;
  return r->free - claims_during(r, j < r->run ? j : r->run);
}
/* What of an entry is not on the GPU, and of that what only the disk has. */
static void find_missing(Sim *p, Replica *r, int32_t i, double now, double have, double *missing) {
  double room = free_at(r, now);
  missing[0] += have - smaller(on_gpu(&r->cache, i, room), have);
  if (p->ask.cache_disk_tokens > 0) missing[1] += have - smaller(on_gpu(&r->cache, i, behind(p, room, p->ask.cache_host_tokens)), have);
}
/* What a replica holds of a prompt: its pieces one after the other until one is not whole, then what its session left, no more
 * than any call since the last one here repeated; `missing` gets what of it is not on the GPU, and what only the disk has. */
static double found_at(Sim *p, Replica *r, int32_t q, double now, double *missing) {
  const Ask *a = &p->ask;
  const Cache *c = &r->cache;
  double sum = 0;
  for (int64_t z = p->pieces ? a->shared_offset[q] : 0; p->pieces && z < a->shared_offset[q + 1]; z++) {
    double tokens = a->shared_tokens[z], have = 0;
    int32_t i = cache_find(c, ~a->shared_name[z]);
    if (i >= 0 && c->at[i].pins) have = tokens;
    else if (i >= 0 && now - c->at[i].used <= a->cache_ttl_s) {
      have = smaller(c->at[i].tokens, tokens);
      if (missing) find_missing(p, r, i, now, have, missing);
    }
    sum += have;
    if (have < tokens) return sum;
  }
  int32_t i = cache_find(c, a->session[q]);
  if (i < 0 || c->at[i].call >= q || now - c->at[i].used > a->cache_ttl_s) return sum;
  double have = c->at[i].tokens;
  for (int32_t z = c->at[i].call + 1; z <= q; z++) have = smaller(have, a->repeated_tokens ? a->repeated_tokens[z] : 0);
  if (missing) find_missing(p, r, i, now, have, missing);
  return sum + have;
}
static int is_session(const Sim *p, int32_t q) { return p->ask.caches && p->ask.session && p->ask.session[q] >= 0; }
static double pieces_of(const Sim *p, int32_t q, const Cache *pinned) { /* of a prompt, or those of them that run with others */
  double sum = 0;
  for (int64_t z = p->ask.shared_offset[q]; z < p->ask.shared_offset[q + 1]; z++) {
    int32_t i = pinned ? cache_find(pinned, ~p->ask.shared_name[z]) : -1;
    if (!pinned || (i >= 0 && pinned->at[i].pins)) sum += p->ask.shared_tokens[z];
  }
  return sum;
}
static double pieces_kept(Sim *p, Replica *r, int32_t q) {
  return is_session(p, q) ? pieces_of(p, q, p->flags[q] & PINNED ? NULL : &r->cache) : 0;
}
/* What of the prompt of a request that is being admitted need not be computed; what it shares is pinned. */
static double supply(Sim *p, Replica *r, int32_t q) {
  const Ask *a = &p->ask;
  /* who has decoded keeps what was computed, and decode replicas keep no prompts */
  if (r->pool->supplied && (supplied(p, r->pool, q) || p->mark[q] > 0)) return INFINITY;
  if (r->pool->supplied || !is_session(p, q)) return a->cached_tokens[q];
  cache_trim(p, &r->cache, r->free);
  double found = smaller(in_blocks(found_at(p, r, q, r->next, NULL)), a->input_tokens[q] - 1), room = r->free - a->input_tokens[q];
  cache_take(&r->cache, a->session[q]);
  if (p->pieces) {
    double left = found;
    room += pieces_kept(p, r, q);
    for (int64_t z = a->shared_offset[q]; z < a->shared_offset[q + 1]; z++) {
      double tokens = a->shared_tokens[z], had = smaller(left, tokens);
      cache_take(&r->cache, ~a->shared_name[z]);
      int32_t i = cache_entry(p, &r->cache, ~a->shared_name[z]);
      if (i < 0) return found;
      if (!r->cache.at[i].pins++) r->cache.at[i].computed = tokens - had;
      r->cache.at[i].tokens = tokens;
      left -= had;
    }
    p->flags[q] |= PINNED;
  }
  cache_trim(p, &r->cache, room);
  a->found_tokens[q] = found;
  a->host_tokens[q] = smaller(a->host_tokens[q], found);
  return found;
}
/* A request leaves its replica: what it shared and nobody else runs with is kept as any prefix. */
static void unpin(Sim *p, Replica *r, int32_t q, double now) {
  for (int64_t z = p->ask.shared_offset[q]; z < p->ask.shared_offset[q + 1]; z++) {
    int32_t i = cache_find(&r->cache, ~p->ask.shared_name[z]);
    if (i < 0 || --r->cache.at[i].pins) continue;
    double tokens = r->cache.at[i].tokens, computed = r->cache.at[i].computed;
    cache_drop(&r->cache, i);
    r->free += tokens;
    cache_spoil(p, &r->cache, computed, now);
    cache_put(p, &r->cache, ~p->ask.shared_name[z], tokens, 0, now);
  }
  cache_trim(p, &r->cache, free_at(r, now));
}

static void release(Sim *p, Replica *r, int32_t q, double now) {
  if (p->flags[q] & PINNED) unpin(p, r, q, now);
  p->flags[q] &= (uint8_t)~PINNED;
}

/* --- what completions bring ------------------------------------------------------------------------------------------------------- */

static void schedule(Sim *p, double time, int32_t kind, int32_t q, int32_t sending) {
  Events *h = &p->events;
  if (grow(&p->failed, (void **)&h->at, &h->room, (int64_t)h->size + 1, sizeof(Event)))
    /* replicas of open arrivals do not run by the clock: what they finish at one time goes by their index */
    event_push(h, (Event){time, p->follows ? (int64_t)bits_of(p->ask.first_s[q]) : p->turn++, q, kind, sending});
}
enum { NEXT_CALL, AGAIN, LOADED, GIVE_UP, MOVED };

/* When something happens at a replica next. Open arrivals: a decision due at t is made by who comes after t. */
static void settle(Sim *p, Replica *r) {
  if (!p->times.at) return;
  double time = r->dead ? INFINITY : r->next;
  if (!p->clocked && r->state == DUE) {
    uint64_t bits = bits_of(time) + 1;
    memcpy(&time, &bits, sizeof bits);
  }
  tree_set(&p->times, r->index, time);
}
static void mark_due(Sim *p, Replica *r) {
  if (!p->clocked || r->listed) return;
  r->listed = 1;
  p->due[p->dues++] = r->index;
}
/* Run until `until`: effects of iterations ending then have happened, decisions due then are still to be made. */
static void advance(Sim *p, Replica *r, double until) {
  while (r->next <= until && !p->failed) {
    if (r->state == RUNNING) effects(p, r);
    if (r->next >= until) break;
    decide(p, r);
    if (until == INFINITY && p->work >= p->stop) break;
  }
  settle(p, r);
}
/* A request, counted among those present, comes to a replica that has been advanced to `now`. */
static void enqueue(Sim *p, Replica *r, int32_t q, double now) {
  double time = now;
  if (p->ask.priority && p->order) p->order[q] = p->turn++;
  if (r->pool->wake_s > 0) {
    time = r->entered = larger(now + (now > r->arrived + COLD_AFTER_S ? r->pool->wake_s : 0), r->entered);
    r->arrived = now;
  }
  if (time > now || r->at_door.first >= 0) { /* nobody overtakes there */
    p->where[q] = AT_DOOR;
    p->enter[q] = time;
    append(p, &r->at_door, q);
  } else add_waiting(p, r, q);
  if (r->state == ASLEEP) {
    r->state = DUE;
    r->next = time;
    if (time <= now) mark_due(p, r);
  } else if (r->open || p->ask.priority) cut(r, time); /* of a class before that of the head it may be admitted where the head waits */
  settle(p, r);
}

/* --- promises ------------------------------------------------------------------------------------------------------------------ */

static void count_late(Sim *p, int metric, int32_t q, int beyond) {
  if (beyond) p->late[metric] += weight(p, q);
}
/* Requests whose time is up and who have no token are late, whenever it comes: the rows in order of arrival are looked at once. */
static int broken(Sim *p, double now) {
  for (int m = 0; m < METRICS; m++) {
    const double *when = m == TTFT ? p->ask.first_s : p->ask.done_s;
    double limit = p->ask.limit_s[m];
    int64_t i = p->checked[m];
    if (m != TPOT && p->ask.late[m] < INFINITY && p->watched && !(m == E2E && p->follows)) {
      for (; i < p->row && now - p->ask.arrival_s[i] > limit; i++) {
        if (!(when[i] == when[i]) && !p->clocked && p->ask.replica[i] >= 0) advance(p, p->all + p->ask.replica[i], now);
        count_late(p, m, (int32_t)i, !(when[i] - p->ask.arrival_s[i] <= limit));
      }
      p->checked[m] = i;
    }
    if (p->late[m] > p->ask.late[m]) return p->ended = 1;
  }
  return 0;
}
/* All rows at the end: what was counted on the way is no more than this. */
static void judge(Sim *p) {
  const Ask *a = &p->ask;
  double late[METRICS] = {0, 0, 0};
  if (!p->limited) return;
  for (int32_t q = 0; q < a->rows; q++) {
    double w = weight(p, q), several = a->output_tokens[q] - 1;
    int never = a->done_s[q] != a->done_s[q];
    if (never || a->first_s[q] - a->sent_s[q] > a->limit_s[TTFT]) late[TTFT] += w;
    if (never || a->done_s[q] - a->sent_s[q] > a->limit_s[E2E]) late[E2E] += w;
    if (never || (several > 0 && (a->done_s[q] - a->first_s[q]) / several > a->limit_s[TPOT])) late[TPOT] += w;
  }
  for (int m = 0; m < METRICS; m++) p->ended |= late[m] > a->late[m];
}

/* --- gateways ------------------------------------------------------------------------------------------------------------------- */

/* Tokens held at `now`: contexts as of the last iteration that ended, and what prompts hold. */
static double held_at(const Replica *r, double now) {
  if (r->pool->engine != MIXED) return r->finishing_tokens; /* no memory: what their KV takes in the end */
  double held = r->contexts + r->finishing_tokens + (r->pool->reserve ? r->part_length : r->part_done);
  if (r->state == RUNNING && r->takes) held += (double)r->n * (double)ended_at(r, now);
  return held;
}
static double value_of(Sim *p, Gate *g, int32_t k, double now) {
  Replica *r = g->first + k;
  if (!p->clocked && r->next <= now) advance(p, r, now);
  return g->pool->looks == BY_TOKENS ? held_at(r, now) : (double)r->present;
}

/* Where a gateway that looks for prefixes sent the last piece of a prompt, to be kept by it: it may not be there yet, or no more. */
static Kept *sent_before(Sim *p, Gate *g, int32_t q, int add) {
  if (!p->pieces || p->ask.shared_offset[q] == p->ask.shared_offset[q + 1]) return NULL;
  int64_t name = p->ask.shared_name[p->ask.shared_offset[q + 1] - 1];
  int32_t i = add ? cache_entry(p, &g->sent, name) : cache_find(&g->sent, name);
  return i < 0 ? NULL : g->sent.at + i;
}
static Replica *remembered(Sim *p, Gate *g, int32_t q, Replica *r) {
  Kept *k = sent_before(p, g, q, 1);
  if (k) k->call = (int32_t)(r - g->first);
  return r;
}

/* The replica that takes a request, all seen as they are at `now`; `draw` = ordinal of the first of its two draws. */
static Replica *route(Sim *p, Gate *g, int32_t q, uint64_t draw, double now) {
  const Pool *c = g->pool;
  uint64_t key = p->ask.key[q];
  int32_t living = g->living, k = 0;
  int64_t session = p->ask.session ? p->ask.session[q] : -1;
  if (c->affinity == BY_SESSION && session >= 0 && p->home[session] >= 0 && !g->first[p->home[session]].dead)
    return g->first + p->home[session];
  int finds = c->affinity == BY_PREFIX && session >= 0 && p->ask.caches;
  if (finds) {
    /* of those that hold most of the prompt the least busy one, else the one its last piece was sent to, unless it is crowded */
    double best = 0, least = g->present.at[1].least, busy = INFINITY;
    Replica *here = NULL;
    for (int32_t i = 0; i < living; i++) best = larger(best, found_at(p, g->first + g->alive[i], q, now, NULL));
    for (int32_t i = 0; best >= CACHE_BLOCK && i < living; i++) {
      Replica *r = g->first + g->alive[i];
      if (r->present < busy && found_at(p, r, q, now, NULL) > best - CACHE_BLOCK) busy = r->present, here = r;
    }
    const Kept *sent = here ? NULL : sent_before(p, g, q, 0);
    if (sent && !g->first[sent->call].dead) here = g->first + sent->call, busy = here->present;
    if (here && busy - least > CROWD && busy > 1.5 * least) here = g->first + tree_nth(&g->present, 0);
    if (here) return remembered(p, g, q, here);
  }
  if (c->in_turn) k = g->alive[g->turn++ % (uint64_t)living];
  else if (living == 1) k = g->alive[0];
  else if (c->looks == BLIND) k = g->alive[(int32_t)(uniform(key, draw) * living)];
  else if (c->candidates == 2) {
    int32_t i = (int32_t)(uniform(key, draw) * living), j = (int32_t)(uniform(key, draw + 1) * (living - 1));
    j += j >= i;
    k = value_of(p, g, g->alive[j], now) < value_of(p, g, g->alive[i], now) ? g->alive[j] : g->alive[i];
  } else if (c->looks == BY_REQUESTS) {
    while (!p->clocked && !p->failed && p->times.at[1].least <= now) advance(p, p->all + tree_nth(&p->times, 0), now);
    k = (int32_t)tree_nth(&g->present, (int64_t)(uniform(key, draw) * (double)g->present.at[1].ties));
  } else {
    double least = INFINITY;
    int32_t ties = 0;
    for (int32_t i = 0; i < living; i++) {
      double value = value_of(p, g, g->alive[i], now);
      ties = value < least ? 1 : ties + (value == least);
      least = smaller(least, value);
    }
    ties = (int32_t)(uniform(key, draw) * ties);
    for (int32_t i = 0; i < living; i++)
      if (value_of(p, g, g->alive[i], now) == least && ties-- == 0) k = g->alive[i];
  }
  if (c->affinity == BY_SESSION && session >= 0) p->home[session] = k;
  return finds ? remembered(p, g, q, g->first + k) : g->first + k;
}

static void join(Sim *p, Replica *r, int32_t q, double now) { /* open arrivals */
  if (r->next <= now) advance(p, r, now);
  if (p->order) p->order[q] = p->turn++;
  present_by(p, r, 1);
  r->queued++;
  r->queued_tokens += p->ask.input_tokens[q];
  enqueue(p, r, q, now);
}
/* What came to the decode pool by `until`, up to which its prefill replicas have run; 0 = the replay pauses or is over. */
static int hand_over(Sim *p, double until) {
  for (int32_t k = 0; k < p->pool->count; k++) {
    if (p->all[k].next <= until) advance(p, p->all + k, until);
    if (p->work >= p->stop || p->failed) return 0;
  }
  while (p->events.size && p->events.at[0].time <= until) {
    if (p->work++ >= p->stop || p->failed || (p->limited && broken(p, p->events.at[0].time))) return 0;
    Event e = event_take(&p->events, 0);
    Replica *r = route(p, p->gate + 1, e.row, 2, e.time);
    p->ask.moved_s[e.row] = e.time;
    p->ask.decode_replica[e.row] = (int32_t)(r - p->gate[1].first);
    p->mark[e.row] = 0;
    join(p, r, e.row, e.time);
  }
  p->handed = p->row + 4 * p->pool->count;
  return 1;
}
/* Requests that come by themselves to replicas that do not act on each other: each runs when somebody comes or looks. */
static void open_arrivals(Sim *p) {
  const Ask *a = &p->ask;
  while (p->row < a->rows && !p->failed) {
    int32_t q = (int32_t)p->row;
    double now = a->arrival_s[q];
    if (p->follows && p->row >= p->handed && !hand_over(p, now)) return;
    if (p->work >= p->stop || (p->limited && broken(p, now))) return;
    p->row++;
    p->work++;
    a->admitted_s[q] = a->first_s[q] = a->done_s[q] = NAN;
    a->replica[q] = -1;
    Replica *r = route(p, p->gate, q, 0, now);
    if (!can_hold(p, q)) {
      a->rejected[q] = 1;
      count_late(p, TPOT, q, 1);
      continue;
    }
    a->replica[q] = r->index;
    join(p, r, q, now);
  }
  if (p->follows && !p->failed && !hand_over(p, INFINITY)) return;
  for (int32_t k = 0; k < p->replicas && p->work < p->stop && !p->failed; k++) advance(p, p->all + k, INFINITY);
}

/* --- clients, and all that goes by the clock --------------------------------------------------------------------------------- */

static void follow(Sim *p, int32_t q, double now) { /* the session's next call, after its gap */
  int32_t after = p->ask.following ? p->ask.following[q] : -1;
  if (after >= 0) schedule(p, now + p->ask.gap_s[after], NEXT_CALL, after, 0);
}
static void first_token(Sim *p, int32_t q, double now) {
  p->ask.first_s[q] = now;
  if (p->flags) p->flags[q] |= ANSWERED;
  /* after an outage there may be another one, of a sending that is not late */
  if (p->limited && !p->watched && !p->ask.outages) count_late(p, TTFT, q, !(now - p->ask.sent_s[q] <= p->ask.limit_s[TTFT]));
}
static void completed(Sim *p, Replica *r, int32_t q, double now) {
  const Ask *a = &p->ask;
  const Pool *c = r->pool;
  p->where[q] = NOWHERE;
  if (!c->supplied && a->caches) {
    release(p, r, q, now);
    if (is_session(p, q)) { /* the last token has been sent and not been read */
      double shared = p->pieces ? pieces_of(p, q, NULL) : 0, size = a->input_tokens[q] + (double)tokens_of(p, r, q) - 1 - shared;
      cache_spoil(p, &r->cache, size - larger(a->found_tokens[q] - shared, 0), now);
      cache_put(p, &r->cache, a->session[q], in_blocks(size), q, now);
      cache_trim(p, &r->cache, r->free);
    }
  }
  if (c->one_token && a->pools == 2 && a->output_tokens[q] > 1) {
    if (a->gaps) p->last[q] = now;
    schedule(p, now + a->transfer_s[q], MOVED, q, r->index);
    return;
  }
  a->done_s[q] = now;
  p->under_way--;
  if (p->limited) {
    double several = a->output_tokens[q] - 1;
    if (!p->watched || p->follows) count_late(p, E2E, q, !(now - a->sent_s[q] <= a->limit_s[E2E]));
    if (!p->watched && a->outages) count_late(p, TTFT, q, !(a->first_s[q] - a->sent_s[q] <= a->limit_s[TTFT]));
    if (several > 0) count_late(p, TPOT, q, !((now - a->first_s[q]) / several <= a->limit_s[TPOT]));
  }
  follow(p, q, now);
}
static void ghost_ends(Sim *p, Replica *r, int32_t g, double now) {
  Ghost *ghost = p->ghosts + (g - p->ask.rows);
  if (ghost->pinned) unpin(p, r, ghost->row, now);
  ghost->spare = p->spare_ghost;
  p->spare_ghost = g;
  r->ghosts--;
}
/* The client of a resident is gone: a ghost takes its place until the running iteration ends. */
static void begin_ghost(Sim *p, Replica *r, int32_t q) {
  int32_t g = p->spare_ghost, after = p->prev[q], room = p->ghosts_room;
  if (g < 0) {
    int64_t size = p->ask.rows + p->haunting + 1;
    if (!grow(&p->failed, (void **)&p->ghosts, &room, p->haunting + 1, sizeof(Ghost))) return;
    if (room != p->ghosts_room) { /* the columns that lists run through grow with them */
      int32_t *prev = RESIZE(p->prev, (size_t)(p->ask.rows + room) * sizeof *prev);
      if (prev) p->prev = prev;
      int32_t *next = RESIZE(p->next, (size_t)(p->ask.rows + room) * sizeof *next);
      if (next) p->next = next;
      uint8_t *where = RESIZE(p->where, (size_t)(p->ask.rows + room));
      if (where) p->where = where;
      if (!prev || !next || !where) {
        p->failed = 1;
        return;
      }
    }
    p->ghosts_room = room;
    p->haunting++;
    g = (int32_t)size - 1;
  } else p->spare_ghost = p->ghosts[g - p->ask.rows].spare;
  p->ghosts[g - p->ask.rows] = (Ghost){
    .blocks = blocks(r->pool, held_by(p, r, q)) - kept_once(p, r, q), .row = q, .pinned = (p->flags[q] & PINNED) != 0,
    .completes = p->where[q] == FINISHING && tokens_of(p, r, q) - p->mark[q] == 1};
  p->flags[q] &= (uint8_t)~PINNED;
  if (r->finishing == q) r->finishing = g;
  if (r->partial == q) r->partial = g;
  remove_from(p, &r->residing, q);
  insert_after(p, &r->residing, after, g);
  p->where[g] = GHOST;
  r->ghosts++;
}

/* Turned away or given up: once more, or never answered. */
static void again(Sim *p, int32_t q, double now) {
  p->where[q] = NOWHERE;
  if (p->tried[q] < p->ask.retries) {
    p->tried[q]++;
    schedule(p, now + p->ask.retry_after_s, AGAIN, q, 0);
    return;
  }
  p->under_way--;
  p->tried[q] = -1;
  count_late(p, TPOT, q, 1);
  if (!p->watched) count_late(p, TTFT, q, 1), count_late(p, E2E, q, 1);
  follow(p, q, now);
}
/* When what only host memory or its disk holds of a prompt has been copied back, from the disk through the host's memory; the copies
 * of a replica wait for each other. */
static double load(Sim *p, Replica *r, int32_t q, double now) {
  double missing[2] = {0, 0}, tokens;
  if (!is_session(p, q) || !(p->ask.cache_host_tokens + p->ask.cache_disk_tokens > 0)) return now;
  found_at(p, r, q, now, missing);
  tokens = in_blocks(missing[0]);
  if (tokens <= 0) return now;
  p->ask.host_tokens[q] = tokens;
  r->link_free = larger(r->link_free, now) + tokens / p->ask.cache_host_tokens_per_s + in_blocks(missing[1]) / p->ask.cache_disk_tokens_per_s;
  return r->link_free;
}
static void turn_away(Sim *p, int32_t q, double now) {
  p->ask.rejected[q]++;
  again(p, q, now);
}
/* The gateway chooses a replica, whose door may be closed. */
static void place(Sim *p, Gate *g, int32_t q, double now) {
  const Ask *a = &p->ask;
  int second = (int)g->pool->supplied;
  Replica *r = route(p, g, q, 4 * (uint64_t)p->ordinal[q] + 2 * (uint64_t)second, now);
  if (second) {
    a->decode_replica[q] = (int32_t)(r - g->first);
    present_by(p, r, 1);
    r->queued++;
    enqueue(p, r, q, now);
    return;
  }
  int full = (double)r->queued >= a->max_queue || r->queued_tokens + a->input_tokens[q] > a->max_queued_tokens;
  if ((full && r->present) || !can_hold(p, q)) {
    turn_away(p, q, now);
    return;
  }
  a->replica[q] = r->index;
  present_by(p, r, 1);
  r->queued++;
  r->queued_tokens += a->input_tokens[q];
  double ready = load(p, r, q, now);
  if (ready > now) {
    p->where[q] = LOADING;
    append(p, &r->loading, q);
    schedule(p, ready, LOADED, q, p->ordinal[q]);
  } else enqueue(p, r, q, now);
}
/* Whether so many prompts wait for a prefill replica that a decode replica takes the next one whole. */
static int helps(Sim *p, int32_t q) {
  const Gate *g = p->gate;
  if (p->ask.pools < 2 || p->ask.helps_at == INFINITY || p->ask.output_tokens[q] < 2) return 0;
  double waiting = g->living ? 0 : INFINITY;
  for (int32_t k = 0; k < g->pool->count; k++) waiting += (double)g->first[k].queued;
  for (int32_t i = g->common.first; i >= 0; i = p->next[i]) waiting++;
  if (waiting < p->ask.helps_at) return 0;
  p->flags[q] |= HELPED;
  if (can_ever_hold(p, g + 1, q)) return 1;
  p->flags[q] &= (uint8_t)~HELPED;
  return 0;
}
static int has_room(const Gate *g) { return g->living && g->present.at[1].least < g->pool->slots; }
/* To the replicas, or to wait for one. */
static void deliver(Sim *p, Gate *g, int32_t q, double now) {
  p->order[q] = p->turn++;
  if (g == p->gate && helps(p, q)) g++;
  if (g->pool->one_queue && !g->pool->supplied && !can_hold(p, q)) {
    turn_away(p, q, now);
  } else if (g->pool->one_queue && !has_room(g)) {
    p->where[q] = COMMON;
    insert_in_order(p, &g->common, q);
  } else if (!g->living) {
    p->where[q] = STRANDED;
    append(p, &p->stranded, q);
  } else place(p, g, q, now);
}
static void reset(Sim *p, int32_t q) { /* the columns are of the last sending */
  const Ask *a = &p->ask;
  a->admitted_s[q] = a->first_s[q] = a->done_s[q] = NAN;
  a->found_tokens[q] = a->host_tokens[q] = 0;
  a->replica[q] = a->decode_replica[q] = -1;
  p->mark[q] = 0;
  if (p->last) p->last[q] = NAN;
  a->attempts[q]++;
}
static void send(Sim *p, int32_t q, double now) {
  reset(p, q);
  p->ask.sent_s[q] = now;
  p->flags[q] = 0;
  if (p->ask.timeout_s < INFINITY) schedule(p, now + p->ask.timeout_s, GIVE_UP, q, p->tried[q]);
  deliver(p, p->gate, q, now);
}
static void arrive(Sim *p, int32_t q, double now) {
  int beyond = (double)p->under_way >= p->ask.in_flight;
  if (beyond && p->ask.leave) {
    p->under_way++;
    reset(p, q);
    p->ask.sent_s[q] = now;
    turn_away(p, q, now);
    return;
  }
  if (beyond) {
    int32_t a = p->held_back.last; /* in order of time, then of row: times that are not negative are ordered as their bits are */
    memcpy(p->mark + q, &now, sizeof now);
    while (a > q && p->mark[a] == p->mark[q]) a = p->prev[a];
    insert_after(p, &p->held_back, a, q);
    p->where[q] = HELD_BACK;
    return;
  }
  p->under_way++;
  send(p, q, now);
}
/* Those that wait with their client or in a common queue, as long as there is room. */
static void hand_out(Sim *p, double now) {
  for (int32_t q; (q = p->held_back.first) >= 0 && (double)p->under_way < p->ask.in_flight;) {
    remove_from(p, &p->held_back, q);
    p->under_way++;
    send(p, q, now);
  }
  for (Gate *g = p->gate; g < p->gate + p->ask.pools; g++)
    for (int32_t q; (q = g->common.first) >= 0 && has_room(g);) {
      remove_from(p, &g->common, q);
      place(p, g, q, now);
    }
}
static void give_up(Sim *p, int32_t q, double now) {
  int32_t helped = p->flags[q] & HELPED, at = helped ? p->ask.decode_replica[q] : p->ask.replica[q];
  Gate *g = p->gate + (helped > 0);
  Replica *r = g->first + (at < 0 ? 0 : at);
  int head = 0;
  p->ask.given_up[q]++;
  switch (p->where[q]) {
    case STRANDED: remove_from(p, &p->stranded, q); break;
    case COMMON: remove_from(p, &g->common, q); break;
    case PREFILL: case FINISHING:
      if (r->state == RUNNING) {
        begin_ghost(p, r, q);
        cut(r, now);
      } else { /* between two iterations it leaves at once */
        leave(p, r, q);
        present_by(p, r, -1);
        release(p, r, q, now);
      }
      settle(p, r);
      break;
    default:
      head = head_of(p, r) == q;
      if (p->where[q] == EVICTED) remove_from(p, &r->evicted, q);
      else {
        if (p->where[q] == WAITING) remove_waiting(p, r, q);
        else remove_from(p, p->where[q] == LOADING ? &r->loading : &r->at_door, q);
        r->queued--;
        r->queued_tokens = r->queued ? r->queued_tokens - p->ask.input_tokens[q] : 0;
      }
      present_by(p, r, -1);
      release(p, r, q, now);
      if (head) cut(r, now); /* the next one may fit */
      settle(p, r);
  }
  again(p, q, now);
}
static void handle(Sim *p, Event e) {
  int32_t q = e.row;
  switch (e.kind) {
    case NEXT_CALL: arrive(p, q, e.time); break;
    case AGAIN:
      p->ordinal[q]++;
      send(p, q, e.time);
      break;
    case LOADED:
      if (p->where[q] != LOADING || p->ordinal[q] != e.sending) break;
      remove_from(p, &p->all[p->ask.replica[q]].loading, q);
      enqueue(p, p->all + p->ask.replica[q], q, e.time);
      break;
    case GIVE_UP:
      if (p->tried[q] == e.sending && p->where[q] != NOWHERE && !(p->flags[q] & ANSWERED)) give_up(p, q, e.time);
      break;
    default: /* MOVED: its KV cache has come to the decode pool */
      p->ask.moved_s[q] = e.time;
      p->mark[q] = 0;
      deliver(p, p->gate + 1, q, e.time);
  }
}
static void clear(const Sim *p, Replica *r) { /* nothing is in it, nothing kept */
  r->waiting = r->evicted = r->residing = r->at_door = r->loading = (List){-1, -1};
  r->residents = r->ends.size = r->lengths.size = 0;
  r->n = r->queued = 0;
  r->contexts = r->finishing_tokens = r->queued_tokens = r->link_free = r->mass = 0;
  r->finishing = -1;
  part_ends(r);
  r->free = r->pool->blocks - r->pool->shared_blocks;
  r->arrived = r->entered = -INFINITY;
  r->odd = r->open = 0;
  r->state = ASLEEP;
  r->next = INFINITY;
  for (int64_t i = 0; r->residues && i < r->pool->block; i++) r->residues[i] = 0;
  for (int64_t i = 0; r->tails && i < p->ask.classes; i++) r->tails[i] = -1;
  Cache *c = &r->cache;
  for (int64_t i = 0; c->buckets && i <= c->mask; i++) c->buckets[i] = -1;
  c->size = 0;
  c->spare = c->oldest = c->newest = -1;
  c->held = 0;
}
static int by_row(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}
static void count_alive(Gate *g) {
  g->living = 0;
  for (int32_t k = 0; k < g->pool->count; k++)
    if (!g->first[k].dead) g->alive[g->living++] = k;
}
/* A replica dies: what it held is sent again at once. */
static void die(Sim *p, Replica *r, double now) {
  int32_t count = 0, *lost = RESIZE(NULL, ((size_t)r->present + 1) * sizeof(int32_t));
  if (!lost) {
    p->failed = 1;
    return;
  }
  if (r->state == RUNNING) {
    int64_t j = ended_at(r, now);
    if (j > 0) commit(p, r, j, span(r, j));
  }
  List *lists[] = {&r->residing, &r->waiting, &r->evicted, &r->at_door, &r->loading};
  for (int i = 0; i < 5; i++) {
    for (int32_t q = lists[i]->first, z; q >= 0; q = z) {
      z = p->next[q];
      if (q < p->ask.rows) lost[count++] = q;
      else {
        p->ghosts[q - p->ask.rows].pinned = 0;
        ghost_ends(p, r, q, now);
      }
    }
  }
  qsort(lost, (size_t)count, sizeof(int32_t), by_row);
  present_by(p, r, -r->present);
  clear(p, r);
  r->dead = 1;
  tree_set(&p->gate->present, r->index, INFINITY);
  settle(p, r);
  count_alive(p->gate);
  for (int32_t i = 0; i < count; i++) {
    int32_t q = lost[i];
    double waited = p->ask.first_s[q] - p->ask.sent_s[q];
    p->flags[q] &= (uint8_t)~PINNED;
    /* a first token that was in time does not count any more */
    if (p->watched && q < p->checked[TTFT]) count_late(p, TTFT, q, waited <= p->ask.limit_s[TTFT]);
    reset(p, q);
    p->ordinal[q]++;
    deliver(p, p->gate, q, now);
  }
  free(lost);
}
static void outage(Sim *p, int64_t i, double now) {
  Replica *r = p->all + p->ask.outage_replica[i];
  if (!p->ask.outage_ends[i]) {
    die(p, r, now);
    return;
  }
  r->dead = 0;
  present_by(p, r, 0);
  settle(p, r);
  count_alive(p->gate);
  if (i + 1 < p->ask.outages && p->ask.outage_ends[i + 1] && p->ask.outage_time[i + 1] <= now) return; /* another one is back */
  List waiting = p->stranded;
  p->stranded = (List){-1, -1};
  for (int32_t q = waiting.first, z; q >= 0; q = z) {
    z = p->next[q];
    deliver(p, p->gate, q, now);
  }
}
/* One moment after the other, until nothing is left. */
static void together(Sim *p) {
  const Ask *a = &p->ask;
  while (p->work < p->stop && !p->failed) {
    while (p->row < a->rows && a->arrival_s[p->row] == INFINITY) p->row++;
    double arrival = p->row < a->rows ? a->arrival_s[p->row] : INFINITY;
    double now = smaller(p->times.at[1].least, arrival);
    if (p->events.size) now = smaller(now, p->events.at[0].time);
    if (p->outage_at < a->outages) now = smaller(now, a->outage_time[p->outage_at]);
    if (now == INFINITY || (p->limited && broken(p, now))) return;
    while (p->times.at[1].least <= now) { /* effects of what ends */
      Replica *r = p->all + tree_nth(&p->times, 0);
      tree_set(&p->times, r->index, INFINITY);
      if (r->state == RUNNING) effects(p, r);
      mark_due(p, r);
    }
    for (; p->outage_at < a->outages && a->outage_time[p->outage_at] <= now && !p->failed; p->outage_at++) outage(p, p->outage_at, now);
    hand_out(p, now);
    for (;;) { /* what clients do */
      while (p->row < a->rows && a->arrival_s[p->row] == INFINITY) p->row++;
      if (p->row < a->rows && a->arrival_s[p->row] <= now) arrive(p, (int32_t)p->row++, now);
      else if (p->events.size && p->events.at[0].time <= now) handle(p, event_take(&p->events, 0));
      else break;
      p->work++;
      hand_out(p, now);
    }
    for (int32_t i = 1; i < p->dues; i++) { /* few: in order of index */
      int32_t k = p->due[i], z = i;
      for (; z && p->due[z - 1] > k; z--) p->due[z] = p->due[z - 1];
      p->due[z] = k;
    }
    for (int32_t i = 0; i < p->dues; i++) {
      Replica *r = p->all + p->due[i];
      r->listed = 0;
      if (r->state == DUE && r->next <= now) decide(p, r);
      settle(p, r);
    }
    p->dues = 0;
  }
}

/* --- the calls from Python ------------------------------------------------------------------------------------------------------ */

EXPORT int fleetopt_interface(void) { return 6; } /* INTERFACE of build.py is the same */

EXPORT void fleetopt_close(Sim *p) {
  if (!p) return;
  for (int32_t k = 0; p->all && k < p->replicas; k++) {
    Replica *r = p->all + k;
    free(r->ends.at), free(r->lengths.at), free(r->residues), free(r->tails), free(r->cache.at), free(r->cache.buckets);
  }
  for (Gate *g = p->gate; g < p->gate + 2; g++) free(g->alive), free(g->present.at), free(g->sent.at), free(g->sent.buckets);
  void *columns[] = {p->all, p->due, p->times.at, p->prev, p->next, p->ordinal, p->tried, p->home, p->mark, p->order, p->enter, p->last, p->where, p->flags, p->events.at, p->ghosts};
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) free(columns[i]);
  free(p);
}
static int open_pool(Sim *p, int i, Replica *first) {
  const Ask *a = &p->ask;
  Pool *c = p->pool + i;
  Gate *g = p->gate + i;
  int32_t count = (int32_t)c->count;
  *g = (Gate){.first = first, .pool = c, .common = {-1, -1}, .alive = zeros(count, sizeof(int32_t)), .sent = {.spare = -1}};
  int whole_pool = (c->looks == BY_REQUESTS && c->candidates == 0) || c->affinity == BY_PREFIX;
  if (!g->alive || (whole_pool && !tree_open(&g->present, count))) return 0;
  for (int32_t k = 0; k < count; k++) {
    Replica *r = first + k;
    *r = (Replica){.pool = c, .index = (int32_t)(r - p->all)};
    present_by(p, r, 0);
    if (c->block > 1 && !(r->residues = zeros(c->block, sizeof(int32_t)))) return 0;
    if (a->priority && a->classes <= 64 && !(r->tails = zeros(a->classes, sizeof(int32_t)))) return 0;
    clear(p, r);
  }
  count_alive(g);
  return 1;
}
/* A replay of what is asked, `pools` one after the other; NULL = no memory. The arrays stay the caller's until it is closed. */
EXPORT Sim *fleetopt_open(const Ask *ask, const Pool *pools, int clocked) {
  Sim *p = zeros(1, sizeof(Sim));
  if (!p) return NULL;
  const Ask *a = &p->ask;
  p->ask = *ask;
  for (int64_t i = 0; i < a->pools; i++) p->pool[i] = pools[i], p->replicas += (int32_t)pools[i].count;
  p->clocked = clocked;
  p->follows = a->pools == 2 && !clocked;
  p->watched = !(a->following || a->retries || a->timeout_s < INFINITY || a->max_queue < INFINITY ||
                 a->max_queued_tokens < INFINITY || a->in_flight < INFINITY);
  for (int m = 0; m < METRICS; m++) p->limited |= a->late[m] < INFINITY;
  p->pieces = a->caches && a->shared_offset && a->session;
  p->stranded = p->held_back = (List){-1, -1};
  p->spare_ghost = -1;
  int64_t n = a->rows;
  int wakes = a->pools && (pools[0].wake_s > 0 || (a->pools > 1 && pools[1].wake_s > 0)), whole = 1;
  whole &= (p->all = zeros(p->replicas, sizeof(Replica))) && (p->prev = zeros(n, 4)) && (p->next = zeros(n, 4));
  whole = whole && (p->mark = zeros(n, 8)) && (p->where = zeros(n, 1));
  if (wakes) whole = whole && (p->enter = zeros(n, 8));
  if (a->pools == 2 || clocked) whole = whole && (p->order = zeros(n, 8));
  if (a->gaps) whole = whole && (p->last = zeros(n, 8));
  if (a->session) whole = whole && (p->home = zeros(a->sessions, 4));
  if (clocked) {
    whole = whole && (p->flags = zeros(n, 1)) && (p->ordinal = zeros(n, 4)) && (p->tried = zeros(n, 4));
    whole = whole && (p->due = zeros(p->replicas, 4));
  }
  for (int64_t i = 0, k = 0; whole && i < a->pools; k += p->pool[i++].count) whole = open_pool(p, (int)i, p->all + k);
  int looks = clocked || (a->pools && p->gate[0].present.at);
  if (!whole || (looks && !tree_open(&p->times, p->replicas))) {
    fleetopt_close(p);
    return NULL;
  }
  for (int64_t q = 0; p->last && q < n; q++) p->last[q] = NAN;
  for (int64_t z = 0; p->home && z < a->sessions; z++) p->home[z] = -1;
  for (int i = 0; i < a->pools; i++) {
    double *x = p->powers[i];
    x[0] = 1 - p->pool[i].expert_share;
    x[WHOLE_POWERS] = sqrt(x[0]);
    for (int k = 1; k < WHOLE_POWERS; k++) x[k] = x[k - 1] * x[k - 1];
    for (int k = WHOLE_POWERS + 1; k < POWERS; k++) x[k] = sqrt(x[k - 1]);
  }
  return p;
}
/* Some more of it: about `work` arrivals and decisions; 1 = not done yet, 0 = done, -1 = out of memory. */
EXPORT int fleetopt_advance(Sim *p, int64_t work) {
  p->stop = p->work + work;
  if (p->clocked) together(p);
  else open_arrivals(p);
  if (p->failed) return -1;
  if (!p->ended && p->work >= p->stop) return 1;
  if (!p->ended) judge(p);
  for (int32_t k = 0; k < p->replicas; k++) {
    const Replica *r = p->all + k;
    p->ask.iterations[k] = r->iterations;
    p->ask.busy_s[k] = r->busy;
    p->ask.resident_s[k] = r->resident_s;
    p->ask.decode_s[k] = r->decode_s;
  }
  p->ask.totals[0] = p->recomputed;
  p->ask.totals[1] = p->ended ? (double)p->row : -1;
  return 0;
}

typedef struct { uint64_t bits; int64_t place; } Place;
/* Places of times that are not negative in ascending order, equal ones as they stand: their upper bits eleven at a time, the lowest
 * first, which leaves hardly any to be moved by a place or two; -1 = no memory. */
EXPORT int fleetopt_order(const double *times, int64_t n, int64_t *order) {
  Place *from = zeros(n, sizeof(Place)), *to = zeros(n, sizeof(Place));
  int whole = from && to;
  for (int64_t i = 0; whole && i < n; i++) from[i] = (Place){bits_of(times[i]), i};
  for (int shift = 20; whole && shift < 64; shift += 11) {
    int64_t begin[2048] = {0}, below = 0;
    for (int64_t i = 0; i < n; i++) begin[from[i].bits >> shift & 2047]++;
    for (int k = 0; k < 2048; k++) {
      int64_t own = begin[k];
      begin[k] = below;
      below += own;
    }
    for (int64_t i = 0; i < n; i++) to[begin[from[i].bits >> shift & 2047]++] = from[i];
    Place *spare = from;
    from = to;
    to = spare;
  }
  for (int64_t i = 0, k; whole && i < n; i++) {
    Place own = from[i];
    for (k = i; k && from[k - 1].bits > own.bits; k--) from[k] = from[k - 1];
    from[k] = own;
  }
  for (int64_t i = 0; whole && i < n; i++) order[i] = from[i].place;
  free(from), free(to);
  return whole ? 0 : -1;
}
