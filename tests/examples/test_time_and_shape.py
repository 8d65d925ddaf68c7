from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.long("the two examples of many plans; the others in CI")
@pytest.mark.parametrize(("name", "told"), [("disaggregation", "disaggregated"), ("day_and_night", "saved")])
def test_runs(name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert told in capsys.readouterr().out
