"""How many tokens a text is: exactly by a tokenizer file, or by bytes per token learned per category."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from planner.errors import InputError
from planner.shared.documents import printable, whole
from planner.shared.extras import installing
from planner.shared.paths import at_home
from planner.units import LEAST, MOST

DEFAULT_BYTES_PER_TOKEN = 3.0
"""Bytes per token assumed before anything is learned: below what tokenizers reach on prose, so that counts err high."""


def require(module: str) -> ModuleType:
    """The module, or an :class:`InputError` that says which extra brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"prompt compression needs {error.name or module}, which is not installed",
            f"Install the extra: {installing('compress')}",
        ) from None


TokenCounter = Callable[[Sequence[str]], list[int]]
"""Tokens of several texts, each by itself."""


def by_bytes(bytes_per_token: float = DEFAULT_BYTES_PER_TOKEN) -> TokenCounter:
    """Counts UTF-8 bytes over a constant, rounded up.

    Parameters
    ----------
    bytes_per_token
        Bytes of one token [bytes], of a size that things have (1e-15 to 1e15).

    >>> by_bytes(4.0)(["fleet", ""])
    [2, 0]
    """
    if not LEAST <= bytes_per_token <= MOST:
        raise InputError(f"bytes_per_token must be from {LEAST:g} to {MOST:g} bytes, got {bytes_per_token!r}")
    return lambda texts: [math.ceil(len(t.encode("utf-8", "surrogatepass")) / bytes_per_token) for t in texts]


def by_tokenizer(path: str | Path) -> TokenCounter:
    """Counts exactly by a Hugging Face ``tokenizer.json``, without the special tokens a chat template adds.

    Parameters
    ----------
    path
        The file, or a folder that holds one.
    """
    file = at_home(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"{path}: no such tokenizer file", "Give the tokenizer.json of the served model.")
    tokenizer = require("tokenizers").Tokenizer
    try:
        encode = tokenizer.from_file(str(file)).encode_batch
    # the library raises a bare Exception with its parser's message
    except Exception as error:
        raise InputError(f"{path}: not a tokenizer.json: {printable(str(error))}") from None

    def count(texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        try:
            return [len(e.ids) for e in encode([whole(t) for t in texts], add_special_tokens=False)]
        # a file may load and yet lack what its model needs (a token for unknown words): only a text shows it, by a bare Exception
        except Exception as error:
            raise InputError(f"{path}: this tokenizer cannot read a text: {printable(str(error))}") from None

    return count


class LearnedBytes:
    """Bytes per token by category, learned from the counts an engine reports (the paper's exponential moving average)."""

    WEIGHT = 0.05
    """Of a new observation [1]."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def observe(self, category: str, size_bytes: int, tokens: int) -> None:
        """Learn from a prompt of `size_bytes` that was `tokens` tokens to the engine."""
        # an engine that counts more tokens than there can be tells nothing
        if size_bytes <= 0 or not 0 < tokens <= size_bytes / LEAST:
            return
        value = size_bytes / tokens
        mean, variance = self._known.get(category, (value, (0.1 * value) ** 2 / (1.0 - self.WEIGHT)))
        step = value - mean
        variance = (1.0 - self.WEIGHT) * (variance + self.WEIGHT * step * step)
        self._known[category] = mean + self.WEIGHT * step, variance

    def bytes_per_token(self, category: str) -> float:
        """The estimate used for counting [bytes]; the default until something was observed."""
        if category not in self._known:
            return DEFAULT_BYTES_PER_TOKEN
        mean, variance = self._known[category]
        # two standard deviations lower, so that a count errs high
        return max(mean - 2.0 * math.sqrt(variance), 0.25 * mean)


def counter_from(tokenizer: str | Path | None, bytes_per_token: float | None) -> TokenCounter:
    """The counter the options ask for.

    Raises
    ------
    InputError
        Both given, or neither usable.
    """
    if tokenizer is not None and bytes_per_token is not None:
        raise InputError("--tokenizer and --bytes-per-token are two ways to count tokens", "Give one.")
    if tokenizer is not None:
        return by_tokenizer(tokenizer)
    return by_bytes(DEFAULT_BYTES_PER_TOKEN if bytes_per_token is None else bytes_per_token)
