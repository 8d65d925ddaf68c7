"""How sure a fleet is: against engines drawn with their errors and replayed one by one, and where no number of replicas is sure."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import planner as fo
from planner.catalog import gpu, model
from planner.catalog.profiles import estimated_profile
from planner.errors import InfeasibleError, InputError
from planner.predict.replayed import ReplayPool
from planner.predict.run import replay
from planner.promise import Promise
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.size.pool import Margin, error_of, pool_model, traffic_of
from planner.size.shapes import standing_fleet
from planner.size.shapes.colocated import Colocated
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_words")

ASKED = {"slo": 0.5, "pools": 1, "tp": 1, "token_budget": 4096}


@pytest.fixture(scope="module")
def azure(short_traces: None) -> Workload:
    return Workload.from_file("azure")


@pytest.fixture(scope="module")
def thirty(azure: Workload, fewer_replayed: None) -> fo.Plan:
    """As sure as plans are unless another confidence is asked for."""
    return fo.plan(azure, rate=30.0, **ASKED)  # type: ignore[arg-type]


def _fleet(plan: fo.Plan, azure: Workload) -> Colocated:
    saved = question_of(plan)
    fleet = standing_fleet(compile_question(saved.inputs(), azure), saved.pools)
    assert isinstance(fleet, Colocated)
    return fleet


def test_a_slower_engine_is_the_same_pool_with_its_times_pressed_together(azure: Workload, thirty: fo.Plan) -> None:
    """Iterations s times as long: arrivals s times as fast give latencies that are 1/s of it, to rounding."""
    fleet = _fleet(thirty, azure)
    (pool,) = fleet.pools
    slow = 1.3
    model = pool.model.under(slow)
    assert isinstance(pool.model, ReplayPool) and isinstance(model, ReplayPool)
    laid = pool.model._lay(pool.rate_per_s, 5, 10**6, None)
    requests = pool.model.traffic.requests(laid)
    engine = replace(pool.model.engine, count=5, wake_s=0.0)
    faster = replay(replace(requests, arrival_s=requests.arrival_s / slow), engine)
    longer = replay(requests, replace(model.engine, count=5, wake_s=0.0))
    np.testing.assert_allclose(longer.ttft_s, slow * faster.ttft_s, rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(longer.e2e_s, slow * faster.e2e_s, rtol=0.0, atol=1e-6)
    assert model.capacity_per_s == pytest.approx(pool.model.capacity_per_s / slow)


@pytest.mark.parametrize(("rate", "slo"), [(8.0, 0.5), (20.0, 0.6)])
def test_the_chance_is_that_of_engines_drawn_with_their_errors(rate: float, slo: float) -> None:
    """Engines at 12 even quantiles of their error, each built and replayed as an engine of its own at 4 draws of the traffic."""
    azure = Workload.from_file("azure")
    asked = {**ASKED, "slo": slo}
    plan = fo.plan(azure, rate=rate, **asked)
    fleet = _fleet(plan, azure)
    (pool,) = fleet.pools
    assert plan.sureness is not None
    question, n = fleet.question, 12
    errors = [NormalDist(0.0, plan.sureness.sd).inv_cdf((k + 0.5) / n) for k in range(n)]
    arrivals = traffic_of(question.traffic, pool.law)
    ranked = arrivals.draws(pool.rate_per_s)
    draws = [int(d) for d in ranked[:: max(ranked.size // 4, 1)]]
    held = 0
    for error in errors:
        profile = pool.option.profile
        times = profile.iteration.slowed(float(np.exp(error)))
        option = replace(
            pool.option, profile=replace(profile, iteration=times, request_s=profile.request_s * float(np.exp(error)))
        )
        model = pool_model(question, option, pool.setup, arrivals)
        for draw in draws:
            found = model.under(draw=draw).look(pool.rate_per_s, pool.replicas, fleet.levels)
            held += found.value("ttft_s", 0.99) <= slo
    assert plan.sureness.chance == pytest.approx(held / (n * len(draws)), abs=0.08)


def test_more_confidence_takes_no_fewer_replicas_and_half_is_the_median(azure: Workload, thirty: fo.Plan) -> None:
    plans = {c: fo.plan(azure, rate=30.0, confidence=c, **ASKED) for c in (0.2, 0.5)} | {0.8: thirty}
    counts = [plan.replicas for plan in plans.values()]
    assert counts == sorted(counts) and counts[0] < counts[-1]
    for confidence, plan in plans.items():
        assert plan.sureness is not None
        assert plan.sureness.confidence == confidence
        # what the middle draw's sample says and all its requests decide may lie two points apart
        assert plan.sureness.chance > confidence - 0.04
        assert abs(plan.sureness.median.replicas[0] - plans[0.5].replicas) <= 1  # type: ignore[index]
        chances = [step.chance for step in plan.sureness.steps]
        assert chances == sorted(chances)


@pytest.mark.parametrize(
    ("provenance", "holds", "asked", "width"),
    [
        ("estimated", 0.8, {"ttft_s": 0.5}, 0.42),
        ("estimated", 0.8, {"tpot_s": 0.05}, 0.34),
        ("estimated", 0.8, {"tpot_s": 0.05, "ttft_s": 0.5}, 0.42),
        ("fitted", 0.9, {"tpot_s": 0.05}, 0.34),
        ("measured", 0.9, {"e2e_s": 5.0}, 0.34),
    ],
)
def test_a_band_holds_the_share_that_its_maker_meant(
    provenance: str, holds: float, asked: dict[str, float], width: float
) -> None:
    """Golden: log-normal errors of the deviation told, inside the band of what the promise hangs on."""
    profile = replace(
        estimated_profile(gpu("h100"), model("llama-3.1-8b")), provenance=provenance, band=0.34, band_prefill=0.42
    )
    promises = [Promise(metric, limit) for metric, limit in asked.items()]
    inside = NormalDist(0.0, error_of(profile, promises)).cdf(np.log1p(width))
    assert 2.0 * inside - 1.0 == pytest.approx(holds, abs=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_each_of_two_independent_errors_is_kept_surer(confidence: float) -> None:
    """Golden: both hold with the chance asked for, even odds too; of one, even odds are the profile's own times to the bit."""
    profile = estimated_profile(gpu("h100"), model("llama-3.1-8b"))
    each = NormalDist().cdf(Margin.of(confidence, profile, (), 2).deviations)
    assert each**2 == pytest.approx(confidence, abs=1e-9)
    assert Margin.of(0.5, profile, ()).slow == 1.0


def test_a_calibrated_engine_buys_less_for_the_same_confidence(azure: Workload, thirty: fo.Plan) -> None:
    plan = thirty
    assert plan.sureness is not None
    saved = {n.by: n for n in plan.sureness.narrowing}
    (option,) = [p.option for p in _fleet(plan, azure).pools]
    question = compile_question(question_of(plan).inputs(), azure)
    fleet = standing_fleet(question, question_of(plan).pools)
    known = replace(option, profile=replace(option.profile, band=0.07, band_prefill=None, provenance="measured"))
    fleet.pools[0] = replace(fleet.pools[0], option=known)
    sizes = fleet.size(fleet.rate)
    assert isinstance(sizes, list)
    assert abs(plan.replicas - sizes[0].replicas - saved["calibration"].gpus) <= 1


def test_where_no_number_of_replicas_is_sure_the_error_says_how_sure_any_can_be(azure: Workload) -> None:
    """Golden: the idle engine at exactly the error whose chance is told breaks the promise by a hair."""
    with pytest.raises(InfeasibleError) as told:
        fo.plan(azure, rate=30.0, **{**ASKED, "slo": 0.225})
    assert "chance of more than" in str(told.value)
    assert any("--confidence" in line for line in told.value.relaxations)
    share = int(str(told.value).split("chance of more than ")[1].split("%")[0]) / 100.0
    less = fo.plan(azure, rate=30.0, **{**ASKED, "slo": 0.225, "confidence": share - 0.15})
    assert less.sureness is not None
    assert less.sureness.most == pytest.approx(share, abs=0.03)
    assert less.sureness.high.replicas is None


@pytest.mark.usefixtures("with_words")
def test_a_trace_too_short_for_its_promise_is_refused_or_taken_as_a_law(azure: Workload) -> None:
    known = azure.recorded
    assert known is not None
    few = known.select(np.arange(known.requests) < 999)
    short = Workload.from_arrays(
        few.input_tokens,
        few.output_tokens,
        category=few.category,
        categories=azure.categories,
        recorded=few,
        arrival_rate_per_s=8.0,
    )
    with pytest.raises(InputError, match="999 requests are too few for P99 TTFT: it takes 1,000") as told:
        fo.plan(short, rate=8.0, **ASKED)
    assert told.value.exit_code == 3
    assert fo.plan(short, rate=8.0, law=True, **ASKED).replicas >= 1
    # a tenth of what would tell it well: planned, with a warning before all others
    assert "few for P90" in fo.plan(short, rate=8.0, quantile=0.9, **ASKED).warnings[0]


@pytest.mark.usefixtures("with_words")
def test_no_chance_is_told_where_the_prediction_is_not_reliable() -> None:
    """Where requests wait for slots the closed form is off by more than a plan can be sized with: it says so, and who decides."""
    asked = {"ttft": 20.0, "max_num_seqs": 4, "burst": "poisson", "tp": 1, "token_budget": 2048, "pools": 1}
    doubtful = fo.plan("azure", rate=5.0, method="closed", **asked)  # type: ignore[arg-type]
    assert doubtful.sureness is None
    told = [str(w) for w in doubtful.warnings]
    assert any("no promise" in w and "--verify decides" in w for w in told)
