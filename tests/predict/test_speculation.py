"""Speculative decoding in plans: what it costs, what it gives, and the simulator beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner import plan, simulate
from planner.catalog import gpu, model
from planner.catalog.profiles import estimated_profile
from planner.errors import InputError
from planner.machine.hardware import Parallelism
from planner.machine.speculation import Speculation
from planner.papers.presets import PoolEngines
from planner.papers.traffic import SampledTraffic
from planner.predict.bounds import max_throughput
from planner.predict.drafts import draft_of, speculating
from planner.workload.pools import Lengths
from tests.papers.asked import simulate as simulate_engines

pytestmark = pytest.mark.usefixtures("few_replayed", "short_traces", "without_chances", "without_words")


def _step(written: str, name: str = "llama-3.1-8b") -> tuple[Speculation, object, object]:
    network, device = model(name), gpu("h100")
    base = estimated_profile(device, network).iteration
    speculation = Speculation.parse(written)
    draft = draft_of(speculation, device, network, Parallelism(1))
    return speculation, base, speculating(base, speculation, draft, network, device)


def test_a_server_where_nothing_is_accepted() -> None:
    """kubernetes-sigs/inference-perf, kubecon-na-2025: EAGLE-3 with four drafts on random text, one H100, vLLM V1.

    Milliseconds per token at 1, 18 and 35 requests/s, and the largest rate; the acceptance was not recorded, 15% is the round
    number nearest to all four. 15%: what one such number leaves.
    """
    speculation, _, step = _step("eagle3:k=4,accept=0.15")
    unit = speculation.tokens_per_step
    engine = PoolEngines(1, step, slots=128, token_budget=8192, speculation=speculation)  # type: ignore[arg-type]
    for rate, measured in ((1.015, 10.73), (18.17, 11.75), (35.32, 13.57)):
        found = simulate_engines(SampledTraffic([201], [64], None, rate, 6000), engine, seeds=1)
        assert 1e3 * found.tpot_mean_s.value == pytest.approx(measured, rel=0.15)
    lengths = Lengths(np.array([201.5 / unit]), 1.0 + speculation.steps([63.0]), np.ones(1), np.zeros(1))
    assert max_throughput(lengths, engine.pool()).per_s == pytest.approx(67.6, rel=0.15)


def test_a_step_without_drafts_accepted_costs_and_yields_one() -> None:
    speculation, base, step = _step("eagle3:k=3,accept=0")
    assert speculation.tokens_per_step == 1.0
    assert speculation.overshoot == 0.0
    for decodes in (1, 32, 256):
        assert step.time(decodes, 1000.0 * decodes) > base.time(decodes, 1000.0 * decodes)  # type: ignore[attr-defined]
    # lookup costs verification only
    _, base, step = _step("ngram:k=3")
    assert step.time(0, 0.0, 500, 1e5) == base.time(0, 0.0, 500, 1e5)  # type: ignore[attr-defined]
    assert step.time(300, 3e5) > base.time(300, 3e5)  # type: ignore[attr-defined]


ASKED = dict(  # noqa: C408 - as a call reads
    model="llama-3.1-70b",
    gpu="h100",
    tp=4,
    burst="poisson",
    pools=1,
    slo=2.0,
    tpot=0.06,
    rate=20.0,
    token_budget=1024,
)


def test_steps_of_requests_are_drawn_as_steps_one_by_one_would_add_up() -> None:
    """Of 60 tokens after the first, against drawing how many drafts every step has accepted."""
    speculation = Speculation("eagle3", 3, (0.8, 0.7, 0.6))
    rng = np.random.default_rng(4)
    accepted = np.cumprod(rng.random((20_000, 60, 3)) < np.array(speculation.acceptance), axis=2).sum(axis=2)
    played = (np.cumsum(1 + accepted, axis=1) < 60).sum(axis=1) + 1
    drawn = speculation.draw_steps(np.full(20_000, 60.0), rng)
    assert drawn.mean() == pytest.approx(played.mean(), rel=0.005)
    assert drawn.std() == pytest.approx(played.std(), rel=0.05)  # renewal theory is of many steps, here are 25
    assert np.quantile(drawn, 0.99) == pytest.approx(np.quantile(played, 0.99), abs=1.0)
    assert speculation.draw_steps(np.array([0.0, 1.0]), rng).tolist() == [0, 1]


@pytest.mark.usefixtures("whole_traces")
@pytest.mark.parametrize("acceptance", ["0.8", "0.3"])
def test_a_plan_that_speculates_is_what_the_simulator_finds(acceptance: str) -> None:
    found = plan("azure", **ASKED, speculate=f"eagle3:k=3,accept={acceptance}")
    pool = found.pools[0]
    result = simulate(found, requests=60_000, seeds=2).results["all"]
    for metric, level in (("ttft_s", 0.5), ("tpot_s", 0.5), ("tpot_s", 0.99)):
        # other draws of arrivals, lengths and steps: 95% of two such runs lie within 2.6% of their mean
        simulated = result.quantile(metric, level).value
        assert pool.quantile(metric, level) == pytest.approx(simulated, rel=0.03), metric
    assert '"num_speculative_tokens": 3' in pool.settings.speculative


@pytest.mark.usefixtures("with_words")
def test_the_plan_says_gain_or_loss() -> None:
    much, little = (plan("azure", **ASKED, speculate=f"eagle3:k=3,accept={a}") for a in (0.9, 0.05))
    gains, loses = (next(r for r in p.remarks["notes"] if r.code.startswith("speculation")) for p in (much, little))
    assert gains.values["tpot_s"] < gains.values["plain_s"]
    assert loses.code == "speculation_crosses"
    assert loses.values["crossing"] < 0.1
    assert loses.values["tpot_s"] > loses.values["plain_s"]
    assert math.isfinite(gains.values["capacity"])


def test_what_cannot_speculate_is_told() -> None:
    with pytest.raises(InputError, match="only the mixed method"):
        plan("azure", slo=1.0, method="occupancy", speculate="ngram:k=3")
    with pytest.raises(InputError, match="no layers for multi-token prediction"):
        plan("azure", slo=1.0, speculate="mtp:k=1")
    with pytest.raises(InputError, match="speculate: unknown speculative method"):
        plan("azure", slo=1.0, speculate="medusa")
