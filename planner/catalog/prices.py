"""Price offers: the shipped lists, the user's own, and which offer a plan takes when nobody gives a price.

A list is a CSV file with the columns of :data:`COLUMNS`. The shipped ones lie beside this file; the user's in
``FLEETOPT_PRICES``, else ``$XDG_DATA_HOME/fleetopt/prices``, else ``~/.local/share/fleetopt/prices``.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date as Day
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from planner.errors import InputError, refuse
from planner.shared.documents import read_text, rows_by_column
from planner.shared.paths import at_home, refuse_homeless
from planner.shared.record import Record
from planner.shared.writing import write_text
from planner.units import LEAST, MOST, as_number

COLUMNS = ("gpu", "vendor", "region", "term", "usd_per_gpu_hour", "date", "source")
"""Columns of a price list, in this order; `region` may be empty."""

STALE_DAYS = 180
"""An offer older than this is called stale: list prices of one GPU moved by a third within half a year of 2026."""

FOLDER = Path(__file__).parent / "prices"

_TERM = re.compile(r"on-demand|spot|reserved-\d+[my]")


@dataclass(frozen=True, slots=True)
class Offer(Record):
    """What one vendor asks for one GPU.

    Parameters
    ----------
    gpu
        Canonical name of the catalog.
    vendor, region
        Who, and where; an empty region = not stated.
    term
        ``on-demand``, ``spot``, or ``reserved-`` with its length: ``reserved-1y``, ``reserved-6m``.
    usd_per_gpu_hour
        Price of one GPU [USD/hour].
    date
        Day the price was seen, ISO 8601.
    source
        Where.
    own
        Whether it comes from the user's lists.
    """

    gpu: str
    vendor: str
    region: str
    term: str
    usd_per_gpu_hour: float
    date: str
    source: str
    own: bool = False

    def age_days(self, today: Day | None = None) -> int:
        """Days since it was seen.

        >>> Offer("h100-80gb", "acme", "", "on-demand", 2.5, "2026-01-01", "").age_days(Day(2026, 1, 31))
        30
        """
        return ((today or Day.today()) - Day.fromisoformat(self.date)).days

    def is_stale(self, today: Day | None = None) -> bool:
        """Whether it is older than :data:`STALE_DAYS`."""
        return self.age_days(today) > STALE_DAYS

    def describe(self, today: Day | None = None) -> str:
        """Vendor, region, term, day and age, as a plan names the offer it used.

        >>> offer = Offer("h100-80gb", "acme", "us", "on-demand", 2.5, "2026-01-01", "")
        >>> offer.describe(Day(2026, 1, 31))
        'acme us, on-demand, seen 2026-01-01, 30 days ago'
        >>> offer.describe(Day(2026, 8, 1))
        'acme us, on-demand, seen 2026-01-01, 212 days ago: stale, ask again'
        """
        where = f"{self.vendor} {self.region}".strip()
        age = self.age_days(today)
        ago = f"{age} day{'s' if age != 1 else ''} ago" + (": stale, ask again" if self.is_stale(today) else "")
        return f"{where}, {self.term}, seen {self.date}, {ago}"

    written: ClassVar[tuple[str, ...]] = (*COLUMNS, "own", "age_days", "stale=is_stale")


def user_directory() -> Path:
    """Folder of the user's price lists."""
    named = os.environ.get("FLEETOPT_PRICES")
    if named:
        return at_home(named)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else at_home("~/.local/share")) / "fleetopt" / "prices"


def parse_offers(text: str, where: str, gpus: Iterable[str], own: bool = False) -> list[Offer]:
    """Offers of a price list.

    Parameters
    ----------
    text
        The CSV.
    where
        How to name it in complaints.
    gpus
        Canonical names there are.
    own
        Marks the user's.

    Raises
    ------
    InputError
        Columns or values missing or wrong: every line's at once.

    Examples
    --------
    >>> text = ",".join(COLUMNS) + "\\nl4,acme,,spot,0.3,2026-10-01,a page\\n"
    >>> parse_offers(text, "mine.csv", ["l4"])[0].vendor
    'acme'
    """
    rows = rows_by_column(text.splitlines(), where)
    header = rows.fieldnames or ()
    if missing := [c for c in COLUMNS if c not in header]:
        raise InputError(f"{where}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing")
    known, found, problems = set(gpus), [], []
    for row in rows:
        here = f"{where}:{rows.line_num}"
        if None in row.values():
            given = sum(value is not None for value in row.values())
            problems.append(f"{here}: {given} values for {len(header)} columns")
            continue
        cell = {c: row[c].strip() for c in COLUMNS}
        empty = [f"{c} is empty" for c in COLUMNS if c != "region" and not cell[c]]
        wrong = empty or _problems(cell, known)
        problems += [f"{here}: {p}" for p in wrong]
        if not wrong:
            price = {"usd_per_gpu_hour": float(cell["usd_per_gpu_hour"])}
            found.append(Offer(**cell | price, own=own))  # type: ignore[arg-type]
    refuse(problems, f"A price list has the columns {', '.join(COLUMNS)}.")
    return found


def _problems(cell: dict[str, str], known: set[str]) -> list[str]:
    """What is wrong with one line of a price list whose cells are filled."""
    found = []
    if cell["gpu"] not in known:
        found.append(f"gpu: {cell['gpu']!r} is no canonical name of the catalog")
    if not _TERM.fullmatch(cell["term"]):
        found.append(f"term: {cell['term']!r} is none of on-demand, spot, reserved-Ny, reserved-Nm")
    if not LEAST <= as_number(cell["usd_per_gpu_hour"]) <= MOST:
        found.append(f"usd_per_gpu_hour: expected a positive number, got {cell['usd_per_gpu_hour']!r}")
    try:
        Day.fromisoformat(cell["date"])
    except ValueError:
        found.append(f"date: expected a day like 2026-10-01, got {cell['date']!r}")
    return found


def save_offers(found: Iterable[Offer], name: str) -> Path:
    """Write a list into the user's folder, replacing the one of that name; it appears complete or not at all.

    Raises
    ------
    InputError
        It cannot be written; or it could not be read again, and every later plan would stumble over it.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    gpus = set()
    for offer in found:
        gpus.add(offer.gpu)
        rows.writerow([getattr(offer, c) for c in COLUMNS])
    folder = user_directory()
    refuse_homeless(folder, "FLEETOPT_PRICES")
    path = folder / f"{name}.csv"
    parse_offers(text.getvalue(), f"{path}, as it would be written", gpus, own=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror})", "FLEETOPT_PRICES names another folder."
        ) from None
    write_text(path, text.getvalue())
    offers.cache_clear()
    return path


@lru_cache(maxsize=1)
def offers(names: tuple[str, ...]) -> tuple[Offer, ...]:
    """Every offer of the shipped lists and the user's, for GPUs of those names.

    Raises
    ------
    InputError
        A list of the user's that cannot be read.
    """
    found: list[Offer] = []
    for folder, own in ((FOLDER, False), (user_directory(), True)):
        for path in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
            found.extend(parse_offers(read_text(path), str(path) if own else path.name, names, own))
    return tuple(found)


def reference_offer(found: Iterable[Offer], gpu: str, term: str = "on-demand") -> Offer | None:
    """The offer a plan takes for a GPU: the cheapest of the user's own lists, else the cheapest that is not stale, else the
    cheapest at all; ``None`` when nobody offers it.

    Examples
    --------
    >>> def offer(vendor, price, own=False):
    ...     return Offer("l4-24gb", vendor, "", "on-demand", price, Day.today().isoformat(), "", own)
    >>> reference_offer([offer("a", 0.5), offer("b", 0.4)], "l4-24gb").vendor
    'b'
    >>> reference_offer([offer("a", 0.5, own=True), offer("b", 0.4)], "l4-24gb").vendor
    'a'
    """
    fitting = [o for o in found if o.gpu == gpu and o.term == term]
    fresh = [o for o in fitting if not o.is_stale()]
    best = [o for o in fitting if o.own] or fresh or fitting
    return min(best, key=lambda o: o.usd_per_gpu_hour, default=None)
