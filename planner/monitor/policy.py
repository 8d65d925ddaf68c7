"""The rule of a Kubernetes autoscaler as the API server documents it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from planner.errors import InputError
from planner.shared.record import Record

TOLERANCE = 0.1
"""Change of the ratio it ignores unless told otherwise [1]."""

METRICS = ("requests", "tokens", "running", "in_flight", "waiting", "queued", "kv_usage", "saturation", "backlog_s")
"""What a policy may watch; see :class:`planner.autoscale.signals.Signals`."""

DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
"""A day and a week [s]."""

MILLI = 1000.0
"""Targets are kept in thousandths, which is what the API server keeps of a number."""


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
    tolerance: float = TOLERANCE
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
        if problems:
            raise InputError.from_problems(problems)

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


def written(target: float) -> float:
    """A target as an object keeps it, rounded down to thousandths: a little more than asked, never less."""
    return max(1, math.floor(MILLI * target + 1e-9)) / MILLI


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
