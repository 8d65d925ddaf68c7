from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.workload.hours import hourly_rates, profile_names
from planner.workload.workload import Workload


def write(folder: Path, text: str) -> Path:
    path = folder / "hours.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_have_mean_one(name: str) -> None:
    hours = hourly_rates(name)
    assert len(hours.relative) == 24
    assert sum(hours.relative) / 24 == pytest.approx(1.0)
    assert hours.mean_rate_per_s is None


def test_one_value_per_line_is_relative(tmp_path: Path) -> None:
    hours = hourly_rates(write(tmp_path, "# comment\n" + "\n".join(["2"] * 12 + ["6"] * 12)))
    assert hours.relative == (0.5,) * 12 + (1.5,) * 12
    assert hours.mean_rate_per_s is None
    assert hours.rates_per_s(100.0)[23] == 150.0
    assert hours.rates_per_s(100.0, "peak")[0] == pytest.approx(100.0 / 3.0)


def test_rates_per_second_fix_the_mean(tmp_path: Path) -> None:
    rows = "".join(f"{h},{10 + h}\n" for h in range(168))
    hours = hourly_rates(write(tmp_path, "hour,rate_per_s\n" + rows))
    assert hours.mean_rate_per_s == pytest.approx(93.5)
    assert hours.rates_per_s(93.5)[7] == pytest.approx(17.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1\n2\n3\n", "3 hours; a day has 24"),
        ("", "is empty"),
        ("\n".join(["1"] * 23 + ["x"]), "row 24: 'x' is not a rate"),
        ("\n".join(["0"] * 24), "not all 0"),
        ("\n".join(["1"] * 23 + ["-1"]), "must not be negative"),
        ("hour,load\n0,1\n", "no column relative_rate or rate_per_s"),
        ("hour,relative_rate\n" + "".join(f"{h + 1},1\n" for h in range(24)), "expected hour 0, got '1'"),
    ],
)
def test_refuses(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        hourly_rates(write(tmp_path, text))


def test_unknown_service_names_the_known() -> None:
    with pytest.raises(InputError, match="servegen-m-small"):
        hourly_rates("servegen-m-smal")


def test_a_workload_of_an_hour_has_no_hours() -> None:
    with pytest.raises(InputError, match="less than a day"):
        hourly_rates(None, Workload.from_file("azure"))
