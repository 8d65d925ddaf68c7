"""Thirteen plans of different kinds, each made once."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

import planner as fo

CUT = {
    "rate": 300, "slo": 2.0, "pools": 2, "boundaries": [4096], "gammas": 1.0, "gpu": "a100", "kv": "reserved"
}  # fmt: skip
PLANS: dict[str, dict[str, Any]] = {
    "one pool": {"rate": 20, "slo": 0.5, "routing": "random"},
    "spare": {"rate": 20, "slo": 0.5, "redundancy": 1},
    "cut": {**CUT, "route_on": "total"},
    "cut by prompt": {**CUT, "route_on": "input"},
    "groups": {"rate": 5, "slo": 2.0, "model": "llama-3.1-70b", "routing": "least"},
    "quantized here": {"rate": 5, "slo": 2.0, "model": "llama-3.1-70b-fp8", "routing": "rr"},
    "quantized there": {"rate": 5, "slo": 2.0, "model": "RedHatAI/Qwen3-32B-FP8-dynamic"},
    "amd": {"rate": 20, "slo": 0.5, "gpu": "mi300x"},
    "workstation": {"rate": 5, "slo": 2.0, "gpu": "rtx-6000-ada"},
    "cached": {"rate": 20, "slo": 0.5, "cached_share": 0.6, "routing": "least"},
    "mixture": {"rate": 5, "slo": 2.0, "model": "gpt-oss-120b"},
    "two nodes": {"rate": 2, "slo": 4.0, "model": "deepseek-v3", "gpu": "h100", "redundancy": 1},
    "split": {"rate": 20, "slo": 1.0, "shape": "disaggregated"},
}


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a file that are not empty; by libyaml where it is there, which is many times as fast."""
    return [d for d in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if d]


@cache
def plan_of(kind: str) -> fo.Plan:
    """A plan of one kind; with the cheap method, since nothing here depends on latencies."""
    options = {"workload": "azure", "pools": 1, "method": "occupancy", "burst": "poisson", **PLANS[kind]}
    if "shape" in options:
        options["method"] = "mixed"
    return fo.plan(**options)
