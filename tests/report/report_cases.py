"""A result of every kind that has words of its own, on both sides of every branch of them; most are made up by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

import planner as fo
from planner.ask.batching import Batching
from planner.ask.stability import Bound, Stability
from planner.ask.wait import WaitSettings
from planner.calibrate.closed_loop import Rules
from planner.calibrate.fit import KindError
from planner.calibrate.result import CalibrationSet
from planner.catalog.load import gpu, model
from planner.catalog.prices import Offer
from planner.catalog.profiles import profile as find_profile
from planner.choices import Choice, Choices
from planner.errors import InfeasibleError
from planner.machine.derived import Derived
from planner.plans import Plan
from planner.promise import Promise
from planner.report.listings import (
    gpu_entry,
    gpu_list,
    model_entry,
    model_list,
    offer_list,
    profile_comparison,
    profile_entry,
    profile_list,
)
from planner.report.pages import Listing
from planner.shared.remarks import Remark

TTFT = Promise("ttft_s", 0.5, 0.99)
ABOUT = {
    "workload": "chat",
    "arrival_rate_per_s": 2345.6,
    "gpu": "h100-80gb",
    "tensor_parallel_size": 2,
    "model": "m-8b",
    "profile_trust": "estimated",
    "max_num_seqs": 1256,
    "kv_tokens": 123456.0,
}


@cache
def plan(pools: int = 1) -> Plan:
    """A plan by closed forms."""
    found: Plan = fo.plan(
        "azure", rate=100.0, slo=4.0, method="mgc", kv="reserved", tp=1, pools=pools, price={"h100": 2.69}
    )
    priced = Remark("gpu_price", {"gpu": "h100-80gb", "price": 2.69, "source": " (acme, on-demand)"})
    assumed = [priced if r.code == "gpu_price" else r for r in found.remarks["assumptions"]]
    return replace(
        found,
        version="0.0",
        assumptions=("assumed so",),
        warnings=(),
        notes=("a note",),
        explanation=("a reason",),
        remarks={**found.remarks, "assumptions": tuple(assumed), "warnings": ()},
        sureness=None,
    )


def choice(kind: str, name: str, cost: float | None, limit_s: float | None = None, reason: str | None = None) -> Choice:
    """A row of a table of choices."""
    gpus = None if cost is None else round(100 * cost)
    return Choice(kind, name, {}, f"--{kind} {name.split()[-1]}", cost, gpus, "1 x TP1 h100", reason, limit_s)


ROWS = (
    choice("routing", "routing rr", 9.9),
    choice("precision", "FP8 weights", 7.5),
    choice("gpu", "l40s", 5.0),
    choice("gpu", "l4", 9.7),
    choice("gpu", "b200", 201.0),
    choice("tp", "TP8", 200.0),
    choice("shape", "apart", None, None, "no"),
    choice("promise", "P99 TTFT 250 ms", 20.0, 0.25),
    choice("promise", "P99 TTFT 1.5 s", 8.0, 1.5),
    choice("pools", "two pools", 6.0),
    choice("engine", "sglang", 9.0),
    choice("traffic", "20% more traffic", 12.0),
    choice("kv", "same", 10.0),
    choice("x", "waited for", None),
)
CHOICES = Choices(ROWS, 10.0, 1000, TTFT)
GOODPUT = Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.99)


def _infeasible() -> InfeasibleError:
    """A question without an answer, with what would make it possible."""
    found = InfeasibleError("no fleet")
    found.choices = Choices(ROWS[:2], None, None)
    return found


def choices() -> dict[str, Any]:
    """Tables of choices, with and without a plan, a knee, savings."""
    even = tuple(choice("promise", f"P99 TTFT {s:g} s", c, s) for s, c in ((0.25, 20.0), (1.0, 5.0)))
    flat = tuple(choice("promise", f"P99 TTFT {s:g} s", 10.0, s) for s in (0.25, 1.0))
    nothing = (
        choice("promise", "a", 10.0, 0.6),
        choice("promise", "b", 30.0, 0.25),
        choice("promise", "c", 9.999, 2.0),
    )
    return {
        "choices": CHOICES,
        "choices-without-a-plan": Choices(ROWS[:5], None, None, None, waiting=3),
        "choices-no-knee": Choices(even, 10.0, 1, TTFT),
        "choices-flat": Choices(flat, 10.0, 1, TTFT),
        "choices-nothing-saved": Choices(nothing, 10.0, 1, TTFT),
        "choices-tightest-knee": Choices((choice("promise", "a", 10.5, 0.6), *even[1:]), 40.0, 1, TTFT),
        "choices-infeasible": _infeasible(),
        "choices-goodput": Choices((choice("promise", "a", 12.0, 0.6), *even), 40.0, 1, replace(GOODPUT, limit_s=2.0)),
        "choices-infeasible-alone": InfeasibleError("no fleet"),
    }


def advice() -> dict[str, Any]:
    """What the scheduler commands say, by verdict."""
    bounds = (
        Bound("engine", "engine", 10.5, 31.5, 0.9524, "tokens"),
        Bound("apart", "achieved", 9.0, 27.0, math.inf, "RAD"),
        Bound("any", "limit", 12.0, 36.0, 0.8333, "work"),
    )
    stable = Stability(ABOUT, 3, "stable", "fine", 0.1, True, bounds, 2.0, 123.456, math.inf, 0.0, 0.0, ("a",), ("w",))
    exclusive = {
        "N": 200,
        "k": 50,
        "theta": 0.25,
        "throughput_per_s": 9.8765,
        "phase_iterations": 70,
        "overflow_share": 0.0123,
        "theta0_constant_hazard": 0.31416,
    }
    mixed = {"N": 180, "throughput_per_s": None, "beta_MB_s_per_token": None, "kappa": None}
    cross = {"beta_EB_s_per_token": 1.234e-5, "break_even_beta_MB_s_per_token": 2.345e-5, "N_crossover": None}
    unknown = Batching(
        ABOUT, "not measured", "unknown", "why", "fleetopt calibrate", exclusive, mixed, cross, {}, (), ()
    )
    known = replace(
        unknown,
        verdict="mixed",
        certainty="beyond",
        to_run=None,
        crossover={**cross, "N_crossover": 61.728},
        mixed={**mixed, "throughput_per_s": 11.25, "beta_MB_s_per_token": 3.456e-6, "kappa": -0.0456},
    )
    types = [
        {
            "output_tokens": 1234.0,
            "input_tokens": 2345.0,
            "rate_per_s": 1.25,
            "threshold": 7.0,
            "queue_mean_at_most": 3.5,
            "ttft_mean_at_most_s": 0.25,
            "latency_mean_at_most_s": 9.5,
        }
    ]
    nested = {
        "segments": 2,
        "ends": [100.0, 2000.0],
        "thresholds": [5, 9],
        "memory_tokens": 99999.0,
        "horizon_s": 7200.0,
        "delta": 0.01,
        "fits": True,
    }
    eq = {"memory_tokens": 54321.0, "iteration_s": 0.0345, "slack": 0.4567}
    wait = WaitSettings(ABOUT, 4, 0.0123, 4.5e-8, 0.1, eq, tuple(types), 88888.0, True, nested, "stable", "ok", (), ())
    bare = [{**types[0], "threshold": None, "queue_mean_at_most": None, "ttft_mean_at_most_s": None}]
    return {
        "stability": stable,
        "stability-burst": replace(
            stable,
            verdict="unstable",
            stable_within_band=False,
            time_to_overload_s=3.5,
            growth_per_s=4.56,
            recovery_s_per_s=1.8,
        ),
        "stability-over": replace(stable, replicas=0, time_to_overload_s=0.0, growth_per_s=7.89),
        "batching": unknown,
        "batching-measured": known,
        "wait": wait,
        "wait-tight": replace(
            wait,
            fits=False,
            types=tuple(bare),
            nested={**nested, "fits": False},
            verdict="memory too small",
            replicas=0,
        ),
        "wait-nested-over": replace(wait, nested=None),
        "wait-over": replace(wait, nested=None, memory_tokens=None, verdict="overload"),
    }


def catalog() -> dict[str, Any]:
    """GPUs, models and profiles of which much or little is known."""
    bare = replace(
        gpu("h100"),
        name="odd",
        link_bytes_per_s=None,
        node_link_bytes_per_s=None,
        pair_bytes_per_s=None,
        power_w=0.0,
        sm_count=0,
        attention_kernel="",
        price_usd_per_hour=None,
        aliases=(),
        flops_per_s={"fp16": 1.5e14},
        sources={},
    )
    full = replace(
        gpu("h100"),
        node_link_bytes_per_s=5e10,
        pair_bytes_per_s=6e11,
        price_usd_per_hour=2.345,
        attention_kernel="sm90",
        sources={"flops_per_s": "sheet", "memory_bytes": "sheet too", "price_usd_per_hour": "acme"},
    )
    dense, own = model("llama-3.1-8b"), replace(model("llama-3.1-8b"), name="own", source="", aliases=())
    odd = replace(dense, name="odd", kv_lora_rank=512, sliding_window=4096, state_layers=3, index_topk=2048, experts=8)
    windowed = replace(dense, name="windowed", sliding_window=1024, full_attention_layers=8)
    profile = find_profile("llama-3.1-8b-h100-80gb-tp1-trtllm")
    plain = replace(
        profile,
        name="plain",
        points=None,
        date="",
        engine="",
        engine_version="",
        error_mean=None,
        error_p95=None,
        notes=(),
        api_overhead_s=0.0,
        kv_tokens=None,
        settings={},
        covered={},
        untested=(),
        command="",
        source="",
    )
    rich = replace(
        profile,
        name="rich",
        error_mean=0.0345,
        error_p95=0.0912,
        api_overhead_s=0.0045,
        kv_tokens=99999.0,
        notes=("one", "two"),
        settings={"budget": 8192},
        covered={"decodes": (1.0, 256.0)},
        untested=("long prompts", "short ones"),
        command="run it",
        points=37,
        date="2025-01-02",
        engine="vllm",
        engine_version="0.9",
        iteration=replace(profile.iteration, t0=2.0 * profile.iteration.t0, x=0.0),
    )
    papers = {
        "paper": Derived(
            "y = a + b x",
            {"a": 0.0123, "b": 4.5e-7, "c": 0.0},
            {"a": "s", "b": "s/token", "c": "1"},
            {"n": (1.0, 64.0), "c": (512.0, 512.0)},
            0.0456,
            {},
            ("b",),
        ),
    }
    return {
        "gpu": gpu_entry(full, None),
        "gpu-bare": gpu_entry(bare, None),
        "model": model_entry(dense, 131072.0),
        "model-own": model_entry(own, 70272.0),
        "gpus": gpu_list([full, bare]),
        "models": model_list([dense, odd, windowed]),
        "profiles": profile_list([plain, rich]),
        "profiles-compared": profile_comparison([plain, rich]),
        "profile": profile_entry(plain),
        "profile-rich": profile_entry(rich, papers),
    }


def offers() -> Listing:
    """Offers whose age depends on the day."""
    old = Offer("h100-80gb", "acme", "us", "on-demand", 2.5, "2020-01-01", "their page")
    return offer_list([old, Offer("l4", "bulk", "", "spot", 0.3, "2999-01-01", "list", own=True)], frozenset([old]))


class Fitted:
    """Stands for a calibration: what its page and its pictures read."""

    def __init__(
        self, name: str, rows: list[dict[str, Any]], fit: Any = None, server_fit: Any = None, raw: Any = None
    ) -> None:
        self.profile = SimpleNamespace(name=name, trust="measured")
        self.rows, self.fit, self.server_fit, self.raw = rows, fit, server_fit, raw

    def parameters(self) -> list[dict[str, Any]]:
        """The rows."""
        return self.rows


def calibrations() -> dict[str, Any]:
    """Kernels and servers, with and without what they may lack."""
    rows = [
        {"parameter": "t0", "unit": "s", "value": 0.00123, "low": 0.001, "high": 0.0015, "identified": True},
        {"parameter": "tau", "unit": "1", "value": 128.0, "low": 100.0, "high": 200.0, "identified": False},
        {"parameter": "x", "unit": "s/token", "value": 1.5e-7, "low": None, "high": None, "identified": None},
    ]
    kinds = (KindError("decode", 12, 0.012, 0.0123, 0.3, -0.0045), KindError("mixed", 3, 0.12, 0.1, 0.2, 0.05))
    fit = SimpleNamespace(
        kinds=kinds,
        residuals=np.array([0.01, -0.02, 0.03]),
        fit_error=0.0123,
        leave_one_out_error=0.0234,
        leave_one_out_p95=0.0567,
        left_out_groups=0,
    )
    grouped = SimpleNamespace(**{**vars(fit), "left_out_groups": 4})
    server = SimpleNamespace(
        tpot_error_by_shape={(1024.0, 128.0): 0.034, (128.0, 1024.0): 0.0456},
        ttft_error=0.089,
        tpot_error=0.0345,
        prior_error=0.234,
        rules_chosen=True,
        points=24,
        shapes=3,
        rules=Rules("mixed", 8192.0),
    )
    few = SimpleNamespace(
        **{**vars(server), "tpot_error_by_shape": {}, "tpot_error": None, "prior_error": None, "rules_chosen": False}
    )
    alone = SimpleNamespace(**{**vars(server), "ttft_error": None})
    raw = SimpleNamespace(rows=[{"time_s": t} for t in ("0.03", "0.01", "0.02")])
    return {
        "calibrations": CalibrationSet(
            (
                Fitted("kernels", rows, fit, raw=raw),
                Fitted("grouped", rows[:1], grouped),
                Fitted("server", rows, None, server),
            )
        ),  # type: ignore[arg-type]
        "calibrations-few": CalibrationSet(
            (Fitted("none", rows[:1]), Fitted("few", rows[:1], None, few), Fitted("alone", rows[:1], None, alone))
        ),  # type: ignore[arg-type]
    }
