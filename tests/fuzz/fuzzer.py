"""Damaged files and absurd options for every command, and the rule they must keep: an exit code as documented, one clear line.

``python tests/fuzz/fuzzer.py --cases 20000 --seed 7`` runs many; each case is made from its own number alone, so that
``--only 1234`` repeats one. Each case runs in a copy of a process that has imported everything, within ten seconds of processor
time; a traceback, a crash, a code that is not documented, a message of more than a few lines, a control character in it, a hang,
or a gigabyte of memory is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import random
import resource
import select
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workload.test_formats import FILES

CODES = {0, 2, 3, 4, 5, 6}
LIMIT_S = 10
MOST_BYTES = 1 << 30

WORKLOAD = """# fleetopt-workload: 1
# name: mine
# requests: 1000
# arrival_rate_per_s: 12
# dispersion: 1=2 10=5 60=9
# compressible: conv=1 code=0
tokens,cdf,input_tokens,output_tokens,category
120,0.3,100,20,conv
900,0.7,800,100,code
2400,0.95,2000,400,conv
9000,1,8000,1000,code
"""
TRACE = "timestamp,input_tokens,output_tokens,category\n" + "".join(
    f"{1715300000 + 0.7 * k:.3f},{100 + 37 * (k % 50)},{5 + 11 * (k % 30)},{'chat' if k % 3 else 'code'}\n"
    for k in range(200)
)
JSONL = "".join(
    json.dumps({"timestamp": 1000 * k, "input_length": 50 + 7 * (k % 40), "output_length": 3 + k % 90}) + "\n"
    for k in range(120)
)
CONFIG = """method: mgc
cdf: mine.csv
slo: 20
rate: 40
gpu: [h100, a100]
pools: 2
gammas: [1.0, 1.5]
price: {h100: 2.5}
"""
HOURS = "hour,rate_per_s\n" + "".join(f"{h},{20 + 15 * (h % 7)}\n" for h in range(24))
MODEL = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    },
    indent=1,
)  # fmt: skip
SCRAPE = """# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{le="100"} 10
vllm:request_prompt_tokens_bucket{le="1000"} 90
vllm:request_prompt_tokens_bucket{le="+Inf"} 100
vllm:request_prompt_tokens_sum 40000
vllm:request_prompt_tokens_count 100
vllm:request_generation_tokens_bucket{le="50"} 40
vllm:request_generation_tokens_bucket{le="+Inf"} 100
vllm:request_generation_tokens_sum 9000
vllm:request_generation_tokens_count 100
"""
API = """id: acme
models:
  - id: llama-3.1-8b
    prices: {input_mtok: {base: 0.2, tiers: [{start: 1000, price: 0.4}]}, output_mtok: 0.4, cache_read_mtok: 0.1}
  - id: llama-3.1-8b-dated
    prices:
      - prices: {input_mtok: 1, output_mtok: 2, requests_kcount: 1}
      - {constraint: {start_date: 2026-01-01}, prices: {input_mtok: 2, output_mtok: 3}}
"""
BATCHES = [
    (n, c, p, t)
    for n, c in ((1, 300), (4, 900), (16, 500), (48, 1200), (64, 250))
    for p, t in ((0, 0), (1, 512), (2, 900))
]
POINTS = (
    "gpu,model,tp,n_decode,decode_ctx,prefill_seqs,prefill_new_tokens_per_seq,prefill_past_tokens,measured_ms\n"
    + "".join(
        f"a100,llama-3.1-8b,1,{n},{c},{p},{t},0,{9 + 0.02 * n + 1e-4 * n * c + 0.055 * p * t:.3f}\n"
        for n, c, p, t in BATCHES
    )
)
PRICES = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
gpu_1x,H100,1.0,26.0,225.0,3.29,us-west-1,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 81920}}]}",
a2-1g,A100,1.0,12.0,85.0,3.67,us-central1,"{'Gpus': [{'Name': 'A100', 'Count': 1, 'MemoryInfo': {'SizeInMiB': 40960}}]}",1.1
"""
HASHES = "".join(
    json.dumps(
        {
            "timestamp": 900 * k,
            "input_length": 1024 + 512 * (k % 3),
            "output_length": 9 + k,
            "hash_ids": [1, 50 + k // 3, 90 + k],
        }
    )
    + "\n"
    for k in range(30)
)
SCALER = """apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: fleet-pool}
spec:
  minReplicas: 1
  maxReplicas: 9
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 2, periodSeconds: 60}]}
    scaleDown: {stabilizationWindowSeconds: 300, policies: [{type: Percent, value: 50, periodSeconds: 120}]}
  metrics:
    - type: Pods
      pods: {metric: {name: "vllm:num_requests_running"}, target: {type: AverageValue, averageValue: "12"}}
"""


def answers() -> str:
    """What Prometheus keeps of two replicas."""
    result = []

    def say(name: str, pod: int, per_s: float, gauge: bool = False, **labels: str) -> None:
        metric = {"__name__": f"vllm:{name}", "pod": f"fleet-pool-{pod}", "instance": f"10.0.0.{pod}:8000", **labels}
        values = [[1.7e9 + 60 * k, str(per_s if gauge else round(60 * k * per_s, 3))] for k in range(31)]
        result.append({"metric": metric, "values": values})

    for pod in (1, 2):
        say("request_success_total", pod, 6.0)
        say("num_requests_running", pod, 9.0, True)
        for name, ends in (("request_prompt_tokens", (200, 2000)), ("time_to_first_token_seconds", (0.1, 1))):
            for end, share in zip((*ends, "+Inf"), (0.4, 0.9, 1.0), strict=True):
                say(f"{name}_bucket", pod, 6.0 * share, le=str(end))
            say(f"{name}_sum", pod, 6.0 * ends[1] / 2)
            say(f"{name}_count", pod, 6.0)
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}, indent=0)


NASTY = (
    "nan", "inf", "-inf", "-1", "0", "1e999", "1e-999", "9" * 400, "0x10", "1_000", "١٢", "null", "~", "true", "yes", "[]", "{}",
    "[1, 2]", "2024-01-01", "2024-13-45T99:99:99", "''", '"', "'", "&a *a", "*b", "<<: *b", "!!python/object:os.system x",
    "!!binary aGk=", "\x00", "\x1b[2J", "\ud800", "\ufeff", "\u202e", "a\nb", "a\rb", "\t", "%", "12%", "1e5%", "5ms", "-5ms",
    "5 parsecs", "1Ki", "1KiKi", "h100=", "=3", "h100=3=4", "h100=1e9", ",", ",,", ";", "#", ": ", "- - - -", "{" * 70, "[" * 5000,
    "../../out/passwd", "/dev/null", "/dev/full", ".", "-", "--", "-o", "$HOME", "~root", "http://", "https://a:b@127.0.0.1:1/x",
    "a" * 5000, "Infinity", "-0", "1.7976931348623157e308", "4.9e-324", "99999999999999999999",
)  # fmt: skip
"""What people, programs and attackers write where something else is meant."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: arguments, and files by name."""

    arguments: list[str]
    files: dict[str, bytes]


def damaged(text: str, dice: random.Random) -> bytes:
    """A file with up to three faults."""
    data = text
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        lines = data.split("\n")
        place = dice.randrange(max(len(lines), 1))
        kind = dice.randrange(9)
        if kind == 0:
            lines[place] = dice.choice(NASTY)
        elif kind == 1:
            lines.insert(place, lines[dice.randrange(len(lines))])
        elif kind == 2:
            del lines[place]
        elif kind == 3:  # one value of a line
            marks = [i for i, c in enumerate(lines[place]) if c in ",:= ["]
            at = dice.choice(marks) + 1 if marks else 0
            end = next((i for i in marks if i > at), len(lines[place]))
            lines[place] = lines[place][:at] + dice.choice(NASTY) + lines[place][end:]
        elif kind == 4:
            cut = dice.randrange(len(data) + 1)
            lines = data[:cut].split("\n")
        elif kind == 5:
            lines = lines[: place + 1] + [lines[place]] * dice.choice((3, 2000)) + lines[place + 1 :]
        elif kind == 6 and lines[place]:
            at = dice.randrange(len(lines[place]))
            lines[place] = (
                lines[place][:at]
                + chr(dice.choice((0, 27, 34, 39, 44, 91, 123, 0xD800, 0x202E, 0x1F600)))
                + lines[place][at + 1 :]
            )
        elif kind == 7:
            lines[place] += dice.choice((" ", ",", ":", "\r")) + dice.choice(NASTY)
        else:
            lines = list(reversed(lines))
        data = "\n".join(lines)
    raw = data.encode("utf-8", "surrogatepass")
    packed = dice.randrange(30)
    if packed == 0:
        raw = gzip.compress(raw)
    elif packed == 1:
        raw = gzip.compress(raw)[:-9]
    elif packed == 2:
        raw = data.encode("utf-16", "surrogatepass")
    elif packed == 3:
        raw = bytes(dice.randrange(256) for _ in range(dice.randrange(400)))
    return raw


def options_of(command: str) -> list[str]:
    """Flags of a command that take a value or none, as its help lists them."""
    import typer

    from planner.cli.main import app

    found = typer.main.get_command(app)
    context = typer.Context(found)  # type: ignore[arg-type]
    for name in command.split():
        found = found.get_command(context, name)  # type: ignore[attr-defined]
    return sorted({flag for p in found.params for flag in p.opts if flag.startswith("--")} - {"--help"})


QUICK = ["--method", "mgc", "--slo", "20"]
SESSIONS = "turns=4,first=500,growth=200,osl=100,gap=30s"
COMMANDS: tuple[tuple[str, list[str], tuple[str, ...]], ...] = (
    ("plan", ["plan", "--cdf", "mine.csv", *QUICK], ("mine.csv",)),
    ("plan", ["plan", "--config", "config.yaml"], ("config.yaml", "mine.csv")),
    ("plan", ["plan", "--cdf", "trace.csv", "--method", "occupancy", "--slo", "20"], ("trace.csv",)),
    ("plan", ["plan", "--cdf", "mine.csv", "--model", "model.json", *QUICK], ("model.json", "mine.csv")),
    ("evaluate", ["evaluate", "plan.yaml"], ("plan.yaml",)),
    ("what-if", ["what-if", "plan.yaml", "--set", "rate=10,20"], ("plan.yaml",)),
    ("schedule", ["schedule", "plan.yaml", "--hours", "hours.csv"], ("hours.csv", "plan.yaml")),
    ("cost", ["cost", "plan.yaml", "--hours", "hours.csv", "--api-prices", "api.yaml"], ("api.yaml", "hours.csv", "plan.yaml")),
    ("workload import", ["workload", "import", "trace.csv"], ("trace.csv",)),
    ("workload import", ["workload", "import", "log.jsonl"], ("log.jsonl",)),
    ("workload import", ["workload", "import", "scrape.txt"], ("scrape.txt",)),
    ("workload show", ["workload", "show", "mine.csv"], ("mine.csv",)),
    ("workload compare", ["workload", "compare", "mine.csv", "trace.csv"], ("mine.csv", "trace.csv")),
    ("workload mix", ["workload", "mix", "mine.csv=2", "trace.csv=1"], ("mine.csv", "trace.csv")),
    ("workload sql", ["workload", "sql", "--dialect", "duckdb", "--table", "logs"], ()),
    ("model show", ["model", "show", "model.json"], ("model.json",)),
    ("gpu show", ["gpu", "show", "h100"], ()),
    ("stability", ["stability", "--cdf", "mine.csv"], ("mine.csv",)),
    ("batching", ["batching", "--cdf", "mine.csv"], ("mine.csv",)),
    ("wait", ["wait", "--cdf", "trace.csv"], ("trace.csv",)),
    ("calibrate", ["calibrate", "--from", "points.csv", "-o", "made.yaml", "--force"], ("points.csv",)),
    ("profile show", ["profile", "show", "profile.yaml"], ("profile.yaml",)),
    ("profile compare", ["profile", "compare", "profile.yaml", "fleetopt-paper"], ("profile.yaml",)),
    ("profile refit", ["profile", "refit", "profile.points.jsonl", "-o", "made.yaml", "--force"], ("profile.points.jsonl",)),
    ("profile share", ["profile", "share", "profile.yaml"], ("profile.yaml", "profile.points.jsonl")),
    ("plan", ["plan", "--cdf", "mine.csv", "--profile", "profile.yaml", *QUICK], ("profile.yaml",)),
    ("plan", ["plan", "--cdf", "mine.csv", "--method", "occupancy", "--slo", "20", "--tpot", "100ms", "--shape", "disaggregated",
              "--no-options"], ("mine.csv",)),
    ("plan", ["plan", "--cdf", SESSIONS, "--method", "occupancy", "--slo", "20", "--rate", "2", "--no-options"], ()),
    ("plan", ["plan", "--cdf", "hashes.jsonl", "--method", "occupancy", "--slo", "20", "--no-options"], ("hashes.jsonl",)),
    ("init", ["init", "--cdf", "mine.csv", "--slo", "20"], ("mine.csv",)),
    ("report", ["report", "plan.yaml", "--options-seconds", "0"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml", "--to", "compose"], ("plan.yaml",)),
    ("autoscale", ["autoscale", "plan.yaml", "--hours", "hours.csv", "--policy", "scaler.yaml"],
     ("scaler.yaml", "hours.csv", "plan.yaml")),
    ("check", ["check", "plan.yaml", "--prometheus", "answers.json"], ("answers.json", "plan.yaml")),
    ("simulate", ["simulate", "plan.yaml", "--requests", "200", "--seeds", "1"], ("plan.yaml",)),
    ("simulate", ["simulate", "--policies", "wait,mixed", "--rates", "2", "--requests", "100", "-w", "mine.csv"], ("mine.csv",)),
    ("prices import", ["prices", "import", "vms.csv", "--vendor", "acme", "--date", "2026-10-01"], ("vms.csv",)),
    ("prices show", ["prices", "show"], ()),
    ("gpu list", ["gpu", "list"], ()),
    ("model list", ["model", "list"], ()),
    ("workload list", ["workload", "list"], ()),
    ("compress text", ["compress", "text", "log.txt", "--budget", "40"], ("log.txt",)),
    ("workload import", ["workload", "import", "hashes.jsonl"], ("hashes.jsonl",)),
)  # fmt: skip
"""(command whose options are tried, arguments that work, files whose damage is tried)."""

SOUND = {
    "mine.csv": WORKLOAD, "trace.csv": TRACE, "log.jsonl": JSONL, "config.yaml": CONFIG, "hours.csv": HOURS, "model.json": MODEL,
    "scrape.txt": SCRAPE, "points.csv": POINTS, "api.yaml": API, "vms.csv": PRICES, "hashes.jsonl": HASHES, "scaler.yaml": SCALER,
    "answers.json": answers(), "log.txt": "The cache is full. " * 30 + "Nothing waits.\n",
}  # fmt: skip


SLOW = frozenset(
    (
        "--server",
        "--verify",
        "--requests",
        "--max-requests",
        "--seeds",
        "--max-seconds",
        "--max-evaluations",
        "--launch",
    )
)
"""What would wait for a server, a device or hours is left alone."""


class Maker:
    """Makes cases by number."""

    def __init__(self) -> None:
        self._flags: dict[str, list[str]] = {}
        self.sound = dict(SOUND)
        self._formats = [text for text, _, _ in FILES.values()]
        made = ("plan.yaml", "profile.yaml", "profile.points.jsonl")
        with in_folder(self.sound) as folder:
            invoke(["plan", "--cdf", "mine.csv", *QUICK, "-o", "plan.yaml"])
            invoke(["calibrate", "--from", "points.csv", "-o", "profile.yaml", "--force"])
            self.sound |= {name: (folder / name).read_text() for name in made}

    def case(self, seed: int, number: int) -> Case:
        """The case of that number."""
        dice = random.Random(seed * 1_000_003 + number)
        command, arguments, targets = dice.choice(COMMANDS)
        arguments = list(arguments)
        files = {name: text.encode() for name, text in self.sound.items()}
        if command == "workload import" and dice.random() < 0.5:
            # a file as another tool writes it
            files[targets[0]] = damaged(dice.choice(self._formats), dice)
        elif targets and dice.random() < 0.7:
            victim = targets[0] if dice.random() < 0.8 else dice.choice(targets)
            files[victim] = damaged(self.sound[victim], dice)
        elif dice.random() < 0.2:
            places = [k for k, a in enumerate(arguments) if not a.startswith("-") and k >= len(command.split())]
            if places:
                arguments[dice.choice(places)] = dice.choice(NASTY).replace("\x00", "0")
        else:
            for _ in range(dice.choice((1, 1, 2))):
                arguments += self._option(command, dice)
        return Case(arguments, files)

    def _option(self, command: str, dice: random.Random) -> list[str]:
        if command not in self._flags:
            try:
                self._flags[command] = options_of(command)
            except (AttributeError, KeyError):
                self._flags[command] = []
        flags = self._flags[command] or ["--format"]
        value = dice.choice(NASTY)
        value = value.replace("\x00", "0")  # no argument can hold one
        if dice.random() < 0.3:
            value = (
                dice.choice(("h100", "1", "2", "0.5", "azure", "mixed", "10%", "4096", "json"))
                + dice.choice(("", ",", "="))
                + value
            )
        flag = dice.choice(flags)
        return [] if flag in SLOW else [flag, value] if dice.random() < 0.9 else [flag]


@contextlib.contextmanager
def in_folder(files: dict[str, str] | dict[str, bytes]) -> Iterator[Path]:
    """An empty folder with these files, and the way back."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        # nothing of the user's own is read or changed: names that climb two folders stay inside
        folder, own = Path(name) / "at" / "work", Path(name) / "own"
        (Path(name) / "out").mkdir()
        for new in (folder, own):
            new.mkdir(parents=True)
        os.environ |= {"FLEETOPT_PRICES": str(own), "FLEETOPT_PROFILES": str(own)}
        for file, content in files.items():
            (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


class Hang(BaseException):
    """A case took too long."""


def invoke(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a run in this process."""
    from planner.cli.main import run

    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape"), io.StringIO()
    code = 0
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            run(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdin = before
    with contextlib.suppress(ValueError, OSError):
        out.flush()
    written = out.buffer.getvalue() if isinstance(out.buffer, io.BytesIO) and not out.closed else b""
    return code, written.decode("utf-8", "replace"), errors.getvalue()


def fault(case: Case) -> str | None:
    """What is wrong with a run; ``None`` = nothing."""

    def ring(*_: object) -> None:
        raise Hang

    forget_peak()
    with in_folder(case.files) as folder:
        old = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
        # processor time, as others may use the machine too; the clock only for what waits without working
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, 12 * LIMIT_S)
        try:
            code, _, errors = invoke(case.arguments)
        except Hang:
            return f"took more than {LIMIT_S} s"
        except BaseException:
            return "traceback: " + traceback.format_exc().strip().splitlines()[-1] + " | " + where()
        finally:
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0.0)
            for number, handler in old.items():
                signal.signal(number, handler)
        left = [p.name for p in folder.iterdir() if p.name not in case.files and p.name.startswith((".", "tmp"))]
    if code not in CODES:
        return f"exit code {code}: {errors[-300:]!r}"
    if "Traceback (most recent call last)" in errors:
        return f"traceback printed: {errors[-300:]!r}"
    if any(not (c.isprintable() or c in "\n\r") for c in errors):
        return f"control characters in the message: {errors[:300]!r}"
    if code and not errors.strip():
        return f"exit code {code} without a word"
    if left:
        return f"left behind: {left}"
    if not all(stat.S_ISCHR(os.stat(device).st_mode) for device in ("/dev/null", "/dev/full")):
        return "a device is gone"
    if (peak := peak_bytes()) > MOST_BYTES:
        return f"took {peak >> 20} MiB"
    return None


def fault_apart(case: Case) -> str | None:
    """The same of a copy of this process: what a run leaves in memory is not the next one's, and a crash is seen."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, (fault(case) or "").encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        # a hang that no signal ends inside
        if not select.select([told], [], [], 15 * LIMIT_S)[0]:
            os.kill(child, signal.SIGKILL)
        why = told.read().decode()
    status = os.waitpid(child, 0)[1]
    return why or (f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else None)


def forget_peak() -> None:
    """Let the kernel measure this process's memory anew, where it can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Most memory of this process since then [B]."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except OSError:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def where() -> str:
    """File and line of the exception being handled."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [f for f in frames if "/planner/" in f.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def failures(
    seed: int,
    numbers: Iterable[int],
    show: Callable[[str], None] = print,
    judge: Callable[[Case], str | None] = fault,
) -> list[int]:
    """Numbers of the cases that break the rule, each shown with what is wrong."""
    maker, found = Maker(), []
    for number in numbers:
        case = maker.case(seed, number)
        if (why := judge(case)) is not None:
            found.append(number)
            show(f"{seed}/{number}: {' '.join(case.arguments)[:160]!r}: {why}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--only", type=int, help="repeat one case and show what it does")
    given = parser.parse_args()
    if given.only is not None:
        case = Maker().case(given.seed, given.only)
        for name, content in case.files.items():
            if content != SOUND.get(name, "").encode():
                sys.stdout.write(f"--- {name}\n{content[:3000]!r}\n")
        sys.stdout.write(f"{case.arguments}\n{fault(case)}\n")
        with in_folder(case.files):
            sys.stdout.write(f"{invoke(case.arguments)}\n")
        return
    begun, numbers = time.monotonic(), []

    def in_time() -> Iterator[int]:
        for number in range(given.cases):
            if time.monotonic() - begun > given.seconds:
                return
            numbers.append(number)
            yield number

    def show(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def stopped(*_: object) -> None:
        show(f"stopped after {len(numbers):,} cases")
        os._exit(1)

    signal.signal(signal.SIGTERM, stopped)
    # what the commands import is not imported again by every copy
    maker = Maker()
    for _, arguments, _ in COMMANDS:
        with in_folder(maker.sound):
            invoke(arguments)
    found = failures(given.seed, in_time(), show, fault_apart)
    show(f"{len(numbers):,} cases, {len(found)} failures")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
