"""What the scheduler commands and the tables of choices answer to tiny questions: ``python -m tests.golden.make_advice`` writes
tests/golden/advice.json anew, with six digits; read what changes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import planner as fo
from planner.ask import choices as of_choices
from planner.ask.replica import SchedulerReplica, capacity, pooled_replicas, scheduler_replica
from planner.catalog.load import gpus
from planner.errors import InfeasibleError
from planner.promise import Promise
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.question.options import PlanInputs
from planner.size.shapes import standing_fleet
from planner.workload.workload import Provenance, Workload
from tests.ask.of_replica import batching, stability, wait
from tests.golden.rounding import rounded

ANSWERS = Path(__file__).with_name("advice.json")

PRICES = {name: spec.memory_bytes / 3e10 + 0.01 * k for k, (name, spec) in enumerate(gpus().items())}
"""By memory: what is offered today decides nothing [USD/hour]."""

QUICK = {"method": "mgc", "kv": "reserved", "rate": 60.0, "slo": 4.0, "tp": 1, "price": PRICES}
MEASURED = """\
schema: fleetopt-profile/1
name: bench-l40s
gpu: l40s
model: llama-3.1-8b
tp: 1
provenance: measured
automatic: false
iteration: {t0: 0.003, w: 0.018, b: 0.000075, c: 0.00001, g: 0.0000002, h: 0.000001, a: 0.000000002, x: %s, tau: %s}
band: 0.03
source: made up for tests
"""


def work(**more: Any) -> Workload:
    """Forty requests of many lengths."""
    rng = np.random.default_rng(3)
    inputs, outputs = (np.maximum(1, rng.lognormal(m, 0.8, 40).round()) for m in (6.0, 4.5))
    return Workload.from_arrays(inputs, outputs, name="made-up", arrival_rate_per_s=20.0, **more)


def measured(x: float, tau: int = 1) -> SchedulerReplica:
    """A replica of a measured profile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        path.write_text(MEASURED % (x, tau))
        return scheduler_replica(work(), {"gpu": "l40s", "rate": 20.0, "profile": str(path)})


def replicas() -> dict[str, SchedulerReplica]:
    """Replicas and traffic of many kinds."""
    h100 = {"gpu": "h100", "rate": 20.0}
    halves = np.array([300.0, 900.0]), np.array([40.0, 60.0])
    return {
        "plain": scheduler_replica(work(), h100),
        "small": scheduler_replica(work(), {**h100, "max_num_seqs": 8, "token_budget": 512}),
        "one token": scheduler_replica(Workload.from_arrays([300.0], [1.0], name="classify"), {**h100, "rate": 5.0}),
        "fixed": scheduler_replica(Workload.from_arrays([300.0], [200.0], name="fixed"), h100),
        "bins": scheduler_replica(
            Workload.from_arrays(*halves, lower_tokens=np.array([1.0, 340.0]), name="bins"), h100
        ),
        "split": scheduler_replica(
            Workload.from_arrays(*halves, name="split", provenance=Provenance(length_split="0.8: so")),
            {**h100, "token_budget": 256},
        ),
        "cheap": measured(1e-7),
        "dear": measured(2e-3, 64),
    }


def told(result: Any) -> Any:
    """A result's JSON, its rows and its short form."""
    return {"json": result.to_dict(), "rows": result.to_rows(), "repr": repr(result)}


def of_replicas() -> dict[str, Any]:
    """Stability, batching and WAIT of each."""
    found: dict[str, Any] = {}
    for name, r in replicas().items():
        found[f"stability {name}"] = told(stability(r))
        found[f"batching {name}"] = told(batching(r))
        found[f"wait {name}"] = told(wait(r))
    return found


def of_loads() -> dict[str, Any]:
    """One replica at other rates, bursts and wishes."""
    plain = replicas()["plain"]
    limit = stability(plain).bounds[0].replica_per_s
    hard = stability(plain).bounds[-1].replica_per_s
    asked: dict[str, Callable[[], Any]] = {
        "calm": lambda: stability(plain, replicas=4, burst=1.0),
        "burst": lambda: stability(plain, replicas=4, burst=100.0),
        "near": lambda: stability(replace(plain, rate_per_s=0.99 * limit), replicas=1),
        "between": lambda: stability(replace(plain, rate_per_s=0.5 * (limit + hard)), replicas=1),
        "over": lambda: stability(replace(plain, rate_per_s=1.6 * hard), replicas=1),
        "wait over": lambda: wait(replace(plain, rate_per_s=10_000.0), replicas=1),
        "wait many": lambda: wait(plain, replicas=60, types=60),
        "wait fixed": lambda: wait(plain, replicas=20, types=1, segments=3, horizon=60.0, delta=0.1),
        "wait two": lambda: wait(plain, types=2, segments=1),
        "wait tight": lambda: wait(replace(plain, kv_tokens=30_000.0), replicas=6),
    }
    return {name: told(ask()) for name, ask in asked.items()}


def of_schedulers() -> dict[str, Any]:
    """Capacities of the replicas of a plan by theory."""
    found = {}
    for name, load in (
        ("many", work()),
        ("prompts", Workload.from_arrays([300.0, 5000.0], [1.0, 1.0], name="prompts")),
    ):
        plan = fo.plan(load, **{**QUICK, "pools": 1})  # type: ignore[arg-type]
        inputs = PlanInputs.from_dict({**QUICK, "pools": 1})
        for one in pooled_replicas(standing_fleet(compile_question(inputs, load), question_of(plan).pools)):
            facts = {
                k: getattr(one, k)
                for k in (
                    "slots",
                    "token_budget",
                    "kv_tokens",
                    "overhead_s",
                    "mixed_per_s",
                    "mean_input",
                    "mean_output",
                )
            }
            small = replace(one, token_budget=128)
            found[name] = {
                **facts,
                **{s: capacity(one, s) for s in ("eb", "wait", "rad", "engine")},
                **{f"small {s}": capacity(small, s) for s in ("eb", "rad")},
            }
    return found


def listed(rows: Any) -> list[Any]:
    """Choices that are not sized."""
    return [[row.kind, row.name, row.changes, row.flags, row.limit_s] for row in rows]


def schedulers_that_pay(load: Workload) -> dict[str, Any]:
    """Exclusive batching where mixing is dear, where it is not, and where another scheduler is asked for."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, x, more in (("dear", 2e-3, {}), ("cheap", 0.0, {}), ("asked", 2e-3, {"scheduler": "wait"})):
            path = Path(folder) / f"{name}.yaml"
            path.write_text(MEASURED % (x, 1))
            asked = {**QUICK, "pools": 1, "gpu": "l40s", "profile": str(path), "slo": 60.0}
            plan = fo.plan(load, **asked)  # type: ignore[arg-type]
            found[name] = listed(
                of_choices._schedulers(plan, PlanInputs.from_dict({**asked, "method": "closed", **more}), load)
            )
    return found


def of_rows() -> dict[str, Any]:
    """Which choices there are for many questions, not sized."""
    load = work()
    promises = ["p90=1s", "4s"]
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "one pool": {"pools": 1},
        "three": {"pools": 3},
        "free": {"tp": None, "gpu": ["h100", "l40s"]},
        "profile": {"profile": "llama-3.1-8b-h100-80gb-tp1-vllm"},
        "dtypes": {"weights": "fp8", "kv_dtype": "fp8"},
        "stock": {"inventory": {"h100-80gb": 99}},
        "apart": {"shape": "disaggregated"},
        "any": {"gpu": "any"},
        "compress": {"compress": True},
        "spare": {"redundancy": 3, "headroom": 0.2},
        "engine": {"engine": "sglang"},
        "peak": {"rate_is": "peak"},
        "two promises": {"slo": promises},
        "least": {"routing": "least"},
    }
    plans = {pools: fo.plan(load, **{**QUICK, "pools": pools}) for pools in (1, 2)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for name, more in asked.items():
        inputs = PlanInputs.from_dict({**QUICK, **more})
        rows: dict[str, Any] = {
            "settings": of_choices._settings(inputs, load, None),
            "risks": of_choices._risks(inputs, plans[1]),
        }
        if name in ("plain", "free", "any", "profile"):
            rows["types"] = of_choices._types(inputs, load, None)
        for pools, plan in plans.items():
            rows[f"settings {pools}"] = of_choices._settings(inputs, load, plan)
            if name in ("free", "any"):
                rows[f"types {pools}"] = of_choices._types(inputs, load, plan)
        limits = (
            {}
            if name == "two promises"
            else {"all": of_choices._limits(inputs, inputs.promises[0], [2.0, 4.0, 4.0, 8.0])}
        )
        found[name] = {k: listed(v) for k, v in {**rows, **limits}.items()}
    joint = PlanInputs.from_dict({**{k: v for k, v in QUICK.items() if k != "slo"}, "goodput": "99%:ttft=4s,tpot=50ms"})
    two = PlanInputs.from_dict({**QUICK, "slo": promises, "scope": "fleet"})
    for name, inputs in (("joint", joint), ("fleet", two)):
        found[name] = [listed(of_choices._limits(inputs, p, [0.5, 2.0, 4.0])) for p in inputs.promises]
    found["other"] = listed(of_choices._limits(two, Promise("e2e_s", 1.0), [2.0]))
    kinds = [of_choices._choice(k, k) for k in ("", "pools", "compression", "shape", "gpu")]
    replayed = PlanInputs.from_dict({"slo": 4.0, "rate": 60.0, "price": PRICES})
    found["cuts"] = [
        [of_choices._cuts(kind, inputs, load, plan) for kind in kinds]
        for inputs in (replayed, PlanInputs.from_dict(QUICK), PlanInputs.from_dict({"slo": 4.0, "boundaries": [512.0]}))
        for plan in (None, *plans.values())
    ]
    found["schedulers"] = schedulers_that_pay(load)
    found["binding"] = [of_choices._binding(plan, two).label for plan in plans.values()]
    found["flags"] = [
        of_choices._flag(*pair)
        for pair in (("compress", True), ("compress", False), ("inventory", {}), ("gpu", ["h100", "l4"]), ("pools", 2))
    ]
    return found


def of_tables() -> dict[str, Any]:
    """Whole tables, sized, but for other shapes and profiles."""
    kept = of_choices.SHAPES, of_choices.measured_profiles
    of_choices.SHAPES, of_choices.measured_profiles = {}, lambda model: iter(())
    load, found = work(), {}
    try:
        for name, more in (("plain", {"pools": 1}), ("two types", {"pools": 1, "gpu": ["h100", "l40s"]})):
            inputs = PlanInputs.from_dict({**QUICK, **more})
            plan = fo.plan(load, **{**QUICK, **more})  # type: ignore[arg-type]
            steps: list[Any] = []
            first, table = of_choices.choices_after(
                [lambda: 7], plan, inputs, load, lambda *at, steps=steps: steps.append(at)
            )
            found[name] = [table.to_dict(), table.cost_usd_per_hour, table.gpus, first, steps[0], steps[-1]]
        for name, more in (("ways out", {"slo": 0.012}), ("sure", {"slo": 0.16, "confidence": 0.9})):
            inputs = PlanInputs.from_dict({**QUICK, "pools": 1, **more})
            try:
                fo.plan(load, **{**QUICK, "pools": 1, **more})  # type: ignore[arg-type]
            except InfeasibleError as error:
                table = of_choices.ways_out(error, inputs, load)
                found[name] = [table.to_dict(), error.relaxations]
        found["no cost"] = of_choices.cost_with({"slo": 0.001}, PlanInputs.from_dict({**QUICK, "pools": 1}), load)
        found["cost"] = of_choices.cost_with({"rate": 90.0}, PlanInputs.from_dict({**QUICK, "pools": 1}), load)
    finally:
        of_choices.SHAPES, of_choices.measured_profiles = kept
    return found


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "replicas": of_replicas,
    "loads": of_loads,
    "schedulers": of_schedulers,
    "rows": of_rows,
    "tables": of_tables,
}


def pretty(found: dict[str, Any]) -> str:
    """JSON with a line for each answer."""
    kinds = [
        f"{json.dumps(kind)}: {{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in answer.items()) + "\n}"
        for kind, answer in found.items()
    ]
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def answers(kind: str) -> Any:
    """What one maker finds, as JSON reads it."""
    return json.loads(json.dumps(rounded(KINDS[kind]())))


if __name__ == "__main__":
    os.environ["FLEETOPT_PRICES"] = os.path.join(os.devnull, "none")  # a list of one's own decides nothing
    ANSWERS.write_text(pretty({kind: answers(kind) for kind in KINDS}), encoding="utf-8")
