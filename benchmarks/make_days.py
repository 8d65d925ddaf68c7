"""Days of traffic: measured rates per ten minutes of real services, filled with measured minutes of the Azure traces.

    python benchmarks/make_days.py FOLDER_WITH_THE_RAW_DATA [mean rate per second]

prints what it made. ServeGen's rates (arrivals/) are scaled to the mean rate; within each ten minutes blocks of 60 s of the Azure
conversation and code stamps (raw/), each with its own lengths and in random order with fixed seeds, are stretched in time to the
rate of the interval. So slow swings are a service's, fast ones and their lengths another's, and both are real.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from planner.workload.arrivals import arrivals_from_times
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files
from planner.workload.trace import Trace
from planner.workload.workload import Workload

SERVICES = ("language_m-large", "language_m-small", "reason_deepseek-r1")
INTERVAL_S, BLOCK_S = 600.0, 60.0


def rates(path: Path) -> np.ndarray:
    """Requests per second of the first day, by interval of ten minutes."""
    with path.open(newline="") as file:
        found = [float(row["requests_per_second"]) for row in csv.DictReader(file)]
    return np.array(found[:144])


def day(minutes: Trace, by_interval: np.ndarray, seed: int) -> Trace:
    """One day whose intervals have these rates [1/s], filled with blocks of `minutes`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    block = (minutes.times_s // BLOCK_S).astype(np.int64)
    blocks = int(minutes.times_s[-1] // BLOCK_S)
    starts = np.searchsorted(block, np.arange(blocks + 1))
    times, rows = [], []
    for k, rate in enumerate(by_interval.tolist()):
        # a block lasts as long as the traces' mean rate takes to become the interval's
        length = BLOCK_S * minutes.rate_per_s / max(rate, 1e-9)
        at = 0.0
        while at < INTERVAL_S:
            b = int(rng.integers(blocks))
            chosen = np.arange(starts[b], starts[b + 1])
            inside = at + (minutes.times_s[chosen] - b * BLOCK_S) / BLOCK_S * length
            keep = inside < INTERVAL_S
            times.append(k * INTERVAL_S + inside[keep])
            rows.append(chosen[keep])
            at += length
    which = np.concatenate(rows)
    moments = np.concatenate(times)
    return Trace(moments, minutes.input_tokens[which], minutes.output_tokens[which], minutes.category[which])


def days(raw: Path, mean_rate_per_s: float = 1.0, first_seed: int = 0) -> dict[str, Workload]:
    """A day of each service at this mean rate [1/s], filled with seeds from the first on."""
    both, _ = import_files(
        [("conv", raw / "azure_conv_2023.csv"), ("code", raw / "azure_code_2023.csv")], ReadOptions()
    )
    minutes = both.trace()
    assert minutes is not None
    made = {}
    for seed, service in enumerate(SERVICES, first_seed):
        wanted = rates(raw.parent / "arrivals" / f"servegen_{service}_rate10min.csv")
        trace = day(minutes, wanted * mean_rate_per_s / wanted.mean(), seed)
        made[service] = Workload.from_arrays(
            trace.input_tokens,
            trace.output_tokens,
            category=trace.category,
            categories=both.categories,
            arrivals=arrivals_from_times(trace.times_s),
            name=f"day-{service}",
            recorded=trace,
        )
    return made


if __name__ == "__main__":
    for label, workload in days(Path(sys.argv[1]), *(float(x) for x in sys.argv[2:3])).items():
        found = workload.trace()
        assert found is not None
        print(f"{label}: {found.requests:,} requests, {found.rate_per_s:.3g}/s, {workload.arrivals.dispersion}")
