"""Batch jobs beside requests: promises kept by a replay of other draws, the fluid limit, the reference in Python, bad questions."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import planner as fo
from planner.ask.batch import DONE, window_of
from planner.cli.main import app
from planner.predict.bounds import max_throughput
from planner.predict.records import Requests, keys_of
from planner.predict.run import replay
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.size.shapes import standing_fleet
from planner.workload.pools import Lengths

pytestmark = pytest.mark.usefixtures("few_replayed")

ASKED: dict[str, Any] = {"slo": 0.5, "tpot": "40ms", "tp": 1, "token_budget": 2048, "pools": 1, "rate": 20.0}
NOW = datetime.datetime(2027, 1, 4, 12, 0)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five minutes of requests in bursts at 20/s."""
    rng = np.random.default_rng(11)
    times = np.sort(np.concatenate([rng.uniform(0.0, 300.0, 4500), rng.uniform(100.0, 130.0, 1500)]))
    rows = zip(times, rng.integers(50, 4000, 6000), rng.integers(5, 300, 6000), strict=True)
    file = tmp_path_factory.mktemp("trace") / "bursts.csv"
    file.write_text("t_s,input_tokens,output_tokens\n" + "\n".join(f"{t:.3f},{i},{o}" for t, i, o in rows))
    return file


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand jobs of 2,000 tokens in and 100 out on average."""
    rng = np.random.default_rng(12)
    rows = zip(rng.integers(1000, 3000, 1000), rng.integers(50, 150, 1000), strict=True)
    file = tmp_path_factory.mktemp("jobs") / "jobs.csv"
    file.write_text("input_tokens,output_tokens\n" + "\n".join(f"{i},{o}" for i, o in rows))
    return file


def test_requests_of_other_draws_keep_every_promise_beside_jobs_that_come_at_random(trace: Path, jobs: Path) -> None:
    """An independent replay, built by hand: Poisson jobs instead of even ones, six other draws of the gateway."""
    plan = fo.plan(trace, confidence=0.5, **ASKED)
    room = fo.batch(plan, jobs=jobs, by="06:00", start="05:00")
    hour = room.rows[0]
    assert hour.jobs_per_s > 1.0 and room.room_jobs == int(DONE * 3600.0 * hour.jobs_per_s)
    fleet = standing_fleet(
        compile_question(question_of(plan).inputs(), fo.load_workload(trace)), question_of(plan).pools
    )
    engine, own = fleet.pools[0].model.engine, np.loadtxt(trace, delimiter=",", skiprows=1)  # type: ignore[attr-defined]
    lengths = np.loadtxt(jobs, delimiter=",", skiprows=1)
    # the trace is at 20/s, as asked
    ttft, tpot = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        count = rng.poisson(hour.jobs_per_s * 300.0)
        batch = np.column_stack([rng.uniform(0.0, 300.0, count), lengths[rng.integers(0, 1000, count)]])
        rows = np.concatenate([own, batch])
        late = np.repeat([0, 1], [len(own), count])
        order = np.argsort(rows[:, 0], kind="stable")
        rows, late = rows[order], late[order]
        key = keys_of(np.arange(len(rows)), np.full(len(rows), 900 + seed), 77)
        asked = Requests(
            rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].copy(), np.zeros(len(rows)), key, late.astype(np.int32)
        )
        run = replay(asked, replace(engine, count=plan.pools[0].replicas))
        first = run.ttft_s[late == 0] + fleet.pools[0].option.profile.api_overhead_s
        ttft.append(first)
        tpot.append(((run.done_s - run.first_s) / np.maximum(asked.output_tokens - 1.0, 1.0))[late == 0])
    assert float(np.quantile(np.concatenate(ttft), 0.99)) <= 1.02 * 0.5
    assert float(np.quantile(np.concatenate(tpot), 0.99)) <= 1.02 * 0.040


def test_requests_and_jobs_together_are_what_the_fluid_limit_allows(trace: Path, jobs: Path) -> None:
    """A promise that is never broken: the replicas are full of jobs, and no fuller than the closed form says."""
    plan = fo.plan(trace, e2e="1h", confidence=0.5, tp=1, token_budget=2048, pools=1, rate=20.0)
    hour = fo.batch(plan, jobs=jobs, by="06:00", start="05:00").rows[0]
    fleet = standing_fleet(
        compile_question(question_of(plan).inputs(), fo.load_workload(trace)), question_of(plan).pools
    )
    own, lengths = (np.loadtxt(f, delimiter=",", skiprows=1)[:, -2:] for f in (trace, jobs))
    weight = np.concatenate([np.full(6000, 20.0 / 6000), np.full(1000, hour.jobs_per_s / 1000)])
    both = np.concatenate([own, lengths])
    mixed = Lengths(both[:, 0], both[:, 1], weight, np.zeros(1))
    most = plan.pools[0].replicas * max_throughput(mixed, fleet.pools[0].model.engine).per_s  # type: ignore[attr-defined]
    # the jobs' queue may grow by 5%; bursts of the trace and 3% of precision are lost
    assert 0.85 * most <= 20.0 + hour.jobs_per_s <= 1.08 * most


@pytest.mark.parametrize("jobs_per_s", [2.0, 40.0])
def test_the_reference_in_python_answers_the_same(jobs_per_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fo.plan(slo=2.0, rate=10.0, isl=1500, osl=60, confidence=0.5, tp=1, token_budget=2048, pools=1)
    monkeypatch.setattr("planner.predict.replayed.SAMPLE", 250)
    question = question_of(plan)
    jobs = Lengths(np.array([500.0, 3000.0]), np.array([40.0, 150.0]), np.array([1.0, 2.0]), np.zeros(1))

    def seen() -> Any:
        pool = standing_fleet(
            compile_question(question.inputs(), question.traffic(question.inputs().cdf)), question.pools
        ).pools[0]
        return pool.model.with_jobs(10.0, 1, jobs, jobs_per_s, (0.5, 0.9))  # type: ignore[attr-defined]

    by_kernel = seen()
    monkeypatch.setenv("FLEETOPT_KERNEL", "python")
    by_python = seen()
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        assert by_kernel[0].latencies[metric] == pytest.approx(by_python[0].latencies[metric], rel=1e-9)
    assert by_kernel[1] == by_python[1]
    assert (by_kernel[1] < DONE) == (jobs_per_s > 20.0)


def test_the_rest_takes_the_least_gpus_that_do_it(trace: Path, jobs: Path) -> None:
    plan = fo.plan(trace, **ASKED)
    there = fo.batch(plan, jobs=jobs, by="06:00", start="05:00")
    wanted = 3.0 * there.room_tokens
    short = fo.batch(plan, jobs=jobs, tokens=wanted, by="06:00", start="05:00")
    assert not short.fits and short.room_jobs == there.room_jobs
    (more,) = short.more.values()
    assert more >= 1 and short.more_usd_per_hour == pytest.approx(more * plan.cost_usd_per_hour / plan.gpus)

    def with_more(extra: int) -> float:
        pool = question_of(plan).pools[0]
        document = plan.to_dict()
        document["pools"][0] |= {"replicas": pool.replicas + extra, "gpus": pool.replicas + extra}
        file = jobs.parent / f"more-{extra}.json"
        file.write_text(json.dumps(document))
        return fo.batch(file, jobs=jobs, by="06:00", start="05:00").room_tokens

    assert with_more(more) >= 0.95 * wanted and with_more(more - 1) < 1.05 * wanted


def test_hours_before_a_deadline() -> None:
    assert sum(h for _, h in window_of("06:00", None, NOW).hours) == 24.0
    assert window_of("06:30", "22:00", NOW).hours == (
        (22, 1.0), (23, 1.0), *((h, 1.0) for h in range(6)), (6, 0.5),
    )  # fmt: skip
    # Monday noon to Tuesday one
    dated = window_of("2027-01-05T01:00", None, NOW)
    assert dated.hours == tuple((h, 1.0) for h in range(12, 25)) and dated.deadline == "Tue 2027-01-05 01:00"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--by", "2027-01-01T06:00", "--from", "2027-01-02T06:00"], "by: 2027-01-01T06:00 is before 2027-01-02T06:00"),
        (["--by", "2020-01-01T06:00"], "by: 2020-01-01T06:00 is past: it is "),
        (["--by", "sunrise"], "by: 'sunrise' is no time"),
        (["--by", "25:00"], "by: '25:00' is no time"),
        (["--by", "06:00", "--from", "2027-01-02T06:00"], "from, by: one has a day and the other has none"),
        (["--priority", "-1"], "priority: -1 is not after the requests', which have 0"),
        (["--tokens", "0"], "tokens: must be positive, got '0'"),
        (["--jobs", "no_outputs.csv"], "no_outputs.csv: no column of output tokens"),
        (["--jobs", "long.csv"], "jobs: the longest has 90,100 tokens, all admits"),
        (["--method", "occupancy", "--burst", "poisson"], "batch: knows plans of method mixed"),
        (["--shape", "disaggregated"], "batch: jobs go to pools that keep their promises by themselves"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "no_outputs.csv").write_text("input_tokens\n1000\n2000\n")
    (tmp_path / "long.csv").write_text("input_tokens,output_tokens\n90000,100\n1000,100\n")
    words = [str(tmp_path / w) if w.endswith(".csv") else w for w in words]
    result = CliRunner().invoke(app, ["batch", "--slo", "2", "--rate", "5", "--pools", "1", "--tp", "1", *words])
    told = str(result.exception) + result.output
    assert result.exit_code != 0 and message in told and len(told.splitlines()) <= 3
