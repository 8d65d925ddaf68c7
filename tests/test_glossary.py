"""Every public field of a result is in docs/glossary.md."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from planner.ask.batch import BatchHour, BatchRoom
from planner.ask.capacity import Capacity, CapacityPool
from planner.ask.classes import Grouping, TieredPlan
from planner.ask.costs import ApiComparison, Commitment, Costs, Energy, TokenPrices, WayToPay
from planner.ask.evaluation import Evaluation
from planner.ask.growth import Growth, Month
from planner.ask.hourly import Elasticity
from planner.ask.schedule import Schedule, ScheduledPool
from planner.ask.services import ServicePlan, ServicesPlan, SharedGpus
from planner.ask.what_if import Sweep, SweepPoint
from planner.catalog.profiles import Profile
from planner.choices import Choice, Choices
from planner.machine.iteration import IterationModel
from planner.papers.printed import Finding
from planner.plans import Alternative, EngineSettings, LatencyValue, Plan, PoolPlan, SearchReport
from planner.predict.contract import Prediction
from planner.promise import Promise
from planner.size.fleet import Verdict
from planner.workload.arrivals import Arrivals
from planner.workload.workload import Provenance, Workload

GLOSSARY = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"
RESULTS = (
    BatchHour, BatchRoom,
    Alternative, ApiComparison, Arrivals, Capacity, CapacityPool, Choice, Choices, Commitment, Costs, Elasticity,
    Energy, TokenPrices, WayToPay,
    EngineSettings, Evaluation, Finding, Grouping, Growth, Month,
    IterationModel, LatencyValue, Plan, PoolPlan, Prediction, Profile, Promise, Provenance, Schedule, ScheduledPool, SearchReport,
    ServicePlan, ServicesPlan, SharedGpus, Sweep, SweepPoint, TieredPlan, Verdict, Workload,
)  # fmt: skip
# what ARCHITECTURE's vocabulary promises beyond the fields
WORDS = (
    "replica", "gpus", "slots", "servers", "pool", "fleet", "workload", "profile", "plan", "input_tokens", "output_tokens",
    "total_tokens", "isl", "osl", "ttft_s", "tpot_s", "itl_s", "e2e_s", "arrival_rate", "service_time", "service_scv",
    "offered_load", "utilization", "wait_probability", "load", "slot_occupancy", "busy_fraction",
)  # fmt: skip


def _explained() -> set[str]:
    return set(re.findall(r"`([a-z][a-z0-9_]*)`", GLOSSARY.read_text(encoding="utf-8")))


@pytest.mark.parametrize("result", RESULTS, ids=lambda c: c.__name__)
def test_every_public_field_is_explained(result: type) -> None:
    fields = {f.name for f in dataclasses.fields(result) if not f.name.startswith("_")}
    properties = {name for name, value in inspect.getmembers(result) if isinstance(value, property)}
    missing = sorted((fields | properties) - _explained())
    assert not missing, f"docs/glossary.md lacks {', '.join(missing)} of {result.__name__}"


def test_every_word_is_explained() -> None:
    assert not sorted(set(WORDS) - _explained())


def test_nothing_is_explained_that_does_not_exist() -> None:
    """First column of the tables of fields: a name that no result has is a leftover."""
    text = GLOSSARY.read_text(encoding="utf-8").split("## Plan", 1)[1]
    known = {name for c in RESULTS for name in dir(c)} | {f.name for c in RESULTS for f in dataclasses.fields(c)}
    listed = {
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z][a-z0-9_]*)`", line.split("|")[1])
    }
    assert not sorted(listed - known)
