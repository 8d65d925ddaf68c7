"""All-reduce as engines run it: one process per GPU, torch.distributed, inside a CUDA graph.

Run as a program it is one of these processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from planner.errors import CalibrationError

SIZES = (1, 16, 128, 1024, 8192)
"""Tokens whose hidden states are summed."""

CALLS, REPEATS = 20, 10
"""Calls in a row that are timed together, and how often; the fastest is what the links allow."""

WAIT_S = 120.0
"""Starting the processes included."""


def allreduce_seconds(
    tp: int, hidden: int, *, device: str = "cuda", sizes: tuple[int, ...] = SIZES, wait_s: float = WAIT_S
) -> dict[int, float]:
    """Time of one all-reduce of the hidden states of so many tokens, in the dtype engines sum them in.

    Parameters
    ----------
    tp
        GPUs of the group [GPUs].
    hidden
        Width of a hidden state [values].
    device
        ``cuda`` (NCCL) or ``cpu`` (Gloo, to try the path).
    sizes
        Tokens.
    wait_s
        Bound of it all [s].

    Returns
    -------
    dict
        Tokens -> [s].

    Raises
    ------
    CalibrationError
        When a process fails, ends or does not answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = {"world": tp, "hidden": hidden, "device": device, "store": str(Path(folder) / "store"), "sizes": sizes}
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "planner.calibrate.allreduce", json.dumps({**job, "rank": rank})],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(tp)
        ]  # fmt: skip
        until = time.monotonic() + wait_s
        answers = []
        try:
            for process in running:
                out, told = process.communicate(timeout=max(0.1, until - time.monotonic()))
                if process.returncode != 0:
                    why = told.strip().splitlines()[-1:] or ["it ended without a word"]
                    raise CalibrationError(f"an all-reduce over {tp} processes failed: {why[0][:200]}")
                answers.append(out)
        except subprocess.TimeoutExpired:
            raise CalibrationError(f"an all-reduce over {tp} processes took more than {wait_s:g} s") from None
        finally:
            for process in running:
                with contextlib.suppress(OSError, ValueError), process:
                    process.kill()
    # the group is as fast as its slowest member
    parts = [json.loads(answer) for answer in answers]
    return {size: max(part[str(size)] for part in parts) for size in sizes}


def main() -> None:
    """One process of the group; prints its times as JSON."""
    import torch
    import torch.distributed as distributed

    from planner.calibrate.device import Device

    given = json.loads(sys.argv[1])
    world, rank, machine = given["world"], given["rank"], Device(torch, given["device"])
    if machine.cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if machine.cuda else "gloo", init_method=f"file://{given['store']}", rank=rank, world_size=world
    )
    place = f"cuda:{rank}" if machine.cuda else "cpu"
    ones = torch.ones(8, device=place)
    distributed.all_reduce(ones)
    if not bool((ones == world).all()):
        raise SystemExit("the sum of ones is not the number of processes")
    found = {}
    for tokens in given["sizes"]:
        part = torch.zeros(tokens, given["hidden"], device=place, dtype=torch.bfloat16)

        def call(_: int, part: Any = part) -> None:
            distributed.all_reduce(part)

        # all take part in every call: as many from each, whatever they take
        found[tokens] = machine.seconds(call, CALLS, 0.0, min, REPEATS)
        distributed.barrier()
    print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
