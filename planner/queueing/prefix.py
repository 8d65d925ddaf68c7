"""A prefix that begins every longer prompt: what requests keep for themselves beside it, and what a cache supplies of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def own_tokens(prompt_tokens: Floats, shared_prefix: float) -> Floats:
    """What requests keep of their prompts for themselves where every longer prompt begins with `shared_prefix` tokens, which
    memory keeps once; same shape as `prompt_tokens` [tokens].

    Examples
    --------
    >>> own_tokens(np.array([900.0, 100.0]), 256.0).tolist()
    [644.0, 100.0]
    """
    if shared_prefix <= 0.0:
        return prompt_tokens
    return np.where(prompt_tokens > shared_prefix, prompt_tokens - shared_prefix, prompt_tokens)


def found_share(prompt_tokens: Floats, share: Floats, shared_prefix: float) -> Floats:
    """Share of prompts that a cache supplies where `share` of each repeats and the longer ones begin with `shared_prefix`
    tokens that all have: the larger of the two; all of one shape [1].

    Examples
    --------
    >>> found_share(np.array([1000.0, 1000.0, 100.0]), np.array([0.1, 0.5, 0.1]), 256.0).tolist()
    [0.256, 0.5, 0.1]
    """
    own = own_tokens(prompt_tokens, shared_prefix)
    return share if own is prompt_tokens else np.maximum(share, 1.0 - own / np.maximum(prompt_tokens, 1.0))
