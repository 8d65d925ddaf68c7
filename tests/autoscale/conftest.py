"""Fixtures of the scalers' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.autoscale import derive, windows


@pytest.fixture(scope="module")
def few_paths() -> Iterator[None]:
    """A rule is derived from one path, and what it rests on from a quarter of the requests: for what is true of any rule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derive, "PATHS", 1)
        for name, number in (("REQUESTS", 15_000), ("REPLAYED", 1_500), ("LOOKS", 60)):
            patch.setattr(windows, name, number)
        yield
