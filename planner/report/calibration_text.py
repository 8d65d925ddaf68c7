"""Calibrations and profiles as tables, for a terminal or a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.calibrate.run import Calibration, CalibrationSet
    from planner.catalog.profiles import Profile
    from planner.iteration.derived import Derived

__all__ = [
    "ProfileList",
    "aligned_table",
    "calibration_text",
    "compare_text",
    "papers_text",
    "profile_list_text",
    "profile_text",
]

_SCALES = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9), ("ps", 1e12))


class ProfileList:
    """Profiles as rows.

    Parameters
    ----------
    profiles
        What to list.
    """

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles = tuple(profiles)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"schema_version": 1, "profiles": [p.to_dict() for p in self.profiles]}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per profile."""
        return [
            {
                "name": p.name,
                "gpu": p.gpu,
                "model": p.model,
                "tp": p.tp,
                "weight_dtype": p.weight_dtype,
                "provenance": p.provenance,
                "band": p.band,
                "points": p.points,
                "error_mean": p.error_mean,
                "date": p.date,
                "engine": p.engine,
                "source": p.source,
                **{f"iteration_{k}": v for k, v in p.iteration.to_dict().items()},
            }
            for p in self.profiles
        ]


def aligned_table(columns: list[str], rows: list[list[str]], markdown: bool, left: set[str]) -> str:
    """Rows as text or Markdown; columns in `left` align left, the others right."""
    if markdown:
        rule = [":--" if c in left else "--:" for c in columns]
        return "\n".join("| " + " | ".join(line) + " |" for line in [columns, rule, *rows])
    from planner.report.table import rows_to_table

    return rows_to_table(columns, rows, right=set(columns) - left)


def _value(value: float | None, unit: str) -> str:
    """Three digits with a prefix of the second: 5.08 ms, 23.5 us/token."""
    if value is None:
        return "-"
    if value == 0.0:
        return "0"
    if unit != "s" and not unit.startswith("s/"):
        return f"{value:.4g}" if unit == "1" else f"{value:.4g} {unit}"
    for name, scale in _SCALES:
        if abs(value) * scale >= 0.9995:
            return f"{value * scale:.3g} {name}{unit[1:]}"
    return f"{value:.3g} {unit}"


def calibration_text(result: CalibrationSet, markdown: bool = False) -> str:
    """Parameters with intervals, errors by kind, and what they mean."""
    return "\n\n".join(_one(c, markdown) for c in result.calibrations)


def _one(calibration: Calibration, markdown: bool) -> str:
    profile = calibration.profile
    rows = []
    for row in calibration.parameters():
        known = {True: "yes", False: "no", None: "-"}[row["identified"]]
        low, high = (_value(row[end], row["unit"]) for end in ("low", "high"))
        interval = "-" if row["low"] is None or row["parameter"] == "tau" else f"{low} .. {high}"
        rows.append([row["parameter"], _value(row["value"], row["unit"]), interval, known])
    title = f"{profile.name}: {profile.trust}"
    parts = [
        f"## {title}" if markdown else title,
        aligned_table(["parameter", "value", "90% interval", "identified"], rows, markdown, {"parameter"}),
    ]
    if calibration.fit is not None:
        fit = calibration.fit
        kinds = [
            [k.kind, str(k.points), format_percent(k.mean), format_percent(k.median), format_percent(k.largest),
             f"{100 * k.signed:+.1f}%"]
            for k in fit.kinds
        ]  # fmt: skip
        parts.append(
            aligned_table(["residuals", "points", "mean", "median", "largest", "bias"], kinds, markdown, {"residuals"})
        )
        parts.append(
            f"error on {fit.points} points {format_percent(fit.fit_error)}, left out one by one "
            f"{format_percent(fit.leave_one_out_error)} (p95 {format_percent(fit.leave_one_out_p95)})"
        )
    if calibration.server_fit is not None:
        server = calibration.server_fit
        shapes = [
            [f"{isl:g}", f"{osl:g}", format_percent(error)] for (isl, osl), error in server.tpot_error_by_shape.items()
        ]
        parts.append(aligned_table(["input", "output", "TPOT error left out"], shapes, markdown, set()))
        ttft = "" if server.ttft_error is None else f", TTFT alone {format_percent(server.ttft_error)}"
        parts.append(
            f"{server.points} points of {server.shapes} shapes, {server.scheduling} scheduling: error of left-out shapes "
            f"TPOT {format_percent(server.tpot_error)}{ttft}"
        )
    return "\n\n".join(parts)


def profile_list_text(listed: ProfileList, markdown: bool = False) -> str:
    """One line per profile."""
    columns = ["name", "gpu", "model", "tp", "dtype", "trust", "points", "date", "engine"]
    rows = [
        [
            p.name,
            p.gpu,
            p.model,
            str(p.tp),
            p.weight_dtype,
            p.trust,
            str(p.points or "-"),
            p.date or "-",
            p.engine or "-",
        ]
        for p in listed.profiles
    ]
    return aligned_table(columns, rows, markdown, set(columns) - {"tp", "points"})


def profile_text(profile: Profile, markdown: bool = False) -> str:
    """Everything a profile says."""
    from planner.iteration.model import PARAMETER_UNITS

    rows = [[k, _value(v, PARAMETER_UNITS[k])] for k, v in profile.iteration.to_dict().items()]
    head = [
        f"{profile.name}: {profile.model} on {profile.gpus} x {profile.gpu} (tp {profile.tp}, weights "
        f"{profile.weight_dtype}, KV {profile.kv_dtype}): {profile.trust}"
    ]
    facts: list[tuple[str, object]] = [
        ("source", profile.source),
        ("date", profile.date),
        ("engine", " ".join(x for x in (profile.engine, profile.engine_version) if x)),
        ("command", profile.command),
        ("points", profile.points),
        ("error of left-out points", None if profile.error_mean is None else format_percent(profile.error_mean)),
        ("p95 of it", None if profile.error_p95 is None else format_percent(profile.error_p95)),
        ("KV tokens", profile.kv_tokens),
        ("API overhead", _value(profile.api_overhead_s, "s") if profile.api_overhead_s else None),
        *((f"measured {k}", f"{low:g} .. {high:g}") for k, (low, high) in profile.covered.items()),
        *(("setting " + k, v) for k, v in profile.settings.items()),
        *(("note", note) for note in profile.notes),
    ]
    bullet = "- " if markdown else ""
    lines = [f"{bullet}{name}: {value}" for name, value in facts if value]
    return "\n\n".join(
        ["\n".join(head), aligned_table(["parameter", "value"], rows, markdown, {"parameter"}), "\n".join(lines)]
    )


def papers_text(derived: Mapping[str, Derived], markdown: bool = False) -> str:
    """Every paper's parameters with the range they were taken over and how far the paper's form strays there."""
    rows = []
    for paper, d in derived.items():
        over = ", ".join(
            f"{name} {low:g}" if low == high else f"{name} {low:.4g}..{high:.4g}"
            for name, (low, high) in d.covers.items()
        )
        for i, (name, value) in enumerate(d.values.items()):
            flag = " (assumed)" if name in d.not_identified else ""
            first = [paper, over, f"up to {format_percent(d.form_error)}"] if i == 0 else ["", "", ""]
            rows.append([first[0], name, _value(value, d.units[name]) + flag, first[1], first[2]])
    columns = ["paper", "parameter", "value", "taken over", "form off by"]
    return aligned_table(columns, rows, markdown, set(columns) - {"value"})


def compare_text(profiles: Sequence[Profile], markdown: bool = False) -> str:
    """Parameters side by side, and what they mean: W, H, knee, time of a typical decode batch and of a prompt."""
    from planner.iteration.model import PARAMETER_UNITS

    names = list(dict.fromkeys(k for p in profiles for k in p.iteration.to_dict()))
    first = profiles[0].iteration

    def cell(value: float, base: float, unit: str, place: int) -> str:
        ratio = f" (x{value / base:.2f})" if place and base > 0.0 else ""
        return _value(value, unit) + ratio

    rows = [
        [name, *(cell(getattr(p.iteration, name), getattr(first, name), PARAMETER_UNITS[name], i) for i, p in enumerate(profiles))]
        for name in names
    ]  # fmt: skip
    batches = (
        ("64 decodes at 1,024", (64.0, 65536.0, 0.0, 0.0, 1024.0)),
        ("256 decodes at 1,024", (256.0, 262144.0, 0.0, 0.0, 1024.0)),
        ("prompt of 2,048", (0.0, 0.0, 2048.0, 2048.0 * 2049.0 / 2.0, 0.0)),
        ("64 decodes + 512 new", (64.0, 65536.0, 512.0, 512.0 * 513.0 / 2.0, 1024.0)),
    )
    for label, batch in batches:
        base = first.time(*batch)
        rows.append([label, *(cell(p.iteration.time(*batch), base, "s", i) for i, p in enumerate(profiles))])
    rows.append(["trust", *(p.trust for p in profiles)])
    columns = ["", *(p.name for p in profiles)]
    return aligned_table(columns, rows, markdown, {""})
