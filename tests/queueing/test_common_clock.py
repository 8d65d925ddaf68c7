"""Slots that advance together, run along a path: against the simulator's slot engine and decode nodes on the same requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.iteration.model import IterationModel
from planner.predict.durations import Canonical
from planner.predict.engine import Node, Request
from planner.queueing.common_clock import follow_slots
from planner.queueing.held_back import _in_turn, admitted
from planner.queueing.path import PathRequests
from planner.routing import find_routing
from planner.simulate.drive import drive
from planner.simulate.policies.distserve import DecodeNode
from planner.simulate.presets import PoolEngines
from planner.simulate.run import TableReplica
from planner.simulate.tables import RequestTable

LEVELS = np.array([0.5, 0.9, 0.99])


def _bursty(size: int, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, inputs and outputs whose rate swings every 20 s."""
    rng = np.random.default_rng(seed)
    swing = np.repeat(rng.gamma(1.5, 1 / 1.5, 4000), 20)
    second = np.searchsorted(np.cumsum(swing) * rate, np.cumsum(rng.exponential(1.0, size)))
    times = np.sort(second + rng.random(size))
    return times - times[0], np.ceil(rng.lognormal(6.6, 0.9, size)), np.ceil(rng.lognormal(4.6, 0.8, size))


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.2, 3.0))
def test_only_full_stretches_are_taken_in_turn(seed: int, slots: int, load: float) -> None:
    """Entries are those of every request taken in turn, ties and far stretches included."""
    rng = np.random.default_rng(seed)
    ready = np.concatenate([1e6 * k + np.sort(rng.integers(0, 40, 30) / 2.0) for k in range(3)])
    stay = rng.integers(0, 8, ready.size) / 2.0 * load
    found = admitted(ready[shuffle := rng.permutation(ready.size)], stay[shuffle], slots)
    order = np.argsort(ready[shuffle], kind="stable")
    assert found[order].tolist() == _in_turn(ready[shuffle][order], stay[shuffle][order], slots).tolist()


def test_one_request_alone_takes_its_iterations() -> None:
    requests = PathRequests.of(np.array([0.0, 100.0]), np.array([600.0, 100.0]), np.array([5.0, 1.0]))
    count = np.array([2.0 + 5.0, 1.0 + 1.0])
    found = follow_slots(requests, lambda n, _: 0.1 + 0.0 * n, count, count - requests.steps, slots=4)
    assert found.ttft == pytest.approx([0.3, 0.2]) and found.e2e == pytest.approx([0.7, 0.2])
    assert found.tpot[0] == pytest.approx(0.1) and np.isnan(found.tpot[1])


@pytest.mark.parametrize(
    ("routing", "replicas", "slots", "rate"), [("random", 2, 200, 3.0), ("least", 3, 200, 3.5), ("random", 1, 36, 3.0)]
)
def test_slots_of_the_simulator_agree(routing: str, replicas: int, slots: int, rate: float) -> None:
    """Free slots; balanced; and slots so few that many wait."""
    times, inputs, outputs = _bursty(6000, rate * replicas, 4)
    table = [0.02 + 0.0006 * n for n in range(slots + 1)]
    lengths = RequestTable(inputs.astype(int).tolist(), outputs.astype(int).tolist(), [0] * times.size)
    engines = PoolEngines(replicas, table, slots, 512, routing=routing, preset="slots")
    drive(engines.build(lengths), times.tolist(), routing, np.random.default_rng(1), slots)
    first, last = np.array(lengths.first) - times, np.array(lengths.done) - times
    several = outputs > 1
    requests = PathRequests.of(times, inputs, outputs)
    count = np.ceil(inputs / 512) + outputs
    found = follow_slots(
        requests, lambda n, _: np.interp(n, np.arange(slots + 1.0), table), count, count - requests.steps,
        slots=slots, replicas=replicas, candidates=find_routing(routing).candidates,
    )  # fmt: skip
    waits = slots < 100
    assert (found.wait_probability > 0.05) == waits
    # where requests wait, who waits for whom is settled by rounds
    for metric, true, tolerance in (
        ("ttft_s", first, 0.2 if waits else 0.05),
        ("tpot_s", (last - first)[several] / (outputs[several] - 1), 0.03),
        ("e2e_s", last, 0.05),
    ):
        assert found.quantiles(metric, LEVELS) == pytest.approx(np.quantile(true, LEVELS), rel=tolerance), metric


class DecodeReplica(TableReplica):
    """A decode node that serves the requests of a table in the order in which their KV cache arrives."""

    def request(self, number: int, time: float) -> Request:
        """A request whose first token is out."""
        lengths = (self.table.input_tokens[number], self.table.output_tokens[number])
        return Request(
            number, time, *lengths, node_arrival=time, emitted=1, reported=1, prefilled=-1, last_emission_s=time
        )


def test_decode_nodes_of_the_simulator_agree() -> None:
    """Iterations that grow with the contexts of all; requests come when their cache has moved."""
    times, inputs, outputs = _bursty(4000, 6.0, 9)
    outputs = np.maximum(outputs, 2.0)
    model = IterationModel(t0=0.004, w=0.006, h=2e-5, g=6e-8)
    moved = 0.002 + 1e-6 * inputs
    order = np.argsort(times + moved, kind="stable")
    table = RequestTable(inputs[order].astype(int).tolist(), outputs[order].astype(int).tolist(), [0] * times.size)
    pool = [DecodeReplica(Node(DecodeNode(256), Canonical(model), 1e9), table) for _ in range(2)]
    drive(pool, (times + moved)[order].tolist(), "random", np.random.default_rng(1), 256)
    done = np.empty(times.size)
    done[order] = np.array(list(table.done))
    tpot = (done - times) / (outputs - 1.0)
    requests = PathRequests.of(times, inputs, outputs)
    found = follow_slots(
        requests, model.time, requests.steps, np.zeros(times.size), slots=256, before_s=moved, replicas=2
    )  # fmt: skip
    assert found.quantiles("tpot_s", LEVELS) == pytest.approx(np.quantile(tpot, LEVELS), rel=0.03)
