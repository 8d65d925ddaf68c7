"""What a comparison says: pairs of a prediction and a measurement, a row of figures per metric, and documents that show them."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from planner.iteration.roofline import prior_band
from planner.machine.hardware import GpuSpec, ModelSpec

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))

Cells = tuple[str, str, str, str, str, str]
"""A line of the index: part, against what, cases, typical error, worst optimistic one, and where that is."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a script writes into a part of ``docs/accuracy.md``, or into the page of its own that measured systems have.

    Parameters
    ----------
    blocks
        Name of a mark -> what stands between ``<!-- part name -->`` (``<!-- name -->`` in a page of its own), ``<!-- end -->``.
    index
        Its lines in ``docs/accuracy.md``.
    """

    blocks: Mapping[str, str]
    index: Sequence[Cells]

    def write(self, name: str) -> None:
        """Bring the page and its lines in the index up to date."""
        index, own_page = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "accuracy" / f"{name}.md"
        alone = own_page.exists()
        page, link = (own_page, f"](accuracy/{name}.md)") if alone else (index, f"](#{name})")
        text = page.read_text(encoding="utf-8")
        for mark, block in self.blocks.items():
            text = renewed(text, mark if alone else f"{name} {mark}", block)
        page.write_text(text, encoding="utf-8")
        lines = index.read_text(encoding="utf-8").splitlines()
        own = [number for number, line in enumerate(lines) if line.startswith("| ") and link in line]
        lines[own[0] : own[-1] + 1] = [f"| [{part}{link} | {' | '.join(rest)} |" for part, *rest in self.index]
        index.write_text("\n".join(lines) + "\n", encoding="utf-8")


def renewed(text: str, mark: str, block: str) -> str:
    """A document with what stands between ``<!-- mark -->`` and ``<!-- end -->`` made anew.

    >>> renewed("a\\n<!-- m -->\\nold\\n<!-- end -->\\nb", "m", "new")
    'a\\n<!-- m -->\\nnew\\n<!-- end -->\\nb'
    """
    begin, end = f"<!-- {mark} -->\n", "\n<!-- end -->"
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise LookupError(f"no <!-- {mark} --> with its end")
    return before + begin + block.strip() + end + rest.partition(end)[2]


def write_csv(name: str, rows: Iterable[Sequence[object]]) -> None:
    """A table of ``docs/data/``."""
    with (ROOT / "docs" / "data" / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A table of Markdown whose first `left` columns are words, the others numbers."""
    rule = [":--" if number < left else "--:" for number in range(len(head))]
    lines = (" | ".join(map(str, cells)) for cells in (head, rule, *rows))
    return "\n".join(f"| {line} |" for line in lines)


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

    @property
    def counts(self) -> bool:
        """Whether there are a measurement and a prediction."""
        return math.isfinite(self.predicted) and 0.0 < self.measured < math.inf


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


def _beside(name: str) -> list[dict[str, str]]:
    """Rows of a table that lies beside this file."""
    return list(csv.DictReader(Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()))


ONE_BY_ONE = 60
"""Systems of a metric up to which a table names each."""


def public(rows: Sequence[Row]) -> Page:
    """The page of measured systems: figures of every metric; the first one of a family stands in the index."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    figures = markdown(
        ("family", "metric", "n", "median", "mean", "p90", "worst", "signed", "covered"),
        (
            (r.family, r.metric, r.n, *map(percent, (r.median, r.mean, r.p90, r.worst)), f"{r.signed:+.1%}", percent(r.covered))
            for r in rows
        ),
        left=2,
    )  # fmt: skip
    told = {row["family"]: row["what"] for row in _beside("families.csv")}
    index: dict[str, Cells] = {}
    for r in rows:
        typical = f"{r.metric}: median {percent(r.median)}, p90 {percent(r.p90)}"
        worst = f"{percent(r.worst)} (either side)"
        index.setdefault(
            r.family, (f"`{r.family}`: {told[r.family]}", "measured systems", str(r.n), typical, worst, "-")
        )
    return Page({"figures": figures}, [*index.values()])


def missed(rows: Sequence[Row]) -> str:
    """Of the bars in ``bars.csv`` those that the figures miss, with the reason and what was tried, as a table."""
    known = {(r.family, r.metric): r for r in rows}
    bars = _beside("bars.csv")
    found = [(bar, float(getattr(known[bar["family"], bar["metric"]], bar["figure"]))) for bar in bars]
    short = [
        (f"{bar['family']} {bar['metric']}, {bar['figure']}", bar["why"], f"{float(bar['bar']):.1%}", f"{value:.1%}")
        for bar, value in found if value > float(bar["bar"])
    ]  # fmt: skip
    kept = f"{len(bars) - len(short)} of {len(bars)} bars are kept."
    return kept + "\n\n" + markdown(("figure", "why, and what was tried", "bar", "is"), short, left=2)


def systems(pairs: Sequence[Pair], rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Median error of each system by metric; those of metrics with very many systems are left out."""
    yield "family", "metric", "system", "error"
    for row in rows:
        own: dict[str, list[float]] = {}
        for pair in pairs:
            if (pair.family, pair.metric) == (row.family, row.metric):
                own.setdefault(pair.cell or pair.system, []).append(pair.error)
        if len(own) <= ONE_BY_ONE and sum(map(len, own.values())) > 1:
            yield from ((row.family, row.metric, name, f"{np.median(e):.3f}") for name, e in own.items())
