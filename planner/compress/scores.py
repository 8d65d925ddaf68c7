"""What each sentence of a prompt is worth: TextRank, position, TF-IDF and novelty (FleetOpt paper, section 5.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.compress.tokens import require
from planner.errors import InputError, refuse_unknown

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

FloatArray = NDArray[np.float64]

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")
"""The same in lower-case ASCII, in half the time."""
_UNSPACED = re.compile(r"[぀-ヿ㐀-鿿฀-๿]")
"""Scripts written without spaces between words: pairs of characters stand for words."""


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """Weights of the four parts of a sentence's score [1]; the published ones (section 5.2).

    Parameters
    ----------
    textrank
        Centrality in the graph of similar sentences (Mihalcea and Tarau, 2004).
    position
        Nearness to the beginning or the end.
    tfidf
        Density of rare words.
    novelty
        How little a sentence repeats an earlier one.
    """

    textrank: float = 0.20
    position: float = 0.40
    tfidf: float = 0.35
    novelty: float = 0.05

    def __post_init__(self) -> None:
        values = [getattr(self, f.name) for f in fields(self)]
        if any(not np.isfinite(v) or v < 0.0 for v in values) or sum(values) <= 0.0:
            raise InputError(f"weights must not be negative and not all zero, got {values}")

    @classmethod
    def parse(cls, text: str) -> ScoreWeights:
        """``"textrank=0.2,position=0.4"``: parts not named keep their published weight.

        >>> ScoreWeights.parse("novelty=0").novelty
        0.0
        """
        known = sorted(f.name for f in fields(cls))
        given: dict[str, float] = {}
        for item in text.split(","):
            name, _, value = item.partition("=")
            refuse_unknown("weights:", name.strip(), known)
            try:
                given[name.strip()] = float(value)
            except ValueError:
                raise InputError(f"weights: {item.strip()!r} is not NAME=NUMBER") from None
        return cls(**given)


def words_of(text: str) -> list[str]:
    """Words in lower case; where a script has no spaces, pairs of neighbouring characters.

    >>> words_of("Don't panic: 42 GPUs!"), words_of("容量规划")
    (["don't", 'panic', '42', 'gpus'], ['容量', '量规', '规划'])
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    found = _WORD.findall(text.lower())
    if not _UNSPACED.search(text):
        return found
    words: list[str] = []
    for word in found:
        if _UNSPACED.search(word) and len(word) > 1:
            words.extend(word[k : k + 2] for k in range(len(word) - 1))
        else:
            words.append(word)
    return words


MOST_COMPARED = 2000
"""Sentences that are compared with each other: of a longer text so many at a time, as their square is held in memory."""


def textrank(similarity: FloatArray, damping: float = 0.85, rounds: int = 30) -> FloatArray:
    r"""Centrality of sentences: :math:`s = (1 - d)/n + d\, A^T s`, A the similarities with rows summing to one.

    Parameters
    ----------
    similarity
        Symmetric similarities in [0, 1], shape (n, n); the diagonal is ignored.
    damping
        d of PageRank, in [0, 1).
    rounds
        Power iterations; the change after 30 is below 1 % of a score at d = 0.85.

    Returns
    -------
    ndarray
        Scores that sum to one, shape (n,). A sentence like no other keeps the teleport share.

    References
    ----------
    Mihalcea, Tarau (2004), TextRank: bringing order into texts, eq. 1. Brin, Page (1998).
    """
    links = np.array(similarity, dtype=np.float64)
    np.fill_diagonal(links, 0.0)
    n = links.shape[0]
    out = links.sum(axis=1)
    share = np.divide(1.0, out, out=np.zeros_like(out), where=out > 0.0)
    lonely = out <= 0.0
    score = np.full(n, 1.0 / n)
    for _ in range(rounds):
        dangling = score[lonely].sum() / n
        score = (1.0 - damping) / n + damping * ((score * share) @ links + dangling)
    return score


def position(count: int, depth: float = 0.5) -> FloatArray:
    """Worth of a place: 1 at both ends, ``1 - depth`` in the middle, a parabola between, shape (count,).

    Readers and models use what stands first and last more than what stands between (Liu et al., TACL 2024); the paper
    gives the weight of this part, not its shape.
    """
    if count == 1:
        return np.ones(1)
    x = np.linspace(-1.0, 1.0, count)
    return 1.0 - depth * (1.0 - x * x)


def novelty(similarity: FloatArray) -> FloatArray:
    """One minus the largest similarity to an earlier sentence, shape (n,)."""
    earlier = np.tril(similarity, k=-1)
    return np.asarray(1.0 - np.max(earlier, axis=1, initial=0.0))


def sentence_scores(sentences: Sequence[str], weights: ScoreWeights | None = None) -> FloatArray:
    """Score of every sentence: the weighted sum of the four parts, each scaled to a maximum of one.

    Parameters
    ----------
    sentences
        In their order.
    weights
        Default: the published ones.

    Returns
    -------
    ndarray
        In [0, sum of weights], shape (len(sentences),).
    """
    weights = weights or ScoreWeights()
    count = len(sentences)
    if count == 0:
        return np.zeros(0)
    total = weights.position * position(count)
    words = [words_of(s) for s in sentences]
    if not any(words):
        return total
    counts = _counts(words)
    weighting = require("sklearn.feature_extraction.text").TfidfTransformer().fit(counts)
    rows = weighting.transform(counts)
    # mean weight of a word: how informative, whatever the length
    density = (counts @ weighting.idf_) / np.maximum([len(w) for w in words], 1)
    total += weights.tfidf * density / density.max()
    for start in range(0, count, MOST_COMPARED):
        stretch = slice(start, start + MOST_COMPARED)
        similarity = (rows[stretch] @ rows[stretch].T).toarray()
        central = textrank(similarity)
        total[stretch] += weights.textrank * central / central.max()
        total[stretch] += weights.novelty * np.clip(novelty(similarity), 0.0, 1.0)
    return total


def _counts(words: Sequence[Sequence[str]]) -> csr_matrix:
    """How often each word stands in each sentence; scikit-learn's own counter takes four times as long."""
    from scipy import sparse

    place: dict[str, int] = {}
    columns = [place.setdefault(w, len(place)) for ws in words for w in ws]
    ends = np.cumsum([0, *(len(ws) for ws in words)])
    counts = sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(words), len(place)))
    counts.sum_duplicates()
    return counts
