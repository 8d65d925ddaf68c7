"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# machines that run the tests are shared: how long an example takes says nothing about the code. The same examples every time, so
# that a change is judged and not its luck; the long checks look for new ones
LONG = bool(os.environ.get("FLEETOPT_LONG"))
settings.register_profile("fleetopt", deadline=None, derandomize=not LONG, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleetopt")

# as the command does, before NumPy is imported: threads of small matrices that wait for each other take the other worker's core
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# a developer's own price lists must not decide what a test finds cheapest
os.environ["FLEETOPT_PRICES"] = os.path.join(os.devnull, "none")

# what other choices would cost is asked for where it is tested: everywhere else it would only take time
os.environ["FLEETOPT_NO_OPTIONS"] = "1"

# tests start programs by the hundred: each would compile the package anew where a shell forbids to keep what was compiled
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# a worker of the test runner says its page has 80 columns: pages are of any width where a test does not say so
os.environ.pop("COLUMNS", None)


FIRST: dict[str, int] = {}
"""How many requests of a shipped trace there are, where it is not all."""


def first_of(workload: Any, most: int) -> Any:
    """The first requests of a trace, at the rate and under the name of all."""
    if (trace := workload.recorded) is None:
        return workload
    first = trace.select(trace.times_s < trace.times_s[min(most, trace.requests - 1)])
    columns = {name: getattr(first, name) for name in ("input_tokens", "output_tokens", "category")}
    return workload.rebuilt(columns, recorded=first)


@pytest.fixture(scope="session", autouse=True)
def shipped_workloads_are_parsed_once() -> Iterator[None]:
    """Hundreds of tests plan from a shipped trace, and in one process its rows are parsed once: each has a workload of its own,
    that has computed nothing. Files of the tests' own making are read as ever."""
    from planner.workload import importing, resolve

    read, shipped, kept = importing.import_files, set(resolve.shipped_names()), dict[tuple[str, int], Any]()

    def remembered(files: Any, options: Any, **how: Any) -> tuple[Any, list[Any]]:
        name = str(files[0][1]) if len(files) == 1 else ""
        plain = options == importing.ReadOptions() and files[0][0] is None and not any(how.values())
        if not plain or name not in shipped or resolve.resolve_workload(name).parent != resolve.shipped_folder():
            return read(files, options, **how)
        most = FIRST.get("requests", 0)
        if (name, 0) not in kept:
            kept[name, 0] = read(files, options, **how)
        workload, reports = kept[name, 0]
        if (name, most) not in kept:
            kept[name, most] = first_of(workload, most), reports
        return replace(kept[name, most][0]), [*reports]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "import_files", remembered)
        yield


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers side by side each import a share of the files first: pytest writes down what it made of their asserts, which is
    most of what collecting them takes, and each then finds what the others made. What cannot be imported is told when collected."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    folders = [folder for folder in map(Path, session.config.args) if folder.is_dir()]
    files = sorted({file.resolve() for folder in folders for file in folder.rglob("test_*.py")})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        if str(file.parent) != sys.path[0]:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception), warnings.catch_warnings():
            warnings.simplefilter("error")
            import_module(file.stem)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector of garbage need not look through it again and again."""
    gc.collect()
    gc.freeze()


SHARED_VARIABLE = "FLEETOPT_SHARED_DATA"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the data that is not part of the project; tests that need it skip where it is absent.

    ``FLEETOPT_SHARED_DATA`` names it (default: ``../shared/data`` beside the checkout). When the variable is set and
    the folder is missing, that is a failure, not a skip.
    """
    named = os.environ.get(SHARED_VARIABLE)
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if folder.is_dir():
        return folder
    if named:
        pytest.fail(f"{SHARED_VARIABLE}={named} is not a folder")
    pytest.skip(f"needs the shared data ({folder} is absent; set {SHARED_VARIABLE})")


FEW: dict[str, int] = {
    "predict.traffic.POOLED": 30_000,
    "predict.traffic.DRAWN": 12_000,
    "predict.traffic.DRAWN_EACH": 600,
    "predict.sessions.FEW_CALLS": 2_500,
    "predict.sessions.MOST_CALLS": 5_000,
    "predict.replayed.SAMPLE": 30_000,
    "predict.methods.mixed.SAMPLE": 15_000,
}
AS_MANY: dict[str, int] = {}
"""Those numbers as plans have them."""


@pytest.fixture(scope="module")
def few_replayed() -> Iterator[None]:
    """A tenth of the requests decide: for what is true of any number of them, as that two commands give one answer."""
    with pytest.MonkeyPatch.context() as patch:
        for where, number in FEW.items():
            module, _, name = where.rpartition(".")
            AS_MANY[where] = getattr(import_module(f"planner.{module}"), name)
            patch.setattr(f"planner.{where}", number)
        yield


@pytest.fixture(scope="module")
def fewer_replayed(few_replayed: None) -> Iterator[None]:
    """A thirtieth: where two answers to one question are compared, or what differs does so by far."""
    with pytest.MonkeyPatch.context() as patch:
        for where, number in FEW.items():
            patch.setattr(f"planner.{where}", number // 3)
        yield


@pytest.fixture
def few_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth in one test of a module whose values rest on their number."""
    for where, number in FEW.items():
        monkeypatch.setattr(f"planner.{where}", number)


@pytest.fixture
def as_many_replayed(few_replayed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the test of such a module whose values rest on their number."""
    for where, number in AS_MANY.items():
        monkeypatch.setattr(f"planner.{where}", number)


@pytest.fixture(scope="module")
def without_chances() -> Iterator[None]:
    """How sure a fleet is takes as long as to find it: plans do not say it where tests do not look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.size.assemble.sureness_of", lambda fleet: None)
        yield


@pytest.fixture
def with_chances(without_chances: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the test of such a module that does."""
    from planner.size.sure import sureness_of

    monkeypatch.setattr("planner.size.assemble.sureness_of", sureness_of)


@pytest.fixture(scope="module")
def without_words() -> Iterator[None]:
    """What a plan says of its surroundings takes a third of its time: numbers alone where tests look at nothing else."""
    from planner.size import assemble

    IN_WORDS[:] = [assemble._in_words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "_in_words", lambda plan, question, solved: plan)
        yield


IN_WORDS: list[Any] = []
"""How plans say it."""


@pytest.fixture
def with_words(without_words: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the test of such a module that reads it."""
    monkeypatch.setattr("planner.size.assemble._in_words", IN_WORDS[0])


@pytest.fixture(scope="module")
def short_traces() -> Iterator[None]:
    """The first 3,000 requests are all of a shipped trace, a tenth: for what is true of any trace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FIRST, "requests", 3_000)
        patch.setattr("planner.predict.traffic.POOLED", 9_000)
        yield


@pytest.fixture
def whole_traces(short_traces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the test of such a module whose values are those of the whole."""
    monkeypatch.delitem(FIRST, "requests")


@pytest.fixture(scope="module")
def few_paths() -> Iterator[None]:
    """A rule is derived from one path, and what it rests on from a quarter of the requests: for what is true of any rule."""
    from planner.operate.autoscale import windows

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(windows.VALUES, "paths", 1)
        for name, number in (("REQUESTS", 15_000), ("REPLAYED", 1_500), ("LOOKS", 60)):
            patch.setattr(windows, name, number)
        yield


LONG_LIMIT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of half a minute run among the long checks (``FLEETOPT_LONG=1``), within half an hour each."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(LONG_LIMIT_S))
            if not LONG:
                item.add_marker(pytest.mark.skip(reason="takes long: FLEETOPT_LONG=1 (.ci/long)"))
