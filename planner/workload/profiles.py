"""Hourly profiles of real services that come with the program."""

from __future__ import annotations

import re

from planner.errors import InputError, did_you_mean
from planner.workload.arrivals import Arrivals
from planner.workload.resolve import shipped_folder


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
        raise InputError(f"no shipped profile {name!r}{did_you_mean(name, names)}", f"Known: {', '.join(names)}.")
    facts: dict[str, str] = {}
    rates: list[float] = []
    for line in (shipped_folder() / "profiles" / f"{name}.csv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            facts[key.strip()] = value.strip()
        elif re.match(r"^\d", line):
            rates.append(float(line.split(",")[1]))
    dispersion = tuple(
        (float(window), float(index))
        for window, _, index in (pair.partition("=") for pair in facts.get("dispersion", "").split())
    )
    return Arrivals(
        rate_per_s=float(facts["arrival_rate_per_s"]),
        dispersion=dispersion,
        hourly_profile=tuple(rates),
        peak_over_mean=float(facts["peak_over_mean"]),
        assumed="Poisson assumed below 600 s",
    )
