"""What a calibration gives: a profile, the fit behind it, the raw points, and whether it may be trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from planner.calibrate.fit import WIDEST, Fit
from planner.calibrate.http import without_credentials
from planner.calibrate.points import RawPoints, points_path, write_points
from planner.calibrate.servers import ServerFit
from planner.calibrate.solver import MISFIT
from planner.catalog.profiles import Profile, parse_profile, save_profile
from planner.errors import CalibrationError, InputError
from planner.machine.derived import exclusive_parameters, fleetopt_parameters
from planner.machine.engines import engines
from planner.machine.hardware import ModelSpec, Parallelism
from planner.machine.iteration import PARAMETER_UNITS, IterationModel
from planner.shared.record import Record
from planner.shared.remarks import those_that_hold
from planner.shared.writing import is_stream, keep_copy

_ADDRESS = re.compile(
    r"(?i)\bhttps?://(?!(?:github|huggingface|arxiv|doi)\.)[^\s'\"]+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\b[\w.-]+\.(?:internal|local|lan|corp|svc)\b(?::\d+)?"
)
_KEY = re.compile(r"(?i)\b(?:sk|hf|nvapi|key|token|bearer)[-_ =:]+[A-Za-z0-9_\-]{8,}")
_FOLDER = re.compile(r"(?<![\w.])(?:~|\.{0,2})/(?:[^\s'\"/]+/)*")


def profile_name(gpu: str, model: ModelSpec, tp: int | Parallelism, engine: str = "") -> str:
    """Name of a profile: model, dtype, hardware, parallelism and, where one was measured, the engine.

    >>> llama = ModelSpec("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072)
    >>> profile_name("h100-80gb", llama, 2), profile_name("l4-24gb", llama.served_as("fp8", "fp8"), 1, "vllm")
    ('llama-3.1-8b-h100-80gb-tp2', 'llama-3.1-8b-fp8-l4-24gb-tp1-kvfp8-vllm')
    >>> profile_name("h100-80gb", llama, Parallelism(8, ep=8))
    'llama-3.1-8b-h100-80gb-tp8-ep8'
    """
    plain = ("bf16", "fp16", *([model.weight_dtype] if model.weight_dtype in model.name.lower() else []))
    weights = "" if model.weight_dtype in plain else model.weight_dtype
    cache = "" if model.kv_dtype in ("bf16", "fp16") else f"kv{model.kv_dtype}"
    words = "-".join(filter(None, (model.name, weights, gpu, str(Parallelism.of(tp)), cache, engine)))
    return re.sub(r"[^a-z0-9._+-]+", "-", words.lower()).strip("-.")


_microseconds = partial(round, ndigits=6)


def _rounded(model: IterationModel) -> IterationModel:
    """Six digits: more would only claim what was not measured."""
    return IterationModel.from_dict(
        {k: float(f"{v:.6g}") if k != "tau" else int(v) for k, v in model.to_dict().items()}
    )


def profile_of_iterations(fit: Fit, gpu: str, model: ModelSpec, tp: int | Parallelism, **details: Any) -> Profile:
    """Profile of measured iterations; `details` are further fields of it."""
    named = {"context": "context_tokens", "tokens": "batch_tokens"}
    # x = 0 alone cannot tell "no interference seen" from "never looked"
    settings = {"mixed_measured": True} if fit.identified["x"] else {}
    covered = {named.get(k, k): v for k, v in fit.covered.items() if v[1] > 0.0}
    errors = fit.leave_one_out_error, fit.leave_one_out_p95
    details = {"name": profile_name(gpu, model, tp), "settings": settings, "covered": covered, **details}
    return _profile(fit, gpu, model, tp, errors, provenance="measured", **details)


def profile_of_server(
    fit: ServerFit, gpu: str, model: ModelSpec, tp: int | Parallelism, engine: str, **details: Any
) -> Profile:
    """Profile of a server; `details` are further fields of it."""
    low_in, high_in = fit.covered["input_tokens"]
    settings: dict[str, str | float | bool] = {"scheduling": fit.rules.scheduling, "token_budget": fit.rules.budget}
    if fit.api_overhead_idle_s is not None:
        settings["api_overhead_idle_s"] = _microseconds(fit.api_overhead_idle_s)
    if fit.limits.slots is not None:
        settings["slots"] = float(fit.limits.slots)
    overhead = fit.api_overhead_s if fit.api_overhead_s is not None else fit.api_overhead_idle_s
    name = profile_name(gpu, model, tp, engine if engine in engines() else "server")
    context = low_in, high_in + fit.covered["output_tokens"][1]
    found: dict[str, Any] = {
        "name": name,
        "covered": {"decodes": fit.covered["decodes"], "context_tokens": context},
        "api_overhead_s": _microseconds(overhead or 0.0),
        "request_s": _microseconds(fit.request_s),
        "settings": settings,
    }
    notes = (*details.pop("notes", ()), *fit.warnings)
    errors = fit.tpot_error, fit.tpot_error_p95
    return _profile(fit, gpu, model, tp, errors, provenance="fitted", engine=engine, notes=notes, **found | details)


def _profile(
    fit: Fit | ServerFit,
    gpu: str,
    model: ModelSpec,
    tp: int | Parallelism,
    errors: Sequence[float | None],
    **details: Any,
) -> Profile:
    """A profile dated today, of the mean error of the fit and its 95th percentile; no address in it carries a password.

    Raises
    ------
    CalibrationError
        When the fit gives numbers that no profile may hold: points that are possible one by one need not be together.
    """
    found = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), **details}
    if found.get("command"):
        found["command"] = without_credentials(found["command"])
    mean, p95 = (None if one is None else round(one, 4) for one in errors)
    made = Profile(
        gpu=gpu, model=model.name, **asdict(Parallelism.of(tp)), iteration=_rounded(fit.iteration), weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype, band=round(fit.error_band, 3), points=fit.points, error_mean=mean, error_p95=p95, **found,
    )  # fmt: skip
    made = replace(made, untested=never_tested(made))
    try:
        parse_profile(made.to_dict(), made.name)
    except InputError as error:
        told = "; ".join(error.problems or (error.message,))
        raise CalibrationError(
            f"these measurements give no profile: {told}", "Look for one that is far from the others, and leave it out."
        ) from None
    return made


def never_tested(profile: Profile) -> tuple[str, ...]:
    """What a profile's measurements say nothing about, in words.

    Parameters
    ----------
    profile
        With the ranges it covers; ``fitted`` to a server, else made of iterations.
    """
    served = profile.provenance == "fitted"
    engine = " ".join(filter(None, (profile.engine, profile.engine_version)))
    most = {key: {"most": ends[1]} for key, ends in profile.covered.items()}
    return those_that_hold([
        (True, "other_gpus", {"gpu": profile.gpu}),
        (served, "other_engines", {"engine": engine}),
        (served, "other_traffic", {}),
        (not served, "no_engine", {}),
        ("decodes" in most, "more_decodes", most.get("decodes", {})),
        ("context_tokens" in most, "longer_contexts", most.get("context_tokens", {})),
        ("prefill_tokens" in most, "more_prompts", most.get("prefill_tokens", {})),
        (not served and not profile.settings.get("mixed_measured"), "not_mixed", {}),
    ])  # fmt: skip


def shareable(profile: Profile) -> Profile:
    """The profile without addresses, keys and folders, fit to be shown to anybody.

    >>> from planner.catalog.profiles import profile
    >>> from dataclasses import replace
    >>> p = replace(profile("fleetopt-paper"), command="fleetopt calibrate --server http://10.0.0.7:8000 -o /home/me/x.yaml")
    >>> shareable(p).command
    'fleetopt calibrate --server ADDRESS -o x.yaml'
    """

    def clean(text: str) -> str:
        return _FOLDER.sub("", _KEY.sub("KEY", _ADDRESS.sub("ADDRESS", text)))

    return replace(
        profile,
        command=clean(profile.command) if profile.command else None,
        source=clean(profile.source),
        notes=tuple(clean(note) for note in profile.notes),
        measurements=tuple(
            {k: clean(v) if isinstance(v, str) and k != "schema" else v for k, v in row.items()}
            for row in profile.measurements
        ),
        model=profile.model if not profile.model.startswith(("/", "~", ".")) else Path(profile.model).name,
    )


CONTEXT = 1024.0
"""At which the derived parameters are shown [tokens]."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration(Record):
    """One profile and the fit behind it.

    Parameters
    ----------
    profile
        What is written.
    raw
        What was measured, to be fitted again.
    fit, server_fit
        Of iterations, or of server points: one of them.
    notes
        About the measuring.
    doubts
        Why it should not be written, found while measuring.
    """

    profile: Profile
    raw: RawPoints
    fit: Fit | None = None
    server_fit: ServerFit | None = None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("profile", "parameters", "fit=found", "notes", "warnings", "problems")

    @property
    def found(self) -> Fit | ServerFit:
        """The fit, whatever it is of."""
        return cast("Fit | ServerFit", self.fit or self.server_fit)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the fit."""
        return self.found.warnings

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not fit to plan with; empty when it is."""
        found = list(self.doubts)
        if self.profile.band > WIDEST:
            found.append(f"its band is ±{100 * self.profile.band:.0f}%, wider than the ±{100 * WIDEST:.0f}% allowed")
        error, allowed = None if self.fit is None else self.fit.leave_one_out_error, 1.0
        if self.server_fit is not None:
            # one shape of three left out is a harder question than any the whole fit will be asked
            error, allowed = self.server_fit.tpot_error, 1.0 if self.server_fit.enough_shapes else 2.0
        # a fit as good as fits are is kept even where the estimate happened to be better
        prior = self.found.prior_error
        if error is not None and prior is not None and error > allowed * max(prior, MISFIT):
            found.append(
                f"it misses left-out measurements by {100 * error:.0f}%, the estimate without any by {100 * prior:.0f}%"
            )
        return tuple(found)

    def checked(self, force: bool) -> Calibration:
        """Itself; with its problems among the notes when forced.

        Raises
        ------
        CalibrationError
            When it has problems and is not forced.
        """
        if not self.problems:
            return self
        told = "; ".join(self.problems)
        if not force:
            raise CalibrationError(
                f"{self.profile.name} is not written: {told}",
                "Measure more or longer, or something that does nothing else meanwhile; --force writes it all the same.",
            )
        return replace(
            self,
            notes=(*self.notes, f"forced: {told}"),
            profile=replace(self.profile, automatic=False, notes=(*self.profile.notes, f"forced: {told}")),
        )

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write the profile, and the raw points beside it; a profile that is there already is kept under another name.

        Parameters
        ----------
        path
            File or folder.

        Returns
        -------
        tuple of Path
            Profile, points (where there are any), and the file that keeps an older profile (where there was one).
        """
        target = Path(path)
        if target.is_dir():
            target = target / f"{self.profile.name}.yaml"
        kept = keep_copy(target)
        found = [save_profile(self.profile, target)]
        if not is_stream(target):
            points = points_path(target)
            keep_copy(points)
            found.append(write_points(self.raw, points))
        return (*found, kept) if kept is not None else tuple(found)

    def parameters(self) -> list[dict[str, Any]]:
        """One row per canonical parameter and per derived one people plan with, with interval and flag."""
        model = self.profile.iteration
        identified: Mapping[str, bool] = self.fit.identified if self.fit is not None else {}

        rows: list[tuple[object, ...]] = [
            (name, PARAMETER_UNITS[name], value, *self.found.intervals.get(name, (None, None)), identified.get(name))
            for name, value in model.to_dict().items()
        ]
        derived: tuple[tuple[str, str, Callable[[IterationModel], float]], ...] = (
            ("W", "s", lambda m: fleetopt_parameters(m, CONTEXT)["W"]),
            (f"H({CONTEXT:g})", "s/sequence", lambda m: fleetopt_parameters(m, CONTEXT)["H"]),
            ("beta_p(256-4096)", "s/token", lambda m: exclusive_parameters(m, CONTEXT)["beta_p"]),
        )
        if self.fit is not None:
            for name, unit, quantity in derived:
                value, (low, high) = quantity(model), self.fit.interval(quantity)
                rows.append((name, unit, value, low, high, high - low <= 2.0 * WIDEST * abs(value)))
        keys = ("parameter", "unit", "value", "low", "high", "identified")
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per parameter."""
        return [{"profile": self.profile.name, **row} for row in self.parameters()]


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSet(Record):
    """Several calibrations, for one report."""

    calibrations: tuple[Calibration, ...]

    versioned: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<CalibrationSet: {', '.join(c.profile.name for c in self.calibrations)}>"

    def __iter__(self) -> Any:
        return iter(self.calibrations)

    def __len__(self) -> int:
        return len(self.calibrations)

    @property
    def profile(self) -> Profile:
        """The profile, where there is one."""
        return self.only.profile

    @property
    def only(self) -> Calibration:
        """The calibration, where there is one.

        Raises
        ------
        CalibrationError
            When there are several.
        """
        if len(self.calibrations) != 1:
            names = ", ".join(c.profile.name for c in self.calibrations)
            raise CalibrationError(f"there are {len(self.calibrations)} profiles: {names}", "Select one.")
        return self.calibrations[0]

    def to_rows(self) -> list[dict[str, Any]]:
        """Rows of all of them."""
        return [row for c in self.calibrations for row in c.to_rows()]


def checked_set(calibrations: Sequence[Calibration], force: bool) -> CalibrationSet:
    """Those fit to be written, the others named among the notes of the first.

    Raises
    ------
    CalibrationError
        When none is.
    """
    kept: list[Calibration] = []
    refused: list[CalibrationError] = []
    for one in calibrations:
        try:
            kept.append(one.checked(force))
        except CalibrationError as error:
            refused.append(error)
    if not kept:
        raise refused[0]
    if refused:
        kept[0] = replace(kept[0], notes=(*kept[0].notes, *(e.message for e in refused)))
    return CalibrationSet(tuple(kept))
