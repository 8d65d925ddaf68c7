"""FleetOpt's pool (method `mgc`) against the servers of `occupancy.py`.

They give every slot its own prefill chunk at no cost, which is what the paper's eq. 3-4 assume, so that only its queueing is on
trial. A replica is as in the paper's program: all replicas' slots are one queue.
"""

from __future__ import annotations

import math

from benchmarks.accuracy.occupancy import COLUMNS, FEW, Served, golden, independent, regions
from planner.iteration.model import IterationModel
from planner.methods.mgc import MgcPool
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload

SHOWN = [column for column, name in enumerate(COLUMNS) if name != "TPOT p90"]
LEVELS = (0.5, 0.9, 0.99)


def errors(one: Served) -> tuple[str, float, list[float]]:
    """Routing, load on the largest stable rate, and predicted/true - 1 (inf: called unstable)."""
    law = FleetMoments(Workload.from_arrays(one.inputs, one.outputs), chunk=one.chunk).law(State(0.0), State(math.inf))
    assert law is not None
    model = IterationModel(t0=one.fixed_s, h=one.per_slot_s)
    at = MgcPool(law, model, one.slots, one.chunk).predict(one.rate_per_s, one.replicas, LEVELS)
    off = one.errors([at.slot_occupancy, *at.ttft_s, *at.tpot_s])
    return one.routing, one.predicted()[0], [off[column] for column in SHOWN]


def page() -> str:
    """The page."""
    rows = [errors(one) for one in (*golden(), *independent())]
    routings = (("random routing", ("random",)), ("join shortest queue or one queue", ("jsq", "central")))
    columns = ["slot occupancy", *(COLUMNS[column] for column in SHOWN[1:])]
    lines = [
        "# Accuracy of FleetOpt's queue",
        "",
        "Made by `python -m benchmarks.accuracy fleetopt`. Method `mgc` against iteration-level servers that give every slot its",
        "own prefill chunk at no cost, as the paper's eq. 3-4 assume. Each cell: median absolute error / worst optimistic / worst",
        "pessimistic error, in percent. Load is the share of the largest stable rate.",
        "",
        f"{len(rows)} cases.",
        "",
        *regions(rows, columns, routings, (0.0, FEW, 1.0), 0),
        "",
        "A half-empty engine runs faster iterations than a full one, which the model does not know: it is pessimistic wherever",
        "slots are free. It also takes the slots of all replicas for one queue, which under random routing they are not; in these",
        "cases the full-occupancy times more than make up for it.",
        "",
        "Not covered: engines in which prefill costs time (all of them); bursts.",
    ]
    return "\n".join(lines)
