"""Iteration times: the estimate and fits against measured kernels, mixed batches and servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy.cases import NO_ALLREDUCE, possible, server_system
from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.serving import FloatArray, skipping
from planner.calibrate.closed_loop import Loads, ServerPoint, loop_times
from planner.calibrate.files import read_measurements
from planner.calibrate.fit import fit_points
from planner.calibrate.points import Points
from planner.calibrate.servers import ENOUGH_SHAPES, fit_server
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.machine.iteration import IterationModel
from planner.machine.roofline import CONSTANTS, prior_band, roofline

FIT_POINTS, MIXED_POINTS = 24, 36
"""Points a microbenchmark measures, of kernels and of batches that one attention kernel takes together."""


def _ratios(model: IterationModel, points: Points) -> FloatArray:
    """predicted/measured of all batches but chunks, whose times there are differences of other measurements."""
    kept = points.select(i for i, kind in enumerate(points.kinds) if kind != "chunk")
    return np.asarray((model.additive if points.composed else model).time(*kept.columns) / kept.time_s)


def kernels(data: Path) -> Iterator[Pair]:
    """Iterations composed from measured kernels: from the data sheet, and from the designed points of each configuration."""
    path = data / "calibration" / "kernels.csv"
    if not path.is_file():
        return
    designed, others = (read_measurements([path], where={"role": role}).iterations for role in ("fit", "test"))
    for key, points in others.items():
        with skipping(" ".join(map(str, key))):
            device, spec = find_gpu(key[0]), find_model(key[1])
            prior, name = roofline(device, spec, key[2]), f"{key[0]} {key[1]} TP{key[2]}"
            for ratio in _ratios(prior, points):
                yield Pair("kernels_none", "time", name, float(ratio), 1.0, prior_band(device, spec, None))
            if key in designed:
                fit = fit_points(designed[key].select(range(min(FIT_POINTS, len(designed[key])))), prior)
                for ratio in _ratios(fit.iteration, points):
                    yield Pair("kernels_fit", "time", name, float(ratio), 1.0, fit.error_band)


def mixed_batches(data: Path) -> Iterator[Pair]:
    """Decodes and a prompt in one attention kernel, from 36 points of each configuration: mean error of one each."""
    path = data / "real" / "interference" / "iterations.csv"
    for (device, network, tp), points in (read_measurements([path]).iterations if path.is_file() else {}).items():
        with skipping(f"{device} {network} TP{tp}"):
            prior = roofline(find_gpu(device), find_model(network), tp, constants=dict(CONSTANTS) | NO_ALLREDUCE)
            fit = fit_points(points.select(range(MIXED_POINTS)), prior, resamples=5)
            mixed = np.array(points.kinds) == "mixed"
            columns = tuple(column[mixed] for column in points.columns)
            errors = np.abs(fit.iteration.time(*columns) / points.time_s[mixed] - 1.0)
            name = f"{device} {network} TP{tp}"
            yield Pair("mixed_batches", "mean_error", name, 1.0 + float(errors.mean()), 1.0)


def left_out(points: Sequence[ServerPoint], prior: IterationModel) -> list[FloatArray]:
    """predicted/measured TPOT of every shape from the others, which also choose how prompts are run."""
    found = []
    for shape in sorted({p.shape for p in points}):
        fit = fit_server([p for p in points if p.shape != shape], prior, resamples=2)
        loads = Loads([p for p in points if p.shape == shape], prior)
        found.append(np.asarray(loop_times(fit.theta[None], loads, fit.rules)[0][0] / loads.tpot))
    return found


def servers(data: Path) -> Iterator[Pair]:
    """Servers fitted to their own loads, one shape left out: mean error of a server, and of each shape."""
    path = data / "calibration" / "servers.csv"
    for key, points in (read_measurements([path]).servers if path.is_file() else {}).items():
        with skipping(" ".join(map(str, key))):
            device, spec, parallel, engine = server_system(key)
            points = possible(points, device, spec, parallel.tp)
            if len({p.shape for p in points}) < ENOUGH_SHAPES:
                continue
            shapes = left_out(points, roofline(device, spec, parallel, engine=engine))
            name = " ".join(key)
            every = float(np.abs(np.concatenate(shapes) - 1.0).mean())
            yield Pair("servers_loso", "server_mean", name, 1.0 + every, 1.0)
            for ratios in shapes:
                yield Pair("servers_loso", "shape_mean", name, 1.0 + float(np.abs(ratios - 1.0).mean()), 1.0)
