"""The occupancy method and FleetOpt's queue (method `mgc`) against iteration-level servers.

Two sources: `tests/golden/iteration_server.json` (made by the server beside it) and, where it is there, the `iteration_server` of
queueing/truth.json in the shared data. Both give every slot its own prefill chunk at no cost, which is what FleetOpt's eq. 3-4
assume, so that only its queueing is on trial.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.rows import SHARED
from planner.machine.iteration import IterationModel
from planner.predict.methods.mgc import MgcPool
from planner.queueing.exact import phase_type_wait, two_phases
from planner.queueing.slots.chain import WAIT_SURVIVAL, SlotWait
from planner.queueing.slots.latency import ReplicaLatency
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload
from tests.golden.iteration_server import draw
from tools.tables import ROOT, Cells, Page, markdown

COLUMNS = ("occupancy", "TTFT p50", "TTFT p90", "TTFT p99", "TPOT p50", "TPOT p90", "TPOT p99")
NAMES = {"geom": "geometric", "const": "constant", "bimodal": "two", "lognormal": "lognormal"}
FEW, MANY = 0.72, 0.9
"""Loads between which the regions of the tables lie."""


@dataclass(frozen=True)
class Served:
    """One run of a server that gives every slot its own prefill chunk at no cost; times in seconds.

    `truth`: slot occupancy, then P50, P90 and P99 of TTFT and of TPOT.
    """

    fixed_s: float
    per_slot_s: float
    slots: int
    chunk: float
    replicas: int
    routing: str
    rate_per_s: float
    inputs: NDArray[np.float64]
    outputs: NDArray[np.float64]
    truth: tuple[float, ...]

    def predicted(self) -> tuple[float, list[float]]:
        """Load on the largest stable rate, and prediction / truth - 1 in the order of COLUMNS."""
        times = self.fixed_s + self.per_slot_s * np.arange(self.slots + 1.0)
        at = ReplicaLatency(self.inputs, self.outputs, iteration_time=times, chunk=self.chunk).predict(
            self.rate_per_s, self.replicas, self.routing
        )
        return at.load, self.errors([at.slot_occupancy, *at.ttft_s, *at.tpot_s])

    def errors(self, got: Sequence[float]) -> list[float]:
        """Predicted / truth - 1."""
        return [float(a / b - 1.0) for a, b in zip(got, self.truth, strict=True)]


def golden() -> Iterator[Served]:
    """Cases of our own server."""
    path = ROOT / "tests" / "golden" / "iteration_server.json"
    for c in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        rng = np.random.default_rng(c["law_seed"])
        inputs, outputs = (draw(tuple(c[k]), c["population"], rng) for k in ("input_law", "output_law"))
        yield Served(
            c["fixed_time"], c["time_per_slot"], c["slots"], c["chunk"], c["replicas"], c["routing"], c["arrival_rate"], inputs,
            outputs, (c["slot_occupancy"], *c["ttft"], *c["tpot"]),
        )  # fmt: skip


def independent() -> Iterator[Served]:
    """Cases of a second server (times in ms) whose prefill is free; one that shares a budget is what method `mixed` is for.

    A run's own mean of the iterations differs from its law's by sampling (up to 1%); the rate is scaled by the ratio, so that both
    see the same work per second.
    """
    path = SHARED / "queueing" / "truth.json"
    for c in json.loads(path.read_text(encoding="utf-8"))["iteration_server"] if path.is_file() else ():
        if c["prefill_ms_per_token"] > 0:
            continue
        rng = np.random.default_rng(7)
        laws = [(NAMES[spec[0]], *spec[1:]) for spec in (c["length_spec"]["input"], c["length_spec"]["output"])]
        inputs, outputs = (draw(law, 20_000, rng) for law in laws)
        mean = float(np.mean(np.ceil(inputs / c["chunk"]) + outputs))
        times = [1e-3 * c[metric][p]["value"] for metric in ("ttft", "tpot") for p in ("p50", "p90", "p99")]
        yield Served(
            1e-3 * c["W"], 1e-3 * c["H"], c["n_max"], c["chunk"], c["n_gpus"], c["routing"],
            c["lambda_per_ms"] * 1e3 * c["mean_iters"] / mean, inputs, outputs, (c["slot_utilization"], *times),
        )  # fmt: skip


Region = tuple[str, int, list[tuple[float, float, float]]]
"""Where, how many cases, and by column the median absolute, worst optimistic and worst pessimistic error [%]."""


def regions(
    rows: Sequence[tuple[str, float, Sequence[float]]],
    routings: Sequence[tuple[str, Sequence[str]]],
    loads: Sequence[float],
) -> Iterator[Region]:
    """The cases of (routing, load, errors) by routing and load, where there are any."""
    for title, names in routings:
        for low, high in itertools.pairwise(loads):
            inside = 100.0 * np.array(
                [errors for routing, load, errors in rows if routing in names and low <= load < high]
            )
            if inside.size:
                found = [(float(np.median(np.abs(e))), min(e.min(), 0.0), max(e.max(), 0.0)) for e in inside.T]
                yield f"{title}, load {low:g}-{high:g}", len(inside), found


def shown(found: Sequence[Region], columns: Sequence[str], digits: int) -> str:
    """Regions as a table, below how many cases they hold."""
    cells = [
        (where, cases, *(f"{middle:.{digits}f} / {low:.0f} / +{high:.0f}" for middle, low, high in errors))
        for where, cases, errors in found
    ]
    return f"{sum(cases for _, cases, _ in found)} cases.\n\n" + markdown(("region", "cases", *columns), cells)


def slot_waits() -> str:
    """Table of `SlotWait` beside exact waits of M/H2/c, found by another route (Newton on the matrix exponential)."""
    groups = {"1 slot": (1,), "2 and 4 slots": (2, 4), "8 and 32 slots": (8, 32), "64 and 128 slots": (64, 128)}
    survival = WAIT_SURVIVAL[[3, 8, 11, 12]]
    rows = []
    for scv in (2.0, 4.0, 10.0, 20.0):
        cells = [f"{scv:g}"]
        for slots in groups.values():
            errors = []
            for heavy, load, c in itertools.product((3.0, 6.0), (0.5, 0.7, 0.85, 0.95), slots):
                phases = two_phases(scv, heavy * (1.0 + scv) ** 2)
                assert phases is not None
                p, r = np.array([phases.first, 1.0 - phases.first]), np.array([phases.rate_1, phases.rate_2])
                x = np.concatenate(([0.0], np.geomspace(1e-3, 60.0 / r.min(), 4000)))
                alive = np.exp(-np.outer(x, r))
                mass, time = -np.diff(alive @ p), -np.diff((alive * (x[:, None] + 1.0 / r)) @ p)
                kept = mass > 1e-14
                got = SlotWait(300.0 * time[kept] / mass[kept], mass[kept]).edges(c, load)[[3, 8, 11, 12]]
                waiting = phase_type_wait(load * c, c, phases)[0]
                exact = phase_type_wait(load * c, c, phases, 1.0 - waiting * survival)[2]
                errors += (got / (300.0 * exact) - 1.0).tolist()
            cells.append(f"{100 * min(errors):+.0f} / {100 * max(errors):+.0f}")
        rows.append(cells)
    return markdown(("scv", *groups), rows)


P99 = COLUMNS.index("TTFT p99")


def occupancy() -> Page:
    """The page of method `occupancy`."""
    blocks, index = {"wait": slot_waits()}, list[Cells]()
    routings = [("/".join(names), names) for names in (("random",), ("jsq", "central"), ("rr",))]
    for mark, title, served in (
        ("own", "our own iteration-level server", [*golden()]),
        ("independent", "a second, independent iteration-level server", [*independent()]),
    ):
        rows = [(one.routing, *one.predicted()) for one in served]
        found = list(regions(rows, routings, (0.0, FEW, MANY, 1.0)))
        errors = np.abs([errors for one, (_, _, errors) in zip(served, rows, strict=True) if one.truth[0] <= 0.85])
        kept = [np.mean(errors[:, i] <= bar) for i, bar in ((0, 0.05), (1, 0.10), (3, 0.10), (6, 0.10))]
        blocks[mark] = (
            f"{shown(found, COLUMNS, 1)}\n\nSlot occupancy <= 0.85 ({len(errors)} cases): occupancy within 5% in {kept[0]:.0%}, "
            f"TTFT p50 within 10% in {kept[1]:.0%}, TTFT p99 within 10% in {kept[2]:.0%}, TPOT p99 within 10% in {kept[3]:.0%}."
        )
        middle = sum(cases * errors[P99][0] for _, cases, errors in found) / len(rows)
        where, _, worst = min(found, key=lambda region: region[2][P99][1])
        typical = f"TTFT p99 {middle:.1f}% (mean of the regions' medians)"
        index.append(("`occupancy`", title, str(len(rows)), typical, f"TTFT p99 {worst[P99][1]:.0f}%", where))
    return Page(blocks, index)


def by_queue(one: Served) -> tuple[str, float, list[float]]:
    """Routing, load on the largest stable rate, and predicted/true - 1 of FleetOpt's queue (inf: called unstable).

    A replica is as in the paper's program: all replicas' slots are one queue.
    """
    law = FleetMoments(Workload.from_arrays(one.inputs, one.outputs), chunk=one.chunk).law(State(0.0), State(math.inf))
    assert law is not None
    model = IterationModel(t0=one.fixed_s, h=one.per_slot_s)
    at = MgcPool(law, model, one.slots, one.chunk).predict(one.rate_per_s, one.replicas, (0.5, 0.9, 0.99))
    off = one.errors([at.slot_occupancy, *at.latencies["ttft_s"], *at.latencies["tpot_s"]])
    return one.routing, one.predicted()[0], [off[column] for column in SHOWN]


SHOWN = [column for column, name in enumerate(COLUMNS) if name != "TPOT p90"]


def fleetopt() -> Page:
    """The page of method `mgc`."""
    routings = (("random routing", ("random",)), ("join shortest queue or one queue", ("jsq", "central")))
    found = list(regions([by_queue(one) for one in (*golden(), *independent())], routings, (0.0, FEW, 1.0)))
    medians = [errors[P99][0] for _, _, errors in found]
    where, _, worst = min(found, key=lambda region: region[2][P99][1])
    typical = f"TTFT p99 {min(medians):.0f}% to {max(medians):.0f}% by region, pessimistic"
    cases = shown(found, ["slot occupancy", *(COLUMNS[column] for column in SHOWN[1:])], 0)
    return Page(
        {"cases": cases},
        [("`mgc`, FleetOpt's queue", "iteration-level servers, free prefill", cases.split()[0], typical,
          f"TTFT p99 {worst[P99][1]:.0f}%", where)],
    )  # fmt: skip
