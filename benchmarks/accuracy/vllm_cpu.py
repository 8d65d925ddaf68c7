"""A real vLLM on this machine's CPU: calibrated, then its open-loop runs predicted.

Run by hand on a machine that does nothing else (two cores at least: one for the engine, one for the client), with the environment
that ``python -m tests.operate.deploy.cpu_server DIR`` makes:

    python -m benchmarks.accuracy vllm_cpu run DIR          serve, calibrate (5 minutes), measure, write predicted beside measured
    python -m benchmarks.accuracy vllm_cpu report DIR       write it again from the files (--refit: its points fitted anew)

`run` takes about 35 minutes: two length laws, saturated and at three rates up to 80% of what was measured there (`vllm bench
serve`, Poisson arrivals), everything twice. What is measured lies in DIR/runs as it comes, and a run that was interrupted goes
on where it stopped. `--priority nice` puts engine and client before other work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.points import read_points
from planner.calibrate.run import refit
from planner.catalog.profiles import Profile, load_profile, served_by
from planner.predict.closed import ClosedReplica
from planner.predict.records import Replicas, keys_of
from planner.predict.records import Requests as Asked
from planner.predict.run import replay
from planner.workload.pools import Lengths
from planner.workload.sending import Clients
from tests.operate.deploy.cpu_server import BUDGET, PRIORITIES, QUIET, SLOTS, calibrate, serving
from tools.tables import write_csv

LENGTHS = ((256, 64), (64, 160))
SHARES = (0.3, 0.55, 0.8)
IN_FLIGHT = 96
"""Requests that the saturating runs keep in flight: the queue is never empty, and no herd of prompts is tokenized at once."""
SATURATING = 320
TOGETHER_S = 3e-3
"""Tokens of one iteration reach the client within this time [s]."""
SIMULATED = 20
"""Poisson runs simulated to see what arrivals alone make of a run."""
RUN_S = {0.3: 80.0, 0.55: 90.0, 0.8: 170.0}
"""Length of the runs [s]. The fuller the server, the longer it fills: simulated runs of 55 s at 0.8 came out 9% below the mean of
a long one, of 150 to 220 s 3%, and differed by 4 to 7% for their arrivals alone, the longer ones by 3 to 6%."""
BARS = {"steady requests/s": 0.06, "requests/s as printed": 0.06, "TPOT mean": 0.10, "E2E mean": 0.10, "TTFT p90": 0.20}


def bench(
    folder: Path, url: str, name: str, lengths: tuple[int, int], requests: int, rate: float | None, seed: int
) -> None:
    """One run of `vllm bench serve`; its result, every request's times among it, lies in runs/NAME afterwards."""
    arguments = [
        "--model", "tiny", "--host", "127.0.0.1", "--port", url.rsplit(":", 1)[1], "--dataset-name", "random",
        "--random-input-len", lengths[0], "--random-output-len", lengths[1], "--num-prompts", requests, "--ignore-eos",
        "--seed", seed, "--save-result", "--save-detailed", "--result-dir", folder / "runs", "--result-filename", name,
        "--disable-tqdm", "--request-rate", "inf" if rate is None else f"{rate:.4f}",
        *(("--max-concurrency", IN_FLIGHT) if rate is None else ()),
    ]  # fmt: skip
    with (folder / "bench.log").open("w") as log:
        command = [folder / "venv" / "bin" / "vllm", "bench", "serve", *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, env=os.environ | QUIET, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise SystemExit(f"the run {name} failed: see {folder / 'bench.log'}")


def measure(folder: Path, seconds: float, priority: str) -> None:
    """Whatever is not there yet."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    profile = runs / "profile.yaml"
    open_ones = [
        (law, share, seed)
        for seed in (1, 2)
        for law in LENGTHS
        for share in (None, *SHARES)
        if not (runs / run_name(law, share, seed)).exists()
    ]
    if profile.exists() and not open_ones:
        return
    with serving(folder, priority) as url:
        if not profile.exists():
            calibrate(url, profile, seconds)
        for law, share, seed in open_ones:
            rate = None if share is None else share * capacity(runs, law)
            count = SATURATING if share is None else max(30, round(RUN_S[share] * rate))
            name, before = run_name(law, share, seed), time.monotonic()
            bench(folder, url, name, law, count, rate, 1000 * seed + round(100 * (share or 0.0)))
            print(f"{name}: {time.monotonic() - before:.0f} s", flush=True)


def run_name(law: tuple[int, int], share: float | None, seed: int) -> str:
    """File of a run."""
    return f"{law[0]}-{law[1]}-{'all' if share is None else round(100 * share)}-{seed}.json"


@dataclass(frozen=True)
class Requests:
    """The requests of a run in order of their start, measured or simulated; times from the first start on [s]."""

    start: np.ndarray
    first: np.ndarray
    done: np.ndarray
    input: np.ndarray
    output: np.ndarray

    def figures(self) -> dict[str, float]:
        """What the run shows, worked out the same way for both.

        "steady requests/s": the first tokens from the one with which all slots are taken (the SLOTS-th) to the last. Requests of
        equal lengths that start together stay together, prompts of all slots after tokens of all slots: from one last
        first token of a herd to another, whole rounds are counted. (From the one after it, as this script did at first, the prompts
        of one round more are in the time than tokens in the count: up to 12% too few.) "requests/s as printed": all of
        them by the whole time, as `vllm bench serve` prints it, ramp and drain included. Times: requests that came after
        the first one ended.
        """
        firsts = np.sort(self.first)
        begun = min(SLOTS, firsts.size // 2) - 1
        found = {
            "steady requests/s": (firsts.size - 1 - begun) / float(firsts[-1] - firsts[begun]),
            "requests/s as printed": self.start.size / float(self.done.max()),
        }
        later = self.start > self.done.min()
        if later.any():
            found |= {
                "TPOT mean": float(((self.done - self.first) / (self.output - 1.0))[later].mean()),
                "E2E mean": float((self.done - self.start)[later].mean()),
                "TTFT p90": float(np.quantile((self.first - self.start)[later], 0.9)),
            }
        return found

    @property
    def rate(self) -> float:
        """Arrivals per second of those that count in open loop [1/s]."""
        later = self.start[self.start > self.done.min()]
        return float((later.size - 1) / np.ptp(later))


def measured(path: Path) -> Requests:
    """The requests of a run of `vllm bench serve`."""
    data: dict[str, Any] = json.loads(path.read_text())
    start = np.array(data["start_times"])
    order = np.argsort(start)
    first = start + np.array(data["ttfts"])
    done = first + np.array([sum(gaps) for gaps in data["itls"]])
    lengths = (np.array(data[k], dtype=float)[order] for k in ("input_lens", "output_lens"))
    return Requests(*(times[order] - start.min() for times in (start, first, done)), *lengths)


def capacity(runs: Path, law: tuple[int, int]) -> float:
    """Requests per second of the first saturated run of these lengths."""
    return measured(runs / run_name(law, None, 1)).figures()["steady requests/s"]


def served(profile: Profile) -> Replicas:
    """The server, as the profile has it."""
    kv_tokens = profile.kv_tokens or math.inf
    return Replicas(1, profile.iteration, SLOTS, BUDGET, kv_tokens, request_s=profile.request_s, wake_s=profile.wake_s)


def replica(profile: Profile, run: Requests) -> ClosedReplica:
    """What the closed form makes of the profile for requests of the lengths of a run."""
    lengths = Lengths(*(np.array([x]) for x in (run.input.mean(), run.output.mean(), 1.0, 0.0)))
    return ClosedReplica(lengths, served(profile), profile.api_overhead_s)


def simulated(profile: Profile, run: Requests, start: np.ndarray, in_flight: float = math.inf) -> Requests:
    """The requests of a run that came at `start`, replayed with the profile."""
    number = np.arange(start.size)
    lengths = (np.maximum(np.rint(np.asarray(x, dtype=float)), 1.0) for x in (run.input, run.output))
    asked = Asked(start, *lengths, np.zeros(start.size), keys_of(number, 0 * number, 7))
    found = replay(asked, served(profile), Clients(in_flight=in_flight) if in_flight < math.inf else None)
    first, done = found.first_s + profile.api_overhead_s, found.done_s + profile.api_overhead_s
    return Requests(found.sent_s, first, done, run.input, run.output)


def scatter(profile: Profile, run: Requests) -> dict[str, float]:
    """By how much one Poisson run of so many requests differs from another for its arrivals alone: standard deviation [1]."""
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1.0 / run.rate, size=(SIMULATED, run.start.size))
    found = [simulated(profile, run, start).figures() for start in np.cumsum(gaps, axis=1)]
    return {what: float(np.std([f[what] for f in found]) / np.mean([f[what] for f in found])) for what in found[0]}


def pace(profile: Profile, path: Path) -> float:
    """By how much iterations without a prompt took longer in a run than the profile says of their batches, mean [1]."""
    data: dict[str, Any] = json.loads(path.read_text())
    gaps = [np.array(one) for one in data["itls"]]
    start = np.array(data["start_times"])
    first = start + np.array(data["ttfts"])
    done = first + np.array([one.sum() for one in gaps])
    ends = np.concatenate([begun + np.cumsum(one) for begun, one in zip(first, gaps, strict=True)])
    order = np.argsort(ends)
    ends, took = ends[order], np.concatenate(gaps)[order]
    # the tokens of an iteration reach the client together: one of each is looked at
    alone = np.diff(ends, prepend=-math.inf) > TOGETHER_S
    found = []
    for end, gap in zip(ends[alone], took[alone], strict=True):
        decodes = np.count_nonzero((first < end - 0.5 * gap) & (done >= end - 0.5 * TOGETHER_S))
        prompt = np.any((start < end) & (first > end - gap - TOGETHER_S) & (first <= end + gap))
        if decodes and not prompt:
            context = decodes * (data["input_lens"][0] + 0.5 * data["output_lens"][0])
            found.append(gap / profile.iteration.time(float(decodes), float(context)))
    return float(np.mean(found)) - 1.0


def of_law(profile: Profile, law: tuple[int, int], share: float | None, files: Sequence[Path]) -> list[Line]:
    """Lines of the two runs of one length law at one share of what saturates the server (``None`` = saturated)."""
    found = [measured(f) for f in files]
    model, spread = replica(profile, found[0]), {} if share is None else scatter(profile, found[0])
    told: list[dict[str, float]] = []
    for run in found:
        if share is None:
            told.append({"steady requests/s": model.limit.per_s, "requests/s as printed": math.nan})
        else:
            at = model.at(run.rate)
            p90 = at.quantiles("ttft_s", (0.9,))[0]
            told.append({"TPOT mean": at.mean("tpot_s"), "E2E mean": at.mean("e2e_s"), "TTFT p90": p90})
    starts, most = [f.start if share else 0.0 * f.start for f in found], math.inf if share else IN_FLIGHT
    played = [simulated(profile, f, start, most).figures() for f, start in zip(found, starts, strict=True)]
    longer = "; ".join(f"{pace(profile, f):+.0%}" for f in files)
    rate = f"{found[0].rate:.2f}/s" if share else "all at once"
    return [
        Line(law, rate, what, [f.figures()[what] for f in found], [t[what] for t in told], [p[what] for p in played],
             spread.get(what), longer)
        for what in told[0]
    ]  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A figure of the two runs, as measured, as the closed form predicts it (NaN: it does not), and as simulated on the run's own
    arrivals; how much arrivals alone scatter it, and by how much iterations were longer."""

    law: tuple[int, int]
    rate: str
    what: str
    runs: list[float]
    told: list[float]
    played: list[float]
    scatter: float | None
    longer: str

    def errors(self, of: Sequence[float]) -> list[float]:
        """predicted/measured - 1 [1]."""
        return [a / b - 1.0 for a, b in zip(of, self.runs, strict=True)]

    def cells(self) -> list[str]:
        """Its line of the table."""
        scale, unit = (1e3, " ms") if self.what.startswith(("TPOT", "E2E", "TTFT")) else (1.0, "")
        runs = [f"{scale * value:.4g}" for value in self.runs]
        off = [f"{e:+.1%}" if math.isfinite(e) else "" for e in (*self.errors(self.told), *self.errors(self.played))]
        apart = f"{abs(self.runs[1] / self.runs[0] - 1.0):.1%}"
        alone = "" if self.scatter is None else f"{math.sqrt(2.0) * self.scatter:.0%}"
        predicted = "" if math.isnan(self.told[0]) else f"{scale * self.told[0]:.4g}"
        bar = f"{BARS[self.what]:.0%}"
        return [str(self.law), self.rate, self.what + unit, predicted, *runs, *off, apart, alone, bar, self.longer]


HEAD = (
    "lengths", "rate", "what", "predicted", "run 1", "run 2", "error of 1", "of 2", "on its arrivals: of 1", "of 2", "runs apart",
    "arrivals alone", "bar", "iterations longer",
)  # fmt: skip


def report(folder: Path, again: bool = False) -> None:
    """Predicted against measured, from the files; `again`: with the calibration's points fitted anew."""
    runs = folder / "runs"
    points = runs / "profile.points.jsonl"
    kept = refit(read_points(points), force=True).profile if again else load_profile(runs / "profile.yaml")
    profile = served_by(kept)
    print(f"profile: {profile.points} loads, left-out TPOT error {profile.error_mean:.1%}, band {profile.band:.0%}\n")
    lines: list[Line] = []
    for law, share in ((law, share) for law in LENGTHS for share in (None, *SHARES)):
        files = [runs / run_name(law, share, seed) for seed in (1, 2)]
        # a run that is not there yet has nothing beside it
        lines += of_law(profile, law, share, files) if all(f.exists() for f in files) else []
    write_csv("vllm_cpu.csv", [HEAD, *(line.cells() for line in lines)])
    print("| within the bar | predicted | on the run's own arrivals |\n|:--|--:|--:|")
    for what, bar in BARS.items():
        own = [line for line in lines if line.what == what]
        told, played = ([e for line in own for e in line.errors(getattr(line, of))] for of in ("told", "played"))
        inside = [
            f"{sum(abs(e) <= bar for e in of)} of {len(of)}" if np.isfinite(of).all() else "" for of in (told, played)
        ]
        print(f"| {what} | {inside[0]} | {inside[1]} |")


def main(words: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--priority", choices=PRIORITIES, default="normal")
    given = parser.parse_args(words)
    where = given.folder.resolve()
    if given.what == "run":
        measure(where, given.seconds, given.priority)
    report(where, given.refit)
