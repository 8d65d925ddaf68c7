"""Distributions of the total alone: what makes a CDF one, and how a total is split into input and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.queueing.order import ranked
from planner.workload.arrivals import POISSON_ASSUMED
from planner.workload.formats.base import MAX_PROBLEMS, ImportReport, ReadOptions
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_END_TOLERANCE = 1e-6  # files carry eight digits
_MEAN_TOLERANCE = 0.01  # stated means may be rounded
_LARGEST_OUTPUT_SHARE = 0.9  # an assumed output never takes more of a total than this


def check_cdf(path: str, lines: list[int], tokens: Floats, cdf: Floats) -> list[str]:
    """Everything that keeps a column from being a CDF, by line."""
    found = []
    for k in np.flatnonzero(np.diff(tokens) < 0.0):
        found.append(
            f"{path}:{lines[k + 1]}: tokens {tokens[k + 1]:g} after {tokens[k]:g}; rows must be sorted by tokens"
        )
    for k in np.flatnonzero(np.diff(cdf) < 0.0):
        found.append(f"{path}:{lines[k + 1]}: cdf {cdf[k + 1]:g} after {cdf[k]:g}; a CDF does not decrease")
    for k in np.flatnonzero(cdf > 1.0 + _END_TOLERANCE):
        found.append(f"{path}:{lines[k]}: cdf {cdf[k]:g} is above 1")
    if not found and abs(cdf[-1] - 1.0) > _END_TOLERANCE:
        found.append(f"{path}:{lines[-1]}: the cdf ends at {cdf[-1]:g}, not at 1")
    if not found and tokens[-1] <= 0.0:
        found.append(f"{path}:{lines[-1]}: tokens {tokens[-1]:g}: no request has any tokens")
    return found


def lower_edges(tokens: Floats) -> Floats:
    """Upper end of the bin before; rows with equal tokens are one bin; the first bin starts at 0."""
    edges, index = ranked(tokens)
    return np.concatenate([[0.0], edges])[index.ravel()]


@dataclass(frozen=True, slots=True)
class Split:
    """What is said about input and output of a CDF of totals."""

    output_share: float | None = None
    mean_input: float | None = None
    mean_output: float | None = None
    label: str = ""

    @classmethod
    def of(
        cls, options: ReadOptions, share: float | None, mean_input: float | None, mean_output: float | None, label: str
    ) -> Split:
        """The file's own figures, unless the user gives others."""
        if options.output_share is not None:
            return cls(output_share=options.output_share)
        if options.mean_output is not None:
            return cls(mean_output=options.mean_output)
        return cls(share, mean_input, mean_output, label)


def split_totals(path: str, tokens: Floats, lower: Floats, weight: Floats, given: Split) -> tuple[list[Floats], str]:
    """Points of a plain CDF: three Gauss-Legendre nodes of the total in every bin, input and output by the stated split.

    Returns input, output, upper and lower end of the total, weight; and how the split was made.
    """
    nodes, masses = np.polynomial.legendre.leggauss(3)
    use = weight > 0.0
    low, high, mass = lower[use], tokens[use], weight[use]
    total = (0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * nodes).ravel()
    mass = (mass[:, None] * (0.5 * masses)).ravel()
    low, high = np.repeat(low, 3), np.repeat(high, 3)
    mean_total = float(mass @ total)
    mean_output = given.mean_output
    if mean_output is None and given.mean_input is not None and given.output_share is None:
        mean_output = mean_total - given.mean_input
    if mean_output is not None:
        if given.mean_input is not None and given.mean_output is not None:
            stated = given.mean_input + given.mean_output
            least, most = float(mass @ low), float(mass @ high)
            if not least * (1 - _MEAN_TOLERANCE) <= stated <= most * (1 + _MEAN_TOLERANCE):
                raise InputError(
                    f"{path}: mean_input + mean_output = {stated:g} tokens, but the CDF allows only {least:.6g} to {most:.6g}"
                )
            # where inside its bin a total lies is an assumption, the means are facts: move the points, not the bins
            total, mean_total = total * (stated / mean_total), stated
        if not 0.0 < mean_output < _LARGEST_OUTPUT_SHARE * mean_total:
            raise InputError(
                f"{path}: mean_output {mean_output:g} does not fit into a mean total of {mean_total:.6g} tokens"
            )
        outputs = np.minimum(_level(total, mass, mean_output), _LARGEST_OUTPUT_SHARE * total)
        split = f"split assumed: mean output {mean_output:g} tokens, independent of the total as far as it fits"
    elif given.output_share is not None:
        if not 0.0 < given.output_share < 1.0:
            raise InputError(f"{path}: output_share {given.output_share:g} must lie between 0 and 1")
        outputs = given.output_share * total
        split = f"split assumed: {100 * given.output_share:g}% of every total is output"
    else:
        raise InputError(
            f"{path}: a CDF of totals does not say how much of a request is output",
            "Add '# mean_input: N' and '# mean_output: N' or '# output_share: 0.2', or import a trace with both lengths.",
        )
    return [total - outputs, outputs, high, low, mass], f"{split} ({given.label})" if given.label else split


def parse_cdf(
    path: str, tokens: list[float], cdf: list[float], options: ReadOptions, *, name: str, source: str, format_name: str
) -> tuple[Workload, ImportReport]:
    """A workload from a CDF of totals that came in another format; the split must be in `options`."""
    at, level = np.array(tokens), np.array(cdf)
    problems = check_cdf(f"{path}, entry", list(range(1, len(tokens) + 1)), at, level)
    if problems:
        raise InputError.from_problems(problems[:MAX_PROBLEMS], heading=f"{path}: {len(problems)} problems")
    weight = np.diff(level / level[-1], prepend=0.0)
    columns, split = split_totals(path, at, lower_edges(at), weight, Split.of(options, None, None, None, ""))
    workload = Workload.from_arrays(
        columns[0],
        columns[1],
        weight=columns[4],
        total_tokens=columns[2],
        lower_tokens=columns[3],
        category=None if options.category is None else [options.category] * columns[0].size,
        name=name,
        provenance=Provenance(name=name, source=source, length_split=split, exact=False),
    )
    return workload, ImportReport(path, format_name, len(tokens), len(tokens), notes=(split, POISSON_ASSUMED))


def _level(total: Floats, mass: Floats, mean: float) -> float:
    """The constant c with E[min(c, share x total)] = mean, exactly: the function is piecewise linear in c."""
    cap = np.sort(_LARGEST_OUTPUT_SHARE * total)
    order = np.argsort(total, kind="stable")
    weight = mass[order]
    below = np.cumsum(weight * cap)
    rest = 1.0 - np.cumsum(weight)
    reached = below + np.maximum(rest, 0.0) * cap  # value at c = cap
    k = int(np.searchsorted(reached, mean))
    if k == 0:
        return mean
    if k >= cap.size:
        return float(cap[-1])
    return float((mean - below[k - 1]) / max(1.0 - float(np.sum(weight[:k])), 1e-300))
