"""One calibration from start to finish: measurements in, fit, a profile that says where it comes from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.calibrate.closed_loop import DEFAULT_BUDGET, SCHEDULING, SHORTEST, Rules, ServerPoint
from planner.calibrate.device import Device, GpuState, load_torch, read_gpu_state, same_device
from planner.calibrate.files import SYSTEM, Assumed, read_measurements
from planner.calibrate.fit import PRIOR_WIDTH, fit_points, scaled_prior
from planner.calibrate.microbench import CPU, DEVICE_SECONDS, TINY_MODEL, measure, most_telling
from planner.calibrate.points import OF, UNKNOWN_GPU, Points, RawPoints, clock
from planner.calibrate.result import Calibration, CalibrationSet, checked_set, profile_of_iterations, profile_of_server
from planner.calibrate.servers import PRIOR_WIDTH as UNKNOWN_WIDTH
from planner.calibrate.servers import ServerFit, faster_than_hardware, fit_server, hardware_limit
from planner.calibrate.solver import SLIGHT
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.profiles import Profile
from planner.errors import CalibrationError, InputError, refuse_unknown
from planner.machine.engines import DEFAULT_ENGINE, engines
from planner.machine.hardware import SIZES, GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.roofline import roofline
from planner.shared.documents import printable
from planner.shared.remarks import Remark, those_that_hold
from planner.units import LEAST, MOST, MOST_SECONDS

if TYPE_CHECKING:
    from planner.calibrate.launch import Launch, ServerFacts
    from planner.calibrate.live import LiveServer, LoadResult, Server
    from planner.calibrate.loads import OperatingRange, Progress

SCHEDULING_OF: Mapping[str, str] = {"vllm": "mixed", "trtllm": "mixed"}
"""How engines run prompts where their name says it."""

SERVER_SECONDS = 300.0
"""Bound of measuring a server where none is given [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to calibrate from, of what, and how.

    Parameters
    ----------
    server
        Address (or :class:`~planner.calibrate.live.Server`) of an OpenAI-compatible server to measure; an empty model name is
        filled in where it serves one model only.
    launch
        Engine to start here, to measure and to stop, instead of a server that runs already.
    files
        Measurements to read instead: results of load generators, raw points, CSVs of iterations or server points. With
        neither, this machine's device is measured.
    gpu, model, tp, dp, ep
        What the measurements are of; `model` defaults to the one the server serves, to Llama 3.1 8B on a device. Where the
        catalog knows neither GPU nor model of a server, no estimate holds the fit. `dp`: copies of the attention, among which a
        server's requests are shared out; `ep`: the GPUs over which whole experts are spread, all or none.
    device
        ``cuda``, or ``cpu`` to try the path.
    reach
        What the measuring of a server is for.
    scheduling, token_budget
        How the server runs prompts; ``None`` = chosen by the error of left-out shapes.
    engine, slots, kv_tokens
        Name of the engine a server runs, its sequences at once and the size of its KV cache [tokens], where it does not say.
    where
        Of files: keep CSV rows whose column equals the value.
    points
        Batches to measure on a device; of files: how many iterations of a group to use, those that tell most.
    assumed
        Of files: lengths and load where they do not say them.
    max_seconds
        Bound of the measuring: 60 on a device, 300 for a server, when ``None`` [s].
    force
        Return a profile that fails its checks all the same, and measure a GPU that was not named.
    command, source
        Written into the profile.
    progress
        Called before each point or load.

    Raises
    ------
    InputError
        Two sources of measurements, or a time that is none.
    """

    server: Server | str | None = None
    launch: Launch | None = None
    files: Sequence[str | Path] = ()
    gpu: str | None = None
    model: str | None = None
    tp: int | None = None
    dp: int | None = None
    ep: int | None = None
    device: str = "cuda"
    reach: OperatingRange | None = None
    scheduling: str | None = None
    token_budget: float | None = None
    engine: str | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    where: Mapping[str, str] | None = None
    points: int | None = None
    assumed: Assumed | None = None
    max_seconds: float | None = None
    force: bool = False
    command: str | None = None
    source: str = ""
    progress: Progress | None = None

    def __post_init__(self) -> None:
        sources = {"a server": self.server, "files": self.files, "an engine to start": self.launch}
        if len(given := [name for name, source in sources.items() if source]) > 1:
            raise InputError(f"{' and '.join(given)} are two sources of measurements", "Give one of them.")
        if self.max_seconds is not None and not 0.0 < self.max_seconds <= MOST_SECONDS:
            raise InputError(f"max_seconds must be positive, got {self.max_seconds!r}")

    def spread(self, tp: int | None) -> Parallelism:
        """How a replica spreads the model, with groups of so many GPUs."""
        return Parallelism(tp or 1, dp=self.dp or 1, ep=self.ep or 0)

    def wants(self, device: GpuSpec, network: ModelSpec, size: int) -> bool:
        """Whether a group of measurements is of the GPU, model and parallelism that were named."""
        if self.gpu is not None and find_gpu(self.gpu).name != device.name:
            return False
        if self.model is not None and known_model(self.model).name != network.name:
            return False
        return self.tp is None or self.tp == size


def calibrate(**options: Any) -> CalibrationSet:
    """Measure a running server, or this machine, or read measurements; fit; return profiles to save and plan with.

    Parameters
    ----------
    **options
        Fields of :class:`Asked`.

    Returns
    -------
    CalibrationSet
        ``.only`` is the one profile of a server or device; ``.only.save(path)`` writes it with its raw points.

    Raises
    ------
    InputError
        For what cannot be asked, and files that cannot be read.
    CalibrationError
        When nothing could be measured or fitted, or the profile fails its checks.

    Examples
    --------
    >>> calibrate(server="http://localhost:8000", files=["a.json"])
    Traceback (most recent call last):
    planner.errors.InputError: a server and files are two sources of measurements
    Give one of them.
    """
    asked = Asked(**options)
    if asked.files:
        return _files(asked)
    if asked.launch is not None:
        return CalibrationSet((_launched(asked, asked.launch),))
    return CalibrationSet((_device(asked) if asked.server is None else _server(asked, asked.server),))


def _files(asked: Asked) -> CalibrationSet:
    """A fit of every group of measurements in files that was asked for."""
    found = read_measurements(asked.files, where=asked.where, assumed=asked.assumed)
    results = [one for raw in found.groups if (one := _fitted(asked, raw)) is not None]
    if not results:
        named = ", ".join(f"{k}={v}" for k in ("gpu", "model", "tp") if (v := getattr(asked, k)) is not None)
        groups = sorted({" ".join(str(g.header[k]) for k in SYSTEM if k in g.header) for g in found.groups})
        raise InputError(f"no measurements with {named} in the files", f"They hold: {'; '.join(groups)}.")
    return checked_set(results, asked.force)


def refit(raw: RawPoints, *, force: bool = False, command: str | None = None) -> Calibration:
    """Fit raw points again, with today's method; what they are of stands in them.

    Parameters
    ----------
    raw
        Points kept beside a profile.
    force
        Return a profile that fails its checks all the same.
    command
        Written into the profile.
    """
    found = _fitted(Asked(command=command), raw)
    assert found is not None
    return replace(found, raw=raw).checked(force)


def _fitted(asked: Asked, raw: RawPoints) -> Calibration | None:
    """A calibration of measurements that are there; ``None`` where those of another GPU, model or parallelism were asked for.

    What they do not say is taken from what was asked. Of something the catalog does not know, iterations are held by any other
    shape, scaled to what was measured, and a server by nothing.
    """
    details: dict[str, Any] = {"source": f"file {raw.name}", "command": asked.command, **raw.of}
    details |= {"source": asked.source} if asked.source else {}
    here, model_here, tp, dtype, _ = (details.pop(k, "") for k in ("gpu", "model", "tp", "weight_dtype", "kv_dtype"))
    gpu_name, model_name = here if here not in ("", UNKNOWN_GPU) else asked.gpu or here, model_here or asked.model
    if not gpu_name or not model_name:
        raise InputError("the files do not say what was measured", "Give --gpu and --model (and --tp) of it.")
    copies, expert_gpus = details.pop("dp", asked.dp or 1), details.pop("ep", asked.ep or 0)
    spread = Parallelism(tp or asked.tp or 1, dp=copies, ep=expert_gpus)
    pair: tuple[GpuSpec, ModelSpec] | None = None
    notes: tuple[str, ...] = ()
    try:
        pair = _catalog_pair(gpu_name, model_name, dtype)
        if not asked.wants(*pair, spread.tp):
            return None
    except InputError as error:
        if asked.gpu is not None or asked.model is not None:
            raise
        notes = (f"{error.message}: the prior is another model's, scaled; give --gpu and --model to name it",)
    if raw.kind == "server":
        rules = _rules(asked, raw, details.setdefault("engine", "server"))
        shown = (gpu_name, _named(model_name)) if pair is None else (pair[0].name, pair[1])
        return _of_server(raw.server_points(), (*shown, spread), pair, rules, **details)
    measured = raw.iterations()
    if pair is None:
        known = find_gpu("h100"), find_model("llama-3.1-8b")
        prior = scaled_prior(measured, roofline(*known))
        pair = replace(known[0], name=gpu_name), replace(known[1], name=model_name)
    else:
        prior = roofline(*pair, spread)
    if asked.points is not None:
        measured = measured.select(most_telling(measured, prior, asked.points))
    details.setdefault("engine", "iterations from a file")
    return _of_iterations(measured, (*pair, spread), prior, notes=notes, **details)


def _rules(asked: Asked, raw: RawPoints, engine: str) -> dict[str, Any]:
    """How a server ran prompts, as it was asked for, or as its points say."""
    number = {k: raw.header.get(k) for k in ("token_budget", "slots")}
    for key, value in number.items():
        if value is not None and (not isinstance(value, (int, float)) or not LEAST <= value <= MOST):
            raise InputError(f"{raw.name}:1: {key} must be a positive number, got {printable(str(value))!r}")
    scheduling = raw.header.get("scheduling")
    if scheduling is not None:
        refuse_unknown(f"{raw.name}:1: scheduling", printable(str(scheduling)), SCHEDULING)
    number["token_budget"] = asked.token_budget or number["token_budget"]
    chosen = asked.scheduling or scheduling or SCHEDULING_OF.get(engine)
    return {"scheduling": chosen, "steady": bool(raw.header.get("steady", False)), **number}


def known_model(name: str, precision: str = "") -> ModelSpec:
    """The catalog's model of that name, also when a server names it as a repository or with its dtype.

    Parameters
    ----------
    name
        Catalog name, ``owner/name``, folder or config.json.
    precision
        Dtype of the weights where the source says it.

    Raises
    ------
    InputError
        When it is not known.
    """
    dtype = {"fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4"}.get(precision.lower())
    text = name.removesuffix("-NVFP4").removesuffix("-FP8")
    if dtype is None and text != name:
        dtype = "fp8" if name.endswith("-FP8") else "fp4"
    return find_model(text, weight_dtype=dtype)


def _catalog_pair(gpu: str, model: str, precision: str) -> tuple[GpuSpec, ModelSpec]:
    """GPU and model of the catalog, the trial's included."""
    if (gpu, model) == (CPU.name, TINY_MODEL.name):
        return CPU, TINY_MODEL
    return find_gpu(gpu), known_model(model, precision)


def _of_server(
    measured: Sequence[ServerPoint],
    of: tuple[str, ModelSpec, Parallelism],
    pair: tuple[GpuSpec, ModelSpec] | None,
    rules: Mapping[str, Any],
    recorded: Sequence[Mapping[str, Any]] = (),
    **details: Any,
) -> Calibration:
    """Fit the points of a server and make its profile.

    Parameters
    ----------
    measured
        The points.
    of
        Name of the GPU, model, and how a replica spreads it, for the profile.
    pair
        GPU and model where the catalog knows both; ``None`` = no estimate holds the fit.
    rules
        What was said of how the server runs prompts, for the fit and the next one.
    recorded
        What was recorded with each point measured here, in steady state.
    **details
        Further fields of the profile.
    """
    # a copy of the attention has its share of what is in flight
    own = [replace(p, concurrency=max(p.concurrency / of[2].dp, 1.0)) for p in measured]
    fit = fit_server(own, None if pair is None else _server_prior(*pair, of[2], details["engine"]), **rules)
    profile = profile_of_server(fit, *of, automatic=pair is not None, **details)
    header = {**_header(profile), "steady": bool(recorded)}
    # what a fit chose, the next may choose otherwise
    header |= {k: rules[k] for k in ("scheduling", "token_budget") if rules[k] is not None}
    if fit.rules.slots < float("inf"):
        header["slots"] = fit.rules.slots
    header |= clock() if recorded else {}
    rows = [{**asdict(point), **more} for point, more in zip(measured, recorded or [{}] * len(measured), strict=True)]
    doubts = () if pair is None else _impossible(fit, own, pair, of[2].tp)
    raw = RawPoints("server", header, rows)
    return Calibration(profile, raw, server_fit=fit, notes=details.get("notes", ()), doubts=doubts)


def _device(asked: Asked) -> Calibration:
    """Measure this machine and fit.

    Raises
    ------
    CalibrationError
        Without torch or GPU, on another GPU than named, or when nothing could be fitted.
    """
    on_cpu, tp = asked.device == "cpu", asked.spread(asked.tp)
    model = asked.model or ("tiny" if on_cpu else "llama-3.1-8b")
    network = TINY_MODEL if model.lower() == "tiny" else known_model(model)
    spec = CPU if on_cpu else _named_device(asked)
    measured, told = measure(
        spec, network, roofline(spec, network, tp), tp=tp, device=asked.device, points=asked.points,
        max_seconds=asked.max_seconds or DEVICE_SECONDS, progress=asked.progress,
    )  # fmt: skip
    state = GpuState() if on_cpu else read_gpu_state()
    seen_then = [line for line in (state.note(), *state.doubts()) if line]
    told["notes"] += tuple(seen_then)
    recorded = {"gpu_state": state.to_dict()} if state != GpuState() else {}
    details = {"engine": "fleetopt microbenchmark", "command": asked.command, **told}
    return _of_iterations(measured, (spec, network, tp), recorded=recorded, **details).checked(asked.force)


def _named_device(asked: Asked) -> GpuSpec:
    """The GPU that was named, which must be the one that is here, whole."""
    if asked.gpu is None:
        raise InputError("which GPU is this?", "Give --gpu, e.g. --gpu a100.")
    spec, seen = find_gpu(asked.gpu), Device(load_torch(), "cuda").name
    if not asked.force and not same_device(asked.gpu, seen):
        raise CalibrationError(
            f"this machine has a {seen}, not a {spec.name}", "Name the GPU it has; nothing was measured."
        )
    if not asked.force and read_gpu_state().sliced:
        raise CalibrationError(
            f"this {seen} is cut into slices (MIG): what is measured is one of them, not a {spec.name}",
            "Switch MIG off, or measure the slice with --force under a name of its own.",
        )
    return spec


def _of_iterations(
    measured: Points,
    of: tuple[GpuSpec, ModelSpec, int | Parallelism],
    prior: IterationModel | None = None,
    recorded: Mapping[str, Any] | None = None,
    **details: Any,
) -> Calibration:
    """Fit iterations and make their profile; `details` are further fields of it, `recorded` stands with the points."""
    on_cpu, notes = of[0].name == CPU.name, details.pop("notes", ())
    fit = fit_points(measured, prior or roofline(*of), prior_width=UNKNOWN_WIDTH if on_cpu else PRIOR_WIDTH)
    profile = profile_of_iterations(
        fit, of[0].name, *of[1:], notes=(*notes, *fit.warnings), automatic=not on_cpu, **details
    )
    rows: list[dict[str, Any]] = []
    for i, batch in enumerate(measured.batches):
        place = {} if measured.order is None else {"order": float(measured.order[i])}
        rows.append({**asdict(batch), "time_s": float(measured.time_s[i]), **place})
    header = {**_header(profile), "composed": measured.composed, **clock(), **(recorded or {})}
    return Calibration(profile, RawPoints("iterations", header, rows), fit, notes=notes)


def _header(profile: Profile) -> dict[str, Any]:
    return {k: getattr(profile, k) for k in OF if getattr(profile, k) is not None}


def _launched(asked: Asked, launch: Launch) -> Calibration:
    """Start an engine, measure it, stop it; parallelism and budget are those of the launch where it sets them.

    Raises
    ------
    CalibrationError
        As :func:`_server`, and when the engine does not start.
    """
    from planner.calibrate.launch import launched
    from planner.calibrate.live import Server

    known = _network(asked.model or launch.model, required=asked.model is not None)
    if asked.progress is not None:
        asked.progress(0, 1, f"starting {launch.engine.title}")
    with launched(launch) as running:
        said, set_to = running.said, launch.settings
        own = replace(
            asked, model=None if known is None else asked.model or launch.model,
            **{name: set_to.get(SIZES[name], getattr(asked, name)) for name in ("tp", "dp", "ep")},
            token_budget=asked.token_budget or set_to.get("max_num_batched_tokens", said.get("token_budget")),
            slots=set_to.get("max_num_seqs", said.get("slots")),
            kv_tokens=said.get("kv_tokens"), engine=launch.engine.name, launch=None,
        )  # fmt: skip
        one = _server(own, Server(running.url, launch.served_name))
    return replace(
        one, notes=(*one.notes, f"{launch.engine.title} was started here and answered after {running.seconds:.0f} s")
    )


def _server(asked: Asked, server: Server | str) -> Calibration:
    """Measure a running server and fit.

    Raises
    ------
    CalibrationError
        When the server does not answer, too few loads were measured, or the profile fails its checks.
    """
    from planner.calibrate.http import ASKING_S
    from planner.calibrate.launch import cached_share, read_counters, read_facts
    from planner.calibrate.live import LiveServer, Server
    from planner.calibrate.loads import OperatingRange, measure_range

    if isinstance(server, str):
        server = Server(server, asked.model or "")
    seconds, spread = asked.max_seconds or SERVER_SECONDS, asked.spread(asked.tp)
    deadline, asking = time.monotonic() + seconds, min(ASKING_S, 0.05 * seconds)
    spec = find_gpu(asked.gpu) if asked.gpu is not None else None
    facts = None
    if not server.model:
        facts = read_facts(server.endpoint, asking)
        if len(facts.models) != 1:
            hint = f"Give --model, as the server names it: {', '.join(facts.models) or 'it does not say'}."
            raise InputError("which model does the server serve?", hint)
        server = replace(server, model=facts.models[0])
    network = _network(asked.model or server.model, required=asked.model is not None)
    live = LiveServer(server, deadline)
    facts = facts or read_facts(server.endpoint, asking)
    facts = replace(facts, **{k: v for k in ("engine", "slots", "kv_tokens") if (v := getattr(asked, k))})
    pair = None if spec is None or network is None else (spec, network)
    budget = asked.token_budget or facts.token_budget
    kind = asked.scheduling or SCHEDULING_OF.get(facts.engine or "")
    prior = None if pair is None else _server_prior(*pair, spread, facts.engine)
    reach = _within(asked.reach or OperatingRange(), facts)
    results = measure_range(
        live, reach, prior, Rules(kind or "mixed", budget or DEFAULT_BUDGET), progress=asked.progress
    )
    counters = read_counters(server.endpoint, min(asking, max(0.2, live.left_s)))
    failures = [f"{r.load}: {r.reason}" for r in results if r.point is None]
    measured = [r.point for r in results if r.point is not None]
    recorded = [_recorded(r) for r in results if r.point is not None]
    shown = (UNKNOWN_GPU if spec is None else spec.name, network or _named(server.model), spread)
    rules = {"scheduling": kind, "token_budget": budget, "slots": facts.slots, "steady": True}
    try:
        one = _of_server(
            measured, shown, pair, rules, recorded, engine=facts.engine or "server", engine_version=facts.version,
            kv_tokens=facts.kv_tokens, command=asked.command, source=f"measured on a live server serving {server.model}",
            notes=_notes(live, facts, results),
        )  # fmt: skip
    except CalibrationError as error:
        raise CalibrationError(error.message, "; ".join(failures[:3]) or error.hint) from None
    cached = cached_share(counters, facts.counters)
    if cached is not None and cached > SLIGHT:
        doubt = str(Remark("prompts_cached", {"share": 100.0 * cached}))
        one = replace(one, doubts=(*one.doubts, doubt))
    return one.checked(asked.force)


def _server_prior(device: GpuSpec, network: ModelSpec, spread: Parallelism, name: str | None) -> IterationModel:
    """The estimate with the host time of the engine; of the default one where it has another name."""
    return roofline(device, network, spread, engine=name if name in engines() else DEFAULT_ENGINE)


def _named(model: str) -> ModelSpec:
    """A model of which only the name is known."""
    return ModelSpec(model, 1, 1, 1, 1, 1, 1, 1, 1)


def _network(name: str, required: bool) -> ModelSpec | None:
    with nullcontext() if required else suppress(InputError):
        return known_model(name)
    return None


def _within(reach: OperatingRange, facts: ServerFacts) -> OperatingRange:
    """The range, kept to what fits the server's longest sequence."""
    if facts.max_context is None or facts.max_context >= reach.max_input + reach.max_output:
        return reach
    longest, answer = (2 * tokens for tokens in SHORTEST)
    output = max(answer, min(reach.max_output, facts.max_context // 4))
    return replace(reach, max_output=output, max_input=max(longest, facts.max_context - output - SHORTEST[1]))


def _impossible(
    fit: ServerFit, measured: Sequence[ServerPoint], what: tuple[GpuSpec, ModelSpec], tp: int
) -> tuple[str, ...]:
    """What about a fit, or the loads behind it, no such hardware can do."""
    floor = hardware_limit(*what, tp)
    found: list[tuple[object, str, dict[str, object]]] = []
    for label, batch in (
        ("one sequence", (1.0, 1.0, 0.0, 0.0, 1.0)),
        ("a prompt of 2,048", (0.0, 0.0, 2048.0, 0.0, 0.0)),
    ):
        ms, least = fit.iteration.time(*batch) * 1e3, floor.time(*batch) * 1e3
        found.append((ms < (1.0 - SLIGHT) * least, "iteration_too_fast", {"batch": label, "ms": ms, "least": least}))
    needed = faster_than_hardware(measured, floor)
    p, beyond = measured[int(needed.argmax())], int((needed > 1.0).sum())
    told = {"input": p.input_tokens, "output": p.output_tokens, "level": p.concurrency, "needed": needed.max()}
    found.append((beyond, "loads_too_fast", {"beyond": beyond, "loads": len(measured), **told}))
    return those_that_hold(found)


def _notes(live: LiveServer, facts: ServerFacts, results: Sequence[LoadResult]) -> tuple[str, ...]:
    """What was sent, what it cost this client, and what failed."""
    failures = [r for r in results if r.point is None]
    requests, failed = sum(r.measured for r in results), sum(r.failed for r in results)
    cost = max((r.client_s_per_token for r in results), default=0.0)
    many = max((r.tokens_per_event for r in results), default=1.0)
    apart = _repeats_apart(results)
    running, words = facts.counters.get("running"), not live.dialect.token_ids
    return those_that_hold([
        (True, "requests_measured", {"requests": requests, "loads": len(results) - len(failures), "failed": failed}),
        (True, "client_cost", {"us": cost * 1e6}),
        (apart is not None and apart <= SLIGHT, "same_again", {"apart": apart}),
        (apart is not None and apart > SLIGHT, "unsteady", {"apart": apart}),
        (live.interrupted, "interrupted", {}),
        (many > 1.2, "tokens_together", {"tokens": many}),
        (running, "others_running", {"requests": running}),
        (facts.prefix_caching and words, "prompts_kept", {}),
        *((True, "load_not_used", {"load": r.load, "reason": r.reason}) for r in failures),
    ])  # fmt: skip


def _repeats_apart(results: Sequence[LoadResult]) -> float | None:
    """How far TPOTs of one load, sent more than once, lie apart, half their range over their mean, at its median [1]."""
    times: dict[object, list[float]] = {}
    for r in results:
        if r.point is not None:
            times.setdefault(r.load, []).append(r.point.tpot_s)
    spreads = [(max(t) - min(t)) / (max(t) + min(t)) for t in times.values() if len(t) > 1]
    return statistics.median(spreads) if spreads else None


def _recorded(result: LoadResult) -> dict[str, Any]:
    """What is kept of a load besides its point."""
    rounded = {k: round(getattr(result, k), 3) for k in ("started_s", "seconds", "tokens_per_event")}
    counted = {"requests": result.measured, "failed": result.failed}
    return {**counted, **rounded, "client_s_per_token": result.client_s_per_token}
