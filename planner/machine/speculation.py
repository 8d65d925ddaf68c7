r"""Speculative decoding: a step proposes several tokens, verifies them in one iteration and keeps those the model agrees with.

The i-th draft token is accepted with probability :math:`p\,d^{i-1}` once those before it were: first acceptance p, decay d. A
step then yields

.. math:: \alpha(k) = 1 + \sum_{j=1}^{k} \prod_{i=1}^{j} p\,d^{i-1}

tokens on average. With p and d of its own this form is within 2.3% of each published curve of SPEED-Bench (InferenceX; MTP,
EAGLE-3 and others, one to eight drafts), a constant acceptance within 19%. Decays are .91 to .97 but for DeepSeek-V4's, .73.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import InputError, did_you_mean
from planner.shared.documents import shipped

_KNOWN = shipped(Path(__file__).with_suffix(".yaml"))
METHODS: Mapping[str, tuple[float, str]] = {name: tuple(of) for name, of in _KNOWN["methods"].items()}
"""Method -> first acceptance where none is given, and what it is."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a server speculates.

    Parameters
    ----------
    method
        A key of :data:`METHODS`.
    draft_tokens
        Tokens proposed per step, k.
    acceptance
        Probability that the i-th is accepted once those before it were, i = 1..k [1].
    draft_model
        Name of the small model; method ``draft`` only.
    assumed
        Whether the acceptance is a default of the method.
    """

    method: str
    draft_tokens: int
    acceptance: tuple[float, ...]
    draft_model: str = ""
    assumed: bool = False

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens a step yields, the one it verifies with included [tokens].

        >>> Speculation("mtp", 3, (0.8, 0.8 * 0.735, 0.8 * 0.735**2)).tokens_per_step
        2.473...
        """
        return 1.0 + float(np.cumprod(self.acceptance).sum())

    @property
    def tokens_range(self) -> tuple[float, float]:
        """What a step yields with the lowest and the highest published acceptance; as it is where the acceptance is known [tokens].

        >>> [round(u, 2) for u in Speculation.parse("mtp:k=3").tokens_range]
        [2.44, 3.45]
        """
        if not self.assumed:
            return self.tokens_per_step, self.tokens_per_step
        first, usual = self.acceptance[0], METHODS["mtp"][0]
        low, high = (
            1.0 + float(np.cumprod(_geometric(min(first * (end / usual), 1.0), decay, self.draft_tokens)).sum())
            for end, decay in _KNOWN["ends"]
        )
        return low, high

    @property
    def _squared_tokens(self) -> float:
        """E[X^2] of steps of X tokens, from P(X >= j) [tokens^2]."""
        reached = np.concatenate(([1.0], np.cumprod(self.acceptance)))
        return float(reached @ (2.0 * np.arange(1, reached.size + 1) - 1.0))

    @property
    def overshoot(self) -> float:
        """Mean tokens the last step of a request is past its end, (E[X^2]/E[X] - 1)/2 for steps of X tokens [tokens]."""
        return 0.5 * (self._squared_tokens / self.tokens_per_step - 1.0)

    def steps(self, decodes: ArrayLike) -> NDArray[np.float64]:
        """Steps for so many tokens after the first, at least one where there is any.

        >>> Speculation("mtp", 1, (0.8,)).steps([0.0, 1.0, 180.0]).round(2).tolist()
        [0.0, 1.0, 100.25]
        """
        d = np.asarray(decodes, dtype=np.float64)
        return np.where(d > 0.0, np.maximum((d + self.overshoot) / self.tokens_per_step, 1.0), 0.0)

    def steps_sd(self, decodes: ArrayLike) -> NDArray[np.float64]:
        """Standard deviation of the steps for so many tokens: of D tokens sqrt(D Var[X]/E[X]^3), as of any renewal process.

        >>> Speculation("mtp", 1, (0.8,)).steps_sd([0.0, 180.0]).round(2).tolist()
        [0.0, 2.22]
        """
        u = self.tokens_per_step
        variance = max(self._squared_tokens - u**2, 0.0) / u**3
        return np.sqrt(np.maximum(np.asarray(decodes, dtype=np.float64), 0.0) * variance)

    def draw_steps(self, decodes: ArrayLike, rng: np.random.Generator) -> NDArray[np.int64]:
        """Steps that requests with so many tokens after the first took, drawn: normal between the fewest and one a token."""
        return self.steps_at(decodes, rng.standard_normal(np.shape(decodes))).astype(np.int64)

    def steps_at(self, decodes: ArrayLike, normal: ArrayLike) -> NDArray[np.float64]:
        """Whole steps for so many tokens after the first where chance is so many standard deviations from the mean.

        >>> Speculation("mtp", 1, (0.8,)).steps_at([0.0, 180.0, 180.0], [1.0, 0.0, 2.0]).tolist()
        [0.0, 100.0, 105.0]
        """
        d = np.asarray(decodes, dtype=np.float64)
        drawn = np.rint(self.steps(d) + self.steps_sd(d) * np.asarray(normal))
        return np.asarray(np.clip(drawn, np.ceil(d / (1.0 + self.draft_tokens)), d))

    def vllm_config(self) -> str:
        """As vLLM's ``--speculative-config`` takes it; the draft's checkpoint is the reader's to name.

        >>> Speculation("mtp", 1, (0.8,)).vllm_config()
        '{"method": "mtp", "num_speculative_tokens": 1}'
        """
        config: dict[str, object] = {"method": {"draft": "draft_model"}.get(self.method, self.method)}
        if self.method in ("eagle", "eagle3"):
            config["model"] = "DRAFT_CHECKPOINT"
        elif self.draft_model:
            config["model"] = self.draft_model
        return json.dumps(config | {"num_speculative_tokens": self.draft_tokens})

    def __str__(self) -> str:
        return f"{self.method}:k={self.draft_tokens}"

    @classmethod
    def parse(cls, text: str) -> Speculation:
        """Read ``METHOD:k=3,accept=0.8,decay=0.95``, ``...,accept=[.8,.7,.6]``, ``...,length=2.4`` and others.

        ``accept`` is the chance of the first draft, or that of each once those before it were accepted. ``length`` is the mean
        acceptance length a server reports (accepted + 1), ``lengths`` that with 1, 2, ... drafts. ``drafts`` and ``accepted``
        are counts of a vLLM server: ``vllm:spec_decode_num_drafts_total`` and
        ``vllm:spec_decode_num_accepted_tokens_per_pos_total`` by position.

        Raises
        ------
        InputError
            Unknown method or key, a value out of its range, a curve no acceptance gives.

        Examples
        --------
        >>> round(Speculation.parse("mtp:k=1,length=1.79").acceptance[0], 2)
        0.79
        >>> Speculation.parse("eagle3:k=2,accept=0.8,decay=0.9").acceptance
        (0.8, 0.7200000000000001)
        >>> Speculation.parse("eagle3:accept=[.8,.7,.6]").acceptance
        (0.8, 0.7, 0.6)
        >>> [round(a, 9) for a in Speculation.parse("eagle3:drafts=1000,accepted=800/600/300").acceptance]
        [0.8, 0.75, 0.5]
        """
        method, _, rest = text.partition(":")
        method = method.strip().lower()
        if method not in METHODS:
            raise InputError(
                f"unknown speculative method {method!r}{did_you_mean(method, METHODS)}",
                f"Known: {', '.join(METHODS)}; e.g. eagle3:k=3,accept=0.8,decay=0.95 or eagle3:accept=[.8,.7,.6].",
            )
        given: dict[str, str] = {}
        # a list in brackets holds commas of its own
        rest = re.sub(r"\[([^\]]*)\]", lambda found: found.group(1).replace(",", "/"), rest)
        for part in filter(None, (p.strip() for p in rest.split(","))):
            key, equals, value = part.partition("=")
            if not equals or key.strip() not in _KEYS:
                raise InputError(f"{part!r} is none of {', '.join(f'{k}=' for k in _KEYS)}{did_you_mean(key, _KEYS)}")
            given[key.strip()] = value.strip()
        return cls._of(method, given)

    @classmethod
    def _of(cls, method: str, given: Mapping[str, str]) -> Speculation:
        """From ``key=value`` pairs: an acceptance by position, from a curve or counts, a mean length, or a first chance and
        decay."""
        if told := [k for k in ("length", "lengths", "accept", "accepted") if k in given][1:]:
            raise InputError(f"{told[0]}= beside another statement of the acceptance: give one")
        first, _ = METHODS[method]
        decay = _number(given, "decay", _KNOWN["decay"], 0.0, 1.0)
        positions = _positions(given)
        k = round(
            _number(given, "k", float(len(positions) or (1 if method == "mtp" else 3)), 1.0, _KNOWN["most_drafts"])
        )
        if positions:
            # beyond the last one it stays as it is there
            acceptance = (positions + (positions[-1],) * k)[:k]
        elif "length" in given:
            acceptance = _of_length(_number(given, "length", 1.0, 1.0, k + 1.0), k, decay)
        else:
            acceptance = _geometric(_number(given, "accept", first, 0.0, 1.0), decay, k)
        if (method == "draft") != ("model" in given):
            raise InputError("the draft method needs model=NAME, the others have none")
        assumed = not {"accept", "length", "lengths", "accepted"} & set(given)
        return cls(method, k, acceptance, given.get("model", ""), assumed)


_KEYS = ("k", "accept", "decay", "length", "lengths", "drafts", "accepted", "model")


def _positions(given: Mapping[str, str]) -> tuple[float, ...]:
    """Acceptance of each draft once those before it were accepted, where it is stated draft by draft; else none."""
    if "/" in given.get("accept", ""):
        return tuple(_value("accept", v, 0.0, 1.0) for v in given["accept"].split("/"))
    if ("drafts" in given) != ("accepted" in given):
        raise InputError("drafts= and accepted= belong together: counts of drafts, and of tokens accepted at 1/2/...")
    if "accepted" in given:
        drafts = _value("drafts", given["drafts"], 1.0, 1e18)
        counts = [_value("accepted", v, 0.0, 1e18) for v in given["accepted"].split("/")]
        return _of_reached([c / drafts for c in counts], f"accepted={given['accepted']}")
    if "lengths" in given:
        lengths = [_value("lengths", v, 1.0, 100.0) for v in given["lengths"].split("/")]
        return _of_reached(np.diff([1.0, *lengths]).tolist(), f"lengths={given['lengths']}")
    return ()


def _value(key: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text.rstrip("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise InputError(f"{key}={text}: not a number") from None
    if not low <= value <= high:
        raise InputError(f"{key}={text}: must lie in [{low:g}, {high:g}]")
    return value


def _number(given: Mapping[str, str], key: str, default: float, low: float, high: float) -> float:
    return _value(key, given[key], low, high) if key in given else default


def _geometric(first: float, decay: float, k: int) -> tuple[float, ...]:
    return tuple(first * decay**i for i in range(k))


def _of_length(length: float, k: int, decay: float) -> tuple[float, ...]:
    """First acceptance from the mean length with k drafts: the length rises with it."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        found = 1.0 + float(np.cumprod(_geometric(middle, decay, k)).sum())
        low, high = (middle, high) if found < length else (low, middle)
    return _geometric(high, decay, k)


def _of_reached(reached: list[float], told: str) -> tuple[float, ...]:
    """Acceptance of each draft from the share of steps in which it was accepted."""
    before = [1.0, *reached[:-1]]
    if any(r < 0.0 or r > b + 1e-9 for r, b in zip(reached, before, strict=True)):
        raise InputError(f"{told}: each draft adds at most what the one before added")
    return tuple(min(r / b, 1.0) if b > 0.0 else 0.0 for r, b in zip(reached, before, strict=True))
