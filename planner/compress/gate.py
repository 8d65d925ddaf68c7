"""What may be compressed: prose and retrieved documents, not code, tool calls or structured data (paper section 5.2)."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import textwrap
import warnings

PROSE, CODE, STRUCTURED = "prose", "code", "structured"
CONTENT_TYPES = (PROSE, CODE, STRUCTURED)
"""Only the first is compressed."""

MOST_CODE = 0.3
"""Share of a prompt's characters in code-like lines above which it is taken for code."""

MOST_STRUCTURE = 0.5
"""Share in table, key-value or markup lines above which it is taken for structured data."""

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)")
_CODE_LINE = re.compile(
    r"""^\s*(?:
        (?:def|class|import|from|return|if|elif|else|for|while|try|except|with|async|await|lambda|yield|raise|assert)\b.*[:)\w]\s*$
      | (?:public|private|protected|static|final|func|fn|let|const|var|struct|enum|impl|package|namespace|using|use|extern)\b.*
      | (?:pass|break|continue|return|end|fi|done)\s*;?\s*$
      | (?<=\s)\#\s.*
      | (?:del|global|nonlocal)\s+\w.*
      | [A-Za-z_][\w.]*(?:\[[^\]]*\])*\(.*
      | (?:\#include|\#define|@\w+|//|/\*|\*/|\#!).*
      | [\w.\[\]]+\s*(?:=|\+=|:=)\s*\S.*
      | (?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|JOIN|FROM|WHERE|GROUP\ BY|ORDER\ BY)\b.*
      | (?:\$|>>>|\.\.\.|In\ \[\d+\]:)\s.*
      | (?:[-+]{3}|@@)\s.*
      | </?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>.*
    )""",
    re.VERBOSE,
)
_BLOCK = re.compile(r"\)\s*(?:\{|=>|->)")
_STRUCTURE_LINE = re.compile(
    r"^\s*(?:\|.*\|?|[\w.\-\" ]{1,40}\s*:\s*\S*|[^\s,]+(?:,[^,\n]{0,40}){3,}|<.*>|[{}\[\],]+)\s*$"
)


def _is_code(line: str) -> bool:
    """Whether a line looks like code; its end and its brackets first, as most lines of prose have neither."""
    return line.rstrip()[-1:] in (";", "{", "}") or bool(
        (")" in line and _BLOCK.search(line)) or _CODE_LINE.match(line)
    )


def _parses(text: str) -> bool:
    """Whether it is Python that does something: sentences do not parse, and words alone do nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(node, ast.Expr) for node in tree.body)


def content_type(text: str) -> str:
    """``"prose"``, ``"code"`` or ``"structured"``, by the share of lines that look like each.

    The paper's router learns a category per request; a gateway that has one passes it instead. What cannot be told is
    counted as prose only where most of it reads like sentences.

    >>> content_type("The pool is full. Requests wait until a slot is free.")
    'prose'
    >>> content_type("def f(x):\\n    return x + 1\\n")
    'code'
    >>> content_type('{"name": "get_weather", "arguments": {"city": "Oslo"}}')
    'structured'
    """
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(stripped)
            return STRUCTURED
    if _parses(text):
        return CODE
    total = code = structure = 0
    fenced = False
    for line in text.splitlines():
        size = len(line.strip())
        if not size:
            continue
        total += size
        if ("```" in line or "~~~" in line) and _FENCE.match(line):
            fenced = not fenced
            code += size
        elif fenced or _is_code(line):
            code += size
        elif _STRUCTURE_LINE.match(line):
            structure += size
    if total == 0:
        return PROSE
    if code > MOST_CODE * total:
        return CODE
    return STRUCTURED if code + structure > MOST_STRUCTURE * total else PROSE
