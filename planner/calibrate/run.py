"""One calibration from start to finish: measurements in, fit, a profile that says where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.calibrate.files import Measurements, read_measurements
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.profiles import Profile
from planner.errors import CalibrationError, InputError
from planner.hardware import GpuSpec, ModelSpec
from planner.iteration.model import IterationModel
from planner.iteration.roofline import PRIOR_LOG_SD, roofline

if TYPE_CHECKING:
    from planner.calibrate.fit import Fit
    from planner.calibrate.live import Load, LoadResult, Progress, Server
    from planner.calibrate.servers import ServerFit

__all__ = [
    "Calibration",
    "CalibrationSet",
    "calibrate_device",
    "calibrate_files",
    "calibrate_server",
    "profile_name",
    "same_device",
]

CPU_PRIOR_WIDTH = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """One profile and the fit behind it.

    Parameters
    ----------
    profile
        What is written.
    fit
        Of iterations, or ``None``.
    server_fit
        Of server points, or ``None``.
    notes
        About the measuring.
    """

    profile: Profile
    fit: Fit | None = None
    server_fit: ServerFit | None = None
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the fit."""
        found = self.fit or self.server_fit
        return found.warnings if found is not None else ()

    def parameters(self) -> list[dict[str, Any]]:
        """One row per canonical parameter and per derived one people plan with, with interval and flag."""
        from planner.iteration.derived import exclusive_parameters, fleetopt_parameters
        from planner.iteration.model import PARAMETER_UNITS

        rows: list[dict[str, Any]] = []
        model = self.profile.iteration
        found = self.fit or self.server_fit
        intervals: Mapping[str, tuple[float, float]] = found.intervals if found is not None else {}
        identified: Mapping[str, bool] = self.fit.identified if self.fit is not None else {}
        for name, value in model.to_dict().items():
            low, high = intervals.get(name, (math.nan, math.nan))
            rows.append(
                {
                    "parameter": name,
                    "unit": PARAMETER_UNITS[name],
                    "value": value,
                    "low": None if math.isnan(low) else low,
                    "high": None if math.isnan(high) else high,
                    "identified": identified.get(name),
                }
            )
        if self.fit is not None:
            fit = self.fit
            derived: tuple[tuple[str, Callable[[IterationModel], float], str], ...] = (
                ("W", lambda m: fleetopt_parameters(m, 1024.0)["W"], "s"),
                ("H(1024)", lambda m: fleetopt_parameters(m, 1024.0)["H"], "s/sequence"),
                ("beta_p(256-4096)", lambda m: exclusive_parameters(m, 1024.0)["beta_p"], "s/token"),
            )
            for name, quantity, unit in derived:
                low, high = fit.interval(quantity)
                rows.append(
                    {
                        "parameter": name,
                        "unit": unit,
                        "value": quantity(model),
                        "low": low,
                        "high": high,
                        "identified": high - low <= 0.7 * abs(quantity(model)),
                    }
                )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found = self.fit or self.server_fit
        return {
            "schema_version": 1,
            "profile": self.profile.to_dict(),
            "parameters": self.parameters(),
            "fit": found.to_dict() if found is not None else None,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per parameter."""
        return [{"profile": self.profile.name, **row} for row in self.parameters()]


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSet:
    """Several calibrations, for one report."""

    calibrations: tuple[Calibration, ...]

    def __repr__(self) -> str:
        return f"<CalibrationSet: {', '.join(c.profile.name for c in self.calibrations)}>"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"schema_version": 1, "calibrations": [c.to_dict() for c in self.calibrations]}

    def to_rows(self) -> list[dict[str, Any]]:
        """Rows of all of them."""
        return [row for c in self.calibrations for row in c.to_rows()]


def profile_name(gpu: str, model: str, tp: int) -> str:
    """Name of a profile by its hardware.

    >>> profile_name("h100-80gb", "llama-3.1-8b", 2)
    'llama-3.1-8b-h100-80gb-tp2'
    """
    return f"{model}-{gpu}-tp{tp}".replace("/", "-").replace(" ", "-").lower()


def same_device(named: str, seen: str) -> bool:
    """Whether the device torch sees is the GPU that was named.

    >>> same_device("h100", "NVIDIA H100 80GB HBM3"), same_device("a100", "NVIDIA H100 80GB HBM3")
    (True, False)
    """
    wanted = find_gpu(named).name
    try:
        return find_gpu(seen).name == wanted
    except InputError:
        # a name the catalog does not list: the family must at least be in it
        family = wanted.split("-")[0] if not wanted.startswith("rtx") else wanted.rsplit("-", 1)[0]
        return family.replace("-", "") in seen.lower().replace(" ", "").replace("-", "")


def _rounded(model: IterationModel) -> IterationModel:
    """Six digits: more would only claim what was not measured."""
    return IterationModel.from_dict(
        {k: float(f"{v:.6g}") if k != "tau" else int(v) for k, v in model.to_dict().items()}
    )


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _from_fit(fit: Fit, gpu: str, model: ModelSpec, tp: int, **details: Any) -> Profile:
    covered = fit.covered
    ranges = {
        "decodes": covered.decodes,
        "context_tokens": covered.context,
        "prefill_tokens": covered.prefill_tokens,
        "batch_tokens": covered.tokens,
    }
    values: dict[str, Any] = {
        "name": profile_name(gpu, model.name, tp),
        "provenance": "measured",
        "date": _today(),
        **details,
    }
    return Profile(
        gpu=gpu,
        model=model.name,
        tp=tp,
        iteration=_rounded(fit.iteration),
        band=round(fit.error_band, 3),
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
        points=fit.points,
        error_mean=round(fit.leave_one_out_error, 4),
        error_p95=round(fit.leave_one_out_p95, 4),
        covered={k: v for k, v in ranges.items() if v[1] > 0.0},
        # x = 0 alone cannot tell "no interference seen" from "never looked"
        settings={"mixed_measured": True} if fit.identified["x"] else {},
        **values,
    )


def calibrate_files(
    paths: Sequence[str | Path],
    *,
    gpu: str | None = None,
    model: str | None = None,
    tp: int | None = None,
    where: Mapping[str, str] | None = None,
    points: int | None = None,
    scheduling: str = "mixed",
    token_budget: float | None = None,
    force: bool = False,
    command: str | None = None,
    source: str = "",
) -> CalibrationSet:
    """Fit every group of measurements in files.

    Parameters
    ----------
    paths
        CSVs of iterations or server points, results of load generators.
    gpu, model, tp
        What they were measured on; needed where the files do not say, otherwise they select.
    where
        Keep rows of iterations whose column equals the value.
    points
        Use only the first so many iterations of a group (in design order).
    scheduling, token_budget, force
        Of server points; see :func:`planner.calibrate.servers.fit_server`.
    command, source
        Written into the profiles.

    Returns
    -------
    CalibrationSet

    Raises
    ------
    InputError, CalibrationError
        For unreadable files or measurements that determine nothing.
    """
    found = read_measurements(paths, where=where)
    results = [*_iteration_groups(found, gpu, model, tp, points, command, source)]
    results += _server_groups(found, gpu, model, tp, scheduling, token_budget, force, command, source)
    if not results:
        asked = ", ".join(f"{k}={v}" for k, v in (("gpu", gpu), ("model", model), ("tp", tp)) if v is not None)
        groups = sorted({" ".join(str(k) for k in key if k) for key in (*found.iterations, *found.servers)})
        raise InputError(f"no measurements with {asked} in the files", f"They hold: {'; '.join(groups)}.")
    return CalibrationSet(tuple(results))


def _iteration_groups(
    found: Measurements,
    gpu: str | None,
    model: str | None,
    tp: int | None,
    points: int | None,
    command: str | None,
    source: str,
) -> list[Calibration]:
    from planner.calibrate.fit import SCALED_PRIOR_WIDTH, fit_points, scaled_prior

    results = []
    for (gpu_here, model_here, tp_here), measured in found.iterations.items():
        size = tp_here if (gpu_here or tp is None) else tp
        used = measured if points is None else measured.select(range(min(points, len(measured))))
        width = 1.0
        notes: tuple[str, ...] = ()
        try:
            device, network = _known_gpu(gpu_here or gpu), _known_model(model_here or model)
            prior = roofline(device, network, size)
        except InputError as error:
            if not (gpu_here and model_here) or gpu is not None or model is not None:
                raise
            # the file names something the catalog does not know: any shape will do, scaled to what was measured
            device, network = (
                replace(find_gpu("h100"), name=gpu_here),
                replace(find_model("llama-3.1-8b"), name=model_here),
            )
            prior = scaled_prior(used, roofline(find_gpu("h100"), find_model("llama-3.1-8b")))
            width = SCALED_PRIOR_WIDTH
            notes = (f"{error.message}: the prior is another model's, scaled; give --gpu and --model to name it",)
        if gpu is not None and find_gpu(gpu).name != device.name:
            continue
        if model is not None and find_model(model).name != network.name:
            continue
        if tp is not None and tp != size:
            continue
        fit = fit_points(used, prior, prior_log_sd={k: v * width for k, v in PRIOR_LOG_SD.items()})
        profile = _from_fit(
            fit, device.name, network, size,
            engine="iterations from a file", command=command, source=source or f"file {measured.source}",
            notes=(*notes, *fit.warnings),
        )  # fmt: skip
        results.append(Calibration(profile, fit=fit, notes=notes))
    return results


def _server_groups(
    found: Measurements,
    gpu: str | None,
    model: str | None,
    tp: int | None,
    scheduling: str,
    token_budget: float | None,
    force: bool,
    command: str | None,
    source: str,
) -> list[Calibration]:
    from planner.calibrate.servers import DEFAULT_BUDGET, MIN_SHAPES, fit_server

    results = []
    short = []
    for key, measured in found.servers.items():
        model_here, gpu_here, engine, version, precision, tp_text = (*key, *[""] * 6)[:6]
        if not (gpu_here or gpu) or not (model_here or model):
            raise InputError(
                "the files do not say what the server ran", "Give --gpu and --model (and --tp) of the measured server."
            )
        device = _known_gpu(gpu_here or gpu)
        network = _known_model(model_here or model, precision)
        size = int(float(tp_text)) if tp_text else (tp or 1)
        if gpu is not None and find_gpu(gpu).name != device.name:
            continue
        if model is not None and find_model(model).name != network.name:
            continue
        if tp is not None and tp != size:
            continue
        shapes = len({p.shape for p in measured})
        if shapes < MIN_SHAPES and not force and len(found.servers) > 1:
            short.append(f"{' '.join(k for k in key if k)}: {shapes} shapes")
            continue
        fit = fit_server(
            measured,
            roofline(device, network, size),
            scheduling=scheduling,
            token_budget=token_budget or DEFAULT_BUDGET,
            force=force,
        )
        profile = _from_server(
            fit, device.name, network, size,
            engine=engine or "server", engine_version=version or None, command=command,
            source=source or "server measurements from a file",
        )  # fmt: skip
        results.append(
            Calibration(profile, server_fit=fit, notes=tuple(f"left out, too few shapes: {s}" for s in short))
        )
    if not results and short:
        raise CalibrationError(
            f"no group has {MIN_SHAPES} shapes: {'; '.join(short)}",
            "Measure more lengths, or force a fit with --force.",
        )
    return results


def _from_server(fit: ServerFit, gpu: str, model: ModelSpec, tp: int, **details: Any) -> Profile:
    covered = {k: v for k, v in fit.covered.items() if k == "decodes"}
    low_in, high_in = fit.covered["input_tokens"]
    high_out = fit.covered["output_tokens"][1]
    covered["context_tokens"] = (low_in, high_in + high_out)
    values: dict[str, Any] = {"name": profile_name(gpu, model.name, tp) + "-server", "date": _today(), **details}
    notes = [
        f"scheduling assumed: {fit.scheduling}",
        f"{fit.request_s * 1e3:.2g} ms lost per request (not in iteration)",
    ]
    return Profile(
        gpu=gpu,
        model=model.name,
        tp=tp,
        iteration=_rounded(fit.iteration),
        provenance="fitted",
        band=round(fit.error_band, 3),
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
        points=fit.points,
        error_mean=round(fit.tpot_error, 4),
        error_p95=round(fit.tpot_error_p95, 4),
        covered=covered,
        api_overhead_s=round((fit.api_overhead_s or 0.0) + fit.request_s * (fit.api_overhead_s is not None), 6),
        notes=(*notes, *fit.warnings),
        **values,
    )


def _known_gpu(name: str | None) -> GpuSpec:
    if not name:
        raise InputError("the files do not say which GPU was measured", "Give --gpu.")
    return find_gpu(name)


def _known_model(name: str | None, precision: str = "") -> ModelSpec:
    if not name:
        raise InputError("the files do not say which model was measured", "Give --model.")
    dtype = {"fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4"}.get(precision.lower())
    text = name.removesuffix("-NVFP4").removesuffix("-FP8")
    try:
        return find_model(text, weight_dtype=dtype) if dtype else find_model(text)
    except InputError:
        if "/" not in text or Path(text).exists():
            raise
        short = text.rsplit("/", 1)[1]
        return find_model(short, weight_dtype=dtype) if dtype else find_model(short)


def calibrate_device(
    gpu: str | None,
    model: str,
    *,
    tp: int = 1,
    device: str = "cuda",
    points: int = 24,
    max_seconds: float = 60.0,
    check_device: bool = True,
    command: str | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Measure this machine and fit.

    Parameters
    ----------
    gpu
        Which GPU it is; checked against what torch sees. Not needed with ``device="cpu"``.
    model
        Catalog name or config.json; ``tiny`` for a trial run.
    tp
        GPUs of the group [GPUs].
    device
        ``cuda`` or ``cpu``.
    points
        Batches measured [1].
    max_seconds
        Bound of the measuring [s].
    check_device
        Refuse when torch sees another GPU than named.
    command
        Written into the profile.
    progress
        Called before each point.

    Returns
    -------
    Calibration

    Raises
    ------
    CalibrationError
        Without torch or GPU, on another GPU than named, or when nothing could be fitted.
    """
    from planner.calibrate.fit import fit_points
    from planner.calibrate.microbench import CPU, TINY_MODEL, load_torch, measure

    network = TINY_MODEL if model.lower() == "tiny" else find_model(model)
    if device == "cpu":
        spec = CPU
    else:
        if gpu is None:
            raise InputError("which GPU is this?", "Give --gpu, e.g. --gpu a100.")
        spec = find_gpu(gpu)
        torch = load_torch()
        if not torch.cuda.is_available():
            raise CalibrationError(
                "torch sees no GPU on this machine",
                "Run it where the GPU is, measure a running server (--server URL), or try the path with --device cpu.",
            )
        seen = torch.cuda.get_device_name(0)
        if check_device and not same_device(gpu, seen):
            raise CalibrationError(
                f"this machine has a {seen}, not a {spec.name}", "Name the GPU it has; nothing was measured."
            )
    prior = roofline(spec, network, tp)
    measured = measure(
        spec, network, prior, tp=tp, device=device, points=points, max_seconds=max_seconds, progress=progress
    )
    width = CPU_PRIOR_WIDTH if device == "cpu" else 1.0
    fit = fit_points(measured.points, prior, prior_log_sd={k: v * width for k, v in PRIOR_LOG_SD.items()})
    profile = _from_fit(
        fit, spec.name, network, tp,
        engine="fleetopt microbenchmark", engine_version=measured.versions, command=command,
        source=f"measured on {measured.device} in {measured.seconds:.0f} s",
        notes=(*measured.notes, *fit.warnings),
        automatic=device != "cpu",
    )  # fmt: skip
    return Calibration(profile, fit=fit, notes=measured.notes)


def calibrate_server(
    server: Server,
    loads: Sequence[Load],
    *,
    gpu: str | None = None,
    model: str | None = None,
    tp: int = 1,
    scheduling: str = "mixed",
    token_budget: float | None = None,
    max_seconds: float = 300.0,
    force: bool = False,
    command: str | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Measure a running server and fit.

    Parameters
    ----------
    server
        Where.
    loads
        What to send.
    gpu, model, tp
        What it runs on, for the roofline prior and the profile's name; `model` defaults to the server's own name for it.
        Where the catalog knows neither, no prior holds the fit.
    scheduling, token_budget, force
        See :func:`planner.calibrate.servers.fit_server`.
    max_seconds
        Bound of the measuring [s].
    command
        Written into the profile.
    progress
        Called before each load.

    Returns
    -------
    Calibration

    Raises
    ------
    CalibrationError
        When the server does not answer or too few loads were measured.
    """
    from planner.calibrate.live import measure_server, summary
    from planner.calibrate.servers import DEFAULT_BUDGET, fit_server

    spec = find_gpu(gpu) if gpu is not None else None
    network: ModelSpec | None = None
    try:
        network = _known_model(model or server.model)
    except InputError:
        if model is not None:
            raise
    results = measure_server(server, loads, max_seconds=max_seconds, progress=progress)
    measured = measured_points(results)
    counts = summary(results)
    failures = [
        f"{r.load.concurrency} x ({r.load.input_tokens}, {r.load.output_tokens}): {r.reason}"
        for r in results
        if r.point is None
    ]
    prior = roofline(spec, network, tp) if spec is not None and network is not None else None
    try:
        fit = fit_server(
            measured, prior, scheduling=scheduling, token_budget=token_budget or DEFAULT_BUDGET, force=force
        )
    except CalibrationError as error:
        hint = "; ".join(failures[:3]) or error.hint
        raise CalibrationError(error.message, hint) from None
    name = network.name if network is not None else server.model
    shown = network or ModelSpec(name, 1, 1, 1, 1, 1, 1, 1, 1)
    notes = (
        f"{counts['requests']} requests measured in {counts['loads']} loads, {counts['requests_failed']} failed",
        *(f"not used: {f}" for f in failures),
    )
    profile = _from_server(
        fit, spec.name if spec is not None else "unknown-gpu", replace(shown, name=name), tp,
        engine="OpenAI-compatible server", command=command, source=f"measured on a live server serving {server.model}",
        automatic=prior is not None,
    )  # fmt: skip
    return Calibration(profile, server_fit=fit, notes=notes)


def measured_points(results: Sequence[LoadResult]) -> list[Any]:
    """Points of the loads that worked; loads of one shape get one (mean) input and output length."""
    shapes: dict[tuple[int, int], list[LoadResult]] = {}
    for result in results:
        if result.point is not None:
            shapes.setdefault((result.load.input_tokens, result.load.output_tokens), []).append(result)
    points = []
    for group in shapes.values():
        found = [r.point for r in group if r.point is not None]
        isl = round(sum(p.input_tokens for p in found) / len(found), 1)
        osl = round(sum(p.output_tokens for p in found) / len(found), 1)
        points += [replace(p, input_tokens=isl, output_tokens=osl) for p in found]
    return points
