"""How much of a borderline band compresses: p_c by category with intervals, reduction, fidelity and latency on this machine."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from planner.compress.extract import Compression, CompressorSettings, compress_prompt, prompt_tokens, texts_of
from planner.compress.scores import words_of
from planner.compress.tokens import TokenCounter, require
from planner.errors import InputError
from planner.shared.documents import LARGEST_FILE
from planner.shared.paths import at_home
from planner.shared.record import Record

BACKGROUND = 200
"""Prompts the inverse document frequencies of the cosine are learned from."""

LEVELS = (0.1, 0.5, 0.9)
"""Quantiles of fidelity, as table 7 of FleetOpt has them."""
LATENCY_LEVELS = (0.5, 0.95, 0.99)
"""Quantiles of latency, as its table 4 has them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a file.

    Parameters
    ----------
    prompt
        A text, or the messages of a chat.
    category
        As the file states it; ``None`` = by content.
    output_tokens
        Output length the file states [tokens].
    """

    prompt: str | tuple[Mapping[str, Any], ...]
    category: str | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CategoryResult(Record):
    """One category's borderline prompts.

    Parameters
    ----------
    requests, compressed
        Prompts of the band; those brought below the boundary.
    reasons
        Why the others were left alone -> how many.
    reduction, rouge_l_recall, tfidf_cosine
        Mean and quantiles over the compressed prompts, by name (``mean``, ``p10``, ``p50``, ``p90``).
    latency_s
        Quantiles over all prompts of the band [s].
    """

    requests: int
    compressed: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    reduction: Mapping[str, float] = field(default_factory=dict)
    rouge_l_recall: Mapping[str, float] = field(default_factory=dict)
    tfidf_cosine: Mapping[str, float] = field(default_factory=dict)
    latency_s: Mapping[str, float] = field(default_factory=dict)

    written: ClassVar[tuple[str, ...]] = (
        "requests", "compressed", "p_c", "p_c_low", "p_c_high", "left_alone=reasons", "reduction", "rouge_l_recall", "tfidf_cosine",
        "latency_s",
    )  # fmt: skip

    @property
    def p_c(self) -> float:
        """Share of the borderline prompts that were compressed."""
        return self.compressed / self.requests if self.requests else math.nan

    @property
    def p_c_low(self) -> float:
        """Lower end of its 95% interval."""
        return wilson_interval(self.compressed, self.requests)[0]

    @property
    def p_c_high(self) -> float:
        """Upper end of it."""
        return wilson_interval(self.compressed, self.requests)[1]


@dataclass(frozen=True, slots=True)
class CompressionMeasurement(Record):
    """What `fleetopt compress measure` found; a table that a plan can read.

    Parameters
    ----------
    boundary, gamma
        B_short [tokens] and the band's width: prompts of B_short to gamma B_short were compressed.
    prompts
        Prompts of the file.
    total
        All categories together.
    categories
        By category.
    counted_by
        How tokens were counted, in words.
    """

    boundary: int
    gamma: float
    prompts: int
    total: CategoryResult
    categories: Mapping[str, CategoryResult]
    counted_by: str

    document: ClassVar[str] = "fleetopt-compression"
    written: ClassVar[tuple[str, ...]] = ("boundary", "gamma", "prompts", "counted_by", "total", "categories")

    def to_rows(self) -> list[dict[str, object]]:
        """One row per category, the total last."""
        rows = []
        for name, result in [*self.categories.items(), ("all", self.total)]:
            of = result.to_dict()
            row = {"category": name, "borderline": of["requests"]}
            row |= {key: of[key] for key in ("compressed", "p_c", "p_c_low", "p_c_high")}
            row |= {f"{key}_mean": of[key].get("mean") for key in ("reduction", "rouge_l_recall", "tfidf_cosine")}
            rows.append(row | {f"latency_{q}_s": of["latency_s"].get(q) for q in ("p50", "p95", "p99")})
        return rows


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Interval of 95% of a share (Wilson 1927); (0, 1) without trials.

    >>> low, high = wilson_interval(10, 10)
    >>> round(low, 3), round(high, 3)
    (0.722, 1.0)
    """
    if trials == 0:
        return 0.0, 1.0
    z, share = 1.959963984540054, successes / trials
    centre = share + z * z / (2.0 * trials)
    spread = z * math.sqrt(share * (1.0 - share) / trials + z * z / (4.0 * trials * trials))
    scale = 1.0 + z * z / trials
    # exact at the ends, where rounding would push the interval past the share itself
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == trials else (centre + spread) / scale
    return low, high


def read_prompts(path: str | Path) -> Iterator[Prompt]:
    """Prompts of a JSON-lines file, one object a line: ``prompt`` or ``text``, ``messages`` or ``conversations``.

    ``category`` and ``output_tokens`` (or ``max_tokens``) are read where a line has them.

    Raises
    ------
    InputError
        Missing file, a line that is not such an object (with its number), or longer than a whole file of settings may be.
    """
    file = at_home(path)
    if not file.is_file():
        raise InputError(f"{path}: no such file", 'Give prompts as JSON lines: {"prompt": "..."}.')
    with file.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LARGEST_FILE + 1), b""), 1):
            if len(line) > LARGEST_FILE:
                raise InputError(f"{path}:{number}: a line of more than {LARGEST_FILE >> 20} MiB")
            if line.strip():
                yield _prompt(line, f"{path}:{number}")


def _prompt(line: bytes, where: str) -> Prompt:
    """One prompt of a JSON line: its text, category and length of answer."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: expected an object, got {type(data).__name__}")
    category = data.get("category")
    output = data.get("output_tokens", data.get("max_tokens"))
    if output is not None and not (isinstance(output, int) and not isinstance(output, bool) and output >= 0):
        raise InputError(f"{where}: output_tokens: expected a whole number of tokens, got {output!r}")
    name = None if category is None else str(category)
    for key in ("prompt", "text"):
        if isinstance(data.get(key), str):
            return Prompt(data[key], category=name, output_tokens=output)
    messages = data.get("messages")
    if messages is None and isinstance(data.get("conversations"), Sequence):
        roles = {"human": "user", "gpt": "assistant", "system": "system"}
        messages = [
            {"role": roles.get(str(m.get("from")), "user"), "content": m.get("value", "")}
            for m in data["conversations"]
            if isinstance(m, Mapping)
        ]
    if isinstance(messages, Sequence) and messages and all(isinstance(m, Mapping) for m in messages):
        return Prompt(tuple(messages), category=name, output_tokens=output)
    raise InputError(f"{where}: no prompt", "Each line needs `prompt`, `text`, `messages` or `conversations`.")


def measure(
    prompts: Iterable[Prompt],
    boundary: int,
    gamma: float,
    count: TokenCounter,
    counted_by: str,
    output_tokens: int = 256,
    settings: CompressorSettings | None = None,
) -> CompressionMeasurement:
    """Compress every borderline prompt and account for what happened.

    Parameters
    ----------
    prompts
        All prompts; those with B < prompt + output <= gamma B are compressed to B - output.
    boundary
        B_short, total tokens [tokens].
    gamma
        Width of the band, > 1.
    count, counted_by
        Token counter and its description.
    output_tokens
        Output length of prompts that state none [tokens].
    settings
        Of the compressor.

    Returns
    -------
    CompressionMeasurement
    """
    if boundary < 1:
        raise InputError(f"boundary: must be at least 1 token, got {boundary}")
    if not (math.isfinite(gamma) and gamma > 1.0):
        raise InputError(f"gamma: must be above 1, got {gamma:g}")
    seen = 0
    background: list[str] = []
    outcomes: dict[str, list[_Outcome]] = {}
    for prompt in prompts:
        seen += 1
        output = prompt.output_tokens if prompt.output_tokens is not None else output_tokens
        if not boundary < prompt_tokens(prompt.prompt, count) + output <= gamma * boundary:
            continue
        started = time.perf_counter()
        done = compress_prompt(prompt.prompt, boundary - output, count, settings)
        seconds, original = time.perf_counter() - started, "\n".join(texts_of(prompt.prompt))
        category = prompt.category or done.content
        outcomes.setdefault(category, []).append(_Outcome(category, original, done, seconds))
        if len(background) < BACKGROUND and done.compressed:
            background.append(original)
    everything = [o for group in outcomes.values() for o in group]
    cosine = TfidfCosine(background) if background else None
    by_name = {name: _summary(group, cosine) for name, group in sorted(outcomes.items())}
    return CompressionMeasurement(boundary, gamma, seen, _summary(everything, cosine), by_name, counted_by)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One borderline prompt: what it was, what became of it, how long that took."""

    category: str
    original: str
    done: Compression
    seconds: float

    @property
    def pair(self) -> tuple[str, str]:
        """The text before and after."""
        return self.original, "\n".join(texts_of(self.done.prompt))


def _summary(outcomes: Sequence[_Outcome], cosine: TfidfCosine | None) -> CategoryResult:
    done = [o for o in outcomes if o.done.compressed]
    return CategoryResult(
        requests=len(outcomes),
        compressed=len(done),
        reasons=Counter(o.done.reason for o in outcomes if o.done.reason),
        reduction=_spread([o.done.reduction for o in done]),
        rouge_l_recall=_spread([rouge_l_recall(*o.pair) for o in done]),
        tfidf_cosine=_spread([cosine(*o.pair) for o in done if cosine is not None]),
        latency_s=_spread([o.seconds for o in outcomes], LATENCY_LEVELS),
    )


def _spread(values: Sequence[float], levels: Sequence[float] = LEVELS) -> dict[str, float]:
    """Mean and quantiles by name; nothing of nothing."""
    if not values:
        return {}
    return {"mean": math.fsum(values) / len(values), **{f"p{100 * q:g}": float(np.quantile(values, q)) for q in levels}}


def rouge_l_recall(original: str, compressed: str) -> float:
    """Longest common subsequence of words over the words of the original, in [0, 1]; 1 for an empty original.

    Parameters
    ----------
    original, compressed
        Texts.

    References
    ----------
    Lin (2004), ROUGE: a package for automatic evaluation of summaries, section 3.

    >>> rouge_l_recall("the cat sat on the mat", "the cat on the mat")
    0.8333333333333334
    """
    reference, found = words_of(original), words_of(compressed)
    if not reference:
        return 1.0
    return _longest_common_subsequence(reference, found) / len(reference)


def _longest_common_subsequence(a: list[str], b: list[str]) -> int:
    """Length by the bit-parallel recurrence of Hyyro (2004): a row of the table is one integer."""
    masks: dict[str, int] = {}
    for k, word in enumerate(a):
        masks[word] = masks.get(word, 0) | (1 << k)
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        match = row & masks.get(word, 0)
        row = ((row + match) | (row - match)) & full
    return len(a) - row.bit_count()


class TfidfCosine:
    """Cosine of the TF-IDF vectors of two texts, in [0, 1].

    Parameters
    ----------
    background
        Documents the inverse document frequencies come from, the originals among them; at least one with a word.
    """

    def __init__(self, background: Sequence[str]) -> None:
        self._rows = require("sklearn.feature_extraction.text").TfidfVectorizer(analyzer=words_of).fit(background)

    def __call__(self, original: str, compressed: str) -> float:
        """The cosine of one pair."""
        rows = self._rows.transform([original, compressed])
        return float(np.clip((rows[0] @ rows[1].T).sum(), 0.0, 1.0))
