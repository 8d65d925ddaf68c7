from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import yaml

import planner as fo
from planner.ask.schedule import Schedule
from planner.report import formatter
from planner.report.exports.schedule.cron import running

pytestmark = pytest.mark.usefixtures("few_replayed")

HOUR_MIN = 60


def made(tmp: Path, weekly: bool, startup: str, dwell: str) -> Schedule:
    hours = 168 if weekly else 24
    path = tmp / "hours.csv"
    path.write_text("\n".join(str(1 + (h * h) % 5 + 3 * (8 <= h % 24 < 20)) for h in range(hours)))
    return fo.schedule(
        workload="azure", slo=2.0, rate=300, method="occupancy", burst="poisson", pools=1, hours=path,
        startup=startup, dwell=dwell,
    )  # fmt: skip


def moment(cron: str) -> int:
    """Minutes since Monday 0:00 (or midnight) of five cron fields."""
    minute, hour, _, _, day = cron.split()
    return (0 if day == "*" else (int(day) - 1) % 7 * 24 * HOUR_MIN) + int(hour) * HOUR_MIN + int(minute)


def wanted(schedule: Schedule, minute: int) -> int:
    """Replicas that run at a minute: the most that serve from now until one start-up time later."""
    replicas = schedule.pools[0].replicas
    later = range(minute, minute + int(schedule.elasticity.startup_s // 60) + 1)
    return max(replicas[m // HOUR_MIN % len(replicas)] for m in later)


CASES = [(False, "0", "0"), (False, "4min", "3h"), (False, "150min", "2h"), (True, "10min", "4h")]


@pytest.mark.parametrize(("weekly", "startup", "dwell"), CASES)
def test_the_crontab_replayed_is_the_schedule(tmp_path: Path, weekly: bool, startup: str, dwell: str) -> None:
    schedule = made(tmp_path, weekly, startup, dwell)
    lines = [x for x in formatter("cron", "schedule")(schedule).splitlines() if x[0].isdigit()]
    events = sorted((moment(" ".join(x.split()[:5])), int(x.rpartition("=")[2])) for x in lines)
    assert len(events) == len(running(schedule.pools[0], schedule.elasticity.startup_s))
    for minute in range(0, schedule.hours * HOUR_MIN, 7):
        past = [n for t, n in events if t <= minute] or [events[-1][1]]
        assert past[-1] == wanted(schedule, minute)


@pytest.mark.parametrize(("weekly", "startup", "dwell"), CASES)
def test_the_keda_triggers_replayed_are_the_schedule(tmp_path: Path, weekly: bool, startup: str, dwell: str) -> None:
    schedule = made(tmp_path, weekly, startup, dwell)
    spec = yaml.safe_load(formatter("keda", "schedule")(schedule))["spec"]
    assert spec["maxReplicaCount"] == schedule.pools[0].peak
    for minute in range(0, schedule.hours * HOUR_MIN, 7):
        active = [spec["minReplicaCount"]]
        for trigger in spec["triggers"]:
            data = trigger["metadata"]
            start, end = moment(data["start"]), moment(data["end"])
            if (start <= minute < end) if start < end else (minute >= start or minute < end):
                active.append(int(data["desiredReplicas"]))
        # a minute that both ends one stretch early and starts another is counted with the larger
        assert max(active) == wanted(schedule, minute)


def test_a_constant_day_is_one_line_and_the_one_trigger_keda_asks_for(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("\n".join(["1"] * 24))
    flat = fo.schedule(workload="azure", slo=2.0, rate=300, method="occupancy", pools=1, hours=tmp_path / "flat.csv")
    assert len([x for x in formatter("cron", "schedule")(flat).splitlines() if x[0].isdigit()]) == 1
    spec = yaml.safe_load(formatter("keda", "schedule")(flat))["spec"]
    assert spec["minReplicaCount"] == spec["maxReplicaCount"] == flat.peak_replicas
    (trigger,) = spec["triggers"]
    assert int(trigger["metadata"]["desiredReplicas"]) == flat.peak_replicas


def test_rows_json_csv_and_text_agree(tmp_path: Path) -> None:
    schedule = made(tmp_path, False, "4min", "2h")
    data = json.loads(formatter("json")(schedule))
    rows = list(csv.DictReader(io.StringIO(formatter("csv")(schedule))))
    assert len(rows) == len(data["schedule"]) == 24
    assert [int(r["replicas"]) for r in rows] == [r["replicas"] for r in data["schedule"]]
    assert sum(float(r["cost_usd"]) for r in rows) == pytest.approx(data["cost_usd"])
    assert yaml.safe_load(formatter("yaml")(schedule)) == data
    for name in ("table", "markdown"):
        text = formatter(name)(schedule)
        assert "perfect autoscaler" in text
        assert "23:00" in text
