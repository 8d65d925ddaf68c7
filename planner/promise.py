"""Latency promises: what is promised, at which quantile, to whom."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.errors import InputError

__all__ = ["PROMISE_METRICS", "Promise", "Slo"]

PROMISE_METRICS = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Promise:
    """One latency promise: the `quantile` of `metric` is at most `limit_s`.

    Parameters
    ----------
    metric
        ``"ttft_s"``, ``"tpot_s"`` or ``"e2e_s"``.
    limit_s
        Limit [s], > 0.
    quantile
        Share of requests within the limit, in (0, 1).
    scope
        ``"pool"`` (each pool keeps it) or ``"fleet"`` (all requests together do).
    """

    metric: str
    limit_s: float
    quantile: float = 0.99
    scope: str = "pool"

    def __post_init__(self) -> None:
        problems = []
        if self.metric not in PROMISE_METRICS:
            problems.append(f"promise metric {self.metric!r} is none of {', '.join(PROMISE_METRICS)}")
        if not (math.isfinite(self.limit_s) and self.limit_s > 0.0):
            problems.append(f"{self.metric} limit must be a positive time, got {self.limit_s!r}")
        if not 0.0 < self.quantile < 1.0:
            problems.append(f"{self.metric} quantile must lie in (0, 1), got {self.quantile!r}")
        if self.scope not in ("pool", "fleet"):
            problems.append(f"promise scope {self.scope!r} is neither pool nor fleet")
        if problems:
            raise InputError.from_problems(problems)

    @property
    def label(self) -> str:
        """How people write it, e.g. ``"P99 TTFT"``.

        >>> Promise("ttft_s", 0.5).label, Promise("e2e_s", 20.0, 0.999).label
        ('P99 TTFT', 'P99.9 E2E')
        """
        return f"P{100 * self.quantile:.10g} {self.metric.removesuffix('_s').upper()}"

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"metric": self.metric, "limit_s": self.limit_s, "quantile": self.quantile, "scope": self.scope}


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
                "no latency promise given", "Give at least one: --slo 0.5 (P99 TTFT), --tpot 50ms or --e2e 20s."
            )

    def of(self, metric: str) -> tuple[Promise, ...]:
        """The promises about one metric."""
        return tuple(p for p in self.promises if p.metric == metric)

    def to_dict(self) -> list[dict[str, object]]:
        """JSON-ready."""
        return [p.to_dict() for p in self.promises]
