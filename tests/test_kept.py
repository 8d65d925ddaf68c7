"""What questions share is made once while they are answered, and no longer."""

from __future__ import annotations

import pytest

import planner.shared.kept
from planner.shared.kept import keeping, once


def test_it_is_kept_inside_and_forgotten_outside() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [once("a", make), once("a", make)] == [1, 2]
    with keeping():
        with keeping():
            assert once("a", make) == 3
        # the inner block is part of the outer one
        assert [once("a", make), once("b", make)] == [3, 4]
    assert once("a", make) == 5


def test_what_was_asked_for_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner.shared.kept, "MOST", 2)
    with keeping():
        for name in ("a", "b", "a", "c"):
            once(name, lambda name=name: name)  # type: ignore[misc]
        assert [once(name, lambda: "anew") for name in ("a", "c", "b")] == ["a", "c", "anew"]
