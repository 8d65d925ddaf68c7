"""The rule of a Kubernetes autoscaler on one metric, as the API server documents it, and how it is read from a file."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.documents import parse_yaml_all, printable, read_text
from planner.errors import InputError

TOLERANCE = 0.1
"""Change of the ratio it ignores unless told otherwise [1]."""

KINDS = ("HorizontalPodAutoscaler", "ScaledObject")
"""Objects that hold a rule."""

LARGEST_POLICY = 1 << 20
"""Largest file of one [bytes]."""

METRICS = ("requests", "tokens", "running", "waiting", "kv_usage")
"""What a policy may watch."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to scale.

    Parameters
    ----------
    targets
        Metric -> value of one replica that is aimed at: ``requests`` and ``tokens`` [1/s], ``running``, ``waiting``
        [requests], ``kv_usage`` [1]. Of several the largest number of replicas counts.
    least, most
        Fewest and most replicas.
    tolerance
        Relative change that is ignored [1].
    up_window_s, down_window_s
        Stabilization: the least (up) and the most (down) wanted within the window counts [s].
    rate_window_s
        Rates and running requests are means over this time [s].
    offset_per_s
        Added to the fleet's requests/s before they are divided: what a small pool needs more than its share [1/s].
    """

    targets: Mapping[str, float]
    least: int
    most: int
    tolerance: float = TOLERANCE
    up_window_s: float = 0.0
    down_window_s: float = 300.0
    rate_window_s: float = 60.0
    offset_per_s: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"target of {name}: must be positive, got {v!r}"
            for name, v in self.targets.items()
            if not (math.isfinite(v) and v > 0.0)
        ]
        problems += [f"metric {name!r} is none of {', '.join(METRICS)}" for name in self.targets if name not in METRICS]
        if not self.targets:
            problems.append("a policy watches at least one metric")
        if not 1 <= self.least <= self.most:
            problems.append(f"replicas from {self.least} to {self.most}: expected 1 <= least <= most")
        if problems:
            raise InputError.from_problems(problems)


class Scaler:
    """A policy at work.

    Parameters
    ----------
    policy
        The rule.
    replicas
        At the beginning.
    """

    def __init__(self, policy: Policy, replicas: int) -> None:
        self.policy = policy
        self.replicas = min(max(replicas, policy.least), policy.most)
        # the controller begins with what there is as its first recommendation
        self._wanted: deque[tuple[float, int]] = deque([(0.0, self.replicas)])

    def decide(self, now_s: float, totals: Mapping[str, float]) -> int:
        """The number of replicas from now on.

        Parameters
        ----------
        now_s
            Time [s].
        totals
            Metric -> its sum over the replicas; a share of the KV cache likewise.
        """
        policy = self.policy
        wanted = 0
        for name, target in policy.targets.items():
            if name not in totals:
                continue
            ratio = totals[name] / (target * self.replicas)
            same = abs(ratio - 1.0) <= policy.tolerance
            wanted = max(wanted, self.replicas if same else math.ceil(totals[name] / target - 1e-9))
        wanted = min(max(wanted, policy.least), policy.most)
        self._wanted.append((now_s, wanted))
        longest = max(policy.up_window_s, policy.down_window_s)
        while self._wanted[0][0] < now_s - longest:
            self._wanted.popleft()
        # what is as old as the window no longer counts
        up = min([wanted, *(n for t, n in self._wanted if t > now_s - policy.up_window_s)])
        down = max([wanted, *(n for t, n in self._wanted if t > now_s - policy.down_window_s)])
        if up > self.replicas:
            self.replicas = up
        elif down < self.replicas:
            self.replicas = down
        return self.replicas


_KIND = (
    ("waiting", r"waiting|queue"),
    ("running", r"running|in_?flight|active"),
    ("kv_usage", r"cache_usage|kv_cache|token_usage|kv_usage"),
    ("tokens", r"token"),
    ("requests", r"request"),
)


def metric_of(text: str) -> str | None:
    """What a metric's name or a query is about."""
    return next((kind for kind, pattern in _KIND if re.search(pattern, text.lower())), None)


def read_policy(document: Mapping[str, Any], source: str) -> Policy:
    """A HorizontalPodAutoscaler (autoscaling/v2) or a KEDA ScaledObject with Prometheus triggers.

    Raises
    ------
    InputError
        Another kind of object, a metric that says nothing of load.
    """
    kind, spec = document.get("kind"), document.get("spec")
    if kind not in [*KINDS] or not isinstance(spec, Mapping):
        raise InputError(f"{source}: expected a {' or a '.join(KINDS)} with a spec, got {printable(str(kind), 60)}")
    hpa = kind.startswith("H")
    targets: dict[str, float] = {}
    problems: list[str] = []
    watched = spec.get("metrics" if hpa else "triggers")
    for number, entry in enumerate(watched if isinstance(watched, list) else []):
        place = f"{source}: {'metrics' if hpa else 'triggers'}[{number}]"
        name, value = _hpa_metric(entry) if hpa else _keda_trigger(entry)
        if name is None:
            continue
        about = metric_of(name)
        if about is None or value is None or not value > 0.0:
            problems.append(
                f"{place}: {name!r} with target {value!r} is not a load of requests, tokens, running, waiting or KV cache"
            )
        else:
            targets[about] = value
    if problems:
        raise InputError.from_problems(problems)
    behavior = _inner(spec if hpa else _inner(_inner(spec, "advanced"), "horizontalPodAutoscalerConfig"), "behavior")
    up, down = _inner(behavior, "scaleUp"), _inner(behavior, "scaleDown")

    def number_of(of: Mapping[str, Any], key: str, default: float) -> float:
        found = default if of.get(key) is None else _quantity(of[key])
        if found is None:
            problems.append(f"{source}: {key}: expected a number, got {printable(str(of[key]), 60)}")
        return default if found is None else found

    least = number_of(spec, "minReplicas" if hpa else "minReplicaCount", 1.0) or 1.0
    most = number_of(spec, "maxReplicas" if hpa else "maxReplicaCount", 100.0)
    tolerance = number_of(up, "tolerance", TOLERANCE)
    windows = [number_of(way, "stabilizationWindowSeconds", s) for way, s in ((up, 0.0), (down, 300.0))]
    problems += [
        f"{source}: replicas: expected whole numbers, at most a million, got {n:g}"
        for n in (least, most)
        if n % 1.0 or n > _MOST_REPLICAS
    ]
    problems += [f"{source}: stabilizationWindowSeconds: at most an hour, got {s:g}" for s in windows if s > 3600.0]
    if problems:
        raise InputError.from_problems(problems)
    return Policy(targets, int(least), int(most), tolerance, *windows)


_MOST_REPLICAS = 1_000_000


def _inner(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What stands under a key where that is a mapping, else nothing."""
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}


def policies_of(paths: Sequence[Path], pools: Sequence[tuple[str, str]]) -> dict[str, Policy]:
    """The user's rules by pool.

    Parameters
    ----------
    paths
        Files, each with an object; other objects in them are left aside.
    pools
        Pool -> name of its deployment. The one pool of a plan takes any rule.

    Raises
    ------
    InputError
        A file without a rule, a rule of no pool.
    """
    found: dict[str, Policy] = {}
    for path in paths:
        source = printable(str(path))
        documents = parse_yaml_all(read_text(path, LARGEST_POLICY), source)
        rules = [d for d in documents if isinstance(d, Mapping) and d.get("kind") in [*KINDS]]
        if not rules:
            raise InputError(f"{source}: holds no {' or '.join(KINDS)}")
        for document in rules:
            target = _inner(_inner(document, "spec"), "scaleTargetRef").get("name", "")
            names = [pool for pool, called in pools if len(pools) == 1 or called == target]
            if not names:
                raise InputError(
                    f"{source}: scales {printable(str(target))!r}, which is no pool",
                    f"Pools: {', '.join(c for _, c in pools)}.",
                )
            found[names[0]] = read_policy(document, source)
    return found


def _hpa_metric(entry: Any) -> tuple[str | None, float | None]:
    kind = str(entry.get("type", "")).lower() if isinstance(entry, Mapping) else ""
    inner = entry.get(kind) if kind else None
    if not isinstance(inner, Mapping) or kind == "resource":
        return (str(kind) or None), None
    target = _inner(inner, "target")
    name = printable(str(_inner(inner, "metric").get("name", "")))
    return name, _quantity(target.get("averageValue", target.get("value")))


def _keda_trigger(entry: Any) -> tuple[str | None, float | None]:
    if not isinstance(entry, Mapping) or entry.get("type") != "prometheus":
        return None, None
    told = _inner(entry, "metadata")
    return printable(str(told.get("query", told.get("metricName", ""))), 1000), _quantity(told.get("threshold"))


def _quantity(value: Any) -> float | None:
    """A Kubernetes quantity: ``"4"``, ``"500m"``, ``"2k"``."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    # more digits than any quantity has would be infinite, or take long to tell
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(m|k|M|G)?\s*", str(value)[:40], re.ASCII)
    if found is None:
        return None
    return float(found[1]) * {None: 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}[found[2]]
