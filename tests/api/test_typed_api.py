"""The package as a script imports it: names, signatures, what-if on other processes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import planner as fo
from planner.question.options import OPTIONS

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces")

VERBS = (
    "plan", "evaluate", "what_if", "schedule", "simulate", "compare_policies", "stability", "batching", "wait", "calibrate",
    "reproduce", "load_workload",
)  # fmt: skip


def test_every_public_name_can_be_had() -> None:
    assert set(VERBS) < set(fo.__all__)
    for name in fo.__all__:
        assert not isinstance(getattr(fo, name), ModuleType), name
    assert (Path(fo.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_says_what_it_takes_and_gives(name: str) -> None:
    verb = getattr(fo, name)
    signature = inspect.signature(verb)
    assert signature.return_annotation in fo.__all__
    assert all(p.annotation is not p.empty for p in signature.parameters.values())
    documented = inspect.getdoc(verb) or ""
    for parameter in signature.parameters:
        # those of a plan are explained there
        assert parameter in documented or (name == "schedule" and parameter in OPTIONS), f"{name}: {parameter}"


ORDERS = [
    "import planner.calibrate.run, planner.papers.run, planner.papers.printed",
    "fo.calibrate, fo.simulate, fo.reproduce; import planner.calibrate.run, planner.papers.run, planner.papers.printed",
    "import planner.cli.calibrate, planner.cli.simulate, planner.cli.plan; from planner import simulate",
    "from planner.calibrate import run; from planner.papers import printed as papers; from planner.papers import compare",
]


def test_a_subpackage_does_not_hide_a_verb_of_its_name() -> None:
    """Each order from a package that nothing of has been imported."""
    after = (
        "from planner import calibrate, reproduce, simulate\n"
        "homes = [f.__module__ for f in (calibrate, reproduce, simulate, fo.calibrate)]\n"
        "own = 'planner.calibrate'\n"
        "assert homes == [own, 'planner.papers.printed', 'planner.ask.simulate', own]\n"
        "import planner.calibrate.fit\n"
        "assert callable(fo.calibrate)\n"
        "from importlib import import_module\n"
        "assert import_module('planner.calibrate').__name__ == 'planner.calibrate'\n"
        "import sys\n"
        "for name in [n for n in sys.modules if n.partition('.')[0] == 'planner']:\n"
        "    del sys.modules[name]\n"
    )
    code = "".join(f"import planner as fo\n{first}\n{after}" for first in ORDERS)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(params=["processes", "threads"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            yield pool


@pytest.mark.long("another executor's processes, each of which starts a planner")
def test_what_if_elsewhere_gives_the_same_points_in_order(executor: Executor) -> None:
    base = fo.plan("azure", slo=2.0, rate=20, method="occupancy", pools=1)
    told: list[tuple[int, int]] = []
    changes = {"rate": [40, 20, 80], "slo": ["2s", "1ms"]}
    here = fo.what_if(base, **changes)
    there = fo.what_if(base, **changes, executor=executor, progress=lambda done, total: told.append((done, total)))
    assert there.to_dict() == here.to_dict()
    assert [row["feasible"] for row in there.to_rows()] == [True, False] * 3
    assert told == [(k, 6) for k in range(7)]


def test_calibrate_reads_files(tmp_path: Path) -> None:
    with pytest.raises(fo.InputError, match="two sources"):
        fo.calibrate("h100", files="a.json", server="http://localhost:1")
    with pytest.raises(fo.InputError):
        fo.calibrate("h100", "llama-3.1-8b", files=tmp_path / "nowhere.json")


@cache
def of_schedulers() -> tuple[Any, Any, Any]:
    return (
        fo.stability("azure", rate=20.0, gpu="h100", replicas=4),
        fo.batching("azure"),
        fo.wait("azure", rate=5.0, horizon=3600.0),
    )


def test_results_say_what_they_are_in_a_line() -> None:
    plan = fo.plan("azure", slo=2.0, rate=20, method="occupancy", pools=1, burst="poisson")
    results = [
        plan,
        fo.evaluate(plan, [10.0, 20.0]),
        fo.what_if(plan, rate=[20, 40]),
        fo.schedule(plan, hours="servegen-m-small"),
        *of_schedulers(),
        fo.reproduce("wait"),
        fo.load_workload("azure"),
    ]
    assert repr(plan) == f"<Plan: {plan.replicas} x TP1 h100-80gb, ${plan.cost_usd_per_hour:,.2f}/hour, 20 requests/s>"
    for result in results:
        assert type(result).__name__ in repr(result)
        assert len(repr(result)) < 250


def test_the_scheduler_verbs() -> None:
    stability, batching, wait = of_schedulers()
    assert stability.verdict and batching.verdict
    assert wait.about["arrival_rate_per_s"] == 5.0
    with pytest.raises(fo.InputError, match="one kind of replica"):
        fo.stability("azure", rate=20.0, tp="1,2")
