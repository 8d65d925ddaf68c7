"""All papers by the names users write, and what a comparison looks like: one finding per printed number and reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from planner.errors import refuse_unknown
from planner.shared.arguments import told_types
from planner.shared.documents import load_document
from planner.shared.record import Record

Row = tuple[str, str, str, str, str, str]
"""Quantity, reading, printed, ours, verdict, reason: a :class:`Finding` before it knows its paper."""

SAME, SAME_UNDER, DIFFERS = "same", "same under unprinted assumption", "differs because"
NEEDS_A_GPU, NEEDS_DATA = "needs a GPU", "needs data that is not public"

VERDICTS: Mapping[str, str] = {
    SAME: "equal at the printed precision; of a simulation, inside its 95% interval",
    SAME_UNDER: "equal once the reason is assumed, which the paper does not print",
    DIFFERS: "another number, or a statement that does not follow, because of the reason",
    NEEDS_A_GPU: "a measurement on a GPU; ours is an estimate without one",
    NEEDS_DATA: "made from requests or prompts that nobody else has",
}
"""Verdicts, the best first: of a number read in several ways the best one counts."""


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """One printed number beside ours.

    Parameters
    ----------
    paper
        ``fleetopt``, ``rad-slai``, ``exclusive-batching`` or ``wait``.
    quantity
        What and where, e.g. ``"table 3, Azure, homogeneous: GPUs"``.
    reading
        Which version of the model ours is: the printed equations, the published code, a corrected form.
    printed, ours
        The numbers as text, with their unit.
    verdict
        A key of :data:`VERDICTS`.
    reason
        Why they differ, or what makes them equal.
    """

    paper: str
    quantity: str
    reading: str
    printed: str
    ours: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reproduction(Record):
    """Printed numbers beside ours, and why they differ.

    Parameters
    ----------
    papers
        What was compared.
    findings
        In the order of the papers.
    """

    papers: tuple[str, ...]
    findings: tuple[Finding, ...]

    document: ClassVar[str] = "fleetopt-reproduction"
    written: ClassVar[tuple[str, ...]] = ("papers", "verdicts", "numbers", "counts", "by_paper", "rows=to_rows")
    verdicts: ClassVar[Mapping[str, str]] = VERDICTS

    @property
    def numbers(self) -> int:
        """How many printed numbers were compared."""
        return len(self.best())

    def by_paper(self) -> dict[str, dict[str, int]]:
        """Printed numbers by verdict, paper by paper."""
        return {paper: self.counts(paper) for paper in self.papers}

    def best(self) -> dict[tuple[str, str], str]:
        """Paper and quantity -> the best verdict of its readings."""
        order = list(VERDICTS)
        best: dict[tuple[str, str], str] = {}
        for f in self.findings:
            key = (f.paper, f.quantity)
            best[key] = min(best.get(key, f.verdict), f.verdict, key=order.index)
        return best

    def counts(self, paper: str | None = None) -> dict[str, int]:
        """Printed numbers by verdict, of one paper or of all."""
        told = [verdict for (of, _), verdict in self.best().items() if paper in (None, of)]
        return {v: n for v in VERDICTS if (n := told.count(v))}

    def __repr__(self) -> str:
        return f"<Reproduction: {len(self.best())} numbers of {', '.join(self.papers)}>"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per finding."""
        return [f.to_dict() for f in self.findings]


def compare(printed: float, ours: float, decimals: int, assumed: bool = False) -> str:
    """The verdict on two numbers, the first printed with that many decimals; `assumed`: the reason is not printed.

    >>> compare(0.848, 0.84779, 3), compare(284, 284, 0, assumed=True), compare(284, 445, 0)
    ('same', 'same under unprinted assumption', 'differs because')
    """
    # half a unit of the last printed place, and what binary fractions add to it
    if abs(ours - printed) > 0.5 * 10.0**-decimals * (1.0 + 1e-9):
        return DIFFERS
    return SAME_UNDER if assumed else SAME


def printed_by(module: str) -> tuple[dict[str, Any], Callable[..., Row]]:
    """What the YAML beside a paper's module says it prints, and :func:`told` of its rows by key; they know how it is simulated."""
    found = load_document(Path(module).with_suffix(".yaml"))

    def row(key: str, ours: Any, verdict: str = "", **words: Any) -> Row:
        return told(found["rows"][key], ours, verdict, **found.get("simulated", {}), **words)

    return found, row


def told(row: Mapping[str, Any], ours: Any, verdict: str = "", **words: Any) -> Row:
    """A row of a paper's YAML beside our number.

    Parameters
    ----------
    row
        ``quantity``, ``reading`` and ``reason``, the word of that name where one is not there; ``printed``. Where two numbers are
        shown and compared with how many ``decimals``, in which ``unit``, and whether the reason is ``assumed``, not printed; else
        the ``verdict`` where it is always the same.
    ours
        A number, or as it is shown.
    verdict
        Where it is not in the row.
    **words
        For the placeholders in its texts; ``printed``, ``decimals``, ``unit`` and ``assumed`` also in place of the row's.

    >>> told({"quantity": "table {n}: slots", "reading": "eq. 3", "reason": "", "decimals": 0}, 1199.6, n=1, printed=1200)
    ('table 1: slots', 'eq. 3', '1,200', '1,200', 'same', '')
    """
    quantity, reading, reason = (str(row.get(k, f"{{{k}}}")).format(**words) for k in ("quantity", "reading", "reason"))
    if "decimals" not in row:
        printed = str(row.get("printed", "{printed}")).format(**words)
        return (quantity, reading, printed, str(ours), verdict or row["verdict"], reason)
    of = {"unit": "", "assumed": False, **row, **words}
    shown = [f"{value:,.{max(of['decimals'], 0)}f}{of['unit']}" for value in (of["printed"], ours)]
    found = compare(of["printed"], ours, of["decimals"], of["assumed"])
    return (quantity, reading, shown[0], shown[1], found, reason)


PAPERS = {"fleetopt": "fleetopt", "rad-slai": "rad_slai", "exclusive-batching": "exclusive_batching", "wait": "wait"}
"""Name of a paper -> module of this package; its ``SECTIONS`` yield the findings, one part of the paper each."""


@told_types
def reproduce(paper: str = "all", progress: Callable[[int, int], None] | None = None) -> Reproduction:
    """The numbers a paper prints beside ours, and why they differ.

    Parameters
    ----------
    paper
        ``fleetopt``, ``rad-slai``, ``exclusive-batching``, ``wait`` or ``all``.
    progress
        Called with the parts done and all parts.

    Returns
    -------
    Reproduction

    Raises
    ------
    InputError
        No such paper.

    Examples
    --------
    >>> reproduce("wait").findings[0].ours
    '12'
    """
    refuse_unknown("paper:", paper, (*PAPERS, "all"))
    chosen = tuple(PAPERS) if paper == "all" else (paper,)
    sections = [(n, part) for n in chosen for part in import_module(f"planner.papers.{PAPERS[n]}").SECTIONS]
    findings: list[Finding] = []
    for done, (name, section) in enumerate(sections, start=1):
        findings += [Finding(name, *row) for row in section()]
        if progress is not None:
            progress(done, len(sections))
    return Reproduction(chosen, tuple(findings))
