"""Price offers, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from planner.record import Record
from planner.report.blocks import Block, Table, Text

if TYPE_CHECKING:
    from planner.catalog.prices import Offer

COLUMNS = ("gpu", "USD/GPU/hour", "term", "vendor", "region", "seen", "age, days", "list")


@dataclass(frozen=True, slots=True)
class OfferList(Record):
    """Offers as rows.

    Parameters
    ----------
    offers
        What to list, in order.
    used
        Those a plan takes when no price is given.
    """

    offers: Sequence[Offer]
    used: frozenset[Offer] = frozenset()

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("offers=to_rows",)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per offer."""
        return [{**offer.to_dict(), "used": offer in self.used} for offer in self.offers]


def blocks(listed: OfferList) -> list[Block]:
    """The offers; ``*`` marks the one a plan takes, ``stale`` one that is too old to rely on."""
    rows = [
        [
            offer.gpu,
            f"{offer.usd_per_gpu_hour:.4g}" + (" *" if offer in listed.used else ""),
            offer.term,
            offer.vendor,
            offer.region or "-",
            offer.date,
            f"{offer.age_days()}" + (" stale" if offer.is_stale() else ""),
            "yours" if offer.own else "shipped",
        ]
        for offer in listed.offers
    ]
    left = set(COLUMNS) - {"USD/GPU/hour", "age, days"}
    return [Table(COLUMNS, rows, left), Text(["* what a plan takes without --price"])]
