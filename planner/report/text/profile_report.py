"""One profile: everything it says, and the parameters of every paper's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.report.blocks import Block, Table, Text
from planner.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planner.catalog.profiles import Profile
    from planner.iteration.derived import Derived

_SCALES = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9), ("ps", 1e12))


class ProfileReport:
    """A profile with what follows from it.

    Parameters
    ----------
    profile
        The profile.
    papers
        Paper -> parameters of its form.
    """

    def __init__(self, profile: Profile, papers: Mapping[str, Derived] | None = None) -> None:
        self.profile = profile
        self.papers = papers or {}

    def to_dict(self) -> dict[str, Any]:
        """The profile, JSON-ready."""
        return self.profile.to_dict()

    def to_rows(self) -> list[dict[str, Any]]:
        """The profile as a row."""
        from planner.report.text.profile_list import profile_row

        return [profile_row(self.profile)]


def value(amount: float | None, unit: str) -> str:
    """Three digits with a prefix of the second: 5.08 ms, 23.5 us/token."""
    if amount is None:
        return "-"
    if amount == 0.0:
        return "0"
    if unit != "s" and not unit.startswith("s/"):
        return f"{amount:.4g}" if unit == "1" else f"{amount:.4g} {unit}"
    for name, scale in _SCALES:
        if abs(amount) * scale >= 0.9995:
            return f"{amount * scale:.3g} {name}{unit[1:]}"
    return f"{amount:.3g} {unit}"


def blocks(report: ProfileReport) -> list[Block]:
    """Everything a profile says."""
    from planner.iteration.model import PARAMETER_UNITS

    profile = report.profile
    rows = [[k, value(v, PARAMETER_UNITS[k])] for k, v in profile.iteration.to_dict().items()]
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
        ("API overhead", value(profile.api_overhead_s, "s") if profile.api_overhead_s else None),
        *((f"measured {k}", f"{low:g} .. {high:g}") for k, (low, high) in profile.covered.items()),
        *(("setting " + k, v) for k, v in profile.settings.items()),
        *(("note", note) for note in profile.notes),
        ("never tested on", "; ".join(profile.untested)),
    ]
    found: list[Block] = [
        Text(head),
        Table(["parameter", "value"], rows, {"parameter"}),
        Text([f"{name}: {told}" for name, told in facts if told], "bullets"),
    ]
    return [*found, _papers(report.papers)] if report.papers else found


def _papers(derived: Mapping[str, Derived]) -> Table:
    """Every paper's parameters with the range they were taken over and how far the paper's form strays there."""
    rows = []
    for paper, d in derived.items():
        over = ", ".join(
            f"{name} {low:g}" if low == high else f"{name} {low:.4g}..{high:.4g}"
            for name, (low, high) in d.covers.items()
        )
        for i, (name, number) in enumerate(d.values.items()):
            flag = " (assumed)" if name in d.not_identified else ""
            first = [paper, over, f"up to {format_percent(d.form_error)}"] if i == 0 else ["", "", ""]
            rows.append([first[0], name, value(number, d.units[name]) + flag, first[1], first[2]])
    columns = ["paper", "parameter", "value", "taken over", "form off by"]
    return Table(columns, rows, set(columns) - {"value"})
