"""Start the engine that is to be measured, wait until it answers, read what it says of itself, stop it whatever happens."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from planner.calibrate.http import ASKING_S, Endpoint, HttpError, page, parse_json, without_credentials
from planner.errors import CalibrationError, InputError
from planner.machine.engines import Engine
from planner.plans import plan_document
from planner.shared.documents import printable
from planner.units import number_of

HOST = "127.0.0.1"
STOPPING_S = 20.0
"""How long an engine may take to end by itself before it is killed [s]."""
EVERY_S = 0.5
"""Time between two questions whether it is healthy [s]."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an engine.

    Parameters
    ----------
    engine
        Which one.
    model
        What it loads: a folder with ``config.json``, or a name it can find.
    served_name
        The name it serves it under; the engine's own choice when empty.
    settings
        As a plan's pool has them, in the words of vLLM: ``max_num_seqs`` and others.
    command
        Start of the command line where the engine is not where it usually is: replaces its program.
    arguments
        Further arguments, as they are.
    wait_s
        Longest time until it answers [s].
    """

    engine: Engine
    model: str
    served_name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    wait_s: float = 900.0

    def line(self, port: int) -> list[str]:
        """The whole command line.

        Parameters
        ----------
        port
            It is to listen on.

        Raises
        ------
        InputError
            For an engine that cannot be started from here.

        Examples
        --------
        >>> from planner.machine.engines import engine
        >>> Launch(engine("vllm"), "m", settings={"tensor_parallel_size": 2}).line(8000)[-4:]
        ['--port', '8000', '--tensor-parallel-size', '2']
        """
        if not self.engine.launch:
            raise InputError(
                f"{self.engine.title} cannot be started from here", "Start it, and measure it with --server URL."
            )
        filled = [word.replace("{model}", self.model) for word in self.engine.launch]
        if self.command:
            filled = [*self.command, *filled[1:]]
        filled += ["--host", HOST, "--port", str(port), *self.engine.always, *self.engine.arguments(self.settings)]
        if self.served_name:
            filled += [self.engine.flags["served_name"], self.served_name]
        return [*filled, *self.arguments]


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that answers.

    Parameters
    ----------
    url
        Where.
    said
        What its log says of it: ``token_budget``, ``slots``, ``kv_tokens``, where it does.
    seconds
        How long it took to start [s].
    """

    url: str
    said: Mapping[str, int]
    seconds: float


def plan_pools(path: str | Path, pool: str | None = None) -> list[dict[str, Any]]:
    """The pools of a plan file, or the one of that name.

    Raises
    ------
    InputError
        No plan, or no such pool.
    """
    pools = plan_document(path).get("pools")
    if not isinstance(pools, list) or not all(isinstance(p, dict) for p in pools) or not pools:
        raise InputError(f"{path}: holds no pools")
    chosen = [p for p in pools if pool is None or p.get("name") == pool]
    if not chosen:
        raise InputError(
            f"{path}: there is no pool {pool!r}", f"It has: {', '.join(str(p.get('name')) for p in pools)}."
        )
    return chosen


def plan_settings(path: str | Path, pool: str | None = None) -> dict[str, Any]:
    """The engine settings of a plan's pool.

    Parameters
    ----------
    path
        Plan file.
    pool
        Its name; may be left out where there is one pool.

    Raises
    ------
    InputError
        No plan, no such pool, or several and none named.
    """
    pools = plan_pools(path, pool)
    if len(pools) > 1:
        raise InputError(
            f"{path}: one engine can be started, the plan has {len(pools)} pools",
            f"Name one: --pool {pools[0].get('name')}.",
        )
    chosen = pools[0].get("settings")
    if not isinstance(chosen, dict):
        raise InputError(f"{path}: pools: no settings of an engine in it")
    return {name: value for name, value in chosen.items() if isinstance(value, (int, float, str))}


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.create_server((HOST, 0)) as one:
        return int(one.getsockname()[1])


@contextlib.contextmanager
def launched(launch: Launch) -> Iterator[Running]:
    """The engine while the block runs; it and all it started are gone afterwards, also after Ctrl-C, SIGTERM or an error.

    Parameters
    ----------
    launch
        What to start.

    Raises
    ------
    CalibrationError
        It is not installed, ended by itself, or did not answer in time; with the end of its log.
    """
    port = free_port()
    line = launch.line(port)
    if shutil.which(line[0]) is None:
        raise CalibrationError(
            f"{launch.engine.title} is not installed here: there is no {line[0]!r}",
            f"Install it, or say how it is started here: --engine-command '/path/to/venv/bin/{line[0]}'.",
        )
    # the kernel ends it should this process be killed outright, where the system can
    program = shutil.which("setpriv") if sys.platform == "linux" else None
    guard = [program, "--pdeathsig", "TERM"] if program else []
    handle, name = tempfile.mkstemp(prefix=f"fleetopt-{launch.engine.name}-", suffix=".log")
    log = Path(name)
    started = time.monotonic()
    with _signals_end_it(), os.fdopen(handle, "wb") as out:
        process = subprocess.Popen(
            [*guard, *line], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )  # fmt: skip
        try:
            _wait(process, launch, Endpoint.parse(f"http://{HOST}:{port}"), log, started + launch.wait_s)
            yield Running(f"http://{HOST}:{port}", _said(launch.engine, log), time.monotonic() - started)
        except BaseException:
            _stop(process)
            raise
        _stop(process)
        log.unlink(missing_ok=True)


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """SIGTERM and SIGHUP raise here, so that what was started is stopped; only the main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    chosen = (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
    before: dict[signal.Signals, Any] = {s: signal.signal(s, end) for s in chosen}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _wait(process: subprocess.Popen[bytes], launch: Launch, endpoint: Endpoint, log: Path, until: float) -> None:
    """Until the engine is healthy.

    Raises
    ------
    CalibrationError
        When it ends, or the time does.
    """
    while True:
        with contextlib.suppress(HttpError):
            page(endpoint, "/health", ASKING_S)
            return
        if process.poll() is not None:
            raise CalibrationError(
                f"{launch.engine.title} ended with exit code {process.returncode} before it answered: {_end_of(log)}",
                f"Its log is {log}.",
            )
        if time.monotonic() >= until:
            raise CalibrationError(
                f"{launch.engine.title} did not answer within {launch.wait_s:g} s: {_end_of(log)}",
                f"Give it longer with --start-wait; its log is {log}.",
            )
        time.sleep(EVERY_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine and everything it started: asked first, killed when it does not listen."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        _reached(process.pid, how)
        until = time.monotonic() + STOPPING_S
        while time.monotonic() < until:
            if process.poll() is not None and not _reached(process.pid, 0):
                return
            time.sleep(0.05)


def _reached(group: int, how: int) -> bool:
    """Send a signal (0 = none) to a group of processes; whether there is one."""
    try:
        os.killpg(group, how)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _said(engine: Engine, log: Path) -> dict[str, int]:
    """What the log says of the engine, the last word of it."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = {name: re.findall(pattern, text) for name, pattern in engine.logged.items()}
    return {name: int(matches[-1].replace(",", "")) for name, matches in found.items() if matches}


def _end_of(log: Path) -> str:
    """The last lines of a log that say what went wrong, else the last ones at all, on one line and without credentials."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(?i)error|exception|not found|no module", line)]
    shown = " | ".join(line[-240:] for line in (telling or lines)[-2:])
    return without_credentials(shown) or "it wrote nothing"


MOST_SAMPLES = 100_000
"""Lines of a page of metrics that are read."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

COUNTED: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total"),
    "prefix_queries": (
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total"),
    ),
}
"""What is counted -> its names, of which the first that is there is read."""


Counters = Mapping[str, float | None]
"""One reading of ``/metrics`` by the names of :data:`COUNTED`: requests running, all ranks together, prompt tokens found in the
prefix cache, and looked for, since the start; ``None`` where the server does not count it."""


def cached_share(now: Counters, before: Counters) -> float | None:
    """Share of the prompt tokens between two readings that came from the prefix cache [1].

    >>> cached_share({"prefix_hits": 30, "prefix_queries": 200}, {"prefix_hits": 10, "prefix_queries": 100})
    0.2
    """
    hits, queries = now.get("prefix_hits"), now.get("prefix_queries")
    if hits is None or queries is None:
        return None
    looked_for, found = queries - (before.get("prefix_queries") or 0.0), hits - (before.get("prefix_hits") or 0.0)
    return max(0.0, found / looked_for) if looked_for > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself; ``None`` where it does not.

    Parameters
    ----------
    engine, version
        ``vllm``, ``sglang`` or another name of its own.
    models
        Names it serves.
    kv_tokens
        Size of the KV cache [tokens].
    slots
        Sequences at once at most [sequences].
    token_budget
        Prompt tokens of one iteration at most [tokens].
    prefix_caching
        Whether prompts are kept.
    max_context
        Longest sequence [tokens].
    counters
        The first reading.
    """

    engine: str | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    kv_tokens: int | None = None
    slots: int | None = None
    token_budget: int | None = None
    prefix_caching: bool | None = None
    max_context: int | None = None
    counters: Counters = field(default_factory=dict)


Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]


def parse_metrics(text: str) -> Samples:
    """Samples of a page in Prometheus' text format by name; lines that are none are skipped.

    >>> parse_metrics('# HELP x\\nx{a="1"} 2\\nx{a="2"} 3e0\\n')["x"]
    [({'a': '1'}, 2.0), ({'a': '2'}, 3.0)]
    """
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for number, line in enumerate(text.splitlines()):
        match = _SAMPLE.match(line)
        if match is None or number > MOST_SAMPLES:
            continue
        name, labels, told = match.groups(default="")
        with contextlib.suppress(ValueError):
            found.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(told)))
    return found


def _total(samples: Samples, names: tuple[str, ...]) -> float | None:
    """Sum over the label sets of the first of the names that is there."""
    found = ([v for _, v in samples.get(name, ()) if math.isfinite(v)] for name in names)
    return next((math.fsum(values) for values in found if values), None)


def _page(endpoint: Endpoint, path: str, seconds: float) -> str:
    """A page, empty where there is none: everything here is asked for, nothing is needed."""
    try:
        return page(endpoint, path, seconds).decode("utf-8", "replace")
    except HttpError:
        return ""


def _mapping(endpoint: Endpoint, path: str, seconds: float) -> Mapping[str, Any]:
    data = None
    with contextlib.suppress(HttpError):
        data = parse_json(page(endpoint, path, seconds))
    return data if isinstance(data, Mapping) else {}


def _counters(samples: Samples) -> Counters:
    return {key: _total(samples, names) for key, names in COUNTED.items()}


def read_counters(endpoint: Endpoint, seconds: float = ASKING_S) -> Counters:
    """Read ``/metrics`` now; empty where it is not served.

    Parameters
    ----------
    endpoint
        The server.
    seconds
        Longest wait [s].
    """
    return _counters(parse_metrics(_page(endpoint, "/metrics", seconds)))


def _whole(value: Any) -> int | None:
    """A positive whole number, else ``None``."""
    number = number_of(value)
    return int(number) if number is not None and number > 0.0 else None


def read_facts(endpoint: Endpoint, seconds: float = ASKING_S) -> ServerFacts:
    """Ask ``/v1/models``, ``/version`` and ``/metrics`` (vLLM) and ``/server_info`` (SGLang).

    Parameters
    ----------
    endpoint
        The server.
    seconds
        Longest wait for each [s].

    Returns
    -------
    ServerFacts
        Only what is known by name is taken over; SGLang's page holds keys.
    """
    listed = _mapping(endpoint, "/v1/models", seconds).get("data")
    models = [m for m in listed if isinstance(m, Mapping)] if isinstance(listed, list) else []
    owners = {str(m.get("owned_by", "")).lower() for m in models}
    samples = parse_metrics(_page(endpoint, "/metrics", seconds))
    engine = next((e for e in ("vllm", "sglang") if e in owners or any(n.startswith(e + ":") for n in samples)), None)
    paths = ("/server_info", "/get_server_info") if engine == "sglang" else ("/version",)
    info = next(filter(None, (_mapping(endpoint, path, seconds) for path in paths)), {})
    states, no_radix, version = (info.get(key) for key in ("internal_states", "disable_radix_cache", "version"))
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    labels = next((labels for labels, _ in samples.get("vllm:cache_config_info", ())), {})
    kept = {"true": True, "false": False}.get(str(labels.get("enable_prefix_caching", "")).lower())
    blocks, block = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    counted = max(
        (value for _, value in samples.get("sglang:max_total_num_tokens", ()) if math.isfinite(value)), default=None
    )
    told = [said.get("max_total_num_tokens") for said in (info, state)]
    tokens = [*told, counted, labels.get("kv_cache_size_tokens"), (blocks or 0) * (block or 0)]
    return ServerFacts(
        engine=engine,
        version=printable(version) if isinstance(version, str) else None,
        models=tuple(printable(str(m["id"])) for m in models if m.get("id")),
        kv_tokens=next(filter(None, map(_whole, tokens)), None),
        slots=_whole(info.get("max_running_requests")) or _whole(state.get("max_running_requests")),
        token_budget=_whole(info.get("chunked_prefill_size")),
        prefix_caching=not no_radix if isinstance(no_radix, bool) else kept,
        max_context=next((c for c in (_whole(m.get("max_model_len")) for m in models) if c), None),
        counters=_counters(samples),
    )
