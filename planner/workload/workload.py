"""The joint distribution of what requests ask for: weighted (input, output, category) rows, never totals with a split made up."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from planner.errors import InputError, refuse, unknown
from planner.queueing.order import ranked
from planner.shared.record import Record
from planner.workload.arrivals import Arrivals
from planner.workload.sessions import Sessions
from planner.workload.trace import Floats, Intervals, Ints, PiecewiseLaw, Trace, summed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


T = TypeVar("T")

COLUMNS = ("input_tokens", "output_tokens", "total_tokens", "lower_tokens", "weight", "category")
"""Columns of a workload's rows."""


@dataclass(frozen=True, slots=True)
class Provenance(Record):
    """Where a workload came from and what was assumed about it.

    Parameters
    ----------
    source, licence
        Origin and terms of the data.
    requests
        Number of requests behind the distribution [requests]; ``None`` = not known.
    notes
        One line each: what was dropped, changed or assumed.
    length_split
        How totals were split into input and output when the source does not say; ``None`` = measured.
    exact
        Whether every row is a request as it was recorded (no bins).
    """

    source: str = ""
    licence: str = ""
    requests: int | None = None
    notes: tuple[str, ...] = ()
    length_split: str | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A weighted joint distribution of input and output tokens by category, with its arrivals and provenance.

    A row is a point (`input_tokens`, `output_tokens`) with a weight. What a length router sees of it is its total: exactly
    `total_tokens` for a recorded request, anywhere in (`lower_tokens`, `total_tokens`] with equal density for a bin of a
    compact file. Immutable; equal when all contents are.

    Parameters
    ----------
    name
        Short name.
    input_tokens, output_tokens
        Points [tokens], shape (rows,); fractional in compact files.
    total_tokens
        Upper end of the row's total [tokens], shape (rows,), not decreasing.
    weight
        Share of requests [1], shape (rows,), sums to 1.
    category
        Index into `categories`, shape (rows,).
    categories
        Names; ``("",)`` when the source has none.
    compressible
        Per category, the probability that a prompt of it can be compressed [1]; ``None`` = not known.
    arrivals, provenance
        Records.
    lower_tokens
        Lower end of the row's total [tokens], shape (rows,); equal to `total_tokens` for a recorded request.
    recorded
        The requests one by one with their times, where the workload was read from a trace; see :meth:`trace`.
    intervals
        Requests by interval of time, where no more is known of when they came (sums of a query, histograms, files until 0.1),
        or of the whole trace where `recorded` are stretches of it.
    sessions
        The calls session by session, where requests come back to prompts sent before; ``None`` = no reuse is known.
    stated
        Quantiles of the original by column and share [tokens], where its points keep moments alone, or are of some stretches of it;
        they hold for the whole workload only, and other rows have none.

    See Also
    --------
    from_file, from_arrays : the ways to make one.
    """

    name: str
    input_tokens: Floats
    output_tokens: Floats
    total_tokens: Floats
    weight: Floats
    category: Ints
    categories: tuple[str, ...]
    compressible: tuple[float | None, ...]
    arrivals: Arrivals
    provenance: Provenance
    lower_tokens: Floats
    recorded: Trace | None = field(default=None, repr=False)
    intervals: Intervals | None = field(default=None, repr=False)
    sessions: Sessions | None = field(default=None, repr=False)
    stated: Mapping[str, Mapping[float, float]] = field(default_factory=dict, repr=False)
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in COLUMNS:
            getattr(self, name).setflags(write=False)

    # ------------------------------------------------------------------------------------------------------ making one

    @classmethod
    def from_arrays(
        cls,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        *,
        weight: ArrayLike | None = None,
        total_tokens: ArrayLike | None = None,
        lower_tokens: ArrayLike | None = None,
        category: ArrayLike | Sequence[str] | None = None,
        categories: Sequence[str] | None = None,
        compressible: Mapping[str, float | None] | Sequence[float | None] | None = None,
        arrivals: Arrivals | None = None,
        arrival_rate_per_s: float | None = None,
        name: str = "workload",
        provenance: Provenance | None = None,
        recorded: Trace | None = None,
        intervals: Intervals | None = None,
        sessions: Sessions | None = None,
    ) -> Workload:
        """Build a workload from columns.

        Parameters
        ----------
        input_tokens, output_tokens
            Lengths [tokens], shape (rows,), finite and not negative.
        weight
            Weights [1], shape (rows,), any positive scale; default equal.
        total_tokens
            What a router sees [tokens]; default input + output.
        lower_tokens
            Lower end of the total [tokens]; default `total_tokens` (recorded requests).
        category
            Names, or indices into `categories`; default one category without a name.
        compressible
            Probability [1] by category name, or one per category; default not known.
        arrivals, arrival_rate_per_s
            The arrival process, and a rate [requests/s] that overrides its own.
        name, provenance
            Where it came from.
        recorded, intervals
            The requests one by one, where there were times; or how many came by interval of time.
        sessions
            The calls session by session, where they come back to prompts sent before.

        Raises
        ------
        InputError
            Negative or non-finite lengths, no rows, columns of different length.

        >>> w = Workload.from_arrays([100, 300], [20, 10], arrival_rate_per_s=2.0)
        >>> w.mean_input, w.mean_output, w.cdf(120)
        (200.0, 15.0, 0.5)
        """
        inputs, outputs = (np.array(column, dtype=np.float64).ravel() for column in (input_tokens, output_tokens))
        rows = inputs.size
        totals = inputs + outputs if total_tokens is None else np.array(total_tokens, dtype=np.float64).ravel()
        lowers = totals if lower_tokens is None else np.array(lower_tokens, dtype=np.float64).ravel()
        weights = np.full(rows, 1.0 / max(rows, 1)) if weight is None else np.array(weight, dtype=np.float64).ravel()
        index, names = _category_index(category, categories, rows)
        columns: dict[str, Any] = {"input_tokens": inputs, "output_tokens": outputs, "total_tokens": totals}
        columns |= {"weight": weights, "lower_tokens": lowers, "category": index}
        refuse(_wrong(columns, len(names), name))

        exact = lowers is totals or bool(np.array_equal(lowers, totals))
        if not (np.all(weights > 0.0) and np.all(totals[1:] >= totals[:-1])):
            order = np.flatnonzero(weights > 0.0)
            order = order[np.argsort(totals[order], kind="stable")]
            columns = {label: column[order] for label, column in columns.items()}
        columns["weight"] = columns["weight"] / columns["weight"].sum()
        if exact:
            columns["lower_tokens"] = columns["total_tokens"]
        process = arrivals or Arrivals()
        return cls(
            name=name,
            **columns,
            categories=names,
            compressible=_compressible(compressible, names),
            arrivals=process if arrival_rate_per_s is None else replace(process, rate_per_s=arrival_rate_per_s),
            provenance=provenance or Provenance(requests=rows if weight is None else None, exact=exact),
            recorded=recorded,
            intervals=intervals,
            sessions=sessions,
        )

    @classmethod
    def from_file(
        cls, path: str | Path, arrival_rate_per_s: float | None = None, input_format: str | None = None, **options: Any
    ) -> Workload:
        """Read a workload from a file in any known format, or a shipped one by name.

        Parameters
        ----------
        path
            An existing file first, else a shipped name with or without ``.csv``.
        arrival_rate_per_s
            Rate [requests/s] instead of the file's own.
        input_format
            Name of the format; ``None`` = recognised by content.
        **options
            Options of :func:`planner.workload.importing.read_workload`.

        >>> Workload.from_file("azure").categories
        ('code', 'conv')
        """
        from planner.workload.importing import read_workload

        workload, _ = read_workload(path, input_format=input_format, **options)
        return workload if arrival_rate_per_s is None else workload.with_rate(arrival_rate_per_s)

    def with_rate(self, arrival_rate_per_s: float) -> Workload:
        """The same requests at another rate [requests/s]."""
        return self._changed(arrivals=replace(self.arrivals, rate_per_s=arrival_rate_per_s))

    def with_profile(self, arrivals: Arrivals) -> Workload:
        """The same requests and rate with the daily profile and peak of another process, e.g. of a shipped service."""
        taken = ("hourly_profile", "peak_over_mean", "peak_hour_over_mean")
        own = replace(self.arrivals, **{name: getattr(arrivals, name) for name in taken})
        return self._changed(arrivals=own)

    def renamed(self, name: str, source: str | None = None, licence: str | None = None) -> Workload:
        """The same workload under another name, from another source."""
        told: dict[str, Any] = {"source": source, "licence": licence}
        record = replace(self.provenance, **{key: value for key, value in told.items() if value is not None})
        return self._changed(name=name, provenance=record)

    def columns(self, rows: Any = slice(None)) -> dict[str, Any]:
        """Columns of these rows by name, as :meth:`from_arrays` and :meth:`rebuilt` take them."""
        return {name: getattr(self, name)[rows] for name in COLUMNS}

    def rebuilt(
        self,
        columns: Mapping[str, ArrayLike],
        note: str | None = None,
        share: float = 1.0,
        exact: bool | None = None,
        **known: Any,
    ) -> Workload:
        """Other rows under the same name, categories and provenance.

        Parameters
        ----------
        columns
            The rows as from :meth:`columns`; categories are those of the same names.
        note
            What was done, for the provenance.
        share
            Part of the requests that is left [1]: arrivals are thinned by it.
        exact
            Whether every row is a request as recorded; ``None`` = as before.
        **known
            What is known of the requests: `recorded`, `intervals` and `sessions` of :meth:`from_arrays`.
        """
        before = self.provenance
        return Workload.from_arrays(
            **columns,  # type: ignore[arg-type]
            categories=self.categories,
            compressible=self.compressible,
            arrivals=self.arrivals if share == 1.0 else self.arrivals.thinned(share),
            name=self.name,
            provenance=replace(
                before,
                requests=None if before.requests is None else round(before.requests * share),
                notes=before.notes if note is None else (*before.notes, note),
                exact=before.exact if exact is None else exact,
            ),
            **known,
        )

    def _changed(self, **fields: Any) -> Workload:
        """A copy with other fields that leaves the law alone, so what is known of the law goes along."""
        result = replace(self, **fields)
        result._cache.update({k: v for k, v in self._cache.items() if k != "digest"})
        return result

    def _kept(self, key: str, make: Callable[[], T]) -> T:
        """What `make` gives, made once for this law."""
        if key not in self._cache:
            self._cache[key] = make()
        found: T = self._cache[key]
        return found

    def trace(self, deal: int = 0) -> Trace | None:
        """The requests one by one, each with its own time and lengths, for a replay.

        Parameters
        ----------
        deal
            Where requests are drawn, which of the draws: a check takes another than a prediction.

        Returns
        -------
        Trace or None
            At the trace's own rate, whatever :meth:`with_rate` said since. As recorded; or, where only the requests of every
            interval are known, drawn from the law (:meth:`planner.workload.trace.Intervals.drawn`). ``None`` where the
            source held no times, and after mixing.

        >>> Workload.from_arrays([100], [20]).trace() is None
        True
        """
        if self.recorded is not None or self.intervals is None:
            return self.recorded
        law, known = (self.input_tokens, self.output_tokens, self.weight, self.category), self.intervals
        return self._kept(f"trace {deal}", lambda: known.drawn(*law, deal))

    def fewer_rows(self, rows: int) -> Workload:
        """The same law in at most so many rows: at even levels of F, each as heavy as the others; `self` where it has no more.

        >>> w = Workload.from_arrays(np.arange(1, 1001), np.ones(1000)).fewer_rows(100)
        >>> w.rows, round(w.mean_input)
        (100, 500)
        """
        if self.rows <= rows:
            return self
        # rows of one total lie side by side, by their prompts
        order = np.lexsort((self.input_tokens, self.total_tokens))
        below = np.cumsum(self.weight[order])
        at = order[np.minimum(np.searchsorted(below, (np.arange(rows) + 0.5) / rows * below[-1]), self.rows - 1)]
        # the longest stay: memory must have room for them
        at[-1], at[-2] = order[-1], int(np.argmax(self.input_tokens))
        return self.rebuilt(
            {**self.columns(at), "weight": np.ones(rows)}, exact=False,
            recorded=self.recorded, intervals=self.intervals, sessions=self.sessions,
        )  # fmt: skip

    def with_compressible(self, compressible: Mapping[str, float | None]) -> Workload:
        """The same requests with other probabilities of compression by category [1]; unnamed categories keep theirs."""
        current = dict(zip(self.categories, self.compressible, strict=True))
        return self._changed(compressible=_compressible({**current, **compressible}, self.categories))

    # -------------------------------------------------------------------------------------------------------- identity

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.weight.size)

    @property
    def digest(self) -> str:
        """Hex digest of everything that a plan depends on: rows, categories and arrivals."""
        return self._kept("digest", self._digested)

    def _digested(self) -> str:
        """The digest, made."""
        state = hashlib.blake2b(digest_size=16)
        columns = [getattr(self, name) for name in COLUMNS]
        if (own := self.recorded) is not None:
            columns += [own.times_s, own.input_tokens, own.output_tokens, own.category]
            if (parts := own.stretches) is not None:
                columns += [parts.start_s, parts.seconds, parts.weight]
        if self.intervals is not None:
            columns += [self.intervals.counts, np.frombuffer(repr(self.intervals.width_s).encode(), dtype=np.uint8)]
        if self.sessions is not None:
            columns += self.sessions.columns().values()
        for column in columns:
            state.update(column.tobytes())
        state.update(repr((self.rows, self.categories, self.compressible, self.arrivals)).encode())
        return state.hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Workload) else NotImplemented

    def __repr__(self) -> str:
        rate = self.arrivals.rate_per_s
        return (
            f"Workload({self.name!r}, rows={self.rows}, mean_input={self.mean_input:.6g}, mean_output={self.mean_output:.6g}, "
            f"arrival_rate_per_s={'None' if rate is None else format(rate, '.6g')})"
        )

    def to_dict(self, rows: bool = False) -> dict[str, Any]:
        """JSON-ready summary; with `rows` also the distribution itself."""
        result: dict[str, Any] = {
            "schema_version": 1,
            "name": self.name,
            "digest": self.digest,
            "rows": self.rows,
            "mean_input_tokens": self.mean_input,
            "mean_output_tokens": self.mean_output,
            "mean_total_tokens": self.mean_total,
            "categories": [
                {"name": name, "share": float(share), "compressible": probability}
                for name, share, probability in zip(
                    self.categories, self.category_shares(), self.compressible, strict=True
                )
            ],
            "arrivals": self.arrivals.to_dict(),
            "provenance": {"name": self.name, **self.provenance.to_dict()},
        }
        if self.sessions is not None:
            result["sessions"] = self.sessions.to_dict()
        if rows:
            result["distribution"] = {name: getattr(self, name).tolist() for name in COLUMNS}
        return result

    # --------------------------------------------------------------------------------------------------------- moments

    @property
    def mean_input(self) -> float:
        """Mean input [tokens]."""
        return float(self.weight @ self.input_tokens)

    @property
    def mean_output(self) -> float:
        """Mean output [tokens]."""
        return float(self.weight @ self.output_tokens)

    @property
    def mean_total(self) -> float:
        """Mean input + output [tokens]."""
        return self.mean_input + self.mean_output

    @property
    def max_total(self) -> float:
        """Largest total a request can have [tokens]."""
        return float(self.total_tokens[-1])

    def moment(self, of: str = "total", order: int = 1) -> float:
        """Raw moment E[X^order] of the input, output or total [tokens^order]."""
        return float(self.weight @ self._column(of) ** order)

    def std(self, of: str = "total") -> float:
        """Standard deviation of the input, output or total [tokens]."""
        values = self._column(of)
        mean = float(self.weight @ values)
        return math.sqrt(max(float(self.weight @ (values - mean) ** 2), 0.0))

    @property
    def correlation(self) -> float:
        """Pearson correlation of input and output [1]; 0 when one of them does not vary."""
        spread = self.std("input") * self.std("output")
        if spread == 0.0:
            return 0.0
        covariance = self.weight @ ((self.input_tokens - self.mean_input) * (self.output_tokens - self.mean_output))
        return float(covariance) / spread

    def category_shares(self) -> Floats:
        """Share of requests by category [1], shape (categories,)."""
        shares: Floats = np.bincount(self.category, self.weight, minlength=len(self.categories)).astype(np.float64)
        return shares

    def iterations(self, chunk: int) -> tuple[float, float]:
        r"""Mean and squared coefficient of variation of the iterations of a request, :math:`\lceil L_{in}/C \rceil + L_{out}`.

        Parameters
        ----------
        chunk
            Prefill chunk C [tokens], > 0.

        Returns
        -------
        tuple of float
            E[S] [iterations], C_s^2 [1].

        >>> Workload.from_arrays([512, 513], [10, 9]).iterations(512)
        (11.0, 0.0)
        """
        if not chunk > 0:
            raise InputError(f"chunk must be positive, got {chunk!r}")
        steps = np.ceil(self.input_tokens / chunk) + self.output_tokens
        mean = float(self.weight @ steps)
        if mean == 0.0:
            return 0.0, 0.0
        return mean, max(float(self.weight @ (steps - mean) ** 2), 0.0) / mean**2

    # ---------------------------------------------------------------------------------------------------- distribution

    def _column(self, of: str) -> Floats:
        if of == "total":
            return self.input_tokens + self.output_tokens
        if of not in ("input", "output"):
            raise InputError(f"'of' must be total, input or output, got {of!r}")
        return self.input_tokens if of == "input" else self.output_tokens

    def _law(self, of: str) -> PiecewiseLaw:
        """Law of the total, or of the input: a bin spreads its total, and the input in proportion, evenly over its width."""
        if of == "total":
            return self._kept(of, lambda: PiecewiseLaw.of(self.lower_tokens, self.total_tokens, self.weight))

        def of_inputs() -> PiecewiseLaw:
            # the spread ends at the nearer end of the bin, and the input has its part in it
            point = self.input_tokens + self.output_tokens
            half = np.minimum(self.total_tokens - point, point - self.lower_tokens)
            half = np.maximum(half, 0.0) * self.input_tokens / np.maximum(point, 1e-300)
            half = np.where(half < 0.25, 0.0, half)
            return PiecewiseLaw.of(self.input_tokens - half, self.input_tokens + half, self.weight)

        return self._kept(of, of_inputs)

    def cdf(self, tokens: ArrayLike) -> Any:
        """F(B) = P(total <= B), exact at every breakpoint, linear inside a bin.

        Parameters
        ----------
        tokens
            B [tokens], any shape.

        Returns
        -------
        float or ndarray
            Probability [1], shape of `tokens`.
        """
        return self._law("total").cdf(tokens)

    def quantile(self, q: float, of: str = "total") -> float:
        """Smallest length that a share `q` of the requests does not exceed.

        Recorded requests: linear between order statistics, as ``numpy.quantile`` does. A compact file: the quantiles it states;
        otherwise the total inverts :meth:`cdf`, the input spreads as its part of the total, the output interpolates.

        Parameters
        ----------
        q
            Share [1], 0..1.
        of
            ``"total"``, ``"input"`` or ``"output"``.

        Returns
        -------
        float
            Length [tokens].
        """
        if not 0.0 <= q <= 1.0:
            raise InputError(f"quantile must lie in 0..1, got {q!r}")
        if self.provenance.exact and self.provenance.requests:
            values, cumulative = self.sorted_column(of)
            count = self.provenance.requests
            position = q * (count - 1)
            # ranks of the two order statistics around the position, in requests; half a request guards the rounding
            ranks = np.array([math.floor(position), min(math.floor(position) + 1, count - 1)]) + 0.5
            low, high = values[np.minimum(np.searchsorted(cumulative, ranks / count), values.size - 1)]
            return float(low + (position - math.floor(position)) * (high - low))
        stated = self.stated.get(of, {})
        if q in stated:
            return stated[q]
        if of in ("total", "input"):
            return self._law(of).quantile(q)
        if stated:
            return float(np.interp(q, list(stated), list(stated.values())))
        values, cumulative = self.sorted_column(of)
        middle = cumulative - 0.5 * np.diff(cumulative, prepend=0.0)
        return float(np.interp(q, middle, values))

    def sorted_column(self, of: str) -> tuple[Floats, Floats]:
        """Points of the input, output or total in increasing order [tokens], and the weight up to each [1]; those of recorded
        requests are distinct."""

        def made() -> tuple[Floats, Floats]:
            values = self._column(of)
            if self.provenance.exact:
                points, mass = summed(values, self.weight)
            else:
                order = np.argsort(values, kind="stable")
                points, mass = values[order], self.weight[order]
            cumulative = np.cumsum(mass)
            return points, cumulative / cumulative[-1]

        return self._kept(f"sorted:{of}", made)

    def breakpoints(self) -> Floats:
        """Totals at which F is known without interpolation [tokens], increasing."""
        edges = np.unique(np.concatenate([self.lower_tokens, self.total_tokens]))
        return edges[edges > 0.0]

    def band_fractions(self, boundary: float, gamma: float) -> dict[str, float]:
        """Share of all requests with boundary < total <= gamma boundary, by category [1]."""
        ends = np.array([boundary, gamma * boundary])
        result = {}
        for k, name in enumerate(self.categories):
            below = self._category_law(k).cdf(ends)
            result[name] = float(below[1] - below[0])
        return result

    def _category_law(self, index: int) -> PiecewiseLaw:
        """Law of the total of one category, with its share as its mass."""

        def made() -> PiecewiseLaw:
            own = self.category == index
            totals = self.total_tokens[own]
            lowers = totals if self.lower_tokens is self.total_tokens else self.lower_tokens[own]
            return PiecewiseLaw.of(lowers, totals, self.weight[own])

        return self._kept(f"category:{index}", made)


def _wrong(columns: Mapping[str, np.ndarray], names: int, name: str) -> list[str]:
    """What keeps columns from being a workload with so many names of categories."""
    rows = columns["input_tokens"].size
    problems = [] if rows else [f"{name}: a workload needs at least one request"]
    for label, column in columns.items():
        if column.size != rows:
            problems.append(f"{name}: {label} has {column.size} values, input_tokens {rows}")
        # of millions of rows two numbers tell; NaN is neither
        elif rows and not (column.min() >= 0 and column.max() < np.inf):
            problems.append(f"{name}: {label} must be finite and not negative")
    index = columns["category"]
    if index.size and int(index.max()) >= names:
        problems.append(f"{name}: category index {int(index.max())} has no name")
    if not problems and not columns["weight"].sum() > 0.0:
        problems.append(f"{name}: the weights sum to zero")
    if not problems and np.any(columns["lower_tokens"] > columns["total_tokens"]):
        problems.append(f"{name}: lower_tokens must not exceed total_tokens")
    return problems


def _category_index(
    category: ArrayLike | Sequence[str] | None, categories: Sequence[str] | None, rows: int
) -> tuple[Ints, tuple[str, ...]]:
    if category is None:
        return np.zeros(rows, dtype=np.int64), tuple(categories) if categories else ("",)
    values = np.asarray(category).ravel()
    if values.dtype.kind in "iuf" and categories is not None:
        return values.astype(np.int64), tuple(categories)
    names, index = ranked(values.astype(str))
    return index.ravel().astype(np.int64), tuple(str(n) for n in names) or ("",)


def _compressible(
    given: Mapping[str, float | None] | Sequence[float | None] | None, categories: tuple[str, ...]
) -> tuple[float | None, ...]:
    """A probability per category; unknown names are refused."""
    if given is None:
        return (None,) * len(categories)
    if isinstance(given, Mapping):
        for name in given:
            if name not in categories:
                known = (c or "(none)" for c in categories)
                raise unknown(f"compressible: no category {name!r}", name, known, "Categories of this workload")
        given = [given.get(name) for name in categories]
    result = tuple(given)
    if len(result) != len(categories):
        raise InputError(f"compressible needs one value per category ({len(categories)}), got {len(result)}")
    for name, value in zip(categories, result, strict=True):
        if value is not None and not 0.0 <= value <= 1.0:
            raise InputError(f"compressible: {name or 'category'}={value!r} is not a probability")
    return result
