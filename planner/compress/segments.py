"""What a prompt is made of: prose, which may be compressed, or code and structure (paper, section 5.2); and its units, which are
kept or dropped whole and, joined again, are the prompt, to the last byte."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import textwrap
import warnings
from dataclasses import dataclass

from planner.compress.tokens import require
from planner.shared.documents import whole

PROSE, CODE, STRUCTURED = "prose", "code", "structured"
CONTENT_TYPES = (PROSE, CODE, STRUCTURED)
"""Only the first is compressed."""

MOST_CODE = 0.3
"""Share of a prompt's characters in code-like lines above which it is taken for code; with half in such lines or those of tables,
keys and markup it is structured data."""

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
    return STRUCTURED if code + structure > 0.5 * total else PROSE


_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})")
_TABLE = re.compile(r"^\s*\|.*\|\s*$")
_INDENTED_CODE = re.compile(r"^(?: {4}|\t)\S")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")

_SCRIPTS = (
    # kana before Han: Japanese uses both
    (re.compile(r"[぀-ヿ]"), "ja"),
    (re.compile(r"[一-鿿]"), "zh"),
    (re.compile(r"[가-힯]"), "ko"),
    (re.compile(r"[؀-ۿ]"), "ar"),
    (re.compile(r"[ऀ-ॿ]"), "hi"),
    (re.compile(r"[Ѐ-ӿ]"), "ru"),
    (re.compile(r"[Ͱ-Ͽ]"), "el"),
    (re.compile(r"[԰-֏]"), "hy"),
    (re.compile(r"[֐-׿]"), "he"),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a prompt.

    Parameters
    ----------
    text
        The piece with the white space that follows it.
    protected
        Code, tables and other structure inside prose: never dropped, never counted as a sentence.
    """

    text: str
    protected: bool = False


def language_of(text: str) -> str:
    """Language whose sentence rules fit the script of `text` (ISO 639-1); ``"en"`` for Latin letters.

    >>> language_of("The fleet is ready."), language_of("これは文です。"), language_of("यह एक वाक्य है।")
    ('en', 'ja', 'hi')
    """
    sample = text[:1000]
    if sample.isascii():
        return "en"
    letters = sum(1 for c in sample if c.isalpha()) or 1
    for pattern, language in _SCRIPTS:
        if len(pattern.findall(sample)) > 0.15 * letters:
            return language
    return "en"


def units_of(text: str, language: str | None = None) -> list[Unit]:
    """Cut a prompt into sentences and protected blocks.

    Fenced code, Markdown tables and indented code are protected. A heading stays with the sentence that follows it, and so
    does white space between paragraphs with the sentence before it.

    Parameters
    ----------
    text
        The prompt.
    language
        ISO 639-1 code whose sentence rules apply; default by script.

    Returns
    -------
    list of Unit
        ``"".join(u.text for u in units) == text``.
    """
    units: list[Unit] = []
    language = language or language_of(text)
    for block, protected in _blocks(text):
        if protected:
            units.append(Unit(block, True))
        else:
            units.extend(_sentences(block, language))
    return units


def _blocks(text: str) -> list[tuple[str, bool]]:
    """Runs of lines that are prose (False) or structure to be left alone (True)."""
    blocks: list[tuple[list[str], bool]] = []
    fence = ""
    before_blank = True
    for line in text.splitlines(keepends=True):
        # most lines hold none of the signs
        opened = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if fence:
            protected = True
            if opened and opened[1].startswith(fence) and line.strip() == opened[1]:
                fence = ""
        elif opened:
            protected, fence = True, opened[1][:3]
        else:
            in_code = bool(blocks) and blocks[-1][1] and not blocks[-1][0][-1].strip().startswith(("```", "~~~"))
            indented = line[:1] in " \t" and bool(_INDENTED_CODE.match(line)) and (before_blank or in_code)
            protected = ("|" in line and bool(_TABLE.match(line))) or indented
        before_blank = not line.strip()
        if blocks and blocks[-1][1] == protected:
            blocks[-1][0].append(line)
        else:
            blocks.append(([line], protected))
    found: list[tuple[str, bool]] = []
    for lines, protected in blocks:
        block = "".join(lines)
        # indentation alone is also how lists and quotations continue
        if protected and _INDENTED_CODE.match(lines[0]) and content_type(block) == PROSE:
            protected = False
        if found and found[-1][1] == protected:
            found[-1] = (found[-1][0] + block, protected)
        else:
            found.append((block, protected))
    return found


def _sentences(block: str, language: str) -> list[Unit]:
    """Sentences of prose; blank pieces go to the unit before them, headings to the one after."""
    found = require("sentencex").get_sentence_boundaries(language, whole(block))
    # a sentence reaches to the start of the next: the splitter drops some of the white space between
    starts = sorted({0, *(b["start_index"] for b in found)})
    pieces = [block[a:b] for a, b in itertools.pairwise([*starts, len(block)])]
    units: list[str] = []
    heading = ""
    for piece in pieces:
        if not piece.strip() and units and not heading:
            units[-1] += piece
        elif not piece.strip() or _HEADING.match(piece):
            heading += piece
        else:
            units.append(heading + piece)
            heading = ""
    if heading:
        units.append(units.pop() + heading if units else heading)
    return [Unit(u) for u in units]
