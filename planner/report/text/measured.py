"""What was measured, simulated, counted or follows from theory: calibrations, compression, schedulers, reproductions, workloads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from planner.papers.printed import VERDICTS, Reproduction
from planner.report.blocks import Block, Table, Text
from planner.report.listings import value
from planner.report.pages import cells_of, pages
from planner.units import format_duration, format_percent

if TYPE_CHECKING:
    from planner.ask.batching import Batching
    from planner.ask.simulate import Verification
    from planner.ask.stability import Stability
    from planner.ask.wait import WaitSettings
    from planner.calibrate.result import Calibration, CalibrationSet
    from planner.compress.measure import CompressionMeasurement
    from planner.papers.compare import Comparison
    from planner.workload.arrivals import Arrivals
    from planner.workload.combine import WorkloadSummary

_page = pages(__file__)

REPRODUCED = ("quantity", "reading", "printed", "ours", "verdict", "why")


def of_comparison(found: Comparison) -> list[Block]:
    """Scheduling policies side by side: a row per policy and rate, with 95% intervals."""
    return _page("comparison", found)


def of_verification(found: Verification) -> list[Block]:
    """A plan's promises against a simulation: a row per pool and promise, then the verdict."""
    return _page("verification", found)


def of_calibration_set(result: CalibrationSet) -> list[Block]:
    """Every calibration after the other: parameters with intervals, errors by kind, and what they mean."""
    return [block for c in result.calibrations for block in _calibration(c)]


def _calibration(calibration: Calibration) -> list[Block]:
    """One profile."""
    fit, server = calibration.fit, calibration.server_fit
    left_out, prior, shapes = "", "", []
    if server is not None:
        shapes = [{"isl": i, "osl": o, "error": error} for (i, o), error in server.tpot_error_by_shape.items()]
        ttft = "" if server.ttft_error is None else f", TTFT alone {format_percent(server.ttft_error)}"
        prior = "" if server.prior_error is None else f"; the estimate alone {format_percent(server.prior_error)}"
        left_out = "too few to leave one out"
        if server.tpot_error is not None:
            left_out = f"error of left-out shapes TPOT {format_percent(server.tpot_error)}{ttft}"

    def interval(row: dict[str, Any]) -> str | None:
        known = row["low"] is not None and row["parameter"] != "tau"
        return " .. ".join(value(row[end], row["unit"]) for end in ("low", "high")) if known else None

    return _page(
        "calibration",
        calibration,
        own=lambda row: value(row["value"], row["unit"]),
        interval=interval,
        known=lambda row: {True: "yes", False: "no", None: "-"}[row["identified"]],
        bias=lambda kind: 100 * kind.signed,
        fit_points=None if fit is None else len(fit.residuals),
        shapes=shapes,
        left_out=left_out,
        prior=prior,
    )


def of_compression_measurement(found: CompressionMeasurement) -> list[Block]:
    """What `fleetopt compress measure` found: headline, one row per category, and what the numbers rest on."""
    words = {"gate": "content that is not compressed", "kept": "what has to be kept does not fit"}
    why = ", ".join(f"{n:,} {words.get(k, k)}" for k, n in sorted(found.total.reasons.items()))
    return _page("compression", found, top=found.gamma * found.boundary, why=why)


def of_reproduction(result: Reproduction) -> list[Block]:
    """How many numbers agree, then printed beside ours, and the notes that the last column refers to."""
    notes: dict[str, int] = {}
    rows = []
    for f in result.findings:
        number = notes.setdefault(f.reason, len(notes) + 1)
        quantity = f.quantity if len(result.papers) == 1 else f"{f.paper}: {f.quantity}"
        rows.append([quantity, f.reading, f.printed, f.ours, f.verdict, f"[{number}]"])
    told = [f"[{n}] {reason}" for reason, n in notes.items()]
    table = Table(REPRODUCED, rows, set(REPRODUCED), drop=("reading", "why"))
    return [agreement(result), table, Text(told, "bullets")]


def agreement(result: Reproduction) -> Table:
    """Printed numbers by paper and verdict; one that is read in several ways counts once, by its best verdict."""
    rows = []
    for paper in (*result.papers, *([None] if len(result.papers) > 1 else [])):
        counts = result.counts(paper)
        numbers = (sum(counts.values()), *(counts.get(verdict, 0) for verdict in VERDICTS))
        rows.append([paper or "all", *(f"{n:,}" for n in numbers)])
    return Table(("paper", "printed numbers", *VERDICTS), rows, {"paper"})


def of_workload_summary(described: WorkloadSummary) -> list[Block]:
    """Lengths, burstiness, the split at a boundary, and what was assumed."""
    w, facts = described.workload, described.to_dict()
    lengths: dict[str, dict[str, float]] = facts["lengths"]
    names = [*next(iter(lengths.values()))]
    rows = [[of, *cells_of([f"{{{name}:tokens}}" for name in names], row, {})] for of, row in lengths.items()]
    band = {name: share for name, share in facts["split"]["band_share_by_category"].items() if name}
    shares = [
        f"{c['name'] or '(none)'} {format_percent(c['share'])}"
        + ("" if c["compressible"] is None else f" (compressible {c['compressible']:g})")
        for c in facts["categories"]
    ]
    hours = w.arrivals.hourly_profile
    peak = max(hours) if hours else None
    return _page(
        "workload",
        facts,
        w=w,
        known=w.provenance,
        other_rows=w.rows != w.provenance.requests,
        lengths=Table(["tokens", *names], rows, {"tokens"}, near=True),
        arrivals=_arrivals(w.arrivals),
        dispersion=", ".join(f"{v:.3g} at {s:g} s" for s, v in w.arrivals.dispersion or ()),
        day="day" if hours and len(hours) == 24 else "week",
        peak=peak,
        peak_hour=hours.index(peak) if hours and peak is not None else None,
        band=", ".join(
            f"{name} {format_percent(share)}" for name, share in band.items() if facts["split"]["band_share"]
        ),
        categories=", ".join(shares) if any(w.categories) else "",
        sessions=None if w.sessions is None else w.sessions.to_dict(),
        notes=[f"note: {note}" for note in w.provenance.notes],
    )


def _arrivals(arrivals: Arrivals) -> str:
    """How requests come, in words."""
    parts = ["rate not known" if arrivals.rate_per_s is None else f"rate {arrivals.rate_per_s:.4g} requests/s"]
    if arrivals.scv is not None:
        window = "" if arrivals.scv_window_s is None else f" within {arrivals.scv_window_s:g} s"
        parts.append(f"interarrival scv {arrivals.scv:.3g}{window}")
    if arrivals.peak_over_mean is not None:
        parts.append(f"busiest minute {arrivals.peak_over_mean:.2f} x mean")
    return ", ".join([*parts, *([arrivals.assumed] if arrivals.assumed else [])])


_KINDS = {"engine": "engine", "achieved": "reached by", "limit": "no scheduler"}


def of_stability(result: Stability) -> list[Block]:
    """Verdict, certificate, bounds, burst."""
    then = "sustained"
    if result.time_to_overload_s <= 0.0:
        then = f"overloaded already; +{result.growth_per_s:.3g} requests/s"
    elif math.isfinite(result.time_to_overload_s):
        then = (
            f"all sequences taken after {format_duration(result.time_to_overload_s)}, then the queue grows by "
            f"{result.growth_per_s:.3g} requests/s and takes {result.recovery_s_per_s:.3g} s per second to clear"
        )
    return _page(
        "stability",
        result,
        full=lambda bound: format_percent(bound.load) if math.isfinite(bound.load) else "overload",
        basis=lambda bound: _KINDS[bound.kind],
        then=then,
    )


def of_batching(result: Batching) -> list[Block]:
    """Verdict, settings of both, crossover."""
    both = [{"batching": name, **getattr(result, name)} for name in ("exclusive", "mixed")]
    return _page("batching", result, replicas=0, both=both)


def of_wait_settings(result: WaitSettings) -> list[Block]:
    """Verdict, thresholds by class, nested segments."""
    sure = None if result.nested is None else 1 - result.nested["delta"]
    over = "" if result.nested is None and result.verdict != "overload" else None
    return _page("wait_settings", result, d1_ns=1e9 * result.d1_s_per_token, sure=sure, over=over)
