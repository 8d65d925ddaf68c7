"""Profiles: one line each, one with everything it says, and some side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from planner.report.blocks import Block, Table, Text
from planner.report.pages import Alone, Listing, pages, rows_of, told_beside
from planner.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.catalog.profiles import Profile
    from planner.iteration.derived import Derived

_page = pages(__file__)

_SCALES = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9), ("ps", 1e12))


def _rows(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """Profiles as flat rows."""
    rows = zip(rows_of(told_beside(__file__)["row"], profiles), profiles, strict=True)
    return [{**row, **{f"iteration_{k}": v for k, v in p.iteration.to_dict().items()}} for row, p in rows]


@dataclass(frozen=True, slots=True)
class ProfileList(Listing):
    """Profiles as rows.

    Parameters
    ----------
    profiles
        What to list.
    """

    profiles: Sequence[Profile]

    versioned: ClassVar[bool] = True


class ProfileComparison(ProfileList):
    """Profiles to compare, the first being the base."""


def profile_list(profiles: Sequence[Profile]) -> ProfileList:
    """One line per profile."""
    return ProfileList(_rows(profiles), _page("profiles", None, profiles=profiles), profiles)


def profile_comparison(profiles: Sequence[Profile]) -> ProfileComparison:
    """Parameters beside those of the first, and what they mean: W, H, knee, time of a typical decode batch and of a prompt."""
    from planner.iteration.model import PARAMETER_UNITS

    names = list(dict.fromkeys(k for p in profiles for k in p.iteration.to_dict()))
    first = profiles[0].iteration

    def cell(amount: float, base: float, unit: str, place: int) -> str:
        ratio = f" (x{amount / base:.2f})" if place and base > 0.0 else ""
        return value(amount, unit) + ratio

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
    # names are longer than numbers: two of them would leave no room for a second column
    named = [f"{k}: {p.name}" for k, p in enumerate(profiles, start=1)]
    page: list[Block] = [Text(named), Table(["", *map(str, range(1, len(profiles) + 1))], rows, {""})]
    return ProfileComparison(_rows(profiles), page, profiles)


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


def profile_entry(profile: Profile, papers: Mapping[str, Derived] | None = None) -> Alone:
    """Everything a profile says, and the parameters of every paper's form."""
    from planner.iteration.model import PARAMETER_UNITS

    numbers = profile.iteration.to_dict().items()
    page = _page(
        "profile",
        profile,
        parameters=[{"name": k, "value": value(v, PARAMETER_UNITS[k])} for k, v in numbers],
        engine_told=" ".join(x for x in (profile.engine, profile.engine_version) if x),
        overhead=value(profile.api_overhead_s, "s") if profile.api_overhead_s else None,
        covered_told=[f"measured {k}: {low:g} .. {high:g}" for k, (low, high) in profile.covered.items()],
        settings_told=[f"setting {k}: {v}" for k, v in profile.settings.items() if v],
        notes_told=[f"note: {note}" for note in profile.notes],
        untested_told="; ".join(profile.untested),
        papers=_papers(papers) if papers else [],
    )
    return Alone(_rows([profile]), page, profile)


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
            head, *tail = ["", "", ""] if i else [paper, over, f"up to {format_percent(d.form_error)}"]
            rows.append([head, name, value(number, d.units[name]) + flag, *tail])
    columns = ["paper", "parameter", "value", "taken over", "form off by"]
    return Table(columns, rows, set(columns) - {"value"})
