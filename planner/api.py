"""The verbs: plan, evaluate, what_if, schedule, simulate, calibrate. What the command line calls, and what a script imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.sizing.build import make_plan
from planner.sizing.inputs import PlanInputs
from planner.types import Plan, Slo
from planner.workload.workload import Workload

__all__ = ["plan"]


def plan(
    workload: Workload | str | Path | None = None, *, slo: Slo | float | str | None = None, **options: Any
) -> Plan:
    """The cheapest fleet that keeps the promises.

    Parameters
    ----------
    workload
        A :class:`Workload`, a file, or a shipped name; default ``azure``.
    slo
        Promises; a bare number is a P99 TTFT [s].
    **options
        Any option of ``fleetopt plan`` under its own name (:class:`planner.sizing.inputs.PlanInputs`), e.g.
        ``gpu="h100"``, ``model="llama-3.1-8b"``, ``rate=1000``, ``method="mgc"``, ``tpot=0.05``.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        Something in the question cannot be; all problems at once.
    InfeasibleError
        No fleet keeps the promises: what binds, the best achievable, what would help.

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=fo.Slo(ttft_s=0.5), rate=1000, method="mgc", kv="reserved", profile="fleetopt-paper")
    ... # doctest: +SKIP
    """
    loaded = workload if isinstance(workload, Workload) else Workload.from_file(workload or options.pop("cdf", "azure"))
    options.pop("cdf", None)
    data: dict[str, Any] = {"cdf": str(workload) if isinstance(workload, (str, Path)) else loaded.name, **options}
    if isinstance(slo, Slo):
        data["promises"] = list(slo.promises)
    elif slo is not None:
        data["slo"] = slo
    return make_plan(PlanInputs.from_dict(data), loaded)
