"""Laws in place of requests: what makes a distribution function one, how totals are split, what a workload of either is.

Among them fleet-sim's: ``[[tokens, cdf], ...]`` alone or under ``cdf``; totals only, so the split must be given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.queueing.order import ranked
from planner.units import LEAST
from planner.workload.arrivals import POISSON_ASSUMED
from planner.workload.formats.base import JSON, MAX_TOKENS, Format, ImportReport, ReadOptions
from planner.workload.formats.metadata import Metadata
from planner.workload.trace import Floats
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from planner.workload.source import Source


_END_TOLERANCE = 1e-6  # files carry eight digits
_MEAN_TOLERANCE = 0.01  # stated means may be rounded
_LARGEST_OUTPUT_SHARE = 0.9  # an assumed output never takes more of a total than this


def law(
    source: Source,
    format_name: str,
    read: tuple[int, int],
    rows: Mapping[str, Any],
    known: Mapping[str, Any],
    told: Sequence[str | None],
    span_s: float | None = None,
) -> tuple[Workload, ImportReport]:
    """The workload of a file that holds a distribution, and the account of it.

    Parameters
    ----------
    source, format_name
        What was read.
    read
        Records found, and requests they stand for.
    rows
        What :meth:`Workload.from_arrays` takes: columns, categories, arrivals and so on; without a name it is the file's.
    known
        Fields of its provenance.
    told
        What was assumed or mended; ``None`` = nothing.
    span_s
        Time it covers [s].
    """
    named = {"name": rows.get("name") or source.path.name.split(".")[0]}
    workload = Workload.from_arrays(**{**rows, **named}, provenance=Provenance(**known))
    rate, notes = workload.arrivals.rate_per_s, tuple(filter(None, told))
    return workload, ImportReport(source.name, format_name, *read, rate_per_s=rate, span_s=span_s, notes=notes)


def one_category(options: ReadOptions, count: int) -> list[str] | None:
    """The category of so many rows that the user gives all of a file."""
    return None if options.category is None else [options.category] * count


def check_cdf(path: str, lines: Sequence[int], tokens: Floats, cdf: Floats) -> list[str]:
    """Everything that keeps a column from being a CDF, by line."""
    found = []
    for k in np.flatnonzero(np.diff(tokens) < 0.0).tolist():
        found.append(
            f"{path}:{lines[k + 1]}: tokens {tokens[k + 1]:g} after {tokens[k]:g}; rows must be sorted by tokens"
        )
    for k in np.flatnonzero(np.diff(cdf) < 0.0).tolist():
        found.append(f"{path}:{lines[k + 1]}: cdf {cdf[k + 1]:g} after {cdf[k]:g}; a CDF does not decrease")
    for k in np.flatnonzero(cdf > 1.0 + _END_TOLERANCE).tolist():
        found.append(f"{path}:{lines[k]}: cdf {cdf[k]:g} is above 1")
    if not found and abs(cdf[-1] - 1.0) > _END_TOLERANCE:
        found.append(f"{path}:{lines[-1]}: the cdf ends at {cdf[-1]:g}, not at 1")
    if not found and tokens[-1] <= 0.0:
        found.append(f"{path}:{lines[-1]}: tokens {tokens[-1]:g}: no request has any tokens")
    return found


def by_cdf(
    path: str, meta: Metadata, options: ReadOptions, lines: Sequence[int], found: Mapping[str, Floats]
) -> tuple[dict[str, Floats], str | None, list[str]]:
    """Rows of a distribution function: their columns, how totals were split, and what is wrong with them.

    Parameters
    ----------
    path, lines
        Where each row stands, for messages.
    meta, options
        What the file and the user say of the split.
    found
        Columns ``tokens`` and ``cdf``, and the lengths where each row has its own.
    """
    tokens, cdf = found["tokens"], found["cdf"]
    problems = check_cdf(path, lines, tokens, cdf)
    weight = np.diff(cdf / max(cdf[-1], LEAST), prepend=0.0)
    weight[weight < LEAST] = 0.0
    if "input_tokens" not in found:
        share, label = meta.number("output_share"), meta.text("split")
        means = meta.number("mean_input", "mean_input_tokens"), meta.number("mean_output", "mean_output_tokens")
        meta.refuse(problems)
        # the file's own figures, unless the user gives others
        if options.output_share is not None or options.mean_output is not None:
            share, label = options.output_share, ""
            means = None, options.mean_output if share is None else None
        return *_split(meta.path, tokens, weight, share, means, label), []
    inputs, outputs = found["input_tokens"], found["output_tokens"]
    # points keep moments and lie a little beyond a bin at most
    for k in np.flatnonzero(inputs + outputs > 2.0 * tokens + 64.0).tolist():
        what = f"{inputs[k]:g} input and {outputs[k]:g} output tokens of {tokens[k]:g}"
        problems.append(f"{path}:{lines[k]}: {what}")
    lower = tokens if np.allclose(inputs + outputs, tokens, rtol=0.0, atol=1e-9) else _lower_edges(tokens)
    return _columns(inputs, outputs, tokens, lower, weight), None, problems


def _columns(*columns: Floats) -> dict[str, Floats]:
    names = ("input_tokens", "output_tokens", "total_tokens", "lower_tokens", "weight")
    return dict(zip(names, columns, strict=True))


def _lower_edges(tokens: Floats) -> Floats:
    """Upper end of the bin before; rows with equal tokens are one bin; the first bin starts at 0."""
    edges, index = ranked(tokens)
    return np.concatenate([[0.0], edges])[index.ravel()]


def _split(
    path: str, tokens: Floats, weight: Floats, share: float | None, means: tuple[float | None, float | None], told: str
) -> tuple[dict[str, Floats], str]:
    """Points of a plain CDF: three Gauss-Legendre nodes of the total in every bin, input and output by the stated split."""
    lower, (mean_input, mean_output) = _lower_edges(tokens), means
    nodes, masses = np.polynomial.legendre.leggauss(3)
    use = weight > 0.0
    low, high, mass = lower[use], tokens[use], weight[use]
    total = (0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * nodes).ravel()
    mass = (mass[:, None] * (0.5 * masses)).ravel()
    low, high = np.repeat(low, 3), np.repeat(high, 3)
    mean_total = float(mass @ total)
    if mean_output is None and mean_input is not None and share is None:
        mean_output = mean_total - mean_input
    elif mean_output is not None and mean_input is not None:
        stated = mean_input + mean_output
        least, most = float(mass @ low), float(mass @ high)
        if not least * (1 - _MEAN_TOLERANCE) <= stated <= most * (1 + _MEAN_TOLERANCE):
            raise InputError(
                f"{path}: mean_input + mean_output = {stated:g} tokens, but the CDF allows only {least:.6g} to {most:.6g}"
            )
        # where inside its bin a total lies is an assumption, the means are facts: move the points, not the bins
        total, mean_total = total * (stated / mean_total), stated
    if mean_output is not None:
        if not 0.0 < mean_output < _LARGEST_OUTPUT_SHARE * mean_total:
            raise InputError(
                f"{path}: mean_output {mean_output:g} does not fit into a mean total of {mean_total:.6g} tokens"
            )
        outputs = np.minimum(_level(total, mass, mean_output), _LARGEST_OUTPUT_SHARE * total)
        split = f"split assumed: mean output {mean_output:g} tokens, independent of the total as far as it fits"
    elif share is not None:
        if not 0.0 < share < 1.0:
            raise InputError(f"{path}: output_share {share:g} must lie between 0 and 1")
        outputs = share * total
        split = f"split assumed: {100 * share:g}% of every total is output"
    else:
        raise InputError(
            f"{path}: a CDF of totals does not say how much of a request is output",
            "Add '# mean_input: N' and '# mean_output: N' or '# output_share: 0.2', or import a trace with both lengths.",
        )
    return _columns(total - outputs, outputs, high, low, mass), f"{split} ({told})" if told else split


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


def _recognise(source: Source) -> bool:
    if source.kind == "array":
        return isinstance(source.record, list) and len(source.record) == 2 and not source.keys
    return source.kind == "json" and "cdf" in source.keys


def _read(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """fleet-sim's pairs of total length and CDF, all problems at once."""
    document = source.read_json()
    facts = document if isinstance(document, dict) else {}
    pairs = facts.get("cdf") if facts else document
    if not isinstance(pairs, list) or not pairs:
        raise InputError(f"{source.name}: no list of [tokens, cdf] pairs")
    meta = Metadata(source.name)
    meta.refuse([
        f"{source.name}: entry {number}: {pair!r} is not a [tokens, cdf] pair"
        for number, pair in enumerate(pairs, 1)
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(x) in (int, float) and 0 <= x <= MAX_TOKENS for x in pair)
        )
    ])  # fmt: skip
    tokens, cdf = np.array(pairs, dtype=np.float64).T
    lines, found = range(1, tokens.size + 1), {"tokens": tokens, "cdf": cdf}
    rows, split, _ = by_cdf(f"{source.name}, entry", meta, options, lines, found)
    columns = {**rows, "category": one_category(options, rows["weight"].size)}
    origin = str(facts.get("provenance") or facts.get("source") or "fleet-sim CDF")
    known = {"source": origin, "length_split": split, "exact": False}
    told = (split, POISSON_ASSUMED)
    return law(source, FORMAT.name, (tokens.size, tokens.size), columns, known, told)


FORMAT = Format("fleetsim-cdf", "fleet-sim CDF JSON (totals only)", JSON, _recognise, _read)
