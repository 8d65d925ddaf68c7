"""Expressions of Prometheus over the series of one pool of one fleet, by the names its pods and metrics have there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import refuse_unknown
from planner.machine.engines import DEFAULT_ENGINE, engines
from planner.operate.deploy.serving import object_name
from planner.operate.monitor.policy import Policy, policies_of
from planner.promise import MEAN
from planner.shared.documents import load_document
from planner.shared.templates import templates

_filled: Callable[..., Any] = templates(__file__)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server names its metrics.

    Parameters
    ----------
    name
        Of the server.
    gauges, counters, histograms
        Quantity -> names, newest first; of histograms without ``_bucket``, ``_sum``, ``_count``.
    model_label
        Label with the name under which a model is served.
    bounds
        Quantity -> upper bounds of its histogram [s]; empty where they are the operator's to choose.
    """

    name: str
    gauges: Mapping[str, Sequence[str]]
    counters: Mapping[str, Sequence[str]]
    histograms: Mapping[str, Sequence[str]]
    model_label: str
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)


DIALECTS = tuple(Dialect(**one) for one in load_document(Path(__file__).with_name("dialects.yaml")))
"""The dialects, tried in this order: engines before what stands in front of them."""


def dialect_of_engine(engine: str | None) -> Dialect:
    """How an engine names its metrics; ``None`` or one that is not known = the default engine."""
    known = engines()
    host = (engine or "").lower()
    title = known[host if host in known else DEFAULT_ENGINE].title
    return next(d for d in DIALECTS if d.name == title)


DEPLOYED = ("k8s", "llm-d", "kserve", "dynamo")
"""Targets of ``fleetopt deploy`` whose fleets can be scaled: what scales a pool and how its pods are called differ."""


def find_deployed(name: str) -> str:
    """The target of that name; an unknown one is an InputError."""
    refuse_unknown("--deployed:", name, DEPLOYED)
    return name


@dataclass(frozen=True, slots=True)
class Running:
    """One pool that runs, as who scales and who watches it finds it.

    Parameters
    ----------
    deployed
        A name of :data:`DEPLOYED`.
    prefix, pool
        Name of the fleet's objects, and of the pool.
    role
        ``both``, or ``prefill`` or ``decode`` where these are pools of their own.
    nodes
        Nodes that a replica spans.
    engine
        Whose metrics it shows; ``None`` = the default engine's.
    model, namespace
        Name under which the model is served, and namespace of its pods; empty = not asked for.
    """

    deployed: str
    prefix: str
    pool: str
    role: str = "both"
    nodes: int = 1
    engine: str | None = None
    model: str = ""
    namespace: str | None = None

    @property
    def name(self) -> str:
        """Of its objects."""
        return object_name(self.pool, self.prefix)

    def called(self, what: str) -> Any:
        """The object whose replicas a scaler sets (``target``), or a regular expression of its ``pods`` that answer.

        >>> Running("k8s", "fleetopt", "long").called("pods")
        'fleetopt-long-[a-z0-9]+-[a-z0-9]{5}'
        >>> Running("kserve", "chat", "prefill", "prefill").called("pods")
        'chat-kserve-prefill-[a-z0-9]+-[a-z0-9]{5}'
        """
        one, kind = ("[0-9]+", "groups") if self.nodes > 1 else ("[a-z0-9]+-[a-z0-9]{5}", "deployment")
        kind = f"{self.deployed} {self.role}" if self.deployed in ("kserve", "dynamo") else kind
        return _filled(kind, name=self.name, prefix=self.prefix, one=one)[what]

    def names(self, more: str = "", by: str = "", **matchers: str) -> Names:
        """Expressions over the series with these labels where it runs; see :class:`Names`."""
        inside = {"namespace": f'="{self.namespace}"'} if self.namespace else {}
        return Names(dialect_of_engine(self.engine), inside | matchers, more, by)

    def engines(self, told_apart: bool = True, more: str = "", by: str = "") -> Names:
        """The same of its engines, by their pods where they are told apart."""
        matchers = {dialect_of_engine(self.engine).model_label: f'="{self.model}"'} if self.model else {}
        return self.names(more, by, **matchers, **({"pod": f'=~"{self.called("pods")}"'} if told_apart else {}))


def names_of(prefix: str, pool: str, role: str) -> list[str]:
    """Names under which a pool is scaled, whatever wrote it."""
    return [Running(deployed, prefix, pool, role).called("target")["name"] for deployed in ("k8s", "kserve", "dynamo")]


def scalers_of(paths: Sequence[str | Path] | None, name: str, pools: Sequence[str]) -> dict[str, Policy]:
    """Rules of files by pool, whatever wrote the objects they scale."""
    if not paths:
        return {}
    roles = {p: p if set(pools) == {"prefill", "decode"} else "both" for p in pools}
    return policies_of([Path(p) for p in paths], [(p, names_of(name, p, roles[p])) for p in pools])


class Names:
    """Expressions over the series of one pool.

    Parameters
    ----------
    dialect
        How its engines name their metrics.
    matchers
        Label -> what it must be: ``="..."`` or ``=~"..."``.
    more
        Further matchers, as they are written.
    by
        Labels that are kept where series are added up.
    """

    def __init__(self, dialect: Dialect, matchers: Mapping[str, str], more: str = "", by: str = "") -> None:
        self.dialect = dialect
        self.inside = ",".join([*(f"{label}{told}" for label, told in matchers.items()), *([more] if more else [])])
        self.braces = f"{{{self.inside}}}"
        self._by, self._le = (f" by ({by}) ", f" by (le, {by}) ") if by else ("", " by (le) ")

    def over(self, function: str, expression: str) -> str:
        """An aggregation that keeps its labels."""
        return f"{function}{self._by}({expression})"

    def gauge(self, quantity: str) -> str:
        """The series of a gauge."""
        return f"{self.dialect.gauges[quantity][0]}{self.braces}"

    def watched(self, policy: Policy) -> dict[str, str]:
        """What the metrics of a rule come to on the engines, by metric: all replicas together, as the rule counts them.

        One look at the running requests is noise: their mean over the window of the rate.
        """
        window = f"{policy.rate_window_s:.0f}s"
        held = {q: f"avg_over_time({self.gauge(q)}[{window}])" for q in ("running", "waiting")}
        plus = f" + {policy.offset_per_s:.6g}" if policy.offset_per_s else ""
        return {
            "requests": self.rate("requests", window) + plus,
            "running": self.over("sum", held["running"]),
            "in_flight": self.over("sum", " + ".join(held.values())),
        }

    def rate(self, quantity: str, window: str) -> str:
        """What a counter grows by in a second."""
        return self.over("sum", f"rate({self.dialect.counters[quantity][0]}{self.braces}[{window}])")

    def quantile(self, quantity: str, level: float, window: str) -> str:
        """A quantile of a histogram, or its mean."""
        if level == MEAN:
            return self.mean(quantity, window)
        bucket = f"{self.dialect.histograms[quantity][0]}_bucket{self.braces}"
        return f"histogram_quantile({level:.10g}, sum{self._le}(rate({bucket}[{window}])))"

    def mean(self, quantity: str, window: str) -> str:
        """The mean of what a histogram counts."""
        name = self.dialect.histograms[quantity][0]
        total, count = (self.over("sum", f"rate({name}_{part}{self.braces}[{window}])") for part in ("sum", "count"))
        return f"{total} / {count}"

    def late(self, quantity: str, limit_s: float, window: str) -> str | None:
        """Share of the requests beyond a limit, linear between the bounds beside it; ``None`` where the bounds are not known or all
        lie on one side of it."""
        bounds = self.dialect.bounds.get(quantity, ())
        name = self.dialect.histograms[quantity][0]

        def counted(part: str, inside: str) -> str:
            return self.over("sum", f"rate({name}_{part}{{{inside}}}[{window}])")

        total, inside = counted("count", self.inside), f"{self.inside}," if self.inside else ""
        below = max((b for b in bounds if b <= limit_s * (1.0 + 1e-9)), default=None)
        above = min((b for b in bounds if b > limit_s * (1.0 + 1e-9)), default=None)
        if below is None or above is None:
            return None

        def bucket(bound: float) -> str:
            # a bound is written with a decimal by some clients and without by others
            return counted("bucket", f'{inside}le=~"{_either(bound)}"')

        part = (limit_s - below) / (above - below)
        within = bucket(below)
        if part > 1e-9:
            within = f"({1.0 - part:.10g} * {within} + {part:.10g} * {bucket(above)})"
        return f"1 - {within} / {total}"


def _either(bound: float) -> str:
    """Both ways in which a bound is written.

    >>> _either(0.5), _either(1.0)
    ('0[.]5', '1([.]0)?')
    """
    return f"{int(bound)}([.]0)?" if bound == int(bound) else f"{bound:.10g}".replace(".", "[.]")
