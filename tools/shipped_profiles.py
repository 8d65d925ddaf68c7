"""Make the shipped profiles from measured kernels and servers: parameters only, the measurements stay where they are.

Run by hand: ``python tools/shipped_profiles.py kernels.csv servers.csv constant_rate_stages.csv``. All points of a
configuration enter the fit; the error written into the profile is that of leaving out one point, or one shape, at a time.
Profiles of servers belong to their engine and are chosen by name only; those whose left-out shapes are missed by more than 12%,
or that are no surer than the estimate they start from, are not shipped. No source says when it measured: the day is that of
its publication.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from planner.calibrate.result import never_tested
from planner.calibrate.run import calibrate
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.profiles import Profile, save_profile
from planner.machine.roofline import prior_band

SOURCES = {
    "vidur": "kernel profiles of microsoft/vidur (MIT licence), composed to iterations",
    "aic": "kernel measurements of ai-dynamo/aiconfigurator (Apache-2.0), composed to iterations",
}
SERVER_SOURCE = "benchmarks of ai-dynamo/aiconfigurator (Apache-2.0)"
LARGEST_SERVER_ERROR = 0.12
PUBLISHED = {
    "llama-3-8b-a100-80gb": "2024-07-24",
    "llama-3-70b-a100-80gb": "2024-07-24",
    "codellama-34b-a100-80gb": "2024-05-14",
    "llama-2-70b-h100-80gb": "2024-05-14",
    "servers": "2026-05-06",
    "stages": "2025-11-05",
    "kernels": "2026-08-21",
}
"""Day on which the data entered their repository, or of the copy that was read where that is not known."""
DAY_TOLD = "the day is that of publication"
COMMAND = "tools/shipped_profiles.py kernels.csv servers.csv constant_rate_stages.csv"
MEASURED = ("isl", "osl", "concurrency", "silicon_ttft_ms", "silicon_tpot_ms")
OPEN_LOOP_SOURCE = (
    "inference-perf, demos/kubecon-na-2025 at commit 7de5ef2 (Apache-2.0): stages at constant rates, none overloaded"
)
TARGET = Path(__file__).resolve().parents[1] / "planner" / "catalog" / "profiles"


def servers(path: Path) -> None:
    for calibration in calibrate(files=[path], source=SERVER_SOURCE).calibrations:
        profile, fit = calibration.profile, calibration.server_fit
        low, high = fit.covered["decodes"]
        if fit.tpot_error is None or fit.tpot_error > LARGEST_SERVER_ERROR or low == high:
            continue
        if profile.band >= prior_band(find_gpu(profile.gpu), find_model(profile.model), profile.engine):
            continue
        name = f"{profile.model}-{profile.gpu}-tp{profile.tp}-{profile.engine}"
        if profile.weight_dtype not in profile.model and profile.weight_dtype != "bf16":
            name = name.replace(profile.model, f"{profile.model}-{profile.weight_dtype}")
        ship(replace(profile, name=name, date=PUBLISHED["servers"]))


def main(kernels: Path, measured_servers: Path, stages: Path) -> None:
    for origin, source in SOURCES.items():
        found = calibrate(files=[kernels], where={"linear_source": origin}, source=source)
        for calibration in found.calibrations:
            profile = replace(
                calibration.profile,
                command=COMMAND,
                engine="kernels composed to iterations",
                date=next(
                    (day for known, day in PUBLISHED.items() if calibration.profile.name.startswith(known)),
                    PUBLISHED["kernels"],
                ),
                source=f"{source}; {DAY_TOLD}",
                notes=(
                    *(w for w in calibration.warnings if not w.startswith("Outlier")),
                    "No host time of an engine is in it.",
                ),
            )
            path = save_profile(replace(profile, untested=never_tested(profile)), TARGET)
            print(f"{path.name}: {profile.points} points, error {profile.error_mean:.1%}, p95 {profile.error_p95:.1%}")
    servers(measured_servers)
    open_loop(stages)


def open_loop(path: Path) -> None:
    """One vLLM server whose rate was raised in stages: the requests in flight are rate x time in the system (Little)."""
    rows = [r for r in csv.DictReader(path.open(encoding="utf-8")) if r["setting"] == "v1" and r["overloaded"] == "0"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stages.csv"
        with file.open("w", newline="", encoding="utf-8") as out:
            table = csv.writer(out)
            table.writerow(["model_path", "system", "backend", "backend_version", "precision", "tp_size", *MEASURED])
            for r in rows:
                inside = float(r["completed_per_s"]) * float(r["e2e_mean_s"])
                times = (1e3 * float(r["ttft_mean_s"]), 1e3 * float(r["tpot_mean_s"]))
                server = [r["model"], r["gpu"], "vllm", r["engine"].split()[1], "", r["tp"]]
                lengths = [round(float(r["input_tokens"])), r["output_tokens"]]
                table.writerow([*server, *lengths, max(inside, 1.0), *times])
        found = calibrate(files=[file], source=OPEN_LOOP_SOURCE)
    profile = found.calibrations[0].profile
    ship(
        replace(
            profile,
            name=f"{profile.model}-{profile.gpu}-tp1-vllm",
            date=PUBLISHED["stages"],
        )
    )


def ship(profile: Profile) -> None:
    """Write a profile of a server: it belongs to its engine and is chosen by name only."""
    made = replace(profile, automatic=False, command=COMMAND, source=f"{profile.source}; {DAY_TOLD}")
    path = save_profile(replace(made, untested=never_tested(made)), TARGET)
    told = "" if made.error_mean is None else f", TPOT error {made.error_mean:.1%}"
    print(f"{path.name}: {made.points} points{told}, band {made.band:.0%}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
