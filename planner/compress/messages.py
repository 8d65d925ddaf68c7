"""Chat requests: which parts may be compressed, and how a budget is shared out between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planner.compress.extract import Compression, CompressorSettings, compress
from planner.compress.gate import PROSE, STRUCTURED, content_type
from planner.compress.tokens import TokenCounter

TOKENS_PER_MESSAGE = 8
"""Tokens a chat template adds to each message, counted high: role markers and separators are 3 to 7 in common ones."""

_COMPRESSIBLE_ROLES = ("user",)
"""Instructions (system, developer), the model's own words and tool results are passed on as they are."""


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
    total = sum(count.each(texts_of(prompt)))
    for message in prompt if _is_chat(prompt) else ():
        rest = {k: v for k, v in message.items() if k not in ("content", "role")}
        total += TOKENS_PER_MESSAGE + (count(json.dumps(rest, ensure_ascii=False)) if rest else 0)
    return total


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and all(isinstance(one, Mapping) for one in prompt)


def compress_prompt(
    prompt: Any, budget_tokens: int, count: TokenCounter, settings: CompressorSettings | None = None
) -> Compression:
    """Compress a text or a chat, see :func:`planner.compress.extract.compress` and :func:`compress_chat`; anything else is left
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
        As in :func:`planner.compress.extract.compress`.

    Returns
    -------
    Compression
    """
    settings = settings or CompressorSettings()
    kept = [dict(m) for m in messages]
    before = prompt_tokens(messages, count)
    places = _compressible(messages)
    largest = max(places, key=lambda p: len(_text(messages, p)), default=None)
    kind = STRUCTURED if largest is None else content_type(_text(messages, largest))
    if before <= budget_tokens:
        return Compression(kept, before, before, kind, False)
    if largest is None or any(m.get("tool_calls") or m.get("role") == "tool" for m in messages):
        return Compression(kept, before, before, STRUCTURED, False, "gate")
    now = before
    reason: str | None = "gate"
    for place in sorted(places, key=lambda p: -len(_text(messages, p))):
        text = _text(messages, place)
        budget = max(0, count(text) - (now - budget_tokens))
        shorter = compress(text, budget, count, settings, least=True)
        if not shorter.compressed:
            reason = shorter.reason or reason
            continue
        _put(kept, place, shorter.prompt)
        now += shorter.tokens_after - shorter.tokens_before
        if now <= budget_tokens:
            after = prompt_tokens(kept, count)
            if after <= budget_tokens:
                return Compression(kept, before, after, PROSE, True)
    return Compression([dict(m) for m in messages], before, before, kind, False, reason)


_Place = tuple[int, int | None]


def _compressible(messages: Sequence[Mapping[str, Any]]) -> list[_Place]:
    """Where compressible texts stand: message, and part of it when its content is a list."""
    places: list[_Place] = []
    for k, message in enumerate(messages):
        if message.get("role") not in _COMPRESSIBLE_ROLES:
            continue
        content = message.get("content")
        if isinstance(content, str):
            places.append((k, None))
        elif isinstance(content, Sequence):
            places += [
                (k, j) for j, p in enumerate(content) if isinstance(p, Mapping) and isinstance(p.get("text"), str)
            ]
    return places


def _text(messages: Sequence[Mapping[str, Any]], place: _Place) -> str:
    k, part = place
    content = messages[k]["content"]
    return str(content if part is None else content[part]["text"])


def _put(messages: list[dict[str, Any]], place: _Place, text: str) -> None:
    """Replace one text, leaving the caller's own objects as they are."""
    k, part = place
    if part is None:
        messages[k] = {**messages[k], "content": text}
    else:
        parts = list(messages[k]["content"])
        parts[part] = {**parts[part], "text": text}
        messages[k] = {**messages[k], "content": parts}
