"""Disaggregated fleets (`real/pd`) and prefix caches, with host memory behind them (`real/offload`) and of sessions, replayed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

import planner as fo
from benchmarks.accuracy.mixtures import LADDER, RATIO, Workers, ratio_runs, served
from benchmarks.accuracy.rows import SHARED, Pair
from benchmarks.accuracy.serving import Load, completed_per_s, each, poisson, quantile, random, skipping, table, through
from planner.catalog.kv import kv_bytes_per_token, kv_capacity, window_share
from planner.catalog.profiles import Profile, estimated_profile
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.roofline import ASSUMED
from planner.predict.calls import session_calls
from planner.predict.records import PrefixCache, Replicas, Run
from planner.predict.run import replay
from planner.workload.importing import read_workload
from tools.tables import write_csv

STAGE_S, APART_S = 60.0, 600.0
"""A stage's length, and how far apart their begins are replayed: each has ended before the next, the cache stays [s]."""
PREFIX, QUESTION, ANSWER = 16_000.0, 256.0, 256.0
"""Load of both ladders: tokens that prompts of a group share, their own, and of an answer."""
GROUPS, EACH = {"pd": 1000, "offload": 250}, 5
"""Prompts of a ladder, so many to each group: mixed once, then sent one after the other again and again (inference-perf)."""
DRAWS = 5
"""Ladders that are averaged, each with arrivals and an order of its own: one run of a minute tells P90 to a tenth or two."""
PREFILL_KV, FLEET_HBM, FLEET_HOST = 1_630_790.0, 2_384_000.0, 10_496_000.0
"""KV tokens of a prefill replica, and of the whole offloading fleet in GPU and host memory (their READMEs)."""
LONGEST, CHUNK = 131_072.0, 8192.0
"""Of gpt-oss: vLLM prints its blocks over those of one request of the longest context, whose windows hold a chunk [tokens]."""
HOST_BYTES_PER_S = 25e9
"""Copies from host memory, per GPU: what a PCIe slot sustains [bytes/s]."""
BELOW = 0.95
"""Share of the largest measured rate up to which a stage counts as below the knee."""
TIE = 0.03
"""Two equal runs of a server differ by so much: a ratio that near the best one is the best."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage of a ladder reached: requests/s, and latencies of its requests [s]."""

    achieved_per_s: float
    ttft_p90_s: float
    e2e_p90_s: float


def climb(
    rates: Sequence[float], groups: int, overhead_s: float, play: Callable[[Load], Run], draw: int = 0
) -> list[Stage]:
    """A ladder of Poisson stages, played one after the other against caches that stay."""
    arrivals, stage = [], []
    for number, rate in enumerate(rates):
        at = poisson(rate, round(rate * STAGE_S), seed=100 * draw + number + 1) + number * APART_S
        arrivals.append(at)
        stage.append(np.full(at.size, number))
    order = random(7 + draw).permutation(np.repeat(np.arange(groups), EACH))
    group = np.resize(order, sum(a.size for a in arrivals))
    load = Load(np.concatenate(arrivals), PREFIX + QUESTION, ANSWER, group=group, shared_tokens=PREFIX)
    run = play(load)
    which = np.concatenate(stage)
    found = []
    for number in range(len(rates)):
        own = which == number
        span = run.done_s[own].max() - run.sent_s[own].min()
        e2e, ttft = run.e2e_s[own] + overhead_s, run.ttft_s[own] + overhead_s
        found.append(Stage(float(own.sum() / span), quantile(ttft, 0.9), quantile(e2e, 0.9)))
    return found


def climbs(rates: Sequence[float], groups: int, overhead_s: float, play: Callable[[Load], Run]) -> list[Stage]:
    """The mean of several ladders, stage by stage; a rate that was measured twice is climbed once."""
    rising = sorted({*rates})
    several = zip(*(climb(rising, groups, overhead_s, play, draw) for draw in range(DRAWS)), strict=True)
    means = [Stage(*map(float, np.mean([astuple(stage) for stage in same], axis=0))) for same in several]
    return [means[rising.index(rate)] for rate in rates]


def _profiles(engine: str, device: GpuSpec, model: ModelSpec, tp: int, decode_tp: int) -> tuple[Profile, Profile]:
    return estimated_profile(device, model, tp, engine), estimated_profile(device, model, decode_tp, engine)


def split(
    profiles: tuple[Profile, Profile], counts: tuple[int, int], memory: tuple[float, float], routing: str = "p2c"
) -> tuple[Replicas, Replicas]:
    """Prefill and decode replicas."""
    first = Replicas(counts[0], profiles[0].iteration, kv_tokens=memory[0], routing=routing, engine="prefill")
    second = Replicas(counts[1], profiles[1].iteration, 1024.0, kv_tokens=memory[1], routing="least")
    return first, second


def transfer_s(model: ModelSpec, tokens: float, links: int) -> float:
    """Time to move the cache of a prompt over so many links [s]."""
    return kv_bytes_per_token(model) * tokens / (ASSUMED["node_link_bytes_per_s"] * links)


def _room(engine: str, device: GpuSpec, model: ModelSpec, tp: int) -> float:
    pool = find_engine(engine).window_pool
    room = kv_capacity(model, device, Parallelism(tp), max_num_seqs=256, token_budget=8192, window_pool=pool)
    return float(room.tokens)


def disaggregated(data: Path) -> Iterator[Pair]:
    """The ladder's knee and P90 below it, the run at 45/s, and the closed loops at several ratios."""
    for one in ladders_apart(data):
        yield from one.pairs("pd_knee", "pd_e2e")
    yield from stated_rate(data)
    yield from ratios(data)


@dataclass(frozen=True, slots=True)
class Ladder:
    """A published ladder of rates, and what is told of its stages.

    Parameters
    ----------
    name
        Which one, and of its fleets.
    rates, achieved
        Sent and achieved of each stage, as published [1/s].
    rows
        As published.
    stages
        As told.
    band
        Half-width printed around it [1].
    """

    name: str
    rates: Sequence[float]
    achieved: Sequence[float]
    rows: Sequence[dict[str, str]]
    stages: Sequence[Stage]
    band: float

    def pairs(self, knee: str, below: str) -> Iterator[Pair]:
        """The largest rate, and the latencies of what lies below it."""
        most = max(self.achieved)
        yield Pair(knee, "largest_rate", self.name, max(s.achieved_per_s for s in self.stages), most, self.band)
        for rate, row, stage in zip(self.rates, self.rows, self.stages, strict=True):
            for metric in ("ttft_p90", "e2e_p90") if rate <= BELOW * most else ():
                if measured := row.get(f"{metric}_s"):
                    name = f"{self.name} {row['target_qps']}/s"
                    yield Pair(below, metric, name, getattr(stage, f"{metric}_s"), float(measured), self.band)


def told_ladders(data: Path) -> Iterator[Sequence[object]]:
    """Every stage of every ladder as told: rates [1/s] and P90 [s], each with its error where it was measured."""
    yield "ladder", "sent", "achieved", "error", "ttft_p90_s", "error", "e2e_p90_s", "error"
    for one in (*ladders_apart(data), *ladders_cached(data)):
        for rate, achieved, row, stage in zip(one.rates, one.achieved, one.rows, one.stages, strict=True):
            pairs = zip(astuple(stage), (achieved, row.get("ttft_p90_s"), row["e2e_p90_s"]), strict=True)
            cells = ((f"{told:.3g}", f"{told / float(true) - 1.0:+.2f}" if true else "") for told, true in pairs)
            yield one.name, f"{rate:g}", *(cell for pair in cells for cell in pair)


@cache
def ladders_apart(data: Path) -> tuple[Ladder, ...]:
    """Prefill and decode on replicas of their own, prompts that share prefixes."""
    rows, found = list(table(data / "real" / "pd" / "ladder.csv")), []
    for arm, own in each(rows, "arm", "prefill", "decode", "gpu", "model", "engine").items():
        with skipping(arm):
            (prefills, tp), (decodes, decode_tp) = (map(int, own[0][k].split("xTP")) for k in ("prefill", "decode"))
            device, model, _ = served(own[0]["gpu"], own[0]["model"], tp)
            engine, windows = own[0]["engine"].replace(" ", "@"), window_share(model)
            profiles = _profiles(engine, device, model, tp, decode_tp)
            pool = PREFILL_KV * (1.0 + windows * (model.sliding_window + CHUNK) / LONGEST)
            kept = PrefixCache(windows=windows if find_engine(engine).keeps_windows else 0.0)
            first, second = split(
                profiles, (prefills, decodes), (pool, _room(engine, device, model, decode_tp)), "prefix"
            )
            moves = transfer_s(model, PREFIX + QUESTION, min(tp, decode_tp))
            rates = [float(r["target_qps"]) for r in own]
            stages = climbs(
                rates, GROUPS["pd"], profiles[0].api_overhead_s,
                partial(through, replicas=first, cache=kept, decoders=second, transfer_s=moves),
            )  # fmt: skip
            found.append(Ladder(arm, rates, [float(r["achieved_per_s"]) for r in own], own, stages, profiles[0].band))
    return tuple(found)


def stated_rate(data: Path) -> Iterator[Pair]:
    """Fleets at a constant rate, their shapes told as `8xTP1 prefill + 2xTP4 decode`."""
    for row in table(data / "real" / "pd" / "rate45.csv"):
        with skipping("rate45.csv"):
            one, tp, other, decode_tp = map(int, re.findall(r"\b\d+(?=xTP)|(?<=xTP)\d+", row["shape"]))
            device, model, _ = served(LADDER[0], "gpt-oss-120b", tp)
            profiles = _profiles(LADDER[1], device, model, tp, decode_tp)
            first, second = split(profiles, (one, other), (math.inf, _room(LADDER[1], device, model, decode_tp)))
            count, rate, prompt = int(row["requests"]), float(row["rate"]), float(row["input_tokens"])
            load = Load(np.arange(count) / rate, prompt, float(row["output_tokens"]))
            run = through(load, first, decoders=second, transfer_s=transfer_s(model, prompt, min(tp, decode_tp)))
            overhead, band, name = profiles[0].api_overhead_s, profiles[0].band, f"{row['run']} {row['rate']}/s"
            yield Pair("pd_knee", "achieved", name, completed_per_s(run), float(row["achieved_per_s"]), band)
            yield Pair("pd_e2e", "e2e_p90", name, quantile(run.e2e_s, 0.9) + overhead, float(row["e2e_p90_s"]), band)
            yield Pair("pd_e2e", "ttft_p90", name, quantile(run.ttft_s, 0.9) + overhead, float(row["ttft_p90_s"]), band)


def _closed_loop(run: Workers) -> tuple[float, float, float, Profile]:
    """Output tokens/s, mean E2E and mean time of a decode step of a closed loop [s]: the mean of several orders of its answers."""
    device, model, _ = served(RATIO[0], run.row["model_id"].split("/")[-1], run.tp)
    profiles = _profiles(RATIO[1], device, model, run.tp, run.tp)
    room = _room(RATIO[1], device, model, run.tp)
    first, second = split(profiles, (run.prefills, run.decodes), (math.inf, room))
    moves, found = transfer_s(model, run.input_tokens, run.tp), []
    for draw in range(DRAWS):
        answers = random(draw).permutation(run.answers)
        load = Load(np.zeros(run.requests), run.input_tokens, answers)
        played = through(load, first, in_flight=run.concurrency, decoders=second, transfer_s=moves)
        # clients get their first token from the decode worker: the wait for its memory is none between tokens
        step_s = float(played.decode_s.sum() / (answers - 1.0).sum())
        found.append((completed_per_s(played) * float(answers.mean()), float(played.e2e_s.mean()), step_s))
    rate, e2e, step = map(float, np.mean(found, axis=0))
    return rate, e2e + profiles[0].api_overhead_s, step, profiles[0]


def ratios(data: Path) -> Iterator[Pair]:
    """Closed loops at several ratios of prefill to decode workers: latencies, and which ratio answers the most."""
    cells: dict[str, list[tuple[float, float]]] = {}
    for run in ratio_runs(data):
        with skipping(run.cell):
            if run.broken:
                continue
            told_per_s, told_e2e, told_step, profile = _closed_loop(run)
            name = f"{run.prefills}P{run.decodes}D {run.cell}"
            measured = run.output_tokens * run.requests / float(run.row["duration"])
            cells.setdefault(f"{run.row['model_id']} {run.cell}", []).append((told_per_s, measured))
            steps_ms = (run.output_tokens - 1.0) * float(run.row["mean_tpot_ms"])
            e2e = 1e-3 * (float(run.row["mean_ttft_ms"]) + steps_ms)
            yield Pair("pd_e2e", "loop_e2e_mean", name, told_e2e, e2e, profile.band)
            tpot = 1e-3 * float(run.row["mean_tpot_ms"])
            yield Pair("pd_e2e", "loop_tpot_mean", name, told_step, tpot, profile.band)
    hits = 0
    for cell, pairs in cells.items():
        best, chosen = max(m for _, m in pairs), max(pairs)[1]
        hits += chosen >= (1.0 - TIE) * best
        yield Pair("pd_ratio", "of_the_best", cell.partition(" ")[2], chosen, best)
    if cells:
        yield Pair("pd_ratio", "cells_best", "all", float(hits), float(len(cells)))


def offload(data: Path) -> Iterator[Pair]:
    """Knees, and P90 of TTFT below them, with prefixes in GPU memory only and with host memory behind it."""
    for one in ladders_cached(data):
        yield from one.pairs("offload_knee", "offload_ttft")


@cache
def ladders_cached(data: Path) -> tuple[Ladder, ...]:
    """Prefixes in GPU memory only, and with host memory behind it."""
    rows, found = list(table(data / "real" / "offload" / "ladders.csv")), []
    for arm, own in each(rows, "arm", "model", "gpu", "replicas", "tp").items():
        with skipping(arm):
            count, tp = int(own[0]["replicas"]), int(own[0]["tp"])
            device, model, _ = served(own[0]["gpu"], own[0]["model"], tp)
            profile = estimated_profile(device, model, tp)
            server = Replicas(
                count, profile.iteration, 1024.0, 8192.0, FLEET_HBM / count, "prefix",
                request_s=profile.request_s, wake_s=profile.wake_s,
            )  # fmt: skip
            speed = HOST_BYTES_PER_S / kv_bytes_per_token(model, tp)
            kept = PrefixCache(FLEET_HOST / count, speed) if "routing" in arm else PrefixCache()
            rates = [float(r["target_qps"]) for r in own]
            play = partial(through, replicas=server, cache=kept)
            stages = climbs(rates, GROUPS["offload"], profile.api_overhead_s, play)
            reached = [float(r["tokens_per_s"]) / (PREFIX + QUESTION + ANSWER) for r in own]
            found.append(Ladder(arm, rates, reached, own, stages, profile.band))
    return tuple(found)


CALLS, WARM_UP = 150_000, 0.4
"""As the reference has them."""

SMALL = 500_000
"""Caches that do not hold the longest prompts are not compared: the reference cuts a prompt that a server would refuse [tokens]."""


def cached_shares() -> Iterator[dict[str, object]]:
    """Share of all prompt tokens found, by replicas, routing and cache."""
    workload, _ = read_workload(SHARED / "real" / "sessions" / "calls.csv.gz")
    assert workload.sessions is not None
    # calls come at their recorded times, each over at once
    sessions = replace(workload.sessions, duration_s=np.zeros(workload.sessions.calls))
    for row in table(SHARED / "real" / "sessions" / "lru_reference.csv"):
        replicas, cache = int(row["replicas"]), float(row["cache_tokens_per_replica"])
        if cache < SMALL:
            continue
        rate = float(row["session_starts_per_s"]) * sessions.turns
        requests, span_s = session_calls(sessions, rate, CALLS)
        # as good as no service time, which the reference leaves out
        engine = Replicas(replicas, IterationModel(t0=1e-6), kv_tokens=cache, routing=row["routing"])
        run, sent = replay(requests, engine, cache=PrefixCache()), requests.input_tokens
        late = requests.arrival_s > WARM_UP * span_s
        found = float(run.found_tokens[late].sum() / sent[late].sum())
        yield {**row, "found": f"{found:.4f}", "error": f"{found - float(row['cached_share']):+.4f}"}


def ladders() -> None:
    """Real fleets behind round robin and behind a prefix-aware router."""
    rows = list(table(SHARED / "real" / "openloop" / "fleet_ladders.csv"))
    one = rows[0]
    text = (
        f"groups={one['prefix_groups']},prefix={one['prefix_tokens']},prompts={one['prompts_per_group']},"
        f"question={one['question_tokens']},osl={one['output_tokens']}"
    )
    busy = [r for r in rows if 35.0 <= float(r["rate"]) <= 60.0]
    print("\n| routing | measured output tokens/s, mean of the rows at 35 to 60/s | predicted | error | cached share |")
    print("|:--|--:|--:|--:|--:|")
    for routing, column in (("random", "k8s_rr_out_tps"), ("prefix", "llmd_out_tps")):
        low, high, share = 0.0, 60.0, 0.0
        while high - low > 0.5:
            # the most that so many replicas bear, whatever requests wait
            rate = 0.5 * (low + high)
            plan = fo.plan(
                text, rate=rate, slo="3600s", model="qwen3-32b", gpu="h100", tp=int(one["tp"]), pools=1, routing=routing,
                token_budget=8192, max_num_seqs=256, burst="poisson", utilization_cap=0.99,
            )  # fmt: skip
            if plan.replicas > int(one["replicas"]):
                high = rate
            else:
                low, share = rate, plan.caches[plan.pools[0].name]["cached_share"]
        found = float(np.mean([min(float(r["rate"]), low) * float(one["output_tokens"]) for r in busy]))
        truth = float(np.mean([float(r[column]) for r in busy]))
        print(f"| {routing} | {truth:,.0f} | {found:,.0f} | {found / truth - 1.0:+.1%} | {share:.2f} |", flush=True)


def sessions(words: Sequence[str]) -> None:
    """What prefix caches find of sessions, beside simulated caches and real fleets: ``python -m benchmarks.accuracy sessions``.

    Writes docs/data/sessions.csv: shares of recorded sessions found by replay, against a token-wise LRU cache simulated by another
    program; and prints output tokens/s of eight replicas beyond their capacity. Both references are third-party data.
    """
    rows = list(cached_shares())
    write_csv("sessions.csv", [[*rows[0]], *([*row.values()] for row in rows)])
    off = [abs(float(str(row["error"]))) for row in rows]
    print(f"{len(rows)} caches of recorded sessions: mean error {np.mean(off):.4f}, largest {max(off):.4f}")
    ladders()
