"""Make the shipped profiles from measured kernels: parameters only, the measurements themselves stay where they are.

Run by hand: ``python benchmarks/shipped_profiles.py kernels.csv``. All points of a configuration enter the fit; the error
written into the profile is that of leaving out one point at a time.
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
TARGET = Path(__file__).resolve().parents[1] / "planner" / "catalog" / "profiles"


def main(kernels: Path) -> None:
    for origin, source in SOURCES.items():
        found = calibrate_files([kernels], where={"linear_source": origin}, source=source)
        for calibration in found.calibrations:
            profile = replace(
                calibration.profile,
                command="benchmarks/shipped_profiles.py kernels.csv",
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
