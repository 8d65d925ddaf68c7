"""Nothing is left to the long checks unlisted, and nothing without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from longer import LIST, rows, text


def test_the_list_is_current() -> None:
    assert LIST.read_text(encoding="utf-8") == text(), "run python tests/longer.py"


def test_marks_are_found_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "CASES = [1, pytest.param(2, marks=pytest.mark.long('two takes a minute'))]\n"
        "@pytest.mark.parametrize('k', CASES)\ndef test_a(k): ...\n"
        "@pytest.mark.long('an hour')\ndef test_b(): ...\n"
        "@pytest.mark.parametrize('k', [pytest.param(3, marks=() if x else pytest.mark.long('three'))])\ndef test_c(k): ...\n"
        "def test_d(): ...\n"
    )
    assert rows(file) == [
        ("`test_a` (some)", "two takes a minute"),
        ("`test_b`", "an hour"),
        ("`test_c` (some)", "three"),
    ]
    file.write_text("@pytest.mark.long\ndef test_e(): ...\n")
    with pytest.raises(ValueError, match=r"test_it\.py:1: pytest\.mark\.long without a reason"):
        rows(file)
