"""``fleetopt calibrate``: measure this machine or a server, or read measurements; fit; write a profile."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from planner.cli import options as opt
from planner.cli.output import draw, emit, progress_bar, renderer, say
from planner.errors import InputError, refuse_below_1
from planner.units import parse_duration

AS_GIVEN = ("gpu", "tp", "device", "scheduling", "token_budget", "points", "force", "source")
"""Options that are passed on as they are."""

MEASURED = opt.Verb(
    "calibrate",
    "measuring",
    panels={
        "gpu": "What to measure", "server": "A running server", "tp": "What to measure", "device": "This machine",
        "max_seconds": "", "isl": "Files", "scheduling": "A running server", "force": "",
    },
    flags={"gpu": "-g", "model": "-m", "for_plan": "--for"},
    without=("files", "select", "api_key", "start_wait"),
)  # fmt: skip


@opt.asks(MEASURED)
def calibrate(
    model: str | None,
    dp: int | None,
    ep: int | None,
    files: list[Path] | None,
    select: list[str] | None,
    start_wait: str | None,
    engine: str | None,
    pool: str | None,
    name: str | None,
    output: Path | None,
    engine_command: str = "",
    engine_args: str = "",
    api_key_env: str = "OPENAI_API_KEY",
    launch: bool = False,
    dry_run: bool = False,
    write: bool = True,
    output_format: str = "table",
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """Measure how long an iteration takes and write a profile for `plan`.

    On the machine with the GPU: fleetopt calibrate --gpu a100 --model llama-3.1-8b. A running server: --server URL --model
    NAME --gpu h100. Measurements you have: --from result.json --gpu h100 --model llama-3.1-8b.

    Parameters
    ----------
    dry_run
        Print what would be measured or sent, and stop.

    What to measure
    ---------------
    dp
        Copies of the attention in a replica, each of --tp GPUs. Default 1.
    ep
        GPUs of a replica that whole experts are spread over: all, or 1. Default all with --dp, else 1.

    A running server
    ----------------
    api_key_env
        Environment variable with the server's key.
    start_wait
        How long to wait for a server that is starting. Default 30 s, 15 min with --launch.

    An engine to start
    ------------------
    launch
        Start the engine here with the flags of the plan given by --for, measure it, stop it.
    engine
        vllm, sglang or trtllm: the one to start, or the one that runs.
    engine_command
        How it is started here: /path/to/venv/bin/vllm.
    engine_args
        Further flags of the engine, in quotes.
    pool
        Pool of the plan whose engine is measured, where it has several.

    Files
    -----
    files, --from
        File of measurements: vLLM bench serve, GuideLLM, aiperf, inference-perf JSON, or a CSV of iterations or server points.
    select
        Only CSV rows with column=value, e.g. role=fit.

    Output
    ------
    name
        Name of the profile.
    output, -o, --output
        Profile file, or a folder. Default: your profile folder, where `plan` finds it.
    write, --write/--no-write
        Write the profile.
    output_format, --format, -f
        Of the report: table, json, yaml, csv or markdown.
    """
    asked = SimpleNamespace(**given)
    server, served_model = asked.server, asked.served_model_name
    render, seconds = renderer(output_format, None), _time(asked.max_seconds, "--max-seconds")
    limits = ("max_requests", "max_concurrency", "max_input", "max_output", "token_budget", "points")
    refuse_below_1({"--" + of.replace("_", "-"): given[of] for of in limits})
    if seconds is not None and seconds <= 0.0:
        raise InputError("--max-seconds must be positive")
    sources = [name for name, on in (("--server", server), ("--launch", launch), ("--from", files)) if on]
    if len(sources) > 1:
        raise InputError(f"{' and '.join(sources)} are two sources of measurements", "Give one of them.")
    command = shlex.join(["fleetopt", *sys.argv[1:]]) if len(sys.argv) > 1 else "fleetopt calibrate"
    reach = target = start = None
    if server is not None or launch:
        from planner.calibrate.live import Server
        from planner.calibrate.loads import OperatingRange

        if asked.for_plan is None:
            reach = OperatingRange(*(given[f"max_{of}"] for of in ("input", "output", "concurrency", "requests")))
        else:
            reach = OperatingRange.for_plan(asked.for_plan, asked.max_requests, pool)
        silence_s, wait_s = parse_duration(asked.timeout, "--timeout"), _time(start_wait, "--start-wait")
        if server is not None:
            key = os.environ.get(api_key_env) or None
            target = Server(server, served_model or model or "", key, silence_s, 30.0 if wait_s is None else wait_s)
        else:
            start = _launch(asked, model, engine, pool, wait_s, (engine_command, engine_args))
    if dry_run:
        seen = _what_would_be(target, reach, files or [], seconds, model, given)
        return emit(seen if start is None else shlex.join(start.line(8000)), None)
    from planner.calibrate.files import Assumed
    from planner.calibrate.run import calibrate as run

    with progress_bar("measuring") as show:
        result = run(
            server=target, launch=start, files=files or (), reach=reach, where=opt.pairs(select, "--select", "column=value"),
            model=model if served_model or (target is None and start is None) else None,
            assumed=Assumed(asked.isl, asked.osl, asked.concurrency), max_seconds=seconds, command=command,
            progress=show, dp=dp, ep=ep, engine=engine, **{of: given[of] for of in AS_GIVEN},
        )  # fmt: skip
    if name is not None:
        result = _renamed(result, name)
    several = len(result.calibrations) > 1
    text = render(result if several or output_format in ("table", "markdown") else result.only)
    if write:
        say(_written(result, output))
    emit(text, None)
    draw(result, plot)
    for calibration in result.calibrations:
        label = f"{calibration.profile.name}: " if several else ""
        say(f"note: {label}{line}" for line in calibration.notes)
        say(f"warning: {label}{line}" for line in calibration.warnings)


def _time(given: str | None, option: str) -> float | None:
    """A time that may be left out [s]."""
    return None if given is None else parse_duration(given, option)


def _launch(
    asked: Any, model: str | None, engine: str | None, pool: str | None, wait_s: float | None, words: tuple[str, str]
) -> Any:
    """What is to be started, from the options."""
    from planner.calibrate.launch import Launch, plan_settings
    from planner.machine.engines import DEFAULT_ENGINE
    from planner.machine.engines import engine as find_engine

    if model is None:
        raise InputError("which model is the engine to load?", "Give --model: a folder with config.json, or a name.")
    settings = {} if asked.for_plan is None else plan_settings(asked.for_plan, pool)
    own = {"tensor_parallel_size": asked.tp, "max_num_batched_tokens": asked.token_budget}
    settings |= {k: value for k, value in own.items() if value is not None}
    try:
        command, more = map(shlex.split, words)
    except ValueError as error:
        raise InputError(f"--engine-command, --engine-args: {error}") from None
    patience = {} if wait_s is None else {"wait_s": wait_s}
    found = find_engine(engine or DEFAULT_ENGINE)
    return Launch(found, model, asked.served_model_name or "", settings, tuple(command), tuple(more), **patience)


def _what_would_be(
    target: Any, reach: Any, files: list[Path], seconds: float | None, model: str | None, given: Mapping[str, Any]
) -> str:
    """What a dry run prints."""
    if files:
        return "\n".join(f"would read {f}" for f in files)
    if target is not None:
        from planner.calibrate.loads import describe_range
        from planner.calibrate.run import SERVER_SECONDS

        head = f"would send to {target.endpoint} as {target.model or 'the model it serves'!r}:"
        return "\n".join([head, *describe_range(reach, seconds or SERVER_SECONDS)])
    return "\n".join(
        _device_plan(model or "llama-3.1-8b", **{name: given[name] for name in ("gpu", "tp", "device", "points")})
    )


def _device_plan(model: str, gpu: str | None, tp: int | None, device: str, points: int | None) -> Iterator[str]:
    """The batches that would be measured, in their order."""
    from planner.calibrate.microbench import CPU, TINY_MODEL, designed_batches, measuring_order
    from planner.catalog import gpu as find_gpu
    from planner.catalog import model as find_model

    network = TINY_MODEL if model == "tiny" else find_model(model)
    memory = CPU.memory_bytes if device == "cpu" or gpu is None else find_gpu(gpu).memory_bytes
    plan = measuring_order(designed_batches(network, tp=tp or 1, kv_bytes=0.4 * memory, points=points))
    yield f"would measure {network.name} tp {tp or 1} on {'this CPU' if device == 'cpu' else gpu or 'this GPU'}:"
    yield from (f"{run.batch}{' (sentinel)' if run.sentinel else ''}" for run in plan)


def _renamed(result: Any, name: str) -> Any:
    """The one profile of the result under another name."""
    from planner.calibrate.result import CalibrationSet

    if len(result.calibrations) != 1:
        raise InputError(f"--name {name!r} cannot name {len(result.calibrations)} profiles", "Select one group.")
    if not name.strip() or set(name) & set("/\\") or name.startswith("."):
        raise InputError(f"--name {name!r} cannot be the name of a file", "Use letters, digits, dots and dashes.")
    only = result.only
    return CalibrationSet((replace(only, profile=replace(only.profile, name=name)),))


def _written(result: Any, output: Path | None) -> Iterator[str]:
    """Write every profile with its points; lines that say where they are."""
    from planner.catalog.profiles import user_directory
    from planner.shared.paths import refuse_homeless

    several = len(result.calibrations) > 1
    target = output if output is not None else user_directory()
    refuse_homeless(target, "FLEETOPT_PROFILES")
    if output is None or (several and not output.suffix):
        target.mkdir(parents=True, exist_ok=True)
    if several and not target.is_dir():
        raise InputError(f"{target}: {len(result.calibrations)} profiles need a folder", "Give a folder to -o.")
    if not target.parent.is_dir():
        raise InputError(f"{target}: folder {target.parent} does not exist")
    for calibration in result.calibrations:
        written, *others = calibration.save(target)
        points = [f"points in {p.name}" for p in others if p.name.endswith(".points.jsonl")]
        kept = [f"the one before is {p.name}" for p in others if not p.name.endswith(".points.jsonl")]
        yield "; ".join([f"wrote {written}", *points, *kept])
