"""Rules of Kubernetes autoscalers read from files: HorizontalPodAutoscaler, KEDA's ScaledObject, KServe's ``spec.scaling.keda``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.monitor.policy import DAY_S, DOWN, TOLERANCE, UP, WEEK_S, Pace, Policy
from planner.shared.documents import parse_yaml, parse_yaml_all, printable, read_text

KINDS = ("HorizontalPodAutoscaler", "ScaledObject", "LLMInferenceService")
"""Objects that hold a rule."""

LARGEST_POLICY = 1 << 20
"""Largest file of one [bytes]."""

_MOST_REPLICAS = 1_000_000

_KIND = (
    ("saturation", r"saturation"),
    ("backlog_s", r"inflight_tokens"),
    ("queued", r"flow_control_queue_size|queued_requests"),
    ("in_flight", r"epp_request_running|objective_running|active_requests|inflight_requests"),
    ("waiting", r"waiting|queue"),
    ("running", r"running|in_?flight|active"),
    ("kv_usage", r"cache_usage|kv_cache|token_usage|kv_usage"),
    ("tokens", r"token"),
    ("requests", r"request"),
)

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def metric_of(text: str) -> str | None:
    """What a metric's name or a query is about."""
    return next((kind for kind, pattern in _KIND if re.search(pattern, text.lower())), None)


def read_policy(document: Mapping[str, Any], source: str, queries: Mapping[str, str] | None = None) -> Policy:
    """The rule of a HorizontalPodAutoscaler (autoscaling/v2), or of a KEDA ScaledObject with Prometheus and cron triggers.

    Parameters
    ----------
    document
        The object.
    source
        How it is called in messages.
    queries
        Name of an external metric -> what prometheus-adapter asks for.

    Raises
    ------
    InputError
        Another kind of object, a metric that says nothing of load, what cannot be told before it runs.
    """
    kind, spec = document.get("kind"), document.get("spec")
    if kind not in KINDS[:2] or not isinstance(spec, Mapping):
        raise InputError(f"{source}: expected a {' or a '.join(KINDS[:2])} with a spec, got {printable(str(kind), 60)}")
    hpa = kind.startswith("H")
    watched = _Watched(queries or {})
    entries = spec.get("metrics" if hpa else "triggers")
    for k, entry in enumerate(entries if isinstance(entries, list) else []):
        watched.add(entry, hpa, f"{source}: {'metrics' if hpa else 'triggers'}[{k}]")
    problems = watched.problems
    if _inner(_inner(spec, "advanced"), "scalingModifiers").get("formula"):
        problems.append(f"{source}: advanced.scalingModifiers.formula: formulas are not computed here, triggers are")
    behavior = _inner(spec if hpa else _inner(_inner(spec, "advanced"), "horizontalPodAutoscalerConfig"), "behavior")
    up, down = _inner(behavior, "scaleUp"), _inner(behavior, "scaleDown")
    least, idle = _bounds_of(spec, hpa)

    def number(key: str, given: Any, default: float) -> float:
        found = default if given is None else _quantity(given)
        if found is None:
            problems.append(f"{source}: {key}: expected a number, got {printable(str(given), 60)}")
        return default if found is None else found

    most = "maxReplicas" if hpa else "maxReplicaCount"
    numbers = [number(most, spec.get(most), 100.0), number("replicas", least, 1.0)]
    tolerance = number("tolerance", up.get("tolerance"), TOLERANCE)
    stable = "stabilizationWindowSeconds"
    windows = [number(stable, way.get(stable), s) for way, s in ((up, 0.0), (down, 300.0))]
    cooldown = number("cooldownPeriod", spec.get("cooldownPeriod"), 300.0)
    problems += [
        f"{source}: replicas: expected whole numbers, at most a million, got {n:g}"
        for n in numbers
        if n % 1.0 or n > _MOST_REPLICAS
    ]
    problems += [f"{source}: stabilizationWindowSeconds: at most an hour, got {s:g}" for s in windows if s > 3600.0]
    if problems:
        raise InputError.from_problems(problems)
    return Policy(
        watched.targets,
        int(numbers[1]),
        int(numbers[0]),
        tolerance,
        windows[0],
        windows[1],
        watched.window_s,
        watched.offset_per_s,
        flat=frozenset(watched.flat),
        up=_pace(up, UP, f"{source}: scaleUp"),
        down=_pace(down, DOWN, f"{source}: scaleDown"),
        idle_s=cooldown if idle else None,
        held=tuple(watched.held),
    )


class _Watched:
    """What a rule watches, entry by entry, and what is wrong with it."""

    def __init__(self, queries: Mapping[str, str]) -> None:
        self.queries, self.problems = queries, list[str]()
        self.targets: dict[str, float] = {}
        self.flat: set[str] = set()
        self.held: list[tuple[float, float, int]] = []
        self.window_s, self.offset_per_s = 60.0, 0.0

    def add(self, entry: Any, hpa: bool, place: str) -> None:
        """Take in one metric of a HorizontalPodAutoscaler or trigger of KEDA."""
        if not hpa and isinstance(entry, Mapping) and entry.get("type") == "cron":
            self.held += _cron(_inner(entry, "metadata"), place)
            return
        name, value, of_all = _hpa_metric(entry) if hpa else _keda_trigger(entry)
        if name is None:
            return
        query = self.queries.get(name, name)
        about = metric_of(query)
        if about is None or value is None or not value > 0.0:
            self.problems.append(f"{place}: {name!r} with target {value!r} is not a load that this backtest knows")
            return
        self.targets[about] = value
        # a bare name against a value of all pods is their mean
        mean = re.search(r"\b(avg|max|min|histogram_quantile)\s*(by\b[^(]*)?\(", query) or (of_all and "(" not in query)
        if of_all and not mean:
            self.problems.append(f"{place}: a sum against a target of type Value grows with the square of the pool")
        if mean and not of_all:
            self.flat.add(about)
        if (window := re.search(r"\[(\d+)([smh])", query)) is not None:
            self.window_s = float(window[1]) * _UNITS[window[2]]
        if (plus := re.search(r"\)\s*\+\s*([0-9.eE+-]+)\s*$", query)) is not None:
            self.offset_per_s = float(plus[1])


def _bounds_of(spec: Mapping[str, Any], hpa: bool) -> tuple[Any, bool]:
    """The fewest replicas of one that serves, and whether none may serve."""
    if hpa:
        return spec.get("minReplicas"), False
    given = spec.get("minReplicaCount", 0)
    to_zero = given == 0 or spec.get("idleReplicaCount") == 0
    return (1 if given == 0 else given), to_zero


def _pace(way: Mapping[str, Any], default: Pace, source: str) -> Pace:
    """How fast a direction of a behavior may go."""
    given, select = way.get("policies"), way.get("selectPolicy", "Max")
    if select == "Disabled":
        return Pace(by_pods=((0.0, 15.0),))
    kinds: dict[str, list[tuple[float, float]]] = {"Percent": [], "Pods": []}
    for number, entry in enumerate(given if isinstance(given, list) else []):
        one = entry if isinstance(entry, Mapping) else {}
        kind, amount, period = one.get("type"), _quantity(one.get("value")), _quantity(one.get("periodSeconds"))
        if kind not in kinds or not amount or not period or period > 1800.0:
            raise InputError(f"{source}.policies[{number}]: expected Percent or Pods with a value in periodSeconds")
        kinds[str(kind)].append((amount, period))
    if not any(kinds.values()):
        return Pace(default.by_percent, default.by_pods, select != "Min")
    return Pace(tuple(kinds["Percent"]), tuple(kinds["Pods"]), select != "Min")


def _cron(told: Mapping[str, Any], place: str) -> Iterator[tuple[float, float, int]]:
    """Seconds of the week from and to which a cron trigger holds replicas, Monday 0:00 first; of a daily one seven times."""
    ends, daily = [], []
    for key in ("start", "end"):
        found = re.fullmatch(r"\s*(\d{1,2}) (\d{1,2}) \* \* (\*|[0-7])\s*", str(told.get(key)))
        if found is None:
            said = printable(str(told.get(key)), 60)
            raise InputError(f"{place}: {key}: expected minute, hour and at most a day of the week, got {said}")
        day = 0 if found[3] == "*" else (int(found[3]) - 1) % 7
        ends.append(DAY_S * day + 3600.0 * int(found[2]) + 60.0 * int(found[1]))
        daily.append(found[3] == "*")
    replicas = _quantity(told.get("desiredReplicas"))
    if replicas is None or replicas % 1.0 or replicas > _MOST_REPLICAS or daily[0] != daily[1]:
        raise InputError(f"{place}: expected desiredReplicas, of every day or of days of the week")
    start, end = ends
    for day in range(7) if daily[0] else (0,):
        yield DAY_S * day + start, (DAY_S * (day + (daily[0] and end <= start)) + end) % WEEK_S, int(replicas)


def _inner(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What stands under a key where that is a mapping, else nothing."""
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}


def policies_of(paths: Sequence[Path], pools: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Policy]:
    """The user's rules by pool.

    Parameters
    ----------
    paths
        Files, each with an object; other objects in them are left aside.
    pools
        Pool -> names of what scales it. The one pool of a plan takes any rule.

    Raises
    ------
    InputError
        A file without a rule, a rule of no pool.
    """
    found: dict[str, Policy] = {}
    for path in paths:
        source = printable(str(path))
        documents = [d for d in parse_yaml_all(read_text(path, LARGEST_POLICY), source) if isinstance(d, Mapping)]
        queries = dict(pair for d in documents for pair in _adapter_queries(d, source))
        rules = [pair for d in documents for pair in _rules_of(d)]
        if not rules:
            raise InputError(f"{source}: holds no {' or '.join(KINDS[:2])}")
        for target, document in rules:
            names = [pool for pool, called in pools if len(pools) == 1 or target in called]
            if not names:
                raise InputError(
                    f"{source}: scales {printable(str(target))!r}, which is no pool",
                    f"Pools: {', '.join(c for _, called in pools for c in called[:1])}.",
                )
            found[names[0]] = read_policy(document, source, queries)
    return found


def _rules_of(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is scaled, and the object that says how; a service of KServe says it in its own spec."""
    kind, spec = document.get("kind"), _inner(document, "spec")
    if kind in KINDS[:2]:
        yield str(_inner(spec, "scaleTargetRef").get("name", "")), document
    if kind == KINDS[2]:
        called = str(_inner(document, "metadata").get("name", ""))
        for name, part in ((called, spec), (f"{called}-prefill", _inner(spec, "prefill"))):
            scaling = _inner(part, "scaling")
            if keda := _inner(scaling, "keda"):
                bounds = {
                    "minReplicaCount": scaling.get("minReplicas", 1),
                    "maxReplicaCount": scaling.get("maxReplicas"),
                }
                yield name, {"kind": "ScaledObject", "spec": {**bounds, **keda}}


def _adapter_queries(document: Mapping[str, Any], source: str) -> Iterator[tuple[str, str]]:
    """Names and queries of external metrics in a ConfigMap of prometheus-adapter."""
    if document.get("kind") != "ConfigMap":
        return
    for text in _inner(document, "data").values():
        rules = parse_yaml(text, source) if isinstance(text, str) and "externalRules" in text else None
        for rule in rules.get("externalRules") or [] if isinstance(rules, Mapping) else []:
            if isinstance(rule, Mapping) and isinstance(rule.get("metricsQuery"), str):
                inner = re.fullmatch(r"label_replace\((.*?)(, \"[^\"]*\"){4}\)", rule["metricsQuery"], re.S)
                yield str(_inner(rule, "name").get("as")), inner[1] if inner else rule["metricsQuery"]


def _hpa_metric(entry: Any) -> tuple[str | None, float | None, bool]:
    """Name of a metric, its target, and whether that is of all replicas together."""
    kind = str(entry.get("type", "")).lower() if isinstance(entry, Mapping) else ""
    inner = entry.get(kind) if kind else None
    if not isinstance(inner, Mapping) or kind == "resource":
        return (str(kind) or None), None, False
    target = _inner(inner, "target")
    name = printable(str(_inner(inner, "metric").get("name", "")))
    return name, _quantity(target.get("averageValue", target.get("value"))), "averageValue" not in target


def _keda_trigger(entry: Any) -> tuple[str | None, float | None, bool]:
    """The same of a trigger that asks Prometheus."""
    if not isinstance(entry, Mapping) or entry.get("type") != "prometheus":
        return None, None, False
    told = _inner(entry, "metadata")
    query = printable(str(told.get("query", told.get("metricName", ""))), 2000)
    return query, _quantity(told.get("threshold")), entry.get("metricType") == "Value"


def _quantity(value: Any) -> float | None:
    """A Kubernetes quantity: ``"4"``, ``"500m"``, ``"2k"``."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    # more digits than any quantity has would be infinite, or take long to tell
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(m|k|M|G)?\s*", str(value)[:40], re.ASCII)
    if found is None:
        return None
    number, unit = float(found[1]), found[2]
    return number / 1e3 if unit == "m" else number * {None: 1.0, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
