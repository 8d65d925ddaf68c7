"""How much of a prompt a compression keeps: ROUGE-L recall and TF-IDF cosine (FleetOpt paper, Table 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.compress.extra import require
from planner.compress.scores import words_of


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
