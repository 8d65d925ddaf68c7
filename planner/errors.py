"""The errors a user can meet, each with its exit code. Only these are caught by the command line; anything else is a bug.

Exit codes: 0 ok, 2 usage, 3 input, 4 infeasible, 5 calibration, 6 a check failed, 130 interrupted; 1 keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

MOST_LETTERS = 1000
"""Of a line of an error: what was given instead of a number may be a file's whole rest."""


def _line(text: str) -> str:
    """A line of an error; of one too long to be read, where it is (the beginning) and what is wrong (the end)."""
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[: 3 * MOST_LETTERS // 4]}... ({len(text):,} characters) ...{text[-MOST_LETTERS // 4 :]}"


class FleetOptError(Exception):
    """Base of every error that is the user's to solve.

    Parameters
    ----------
    message
        What is wrong, in one line, naming the file, line, key path or option.
    hint
        What to do about it, in one line; ``None`` when the message says it already.
    """

    exit_code: int = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = _line(message)
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


MOST_TOLD = 25
"""Problems of one file that its error tells; who has more of them looks for what they have in common."""


class InputError(FleetOptError):
    """Something the user gave cannot be used. Carries every problem found, not just the first.

    Parameters
    ----------
    message
        One line. With `problems`, a heading such as ``"azure.csv: 3 problems"``.
    hint
        What to do.
    problems
        One line each, with its place ("azure.csv:17: ..." or "slo.ttft: ...").
    """

    exit_code = 3

    def __init__(self, message: str, hint: str | None = None, problems: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.problems = tuple(map(_line, problems))

    @classmethod
    def from_problems(cls, problems: Sequence[str], hint: str | None = None, heading: str | None = None) -> InputError:
        """Build one error from all problems found; a single problem becomes the message itself."""
        if len(problems) == 1 and heading is None:
            return cls(problems[0], hint)
        return cls(heading or f"{len(problems)} problems", hint, problems)

    def __str__(self) -> str:
        lines = [self.message, *(f"  {p}" for p in self.problems[:MOST_TOLD])]
        if len(self.problems) > MOST_TOLD:
            lines.append(f"  ... and {len(self.problems) - MOST_TOLD:,} more")
        if self.hint is not None:
            lines.append(self.hint)
        return "\n".join(lines)


def refuse(problems: Sequence[str], hint: str | None = None, of: str | None = None) -> None:
    """Raise an :class:`InputError` where there are problems; several of something named `of` stand below its name."""
    if problems:
        several = f"{of}: {len(problems)} problems" if of and len(problems) > 1 else None
        raise InputError.from_problems(problems, hint, several)


def refuse_unknown(what: str, value: str, known: Collection[str]) -> None:
    """Raise where something of that name is none of the known ones."""
    if value not in known:
        raise InputError(f"{what} {value!r} is none of {', '.join(known)}{did_you_mean(value, known)}")


def refuse_below_1(counts: Mapping[str, float | None]) -> None:
    """Raise where a number of something is given and less than one."""
    refuse([f"{name}: must be at least 1, got {n}" for name, n in counts.items() if n is not None and n < 1])


class InfeasibleError(FleetOptError):
    """No fleet in the searched space keeps the promises: which one binds, the best achievable, what would relax it.

    Parameters
    ----------
    message, hint
        As in :class:`FleetOptError`.
    relaxations
        What would help, a line each.
    promise
        The promise that no number of replicas keeps (:class:`planner.promise.Promise`); ``None`` = something else binds.
    best_s
        What the best fleet achieves of it, idle [s].
    choices
        What would make it possible and at what price (:class:`planner.choices.Choices`), where that was asked for.
    idle
        Whether replicas with nothing to do break that promise, so that no gateway helps.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        relaxations: Sequence[str] = (),
        promise: Any = None,
        best_s: float | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.relaxations = tuple(relaxations)
        self.promise, self.best_s = promise, best_s
        self.choices: Any = None
        self.idle = False

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "schema_version": 1,
            "kind": "fleetopt-infeasible",
            "message": self.message,
            "relaxations": list(self.relaxations),
            "promise": None if self.promise is None else self.promise.to_dict(),
            "best_s": self.best_s,
            "choices": None if self.choices is None else self.choices.to_dict(),
        }

    def to_rows(self) -> list[dict[str, object]]:
        """What would make it possible, a row each."""
        return [] if self.choices is None else [choice.to_dict() for choice in self.choices.rows]

    def __str__(self) -> str:
        lines = [self.message] if self.hint is None else [self.message, self.hint]
        return "\n".join([*lines, *(f"  - {r}" for r in self.relaxations)])


class CalibrationError(FleetOptError):
    """Measurements that do not determine an iteration-time model, or a machine that is not the one named."""

    exit_code = 5


class CheckFailedError(FleetOptError):
    """A promise of the plan does not hold in the check that was asked for."""

    exit_code = 6


def unknown(told: str, name: str, known: Iterable[str], all_of_them: str = "Known") -> InputError:
    """An error of a name that is none of the known: what is told of it, the one that was meant, and all there are."""
    there = [*known]
    return InputError(f"{told}{did_you_mean(name, there)}", f"{all_of_them}: {', '.join(there) or 'none'}.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or an empty string.

    >>> did_you_mean("h10", ["h100-80gb", "a100-80gb"])
    "; did you mean 'h100-80gb'?"
    >>> did_you_mean("zzz", ["a100"])
    ''
    """
    folded = {k.lower(): k for k in known}
    key = name.lower()
    close = difflib.get_close_matches(key, folded, n=1, cutoff=0.55)
    if not close:
        close = [k for k in folded if key and (k.startswith(key) or key in k)][:1]
    return f"; did you mean '{folded[close[0]]}'?" if close else ""
