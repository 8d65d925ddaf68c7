"""More client processes than one, for a server that one cannot keep up with.

Each process has a share of a load's workers. Lines go both ways: a process says ``ready``, gets what to do, says ``ramped`` when
all its workers have a first token and ``done`` when they have sent their share, and answers ``stop``, or the end of its input, with
what it saw. Clocks are those of the machine, the same for all.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import IO, Any

from planner.calibrate.live import ENDING_S, Crew, Dialect, Load, Sent, Server
from planner.calibrate.window import Stream
from planner.errors import CalibrationError

STARTING_S = 30.0
"""How long a process may take to start [s]."""


def send_from_processes(
    server: Server, dialect: Dialect, load: Load, seed: int, until: float, window_s: float, processes: int
) -> Sent:
    """Send one load from several processes, and end them whatever happens.

    Parameters
    ----------
    server, dialect, load, seed, until, window_s
        As :class:`planner.calibrate.live.Crew` and its ``run``.
    processes
        How many, at most one per worker.

    Raises
    ------
    CalibrationError
        A process does not start, or ends without an answer.
    """
    teams = [range(k, load.concurrency, processes) for k in range(min(processes, load.concurrency))]
    told: queue.Queue[tuple[int, str]] = queue.Queue()
    heard: dict[str, int] = {}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "planner.calibrate.client_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            # Ctrl-C is for us: they are told to stop
            start_new_session=True,
        )
        for _ in teams
    ]  # fmt: skip
    listeners = [
        threading.Thread(target=_listen, args=(k, process.stdout, told), daemon=True)
        for k, process in enumerate(running)
    ]
    try:
        for listener in listeners:
            listener.start()
        _hear(told, heard, "ready", len(teams), time.monotonic() + STARTING_S, must=True)
        common = {
            "server": asdict(server),
            "dialect": asdict(dialect),
            "load": asdict(load),
            "seed": seed,
            "until": until,
        }
        for process, places in zip(running, teams, strict=True):
            _say(process, json.dumps({**common, "places": list(places)}))
        interrupted = False
        try:
            if _hear(told, heard, "ramped", len(teams), until):
                _hear(told, heard, "done", len(teams), min(until, time.monotonic() + window_s))
        except KeyboardInterrupt:
            interrupted = True
        for process in running:
            _say(process, "stop")
        answers = _hear(told, heard, "{", len(teams), time.monotonic() + ENDING_S + STARTING_S, must=True)
    finally:
        for process in running:
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        for listener in listeners:
            listener.join(ENDING_S)
    parts = [json.loads(line) for line in answers]
    return Sent(
        [Stream(**stream) for part in parts for stream in part["streams"]],
        [reason for part in parts for reason in part["reasons"]],
        sum(part["done"] for part in parts),
        [part["cpu_s"] for part in parts],
        interrupted,
    )


def _listen(number: int, source: IO[str] | None, told: queue.Queue[tuple[int, str]]) -> None:
    """Pass on the lines of a process; an empty one is its end."""
    if source is not None:
        with source:
            for line in source:
                told.put((number, line.rstrip("\n")))
    told.put((number, ""))


def _say(process: subprocess.Popen[str], line: str) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()


def _hear(
    told: queue.Queue[tuple[int, str]], heard: dict[str, int], start: str, count: int, until: float, must: bool = False
) -> list[str]:
    """A line that starts so from each of `count` processes, or nothing when the time is over first; all lines go to `heard`."""
    while len(found := [line for line in heard if line.partition(" ")[2].startswith(start)]) < count:
        try:
            number, line = told.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            if must:
                raise CalibrationError(
                    "a client process does not answer", "Measure with fewer requests in flight."
                ) from None
            return []
        if not line:
            if any(answer.startswith(f"{number} {{") for answer in heard):
                # it has answered; another one has not yet
                continue
            raise CalibrationError("a client process ended by itself", "Measure with fewer requests in flight.")
        heard[f"{number} {line}"] = number
    return [line.partition(" ")[2] for line in sorted(found, key=heard.__getitem__)]


def main() -> None:
    """One process."""
    print("ready", flush=True)
    given: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if not given:
        return
    crew = Crew(
        Server(**given["server"]), Dialect(**given["dialect"]), Load(**given["load"]), given["seed"], given["until"],
        given["places"], lambda: print("ramped", flush=True), lambda: print("done", flush=True),
    )  # fmt: skip
    started = time.process_time()
    crew.start()
    sys.stdin.readline()
    crew.end()
    with crew.lock:
        seen = {
            "streams": [asdict(s) for s in crew.streams],
            "reasons": list(crew.reasons),
            "done": crew.done,
            "cpu_s": time.process_time() - started,
        }
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
