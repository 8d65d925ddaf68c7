"""Below the table of choices: what saves most, and what other limits cost; worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from planner.choices import Choice, Choices
from planner.promise import Promise
from planner.report.blocks import to_terminal
from planner.report.text.choices import of_choices

PROMISE = Promise("ttft_s", 0.5, 0.99)


def limit(seconds: float, cost: float) -> Choice:
    told = f"P99 TTFT {seconds:g} s"
    return Choice("promise", told, {}, f"--ttft {seconds:g}s", cost, 1, "1 x TP1", limit_s=seconds)


ROWS = (
    Choice("routing", "routing rr", {}, "--routing rr", 9.9, 1, "1 x TP1"),
    Choice("precision", "FP8 weights", {}, "--weights fp8", 7.5, 1, "1 x TP1"),
    Choice("gpu", "l40s", {}, "--gpu l40s", 5.0, 1, "1 x TP1"),
    limit(0.25, 20.0),
    limit(1.5, 8.0),
)


def page(choices: Choices) -> str:
    return to_terminal(of_choices(choices))


def test_what_saves_most_is_named_and_what_other_limits_cost() -> None:
    told = page(Choices(ROWS, 10.0, 1, PROMISE))
    # 1% is no saving, and another promise is not the same answer
    assert "saves most at the same promise: --gpu l40s (-50%), --weights fp8 (-25%)" in told
    assert "the knee is at 500 ms, $7,300/month; 250 ms costs 2 times as much; 1.5 s saves 20%" in told


def test_nothing_saved_says_nothing() -> None:
    told = page(Choices(tuple(replace(row, cost_usd_per_hour=10.0) for row in ROWS), 10.0, 1, PROMISE))
    assert "saves" not in told
    assert "knee" not in told
