"""What a check found: what moved, how the promises stand, what the plan would be now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.methods.base import Prediction
from planner.monitor.measured import Measured, Promised
from planner.promise import Promise
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.simulate.statistics import Estimate
from planner.units import format_percent


@dataclass(frozen=True, slots=True)
class Moved(Record):
    """One component of a pool that is not what was planned.

    Parameters
    ----------
    component
        ``traffic``, ``input lengths``, ``output lengths``, ``cache``, ``iteration time``, ``replicas`` or ``routing``.
    planned, measured
        What it was to be, what it is with its interval; a factor on the planned times for the iteration time.
    told
        In words.
    """

    component: str
    planned: float
    measured: Estimate
    told: str

    written: ClassVar[tuple[str, ...]] = (
        *("component", "planned", "measured=measured.value", "low=measured.low", "high=measured.high", "told"),
    )


@dataclass(frozen=True, slots=True)
class Kept(Record):
    """One promise in one pool.

    Parameters
    ----------
    promise
        The promise.
    measured
        How it was kept; ``None`` where no histogram says.
    predicted_s
        What is predicted at the traffic and the times measured [s].
    state
        ``kept``, ``at risk`` (predicted to break, and not clearly kept) or ``broken`` (measured).
    """

    promise: Promise
    measured: Promised | None
    predicted_s: float
    state: str

    written: ClassVar[tuple[str, ...]] = (
        *("state", "within=measured.within.value", "measured_s=measured.value_s", "measured_ends_s=measured.ends_s"),
        "predicted_s",
    )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, after what its promise writes."""
        return self.promise.to_dict() | Record.to_dict(self)


@dataclass(frozen=True, slots=True)
class PoolCheck(Record):
    """One pool.

    Parameters
    ----------
    name
        As in the plan.
    measured
        What its metrics say.
    predicted
        What the plan predicts at the traffic measured.
    planned_rate_per_s, planned_replicas
        As planned, replicas with spares; of a scaled fleet those that its scaler wants for the traffic measured.
    scaled
        Whether a scaler sets its replicas.
    moved
        What moved.
    kept
        Its promises.
    replicas_now
        Replicas, spares included, that the traffic measured needs at the times measured; ``None`` = no number would do.
    rows
        Measured beside predicted, one row per quantity.
    """

    name: str
    measured: Measured
    predicted: Prediction
    planned_rate_per_s: float
    planned_replicas: int
    moved: tuple[Moved, ...]
    kept: tuple[Kept, ...]
    replicas_now: int | None
    rows: tuple[Mapping[str, object], ...]
    scaled: bool = False

    written: ClassVar[tuple[str, ...]] = (
        *("name", "moved", "promises=kept", "planned_replicas", "scaled", "replicas_now"),
    )


@dataclass(frozen=True, slots=True)
class FleetCheck(InNotebooks):
    """A plan against what its fleet does.

    Parameters
    ----------
    server
        Whose metrics they are.
    pools
        The pools.
    """

    server: str
    pools: tuple[PoolCheck, ...]

    document: ClassVar[str] = "fleetopt-check"
    written: ClassVar[tuple[str, ...]] = ("server", "state", "pools", "rows=to_rows", "findings=lines")

    def __repr__(self) -> str:
        moved = ", ".join(dict.fromkeys(x.component for p in self.pools for x in p.moved)) or "nothing moved"
        return f"<FleetCheck: {self.state}, {moved}>"

    @property
    def state(self) -> str:
        """``broken`` if any promise is, else ``at risk`` if any is, else ``kept``."""
        states = {k.state for p in self.pools for k in p.kept}
        return next((s for s in ("broken", "at risk") if s in states), "kept")

    @property
    def moved(self) -> tuple[tuple[str, Moved], ...]:
        """Pool and component of everything that moved."""
        return tuple((p.name, x) for p in self.pools for x in p.moved)

    def lines(self) -> Iterator[str]:
        """The findings in words."""
        for pool in self.pools:
            where = f"{pool.name}: " if len(self.pools) > 1 else ""
            for x in pool.moved:
                yield f"{where}{x.told}"
            for k in pool.kept:
                if k.state != "kept":
                    yield f"{where}{k.promise.told} is {k.state}: {_how(k)}"
            now = (
                "no number of replicas keeps the promises"
                if pool.replicas_now is None
                else f"{pool.replicas_now} replicas"
            )
            if pool.scaled and pool.replicas_now != pool.measured.replicas:
                if any(k.state != "kept" for k in pool.kept):
                    yield f"{where}the plan would be {now} for this traffic, {pool.measured.replicas} serve"
            elif not pool.scaled and pool.replicas_now != pool.planned_replicas:
                yield f"{where}the plan would be {now} now, it was {pool.planned_replicas}"
        if not self.moved:
            yield "nothing has moved beyond its interval"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool and quantity."""
        return [dict(row) for p in self.pools for row in p.rows]


def _how(kept: Kept) -> str:
    predicted = f"{kept.promise.tell(kept.predicted_s)} predicted at this traffic"
    if kept.measured is None:
        return predicted
    low = kept.measured.within.value
    return f"{format_percent(low)} of requests were within it, {predicted}"
