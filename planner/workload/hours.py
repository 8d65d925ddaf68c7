"""Rates by hour of day or of week: from a shipped service, a file, or a workload's own timestamps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import InputError, refuse, unknown
from planner.shared.documents import Rows, read_text
from planner.shared.paths import at_home
from planner.units import HOURS_PER_DAY, HOURS_PER_WEEK, as_number, is_measurable
from planner.workload.arrivals import Arrivals
from planner.workload.formats.metadata import Metadata
from planner.workload.resolve import shipped_folder
from planner.workload.workload import Workload


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted.

    >>> "servegen-m-small" in profile_names()
    True
    """
    return tuple(sorted(path.stem for path in (shipped_folder() / "profiles").glob("*.csv")))


def load_profile(name: str) -> Arrivals:
    """The arrival process of a shipped service: mean rate, rate by hour of day, peak over mean, dispersion.

    Parameters
    ----------
    name
        One of :func:`profile_names`.

    Returns
    -------
    Arrivals
        With 24 relative rates.

    Raises
    ------
    InputError
        Unknown name.

    >>> len(load_profile("servegen-m-small").hourly_profile)
    24
    """
    names = profile_names()
    if name not in names:
        raise unknown(f"no shipped profile {name!r}", name, names)
    meta, rates = Metadata(name), list[float]()
    for number, line in enumerate((shipped_folder() / "profiles" / f"{name}.csv").read_text("utf-8").splitlines()):
        if line.startswith("#"):
            meta.line(number, line)
        elif line[:1].isdigit():
            rates.append(float(line.split(",")[1]))
    return replace(meta.arrivals(), hourly_profile=tuple(rates), assumed="Poisson assumed below 600 s")


@dataclass(frozen=True, slots=True)
class HourlyRates:
    """Traffic by hour, repeated for ever.

    Parameters
    ----------
    relative
        24 values (hour of day) or 168 (hour of week, Monday 0:00 first), their mean 1 [1].
    mean_rate_per_s
        Mean rate [1/s]; ``None`` when only the shape is known.
    source
        Where they are from, in words.
    """

    relative: tuple[float, ...]
    mean_rate_per_s: float | None
    source: str

    def rates_per_s(self, rate_per_s: float, rate_is: str = "mean") -> tuple[float, ...]:
        """Rate of every hour [1/s] when the mean (or the busiest hour's) is `rate_per_s`.

        >>> HourlyRates((0.5,) * 12 + (1.5,) * 12, None, "two halves").rates_per_s(90.0, "peak")[0]
        30.0
        """
        top = max(self.relative) if rate_is == "peak" else 1.0
        return tuple(rate_per_s * x / top for x in self.relative)


def hourly_rates(
    source: str | Path | None, workload: Workload | None = None, folder: Path | None = None, flat: str | None = None
) -> HourlyRates:
    """Rates by hour.

    Parameters
    ----------
    source
        A file of 24 or 168 values, or the name of a shipped service; ``None`` = the workload's own profile.
        A file holds a value per line, or CSV columns ``hour`` and one of ``relative_rate``, ``rate_per_s``; only the
        last fixes the mean rate. Lines that start with ``#`` are comments.
    workload
        Traffic whose timestamps may say.
    folder
        Looked in first.
    flat
        What one rate in every hour is called, which a workload without a day of timestamps then has; ``None`` = it is refused.

    Raises
    ------
    InputError
        No such file or service, not 24 or 168 numbers, a workload without a day of timestamps.

    >>> len(hourly_rates("servegen-m-small").relative)
    24
    """
    known = ", ".join(profile_names())
    if source is None:
        if workload is None or not workload.arrivals.hourly_profile:
            if flat is not None:
                return HourlyRates((1.0,) * HOURS_PER_DAY, None, flat)
            raise InputError(
                f"{workload.name if workload else 'no workload'}: no rates by hour (its timestamps cover less than a day)",
                f"Give --hours FILE (24 or 168 values) or a shipped service: {known}.",
            )
        own = workload.arrivals
        return HourlyRates(own.hourly_profile, own.rate_per_s, f"{workload.name}'s own timestamps")
    for path in (*([folder / source] if folder is not None else []), at_home(source)):
        if path.is_file():
            return _read(path)
    name, names = str(source), profile_names()
    if name not in names:
        raise unknown(f"--hours: {name}: no such file or shipped service", name, names, "Shipped")
    return HourlyRates(_scaled(load_profile(name).hourly_profile, name)[0], None, name)


_COLUMNS = ("relative_rate", "rate_per_s")


def _read(path: Path) -> HourlyRates:
    """Rates by hour of a CSV, all problems at once."""
    lines = (line for line in read_text(path).splitlines() if line.strip() and line[0] != "#")
    rows = [[cell.strip() for cell in row] for row in Rows(lines, str(path)) if row]
    if not rows:
        raise InputError(f"{path}: the file is empty")
    names = [cell.lower() for cell in rows[0]]
    if all(is_measurable(as_number(cell)) for cell in names):
        names = ["hour", *names[2:], _COLUMNS[0]][-len(names) :]
    else:
        rows = rows[1:]
    found = next((name for name in _COLUMNS if name in names), None)
    if found is None:
        raise InputError(f"{path}: no column {' or '.join(_COLUMNS)} among {', '.join(names)}")
    column, hour = names.index(found), names.index("hour") if "hour" in names else None
    values, problems = [], []
    for number, row in enumerate(rows):
        cell = row[column] if column < len(row) else ""
        values.append(as_number(cell))
        if not is_measurable(values[-1]):
            problems.append(f"{path}: row {number + 1}: {cell!r} is not a rate")
        elif hour is not None and as_number(row[hour]) != number:
            problems.append(f"{path}: row {number + 1}: expected hour {number}, got {row[hour]!r}")
    refuse(problems)
    relative, mean = _scaled(values, str(path))
    return HourlyRates(relative, mean if found == _COLUMNS[1] else None, path.name)


def _scaled(values: tuple[float, ...] | list[float], source: str) -> tuple[tuple[float, ...], float]:
    if len(values) not in (HOURS_PER_DAY, HOURS_PER_WEEK):
        raise InputError(f"{source}: {len(values)} hours; a day has {HOURS_PER_DAY}, a week {HOURS_PER_WEEK}")
    mean = math.fsum(values) / len(values)
    if min(values) < 0.0 or mean <= 0.0:
        raise InputError(f"{source}: rates must not be negative, and not all 0")
    return tuple(v / mean for v in values), mean
