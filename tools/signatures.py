"""Write the options of a plan as types and in its docstring, into files of planner/ask: ``python tools/signatures.py``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from planner.question.options import OPTIONS, Option

ASK = Path(__file__).resolve().parents[1] / "planner" / "ask"
MODULES = ASK / "options.py", ASK / "plan.py"
WIDTH = 132
LISTED = [o for o in OPTIONS.values() if not o.filed and o.name not in ("cdf", "slo")]


def annotation(option: Option) -> str:
    """Its type in Python: the choices where they are few."""
    choices = ", ".join(f'"{c}"' for c in option.choices)
    return f"Literal[{choices}]" if choices else option.kind.python


def parameters() -> str:
    """Keys of the typed options, one a line."""
    return "".join(parameter(o) for o in LISTED)


def parameter(option: Option) -> str:
    """One of them; many choices stand one a line, as the formatter has it."""
    line = f"    {option.name}: {annotation(option)} | None\n"
    if len(line) <= WIDTH + 1:
        return line
    choices = "".join(f'            "{c}",\n' for c in option.choices)
    return f"    {option.name}: (\n        Literal[\n{choices}        ]\n        | None\n    )\n"


def paragraphs() -> str:
    """The options as numpydoc has them, with unit, default and choices."""
    lines = []
    for o in LISTED:
        lines += [
            f"    {o.name}",
            *textwrap.wrap(f"{o.told} [{o.kind.unit}]", 116, initial_indent=" " * 8, subsequent_indent=" " * 8),
        ]
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """A module with its options brought up to date."""
    for start, end, lines in (
        ("    # options\n", "    # end of options\n", parameters()),
        ("    .. options\n", "    .. end of options\n", paragraphs()),
    ):
        region = re.escape(start) + ".*?" + re.escape(end)
        text = re.sub(region, lambda _, new=start + lines + end: new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for module in MODULES:
        module.write_text(written(module.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {module}")
