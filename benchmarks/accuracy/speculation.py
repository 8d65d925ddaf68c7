"""Tokens a step of speculative decoding yields (`real/spec_decode`): by the method's default, and from one measured length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.serving import table
from planner.iteration.speculation import METHODS, Speculation

ONE = 3
"""Draft tokens of the one measured length."""


def acceptance(data: Path) -> Iterator[Pair]:
    """Mean acceptance lengths of every curve at every number of drafts."""
    curves: dict[tuple[str, ...], dict[int, float]] = {}
    for row in table(data / "real" / "spec_decode" / "acceptance_length.csv"):
        key = (row["model"], row["method"], row["variant"], row["mode"])
        curves.setdefault(key, {})[int(row["draft_tokens"])] = float(row["acceptance_length"])
    for key, lengths in curves.items():
        # a block of drafts at once (dspark) is a trained layer's, as EAGLE-3's are
        method = key[1] if key[1] in METHODS else "eagle3"
        for k, measured in lengths.items():
            name = f"{' '.join(filter(None, key))} k={k}"
            found = Speculation.parse(f"{method}:k={k}")
            low, high = found.tokens_range
            inside = max(high / found.tokens_per_step - 1.0, 1.0 - low / found.tokens_per_step)
            yield Pair("speculation", f"default_k{k}", name, found.tokens_per_step, measured, inside)
            if ONE in lengths and k > ONE:
                known = Speculation.parse(f"{method}:k={ONE},length={lengths[ONE]}")
                beyond = Speculation.parse(f"{method}:k={k},accept={known.acceptance[0]}")
                yield Pair("speculation", f"from_k{ONE}_k{k}", name, beyond.tokens_per_step, measured)
