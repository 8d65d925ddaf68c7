"""Random small questions for a replay, of every mixture of features."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from planner.machine.iteration import IterationModel
from planner.predict.records import (
    Decoders,
    Floats,
    Limit,
    Outage,
    PrefixCache,
    Replicas,
    Requests,
)
from planner.workload.sending import Clients

Random = np.random.Generator


FEW = (1, 3, 8, 25)


def question(seed: int, starts: tuple[int, ...] = FEW) -> dict[str, Any]:
    """The arguments of a replay that :func:`planner.predict.checks.check` lets pass, by the seed alone.

    As many sessions begin as one of `starts` says.

    Half of the questions have times that are multiples of 2^-10 s, so that much happens at the same moment.
    """
    rng = np.random.default_rng(seed)
    return _slots(rng, starts) if rng.random() < 0.1 else _mixed(rng, starts)


def _pick(rng: Random, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def _some(rng: Random, chance: float, low: float, high: float, grid: float) -> float:
    """An amount in [low, high), 0 with a chance; a multiple of the grid where there is one."""
    value = rng.uniform(low, high) if rng.random() < chance else 0.0
    return round(value / grid) * grid if grid else value


def _model(rng: Random, grid: float, contexts: bool = True) -> IterationModel:
    """Iteration times of 1 to 20 ms."""
    fine = grid * 2.0**-10
    given: dict[str, float] = {"t0": max(_some(rng, 1.0, 1e-3, 1e-2, grid), grid), "tau": _pick(rng, 1, 1, 4, 16, 128)}
    given |= {"w": _some(rng, 0.6, 0.0, 5e-3, grid), "h": _some(rng, 0.5, 0.0, 1e-3, fine)}
    given |= {"b": _some(rng, 0.7, 0.0, 1e-4, fine), "c": _some(rng, 0.5, 0.0, 1e-5, fine)}
    given["rows"] = _pick(rng, *[1.0] * 5, 2.0, 1.5, 4.25)
    if rng.random() < 0.2:
        given["x"] = rng.uniform(0.0, 1e-4)
    if rng.random() < 0.2:
        given |= {"w_experts": rng.uniform(0.0, 1e-2), "expert_share": _pick(rng, 1 / 8, 1 / 64, 0.5, 1.0)}
    if not contexts:
        return IterationModel(**given)  # type: ignore[arg-type]
    given |= {"g": _some(rng, 0.8, 0.0, 1e-5, fine * 2.0**-6), "a": _some(rng, 0.6, 0.0, 1e-6, fine * 2.0**-10)}
    given |= {"e": _some(rng, 0.3, 0.0, 1e-4, fine * 2.0**-6), "apart": float(rng.random() < 0.2)}
    if rng.random() < 0.3:
        given |= {"m": float(rng.integers(1, 64)), "h_m": rng.uniform(0, 1e-4), "e_m": _some(rng, 0.6, 0, 1e-5, 0.0)}
    return IterationModel(**given)  # type: ignore[arg-type]


def _rows(
    rng: Random, grid: float, many: tuple[int, ...], sessions: bool, fractional: bool
) -> tuple[dict[str, Any], bool]:
    """Columns of requests, and whether they share pieces."""
    starts, rate = int(_pick(rng, *many)), _pick(rng, 0.5, 3.0, 20.0, 100.0, 1000.0)
    turns = rng.integers(1, 5, starts) if sessions else np.ones(starts, dtype=np.int64)
    n, begins = int(turns.sum()), np.cumsum(turns) - turns
    times = np.cumsum(rng.exponential(1 / rate, starts))
    arrival = np.full(n, math.inf)
    arrival[begins] = np.round(times / grid) * grid if grid else times
    long, short = _pick(rng, 4, 60, 400), _pick(rng, 2, 20, 100)
    own = rng.integers(1, long, n).astype(float)
    given: dict[str, Any] = {"output_tokens": rng.integers(1, short, n).astype(float)}
    pieces = sessions and rng.random() < 0.4
    if fractional:
        own += rng.integers(0, 4, n) / 4
    repeated = np.zeros(n)
    if sessions:
        number = np.repeat(np.arange(starts), turns)
        alone = rng.random(starts) < 0.1
        following = np.append(np.arange(1, n), -1)
        following[np.cumsum(turns) - 1] = -1
        for i in range(n):
            if following[i] >= 0:
                repeated[i + 1] = rng.integers(0, int(own[i] + given["output_tokens"][i]))
                own[i + 1] += repeated[i + 1]
        gaps = rng.exponential(_pick(rng, 0.01, 1.0), n) * (rng.random(n) < 0.8)
        given |= {"session": np.where(alone[number], -1, number), "following": following, "repeated_tokens": repeated}
        given["gap_s"] = np.round(gaps / grid) * grid if grid else gaps
    if pieces:
        tokens = rng.integers(1, _pick(rng, 20, 100), 5).astype(float)
        named = [rng.permutation(5)[: rng.integers(0, 3)] for _ in range(starts)]
        rows = [named[k] for k in np.repeat(np.arange(starts), turns)]
        own += [tokens[r].sum() for r in rows]
        name = np.concatenate([*rows, np.zeros(0, dtype=np.int64)])
        given |= {"shared_offset": np.cumsum([0, *(len(r) for r in rows)]), "shared_name": name.astype(np.int64)}
        given["shared_tokens"] = tokens[given["shared_name"]]
    cached = np.minimum(np.floor(rng.random(n) * own), own - 1) * (rng.random() < 0.3)
    given |= {"arrival_s": arrival, "input_tokens": own, "cached_tokens": cached}
    given["key"] = rng.integers(0, 2**63, n, dtype=np.uint64)
    if rng.random() < 0.2:
        given["weight"] = rng.integers(0, 8, n) / 4
    if rng.random() < 0.2:
        given["images"] = rng.integers(0, 4, n).astype(float)
    return given, pieces


def _pool(rng: Random, grid: float, need: Floats, plain: bool, **given: Any) -> Replicas:
    """Replicas that hold most requests, some of them barely; `plain`: whole prompts, memory in tokens."""
    block, most = 1 if plain else _pick(rng, 1, 1, 4, 16), float(need.max())
    kv = _pick(rng, math.inf, math.inf, 0.7 * most, most, most + 2 * block, 2 * most, 5 * most)
    values: dict[str, Any] = {
        "slots": _pick(rng, math.inf, 1, 2, 5, 30),
        "token_budget": _pick(rng, math.inf, 1, 8, 32.5, 100, 512),
        "kv_tokens": math.floor(kv) + 1.0 if kv < math.inf else kv,
        "block": block,
        "reserve": plain or rng.random() < 0.6,
        "request_s": _some(rng, 0.3, 0.0, 5e-3, grid),
        "image_s": _some(rng, 0.3, 0.0, 0.05, grid),
        "wake_s": _some(rng, 0.3, 0.0, 0.05, grid),
        "routing": _pick(rng, "random", "p2c", "least", "rr", "least-kv"),
    }
    return Replicas(int(_pick(rng, 1, 1, 2, 3, 5)), _model(rng, grid), **(values | given))


def _limits(rng: Random, rows: int) -> list[Limit]:
    return [
        Limit(metric, rng.exponential(scale), _pick(rng, 0.0, 1.0, 0.1 * rows, 0.5 * rows))
        for metric, scale in (("ttft_s", 0.2), ("tpot_s", 0.02), ("e2e_s", 1.0))
        if rng.random() < 0.2
    ]  # type: ignore[misc]


def _slots(rng: Random, starts: tuple[int, ...]) -> dict[str, Any]:
    """Fixed slots."""
    grid = _pick(rng, 0.0, 2.0**-10)
    rows, _ = _rows(rng, grid, starts, False, False)
    slots, engine = int(rng.integers(1, 12)), _pick(rng, "slots", "slots-shared")
    iteration: IterationModel | tuple[float, ...] = _model(rng, grid, contexts=False)
    if engine == "slots" and rng.random() < 0.3:
        iteration = tuple(0.001 * (1 + k) for k in range(slots + 1))
    routing = _pick(rng, "random", "p2c", "least", "rr", "least-kv", "central")
    replicas = Replicas(
        int(rng.integers(1, 4)), iteration, slots, _pick(rng, 1.0, 8.0, 100.0), routing=routing, engine=engine
    )
    return {"requests": Requests(**rows), "replicas": replicas, "gaps": bool(rng.random() < 0.5),
            "limits": _limits(rng, rows["key"].size)}  # fmt: skip


def _mixed(rng: Random, starts: tuple[int, ...]) -> dict[str, Any]:
    """Everything else."""
    grid = _pick(rng, 0.0, 2.0**-10)
    sessions, prefill = rng.random() < 0.4, rng.random() < 0.25
    rows, pieces = _rows(rng, grid, starts, sessions, fractional=rng.random() < 0.1)
    cache = None
    if sessions and rng.random() < 0.7:
        host = _pick(rng, 0.0, 0.0, 300.0, 5000.0)
        cache = PrefixCache(host, _pick(rng, math.inf, 1e3, 1e5), _pick(rng, math.inf, 0.5, 5.0))
    if pieces and cache is None:
        for name in ("shared_offset", "shared_name", "shared_tokens"):
            del rows[name]
        pieces = False
    n = rows["key"].size
    if rng.random() < 0.3:
        rows["priority"] = rng.integers(0, _pick(rng, 2, 3, 100), n).astype(np.int32)
    clients = None
    if rng.random() < 0.5:
        pick = {
            "max_queue": _pick(rng, math.inf, math.inf, 0, 1, 3),
            "max_queued_tokens": _pick(rng, math.inf, math.inf, 200.0),
            "timeout_s": _pick(rng, math.inf, 0.0625, 0.5, 3.0),
            "retries": _pick(rng, 0, 1, 3),
            "retry_after_s": _pick(rng, 0.0, 0.0625, 1.0),
            "in_flight": _pick(rng, math.inf, math.inf, 1, 4, 16),
        }
        clients = Clients(**pick)
    need = rows["input_tokens"] + (0 if prefill else rows["output_tokens"] - 1)
    given: dict[str, Any] = {"engine": "prefill", "slots": 1} if prefill else {}
    names = ["random", "p2c", "least", "rr", "least-kv"]
    names += ["sticky"] * sessions + ["prefix"] * (2 * (cache is not None)) + ["central"] * (not (clients or cache))
    given["routing"] = _pick(rng, *names)
    shared = 0.0 if pieces else _pick(rng, 0.0, 0.0, 7.0, 40.0)
    replicas = _pool(rng, grid, need + shared, cache is not None, shared_prefix=shared, **given)
    decoders = None
    if prefill and rng.random() < 0.8:
        transfer = rng.exponential(0.05, n) * (rng.random() < 0.7)
        transfer = np.round(transfer / grid) * grid if grid else transfer
        routing = _pick(rng, "random", "p2c", "least", "rr", "least-kv", "central")
        whole = rows["input_tokens"] + rows["output_tokens"] - 1
        decoders = Decoders(_pool(rng, grid, whole, False, shared_prefix=shared, routing=routing), transfer)
    outages = []
    for k in range(replicas.count):
        at = 0.0
        while rng.random() < 0.15:
            start = at + round(rng.exponential(0.5) * 64) / 64
            at = start + (1 + round(rng.exponential(0.5) * 64)) / 64 if rng.random() < 0.9 else math.inf
            outages.append(Outage(k, start, at))
            if at == math.inf:
                break
    limits, gaps = _limits(rng, n), bool(rng.random() < 0.4)
    if decoders is not None and not decoders.replicas.iteration.apart and rng.random() < 0.5:  # type: ignore[union-attr]
        decoders = replace(decoders, helps_at=float(_pick(rng, 0, 1, 3)))
    return {"requests": Requests(**rows), "replicas": replicas, "clients": clients, "cache": cache, "decoders": decoders,
            "outages": outages, "limits": limits, "gaps": gaps}  # fmt: skip
