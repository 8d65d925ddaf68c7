"""Compress a prompt to a budget of tokens by leaving out sentences (FleetOpt paper, section 5.2), of a text or of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from planner.compress.scores import ScoreWeights, sentence_scores
from planner.compress.segments import PROSE, STRUCTURED, Unit, content_type, units_of
from planner.compress.tokens import TokenCounter

TOKENS_PER_MESSAGE = 8
"""Tokens a chat template adds to each message, counted high: role markers and separators are 3 to 7 in common ones."""

_COMPRESSIBLE_ROLES = ("user",)
"""Instructions (system, developer), the model's own words and tool results are passed on as they are."""


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
        Content that may be compressed (:mod:`planner.compress.segments`).
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
        Content type where it is known; default by :func:`planner.compress.segments.content_type`.
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
    (before,) = count([text])
    kind = content if content is not None else content_type(text)
    if before <= budget_tokens:
        return Compression(text, before, before, kind, False)
    if kind not in settings.content_types:
        return Compression(text, before, before, kind, False, "gate")
    units = units_of(text, settings.language)
    forced, order = _ranked(units, settings)
    sizes = count([u.text for u in units])
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
        (after,) = count([shorter])
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


# --- chats -------------------------------------------------------------------------------------------------------


def texts_of(prompt: Any) -> list[str]:
    """Texts of a prompt, of a message, of one of its parts, or of a list of them; nothing for other types."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, Mapping):
        return texts_of(prompt.get("content", prompt.get("text")))
    return [text for one in prompt for text in texts_of(one)] if isinstance(prompt, Sequence) else []


def prompt_tokens(prompt: Any, count: TokenCounter) -> int:
    """Tokens of a prompt; of a chat counted high, tool calls and other structure by their JSON."""
    if isinstance(prompt, Sequence) and prompt and all(isinstance(one, int) for one in prompt):
        return len(prompt)
    total = sum(count(texts_of(prompt)))
    for message in prompt if _is_chat(prompt) else ():
        rest = {k: v for k, v in message.items() if k not in ("content", "role")}
        total += TOKENS_PER_MESSAGE + (sum(count([json.dumps(rest, ensure_ascii=False)])) if rest else 0)
    return total


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and all(isinstance(one, Mapping) for one in prompt)


def compress_prompt(
    prompt: Any, budget_tokens: int, count: TokenCounter, settings: CompressorSettings | None = None
) -> Compression:
    """Compress a text or a chat, see :func:`compress` and :func:`compress_chat`; anything else is left
    alone (``not_text``)."""
    if isinstance(prompt, str):
        return compress(prompt, budget_tokens, count, settings)
    if _is_chat(prompt):
        return compress_chat(prompt, budget_tokens, count, settings)
    tokens = prompt_tokens(prompt, count)
    return Compression(prompt, tokens, tokens, STRUCTURED, False, "not_text")


def compress_chat(
    messages: Sequence[Mapping[str, Any]],
    budget_tokens: int,
    count: TokenCounter,
    settings: CompressorSettings | None = None,
) -> Compression:
    """Compress the longest user text of a chat until all messages fit the budget, or leave the chat alone.

    Only text of the user is touched, longest first; everything else keeps its place and wording. A chat with tool calls is
    left alone: what a tool returned may be quoted by position.

    Parameters
    ----------
    messages
        As in the OpenAI chat API.
    budget_tokens
        For all messages together [tokens].
    count, settings
        As in :func:`compress`.

    Returns
    -------
    Compression
    """
    settings = settings or CompressorSettings()
    # the caller's own objects stay as they are
    kept = [deepcopy(dict(m)) for m in messages]
    before = prompt_tokens(messages, count)
    places = sorted(_compressible(kept), key=lambda place: -len(place[0][place[1]]))
    kind = content_type(places[0][0][places[0][1]]) if places else STRUCTURED
    if before <= budget_tokens:
        return Compression(kept, before, before, kind, False)
    if not places or any(m.get("tool_calls") or m.get("role") == "tool" for m in messages):
        return Compression(kept, before, before, STRUCTURED, False, "gate")
    now = before
    reason: str | None = "gate"
    for holder, key in places:
        budget = max(0, sum(count([holder[key]])) - (now - budget_tokens))
        shorter = compress(holder[key], budget, count, settings, least=True)
        if not shorter.compressed:
            reason = shorter.reason or reason
            continue
        holder[key] = shorter.prompt
        now += shorter.tokens_after - shorter.tokens_before
        if now <= budget_tokens:
            after = prompt_tokens(kept, count)
            if after <= budget_tokens:
                return Compression(kept, before, after, PROSE, True)
    return Compression([dict(m) for m in messages], before, before, kind, False, reason)


def _compressible(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """What holds each compressible text, and under which key: a message, or a part of one whose content is a list."""
    for message in messages:
        content = message.get("content") if message.get("role") in _COMPRESSIBLE_ROLES else None
        if isinstance(content, str):
            yield message, "content"
        elif isinstance(content, Sequence):
            yield from (
                (part, "text") for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
