"""Calibrations: parameters with intervals, errors by kind, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.blocks import Block, Table, Text
from planner.report.listings.profiles import value
from planner.units import format_percent

if TYPE_CHECKING:
    from planner.calibrate.result import Calibration, CalibrationSet


def blocks(result: CalibrationSet) -> list[Block]:
    """Every calibration after the other."""
    return [block for c in result.calibrations for block in _one(c)]


def _one(calibration: Calibration) -> list[Block]:
    """One profile: parameters with intervals, errors, notes."""
    profile = calibration.profile
    rows = []
    for row in calibration.parameters():
        known = {True: "yes", False: "no", None: "-"}[row["identified"]]
        low, high = (value(row[end], row["unit"]) for end in ("low", "high"))
        interval = "-" if row["low"] is None or row["parameter"] == "tau" else f"{low} .. {high}"
        rows.append([row["parameter"], value(row["value"], row["unit"]), interval, known])
    title = f"{profile.name}: {profile.trust}"
    parts: list[Block] = [
        Text([title], "heading"),
        Table(["parameter", "value", "90% interval", "identified"], rows, {"parameter"}),
    ]
    if calibration.fit is not None:
        fit = calibration.fit
        kinds = [
            [k.kind, str(k.points), format_percent(k.mean), format_percent(k.median), format_percent(k.largest),
             f"{100 * k.signed:+.1f}%"]
            for k in fit.kinds
        ]  # fmt: skip
        parts.append(Table(["residuals", "points", "mean", "median", "largest", "bias"], kinds, {"residuals"}))
        parts.append(
            Text(
                [
                    f"error on {len(fit.residuals):,} points {format_percent(fit.fit_error)}, left out "
                    f"{f'in {fit.left_out_groups} groups' if fit.left_out_groups else 'one by one'} "
                    f"{format_percent(fit.leave_one_out_error)} (p95 {format_percent(fit.leave_one_out_p95)})"
                ]
            )
        )
    if calibration.server_fit is not None:
        server = calibration.server_fit
        shapes = [
            [f"{isl:g}", f"{osl:g}", format_percent(error)] for (isl, osl), error in server.tpot_error_by_shape.items()
        ]
        if shapes:
            parts.append(Table(["input", "output", "TPOT error left out"], shapes))
        ttft = "" if server.ttft_error is None else f", TTFT alone {format_percent(server.ttft_error)}"
        if server.tpot_error is None:
            left_out = "too few to leave one out"
        else:
            left_out = f"error of left-out shapes TPOT {format_percent(server.tpot_error)}{ttft}"
        prior = "" if server.prior_error is None else f"; the estimate alone {format_percent(server.prior_error)}"
        chosen = " (chosen)" if server.rules_chosen else ""
        parts.append(
            Text(
                [
                    f"{server.points} points of {server.shapes} shapes, {server.rules.scheduling} scheduling, "
                    f"{server.rules.budget:,.0f} tokens per iteration{chosen}: {left_out}{prior}"
                ]
            )
        )
    return parts
