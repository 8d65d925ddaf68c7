"""The rule-exact engine from outside: a user's own policy, bad input, conservation, the interface of compare and verify."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from planner.ask.verify import Asked, fleet_estimate, judge, verify_pools
from planner.errors import FleetOptError, InputError
from planner.machine.iteration import IterationModel
from planner.papers.compare import Setting, compared
from planner.papers.machines import KvLinear
from planner.papers.measure import SimulationResult
from planner.papers.policy import find_policy, make_policy, policy_names
from planner.papers.presets import PoolEngines
from planner.papers.run import run_policy
from planner.papers.statistics import Estimate
from planner.papers.traffic import SampledTraffic
from planner.predict.engine import Node, Request
from planner.promise import MEAN, Promise
from tests.papers.asked import simulate
from tests.papers.machines import Exclusive


class LongestPromptFirst:
    """A user's policy: whole prompts, longest first, then everybody decodes."""

    def __init__(self, slots: int = 4) -> None:
        self.slots = slots

    def schedule(self, node: Node) -> None:
        node.waiting.order_by(longest_first)
        while node.waiting and node.fits(node.waiting.head, self.slots):
            request = node.waiting.head
            node.admit(request)
            node.prefill(request, request.prefill_length)
        if not node.batch:
            node.decode_all(node.decoding)


def longest_first(r: Request) -> tuple[float, ...]:
    return (-r.input_tokens, r.arrival, r.index)


class Thrash:
    """Evicts whom it admits."""

    def schedule(self, node: Node) -> None:
        if node.waiting:
            request = node.waiting.head
            node.admit(request)
            node.evict(request)


class Idle:
    """Does nothing."""

    def schedule(self, node: Node) -> None:
        return None


def sample(n: int = 30, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.05, n)).tolist()
    return [Request(i, t, int(rng.integers(1, 40)), int(rng.integers(1, 20)), tbt=0.5) for i, t in enumerate(times)]


def test_own_policy_by_module_and_class(log) -> None:
    run = run_policy(sample(), f"{__name__}:LongestPromptFirst", KvLinear(0.01, 1e-4), {"slots": 3})
    assert not run.unfinished and len(run.requests) == 30
    log.clear()
    backlog = [Request(i, 0.0, n, 2) for i, n in enumerate((3, 9, 5))]
    run_policy(backlog, f"{__name__}:LongestPromptFirst", KvLinear(1.0, 0.0))
    assert [i for i, _ in log[0].prefill] == [1, 2, 0]


def test_the_guide_lists_every_policy_with_its_summary_and_names() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text()
    for name in policy_names():
        entry = find_policy(name)
        assert f"| `{name}` | {entry.summary} | {', '.join(f'`{a}`' for a in entry.aliases)} |" in guide
        assert all(find_policy(alias) is entry for alias in (*entry.aliases, name.upper()))
    assert len(policy_names()) >= 13


def test_unfinished_requests_are_reported_not_lost() -> None:
    run = run_policy(sample(5), f"{__name__}:Idle", KvLinear(0.01, 0.0))
    assert run.unfinished == [0, 1, 2, 3, 4] and run.iterations == 0


@pytest.mark.parametrize("name", [n for n in policy_names() if n not in ("wait", "nested_wait", "distserve")])
@pytest.mark.parametrize("routing", ["random", "jsq", "central"])
def test_every_policy_serves_everybody_on_three_replicas(name: str, routing: str) -> None:
    parameters = {
        "request_level": {"batch": 4}, "prefill_first": {"slots": 4}, "mixed": {"slots": 4, "token_budget": 16},
        "eb": {"slots": 4, "k": 2}, "eb_star": {"slots": 4, "window_min": 2, "update_every": 2},
        "eb_plus": {"slots": 4, "window_min": 2, "update_every": 2}, "rad": {"t_col": 4, "chunk": 8, "n": 9},
        "cycle_prefill_all": {"t_col": 4, "chunk": 8, "n": 9},
        "slai": {"token_budget": 16, "max_active": 4, "max_decodes": 4, "delta": 2}, "fcfs_restart": {},
    }[name]  # fmt: skip
    run = run_policy(
        sample(60),
        name,
        Exclusive(0.02, 1e-4, 0.01, 1e-4, 0.02, 1e-4),
        parameters,
        capacity=90,
        replicas=3,
        routing=routing,
        rng=np.random.default_rng(1),
    )
    assert not run.unfinished and not run.rejected
    assert all(len(r.gaps) == r.output_tokens - 1 for r in run.requests)
    assert run.peak_held <= 90


def test_too_long_for_memory_is_rejected_before_the_run() -> None:
    run = run_policy([Request(0, 0.0, 50, 3), Request(1, 0.0, 5, 3)], "mixed", KvLinear(1.0, 0.0), capacity=20)
    assert run.rejected == [0] and math.isnan(run.requests[0].done_s) and run.requests[1].done_s == 3.0


@pytest.mark.parametrize(
    "name,parameters,words",
    [
        ("mixd", {}, "did you mean 'mixed'"),
        ("eb", {"slots": 4}, "missing a required argument: 'k'"),
        ("eb", {"slots": 4, "k": 9}, "k must not exceed slots"),
        ("eb", {"slots": 4, "k": 2, "slot": 3}, "did you mean 'slots'"),
        ("mixed", {"order": "spt"}, "order"),
        ("mixed", {"token_budget": 0}, "token_budget"),
        ("wait", {"thresholds": {}}, "thresholds"),
        ("nested_wait", {"thresholds": [1, 1], "segment_ends": [4, 2]}, "segment_ends must increase"),
        ("slai", {"token_budget": 8, "max_active": 4, "max_decodes": 4, "delta": {"below": 1}}, "delta"),
        ("no.such.module:Policy", {}, "cannot import"),
        ("math:sqrt", {}, "no method schedule"),
    ],
)
def test_bad_policies_are_refused(name: str, parameters: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        run_policy(sample(3), name, KvLinear(1.0, 0.0), parameters)


def test_bad_requests_and_models_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1 token"):
        run_policy([Request(0, 0.0, 0, 1)], "mixed", KvLinear(1.0, 0.0))
    with pytest.raises(InputError, match="unique"):
        run_policy([Request(0, 0.0, 1, 1), Request(0, 0.0, 1, 1)], "mixed", KvLinear(1.0, 0.0))
    with pytest.raises(InputError, match="missing a required argument: 'alpha_p'"):
        make_policy("eb_star", {"slots": 4})


def test_a_policy_that_only_evicts_is_stopped() -> None:
    with pytest.raises(FleetOptError, match="evicts for ever"):
        run_policy([Request(0, 0.0, 1, 1)], f"{__name__}:Thrash", KvLinear(1.0, 0.0))


MODEL = IterationModel(t0=2e-3, w=5e-3, b=2.4e-5, c=5e-6, g=5e-8, h=1e-6, a=7e-10)


def test_compare_policies_gives_a_row_per_policy_and_rate_and_survives_an_interrupt() -> None:
    names = ["sarathi", "eb", "slai", "wait", "distserve"]
    arguments = ([[300.0, 900.0], [40.0, 90.0], None], MODEL, Setting(slots=32, token_budget=512, strict_share=0.1))
    result = compared(names, [4.0], *arguments[0], *arguments[1:], requests=200, seeds=2)
    assert [r["policy"] for r in result.to_rows()] == names and result.complete
    assert all(0.0 <= r["attainment"] <= 1.0 and r["goodput_per_s"] <= r["throughput_per_s"] for r in result.rows)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    partial = compared(names, [4.0], *arguments[0], *arguments[1:], requests=200, seeds=2, progress=stop)
    assert len(partial.rows) == 1 and not partial.complete
    with pytest.raises(InputError, match="none of the policies"):
        compared(["eb"], [4.0], *arguments[0], *arguments[1:], parameters={"rad": {}})


def test_verdicts() -> None:
    assert judge(Estimate(1.0, 0.1), 1.2)[0] == "holds"
    assert judge(Estimate(1.3, 0.05), 1.2)[0] == "fails"
    assert judge(Estimate(1.2, 0.05), 1.2)[0] == "cannot tell"
    assert judge(Estimate(0.1, 0.0, enough=False), 1.2) == ("cannot tell", "the run is too short for this percentile")
    engines = PoolEngines(1, MODEL, slots=64, token_budget=512)

    def at(rate: float, requests: int):
        def simulated(seeds: Sequence[int], quantiles: Sequence[float]) -> list[SimulationResult]:
            traffic = SampledTraffic([500.0], [50.0], None, rate, requests)
            return [simulate(traffic, engines, seeds=seeds, quantiles=quantiles)]

        return simulated

    promises = [Promise("ttft_s", 5.0), Promise("tpot_s", 1e-4, 0.5)]
    (result,), checks = verify_pools([Asked("all", promises, {("ttft_s", 0.99): 0.1})], at(5.0, 12_000), [1], 1)
    assert [c.verdict for c in checks] == ["holds", "fails"]
    assert checks[0].predicted == 0.1
    # a verdict that cannot be given takes more runs
    one = [Asked("all", [Promise("ttft_s", 5.0)])]
    (short,), checks = verify_pools(one, at(5.0, 1000), [1, 2], 16)
    assert len(short.seeds) == 16 and checks[0].verdict == "holds"
    _, checks = verify_pools(one, at(500.0, 12_000), [1], 1)
    assert checks[0].verdict == "fails" and "unstable" in checks[0].reason
    both = fleet_estimate([result, result], [0.3, 0.7], Promise("ttft_s", 1.0, 0.9))
    assert both.value == pytest.approx(result.quantile("ttft_s", 0.9).value, rel=0.01)
    # of a mean: the sum of shares and means, for which any run is long enough
    means = [float(np.concatenate([s.ttft_s for s in r.samples]).mean()) for r in (result, short)]
    mixed = fleet_estimate([result, short], [0.3, 0.7], Promise("ttft_s", 1.0, MEAN))
    assert mixed.value == pytest.approx(0.3 * means[0] + 0.7 * means[1])
    assert mixed.enough


def test_prefills_of_one_token_outputs_count_in_their_cycle(log) -> None:
    # n = 2: the first cycle ends after requests 0 and 1, though 0 is complete when its prefill ends
    sample = [Request(0, 0.0, 4, 1), Request(1, 0.0, 4, 2), Request(2, 0.0, 4, 2)]
    run_policy(sample, "cycle_prefill_all", KvLinear(1.0, 0.0), {"t_col": 2, "chunk": 4, "n": 2})
    assert [(e.decode, tuple(i for i, _ in e.prefill)) for e in log] == [
        ((), (0,)), ((), (1,)), ((1,), ()), ((), (2,)), ((2,), ())
    ]  # fmt: skip
    ones = [Request(i, 0.0, 4, 1) for i in range(3)]
    run = run_policy(ones, "cycle_prefill_all", KvLinear(1.0, 0.0), {"t_col": 2, "chunk": 4, "n": 1})
    assert [r.done_s for r in run.requests] == [1.0, 2.0, 3.0]
