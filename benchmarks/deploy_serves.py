"""The command of a rendered compose file, run as a process: does it start and serve?

    python benchmarks/deploy_serves.py FOLDER [SECONDS]

FOLDER holds ``venv/bin/vllm`` (vLLM for CPUs) and ``tiny``, a small model with its config.json. The file is parsed, the first
replica's entry point and command are run on the loopback interface, and one completion is asked for. Prints the time until the
server answered beside what the start-up probe would have waited; gives up after SECONDS (half an hour: on a crowded machine
the server compiles for ten minutes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import yaml

import planner as fo

PORT = "18765"
MOST_S = 1800.0


def main(folder: Path, most_s: float) -> int:
    model = folder / "tiny"
    plan = fo.plan(isl=100, osl=20, rate=1, slo=2.0, model=str(model / "config.json"), gpu="l4", max_model_len=2048)
    document = yaml.safe_load(fo.deploy(plan, "compose", model_id=str(model)).text)
    name, service = next(iter(document["services"].items()))
    words = [*service["entrypoint"], *service["command"]]
    words[words.index("--host") + 1], words[words.index("--port") + 1] = "127.0.0.1", PORT
    print(name, *words)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": "",
    }
    # a CPU build reads the flag of GPU memory as a share of the host's
    words[words.index("--gpu-memory-utilization") + 1] = "0.05"
    started = time.monotonic()
    with open("/dev/null", "w") as silence:
        server = subprocess.Popen(words, env=environment, stdout=silence, stderr=silence, start_new_session=True)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() - started > most_s:
                    print(f"it did not start within {most_s:g} s")
                    return 1
                time.sleep(1.0)
        ready = time.monotonic() - started
        body = json.dumps({"model": str(model), "prompt": "w1 w2 w3", "max_tokens": 4, "ignore_eos": True}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            used = json.load(answer)["usage"]
        print(f"served after {ready:.0f} s (the health check allows {service['healthcheck']['start_period']}): {used}")
        return 0 if used["completion_tokens"] == 4 else 1
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else MOST_S))
