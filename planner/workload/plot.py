"""Pictures of a workload (extra ``plot``): distribution functions, joint density, hourly profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.workload.workload import Workload

__all__ = ["plot_workload"]


def plot_workload(workload: Workload, path: Path) -> None:
    """Write a picture of a workload: F of input, output and total; the joint density; the hourly profile if known.

    Parameters
    ----------
    workload
        What to show.
    path
        Image file; its suffix says the format.

    Raises
    ------
    InputError
        Matplotlib is not installed, or the format is unknown to it.
    """
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need matplotlib", "pip install 'fleetopt[plot]'") from error

    profile = workload.arrivals.hourly_profile
    figure: Any = Figure(figsize=(5.0 * (3 if profile else 2), 4.2), layout="constrained")
    panels = figure.subplots(1, 3 if profile else 2)
    left, middle = panels[0], panels[1]
    for of in ("input", "output", "total"):
        values, cumulative = workload.sorted_column(of)
        left.step(np.maximum(values, 1.0), cumulative, where="post", label=of)
    left.set(xscale="log", xlabel="tokens", ylabel="share of requests", title=workload.name, ylim=(0.0, 1.0))
    left.legend()
    left.grid(True, alpha=0.3)
    columns = [np.maximum(c, 1.0) for c in (workload.input_tokens, workload.output_tokens)]
    density, x, y = np.histogram2d(
        columns[0],
        columns[1],
        bins=[np.geomspace(float(c.min()), max(float(c.max()), 2.0 * float(c.min())), 41) for c in columns],
        weights=workload.weight,
    )
    mesh = middle.pcolormesh(x, y, np.ma.masked_equal(density.T, 0.0), cmap="viridis", norm=LogNorm())
    middle.set(xscale="log", yscale="log", xlabel="input tokens", ylabel="output tokens", title="share of requests")
    figure.colorbar(mesh, ax=middle)
    if profile:
        right = panels[2]
        right.bar(np.arange(len(profile)), profile, width=1.0)
        right.axhline(1.0, color="black", linewidth=0.8)
        right.set(
            xlabel="hour of day" if len(profile) == 24 else "hour of week",
            ylabel="rate over its mean",
            title="arrivals",
        )
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the plot cannot be written: {error}") from error
