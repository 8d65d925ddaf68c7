"""The planned traffic, sent, answered and judged; and the Job that does it in a cluster."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.calibrate.live import Server
from planner.cli.main import app
from planner.operate.deploy import replay
from planner.operate.deploy.acceptance import judge_answers, read_results
from planner.operate.deploy.replay import Outcome, Requests, planned_requests, send
from planner.predict.traffic import FleetTraffic
from planner.promise import MEAN, Promise
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.shared.cores import answers_of
from tests.operate.deploy.conftest import documents, plan_of
from tests.operate.deploy.schemas import problems, unconfined

pytestmark = pytest.mark.usefixtures("fewer_replayed")


def traffic_of(plan: fo.Plan, rate: float | None = None) -> Any:
    question = question_of(plan)
    inputs = question.inputs()
    return compile_question(inputs, question.traffic(inputs.cdf), rate).traffic


@pytest.mark.parametrize("rate", [3.0, 20.0, 200.0])
def test_requests_are_the_plans(rate: float) -> None:
    """As many as the mean rate brings, at the trace's lengths, thinned, and of shifted copies; the same every time."""
    traffic = traffic_of(fo.plan("azure", slo=0.5, rate=20, pools=1, method="occupancy"), rate)
    found = planned_requests(traffic, 1_000_000, 120.0)
    assert found.times_s.size == pytest.approx(120.0 * rate, rel=0.35)
    assert (np.diff(found.times_s) >= 0.0).all() and found.times_s[0] >= 0.0 and found.times_s[-1] < 120.0
    if rate > 100.0:
        workload = traffic.workload
        assert found.input_tokens.mean() == pytest.approx(workload.mean_input, rel=0.15)
        assert found.output_tokens.mean() == pytest.approx(workload.mean_output, rel=0.15)
    again = planned_requests(traffic, 1_000_000, 120.0)
    assert np.array_equal(found.times_s, again.times_s) and np.array_equal(found.input_tokens, again.input_tokens)
    assert planned_requests(traffic, 100, 120.0).times_s.size <= 100


def test_a_stretch_of_the_trace_is_sent_as_it_was() -> None:
    """At the trace's own rate: its requests one after the other, each with its own lengths, its own time after the one before."""
    plan = fo.plan("azure", slo=0.5, rate=20, pools=1, method="occupancy")
    whole = FleetTraffic(traffic_of(plan))
    found = planned_requests(traffic_of(plan, whole.rate_per_s), 1_000_000, 60.0)
    assert whole.trace is not None
    gaps, size = np.diff(whole.trace.times_s), found.times_s.size
    looked = np.lib.stride_tricks.sliding_window_view(gaps, size - 1)
    (at,) = np.flatnonzero(np.abs(looked - np.diff(found.times_s)).max(axis=1) < 1e-6)
    for sent, known in (
        (found.input_tokens, whole.trace.input_tokens),
        (found.output_tokens, whole.trace.output_tokens),
    ):
        assert np.array_equal(sent, np.maximum(np.rint(known[at : at + size]), 1 + (sent is found.output_tokens)))


def test_a_window_of_a_trace_is_counted_from_its_own_first_request() -> None:
    """A request a second for five minutes, of which the second hundred counts."""
    trace = SimpleNamespace(times_s=np.arange(0.0, 300.0))
    fleet: Any = SimpleNamespace(
        trace=trace, window=(100.0, 200.0), rate_per_s=1.0, traffic=SimpleNamespace(rate_per_s=1.0), shifts=lambda *_: [0.0],
        ranked=lambda _: [0],
    )  # fmt: skip
    at, rows = replay._of_trace(fleet, 20.0, 1000)
    assert rows.size == 20 and rows.min() >= 100 and rows.max() < 200
    assert np.array_equal(trace.times_s[rows] - rows[0], at - at[0])


def test_requests_that_are_known_by_their_law_alone() -> None:
    plan = fo.plan(isl=1000, osl=100, rate=50, slo=1.0, method="occupancy", cached_share=0.6)
    found = planned_requests(traffic_of(plan), 100_000, 100.0)
    # Poisson: 5,000 requests, the square root of that one standard deviation
    assert abs(found.times_s.size - 5000) < 4 * math.sqrt(5000)
    gaps = np.diff(found.times_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.06)
    assert found.input_tokens.mean() == pytest.approx(1000, rel=0.05)
    assert (found.shared_tokens < found.input_tokens).all()
    assert found.shared_tokens.sum() / found.input_tokens.sum() == pytest.approx(0.6, abs=0.01)


def test_the_shortest_requests_are_sent_as_they_can_be_timed() -> None:
    """A prompt has a token, of which a cache finds none; an answer has two, or nothing lies between them."""
    plan = fo.plan(isl=1, osl=1, rate=50, slo=1.0, method="occupancy", cached_share=0.6)
    found = planned_requests(traffic_of(plan), 1000, 10.0)
    shortest = [int(column.min()) for column in (found.input_tokens, found.output_tokens, found.shared_tokens)]
    assert shortest == [1, 2, 0] and found.records()[0]["input_length"] == found.input_tokens[0]


@contextmanager
def stub(seconds: float) -> Iterator[str]:
    """Address of a server that takes so long for a request."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("engine_stub.py")), "127.0.0.1", str(port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def some(count: int, every_s: float, tokens: int = 5) -> Requests:
    whole = np.full(count, tokens, dtype=np.int64)
    return Requests(every_s * np.arange(count), 10 * whole, whole, 0 * whole)


@pytest.mark.parametrize("events_per_s", [1e9, 1.0], ids=["here", "processes"])
def test_what_is_sent_is_timed(events_per_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tokens over 0.2 s: the first after 0.04 s, one every 0.04 s, all after 0.2 s."""
    monkeypatch.setattr(replay, "EVENTS_PER_S", events_per_s)
    monkeypatch.setattr(replay, "STARTING_S", 0.5)
    with stub(0.2) as url:
        found = send(Server(url, "any"), some(20, 0.03), 1.0)
    assert [o.error for o in found] == [""] * 20
    assert {(o.input_tokens, o.output_tokens) for o in found} == {(50.0, 5.0)}
    # a machine that does other work is late, never early
    assert 0.039 <= min(o.ttft_s for o in found) < 0.3
    assert 0.035 <= min(o.tpot_s for o in found) < 0.15
    assert 0.199 <= min(o.e2e_s for o in found) < 0.6


def test_tokens_that_come_together_are_an_answer() -> None:
    """As of a real vLLM whose API process was busy: the first token is there with the last, and nothing lies between."""
    with stub(0.1) as url:
        found = send(Server(url, "any"), some(5, 0.03, tokens=3), 1.0)
    assert [o.error for o in found] == [""] * 5 and {(o.output_tokens, o.tpot_s) for o in found} == {(3.0, 0.0)}
    assert all(o.ttft_s == o.e2e_s >= 0.099 for o in found)


def test_a_server_that_hangs_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "AFTER_S", 0.2)
    with stub(0.02) as url:
        probed = Server(url, "any", timeout_s=30.0)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setattr(
                replay, "LiveServer", lambda server, deadline: type("Probed", (), {"dialect": replay.Dialect()})
            )
            deaf = Server(f"http://127.0.0.1:{silent.getsockname()[1]}", "any", timeout_s=30.0)
            started = time.monotonic()
            found = send(deaf, some(5, 0.01), 0.2)
            assert time.monotonic() - started < 6.0
            assert all(o.error for o in found)
        assert not send(probed, some(2, 0.01), 0.5)[0].error


def test_a_client_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper, pids = tmp_path / "python", tmp_path / "pids"
    sleeper.write_text(f"#!/bin/sh\necho $$ >> {pids}\nexec sleep 600\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    begun = time.monotonic()
    with pytest.raises(fo.CalibrationError, match=r"sending took more than 0.5 s"):
        answers_of("planner.operate.deploy.replay", [{}, {}], 0.5, "sending")
    assert time.monotonic() - begun < 20.0
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def outcomes(ttft_s: list[float], tokens: float = 100.0, **more: Any) -> list[Outcome]:
    return [Outcome(tokens, 10.0, t, 0.01, t + 0.09, **more) for t in ttft_s]


PLAN = {"pools": [{"name": "all", "high_tokens": 1000.0, "latency": []}], "arrival_rate_per_s": 10.0}
P99 = Promise("ttft_s", 0.5, 0.99)


@pytest.mark.parametrize(
    ("slow", "of", "verdict", "state"),
    [(0, 2000, "holds", "kept"), (5, 2000, "holds", "kept"), (18, 2000, "cannot tell", "kept"), (60, 2000, "fails", "broken"),
     (22, 2000, "cannot tell", "not shown"), (0, 200, "cannot tell", "not shown")],
)  # fmt: skip
def test_a_promise_is_judged_by_the_share_within_it(slow: int, of: int, verdict: str, state: str) -> None:
    """Of 2,000 requests 20 may be late; the first tenth does not count. Clopper and Pearson: 5 of 1,800 are at most 0.65%."""
    rng = np.random.default_rng(1)
    warm = of // 9
    times = np.full(of, 0.1)
    times[rng.choice(of, slow, replace=False)] = 0.9
    found = judge_answers(
        PLAN, [P99], [*outcomes([9.0] * warm), *outcomes(times.tolist())], 200.0 + warm / 10, "http://x", False
    )
    (judged,) = found.judged
    assert (judged.verdict, found.state) == (verdict, state)
    assert judged.within.value == pytest.approx(1.0 - slow / of) and judged.requests == of
    if slow == 5:
        assert judged.within.low == pytest.approx(1.0 - 0.0058, abs=0.0002)


def test_what_failed_is_late_and_is_told() -> None:
    lost = [Outcome(100.0, 10.0, math.nan, math.nan, math.nan, error="HTTP 503")] * 100
    found = judge_answers(
        PLAN, [P99], [*outcomes([0.1] * 500), *lost, *outcomes([0.1] * 1400)], 200.0, "http://x", False
    )
    assert found.state == "broken" and found.failed == 100 and found.errors == {"HTTP 503": 100}
    assert found.judged[0].measured_s == math.inf
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["promises"][0]["verdict"] == "fails" and document["state"] == "broken"


def test_a_client_that_is_late_judges_nobody() -> None:
    for ttft_s in (0.1, 0.9):
        found = judge_answers(PLAN, [P99], outcomes([ttft_s] * 2000, late_s=0.3), 200.0, "http://x", False)
        assert found.state == "not shown" and "this client sent requests up to 300 ms late" in found.judged[0].told


def test_a_fleet_that_answers_nothing_breaks_every_promise() -> None:
    lost = [Outcome(100.0, 10.0, math.nan, math.nan, math.nan, error=f"error {k}") for k in range(500)]
    found = judge_answers(PLAN, [P99, Promise("e2e_s", 1.0, MEAN)], lost, 50.0, "http://x", False)
    assert [j.verdict for j in found.judged] == ["fails", "fails"] and found.state == "broken"
    assert found.failed == 500 and len(found.errors) == 5
    with pytest.raises(fo.InputError, match="40 requests are too few to judge"):
        judge_answers(PLAN, [P99], lost[:40], 4.0, "http://x", False)


def test_pools_means_and_goodput() -> None:
    """Requests belong to pools by their length; a mean is a mean; a goodput is all of its limits."""
    plan = {
        "pools": [{"name": "short", "high_tokens": 105.0}, {"name": "long", "high_tokens": 9e9}],
        "arrival_rate_per_s": 10.0,
    }
    both = Promise.joint({"ttft_s": 0.5, "e2e_s": 0.5}, 0.9)
    mixed = [o for pair in zip(outcomes([0.1] * 1000), outcomes([0.45] * 1000, 1000.0), strict=True) for o in pair]
    found = judge_answers(plan, [Promise("ttft_s", 0.3, MEAN), both], mixed, 200.0, "http://x", False)
    verdicts = {(j.pool, j.promise.kind): j.verdict for j in found.judged}
    assert verdicts == {
        ("short", "ttft_s"): "holds", ("long", "ttft_s"): "fails", ("short", "goodput"): "holds", ("long", "goodput"): "fails"
    }  # fmt: skip
    # every finding names its pool where there are several, and none where there is one
    about = [line.partition(": ")[0] for line in [*found.lines()][1:]]
    assert about == ["short", "long", "short", "long"]
    (_, alone) = judge_answers(PLAN, [both], mixed, 200.0, "http://x", False).lines()
    assert alone.startswith(f"{both.told}: ")
    assert found.to_rows() == [dict(r) for r in found.rows] and found.to_rows()[0] is not found.rows[0]
    # cut by input + output the short ones are of 110 tokens: long
    whole = judge_answers(plan, [both], mixed, 200.0, "http://x", True)
    assert {j.pool for j in whole.judged} == {"long"}
    rows = {(r["pool"], r["quantity"]): r["measured"] for r in found.rows}
    assert rows["short", "P99 TTFT [s]"] == pytest.approx(0.1) and rows["long", "mean input tokens"] == 1000.0


def test_predictions_are_those_of_the_plan() -> None:
    plan = plan_of("one pool").to_dict()
    told = {(v["metric"], v["quantile"]): v["value_s"] for v in plan["pools"][0]["latency"]}  # type: ignore[index]
    found = judge_answers(plan, [P99], outcomes([0.1] * 2000), 100.0, "http://x", False)
    assert found.judged[0].predicted_s == told["ttft_s", 0.99]
    assert {r["quantity"]: r["planned"] for r in found.rows}["P90 E2E [s]"] == told["e2e_s", 0.9]
    # at another rate they would be others
    other = judge_answers(plan, [P99], outcomes([0.1] * 2000), 1000.0, "http://x", False)
    assert other.judged[0].predicted_s is None


def vllm_result(count: int) -> dict[str, Any]:
    return {
        "start_times": [100.0 + 0.1 * k for k in range(count)],
        "input_lens": [50] * count,
        "output_lens": [5] * count,
        "ttfts": [0.2] * count,
        "itls": [[0.01] * 4] * count,
        "errors": ["", "refused", *[""] * (count - 2)],
    }


def guidellm_result(count: int) -> dict[str, Any]:
    good = [
        {"request_start_time": 100.0 + 0.1 * k, "prompt_tokens": 50, "output_tokens": 5, "time_to_first_token_ms": 200.0,
         "inter_token_latency_ms": 10.0, "request_latency": 0.24}
        for k in range(count) if k != 1
    ]  # fmt: skip
    return {
        "benchmarks": [{"requests": {"successful": good, "errored": [{"request_start_time": 100.1}], "incomplete": []}}]
    }


@pytest.mark.parametrize(("made", "whose"), [(vllm_result, "vllm bench serve"), (guidellm_result, "GuideLLM")])
def test_results_of_load_generators_are_read(made: Any, whose: str, tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text(json.dumps(made(100)))
    found, seconds, told = read_results(tmp_path / "load.json")
    assert told == whose and len(found) == 100
    assert seconds == pytest.approx(10.0)
    good = [o for o in found if not o.error]
    assert len(good) == 99 and found[1].error
    assert {(o.ttft_s, round(o.tpot_s, 9), round(o.e2e_s, 9)) for o in good} == {(0.2, 0.01, 0.24)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "no records of single requests"),
        ("[", "not JSON"),
        (json.dumps({**vllm_result(9), "ttfts": ["x"] * 9}), "expected a number"),
        (json.dumps({**vllm_result(9), "itls": []}), "no records"),
        (json.dumps({"benchmarks": [{"requests": 3}]}), "no records"),
    ],
)
def test_files_that_say_nothing(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text(text)
    with pytest.raises(fo.InputError, match=f"--replay: .*{told}"):
        read_results(tmp_path / "load.json")
    with pytest.raises(fo.InputError, match="no such file"):
        read_results(tmp_path / "none.json")


def job_of(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    found = fo.acceptance_job(plan_of("cached"), **{"program": "registry.example/fleetopt:1.0", **options})
    files, job = documents(found.text)
    return files, job


@pytest.mark.parametrize("generator", ["vllm", "guidellm"])
def test_a_job_sends_the_planned_traffic_and_judges_it(generator: str) -> None:
    files, job = job_of(generator=generator, namespace="serving", api_key_secret="llm-key", requests=500, seconds="60s")
    for document in (files, job):
        assert problems(document) == [] and document["metadata"]["namespace"] == "serving"
    pod = job["spec"]["template"]["spec"]
    assert unconfined(pod) == [] and pod["restartPolicy"] == "Never" and job["spec"]["backoffLimit"] == 0
    (load,), (judge,) = pod["initContainers"], pod["containers"]
    assert judge["image"] == "registry.example/fleetopt:1.0"
    assert [*judge["command"], *judge["args"]] == [
        "fleetopt",
        "check",
        "/plan/plan.yaml",
        "--replay",
        "/results/load.json",
    ]
    secrets = {e["name"]: e["valueFrom"]["secretKeyRef"]["name"] for e in load["env"] if "valueFrom" in e}
    assert secrets["OPENAI_API_KEY"] == "llm-key"
    optional = [e["name"] for e in load["env"] if e.get("valueFrom", {}).get("secretKeyRef", {}).get("optional")]
    assert optional == ["HF_TOKEN"]
    plan = yaml.safe_load(files["data"]["plan.yaml"])
    assert plan["kind"] == "fleetopt-plan" and plan["replicas"] == plan_of("cached").replicas
    rows = [json.loads(line) for line in files["data"]["requests.jsonl"].splitlines()]
    planned = planned_requests(traffic_of(plan_of("cached")), 500, 60.0)
    assert [r["input_length"] for r in rows] == planned.input_tokens.tolist()
    assert [r["timestamp"] for r in rows] == pytest.approx(planned.times_s.tolist(), abs=1e-6)
    # a block is 512 tokens; what a cache is to find has the same numbers, the rest numbers of its own
    assert all(512 * len(r["hash_ids"]) >= r["input_length"] > 512 * (len(r["hash_ids"]) - 1) for r in rows)
    own = [
        b for r, s in zip(rows, planned.shared_tokens.tolist(), strict=True) for b in r["hash_ids"][round(s / 512) :]
    ]
    assert len(own) == len(set(own))
    assert job["spec"]["activeDeadlineSeconds"] > planned.times_s[-1] + 30
    url = "http://fleetopt.serving"
    if generator == "vllm":
        words = load["args"]
        assert words[words.index("--base-url") + 1] == url
        assert words[words.index("--num-prompts") + 1] == str(len(rows))
        assert words[words.index("--timed-trace-chunk-hash-size") + 1] == "512"
    else:
        spec = yaml.safe_load(files["data"]["scenario.yaml"])["spec"]
        assert spec["backend"]["target"] == url and spec["profile"] == {"kind": "replay", "schedule_turn": "timestamp"}
        assert spec["outputs"] == [{"kind": "json", "path": "/results/load.json"}]


def test_a_job_with_a_wheel() -> None:
    _, job = job_of(program="https://host/fleetopt-1.0-py3-none-any.whl")
    install, load = job["spec"]["template"]["spec"]["initContainers"]
    assert install["command"][-1].endswith(".whl") and load["name"] == "load"
    (judge,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "PYTHONPATH", "value": "/results/python"} in judge["env"]
    assert judge["command"] == ["python", "-m", "planner.cli.main"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"program": "fleetopt"}, "--fleetopt: 'fleetopt' is neither an image of a release nor the address of a wheel"),
        ({"generator": "locust"}, "--acceptance: 'locust' is none of guidellm, vllm"),
        ({"to": "compose"}, "--acceptance: --to compose starts replicas on hosts"),
        ({"requests": 0}, "--replay-requests: must lie in"),
        ({"seconds": "0s"}, "--replay-for: must lie"),
        ({"requests": 40_000, "seconds": "1h"}, "more than a ConfigMap holds"),
    ],
)
def test_a_job_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(fo.InputError, match=told):
        job_of(**options)


def test_the_command_says_whether_the_promises_are_kept(tmp_path: Path) -> None:
    """Exit code 0 and a report where they are, 6 where they are not."""
    plan, load = tmp_path / "plan.json", tmp_path / "load.json"
    plan.write_text(json.dumps(fo.plan(isl=50, osl=2, rate=40, slo=0.21, pools=1, method="occupancy").to_dict()))
    load.write_text(json.dumps(vllm_result(3000)))

    def checked(*words: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, ["check", str(plan), "--format", "json", "--served-model-name", "any", *words])
        return getattr(done.exception, "exit_code", done.exit_code), json.loads(done.stdout)

    with stub(0.4) as url:
        code, found = checked("--replay", url, "--replay-requests", "60", "--replay-for", "10s", "--rate", "120")
    assert (code, found["state"], found["failed"]) == (6, "broken", 0)
    assert found["sent"] == pytest.approx(60, abs=24)
    code, found = checked("--replay", str(load))
    assert (code, found["state"]) == (0, "kept")
