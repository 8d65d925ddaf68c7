"""The project's own CSV: ``tokens,cdf[,input_tokens,output_tokens[,category]]`` after ``# key: value`` lines."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.workload.arrivals import POISSON_ASSUMED, Arrivals
from planner.workload.formats.base import MAX_PROBLEMS, MAX_TOKENS, Format, ReadOptions
from planner.workload.report import ImportReport
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.workload.source import Head, Source

    Floats = NDArray[np.float64]

__all__ = ["FORMAT"]

COLUMNS = ("tokens", "cdf", "input_tokens", "output_tokens", "category")

_END_TOLERANCE = 1e-6  # files carry eight digits
_MEAN_TOLERANCE = 0.01  # stated means may be rounded
_LARGEST_OUTPUT_SHARE = 0.9  # an assumed output never takes more of a total than this

_NUMBER = r"[-+0-9.eE]+"


def _recognise(head: Head) -> bool:
    return head.kind == "csv" and head.columns[:2] == ("tokens", "cdf")


class _Metadata:
    """``# key: value`` lines, aliases resolved; every problem with its line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, tuple[int, str]] = {}
        self.notes: list[str] = []
        self.categories: dict[str, float | None] = {}
        self.shares: dict[str, float] = {}
        self.problems: list[str] = []

    def line(self, number: int, text: str) -> None:
        key, colon, value = text.lstrip("# \t").partition(":")
        key, value = key.strip().lower(), value.strip()
        if not colon or " " in key:
            return
        if key == "note":
            self.notes.append(value)
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

    def text(self, *keys: str) -> str:
        return next((self.values[k][1] for k in keys if k in self.values), "")

    def number(self, *keys: str) -> float | None:
        for key in keys:
            if key not in self.values:
                continue
            line, text = self.values[key]
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not math.isfinite(value) or value < 0.0:
                self.problems.append(f"{self.path}:{line}: {key}: {text!r} is not a number that makes sense here")
                return None
            return value
        return None

    def pairs(self, key: str) -> dict[str, float]:
        if key not in self.values:
            return {}
        line, text = self.values[key]
        result: dict[str, float] = {}
        for part in re.split(r"[\s,;]+", text.strip()):
            name, equals, value = part.partition("=")
            try:
                result[name] = float(value)
            except ValueError:
                equals = ""
            if not equals:
                self.problems.append(f"{self.path}:{line}: {key}: {part!r} is not name=number")
        return result

    def quantiles(self, of: str) -> dict[float, float]:
        key = f"{of}_quantiles"
        result: dict[float, float] = {}
        for share, value in self.pairs(key).items():
            try:
                result[float(share)] = value
            except ValueError:
                self.problems.append(f"{self.path}:{self.values[key][0]}: {key}: {share!r} is not a share")
        return result

    def scv(self) -> tuple[float | None, float | None]:
        window = self.number("arrival_scv_window_s", "scv_window_s", "window_s")
        for key in ("arrival_scv", "ca2"):
            if key in self.values:
                line, text = self.values[key]
                found = re.match(rf"^({_NUMBER})(?:\D+({_NUMBER})\s*s?\W*)?$", text)
                if not found:
                    self.problems.append(
                        f"{self.path}:{line}: {key}: {text!r} is not a number (with a window in seconds)"
                    )
                    return None, None
                try:
                    return float(found[1]), float(found[2]) if found[2] else window
                except ValueError:
                    self.problems.append(
                        f"{self.path}:{line}: {key}: {text!r} is not a number (with a window in seconds)"
                    )
                    return None, None
        for key in self.values:
            named = re.match(r"^(?:ca2|arrival_scv)_(\d+)s$", key)
            if named:
                return self.number(key), float(named[1])
        return None, None

    def arrivals(self) -> Arrivals:
        scv, window = self.scv()
        dispersion = []
        for key, value in self.pairs("dispersion").items():
            try:
                dispersion.append((float(key.removesuffix("s")), value))
            except ValueError:
                self.problems.append(
                    f"{self.path}:{self.values['dispersion'][0]}: dispersion: {key!r} is not a window in seconds"
                )
        profile: tuple[float, ...] = ()
        if "hourly_profile" in self.values:
            line, text = self.values["hourly_profile"]
            try:
                profile = tuple(float(x) for x in re.split(r"[\s,;]+", text))
            except ValueError:
                self.problems.append(f"{self.path}:{line}: hourly_profile: not a list of numbers")
        peak = self.number("peak_over_mean")
        rate = self.number("arrival_rate_per_s", "rate_per_s")
        try:
            return Arrivals(
                rate, scv, window, tuple(sorted(dispersion)), profile, peak,
                None if scv is not None or dispersion else self.text("arrivals") or POISSON_ASSUMED,
            )  # fmt: skip
        except InputError as error:
            self.problems += [f"{self.path}: {p}" for p in error.problems or (error.message,)]
            return Arrivals()

    def compressible(self) -> dict[str, float | None]:
        return {**self.categories, **self.pairs("compressible")}


def _read(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    path = source.name
    meta = _Metadata(path)
    problems: list[str] = []
    lines: list[int] = []
    columns: list[list[float]] = [[], [], [], []]
    names: list[str] = []
    width = 0
    delimiter = source.head().delimiter
    too_many = False
    with source.open_text() as text:
        for number, raw in enumerate(text, 1):
            line = raw.strip().lstrip("\ufeff")
            if not line:
                continue
            if line[0] == "#":
                meta.line(number, line)
                continue
            cells = line.split(delimiter)
            if not width:
                width = len(cells)
                if width not in (2, 4, 5):
                    raise InputError(
                        f"{path}:{number}: {width} columns", f"The format has 2, 4 or 5 columns: {','.join(COLUMNS)}."
                    )
                header = tuple(cell.strip().strip('"').lower() for cell in cells)
                if header == COLUMNS[:width]:
                    continue
                if not _all_numbers(cells[:4]):
                    raise InputError(
                        f"{path}:{number}: header {line!r}", f"The format's header is {','.join(COLUMNS[:width])}."
                    )
            if len(problems) >= MAX_PROBLEMS:
                too_many = True
                break
            if len(cells) != width:
                problems.append(f"{path}:{number}: {len(cells)} columns instead of {width}")
                continue
            try:
                values = [float(cell) for cell in cells[:4]]
            except ValueError:
                values = [math.nan]
            if not all(0.0 <= value <= MAX_TOKENS for value in values):
                for label, cell in zip(COLUMNS, cells[:4], strict=False):
                    if not _is_good(cell):
                        problems.append(f"{path}:{number}: {label} {cell.strip()!r} is not a number >= 0")
                continue
            for column, value in zip(columns, values, strict=False):
                column.append(value)
            lines.append(number)
            if width == 5:
                names.append(cells[4].strip())
    if not lines and not problems:
        raise InputError(
            f"{path}: no rows (only {'a header' if width else 'comments'})", f"Rows are {','.join(COLUMNS)}."
        )
    tokens, cdf = np.array(columns[0]), np.array(columns[1])
    if lines:
        problems += _order_problems(path, lines, tokens, cdf)
    arrivals = meta.arrivals()
    compressible = meta.compressible()
    requests = meta.number("requests")
    given = _Split.of(
        options,
        meta.number("output_share"),
        meta.number("mean_input", "mean_input_tokens"),
        meta.number("mean_output", "mean_output_tokens"),
        meta.text("split"),
    )
    stated = {of: meta.quantiles(of) for of in ("input", "output", "total")}
    problems += meta.problems
    if width == 5:
        for name in compressible:
            if name not in names and names:
                problems.append(f"{path}:{meta.values['compressible'][0]}: compressible: no row has category {name!r}")
    if problems:
        if len(problems) > MAX_PROBLEMS or too_many:
            problems = [*problems[:MAX_PROBLEMS], "... and more"]
        raise InputError.from_problems(
            problems, heading=f"{path}: {len(problems)} problems" if len(problems) > 1 else None
        )

    name = meta.text("name") or source.path.name.split(".")[0]
    weight = np.diff(cdf / cdf[-1], prepend=0.0)
    lower = _lower_edges(tokens)
    split: str | None = meta.text("length_split") or None
    notes = list(meta.notes)
    if width == 2:
        (inputs, outputs, tokens, lower, weight), split = _split_totals(path, tokens, lower, weight, given)
    else:
        inputs, outputs = np.array(columns[2]), np.array(columns[3])
        if np.allclose(inputs + outputs, tokens, rtol=0.0, atol=1e-9):
            lower = tokens.copy()
    exact = width != 2 and bool(np.array_equal(lower, tokens))
    category = names or None
    if options.category is not None:
        category = [options.category] * weight.size
        compressible = {k: v for k, v in compressible.items() if k == options.category}
    known: Mapping[str, float | None] | list[float | None] | None = compressible if category is not None else None
    if category is None and abs(sum(meta.shares.values()) - 1.0) < 0.01:
        # no column says which request is of which category: the share of the whole has to do for every band
        share = sum(part * (meta.categories[name] or 0.0) for name, part in meta.shares.items())
        known = [share]
        notes.append(f"rows carry no category: a compressible share of {share:.3g} is assumed at every length")
    workload = Workload.from_arrays(
        inputs,
        outputs,
        weight=weight,
        total_tokens=tokens,
        lower_tokens=lower,
        category=category,
        compressible=known,
        arrivals=arrivals,
        name=name,
        provenance=Provenance(
            name=name,
            source=meta.text("source"),
            licence=meta.text("licence", "license"),
            requests=None if requests is None else round(requests),
            notes=tuple(notes),
            length_split=split,
            exact=exact,
        ),
    )
    if any(stated.values()):
        workload = workload.with_stated_quantiles(stated)
    report = ImportReport(
        path=path,
        format=FORMAT.name,
        rows_read=len(lines),
        requests=len(lines),
        rate_per_s=arrivals.rate_per_s,
        span_s=meta.number("span_s"),
        notes=tuple(filter(None, [split, arrivals.assumed, *notes])),
    )
    return workload, report


def _is_good(cell: str) -> bool:
    try:
        return 0.0 <= float(cell) <= MAX_TOKENS
    except ValueError:
        return False


def _all_numbers(cells: list[str]) -> bool:
    try:
        return all(math.isfinite(float(cell)) for cell in cells)
    except ValueError:
        return False


def _order_problems(path: str, lines: list[int], tokens: Floats, cdf: Floats) -> list[str]:
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


def _lower_edges(tokens: Floats) -> Floats:
    """Upper end of the bin before; rows with equal tokens are one bin; the first bin starts at 0."""
    edges, index = np.unique(tokens, return_inverse=True)
    return np.concatenate([[0.0], edges])[index.ravel()]


@dataclass(frozen=True, slots=True)
class _Split:
    """What is said about input and output of a CDF of totals."""

    output_share: float | None = None
    mean_input: float | None = None
    mean_output: float | None = None
    label: str = ""

    @classmethod
    def of(
        cls, options: ReadOptions, share: float | None, mean_input: float | None, mean_output: float | None, label: str
    ) -> _Split:
        """The file's own figures, unless the user gives others."""
        if options.output_share is not None:
            return cls(output_share=options.output_share)
        if options.mean_output is not None:
            return cls(mean_output=options.mean_output)
        return cls(share, mean_input, mean_output, label)


def _split_totals(path: str, tokens: Floats, lower: Floats, weight: Floats, given: _Split) -> tuple[list[Floats], str]:
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
    problems = _order_problems(f"{path}, entry", list(range(1, len(tokens) + 1)), at, level)
    if problems:
        raise InputError.from_problems(problems[:MAX_PROBLEMS], heading=f"{path}: {len(problems)} problems")
    weight = np.diff(level / level[-1], prepend=0.0)
    columns, split = _split_totals(path, at, _lower_edges(at), weight, _Split.of(options, None, None, None, ""))
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


FORMAT = Format("fleetopt", "this project's CSV: tokens,cdf[,input_tokens,output_tokens[,category]]", _recognise, _read)
