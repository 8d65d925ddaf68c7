"""A fleet that stands: what it does under another load, and whether its promises hold there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.fleet.disaggregated import is_disaggregated
from planner.fleet.pool import evaluate_pool, prediction_levels
from planner.fleet.problem import pool_model
from planner.methods.base import PoolModel, Prediction
from planner.promise import Promise
from planner.question.files import SavedPool
from planner.question.inputs import PlanInputs
from planner.replica.engine import EngineOption, engine_options, set_up
from planner.workload.pools import FleetMoments, PoolLaw, State
from planner.workload.workload import Workload

__all__ = ["FixedFleet", "FixedPool", "Verdict"]


@dataclass(frozen=True, slots=True)
class FixedPool:
    """A pool that stands: its requests, engine and number of replicas.

    Parameters
    ----------
    saved
        As the plan states it.
    law, option, model
        Requests, engine, latency method.
    serving
        Replicas that serve, spares left out.
    """

    saved: SavedPool
    law: PoolLaw
    option: EngineOption
    model: PoolModel
    serving: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pool under one load.

    Parameters
    ----------
    pool
        Name.
    arrival_rate_per_s
        Rate of the pool [1/s].
    prediction
        Latency and occupancy.
    broken
        Promises that do not hold.
    """

    pool: str
    arrival_rate_per_s: float
    prediction: Prediction
    broken: tuple[Promise, ...]


class FixedFleet:
    """The pools of a plan file, ready to be asked about any rate.

    Parameters
    ----------
    inputs
        The question the plan answered, with any change that is to be tried (rate aside).
    workload
        The traffic; may differ from the one planned for.
    pools
        The fleet.

    Raises
    ------
    InputError
        A pool whose engine cannot be rebuilt: unknown GPU or profile, a request longer than the top pool admits.
    """

    def __init__(self, inputs: PlanInputs, workload: Workload, pools: Sequence[SavedPool]) -> None:
        if is_disaggregated(pools):
            raise InputError(
                "the plan has a prefill and a decode pool, which only evaluate and schedule take so far",
                "Plan with --shape colocated for the others.",
            )
        self.inputs = inputs
        self.levels = prediction_levels(inputs.promises)
        moments = FleetMoments(workload, inputs.p_c, inputs.chunk, inputs.cached_share, inputs.route_on)
        ordered = sorted(pools, key=lambda p: p.low_tokens)
        top = max(moments.top, ordered[-1].high_tokens)
        self.pools: list[FixedPool] = []
        for k, saved in enumerate(ordered):
            below = ordered[k - 1] if k else None
            is_top = k == len(ordered) - 1
            upper = State(top if is_top else saved.high_tokens, 1.0 if is_top else saved.gamma)
            law = moments.law(State(saved.low_tokens, below.gamma if below else 1.0), upper)
            if law is None:
                continue
            option = _option(inputs, saved, workload.max_total)
            high = option.max_model_len if is_top else saved.high_tokens
            if inputs.route_on == "input":
                high = max(high, law.longest_tokens)
            setup = set_up(option, law, high, inputs)
            if setup is None:
                raise InputError(
                    f"pool {saved.name}: one request of {upper.boundary:,.0f} tokens does not fit in memory"
                )
            model = pool_model(inputs, option, setup, law, workload)
            self.pools.append(FixedPool(saved, law, option, model, saved.replicas - saved.spares))

    def at(self, arrival_rate_per_s: float) -> list[Verdict]:
        """Every pool at a rate of the fleet [1/s]."""
        verdicts = []
        for pool in self.pools:
            rate = arrival_rate_per_s * pool.law.share
            prediction = evaluate_pool(pool.model, rate, pool.serving, self.levels)
            verdicts.append(self._verdict(pool, rate, prediction))
        return verdicts

    def sweep(self, arrival_rates_per_s: Sequence[float]) -> list[list[Verdict]]:
        """Every pool at many rates."""
        return [self.at(rate) for rate in arrival_rates_per_s]

    def _verdict(self, pool: FixedPool, rate: float, prediction: Prediction) -> Verdict:
        missed = tuple(
            p
            for p in self.inputs.promises
            if prediction.held(p.metric, p.quantile) > p.limit_s or prediction.load >= 1.0
        )
        return Verdict(pool.saved.name, rate, prediction, missed)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of the fleet at this mix of requests [1/s]."""
        return min(p.serving * p.model.capacity_per_s / p.law.share for p in self.pools)


def _option(inputs: PlanInputs, saved: SavedPool, longest: float) -> EngineOption:
    wanted = replace(
        inputs,
        gpu=(saved.gpu,),
        tp=saved.tp,
        tp_options=(),
        token_budget=saved.token_budget,
        max_num_seqs=saved.slots if inputs.kv != "reserved" else inputs.max_num_seqs,
        profile=inputs.profile,
    )
    return engine_options(wanted, longest)[0]
