"""Compress a prompt to a token budget by leaving sentences out (FleetOpt paper, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planner.compress.gate import PROSE, content_type
from planner.compress.scores import ScoreWeights, sentence_scores
from planner.compress.segments import Unit, units_of
from planner.compress.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class CompressorSettings:
    """How prompts are compressed; the defaults are the paper's.

    Parameters
    ----------
    weights
        Parts of a sentence's score.
    keep_first, keep_last
        Sentences kept whatever their score (primacy and recency).
    content_types
        Content that may be compressed (:mod:`planner.compress.gate`).
    language
        ISO 639-1 code of the sentence rules; ``None`` = by script.
    """

    weights: ScoreWeights = field(default_factory=ScoreWeights)
    keep_first: int = 3
    keep_last: int = 2
    content_types: tuple[str, ...] = (PROSE,)
    language: str | None = None

    def __post_init__(self) -> None:
        for name in ("keep_first", "keep_last"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Compression:
    """What became of a prompt.

    Parameters
    ----------
    prompt
        To send: a text, or the messages of a chat; compressed, or as it was where it was left alone.
    tokens_before, tokens_after
        By the counter used, a chat's template included [tokens].
    content
        ``prose``, ``code`` or ``structured``; of a chat that of the largest text that may be compressed.
    compressed
        Whether anything was left out.
    reason
        Why a prompt above the budget was left alone: ``gate`` (its content), ``kept`` (what must be kept does not fit).
    sentences, sentences_kept
        Of a text; in what is left of it.
    """

    prompt: Any
    tokens_before: int
    tokens_after: int
    content: str
    compressed: bool
    reason: str | None = None
    sentences: int = 0
    sentences_kept: int = 0

    @property
    def reduction(self) -> float:
        """Share of the tokens left out, in [0, 1)."""
        return 1.0 - self.tokens_after / self.tokens_before if self.tokens_before else 0.0


def compress(
    text: str,
    budget_tokens: int,
    count: TokenCounter,
    settings: CompressorSettings | None = None,
    content: str | None = None,
    least: bool = False,
) -> Compression:
    """Shorten a prompt to at most `budget_tokens`, or leave it alone and say why.

    Sentences are taken in the order of their score while they fit; the first and last ones and protected blocks (code,
    tables) are always kept, all in their own order and wording. The assembled text is counted again: it never exceeds the
    budget by the counter given, which is what makes an overflow of the short pool impossible (paper, eq. 15).

    Parameters
    ----------
    text
        The prompt.
    budget_tokens
        T_c = B_short - L_out [tokens], >= 0.
    count
        Token counter.
    settings
        Default: the paper's.
    content
        Content type where it is known; default by :func:`planner.compress.gate.content_type`.
    least
        Whether, where what must be kept is more than the budget, that is what is left of it.

    Returns
    -------
    Compression

    Raises
    ------
    InputError
        The extra ``compress`` is not installed.
    """
    settings = settings or CompressorSettings()
    before = count(text)
    kind = content if content is not None else content_type(text)
    if before <= budget_tokens:
        return Compression(text, before, before, kind, False)
    if kind not in settings.content_types:
        return Compression(text, before, before, kind, False, "gate")
    units = units_of(text, settings.language)
    forced, order = _ranked(units, settings)
    sizes = count.each([u.text for u in units])
    used = sum(sizes[k] for k in forced)
    taken = []
    for k in order:
        if used + sizes[k] <= budget_tokens:
            taken.append(k)
            used += sizes[k]
    # tokens of parts need not add up: the whole is counted, and the worst sentences are given back until it fits
    while True:
        kept = sorted({*forced, *taken})
        shorter = "".join(units[k].text for k in kept)
        after = count(shorter)
        if after <= budget_tokens or not taken:
            break
        taken.pop()
    sentences = sum(not u.protected for u in units)
    if after > budget_tokens and not (least and after < before):
        return Compression(text, before, before, kind, False, "kept", sentences, sentences)
    left = sum(not units[k].protected for k in kept)
    return Compression(shorter, before, after, kind, True, None, sentences, left)


def _ranked(units: list[Unit], settings: CompressorSettings) -> tuple[set[int], list[int]]:
    """Units that are kept whatever happens, and the other sentences, the best first."""
    places = [k for k, u in enumerate(units) if not u.protected]
    last = places[max(len(places) - settings.keep_last, 0) :]
    forced = {k for k, u in enumerate(units) if u.protected} | {*places[: settings.keep_first], *last}
    scores = dict(zip(places, sentence_scores([units[k].text for k in places], settings.weights), strict=True))
    return forced, sorted((k for k in places if k not in forced), key=lambda k: (-scores[k], k))
