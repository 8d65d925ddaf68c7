"""ShareGPT-style conversations: text without token counts, lengths from a tokens-per-character figure.

Every reply is one request: its input is all text before it, as a chat server sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.workload.formats.base import JSON, Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import iterate_json

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

DEFAULT_TOKENS_PER_CHARACTER = 0.25
"""English prose in today's vocabularies: about four characters per token [tokens/character]."""

_REPLIES = frozenset({"gpt", "chatgpt", "assistant", "model", "bot", "bing", "bard", "claude"})


def _recognise(head: Head) -> bool:
    keys = head.keys
    if "conversations" in keys or "conversation" in keys:
        return {"from", "value"} <= keys or {"role", "content"} <= keys
    return "messages" in keys and {"role", "content"} <= keys and not {"usage", "choices", "attributes"} & keys


def _text(turn: dict[str, Any]) -> str:
    value = turn.get("value", turn.get("content", turn.get("text")))
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        # content parts: only their text counts
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    if value is None:
        return ""
    raise ValueError("a turn without text")


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    """Every answer with all of the conversation before it as its prompt; lengths from characters."""
    rate = options.tokens_per_character
    builder = TraceBuilder(source.name, FORMAT.name)
    if rate is None:
        rate = DEFAULT_TOKENS_PER_CHARACTER
        builder.notes.append(
            f"lengths estimated: {rate:g} tokens per character assumed (--tokens-per-character to change)"
        )
    elif not 0.0 < rate <= 4.0:
        raise InputError(f"tokens per character must lie in (0, 4], got {rate!r}")
    else:
        builder.notes.append(f"lengths estimated: {rate:g} tokens per character")
    for number, (line, record) in enumerate(iterate_json(source, builder)):
        turns = record
        if isinstance(record, dict):
            turns = next(
                (record[k] for k in ("conversations", "conversation", "messages", "items") if k in record), None
            )
        if not isinstance(turns, list):
            builder.bad(line, "no list of turns")
            continue
        before = 0
        replies = 0
        try:
            for turn in turns:
                size = len(_text(turn))
                speaker = str(turn.get("from", turn.get("role", ""))).lower()
                if speaker in _REPLIES and size and before:
                    builder.add(
                        line, max(round(before * rate), 1), max(round(size * rate), 1), call={"session": number}
                    )
                    replies += 1
                before += size
        except (AttributeError, ValueError) as error:
            builder.bad(line, f"a turn that cannot be read: {error}")
            continue
        if not replies:
            builder.drop("conversation without a reply")
    return builder


FORMAT = Format("sharegpt", "ShareGPT-style conversations (JSON)", JSON, _recognise, _read)
