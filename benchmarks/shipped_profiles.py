"""Make the shipped profiles from measured kernels and servers: parameters only, the measurements stay where they are.

Run by hand: ``python benchmarks/shipped_profiles.py kernels.csv servers.csv``. All points of a configuration enter the fit;
the error written into the profile is that of leaving out one point, or one shape, at a time. Profiles of servers belong to
their engine and are chosen by name only; those missed by more than 6% are not shipped.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from planner.calibrate.run import calibrate_files
from planner.catalog.profiles import save_profile

SOURCES = {
    "vidur": "kernel profiles of microsoft/vidur (MIT licence), composed to iterations",
    "aic": "kernel measurements of ai-dynamo/aiconfigurator (Apache-2.0), composed to iterations",
}
SERVER_SOURCE = "benchmarks of ai-dynamo/aiconfigurator (Apache-2.0)"
LARGEST_SERVER_ERROR = 0.06
TARGET = Path(__file__).resolve().parents[1] / "planner" / "catalog" / "profiles"


def servers(path: Path) -> None:
    for calibration in calibrate_files([path], source=SERVER_SOURCE).calibrations:
        profile, fit = calibration.profile, calibration.server_fit
        low, high = fit.covered["decodes"]
        if fit.tpot_error is None or fit.tpot_error > LARGEST_SERVER_ERROR or low == high:
            continue
        name = f"{profile.model}-{profile.gpu}-tp{profile.tp}-{profile.engine}"
        if profile.weight_dtype not in profile.model and profile.weight_dtype != "bf16":
            name = name.replace(profile.model, f"{profile.model}-{profile.weight_dtype}")
        shipped = replace(
            profile,
            name=name,
            automatic=False,
            date=None,
            command="benchmarks/shipped_profiles.py kernels.csv servers.csv",
        )
        print(f"{save_profile(shipped, TARGET).name}: {fit.points} points, TPOT error {fit.tpot_error:.1%}")


def main(kernels: Path, measured_servers: Path) -> None:
    for origin, source in SOURCES.items():
        found = calibrate_files([kernels], where={"linear_source": origin}, source=source)
        for calibration in found.calibrations:
            profile = replace(
                calibration.profile,
                command="benchmarks/shipped_profiles.py kernels.csv servers.csv",
                engine="kernels composed to iterations",
                # the day of the fit says nothing about the day of the measurement
                date=None,
                notes=(
                    *(w for w in calibration.warnings if not w.startswith("Outlier")),
                    "No host time of an engine is in it.",
                ),
            )
            path = save_profile(profile, TARGET)
            print(f"{path.name}: {profile.points} points, error {profile.error_mean:.1%}, p95 {profile.error_p95:.1%}")
    servers(measured_servers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
