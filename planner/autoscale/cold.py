"""A model that is unloaded while nobody asks: how often it starts, who waits for it, and how many such models share GPUs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.autoscale.windows import STEP_S, Floats
from planner.promise import MEAN, Promise
from planner.shared.record import Record
from planner.units import format_count, format_duration, format_percent

DAY_S, HOUR_S = 86_400.0, 3600.0

PLACES = (1, 2, 4, 8)
"""Replicas' worth of GPUs on which models are told to share."""

MOST_EACH = 64
"""Models per place beyond which no more are counted."""

ALLOWED = 0.01
"""Share of requests that may wait for a start where no promise says [1]."""


@dataclass(frozen=True, slots=True)
class Cold(Record):
    """A replica that is unloaded after some time without requests.

    Requests come at random at the rates of a path (a Cox process), and the time runs from the last one, a request's own seconds
    left aside; a replica is not stopped while it starts.

    Parameters
    ----------
    idle_s
        That time: what was asked, at least the start-up's [s].
    starts_per_day
        How often it starts [1/d].
    late_share
        Requests that wait for a start longer than their promise allows: the one that starts it, and those that come meanwhile [1].
    up_share
        Of the time that it starts or is loaded: what it costs of one that is kept [1].
    allowed_share
        Requests that may be late by the tightest promise of a first token or of an answer, else :data:`ALLOWED` [1].
    keeps_after_s, keeps_up_share
        The shortest time with which no more are late, and :attr:`up_share` with it; ``None`` = keep it loaded [s], [1].
    models
        Replicas' worth of GPUs -> models like this, each on its own clock, that share them with :attr:`idle_s` so that in the
        busiest hour a start finds none free in at most :attr:`allowed_share` of the cases.
    """

    idle_s: float
    starts_per_day: float
    late_share: float
    up_share: float
    allowed_share: float
    keeps_after_s: float | None
    keeps_up_share: float | None
    models: Mapping[int, int]

    def told(self) -> str:
        """In words."""
        keeps = self.keeps_after_s
        kept = "the promise takes a replica that is kept"
        if keeps is not None:
            loaded = format_percent(self.keeps_up_share or 0.0)
            kept = f"the promise is kept from {format_duration(keeps)} on (loaded {loaded} of the time)"
        shared = ", ".join(f"{places:,} for {models:,}" for places, models in self.models.items())
        return (
            f"unloaded after {format_duration(self.idle_s)} without requests: {format_count(self.starts_per_day)} starts a day, "
            f"loaded {format_percent(self.up_share)} of the time, {format_percent(self.late_share)} of the requests wait for a "
            f"start ({format_percent(self.allowed_share)} may); {kept}; replicas and models like it that share them: {shared}"
        )


def _shares(path: Floats, idle_s: float, startup_s: float, limit_s: float) -> tuple[float, float, Floats]:
    """Share of the requests that is late [1], starts [1/s], and the chance in every step to be loaded [1], shape (steps,).

    `path` are the rates of a period's steps [1/s]; it is unloaded where none came for `idle_s`.
    """
    expected = STEP_S * np.concatenate(([0.0], np.cumsum(np.tile(path, 3))))
    at = path.size + np.arange(path.size) + 0.5

    def came(since: float, until: float) -> Floats:
        """Requests expected from and to so long after each step [s]."""
        ends = (np.interp(at + x / STEP_S, np.arange(expected.size), expected) for x in (since, until))
        return np.asarray(-np.subtract(*ends))

    nobody = np.exp(-came(-idle_s, 0.0))
    starts = path * nobody
    late = starts * (1.0 + came(0.0, startup_s - limit_s)) if startup_s > limit_s else 0.0 * path
    return float(late.sum() / path.sum()), float(starts.mean()), 1.0 - nobody


def cold_of(path: Floats, idle_s: float, startup_s: float, promises: Sequence[Promise]) -> Cold:
    """What unloading does to a model whose requests come at the rates of a path.

    Parameters
    ----------
    path
        Rate in every :data:`STEP_S` of whole hours that repeat, shape (steps,) [1/s].
    idle_s
        Time without requests after which it is unloaded [s].
    startup_s
        From a request that finds it unloaded until it serves, at most the period [s].
    promises
        What requests are promised.
    """
    waits = [p for p in promises if p.metric in ("ttft_s", "e2e_s") and p.quantile != MEAN]
    allowed, limit = min(((1.0 - p.quantile, p.limit_s) for p in waits), default=(ALLOWED, 0.0))
    period = path.size * STEP_S
    idle = min(max(idle_s, startup_s), period)
    late, starts, loaded = _shares(path, idle, startup_s, limit)
    times = np.arange(startup_s, period + STEP_S, STEP_S).clip(max=period)
    enough = bisect_left(times, True, key=lambda t: _shares(path, float(t), startup_s, limit)[0] <= allowed)
    keeps = float(times[enough]) if enough < times.size else None
    kept = None if keeps is None else float(_shares(path, keeps, startup_s, limit)[2].mean())
    busiest = float(loaded.reshape(-1, round(HOUR_S / STEP_S)).mean(axis=1).max())
    models = {places: _sharing(places, busiest, allowed) for places in PLACES}
    return Cold(idle, DAY_S * starts, late, float(loaded.mean()), allowed, keeps, kept, models)


def _sharing(places: int, loaded: float, allowed: float) -> int:
    """Models, each loaded with a chance, so that of one that starts all places are taken by others in an allowed share [1].

    >>> _sharing(1, 0.01, 0.01), _sharing(4, 1.0, 0.01)
    (2, 4)
    """
    models = places
    while models < MOST_EACH * places:
        free = math.fsum(
            math.comb(models, k) * loaded**k * (1.0 - loaded) ** (models - k) for k in range(min(places, models + 1))
        )
        if 1.0 - free > allowed * (1.0 + 1e-9):
            break
        models += 1
    return models
