"""Profiles side by side, with the time of typical batches."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.report.text.profile_list import ProfileList
from planner.report.text.profile_report import value


class ProfileComparison(ProfileList):
    """Profiles to compare, the first being the base."""


def blocks(compared: ProfileComparison) -> list[Block]:
    """Parameters side by side, and what they mean: W, H, knee, time of a typical decode batch and of a prompt."""
    from planner.iteration.model import PARAMETER_UNITS

    profiles = compared.profiles
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
    return [Text(named), Table(["", *map(str, range(1, len(profiles) + 1))], rows, {""})]
