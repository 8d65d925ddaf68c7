"""``~`` and patterns: what a shell makes of them, whoever asks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from planner import evaluate
from planner.catalog.load import gpus
from planner.catalog.prices import offers, save_offers, user_directory
from planner.errors import InputError
from planner.shared.paths import matching
from planner.workload.importing import read_workload


def test_a_home_that_nobody_knows_is_a_file_that_is_not_there() -> None:
    for ask in (lambda: evaluate("~no-such-user/plan.yaml"), lambda: read_workload("~no-such-user/*.csv")):
        with pytest.raises(InputError, match=r"no-such-user.*(no such file|matches)"):
            ask()


def test_without_a_home_prices_are_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEETOPT_PRICES", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    # as where HOME is not set and the user has no entry
    monkeypatch.setattr("os.path.expanduser", str)
    monkeypatch.chdir(tmp_path)
    assert user_directory().parts[0] == "~"
    offers.cache_clear()
    found = offers(tuple(gpus()))
    assert found
    with pytest.raises(InputError, match="no home folder"):
        save_offers(found[:1], "mine")
    assert not list(tmp_path.iterdir())
    offers.cache_clear()


@pytest.mark.parametrize(
    "pattern",
    [
        "*.csv",
        "**/*.csv",
        "a/**/*.csv",
        "a/**",
        "**/**/b/*.csv",
        "**/b/**/*.csv",
        "link/**/*.csv",
        "none/**/*",
        "a[[]x/*",
    ],
)
def test_patterns_are_what_the_shell_makes_of_them(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "one.csv",
        "a/two.csv",
        "a/b/three.csv",
        "a/b/b/four.csv",
        ".hidden/five.csv",
        "a/.six.csv",
        "a[x/seven.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("a")
    monkeypatch.chdir(tmp_path)
    line = f"shopt -s globstar nullglob; for f in {pattern}; do [ -f $f ] && echo $f; done; true"
    shell = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.split()
    assert matching(pattern) == sorted(set(shell))
    assert matching(f"{tmp_path}/{pattern}") == sorted({f"{tmp_path}/{name}" for name in shell}) or "[[]" in pattern


def test_links_that_lead_upwards_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("")
    for name in ("up", "again"):
        # either would double the folders forty times
        (tmp_path / name).symlink_to(".")
    assert matching(f"{tmp_path}/**/*.csv") == [f"{tmp_path}/t.csv"]
