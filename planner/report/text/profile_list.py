"""Profiles, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from planner.record import Record
from planner.report.blocks import Block, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.catalog.profiles import Profile


def profile_row(p: Profile) -> dict[str, Any]:
    """A profile as one flat row."""
    return {
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


@dataclass(frozen=True, slots=True)
class ProfileList(Record):
    """Profiles as rows.

    Parameters
    ----------
    profiles
        What to list.
    """

    profiles: Sequence[Profile]

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("profiles",)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per profile."""
        return [profile_row(p) for p in self.profiles]


def blocks(listed: ProfileList) -> list[Block]:
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
    return [Table(columns, rows, set(columns) - {"tp", "points"})]
