"""What a plan has to say, as a code with values; the sentences stand in ``remarks.yaml`` and nowhere else."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from planner.shared.documents import shipped
from planner.shared.record import Record
from planner.units import format_count, format_duration, format_gpus, format_percent, format_usd


@dataclass(frozen=True, slots=True)
class Remark(Record):
    """One finding.

    Parameters
    ----------
    code
        What it is, for programs.
    values
        The numbers and names in it, JSON-ready.
    """

    code: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return Writer().format(sentences()[self.code], **self.values)


def those_that_hold(found: Iterable[tuple[object, str, Mapping[str, object]]]) -> tuple[str, ...]:
    """The sentences of remarks, each given as whether it holds, its code and its values."""
    return tuple(str(Remark(code, values)) for holds, code, values in found if holds)


def said(code: str, **values: object) -> str:
    """A finding in words alone."""
    return str(Remark(code, values))


class Writer(string.Formatter):
    """Format strings that know our units."""

    units: Mapping[str, Callable[[float], str]] = {
        "count": format_count,
        "duration": format_duration,
        "gpus": format_gpus,
        "percent": format_percent,
        "usd": format_usd,
        "s": lambda n: "" if n == 1 else "s",
    }

    def format_field(self, value: Any, format_spec: str) -> str:
        """One value, in a unit or as usual."""
        unit = self.units.get(format_spec) if isinstance(value, (int, float)) else None
        return str(super().format_field(value, format_spec)) if unit is None else unit(value)


sentences = cache(lambda: shipped(Path(__file__).with_suffix(".yaml")))
"""Code -> the sentence, a format string over the remark's values."""
