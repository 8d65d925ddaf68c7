"""The rule of a Kubernetes autoscaler as the API server documents it."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from planner.errors import InputError, refuse
from planner.operate.deploy.serving import VALUES
from planner.shared.documents import parse_yaml, parse_yaml_all, printable, read_text
from planner.shared.record import Record
from planner.units import DAY_S, HOUR_S, SECONDS, WEEK_S

METRICS = ("requests", "tokens", "running", "in_flight", "waiting", "queued", "kv_usage", "saturation", "backlog_s")
"""What a policy may watch; see :class:`planner.operate.autoscale.windows.Signals`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a scaler may go one way.

    Parameters
    ----------
    by_percent, by_pods
        (how much, in how many seconds) of every policy that allows a share of the replicas [%], or a number of them.
    widest
        Whether the policy that allows most counts, else the one that allows least.
    """

    by_percent: tuple[tuple[float, float], ...] = ()
    by_pods: tuple[tuple[float, float], ...] = ()
    widest: bool = True

    @property
    def longest_s(self) -> float:
        """The longest period of its policies [s]."""
        return max((period for _, period in (*self.by_percent, *self.by_pods)), default=0.0)


UP = Pace(((100.0, 15.0),), ((4.0, 15.0),))
DOWN = Pace(((100.0, 15.0),))
"""The API server's own paces."""


@dataclass(frozen=True, slots=True)
class Policy(Record):
    """When to scale.

    Parameters
    ----------
    targets
        Metric -> value of one replica that is aimed at: ``requests`` and ``tokens`` [1/s], ``running``, ``in_flight``,
        ``waiting``, ``queued`` [requests], ``kv_usage``, ``saturation`` [1], ``backlog_s`` [s]. Of several the largest number of
        replicas counts.
    least, most
        Fewest and most replicas.
    tolerance
        Relative change that is ignored [1].
    up_window_s, down_window_s
        Stabilization: the least (up) and the most (down) wanted within the window counts [s].
    rate_window_s
        Rates and what is in flight are means over this time [s].
    offset_per_s
        Added to the fleet's requests/s before they are divided: what a small pool needs more than its share [1/s].
    flat
        Metrics whose query does not grow with the pool (a mean or a maximum), divided by a target of one replica all the same:
        they never ask for more than their ratio.
    up, down
        How fast it may go.
    idle_s
        Without requests for so long it goes to no replica at all [s]; ``None`` = never.
    held
        Seconds of the period from and to which replicas are held whatever the metrics say, and how many; the period is a week.
    """

    targets: Mapping[str, float]
    least: int
    most: int
    tolerance: float = 0.1
    up_window_s: float = 0.0
    down_window_s: float = 300.0
    rate_window_s: float = 60.0
    offset_per_s: float = 0.0
    flat: frozenset[str] = frozenset()
    up: Pace = UP
    down: Pace = DOWN
    idle_s: float | None = None
    held: tuple[tuple[float, float, int], ...] = ()

    written: ClassVar[tuple[str, ...]] = (
        *("targets", "min_replicas=least", "max_replicas=most", "tolerance", "scale_down_window_s=down_window_s"),
        *("rate_window_s", "offset_per_s", "scale_to_zero_after_s=idle_s"),
    )

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
        refuse(problems)

    def wanted(self, totals: Mapping[str, float], replicas: int = 0) -> int:
        """Replicas that the metrics ask for at once, whatever there was before; `replicas` are kept within the tolerance.

        Parameters
        ----------
        totals
            Metric -> its sum over the replicas, a share of the KV cache likewise; a flat one as its query tells it.
        replicas
            Those there are; 0 = nobody asks how many.
        """
        found = 0
        for name, target in self.targets.items():
            if name in totals:
                near = replicas and abs(totals[name] / (target * replicas) - 1.0) <= self.tolerance
                found = max(found, replicas if near else math.ceil(totals[name] / target - 1e-9))
        return min(max(found, self.least), self.most)

    def held_at(self, now_s: float) -> int:
        """Replicas that the clock holds at a second of the week; 0 = none."""
        now = now_s % WEEK_S
        return max((n for a, b, n in self.held if (a <= now < b if a <= b else now >= a or now < b)), default=0)


OF_CLUSTER: Mapping[str, Any] = {f.name: f.default for f in fields(Policy)}
"""What the API server takes where a rule says nothing."""


def written(target: float) -> float:
    """A target as the API server keeps it, rounded down to thousandths: a little more than asked, never less."""
    return max(1, math.floor(1000.0 * target + 1e-9)) / 1000.0


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
        self._changed: deque[tuple[float, int]] = deque()
        self._busy_s = 0.0

    def decide(self, now_s: float, totals: Mapping[str, float]) -> int:
        """The number of replicas from now on.

        Parameters
        ----------
        now_s
            Time [s].
        totals
            See :meth:`Policy.wanted`.
        """
        policy = self.policy
        if policy.idle_s is not None:
            if totals.get("requests", 0.0) > 0.0 or totals.get("queued", 0.0) > 0.0:
                self._busy_s = now_s
            if now_s - self._busy_s >= policy.idle_s:
                self.replicas = 0
                return 0
            self.replicas = max(self.replicas, policy.least)
        wanted = max(policy.wanted(totals, self.replicas), min(policy.held_at(now_s), policy.most))
        self._wanted.append((now_s, wanted))
        longest = max(policy.up_window_s, policy.down_window_s)
        while self._wanted[0][0] < now_s - longest:
            self._wanted.popleft()
        # what is as old as the window no longer counts
        up = min([wanted, *(n for t, n in self._wanted if t > now_s - policy.up_window_s)])
        down = max([wanted, *(n for t, n in self._wanted if t > now_s - policy.down_window_s)])
        before = self.replicas
        if up > before:
            self.replicas = max(before, min(up, self._allowed(now_s, policy.up, 1)))
        elif down < before:
            self.replicas = min(before, max(down, self._allowed(now_s, policy.down, -1)))
        if self.replicas != before:
            self._changed.append((now_s, self.replicas - before))
        return self.replicas

    def _allowed(self, now_s: float, pace: Pace, way: int) -> int:
        """How far the policies of a direction let it go."""
        while self._changed and self._changed[0][0] <= now_s - max(
            self.policy.up.longest_s, self.policy.down.longest_s
        ):
            self._changed.popleft()

        def begun(period: float) -> int:
            """Replicas at the start of the period, but for what went the other way since."""
            return self.replicas - sum(n for t, n in self._changed if t > now_s - period and n * way > 0)

        rounded = math.ceil if way > 0 else math.floor
        ends = [rounded(begun(s) * (1.0 + way * v / 100.0) + way * -1e-9) for v, s in pace.by_percent]
        ends += [begun(s) + way * int(v) for v, s in pace.by_pods]
        if not ends:
            return self.policy.most if way > 0 else self.policy.least
        return max(ends) if pace.widest == (way > 0) else min(ends)


KINDS = ("HorizontalPodAutoscaler", "ScaledObject", "LLMInferenceService")
"""Objects that hold a rule."""

_MOST_REPLICAS = 1_000_000
"""More are a slip of whoever wrote the rule."""

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
    tolerance = number("tolerance", up.get("tolerance"), OF_CLUSTER["tolerance"])
    stable = "stabilizationWindowSeconds"
    windows = [
        number(stable, way.get(stable), s)
        for way, s in ((up, OF_CLUSTER["up_window_s"]), (down, OF_CLUSTER["down_window_s"]))
    ]
    cooldown = number("cooldownPeriod", spec.get("cooldownPeriod"), 300.0)
    problems += [
        f"{source}: replicas: expected whole numbers, at most a million, got {n:g}"
        for n in numbers
        if n % 1.0 or n > _MOST_REPLICAS
    ]
    problems += [f"{source}: stabilizationWindowSeconds: at most an hour, got {s:g}" for s in windows if s > HOUR_S]
    refuse(problems)
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
            self.window_s = float(window[1]) * SECONDS[window[2]]
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
        ends.append(DAY_S * day + HOUR_S * int(found[2]) + 60.0 * int(found[1]))
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
        documents = [
            d for d in parse_yaml_all(read_text(path, VALUES.limits["object_bytes"]), source) if isinstance(d, Mapping)
        ]
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
