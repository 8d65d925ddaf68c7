"""What a calibration gives: a profile, the fit behind it, the raw points, and whether it may be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from planner.calibrate.fit import Fit
from planner.calibrate.raw import RawPoints, points_path, write_points
from planner.calibrate.servers import ServerFit
from planner.catalog.profiles import Profile, save_profile
from planner.errors import CalibrationError
from planner.iteration.derived import exclusive_parameters, fleetopt_parameters
from planner.iteration.model import PARAMETER_UNITS, IterationModel
from planner.shared.record import Record
from planner.shared.writing import is_stream, keep_copy

WIDEST_BAND = 0.40
"""A profile less certain than this says less than the estimate nobody measured for [1]."""

FEW_SHAPES_ALLOWED = 2.0
"""One shape of three left out is a harder question than any the whole fit will be asked [1]."""

SMALL_ERROR = 0.05
"""A fit this good is kept even where the estimate happened to be better [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration(Record):
    """One profile and the fit behind it.

    Parameters
    ----------
    profile
        What is written.
    fit
        Of iterations, or ``None``.
    server_fit
        Of server points, or ``None``.
    raw
        What was measured, to be fitted again.
    notes
        About the measuring.
    doubts
        Why it should not be written, found while measuring.
    """

    profile: Profile
    fit: Fit | None = None
    server_fit: ServerFit | None = None
    raw: RawPoints | None = None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("profile", "parameters", "fit=found", "notes", "warnings", "problems")

    @property
    def found(self) -> Fit | ServerFit | None:
        """The fit, whatever it is of."""
        return self.fit or self.server_fit

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the fit."""
        return self.found.warnings if self.found is not None else ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not fit to plan with; empty when it is."""
        found = list(self.doubts)
        if self.profile.band > WIDEST_BAND:
            found.append(
                f"its band is ±{100 * self.profile.band:.0f}%, wider than the ±{100 * WIDEST_BAND:.0f}% allowed"
            )
        error, allowed = None if self.fit is None else self.fit.leave_one_out_error, 1.0
        if self.server_fit is not None:
            error, allowed = self.server_fit.tpot_error, 1.0 if self.server_fit.enough_shapes else FEW_SHAPES_ALLOWED
        prior = None if self.found is None else self.found.prior_error
        if error is not None and prior is not None and error > allowed * max(prior, SMALL_ERROR):
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
            if self.raw is not None:
                found.append(write_points(self.raw, points))
            else:
                points.unlink(missing_ok=True)
        return (*found, kept) if kept is not None else tuple(found)

    def parameters(self) -> list[dict[str, Any]]:
        """One row per canonical parameter and per derived one people plan with, with interval and flag."""
        model = self.profile.iteration
        intervals: Mapping[str, tuple[float, float]] = self.found.intervals if self.found is not None else {}
        identified: Mapping[str, bool] = self.fit.identified if self.fit is not None else {}

        rows: list[tuple[object, ...]] = [
            (name, PARAMETER_UNITS[name], value, *intervals.get(name, (None, None)), identified.get(name))
            for name, value in model.to_dict().items()
        ]
        derived: tuple[tuple[str, str, Callable[[IterationModel], float]], ...] = (
            ("W", "s", lambda m: fleetopt_parameters(m, 1024.0)["W"]),
            ("H(1024)", "s/sequence", lambda m: fleetopt_parameters(m, 1024.0)["H"]),
            ("beta_p(256-4096)", "s/token", lambda m: exclusive_parameters(m, 1024.0)["beta_p"]),
        )
        if self.fit is not None:
            for name, unit, quantity in derived:
                value, (low, high) = quantity(model), self.fit.interval(quantity)
                rows.append((name, unit, value, low, high, high - low <= 0.7 * abs(value)))
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
