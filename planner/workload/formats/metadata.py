"""``# key: value`` lines at the top of the project's CSV: aliases resolved, every problem with its line."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from planner.errors import InputError, refuse
from planner.units import as_number, is_measurable
from planner.workload.arrivals import POISSON_ASSUMED, Arrivals
from planner.workload.trace import Intervals, Stretches

_NUMBER = r"[-+0-9.eE]+"
_SEPARATOR = re.compile(r"[\s,;]+")

ENCODED = ("path", "sessions")
"""Lines of columns packed into text, of which a file written before has one or many; they are refused, not passed over."""


class Metadata:
    """The metadata of one file, collected line by line.

    Parameters
    ----------
    path
        The file, for messages.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, tuple[int, str]] = {}
        self.notes: list[str] = []
        self.categories: dict[str, float | None] = {}
        self.shares: dict[str, float] = {}
        self.problems: list[str] = []
        self._parts: dict[str, list[str]] = {"counts": [], "stretch": []}

    def line(self, number: int, text: str) -> None:
        """Take one line that starts with ``#``."""
        key, colon, value = text.lstrip("# \t").partition(":")
        key, value = key.strip().lower(), value.strip()
        if not colon or " " in key:
            return
        if key == "note":
            self.notes.append(value)
        elif key in self._parts:
            self._parts[key].append(value)
            self.values.setdefault(key, (number, value))
        elif key in ENCODED:
            self.problems.append(f"{self.path}:{number}: {key}: is encoded; import the trace itself")
        elif key == "category":
            # older form: "category: conv 0.69 compressible"
            words = value.split()
            if len(words) >= 2 and words[-1] in ("compressible", "incompressible"):
                self.categories[words[0]] = 1.0 if words[-1] == "compressible" else 0.0
                try:
                    self.shares[words[0]] = float(words[1])
                except ValueError:
                    self.problems.append(f"{self.path}:{number}: category: {words[1]!r} is not a share")
        else:
            self.values[key] = (number, value)

    def problem(self, key: str, what: str) -> None:
        """Note what is wrong with the value of `key`."""
        self.problems.append(f"{self.path}:{self.values[key][0]}: {key}: {what}")

    def refuse(self, others: Sequence[str] = ()) -> None:
        """All that is wrong with the file as one error; `others` is of its rows."""
        refuse([*others, *self.problems], of=self.path)

    def text(self, *keys: str) -> str:
        """The first of some aliases that is there, ``""`` when none is."""
        return next((self.values[k][1] for k in keys if k in self.values), "")

    def number(self, *keys: str) -> float | None:
        """The same as a number >= 0."""
        key = next((k for k in keys if k in self.values), None)
        if key is None:
            return None
        value = as_number(self.text(key))
        if is_measurable(value) and value >= 0.0:
            return value
        self.problem(key, f"{self.text(key)!r} is not a number that makes sense here")
        return None

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, empty when absent."""
        found = tuple(as_number(x) for x in _SEPARATOR.split(self.text(key))) if key in self.values else ()
        if any(map(math.isnan, found)):
            self.problem(key, "not a list of numbers")
            return ()
        return found

    def pairs(self, key: str) -> dict[str, float]:
        """``name=number name=number``, empty when absent."""
        result: dict[str, float] = {}
        for part in _SEPARATOR.split(self.text(key).strip()) if key in self.values else ():
            name, _, value = part.partition("=")
            result[name] = as_number(value)
            if not is_measurable(result[name]):
                self.problem(key, f"{part!r} is not name=number")
                del result[name]
        return result

    def levels(self, key: str, what: str) -> dict[float, float]:
        """Pairs whose names are numbers themselves (an ``s`` behind them for seconds is left out)."""
        result: dict[float, float] = {}
        for name, value in self.pairs(key).items():
            level = as_number(name.removesuffix("s"))
            if not is_measurable(level):
                self.problem(key, f"{name!r} is not {what}")
            else:
                result[level] = value
        return result

    def stated_quantiles(self) -> dict[str, dict[float, float]]:
        """Quantiles of the whole that the file states, by column [tokens]."""
        found = {of: self.levels(f"{of}_quantiles", "a share") for of in ("input", "output", "total")}
        return {of: dict(sorted(table.items())) for of, table in found.items() if table}

    def scv(self) -> tuple[float | None, float | None]:
        """Interarrival scv and its window [s], in any of the forms it was ever written in."""
        window = self.number("arrival_scv_window_s", "scv_window_s", "window_s")
        key = next((k for k in ("arrival_scv", "ca2") if k in self.values), "")
        if not key:
            named = (re.match(r"^(?:ca2|arrival_scv)_(\d+)s$", key) for key in self.values)
            return next(((self.number(one[0]), float(one[1])) for one in named if one), (None, None))
        found = re.match(rf"^({_NUMBER})(?:\D+({_NUMBER})\s*s?\W*)?$", self.text(key))
        values = [as_number(part) for part in found.groups() if part] if found else [math.nan]
        if any(map(math.isnan, values)):
            self.problem(key, f"{self.text(key)!r} is not a number (with a window in seconds)")
            return None, None
        return values[0], values[1] if len(values) > 1 else window

    def arrivals(self) -> Arrivals:
        """The arrival process they describe."""
        scv, window = self.scv()
        dispersion = tuple(sorted(self.levels("dispersion", "a window in seconds").items()))
        try:
            return Arrivals(
                rate_per_s=self.number("arrival_rate_per_s", "rate_per_s"),
                scv=scv,
                scv_window_s=window,
                dispersion=dispersion,
                hourly_profile=self.numbers("hourly_profile"),
                peak_over_mean=self.number("peak_over_mean"),
                assumed=None if scv is not None or dispersion else self.text("arrivals") or POISSON_ASSUMED,
                peak_hour_over_mean=self.number("peak_hour_over_mean"),
            )
        except InputError as error:
            self.problems += [f"{self.path}: {p}" for p in error.problems or (error.message,)]
            return Arrivals()

    def intervals(self) -> Intervals | None:
        """Requests by interval of time, from ``counts``."""
        if parts := self._parts["counts"]:
            counts = np.array([as_number(x) for x in " ".join(parts).split()])
            width = self.number("counts_interval_s") or 0.0
            if not (counts.size and np.all(counts >= 0.0) and 0.0 < counts.sum() < 1e15 and width > 0.0):
                self.problem("counts", "not numbers of requests with their counts_interval_s")
                return None
            return Intervals(counts, width)
        return None

    def stretches(self) -> Stretches | None:
        """The stretches of a longer trace that a file holds: ``start seconds weight``, a line each."""
        if not self._parts["stretch"]:
            return None
        found = [[as_number(x) for x in part.split()] for part in self._parts["stretch"]]
        if not all(len(x) == 3 and 0.0 <= x[0] < math.inf and 0.0 < min(x[1:]) <= max(x[1:]) < 1e12 for x in found):
            self.problem("stretch", "each line holds its start [s], its length [s] and its weight")
        elif not all(one[0] + one[1] <= two[0] + 1e-6 for one, two in pairwise(found)):
            self.problem("stretch", "they must not overlap, and be in order of time")
        else:
            return Stretches(*np.array(found).T)
        return None

    def compressible(self, categories: Collection[str] | None) -> dict[str, float | None]:
        """Probability of compression by category [1], held against those that rows have, where they have any."""
        found = {**self.categories, **self.pairs("compressible")}
        for name in sorted(set(found) - set(categories)) if categories else ():
            self.problem("compressible", f"no row has category {name!r}")
        return found

    def origin(self) -> tuple[str, str, str]:
        """Name, source and licence."""
        return self.text("name"), self.text("source"), self.text("licence", "license")
