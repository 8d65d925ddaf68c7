"""What other choices cost: each row is the price that choosing it gives; the time is kept; the order is fixed."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import planner as fo
from planner.ask import choices as advised
from planner.ask.choices import answers
from planner.choices import Choice, Choices, knee
from planner.cli.main import run
from planner.errors import InfeasibleError, InputError
from planner.report.output import table as render
from planner.report.text.choices import interrupted

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances", "without_words")

QUICK = {"method": "mgc", "kv": "reserved", "rate": 60.0, "slo": 4.0, "tp": 1}
NEVER = {**QUICK, "slo": 0.01, "pools": 1}


@pytest.fixture(autouse=True)
def no_other_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of prefill and decode take longer to size than all else together: one test asks for them."""
    monkeypatch.setattr("planner.ask.choices.SHAPES", {})


def chosen(choice: Choice, **asked: object) -> float | None:
    """The price that making the choice gives."""
    metric = {"ttft", "tpot", "e2e"} & set(choice.changes)
    base = {k: v for k, v in asked.items() if not (k == "slo" and metric)}
    try:
        return fo.plan("azure", **{**base, **choice.changes}).cost_usd_per_hour  # type: ignore[arg-type]
    except (InfeasibleError, InputError):
        return None


@pytest.mark.parametrize(
    "asked",
    [{**QUICK, "boundaries": [1000, 4000]}, {**QUICK, "pools": 1, "gpu": ["h100", "l40s"], "slo": [4.0, "p90=1s"]}],
    ids=["one type", "two types, two promises"],
)
def test_a_row_costs_what_choosing_it_costs(asked: dict[str, object]) -> None:
    plan = fo.plan("azure", choices=True, **asked)  # type: ignore[arg-type]
    assert plan.choices is not None
    assert plan.choices.waiting == 0
    kinds = {row.kind for row in plan.choices.rows}
    assert kinds >= {"routing", "gpu", "traffic", "redundancy", "promise", "precision", "engine"}
    for row in plan.choices.rows:
        assert (row.cost_usd_per_hour is None) == (row.reason is not None)
        assert row.cost_usd_per_hour == chosen(row, **asked), row
    assert plan.to_dict()["choices"] == json.loads(json.dumps(plan.choices.to_dict()))


def test_the_measured_profile_beside_the_estimate_is_named() -> None:
    plan = fo.plan("azure", choices=True, pools=1, **QUICK)  # type: ignore[arg-type]
    assert plan.choices is not None
    rows = [row.changes["profile"] for row in plan.choices.rows if row.kind == "profile"]
    # the engine that is asked for first; of each engine what may be cheapest
    assert rows[0] == "llama-3.1-8b-h100-80gb-tp1-vllm"
    trtllm = {name for name in map(str, rows) if name.endswith("trtllm")}
    assert "llama-3.1-8b-h100-80gb-tp1-trtllm" in trtllm
    assert "llama-3.1-8b-h100-80gb-tp8-trtllm" not in trtllm


def test_the_other_shape_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked = {**QUICK, "rate": 5.0, "pools": 1}
    plan = fo.plan("azure", choices=True, **asked)  # type: ignore[arg-type]
    assert plan.choices is not None
    (row,) = (row for row in plan.choices.rows if row.kind == "shape")
    assert row.flags == "--shape disaggregated"
    assert row.cost_usd_per_hour == chosen(row, **asked)


@pytest.mark.parametrize(("asked", "more"), [({"users": 21, "think_time": "20s"}, 26), ({"concurrency": 5}, 6)])
def test_more_traffic_of_users_is_more_users(
    asked: dict[str, object], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how often they ask hangs on the fleet: a rate of their own is refused
    monkeypatch.setattr("planner.ask.choices._size", lambda choice, *_: replace(choice, cost_usd_per_hour=1.0))
    one = {"slo": 4.0, "tp": 1, "pools": 1, "token_budget": 2048, "model": "llama-3.1-8b"}
    plan = fo.plan("azure", choices=True, **asked, **one)  # type: ignore[arg-type]
    assert plan.choices is not None
    (row,) = [row for row in plan.choices.rows if row.kind == "traffic"]
    option = next(iter(asked))
    assert (row.changes, row.flags, row.name) == ({option: more}, f"--{option} {more}", f"20% more users, {more}")


def test_a_node_that_fails_leaves_enough() -> None:
    """Eight replicas fit a node of eight GPUs: fewer than that many may all stand on one, more lose eight at most."""
    for rate, spare in ((1.0, 1), (300.0, 8)):
        plan = fo.plan("azure", choices=True, **{**QUICK, "rate": rate, "pools": 1, "tp": 1})  # type: ignore[arg-type]
        assert plan.choices is not None
        row = next(r for r in plan.choices.rows if r.kind == "redundancy")
        assert row.changes == {"redundancy": spare}
        assert min(plan.replicas, 8) == spare


def test_the_way_out_is_no_limit_far_beyond_the_knee() -> None:
    with pytest.raises(InfeasibleError) as failed:
        fo.plan("azure", choices=True, **NEVER)  # type: ignore[arg-type]
    found = failed.value.choices
    assert found is not None
    assert failed.value.best_s is not None
    limits = [row for row in found.rows if row.kind == "promise"]
    assert limits
    assert all(row.limit_s is not None and row.limit_s > failed.value.best_s for row in limits)
    costs = [row.cost_usd_per_hour for row in limits]
    at_knee = dict(found.curve)[found.knee_s or max(dict(found.curve))]
    assert all(cost is not None and cost <= 3.0 * at_knee for cost in costs)
    for row in limits:
        assert row.cost_usd_per_hour == chosen(row, **NEVER)


def test_an_infeasible_question_is_a_document_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEETOPT_NO_OPTIONS", raising=False)
    quick = ["--method", "mgc", "--kv", "reserved", "--pools", "1"]
    asked = ["plan", "--slo", "10ms", *quick]
    with pytest.raises(SystemExit) as end:
        run([*asked, "--format", "json"])
    shown = json.loads(capsys.readouterr().out)
    assert (end.value.code, shown["kind"]) == (4, "fleetopt-infeasible")
    assert shown["promise"]["metric"] == "ttft_s"
    assert {row["kind"] for row in shown["choices"]["rows"]} >= {"promise"}
    with pytest.raises(SystemExit) as end:
        run([*asked, "-o", str(tmp_path / "plan.yaml")])
    assert end.value.code == 4
    assert not list(tmp_path.iterdir())


def test_where_no_gpu_type_keeps_a_promise_the_quickest_say_what_would_be_kept() -> None:
    with pytest.raises(InfeasibleError, match=r"P99 TTFT <= 10 ms cannot be kept") as caught:
        fo.plan("azure", gpu="any", slo=0.01, burst="poisson", pools=1)
    best_s = caught.value.best_s
    assert best_s is not None and best_s > 0.01
    assert fo.plan("azure", gpu="any", slo=1.3 * best_s, burst="poisson", pools=1).replicas >= 1


def test_any_gpu_is_at_most_as_dear_as_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # only the rows of types are looked at
    size = advised._size
    monkeypatch.setattr(advised, "_size", lambda choice, *of: size(choice, *of) if choice.kind == "gpu" else choice)
    best = fo.plan("azure", gpu="any", choices=True, pools=1, **QUICK)  # type: ignore[arg-type]
    assert best.choices is not None
    alone = [row for row in best.choices.rows if row.kind == "gpu"]
    assert len(alone) >= 6
    priced = [row.cost_usd_per_hour for row in alone if row.cost_usd_per_hour is not None]
    assert min(priced) >= best.cost_usd_per_hour * (1.0 - 1e-12)


def test_a_knee_is_where_the_curve_bends_most() -> None:
    assert knee([(1.0, 100.0), (2.0, 11.0), (4.0, 10.0), (8.0, 9.5)]) == 2.0
    assert knee([(1.0, 10.0), (2.0, 10.0)]) is None


@pytest.mark.parametrize("workers", [1, 4])
def test_answers_come_in_order_whatever_the_threads(workers: int) -> None:
    started = threading.Barrier(workers, timeout=60.0)
    told: list[tuple[int, int]] = []

    def square(k: int) -> int:
        if k < workers:
            started.wait()
        return k * k

    found = answers([lambda k=k: square(k) for k in range(9)], lambda *at: told.append(at), workers)  # type: ignore[misc]
    assert found == [k * k for k in range(9)]
    assert told == [(k, 9) for k in range(10)]


def test_a_failure_in_a_task_is_the_callers() -> None:
    def fails() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        answers([fails, fails])


def test_ctrl_c_keeps_what_is_whole_and_says_so() -> None:
    def stopped() -> int:
        raise KeyboardInterrupt

    found = answers([lambda: 1, stopped, lambda: 3], workers=1, partly=True)
    assert found[:2] == [1, None]
    with pytest.raises(KeyboardInterrupt):
        answers([lambda: 1, stopped], workers=1)
    assert interrupted(Choices((Choice("x", "", {}, ""),), 1.0, 1, waiting=2)) == [
        "interrupted: 2 of 3 other choices were not sized"
    ]
    assert interrupted(Choices((), 1.0, 1)) == []


@pytest.mark.usefixtures("with_chances", "with_words")
@pytest.mark.parametrize(
    "asked",
    [
        {"rate": 8.0, "slo": 0.5, "tp": 1, "token_budget": 4096, "pools": 1, "confidence": 0.5},
        pytest.param(
            {"rate": 60.0, "slo": 1.0, "tpot": "60ms", "tp": 1, "token_budget": [1024, 4096], "pools": 2, "boundaries": [1500]},
            marks=pytest.mark.long("other questions; one in CI"),
        ),
        pytest.param({**QUICK, "gpu": "any", "pools": 1}, marks=pytest.mark.long("other questions; one in CI")),
    ],
    ids=["one pool", "two", "any type"],
)  # fmt: skip
def test_a_page_has_the_same_bytes_with_one_thread_and_four(
    asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whether all that is known beside the plan is asked for, or what the page shows."""
    pages = set()
    for workers, page in ((1, False), (4, True)):
        monkeypatch.setattr(advised, "cores", lambda n=workers: n)
        shown = render(fo.plan("azure", choices=True, page=page, **asked), 120)  # type: ignore[arg-type]
        pages.add(hashlib.sha256(shown.encode()).hexdigest())
    assert len(pages) == 1
