"""A standing fleet of a prefill and a decode pool under other loads, and the choice between the two kinds of standing fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import InputError
from planner.fleet.disaggregated import DECODE, PREFILL, Disaggregated, is_disaggregated, pool_options
from planner.methods.base import Prediction
from planner.question.files import SavedPool
from planner.question.inputs import PlanInputs
from planner.studies.standing import FixedFleet, Verdict
from planner.workload.workload import Workload

__all__ = ["StandingDisaggregated", "standing_disaggregated", "standing_fleet"]


def standing_disaggregated(inputs: PlanInputs, workload: Workload, pools: Sequence[SavedPool]) -> Disaggregated:
    """The pools of a plan file, ready to be asked about any numbers of replicas.

    Raises
    ------
    InputError
        An engine that cannot be rebuilt.
    """
    by_name = {p.name: p for p in pools}
    first, second = (
        pool_options(replace(inputs, gpu=(p.gpu,), tp=p.tp, tp_options=()), workload.max_total)[0]
        for p in (by_name[PREFILL], by_name[DECODE])
    )
    slots = by_name[DECODE].slots if inputs.kv != "reserved" else inputs.max_num_seqs
    return Disaggregated(replace(inputs, max_num_seqs=slots), workload, first, second)


class StandingDisaggregated:
    """As :class:`planner.studies.standing.FixedFleet`, for a prefill and a decode pool.

    Parameters
    ----------
    inputs
        The question the plan answered, with any change that is to be tried (rate aside).
    workload
        The traffic.
    pools
        Named ``prefill`` and ``decode``.
    """

    def __init__(self, inputs: PlanInputs, workload: Workload, pools: Sequence[SavedPool]) -> None:
        self.inputs = inputs
        self.pools = list(pools)
        self.fleet = standing_disaggregated(inputs, workload, pools)
        serving = {p.name: p.replicas - p.spares for p in pools}
        self._prefills, self._decodes = serving[PREFILL], serving[DECODE]
        if min(self._prefills, self._decodes) < 1:
            raise InputError("a prefill or decode pool without replicas that serve")

    def at(self, arrival_rate_per_s: float) -> list[Verdict]:
        """Both pools at a rate of the fleet [1/s]; E2E of whole requests is judged with the decode pool."""
        first, second = self.fleet.predict(arrival_rate_per_s, self._prefills, self._decodes)
        verdicts = [self._verdict(PREFILL, arrival_rate_per_s, first)]
        if second is not None:
            verdicts.append(self._verdict(DECODE, arrival_rate_per_s * self.fleet.decode_share, second))
        return verdicts

    def sweep(self, arrival_rates_per_s: Sequence[float]) -> list[list[Verdict]]:
        """Both pools at many rates."""
        return [self.at(rate) for rate in arrival_rates_per_s]

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of the fleet [1/s]."""
        rates = [self._prefills * self.fleet.prefill.capacity_per_s]
        if self.fleet.decode is not None:
            rates.append(self._decodes * self.fleet.decode.capacity_per_s / self.fleet.decode_share)
        return min(rates)

    def _verdict(self, name: str, rate: float, prediction: Prediction) -> Verdict:
        missed = tuple(
            p
            for p in self.inputs.promises
            if prediction.load >= 1.0 or prediction.held(p.metric, p.quantile) > p.limit_s
        )
        return Verdict(name, rate, prediction, missed)


def standing_fleet(
    inputs: PlanInputs, workload: Workload, pools: Sequence[SavedPool]
) -> FixedFleet | StandingDisaggregated:
    """The fleet of a plan file, whatever its shape."""
    if is_disaggregated(pools):
        return StandingDisaggregated(inputs, workload, pools)
    return FixedFleet(inputs, workload, pools)
