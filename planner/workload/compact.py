"""A trace of any length as a few hundred rows: bins of the total, Gauss nodes of the output in every bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from planner.cores import beside
from planner.errors import InputError
from planner.record import Record
from planner.workload.law import distinct, summed
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROUND_BOUNDARIES = tuple(sorted({float(base << k) for base in (64, 96) for k in range(12)} | {float(1 << 17)}))
"""Totals at which people put boundaries: 64, 96, 128, 192, ... 131072 [tokens]; F is exact there."""

STATED_QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Quantiles of the marginals that a compact file carries along [1]."""

CHUNKS = (256, 512, 1024, 2048, 8192)
"""Prefill chunks at which the error of a compaction is stated [tokens]."""

_MOST_BINS = 100_000
_MIN_POOL = 0.005  # a pool with a smaller share of the requests is left out of the stated error
_P99_WIDTH = 5e-4  # shares nearer to 0.99 than this count as 0.99, however many requests there are
_MIN_FOR_P99 = 1000  # requests of a pool below which its own 99th percentile is noise
_TAIL_POINTS = 36
_GAP = 0.25  # a bin whose lowest total lies this share of its width above its edge starts there


def _edges(workload: Workload, bins: int) -> Floats:
    """Upper ends of the bins: quantiles of the total, a log-spaced tail, round boundaries, heavy atoms on their own."""
    totals = workload.total_tokens
    cumulative = np.cumsum(workload.weight)
    at = np.searchsorted(cumulative, np.arange(1, bins) / bins - 1e-12)
    # the last 2% hold few requests and most of the KV memory: shares of them halve a few times more
    tail = 1.0 - 0.02 * np.geomspace(1.0, 1e-3, _TAIL_POINTS)
    at = np.concatenate([at, np.searchsorted(cumulative, tail)])
    chosen = totals[np.minimum(at, totals.size - 1)]
    lowest = float(workload.lower_tokens.min())
    rounds = np.array([b for b in ROUND_BOUNDARIES if lowest < b < totals[-1]])
    atoms = slice(None) if workload.lower_tokens is totals else workload.lower_tokens == totals
    alone: Floats = np.zeros(0)
    if totals[atoms].size:
        places, mass = summed(totals[atoms], workload.weight[atoms])
        heavy = places[mass > 0.5 / bins]
        # totals are whole numbers: a bin of width one is an atom
        alone = np.concatenate([heavy, heavy - 1.0])
        least = places[0] - 1.0
    else:
        least = 0.0
    start = min(least, lowest)
    edges = np.unique(np.concatenate([[max(start, 0.0)], chosen, rounds, alone, [totals[-1]]]))
    kept: Floats = edges[edges >= max(start, 0.0)]
    return kept


def pieces(workload: Workload, edges: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """(row, bin, weight) of every row cut at the edges; bin k is (edges[k], edges[k + 1]]."""
    if (ends := _ends(workload, edges)) is not None:
        return np.arange(workload.rows), np.repeat(np.arange(edges.size - 1), np.diff(ends)), workload.weight
    atom = workload.lower_tokens == workload.total_tokens
    first = np.searchsorted(edges, workload.lower_tokens, side="right") - 1
    last = np.searchsorted(edges, workload.total_tokens, side="left") - 1
    first = np.clip(np.where(atom, last, first), 0, edges.size - 2)
    last = np.clip(last, first, edges.size - 2)
    count = last - first + 1
    row = np.repeat(np.arange(workload.rows), count)
    offset = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
    place = first[row] + offset
    width = np.where(atom, 1.0, workload.total_tokens - workload.lower_tokens)[row]
    overlap = np.minimum(workload.total_tokens[row], edges[place + 1]) - np.maximum(
        workload.lower_tokens[row], edges[place]
    )
    share = np.where(atom[row], 1.0, np.clip(overlap / width, 0.0, 1.0))
    weight = workload.weight[row] * share
    keep = weight > 0.0
    return row[keep], place[keep], weight[keep]


def _ends(workload: Workload, edges: Floats) -> NDArray[np.int64] | None:
    """Where the bins begin and the last one ends among the rows, whose totals are in order; ``None`` where rows are cut."""
    totals, lowers = workload.total_tokens, workload.lower_tokens
    if not (lowers is totals or np.array_equal(lowers, totals)):
        return None
    inner = np.searchsorted(totals, edges[1:-1], side="right")
    return np.concatenate([[0], inner, [workload.rows]]).astype(np.int64)


_AT_ONCE = 1 << 17
"""Rows whose columns are made at a time, about: they stay in the processor's cache, and in bounded memory."""


def _stretches(
    workload: Workload, edges: Floats
) -> Iterator[tuple[slice | NDArray[np.int64], NDArray[np.int64], Floats]]:
    """(rows, bin, weight) as from :func:`pieces`, some whole bins at a time where no row is cut, in order of their bins."""
    ends = _ends(workload, edges)
    if ends is None:
        yield pieces(workload, edges)
        return
    bins, size = np.arange(edges.size - 1), np.diff(ends)
    # a stretch ends with the bin in which it has rows enough
    for part in np.split(bins, np.flatnonzero(np.diff(ends[1:] // _AT_ONCE)) + 1):
        row = slice(int(ends[part[0]]), int(ends[part[-1] + 1]))
        if row.stop > row.start:
            yield row, np.repeat(part, size[part]), workload.weight[row]


def _lowered(workload: Workload, row: slice | NDArray[np.int64], place: NDArray[np.int64], lowest: Floats) -> None:
    """Note the lowest total of every bin, less what a count or the row's own range leaves open, in `lowest`."""
    totals, lowers = workload.total_tokens[row], workload.lower_tokens[row]
    least = np.where(lowers == totals, totals - 1.0, lowers)
    # rows of a bin lie together for the most part: one number of each run is looked at
    first = np.flatnonzero(np.diff(place, prepend=-1))
    np.minimum.at(lowest, place[first], np.minimum.reduceat(least, first))


def _tightened(edges: Floats, lowest: Floats) -> Floats:
    """Lower end of every bin, raised to just below its lowest total where that leaves a wide gap out."""
    start, width = edges[:-1], np.diff(edges)
    return np.where(np.isfinite(lowest) & (lowest - start >= _GAP * width), lowest, start)


def gauss_nodes(values: Floats, weight: Floats, nodes: int) -> tuple[Floats, Floats]:
    r"""Gauss quadrature of a discrete law: `nodes` points that share its moments up to order :math:`2m - 1`.

    The Jacobi matrix comes from the Lanczos process on diag(values) with full re-orthogonalisation; its eigenvalues are the
    nodes, the squared first components of its eigenvectors the weights (Golub and Welsch).

    Parameters
    ----------
    values, weight
        The law; weights of any positive scale.
    nodes
        m >= 1.

    Returns
    -------
    tuple of ndarray
        Nodes, increasing, and weights with the sum of `weight`; fewer than m where the law has fewer points.

    References
    ----------
    G. H. Golub, J. H. Welsch, Calculation of Gauss quadrature rules, Math. Comp. 23 (1969) 221-230.

    >>> x, w = gauss_nodes(np.array([0.0, 1.0, 2.0, 3.0]), np.ones(4), 2)
    >>> round(float(w @ x**3), 9), round(float(w @ x**2), 9)
    (36.0, 14.0)
    """
    total = float(weight.sum())
    low, high = float(values.min()), float(values.max())
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    if half == 0.0 or nodes == 1:
        return np.array([float(weight @ values) / total]), np.array([total])
    x = (values - middle) / half
    basis = np.empty((nodes, values.size))
    basis[0] = np.sqrt(weight / total)
    diagonal: list[float] = []
    off: list[float] = []
    for k in range(nodes):
        step = x * basis[k]
        diagonal.append(float(basis[k] @ step))
        if k == nodes - 1:
            break
        known = basis[: k + 1]
        for _ in range(2):  # twice is enough (Kahan)
            step -= (known @ step) @ known
        norm = float(np.sqrt(step @ step))
        if norm < 1e-10:
            break
        off.append(norm)
        basis[k + 1] = step / norm
    jacobi = np.diag(diagonal) + np.diag(off[: len(diagonal) - 1], 1) + np.diag(off[: len(diagonal) - 1], -1)
    places, vectors = np.linalg.eigh(jacobi)
    return np.clip(middle + half * places, low, high), vectors[0] ** 2 * total


@dataclass(frozen=True, slots=True)
class _GroupLaws:
    """The outputs of every group (bin and category) with what comes with them: one entry per group and distinct output.

    A trace of millions has a few thousand distinct outputs in a bin; its nodes follow from their law and the mean input
    that comes with each.
    """

    group: NDArray[np.int64]  # of every group, its number
    start: NDArray[np.int64]  # where its entries start
    least_input: Floats
    totals: list[tuple[float, float]]  # least and largest input + output
    output: Floats
    weight: Floats
    inputs: Floats  # mean input


def _outputs_of_groups(
    workload: Workload, row: slice | NDArray[np.int64], weight: Floats, group: NDArray[np.int64]
) -> _GroupLaws:
    """Sum the rows of each group that have the same output."""
    inputs, outputs = workload.input_tokens[row], workload.output_tokens[row]
    if np.any(np.diff(group) < 0):
        # numbers that need no more than two bytes are sorted digit by digit
        order = np.argsort(group.astype(np.min_scalar_type(int(group.max()))), kind="stable")
        inputs, outputs, weight, group = inputs[order], outputs[order], weight[order], group[order]
    ends = np.flatnonzero(np.diff(group, prepend=-1))
    least = np.minimum.reduceat(inputs, ends)
    totals = inputs + outputs
    spans = list(
        zip(np.minimum.reduceat(totals, ends).tolist(), np.maximum.reduceat(totals, ends).tolist(), strict=True)
    )
    values, place = distinct(outputs)
    least_group = int(group[0])
    place += (group - least_group) * values.size
    keys, entry = distinct(place)
    mass = np.bincount(entry, weight).astype(np.float64)
    mean = np.bincount(entry, weight * inputs) / mass
    keys = keys.astype(np.int64)
    of = keys // values.size
    start = np.flatnonzero(np.diff(of, prepend=-1))
    return _GroupLaws(group[ends], start, least, spans, values[keys % values.size], mass, mean)


def _bin_points(
    inputs: Floats, outputs: Floats, weight: Floats, nodes: int, least_input: float, span: tuple[float, float]
) -> tuple[Floats, Floats, Floats]:
    r"""Points of one bin and category: Gauss nodes of the output, inputs that keep :math:`\mathrm E[I O^k]`, k < m.

    `inputs` is the mean input of each distinct output; `least_input` and `span` are the least input and the range of the
    totals of its requests.
    """
    if weight.size <= nodes:
        return inputs, outputs, weight
    places, masses = gauss_nodes(outputs, weight, nodes)
    keep = masses > 1e-9 * weight.sum()
    places, masses = places[keep], masses[keep] * (weight.sum() / masses[keep].sum())
    total = inputs + outputs
    if places.size == 1:
        level = np.array([float(weight @ total) / float(weight.sum())])
    else:
        # Lagrange polynomials on the nodes, at every request, l_j(O_r): products of the nodes before each and of those after
        apart = outputs - places[:, None]
        lagrange = np.ones((places.size, outputs.size))
        np.cumprod(apart[:-1], axis=0, out=lagrange[1:])
        lagrange[:-1] *= np.cumprod(apart[:0:-1], axis=0)[::-1]
        between = places[:, None] - places
        np.fill_diagonal(between, 1.0)
        level = (lagrange @ (weight * total)) / between.prod(axis=1) / masses
        level = np.clip(level, *span)
        level += float(weight @ total - masses @ level) / float(masses.sum())
    # a prompt of exactly one chunk must not become two by a rounding error
    return np.round(np.clip(level - places, least_input, None), 7), np.round(places, 9), masses


def compact(workload: Workload, bins: int = 200, nodes: int = 3) -> Workload:
    """The same distribution in a few hundred rows.

    Bins of the total (quantiles, a log-spaced tail, round boundaries) keep F exactly at their ends; in every bin and
    category `nodes` Gauss nodes of the output keep its moments up to order 2m - 1, and E[input output^k] for k < m.

    Parameters
    ----------
    workload
        What to compact.
    bins
        Quantile bins, > 0; the result has up to about (bins + 60) x nodes rows per category.
    nodes
        Gauss nodes per bin and category, > 0.

    Returns
    -------
    Workload
        Compact, named and attributed as the original; the original itself when it has no more rows.

    >>> w = Workload.from_arrays(np.arange(1, 1001), np.tile([10, 200], 500))
    >>> c = compact(w, bins=50)
    >>> c.rows < 400, round(c.mean_total / w.mean_total, 9)
    (True, 1.0)
    """
    if not (1 <= bins <= _MOST_BINS and nodes >= 1):
        raise InputError(f"compaction needs one to {_MOST_BINS:,} bins and at least one node, got {bins} and {nodes}")
    edges = _edges(workload, bins)
    columns: list[tuple[Floats, Floats, Floats]] = []
    groups: list[int] = []
    lowest = np.full(edges.size - 1, np.inf)
    for row, place, weight in _stretches(workload, edges):
        _lowered(workload, row, place, lowest)
        law = _outputs_of_groups(workload, row, weight, place * len(workload.categories) + workload.category[row])
        for k, (a, b) in enumerate(zip(law.start, np.append(law.start[1:], law.output.size), strict=True)):
            columns.append(
                _bin_points(law.inputs[a:b], law.output[a:b], law.weight[a:b], nodes, law.least_input[k], law.totals[k])
            )
        groups += law.group.tolist()
    sizes = [points[0].size for points in columns]
    if sum(sizes) >= workload.rows:
        return workload
    key = np.repeat(np.array(groups), sizes)
    bin_of = key // len(workload.categories)
    lower = _tightened(edges, lowest)
    result = workload.rebuilt(
        np.concatenate([c[0] for c in columns]),
        np.concatenate([c[1] for c in columns]),
        weight=np.concatenate([c[2] for c in columns]),
        total_tokens=edges[bin_of + 1],
        lower_tokens=lower[bin_of],
        category=key % len(workload.categories),
        exact=False,
        path=workload.path_of_traffic(),
        sessions=workload.sessions,
    )
    stated = {of: {q: workload.quantile(q, of) for q in STATED_QUANTILES} for of in ("input", "output", "total")}
    return result.with_stated_quantiles(stated)


@dataclass(frozen=True, slots=True)
class CompactionError(Record):
    """Largest relative error of a compaction on what plans depend on, over all pools of at least 0.5% of the requests.

    Parameters
    ----------
    mean_iterations, scv_iterations
        Of E[S] and C_s^2 over chunks of 256 to 8,192 tokens, for the whole and both sides of every round boundary [1].
    cdf, band
        Absolute, of F at any total and of the share in any band by category [1].
    prefill_p99
        Of the 99th percentile of the input (at least the smallest chunk), beyond one standard error of the trace's own
        (at least the range 0.9895 to 0.9905 of its quantiles), in pools of at least 1,000 requests [1].
    rows
        Rows of the compact workload.
    """

    mean_iterations: float
    scv_iterations: float
    cdf: float
    band: float
    prefill_p99: float
    rows: int

    written: ClassVar[tuple[str, ...]] = (
        "mean_iterations", "scv_iterations", "cdf", "band", "prefill_p99", "rows", "worst",
    )  # fmt: skip

    @property
    def worst(self) -> float:
        """The largest of them [1]."""
        return max(self.mean_iterations, self.scv_iterations, self.cdf, self.band, self.prefill_p99)


def compaction_error(original: Workload, compacted: Workload) -> CompactionError:
    """Compare a compaction with what it was made from; see :class:`CompactionError` for what is compared."""
    return _compare(_Reference.of(original), compacted)


@dataclass(frozen=True, slots=True)
class _Reference:
    """What a compaction is measured by: pools (low, high, moments by chunk, bracket of the p99 input or None), F, bands."""

    pools: list[tuple[float, float, list[tuple[float, float]], tuple[float, float] | None]]
    totals: Floats
    cdf: Floats
    bands: dict[tuple[float, float], dict[str, float]]

    @classmethod
    def of(cls, workload: Workload) -> _Reference:
        """What the errors of a compacted workload are measured against."""
        requests = workload.provenance.requests or 1e9
        # sums over the slices between boundaries: those of every pool are sums of them
        lowest = float(workload.lower_tokens.min())
        inner = [b for b in ROUND_BOUNDARIES if lowest <= b < workload.max_total]
        edges = np.array([min(lowest, 0.0) - 1.0, *inner, workload.max_total])
        inputs, rank = distinct(workload.input_tokens)
        # by slice and input: its weight, and the weighted outputs and their squares; chunks depend on the input alone
        by_input, once, twice = (np.zeros((edges.size - 1, inputs.size)) for _ in range(3))
        for row, place, weight in _stretches(workload, edges):
            output = workload.output_tokens[row]
            first, last = int(place.min()), int(place.max()) + 1
            place = (place - first) * inputs.size + rank[row]
            for sums_of in (by_input, once, twice):
                found = np.bincount(place, weight, (last - first) * inputs.size)
                sums_of[first:last] = found.reshape(last - first, inputs.size)
                weight = weight * output
        del rank
        share = by_input.sum(axis=1)
        sums = []
        for chunk in CHUNKS:
            chunks = np.ceil(inputs / chunk)
            linear = by_input @ chunks + once.sum(axis=1)
            sums.append((linear, by_input @ chunks**2 + 2.0 * (once @ chunks) + twice.sum(axis=1)))
        pools = []
        for low, high in _pools(workload):
            part = slice(max(int(np.searchsorted(edges, low, "right")) - 1, 0), int(np.searchsorted(edges, high)))
            of_pool = float(share[part].sum())
            moments = []
            for first, second in sums:
                mean = float(first[part].sum()) / of_pool
                square = float(second[part].sum()) / of_pool
                moments.append((mean, max(square / mean**2 - 1.0, 0.0) if mean > 0.0 else 0.0))
            bracket = None
            if requests * of_pool >= _MIN_FOR_P99:
                # one standard error of the trace's own percentile: beyond it is error, within it noise
                width = max(np.sqrt(0.99 * 0.01 / (requests * of_pool)), _P99_WIDTH)
                below_input = np.cumsum(by_input[part].sum(axis=0)) / of_pool
                at = np.searchsorted(below_input, [0.99 - width, min(0.99 + width, 1.0)])
                below, above = inputs[np.minimum(at, inputs.size - 1)]
                bracket = float(below), float(above)
            pools.append((low, high, moments, bracket))
        totals = workload.total_tokens[np.diff(workload.total_tokens, prepend=-1.0) > 0.0]
        bands = {(b, g): workload.band_fractions(b, g) for b in ROUND_BOUNDARIES for g in (1.1, 1.5, 2.0)}
        return cls(pools, totals, np.asarray(workload.cdf(totals)), bands)


def _compare(reference: _Reference, compacted: Workload) -> CompactionError:
    """Largest errors over the pools of the reference."""
    mean = scv = band = p99 = 0.0
    for low, high, moments, bracket in reference.pools:
        part, _ = compacted.between(low, high)
        for chunk, (m1, c1) in zip(CHUNKS, moments, strict=True):
            m2, c2 = part.iterations(chunk)
            mean = max(mean, abs(m2 / m1 - 1.0) if m1 > 0.0 else 0.0)
            # a law that hardly varies has no scv to speak of; its error counts in units of one hundredth
            scv = max(scv, abs(c2 - c1) / max(c1, 0.01))
        if bracket is not None:
            # a prompt shorter than the smallest chunk takes one iteration however long it is
            least, found, most = (max(x, CHUNKS[0]) for x in (bracket[0], part.quantile(0.99, "input"), bracket[1]))
            p99 = max(p99, least / found - 1.0, found / most - 1.0)
    # F of a trace is a step function: compare on both sides of every step
    after = np.abs(compacted.cdf(reference.totals) - reference.cdf)
    before = np.abs(compacted.cdf(np.nextafter(reference.totals[1:], 0.0) - 1.0 + 1e-9) - reference.cdf[:-1])
    whole = np.diff(reference.totals) > 1.0
    cdf = float(max(after.max(), before[whole].max(initial=0.0)))
    for (boundary, gamma), one in reference.bands.items():
        two = compacted.band_fractions(boundary, gamma)
        band = max(band, *(abs(one[name] - two[name]) for name in one))
    return CompactionError(mean, scv, cdf, band, p99, compacted.rows)


def _pools(workload: Workload) -> list[tuple[float, float]]:
    """Ranges of total length whose laws are compared: those with enough requests."""
    requests = workload.provenance.requests or 1e9
    least = max(_MIN_POOL, 20.0 / requests)
    pools = [(0.0, np.inf)]
    for boundary in ROUND_BOUNDARIES:
        share = workload.cdf(boundary)
        if share >= least:
            pools.append((0.0, boundary))
        if 1.0 - share >= least:
            pools.append((boundary, np.inf))
    return pools


# by growing size; few bins with many nodes and many bins with few suit different traces
MANY_ROWS = 200_000
"""Distinct requests above which a trace is compacted whatever the error: as many rows help nobody."""

ENOUGH = (200, 8)
"""Bins and nodes that keep all but some 0.3% of what plans depend on, of any trace looked at."""

_LADDER = ((60, 3), (100, 3), (200, 3), (60, 8), (100, 8), (100, 12), (200, 8), (300, 8), (400, 8), (800, 8), (2000, 8))


def compact_within(workload: Workload, max_error: float) -> tuple[Workload, CompactionError]:
    """The smallest compaction on a ladder of sizes whose largest error is at most `max_error`.

    Parameters
    ----------
    workload
        What to compact.
    max_error
        Bound of :attr:`CompactionError.worst` [1], > 0.

    Returns
    -------
    tuple
        The compact workload and the error reached; when none is good enough the original with error 0, or of more than
        200,000 distinct requests the best there is.

    >>> w = Workload.from_arrays(np.arange(1, 20001), np.tile([10, 200, 30, 40], 5000))
    >>> c, e = compact_within(w, 0.02)
    >>> e.worst <= 0.02, c.rows < w.rows
    (True, True)
    """
    if not max_error > 0.0:
        raise InputError(f"max_error must be positive, got {max_error!r}")
    many = workload.rows > MANY_ROWS
    found: list[tuple[Workload, CompactionError]] = []
    with beside(1 if many else 0) as call:
        reference = call(_Reference.of, workload)
        for bins, nodes in _LADDER[3:] if many else _LADDER:
            candidate = compact(workload, bins, nodes)
            if candidate is workload:
                break
            found.append((candidate, _compare(reference(), candidate)))
            if found[-1][1].worst <= max_error:
                return found[-1]
    if many and found:
        return min(found, key=lambda pair: pair[1].worst)
    return workload, CompactionError(0.0, 0.0, 0.0, 0.0, 0.0, workload.rows)
