"""Latency promises: what is promised, at which quantile, to whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.errors import InputError, refuse
from planner.units import format_duration


class Metric(NamedTuple):
    """A latency of a request that can be promised.

    Parameters
    ----------
    bare_up_to_s
        Above this, a limit without a unit is taken for milliseconds that were meant [s].
    also
        What else people call it.
    """

    bare_up_to_s: float
    also: tuple[str, ...] = ()


PROMISE_METRICS: Mapping[str, Metric] = {
    "ttft_s": Metric(60.0),
    "tpot_s": Metric(1.0, ("itl",)),
    "e2e_s": Metric(3600.0, ("e2el",)),
}
"""What can be promised, by the name of its values."""

MEAN = 0.0
"""The level of a promise about the mean, where others have the share of requests within their limit."""

GOODPUT = "goodput"
"""What the name of a joint latency begins with, and the name of such a promise in files."""


def joint_limits(metric: str) -> dict[str, float] | None:
    """Limits [s] of a joint latency by what they limit; ``None`` for one latency alone.

    >>> joint_limits("goodput:ttft_s=0.5,tpot_s=0.05"), joint_limits("ttft_s")
    ({'ttft_s': 0.5, 'tpot_s': 0.05}, None)
    """
    kind, _, limits = metric.partition(":")
    if kind != GOODPUT:
        return None
    return {name: float(limit) for name, _, limit in (part.partition("=") for part in limits.split(",") if part)}


@dataclass(frozen=True, slots=True)
class Promise:
    """One latency promise: the `quantile` of `metric` is at most `limit_s`; :meth:`joint` promises several latencies at once.

    The latency of a joint promise is that of its first limit at which a request would be as near to breaking it as it is to
    breaking the nearest of them: ``limit_s * max(latency / limit)``. It is within `limit_s` where all are kept.

    Parameters
    ----------
    metric
        ``"ttft_s"``, ``"tpot_s"`` or ``"e2e_s"``; of a joint promise ``"goodput:ttft_s=0.5,tpot_s=0.05"``.
    limit_s
        Limit [s], > 0.
    quantile
        Share of requests within the limit, in (0, 1); :data:`MEAN` where the mean of one latency is at most `limit_s`.
    scope
        ``"pool"`` (each pool keeps it) or ``"fleet"`` (all requests together do).
    """

    metric: str
    limit_s: float
    quantile: float = 0.99
    scope: str = "pool"

    def __post_init__(self) -> None:
        problems = []
        limits = {self.metric: self.limit_s} if (joint := joint_limits(self.metric)) is None else joint
        if unknown := [name for name in limits if name not in PROMISE_METRICS]:
            problems.append(f"promise metric {unknown[0]!r} is none of {', '.join(PROMISE_METRICS)}")
        if joint is not None and len(joint) < 2:
            problems.append("a goodput limits two or three of ttft_s, tpot_s and e2e_s")
        for name, limit in limits.items():
            if not (math.isfinite(limit) and limit > 0.0):
                problems.append(f"{name} limit must be a positive time, got {limit!r}")
        if self.quantile == MEAN and (joint is not None or self.scope == "fleet"):
            problems.append(
                f"{self.kind}: a mean is promised of one latency of every pool, not of several or of the fleet"
            )
        if not (0.0 < self.quantile < 1.0 or self.quantile == MEAN):
            problems.append(f"{self.kind} quantile must lie in (0, 1), got {self.quantile!r}")
        if self.scope not in ("pool", "fleet"):
            problems.append(f"promise scope {self.scope!r} is neither pool nor fleet")
        refuse(problems)

    @classmethod
    def joint(cls, limits: Mapping[str, float], share: float, scope: str = "pool") -> Promise:
        """That `share` of the requests keep all of several limits [s].

        >>> both = Promise.joint({"tpot_s": 0.05, "ttft_s": 0.5}, 0.99)
        >>> both.metric, both.limit_s, both.label, both.told
        ('goodput:ttft_s=0.5,tpot_s=0.05', 0.5, 'goodput 99%', '99% within TTFT 500 ms and TPOT 50 ms')

        Raises
        ------
        InputError
            Fewer than two limits, or one that cannot be.
        """
        ordered = {name: limits[name] for name in (*PROMISE_METRICS, *limits) if name in limits}
        spelled = ",".join(f"{name}={limit!r}" for name, limit in ordered.items())
        return cls(f"{GOODPUT}:{spelled}", next(iter(ordered.values()), math.nan), share, scope)

    @property
    def kind(self) -> str:
        """The latency promised, ``"goodput"`` for several at once."""
        return self.metric.partition(":")[0]

    @property
    def limits(self) -> dict[str, float]:
        """Limits [s] by the latency they limit, all of a joint promise."""
        joint = joint_limits(self.metric)
        if joint is None:
            return {self.metric: self.limit_s}
        # the name has the limits as they were written, `limit_s` what they are tightened to
        scale = self.limit_s / next(iter(joint.values()))
        return {name: scale * limit for name, limit in joint.items()}

    @property
    def parts(self) -> tuple[Promise, ...]:
        """The promises about one latency each without which it cannot be kept; itself where it is one."""
        if self.kind != GOODPUT:
            return (self,)
        return tuple(Promise(name, limit, self.quantile, self.scope) for name, limit in self.limits.items())

    @property
    def label(self) -> str:
        """How people write it, e.g. ``"P99 TTFT"``.

        >>> Promise("ttft_s", 0.5).label, Promise("e2e_s", 20.0, 0.999).label, Promise("tpot_s", 0.01, MEAN).label
        ('P99 TTFT', 'P99.9 E2E', 'mean TPOT')
        """
        if self.kind == GOODPUT:
            return f"goodput {100.0 * self.quantile:.10g}%"
        level = "mean" if self.quantile == MEAN else f"P{100 * self.quantile:.10g}"
        return f"{level} {self.metric.removesuffix('_s').upper()}"

    @property
    def told(self) -> str:
        """The whole promise, e.g. ``"P99 TTFT <= 500 ms"``."""
        if self.kind != GOODPUT:
            return f"{self.label} <= {format_duration(self.limit_s)}"
        each = [f"{name.removesuffix('_s').upper()} {format_duration(limit)}" for name, limit in self.limits.items()]
        return f"{100.0 * self.quantile:.10g}% within {', '.join(each[:-1])} and {each[-1]}"

    def scaled(self, factor: float) -> Promise:
        """The same promise with every limit that many times as long."""
        if self.kind == GOODPUT:
            return Promise.joint({k: factor * v for k, v in self.limits.items()}, self.quantile, self.scope)
        return replace(self, limit_s=factor * self.limit_s)

    @property
    def spelled(self) -> str:
        """As its option takes it.

        >>> Promise("ttft_s", 0.5).spelled, Promise("ttft_s", 2.0, 0.95).spelled
        ('500ms', 'p95=2s')
        >>> Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.99).spelled
        '99%:ttft=500ms,tpot=50ms'
        """
        limits = {k: f"{v:.6g}s" if v >= 1.0 else f"{1e3 * v:.6g}ms" for k, v in self.limits.items()}
        if self.kind == GOODPUT:
            each = ",".join(f"{name.removesuffix('_s')}={limit}" for name, limit in limits.items())
            return f"{100.0 * self.quantile:.10g}%:{each}"
        limit = limits[self.metric]
        if self.quantile == MEAN:
            return f"mean={limit}"
        return limit if self.quantile == 0.99 else f"p{100.0 * self.quantile:.10g}={limit}"

    @property
    def column(self) -> str:
        """Its value's name in a table, e.g. ``"ttft_p99_s"``; of a joint promise that of its share.

        >>> Promise("ttft_s", 0.5).column, Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.99).column
        ('ttft_p99_s', 'goodput_ttft_0.5s_tpot_0.05s')
        """
        if self.kind == GOODPUT:
            return "_".join((GOODPUT, *(f"{k.removesuffix('_s')}_{v:.6g}s" for k, v in self.limits.items())))
        level = "mean" if self.quantile == MEAN else f"p{100 * self.quantile:.10g}"
        return f"{self.metric.removesuffix('_s')}_{level}_s"

    def tell(self, value_s: float) -> str:
        """A value of it, e.g. ``"480 ms"``; of a joint one how many times its limits that is.

        >>> Promise("ttft_s", 0.5).tell(0.48), Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.99).tell(0.48)
        ('480 ms', '0.96 times its limits')
        """
        if self.kind == GOODPUT and math.isfinite(value_s):
            return f"{value_s / self.limit_s:.3g} times its limits"
        return format_duration(value_s)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        metric, limit = (
            (GOODPUT, {"limits_s": self.limits}) if self.kind == GOODPUT else (self.metric, {"limit_s": self.limit_s})
        )
        return {"metric": metric, **limit, "quantile": self.quantile, "scope": self.scope}


@dataclass(frozen=True, slots=True, init=False)
class Slo:
    """The promises a fleet keeps. ``Slo(ttft_s=0.5)`` is sugar for one P99 promise.

    Parameters
    ----------
    ttft_s, tpot_s, e2e_s
        Limits [s] at `quantile`; ``None`` = not promised.
    quantile
        Share of requests within each of these limits.
    promises
        Further promises, with their own quantiles and scopes.
    """

    promises: tuple[Promise, ...]

    def __init__(
        self,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        e2e_s: float | None = None,
        quantile: float = 0.99,
        promises: tuple[Promise, ...] = (),
    ) -> None:
        limits = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s}
        sugar = tuple(Promise(metric, limit, quantile) for metric, limit in limits.items() if limit is not None)
        object.__setattr__(self, "promises", (*sugar, *promises))
        if not self.promises:
            raise InputError(
                "no latency promise given",
                "Give at least one: --slo 0.5 (P99 TTFT), --tpot 50ms, --e2e 20s or --goodput 99%:ttft=500ms,tpot=50ms.",
            )

    def to_dict(self) -> list[dict[str, object]]:
        """JSON-ready."""
        return [p.to_dict() for p in self.promises]
