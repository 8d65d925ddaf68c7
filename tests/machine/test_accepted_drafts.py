"""Acceptance of draft tokens, as written and against measured curves."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from planner.errors import InputError
from planner.machine.speculation import METHODS, Speculation


def _curves(folder: Path) -> Iterator[list[float]]:
    found: dict[tuple[str, ...], list[float]] = {}
    text = (folder / "real" / "spec_decode" / "acceptance_length.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        key = (row["model"], row["method"], row["variant"], row["mode"])
        found.setdefault(key, []).append(float(row["acceptance_length"]))
    yield from found.values()


def test_two_numbers_describe_a_measured_curve(shared_data: Path) -> None:
    """First acceptance and decay from the lengths with one and three drafts give the others within 15%, 4% on average."""
    errors = []
    for lengths in _curves(shared_data):
        first = lengths[0] - 1.0
        decays = np.linspace(0.5, 1.0, 201)
        third = [Speculation.parse(f"mtp:k=3,accept={first},decay={d}").tokens_per_step for d in decays]
        decay = float(np.interp(lengths[2], third, decays))
        found = [
            Speculation.parse(f"mtp:k={k},accept={first},decay={decay}").tokens_per_step
            for k in range(1, len(lengths) + 1)
        ]
        errors.append(np.abs(np.array(found) / lengths - 1.0))
    assert np.concatenate(errors).mean() < 0.04
    # beyond six drafts two of the measured lengths fall again, which no acceptance gives
    assert max(e[:6].max() for e in errors) < 0.10


def test_steps_against_drawn_ones() -> None:
    """Mean number of steps for so many tokens, drawn token by token."""
    speculation = Speculation.parse("eagle3:k=4,accept=0.8,decay=0.9")
    random = np.random.default_rng(5)
    accepted = random.random((6_000, 400, 4)) < np.array(speculation.acceptance)
    tokens = 1 + np.cumprod(accepted, axis=2).sum(axis=2)
    assert tokens.mean() == pytest.approx(speculation.tokens_per_step, rel=2e-3)
    reached = np.cumsum(tokens, axis=1)
    for decodes in (40, 200, 399):
        steps = 1 + (reached < decodes).sum(axis=1)
        # the overshoot's law is that of a long run: and 6,000 draws of 150 steps know theirs to 0.05
        assert float(speculation.steps(float(decodes))) == pytest.approx(steps.mean(), abs=0.2)


def test_statements_of_the_acceptance_agree() -> None:
    by_rates = Speculation.parse("mtp:k=3,accept=0.8,decay=0.7")
    by_length = Speculation.parse(f"mtp:k=3,length={by_rates.tokens_per_step},decay=0.7")
    lengths = "/".join(str(Speculation.parse(f"mtp:k={k},accept=0.8,decay=0.7").tokens_per_step) for k in (1, 2, 3))
    by_curve = Speculation.parse(f"mtp:lengths={lengths}")
    assert by_length.acceptance == pytest.approx(by_rates.acceptance)
    assert by_curve.acceptance == pytest.approx(by_rates.acceptance)
    assert not by_rates.assumed
    assert all(Speculation.parse(f"{name}:k=2" + (",model=x" if name == "draft" else "")).assumed for name in METHODS)


def test_an_acceptance_of_ones_own() -> None:
    """Draft by draft, and from a server's counts: 900 of 1,000 drafts had their first token accepted, 720 their second."""
    listed = Speculation.parse("eagle3:accept=[.9,.8]")
    assert listed.acceptance == (0.9, 0.8) and not listed.assumed
    assert Speculation.parse("eagle3:accept=.9/.8").acceptance == listed.acceptance
    assert Speculation.parse("eagle3:drafts=1000,accepted=900/720").acceptance == pytest.approx(listed.acceptance)
    assert listed.tokens_range == (listed.tokens_per_step, listed.tokens_per_step)


def test_the_default_band_holds_the_published_curves(shared_data: Path) -> None:
    for lengths in _curves(shared_data):
        for k, length in enumerate(lengths, 1):
            low, high = Speculation.parse(f"mtp:k={k}").tokens_range
            assert 0.97 * low < length < 1.03 * high, (k, length)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("mtp:drafts=100", "belong together"),
        ("mtp:drafts=100,accepted=80/90", "each draft adds at most"),
        ("mtp:accept=[.8,1.2]", "accept=1.2: must lie in"),
        ("eagle2:k=3", "did you mean 'eagle"),
        ("mtp:k=0", "k=0: must lie in"),
        ("mtp:accept=1.4", "accept=1.4: must lie in"),
        ("mtp:acept=0.4", "'acept=0.4' is none of"),
        ("mtp:k=2,length=3.5", "length=3.5: must lie in"),
        ("mtp:lengths=1.5/2.4", "each draft adds at most"),
        ("mtp:accept=0.5,length=1.5", "give one"),
        ("draft:k=3", "needs model=NAME"),
        ("mtp:k=x", "k=x: not a number"),
    ],
)
def test_what_is_wrong_is_told(written: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Speculation.parse(written)
