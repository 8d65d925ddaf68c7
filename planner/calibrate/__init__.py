"""What to measure on a user's machine, how, and how to turn it into a profile that says how far to trust it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.shared.arguments import told_types
from planner.units import parse_duration

if TYPE_CHECKING:
    from planner.calibrate.launch import Launch
    from planner.calibrate.result import CalibrationSet


@told_types
def calibrate(
    gpu: str | None = None,
    model: str | None = None,
    *,
    files: str | Path | Sequence[str | Path] | None = None,
    server: str | None = None,
    launch: Launch | None = None,
    tp: int | None = None,
    device: str = "cuda",
    points: int | None = None,
    max_seconds: float | str | None = None,
    select: Mapping[str, str] | None = None,
    isl: float | None = None,
    osl: float | None = None,
    concurrency: float | None = None,
    source: str = "",
    scheduling: str | None = None,
    token_budget: int | None = None,
    served_model_name: str | None = None,
    for_plan: str | Path | None = None,
    max_requests: int = 1000,
    max_concurrency: int = 32,
    max_input: int = 4096,
    max_output: int = 256,
    api_key: str | None = None,
    timeout: float | str = 60.0,
    start_wait: float | str = 30.0,
    force: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CalibrationSet:
    """Iteration-time profiles from measurements in files, from a running server, or of the GPU of this machine.

    Parameters
    ----------
    gpu
        GPU the measurements are of; checked on this machine.
    model
        Model name, folder or config.json, or the server's name for it; `tiny` with --device cpu.
    files
        Files of measurements: vLLM bench serve, GuideLLM, aiperf, inference-perf JSON, or a CSV of iterations or server points.
    server
        Address of an OpenAI-compatible server: http://host:8000.
    launch
        Engine to start here, to measure and to stop (:class:`planner.calibrate.launch.Launch`).
    tp
        GPUs per replica. Default 1.
    device
        cuda, or cpu to try the whole path without a GPU.
    points
        Batches to measure (default 24), or to use of each group of a file, those that tell most (default all).
    max_seconds
        Bound of the measuring, e.g. 60 or 5min. Default 60 s here, 300 s for a server.
    select
        Only rows of files with column=value, e.g. role=fit; in Python a mapping.
    isl
        Mean prompt length, where a file does not say it [tokens].
    osl
        Mean answer length, where a file does not say it [tokens].
    concurrency
        Requests in flight, or sequences a full server runs at once, where a file does not say it.
    source
        Where the files come from, with licence; kept in the profile.
    scheduling
        mixed: prompts run together with decodes (vLLM V1); exclusive: they stall them. Default: the engine's, or what predicts
        left-out lengths better.
    token_budget
        The server's tokens per iteration. Default: what it says, or what fits best.
    served_model_name
        The server's name for the model, where --model is another. Default: what it serves.
    for_plan
        Plan file: measure where that plan will run, not within --max-*.
    max_requests
        Most requests sent to the server.
    max_concurrency
        Most requests in flight.
    max_input
        Longest prompt [tokens].
    max_output
        Longest answer [tokens].
    api_key
        The server's key.
    timeout
        Longest silence of a request [s].
    start_wait
        How long to wait for a server that is starting [s].
    force
        Give out a profile that fails its checks; measure a GPU that was not named.
    progress
        Told (done, all, what) before every point.

    Returns
    -------
    CalibrationSet
        Profiles, fits, raw points and notes; nothing is written until ``.only.save(path)``.
    """
    from planner.calibrate import run
    from planner.calibrate.files import Assumed

    seconds = None if max_seconds is None else parse_duration(max_seconds, "max_seconds")
    paths = () if files is None else [files] if isinstance(files, (str, Path)) else files
    target = reach = None
    if server is not None or launch is not None:
        from planner.calibrate.live import Server
        from planner.calibrate.loads import OperatingRange

        patience = parse_duration(timeout, "timeout"), parse_duration(start_wait, "start_wait")
        if server is not None:
            target = Server(server, served_model_name or model or "", api_key, *patience)
        reach = OperatingRange(max_input, max_output, max_concurrency, max_requests)
        if for_plan is not None:
            reach = OperatingRange.for_plan(for_plan, max_requests)
    return run.calibrate(
        server=target, launch=launch, files=paths, gpu=gpu,
        model=model if served_model_name or target is None else None, tp=tp,
        device=device, reach=reach, scheduling=scheduling, token_budget=token_budget, where=select, points=points,
        assumed=Assumed(isl, osl, concurrency),
        max_seconds=seconds, force=force, source=source, progress=progress,
    )  # fmt: skip
