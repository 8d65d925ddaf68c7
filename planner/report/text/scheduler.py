"""What the scheduler commands say: a verdict with its certificate, settings, limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from planner.report.blocks import Block
from planner.report.pages import pages
from planner.units import format_duration, format_percent

if TYPE_CHECKING:
    from planner.ask.batching import Batching
    from planner.ask.stability import Stability
    from planner.ask.wait import WaitSettings

_page = pages(__file__)

_KINDS = {"engine": "engine", "achieved": "reached by", "limit": "no scheduler"}


def of_stability(result: Stability) -> list[Block]:
    """Verdict, certificate, bounds, burst."""
    then = "sustained"
    if result.time_to_overload_s <= 0.0:
        then = f"overloaded already; +{result.growth_per_s:.3g} requests/s"
    elif math.isfinite(result.time_to_overload_s):
        then = (
            f"all sequences taken after {format_duration(result.time_to_overload_s)}, then the queue grows by "
            f"{result.growth_per_s:.3g} requests/s and takes {result.recovery_s_per_s:.3g} s per second to clear"
        )
    return _page(
        "stability",
        result,
        full=lambda bound: format_percent(bound.load) if math.isfinite(bound.load) else "overload",
        basis=lambda bound: _KINDS[bound.kind],
        then=then,
    )


def of_batching(result: Batching) -> list[Block]:
    """Verdict, settings of both, crossover."""
    both = [{"batching": name, **getattr(result, name)} for name in ("exclusive", "mixed")]
    return _page("batching", result, replicas=0, both=both)


def of_wait_settings(result: WaitSettings) -> list[Block]:
    """Verdict, thresholds by class, nested segments."""
    sure = None if result.nested is None else 1 - result.nested["delta"]
    over = "" if result.nested is None and result.verdict != "overload" else None
    return _page("wait_settings", result, d1_ns=1e9 * result.d1_s_per_token, sure=sure, over=over)
