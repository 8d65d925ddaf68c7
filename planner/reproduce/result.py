"""What a comparison with a paper looks like: one finding per printed number and reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from planner._version import __version__

__all__ = ["VERDICTS", "Finding", "Reproduction", "Row", "compare", "numbers"]

Row = tuple[str, str, str, str, str, str]
"""Quantity, reading, printed, ours, verdict, reason: a :class:`Finding` before it knows its paper."""

VERDICTS: Mapping[str, str] = {
    "agrees": "equal at the printed precision",
    "close": "within 5% of what is printed",
    "differs": "another number; the reason says why",
    "false": "what is printed does not follow, or a counterexample exists",
}


@dataclass(frozen=True, slots=True)
class Finding:
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

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reproduction:
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

    def counts(self) -> dict[str, int]:
        """Findings by verdict."""
        return {v: n for v in VERDICTS if (n := sum(f.verdict == v for f in self.findings))}

    def __repr__(self) -> str:
        return f"<Reproduction: {len(self.findings)} numbers of {', '.join(self.papers)}>"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per finding."""
        return [f.to_dict() for f in self.findings]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "schema_version": 1,
            "kind": "fleetopt-reproduction",
            "version": __version__,
            "papers": list(self.papers),
            "verdicts": dict(VERDICTS),
            "counts": self.counts(),
            "rows": self.to_rows(),
        }


def compare(printed: float, ours: float, decimals: int) -> str:
    """``agrees``, ``close`` or ``differs`` for two numbers, the first printed with that many decimals.

    >>> compare(0.848, 0.84779, 3), compare(284, 292, 0), compare(284, 445, 0)
    ('agrees', 'close', 'differs')
    """
    if round(ours, decimals) == round(printed, decimals):
        return "agrees"
    return "close" if abs(ours - printed) <= 0.05 * abs(printed) else "differs"


def numbers(
    quantity: str, reading: str, printed: float, ours: float, decimals: int, reason: str, unit: str = ""
) -> Row:
    """A row of two numbers, shown and compared with that many decimals.

    >>> numbers("table 1: slots", "eq. 3", 1200, 1199.6, 0, "")[2:5]
    ('1,200', '1,200', 'agrees')
    """
    shown = [f"{value:,.{decimals}f}{unit}" for value in (printed, ours)]
    return (quantity, reading, *shown, compare(printed, ours, decimals), reason)  # type: ignore[return-value]
