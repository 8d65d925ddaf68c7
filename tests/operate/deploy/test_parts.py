"""Parts of what starts a fleet, by themselves: start lines, times, environments, and what surrounds them."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import planner
import planner as fo
from planner.machine.engines import engine
from planner.operate.deploy.kubernetes import environment, rollout_notes
from planner.operate.deploy.replay import Outcome
from planner.operate.deploy.serving import DeployOptions, serving_of, start_command
from planner.question.files import saved_pools
from tests.operate.deploy.conftest import plan_of


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        ((2, 1, 1, 1), "--tensor-parallel-size 2"),
        ((2, 3, 1, 1), "--tensor-parallel-size 2 --pipeline-parallel-size 3"),
        ((2, 1, 4, 1), "--tensor-parallel-size 2 --data-parallel-size 4"),
        ((1, 1, 4, 4), "--tensor-parallel-size 1 --data-parallel-size 4 --enable-expert-parallel"),
    ],
)
def test_gpus_of_a_replica_reach_its_start_line(spread: tuple[int, ...], words: str) -> None:
    pool: Any = SimpleNamespace(**dict(zip(("tp", "pp", "dp", "ep"), spread, strict=True)))
    command = start_command(engine("vllm"), "org/model", {"max_num_seqs": 64}, pool, ("--last",))
    assert command[:3] == ("vllm", "serve", "org/model") and command[-1] == "--last"
    line = " ".join(command)
    assert f"org/model {words} --max-num-seqs 64 --host 0.0.0.0 --port 8000" in line
    assert sum(flag in line for flag in ("tensor", "pipeline", "data-par", "expert")) == words.count("parallel")


def test_a_replica_may_finish_what_is_half_as_long_again_as_the_longest() -> None:
    """P99 E2E of 100 s: 150 s; where no latency is told a time that is enough for most."""
    plan = copy.deepcopy(plan_of("one pool").to_dict())
    pools: Any = plan["pools"]
    pools[0]["latency"] = [
        {"metric": "e2e_s", "quantile": 0.99, "value_s": 100.0},
        {"metric": "ttft_s", "value_s": 400.0},
    ]
    saved = saved_pools(plan_of("one pool"))
    (pool,) = serving_of(plan, saved, DeployOptions()).pools
    assert pool.drain_s == 150 and pool.grace_s > 150
    pools[0]["latency"] = [{"metric": "ttft_s", "value_s": 400.0}]
    assert serving_of(plan, saved, DeployOptions()).pools[0].drain_s == 600


@pytest.mark.parametrize(("spares", "rounds"), [(0, 7), (1, 7), (2, 4), (3, 3), (7, 1)])
def test_a_rollout_goes_by_as_many_as_are_spare(spares: int, rounds: int) -> None:
    pool: Any = SimpleNamespace(name="all", replicas=7, gone=max(1, spares), grace_s=80)
    serving: Any = SimpleNamespace(pools=[pool], startup=SimpleNamespace(seconds=100.0))
    (told,) = rollout_notes(serving)
    assert f"{rounds} times {max(1, spares)} of 7 replicas" in told


@pytest.mark.parametrize("key", [None, "llm-key"])
def test_an_engine_gets_its_tokens_from_secrets(key: str | None) -> None:
    serving: Any = SimpleNamespace(options=SimpleNamespace(api_key_secret=key), key_variable="VLLM_API_KEY")
    found = {e["name"]: e for e in environment(serving)}
    token = {"name": "hf-token", "key": "token", "optional": True}
    assert found["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": token}
    assert ("VLLM_API_KEY" in found) == (key is not None)
    if key:
        assert found["VLLM_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": key, "key": "api-key"}}
    assert found["HF_HOME"]["value"] == "/models" and found["HOME"]["value"] == "/tmp"


def test_an_overlay_of_kustomize_names_every_image_once() -> None:
    files = fo.deploy(plan_of("one pool"), "k8s", layout="kustomize", namespace="x", image="reg:5000/own/vllm:1").files
    overlay = yaml.safe_load(files["overlays/plan/kustomization.yaml"])
    assert overlay["namespace"] == "x" and overlay["resources"] == ["../../base"]
    assert overlay["images"][0] == {"name": "reg:5000/own/vllm", "newTag": "1"}
    assert [i["name"] for i in overlay["images"]] == ["reg:5000/own/vllm", "envoyproxy/envoy"]


def test_what_is_not_told_of_a_request_is_nothing() -> None:
    assert Outcome(100.0, 20.0, 0.1, 0.02, 0.5) == Outcome(100.0, 20.0, 0.1, 0.02, 0.5, 0.0, "")


def test_what_is_found_is_not_changed_afterwards() -> None:
    """Every record of what becomes of a plan is frozen."""
    folder = Path(planner.__file__).with_name("operate")
    names = (".".join(p.relative_to(folder.parents[1]).with_suffix("").parts) for p in sorted(folder.rglob("*.py")))
    modules = [import_module(name.removesuffix(".__init__")) for name in names]
    classes = {r for m in modules for r in vars(m).values() if isinstance(r, type) and r.__module__ == m.__name__}
    records = {r for r in classes if is_dataclass(r)}
    assert records and [r.__name__ for r in records if not r.__dataclass_params__.frozen] == []
