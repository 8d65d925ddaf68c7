"""``fleetopt calibrate``: measure this machine or a server, or read measurements; fit; write a profile."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from planner.cli import options as opt

if TYPE_CHECKING:
    from planner.calibrate.launch import Launch
    from planner.calibrate.live import Server
    from planner.calibrate.loads import OperatingRange
    from planner.calibrate.result import CalibrationSet

SOURCE = "What to measure"
MACHINE = "This machine"
SERVER = "A running server"
LAUNCH = "An engine to start"
FILES = "Files"


def calibrate(
    gpu: Annotated[
        str | None, opt.told("GPU the measurements are of; checked on this machine.", "--gpu", "-g", panel=SOURCE)
    ] = None,
    model: Annotated[
        str | None,
        opt.told(
            "Model name, folder or config.json, or the server's name for it; `tiny` with --device cpu.",
            "--model",
            "-m",
            panel=SOURCE,
        ),
    ] = None,
    tp: Annotated[int | None, opt.told("GPUs per replica. Default 1.", panel=SOURCE)] = None,
    server: Annotated[
        str | None, opt.told("Address of an OpenAI-compatible server: http://host:8000.", panel=SERVER)
    ] = None,
    served_model: Annotated[
        str | None,
        opt.told(
            "The server's name for the model, where --model is another. Default: what it serves.",
            "--served-model-name",
            panel=SERVER,
        ),
    ] = None,
    launch: Annotated[
        bool,
        opt.told(
            "Start the engine here with the flags of the plan given by --for, measure it, stop it.",
            "--launch",
            panel=LAUNCH,
        ),
    ] = False,
    engine: Annotated[
        str | None, opt.told("vllm, sglang or trtllm: the one to start, or the one that runs.", panel=LAUNCH)
    ] = None,
    engine_command: Annotated[str, opt.told("How it is started here: /path/to/venv/bin/vllm.", panel=LAUNCH)] = "",
    engine_args: Annotated[str, opt.told("Further flags of the engine, in quotes.", panel=LAUNCH)] = "",
    pool: Annotated[
        str | None, opt.told("Pool of the plan whose engine is measured, where it has several.", panel=LAUNCH)
    ] = None,
    files: Annotated[
        list[Path] | None,
        opt.told(
            "File of measurements: vLLM bench serve, GuideLLM, aiperf, inference-perf JSON, or a CSV of "
            "iterations or server points. Repeat.",
            "--from",
            panel=FILES,
        ),
    ] = None,
    select: Annotated[
        list[str] | None, opt.told("Only CSV rows with column=value, e.g. role=fit. Repeat.", panel=FILES)
    ] = None,
    isl: Annotated[float | None, opt.told("Mean prompt length, where a file does not say it.", panel=FILES)] = None,
    osl: Annotated[float | None, opt.told("Mean answer length, where a file does not say it.", panel=FILES)] = None,
    concurrency: Annotated[
        float | None,
        opt.told(
            "Requests in flight, or sequences a full server runs at once, where a file does not say it.", panel=FILES
        ),
    ] = None,
    source: Annotated[str, opt.told("Where the files come from, with licence; kept in the profile.", panel=FILES)] = "",
    device: Annotated[str, opt.told("cuda, or cpu to try the whole path without a GPU.", panel=MACHINE)] = "cuda",
    points: Annotated[
        int | None,
        opt.told(
            "Batches to measure (default 24), or to use of each group of a file, those that tell most (default all).",
            panel=MACHINE,
            min=1,
        ),
    ] = None,
    max_seconds: Annotated[
        str | None, opt.told("Bound of the measuring, e.g. 60 or 5min. Default 60 s here, 300 s for a server.")
    ] = None,
    max_requests: Annotated[int, opt.told("Most requests sent to the server.", panel=SERVER, min=1)] = 1000,
    max_concurrency: Annotated[int, opt.told("Most requests in flight.", panel=SERVER, min=1)] = 32,
    for_plan: Annotated[
        Path | None, opt.told("Plan file: measure where that plan will run, not within --max-*.", "--for", panel=SERVER)
    ] = None,
    max_input: Annotated[int, opt.told("Longest prompt, tokens.", panel=SERVER, min=1)] = 4096,
    max_output: Annotated[int, opt.told("Longest answer, tokens.", panel=SERVER, min=1)] = 256,
    api_key_env: Annotated[
        str, opt.told("Environment variable with the server's key.", panel=SERVER)
    ] = "OPENAI_API_KEY",
    start_wait: Annotated[
        str | None,
        opt.told("How long to wait for a server that is starting. Default 30 s, 15 min with --launch.", panel=SERVER),
    ] = None,
    timeout: Annotated[str, opt.told("Longest silence of a request.", panel=SERVER)] = "60s",
    scheduling: Annotated[
        str | None,
        opt.told(
            "mixed: prompts run together with decodes (vLLM V1); exclusive: they stall them. Default: the "
            "engine's, or what predicts left-out lengths better.",
            panel=SERVER,
        ),
    ] = None,
    token_budget: Annotated[
        int | None,
        opt.told("The server's tokens per iteration. Default: what it says, or what fits best.", panel=SERVER, min=1),
    ] = None,
    force: Annotated[
        bool, opt.told("Write a profile that fails its checks; measure a GPU that was not named.", "--force")
    ] = False,
    dry_run: Annotated[bool, opt.told("Print what would be measured or sent, and stop.", "--dry-run")] = False,
    name: Annotated[str | None, opt.told("Name of the profile.", panel=opt.OUTPUT)] = None,
    output: Annotated[
        Path | None,
        opt.told(
            "Profile file, or a folder. Default: your profile folder, where `plan` finds it.",
            "-o",
            "--output",
            panel=opt.OUTPUT,
        ),
    ] = None,
    write: Annotated[bool, opt.told("Write the profile.", "--write/--no-write", panel=opt.OUTPUT)] = True,
    plot: opt.Plot = None,
    output_format: Annotated[
        str, opt.told("Of the report: table, json, yaml, csv or markdown.", "--format", "-f", panel=opt.OUTPUT)
    ] = "table",
) -> None:
    """Measure how long an iteration takes and write a profile for `plan`.

    On the machine with the GPU: fleetopt calibrate --gpu a100 --model llama-3.1-8b. A running server: --server URL --model
    NAME --gpu h100. Measurements you have: --from result.json --gpu h100 --model llama-3.1-8b.
    """
    from planner.cli.output import draw, emit, say
    from planner.errors import InputError
    from planner.units import parse_duration

    report = _report(output_format)
    seconds = None if max_seconds is None else parse_duration(max_seconds, "--max-seconds")
    if seconds is not None and seconds <= 0.0:
        raise InputError("--max-seconds must be positive")
    given = [name for name, on in (("--server", server), ("--launch", launch), ("--from", files)) if on]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are two sources of measurements", "Give one of them.")
    command = shlex.join(["fleetopt", *sys.argv[1:]]) if len(sys.argv) > 1 else "fleetopt calibrate"
    reach = target = start = None
    if server is not None or launch:
        from planner.calibrate.live import Server
        from planner.calibrate.loads import OperatingRange

        reach = (
            OperatingRange(max_input, max_output, max_concurrency, max_requests)
            if for_plan is None
            else OperatingRange.for_plan(for_plan, max_requests, pool)
        )
        silence_s = parse_duration(timeout, "--timeout")
        wait_s = None if start_wait is None else parse_duration(start_wait, "--start-wait")
        if server is not None:
            key = os.environ.get(api_key_env) or None
            target = Server(
                server, served_model or model or "", key, silence_s, 30.0 if wait_s is None else wait_s
            )  # fmt: skip
        else:
            start = _launch(
                engine, model, served_model, for_plan, pool, tp, token_budget, engine_command, engine_args, wait_s
            )
    if dry_run and start is not None:
        emit(shlex.join(start.line(8000)), None)
        return
    if dry_run:
        emit(_what_would_be(target, reach, files or [], seconds, model, gpu, tp, device, points), None)
        return
    from planner.calibrate.load_generators import Assumed
    from planner.calibrate.run import calibrate as run

    with _progress("measuring") as show:
        result = run(
            server=target, launch=start, files=files or (), gpu=gpu, tp=tp, engine=engine,
            model=model if served_model or (target is None and start is None) else None,
            device=device, reach=reach, scheduling=scheduling, token_budget=token_budget, where=_pairs(select or []),
            points=points, assumed=Assumed(isl, osl, concurrency), max_seconds=seconds, force=force, command=command,
            source=source, progress=show,
        )  # fmt: skip
    if name is not None:
        result = _renamed(result, name)
    text = report(result)
    if write:
        say(_written(result, output))
    emit(text, None)
    draw(result, plot)
    for calibration in result.calibrations:
        label = f"{calibration.profile.name}: " if len(result.calibrations) > 1 else ""
        say(f"note: {label}{line}" for line in calibration.notes)
        say(f"warning: {label}{line}" for line in calibration.warnings)


def _launch(
    engine: str | None,
    model: str | None,
    served_model: str | None,
    for_plan: Path | None,
    pool: str | None,
    tp: int | None,
    token_budget: int | None,
    command: str,
    arguments: str,
    wait_s: float | None,
) -> Launch:
    """What is to be started, from the options."""
    from planner.calibrate.launch import Launch, plan_settings
    from planner.engines import DEFAULT_ENGINE
    from planner.engines import engine as find_engine
    from planner.errors import InputError

    if model is None:
        raise InputError("which model is the engine to load?", "Give --model: a folder with config.json, or a name.")
    settings = plan_settings(for_plan, pool) if for_plan is not None else {}
    settings |= {k: float(v) for k, v in (("tp", tp), ("token_budget", token_budget)) if v is not None}
    try:
        words, more = shlex.split(command), shlex.split(arguments)
    except ValueError as error:
        raise InputError(f"--engine-command, --engine-args: {error}") from None
    patience = {} if wait_s is None else {"wait_s": wait_s}
    return Launch(
        find_engine(engine or DEFAULT_ENGINE), model, served_model or "", settings, tuple(words), tuple(more), **patience
    )  # fmt: skip


def _what_would_be(
    target: Server | None,
    reach: OperatingRange | None,
    files: list[Path],
    seconds: float | None,
    model: str | None,
    gpu: str | None,
    tp: int | None,
    device: str,
    points: int | None,
) -> str:
    """What a dry run prints."""
    if files:
        return "\n".join(f"would read {f}" for f in files)
    if target is not None and reach is not None:
        from planner.calibrate.loads import describe_range
        from planner.calibrate.run import SERVER_SECONDS

        head = f"would send to {target.endpoint} as {target.model or 'the model it serves'!r}:"
        return "\n".join([head, *describe_range(reach, seconds or SERVER_SECONDS)])
    return _device_plan(model or "llama-3.1-8b", gpu, tp or 1, device, points or 24)


def _report(output_format: str) -> Callable[[CalibrationSet], str]:

    from planner.cli.output import renderer

    render = renderer(output_format, None)
    if output_format in ("table", "markdown"):
        return render
    return lambda result: render(result.calibrations[0] if len(result.calibrations) == 1 else result)


def _pairs(texts: list[str]) -> dict[str, str]:
    from planner.errors import InputError

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--select {text!r}: expected column=value, e.g. role=fit")
        pairs[key.strip()] = value.strip()
    return pairs


def _device_plan(model: str, gpu: str | None, tp: int, device: str, points: int) -> str:
    """The batches that would be measured, in their order."""
    from planner.calibrate.design import designed_batches, measuring_order
    from planner.calibrate.microbench import CPU, TINY_MODEL
    from planner.catalog import gpu as find_gpu
    from planner.catalog import model as find_model

    network = TINY_MODEL if model == "tiny" else find_model(model)
    memory = CPU.memory_bytes if device == "cpu" or gpu is None else find_gpu(gpu).memory_bytes
    plan = measuring_order(designed_batches(network, tp=tp, kv_bytes=0.4 * memory, points=points))
    lines = [f"would measure {network.name} tp {tp} on {'this CPU' if device == 'cpu' else gpu or 'this GPU'}:"]
    return "\n".join([*lines, *(f"{run.batch}{' (sentinel)' if run.sentinel else ''}" for run in plan)])


def _renamed(result: CalibrationSet, name: str) -> CalibrationSet:
    """The one profile of the result under another name."""
    from dataclasses import replace

    from planner.calibrate.result import CalibrationSet
    from planner.errors import InputError

    if len(result.calibrations) != 1:
        raise InputError(f"--name {name!r} cannot name {len(result.calibrations)} profiles", "Select one group.")
    if not name.strip() or set(name) & set("/\\") or name.startswith("."):
        raise InputError(f"--name {name!r} cannot be the name of a file", "Use letters, digits, dots and dashes.")
    only = result.only
    return CalibrationSet((replace(only, profile=replace(only.profile, name=name)),))


def _written(result: CalibrationSet, output: Path | None) -> list[str]:
    """Write every profile with its points; lines that say where they are."""
    from planner.catalog.profiles import user_directory
    from planner.errors import InputError
    from planner.paths import refuse_homeless

    several = len(result.calibrations) > 1
    target = output if output is not None else user_directory()
    refuse_homeless(target, "FLEETOPT_PROFILES")
    if output is None or (several and not output.suffix):
        target.mkdir(parents=True, exist_ok=True)
    if several and not target.is_dir():
        raise InputError(f"{target}: {len(result.calibrations)} profiles need a folder", "Give a folder to -o.")
    if not target.parent.is_dir():
        raise InputError(f"{target}: folder {target.parent} does not exist")
    lines = []
    for calibration in result.calibrations:
        written, *others = calibration.save(target)
        points = [f"points in {p.name}" for p in others if p.name.endswith(".points.jsonl")]
        kept = [f"the one before is {p.name}" for p in others if not p.name.endswith(".points.jsonl")]
        lines.append("; ".join([f"wrote {written}", *points, *kept]))
    return lines


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr where somebody is looking, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda done, total, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what)

        def show(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield show
