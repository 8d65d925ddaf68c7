"""What arrives: joint distributions of input and output lengths, categories and arrival processes, and where they came from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.workload.arrivals import Arrivals, arrivals_from_times
    from planner.workload.combine import Drift, drift, mix, scaled
    from planner.workload.compact import CompactionError, compact_within, compaction_error
    from planner.workload.flows import PoolLaw, pool_flows
    from planner.workload.importing import import_files, read_workload
    from planner.workload.profiles import load_profile, profile_names
    from planner.workload.report import ImportReport
    from planner.workload.resolve import resolve_workload, shipped_names
    from planner.workload.summary import archetype
    from planner.workload.workload import Provenance, Workload

_HOMES = {
    "arrivals": ("Arrivals", "arrivals_from_times"),
    "combine": ("Drift", "drift", "mix", "scaled"),
    "compact": ("CompactionError", "compact_within", "compaction_error"),
    "flows": ("PoolLaw", "pool_flows"),
    "importing": ("import_files", "read_workload"),
    "profiles": ("load_profile", "profile_names"),
    "report": ("ImportReport",),
    "resolve": ("resolve_workload", "shipped_names"),
    "summary": ("archetype",),
    "workload": ("Provenance", "Workload"),
}
_PLACE = {name: home for home, names in _HOMES.items() for name in names}

# `compact` and `summary` are also modules of this package, so the functions are reached through them
__all__ = [
    "Arrivals",
    "CompactionError",
    "Drift",
    "ImportReport",
    "PoolLaw",
    "Provenance",
    "Workload",
    "archetype",
    "arrivals_from_times",
    "compact_within",
    "compaction_error",
    "drift",
    "import_files",
    "load_profile",
    "mix",
    "pool_flows",
    "profile_names",
    "read_workload",
    "resolve_workload",
    "scaled",
    "shipped_names",
]


def __getattr__(name: str) -> Any:
    if name in _PLACE:
        return getattr(import_module(f"planner.workload.{_PLACE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
