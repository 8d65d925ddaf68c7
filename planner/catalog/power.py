"""Electric power of a GPU by what runs on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from planner.catalog.folders import FOLDER
from planner.errors import InputError
from planner.shared.documents import shipped


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """What one GPU draws.

    Parameters
    ----------
    idle_w
        With the model loaded and nothing running [W].
    one_w, full_w
        With one sequence decoding, and with a full batch [W].
    middle
        Logarithm to base 2 of the sequences half-way between.
    estimated
        What was not measured on this GPU and is a share of its TDP.
    source
        Where the numbers are from.
    """

    idle_w: float
    one_w: float
    full_w: float
    middle: float
    estimated: tuple[str, ...]
    source: str

    def watts(self, running: float) -> float:
        """Mean power with that many sequences running on average [W].

        Their number is taken as Poisson, so that nothing runs exp(-running) of the time; while something does, power follows
        Hassan et al. 2025, equation 2, at the mean number then.

        >>> curve = PowerCurve(100.0, 300.0, 600.0, 4.2, (), "")
        >>> curve.watts(0.0), round(curve.watts(2**4.2)), round(curve.watts(1e9))
        (100.0, 450, 600)
        """
        if not running > 0.0:
            return self.idle_w
        empty = math.exp(-running)
        busy = running / -math.expm1(-running)
        reached = 1.0 / (1.0 + math.exp(self.middle - math.log2(busy)))
        return empty * self.idle_w + (1.0 - empty) * (self.one_w + (self.full_w - self.one_w) * reached)


def full_w(gpu: str) -> float:
    """What a GPU draws with the batch full [W].

    Raises
    ------
    InputError
        The catalog does not know the power of this GPU.
    """
    curve = power_curve(gpu)
    if curve is None:
        raise InputError(f"max_kw: the catalog has no power of {gpu}", "Leave it out, or plan on a GPU it has.")
    return curve.full_w


@cache
def power_curve(gpu: str) -> PowerCurve | None:
    """The curve of a GPU by its canonical name; ``None`` where not even its TDP is known."""
    data = shipped(FOLDER / "power.yaml")
    entry, rest = data["gpus"].get(gpu), data["estimate"]
    if entry is None:
        return None
    names = ("idle", "one", "full")
    estimated = tuple(name for name in names if name not in entry)
    idle, one, full = (float(entry.get(name, rest[name] * entry["tdp"])) for name in names)
    shares = [rest[key] for name, key in (("idle", "idle_source"), ("one", "source")) if name in estimated]
    keys = dict.fromkeys([entry.get("source"), entry.get("sheet", "second-hand"), *shares])
    source = "; ".join(data["sources"][key] for key in keys if key is not None)
    return PowerCurve(idle, one, full, float(entry.get("middle", rest["middle"])), estimated, source)
