"""A program that behaves like an engine's server: slow to start, tells its settings, serves `FakeEngine`, ends when asked."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from fake_engine import FakeEngine

from planner.machine.iteration import IterationModel


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--served-model-name", default="fake")
    parser.add_argument("--fault", default="")
    parser.add_argument("--child", default="")
    parser.add_argument("--busy", default="", help="file to make once it has had 20 requests")
    parser.add_argument("--pace", type=float, default=1.0)
    given, _ = parser.parse_known_args()
    if given.fault == "broken":
        sys.exit("RuntimeError: no room for the weights at http://me:secret@host/")
    if given.fault == "never":
        time.sleep(60.0)
    if given.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        Path(given.child).write_text(str(child.pid))
    pages = {
        "/health": "",
        "/v1/models": f'{{"data": [{{"id": "{given.served_model_name}", "max_model_len": 2048, "owned_by": "vllm"}}]}}',
    }
    print(f"Chunked prefill is enabled with max_num_batched_tokens={given.max_num_batched_tokens}.", flush=True)
    print("GPU KV cache size: 70,000 tokens", flush=True)
    over = threading.Event()
    signal.signal(signal.SIGTERM, (lambda *_: None) if given.fault == "deaf" else (lambda *_: over.set()))
    truth = IterationModel(t0=2e-3, c=6e-6, h=0.1e-3, g=0.2e-6)
    with FakeEngine(truth, pages=pages, port=given.port, pace=given.pace) as fake:
        until = time.monotonic() + 600.0
        while not over.wait(0.05) and time.monotonic() < until:
            if given.busy and fake.requests >= 20:
                Path(given.busy).touch()


if __name__ == "__main__":
    main()
