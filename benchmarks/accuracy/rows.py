"""What a comparison with measured systems says: pairs of a prediction and a measurement, and a row of figures per metric."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from planner.errors import InputError
from planner.iteration.roofline import prior_band
from planner.machine.hardware import GpuSpec, ModelSpec

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))


@dataclass(frozen=True, slots=True)
class Pair:
    """One prediction beside its measurement.

    Parameters
    ----------
    family, metric
        What it counts in.
    system
        Who was measured, for the table and for what is said of what was left out.
    predicted, measured
        In one unit. A metric that is an error by itself has `measured` 1.
    band
        Half-width printed around the prediction, as a share of it [1]; NaN = none is printed.
    cell
        Pairs of one cell are not independent: their median counts once. Empty = every pair counts.
    """

    family: str
    metric: str
    system: str
    predicted: float
    measured: float
    band: float = math.nan
    cell: str = ""

    @property
    def error(self) -> float:
        """predicted/measured - 1 [1]."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one metric of a family; errors are shares.

    Parameters
    ----------
    family, metric
        As in :class:`Pair`.
    n
        Cells, or pairs where there are none.
    median, mean, p90, worst
        Of \\|predicted/measured - 1\\| [1].
    signed
        Median of predicted/measured - 1 [1].
    covered
        Share of the measurements inside the printed band [1]; ``None`` = no band is printed.
    """

    family: str
    metric: str
    n: int
    median: float
    mean: float
    p90: float
    worst: float
    signed: float
    covered: float | None

    def to_dict(self) -> dict[str, object]:
        """The fields, rounded to a ten-thousandth."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def rows_of(pairs: Iterable[Pair]) -> list[Row]:
    """A row per (family, metric), in the order they came.

    >>> [r.median for r in rows_of([Pair("a", "x", "s", 1.1, 1.0), Pair("a", "x", "t", 0.7, 1.0)])]
    [0.2]
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.family, pair.metric), []).append(pair)
    found = []
    for (family, metric), own in groups.items():
        cells: dict[str, list[float]] = {}
        for number, pair in enumerate(own):
            cells.setdefault(pair.cell or str(number), []).append(pair.error)
        signed = np.array([float(np.median(errors)) for errors in cells.values()])
        errors = np.abs(signed)
        banded = [p for p in own if math.isfinite(p.band)]
        # the band is told as a share of the prediction
        inside = [abs(p.measured / p.predicted - 1.0) <= p.band for p in banded if p.predicted > 0.0]
        values = (np.median(errors), errors.mean(), np.quantile(errors, 0.9), errors.max(), np.median(signed))
        found.append(Row(family, metric, errors.size, *map(float, values), float(np.mean(inside)) if inside else None))
    return found


def band_of(gpu: GpuSpec, model: ModelSpec, engine: str | None) -> float:
    """The half-width a plan prints around an estimate of that system [1]."""
    return prior_band(gpu, model, engine)


def told(family: str, what: str, pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The pairs, and on standard error what could not be judged and why: a model or GPU that nobody knows, a broken row."""
    try:
        yield from pairs
    except InputError as error:
        print(f"{family}: {what} left out: {error}", file=sys.stderr)
