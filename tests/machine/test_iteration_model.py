"""The canonical model against the formula written out by hand, and its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.machine.iteration import IterationModel

M = IterationModel(t0=2e-3, w=5e-3, b=23e-6, c=4e-6, tau=128, g=50e-9, h=1e-6, e=200e-9, a=0.7e-9, x=2e-6)


def by_hand(n: float, kv: float, new: float, pairs: float, longest: float) -> float:
    total = n + new
    tiles = total if total <= 64 else 128 * math.ceil(total / 128)
    return (
        2e-3 + max(5e-3, 23e-6 * tiles) + 4e-6 * total + 1e-6 * n + max(50e-9 * kv, 200e-9 * longest)
        + 0.7e-9 * pairs + 2e-6 * n * new / total
    )  # fmt: skip


@pytest.mark.parametrize(
    "batch",
    [
        (1, 100, 0, 0, 100),
        (64, 65536, 0, 0, 1024),
        (65, 65000, 0, 0, 1000),
        (2, 8100, 0, 0, 8000),
        (0, 0, 512, 131328.0, 0),
        (129, 129000, 384, 73920.0, 4000),
        (300, 30000, 0, 0, 100),
    ],
)
def test_the_formula_term_by_term(batch: tuple[float, ...]) -> None:
    assert M.time(*batch) == pytest.approx(by_hand(*batch), rel=1e-14)


def test_empty_batch_takes_no_time() -> None:
    assert M.time(0) == 0.0
    assert M.time([0, 1], [0, 64]).tolist()[0] == 0.0


@given(
    st.floats(0, 500), st.floats(0, 1e6), st.floats(0, 9000), st.floats(0, 1e8), st.floats(0, 1e5), st.booleans()
)  # fmt: skip
def test_scalar_and_array_agree(n: float, kv: float, new: float, pairs: float, longest: float, experts: bool) -> None:
    model = M if not experts else IterationModel(t0=1e-3, w=1e-3, b=2e-5, w_experts=9e-3, expert_share=0.0625)
    alone = model.time(n, kv, new, pairs, longest)
    together = model.time([n, n], kv, new, pairs, longest)
    assert together == pytest.approx([alone, alone], rel=1e-12)


def test_broadcasting() -> None:
    assert M.time(np.arange(1, 4)[:, None], np.array([[100.0, 200.0]])).shape == (3, 2)


def test_w_plus_h_n() -> None:
    n = np.arange(1, 100)
    assert IterationModel(t0=8e-3, h=0.65e-3).time(n) == pytest.approx(8e-3 + 0.65e-3 * n)


def test_experts_are_streamed_as_they_are_touched() -> None:
    model = IterationModel(t0=0.0, w=1.0, w_experts=10.0, expert_share=0.25)
    assert model.time(1) == pytest.approx(1.0 + 10.0 * 0.25)
    assert model.time(2) == pytest.approx(1.0 + 10.0 * (1 - 0.75**2))
    assert model.at_batch().time(1) == 11.0
    assert model.at_batch(2).w == pytest.approx(1.0 + 10.0 * (1 - 0.75**2))
    assert M.at_batch(7) is M


def test_round_trip() -> None:
    assert IterationModel.from_dict(M.to_dict()) == M
    moe = IterationModel(t0=1e-3, w_experts=1e-3, expert_share=0.1)
    assert IterationModel.from_dict(moe.to_dict()) == moe
    assert all(isinstance(v, (int, float)) for v in IterationModel(t0=np.float64(1e-3)).to_dict().values())


def test_knee() -> None:
    assert M.knee_tokens == pytest.approx(5e-3 / 23e-6)
    assert IterationModel(t0=1e-3).knee_tokens == math.inf


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"t0": -1e-3}, "t0 must be finite and >= 0"),
        ({"t0": math.nan}, "t0 must be finite"),
        ({"t0": 1e-3, "tau": 0}, "tau must be an integer"),
        ({"t0": 1e-3, "tau": 1.5}, "tau must be an integer"),
        ({"t0": 1e-3, "expert_share": 1.5}, "expert_share"),
        ({"t0": 1e-3, "gg": 1.0}, "did you mean 'g'"),
        ({"w": 1e-3}, "t0 is missing"),
        ({"t0": "fast"}, "'fast' is not a number"),
    ],
)
def test_nonsense_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        IterationModel.from_dict(values)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        IterationModel(t0=-1.0, w=-1.0, b=math.inf)
    assert len(caught.value.problems) == 3


def test_joined_attention_by_hand() -> None:
    m = IterationModel(t0=1e-3, a=1e-9, g=50e-9, h=1e-6, e=50e-9, m=66.0, h_m=2e-6, e_m=1e-7)
    # four decodes of 1,000 tokens and a chunk of 100 after 900: A = 100 x 950.5, K = 4,000
    joined = 1e-9 * (95_050 + 66 * 4000) + 4 * 2e-6
    assert m.time(4, 4000, 100, 95_050, 1000, 1000) == pytest.approx(1e-3 + joined)
    # one long context: a block walks it; and the cache is not read faster than decodes alone read it
    assert m.time(4, 4000, 100, 95_050, 20_000, 1000) == pytest.approx(1e-3 + 20_000 * 1e-7)
    assert m.time(4, 4000, 1, 1001, 1000, 1000) == pytest.approx(1e-3 + 1e-9 * (1001 + 66 * 4000) + 8e-6)
    narrow = IterationModel(t0=1e-3, a=1e-10, g=50e-9, m=66.0)
    assert narrow.time(4, 4000, 1, 1.0) == pytest.approx(1e-3 + 4000 * 50e-9)
    # alone, each kernel is its own
    assert m.time(4, 4000) == pytest.approx(1e-3 + 4e-6 + 4000 * 50e-9)
    assert m.time(0, 0, 100, 95_050, 0, 1000) == pytest.approx(1e-3 + max(95_050e-9, 1e-4))
    values = np.asarray(
        m.time([4, 4, 0], [4000, 4000, 0], [100, 0, 100], [95_050, 0, 95_050], [1000, 1000, 0], [1000, 0, 1000])
    )
    assert values == pytest.approx(
        [m.time(4, 4000, 100, 95_050, 1000, 1000), m.time(4, 4000), m.time(0, 0, 100, 95_050, 0, 1000)]
    )
    assert IterationModel.from_dict(m.to_dict()) == m


def test_prompts_with_iterations_of_their_own() -> None:
    together = IterationModel(t0=2e-3, w=5e-3, b=20e-6, c=5e-6, tau=128, g=50e-9, h=1e-6, a=0.7e-9)
    apart = IterationModel(**together.to_dict(), apart=1.0)
    both = together.time(8, 4000) + together.time(0, 0, 300, 45150)
    assert apart.time(8, 4000, 300, 45150) == pytest.approx(both)
    assert apart.time([8, 8, 0], [4000, 4000, 0], [300, 0, 300], [45150, 0, 45150]) == pytest.approx(
        [both, together.time(8, 4000), together.time(0, 0, 300, 45150)]
    )
    assert IterationModel.from_dict(apart.to_dict()) == apart


@pytest.mark.parametrize("unit", [1.3, 2.08, 2.44, 2.65, 3.4])
def test_a_budget_of_whole_tiles_stays_one_in_other_units(unit: float) -> None:
    """A full batch of 512 tokens is four tiles of 128, also where tokens are counted in what a speculating step yields."""
    one = IterationModel(t0=1e-3, b=2e-5, tau=128)
    full = one.in_units(unit).time(0, 0, int(512 / unit))
    # the tile of a unit is a whole number: up to one part of 128/unit longer
    assert one.time(0, 0, 512) * 0.98 < full < one.time(0, 0, 512) * (1 + unit / 128)
