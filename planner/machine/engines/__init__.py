"""Inference engines as things: what a host of each costs, its defaults, its flags. One file per engine, found by folder.

To add an engine, put its YAML here: the fields of :class:`Engine`, its name is the file's. Host times of an iteration are fitted
together with the kernels and stand in :mod:`planner.machine.roofline` under the engine's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import InputError, did_you_mean
from planner.machine.hardware import SIZES
from planner.shared.documents import shipped

DEFAULT_ENGINE = "vllm"

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM makes room for (--max-lora-rank)."""


@dataclass(frozen=True, slots=True)
class Version:
    """From which version on an engine's host times are others, and where that is from.

    Parameters
    ----------
    since
        First version they hold for, ``"0.27"``.
    measured
        When it was measured or read, year and month.
    source
        Which measurements say so.
    constants
        What differs from :data:`planner.machine.roofline.CONSTANTS`, by name [s].
    until
        Last version among those measured; empty = `since`.
    """

    since: str
    measured: str
    source: str
    constants: Mapping[str, float] = field(default_factory=dict)
    until: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One inference engine.

    Parameters
    ----------
    name
        How to ask for it; profiles carry it.
    title
        As people write it.
    api_overhead_s
        Time of a request outside the engine's iterations that its first token waits for: HTTP, tokenizing, scheduling,
        streaming [s].
    request_s
        Time of the host that each request takes from the iterations [s].
    wake_s
        What a first token waits longer for where the server got no request for a tenth of a second before: front ends that
        slept, connections that were closed [s].
    apart
        Whether prompts have iterations of their own.
    token_budget, max_num_seqs, memory_utilization
        Defaults of its server on an 80 GB GPU: tokens of one iteration [tokens], sequences at once, share of the device.
    flags
        Our setting -> the engine's command-line flag.
    logged
        Our setting -> pattern of the line of its log that says it, the number in the first group.
    source
        Where the times come from.
    image
        Container image of its server.
    launch
        Command that starts its server; ``{model}`` stands for the model.
    switches
        Those of `flags` that take no value.
    always
        Further arguments of the command.
    metrics_path
        Where its server shows its metrics.
    kv_dtypes
        Our dtype of the KV cache -> the value of its flag; what is missing cannot be set on the command line.
    dp_inside_tp
        Whether copies of the attention share the GPUs that its tensor-parallel size counts, and its other settings are those of all
        copies together.
    quantizes
        Dtypes its server can turn 16-bit weights into while it loads them.
    joins
        What every node's command of a replica on several nodes has; ``{nodes}``, ``{rank}`` and ``{leader}`` stand for their
        number, the node's place and the first one's address. Nothing = there is no such command.
    follows
        What the commands of all nodes but the first have beside.
    drains
        What makes a server that is told to end finish its requests first, ``{seconds}`` at most. Nothing = it finishes them by
        itself, for as long as it is let.
    by_priority
        What makes its server take requests in order of their ``priority``, the lowest first. Nothing = there is no such order.
    api_key
        How its server is told the key that requests must bear: a flag, or the name of an environment variable. Nothing = it asks
        for none.
    window_pool
        Tokens that the pool of sliding-window layers has room for, over those of the layers with full attention; 0 = one pool of
        blocks is for all, and a sequence keeps its windows of it [1].
    frees_windows
        First version whose prefix cache does not keep the blocks of sliding-window layers that no prompt can use again; empty =
        none ever did.
    versions
        Versions measured, oldest first; the first is what is taken where none is asked for.
    version
        The one asked for (``vllm@0.27``); empty = none.
    """

    name: str
    title: str
    api_overhead_s: float
    request_s: float
    token_budget: int
    max_num_seqs: int
    memory_utilization: float
    wake_s: float = 0.0
    apart: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    logged: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    image: str = ""
    launch: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    metrics_path: str = "/metrics"
    kv_dtypes: Mapping[str, str] = field(default_factory=dict)
    dp_inside_tp: bool = False
    quantizes: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    window_pool: float = 0.0
    frees_windows: str = ""
    versions: tuple[Version, ...] = ()
    version: str = ""

    @property
    def measured(self) -> Version | None:
        """Of the versions measured the newest that is not newer than the one asked for; the first where none is.

        >>> engine("vllm@0.28").measured.since, engine("vllm@0.8").measured.since, engine("vllm").measured.since
        ('0.27', '0.9', '0.9')
        """
        if not self.versions:
            return None
        if not self.version:
            return self.versions[0]
        known = [v for v in self.versions if _parts(v.since) <= _parts(self.version)]
        return known[-1] if known else self.versions[0]

    @property
    def keeps_windows(self) -> bool:
        """Whether the version asked for fills its prefix cache with blocks of sliding-window layers that nobody finds again.

        >>> engine("vllm@0.27.1").keeps_windows, engine("vllm@0.29").keeps_windows, engine("vllm").keeps_windows
        (True, False, False)
        """
        return bool(self.version and self.frees_windows) and _parts(self.version) < _parts(self.frees_windows)

    @property
    def age(self) -> str:
        """Which version its host times are from and how old they are, as people read it; and how to ask for the newest's.

        >>> engine("vllm@0.11").age, engine("trtllm@1.3").age
        ('host times of vLLM 0.9 (2025-11)', 'host times of TensorRT-LLM 1.0 to 1.3 (2025-09)')
        >>> engine("vllm").age
        'host times of vLLM 0.9 (2025-11), the most measured; the newest: --engine vllm@0.27'
        """
        found = self.measured
        if found is None:
            return "host times of no version that anybody published"
        to = f" to {found.until}" if found.until else ""
        newest = self.versions[-1].since
        newer = (
            f", the most measured; the newest: --engine {self.name}@{newest}"
            if not self.version and newest != found.since
            else ""
        )
        return f"host times of {self.title} {found.since}{to} ({found.measured}){newer}"

    @property
    def unmeasured(self) -> str:
        """``"newer"`` or ``"older"``: how the version asked for lies beside all that were measured; empty = among them.

        >>> [engine(name).unmeasured for name in ("vllm@0.27.2", "vllm@0.32", "vllm@0.8", "trtllm@1.3", "vllm")]
        ['', 'newer', 'older', '', '']
        """
        if not self.version or not self.versions:
            return ""
        asked, last = _parts(self.version)[:2], self.versions[-1]
        if asked > _parts(last.until or last.since)[:2]:
            return "newer"
        return "older" if asked < _parts(self.versions[0].since)[:2] else ""

    by_priority: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    api_key: str = ""

    def arguments(self, settings: Mapping[str, Any]) -> list[str]:
        """Settings of a pool, as a plan file has them, in the words of its command line.

        What takes its default is left out, and so is what the engine has no flag for.

        >>> engine("trtllm").arguments({"tensor_parallel_size": 2, "max_num_seqs": 64, "kv_cache_dtype": "fp8"})
        ['--tp_size', '2', '--max_batch_size', '64']
        """
        sizes = {name: settings.get(setting, 1) for name, setting in SIZES.items()}
        values: dict[str, object] = {
            **{name: size if name == "tp" or size > 1 else "" for name, size in sizes.items()},
            "slots": settings.get("max_num_seqs", ""),
            "token_budget": settings.get("max_num_batched_tokens", ""),
            "max_model_len": settings.get("max_model_len", ""),
            "memory_utilization": f"{share:g}" if (share := settings.get("gpu_memory_utilization")) else "",
            "kv_dtype": self.kv_dtypes.get(settings.get("kv_cache_dtype", ""), ""),
            "speculative": settings.get("speculative", ""),
            "lora": bool(settings.get("max_loras")),
            "max_loras": settings.get("max_loras", ""),
            "max_lora_rank": settings.get("max_lora_rank", ""),
            "runner": "pooling" if settings.get("batching") == "pooling" else "",
        }
        if self.dp_inside_tp and sizes["dp"] > 1:
            # its sizes and settings are those of all copies together
            values |= {name: int(str(values[name])) * sizes["dp"] for name in ("tp", "slots", "token_budget")}
            values["attention_dp"] = True
        words = []
        for name, value in values.items():
            if value and name in self.flags:
                words += [self.flags[name]] if name in self.switches else [self.flags[name], str(value)]
        return words


def engine_names() -> tuple[str, ...]:
    """What engines are called, without reading them."""
    return tuple(sorted(file.stem for file in Path(__file__).parent.glob("*.yaml")))


@cache
def engines() -> Mapping[str, Engine]:
    """Every engine of this folder by name.

    >>> sorted(engines())
    ['sglang', 'trtllm', 'vllm']
    """
    found = {}
    for name in engine_names():
        read = shipped(Path(__file__).with_name(f"{name}.yaml"))
        told: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in read.items()}
        versions = tuple(Version(**one) for one in told.pop("versions", ()))
        found[name] = Engine(name=name, versions=versions, **told)
    return found


def _parts(version: str) -> tuple[int, ...]:
    """Numbers of a version, ``"0.27.1"`` -> (0, 27, 1)."""
    return tuple(int(part) for part in version.split("."))


def engine(name: str) -> Engine:
    """The engine of that name, or of that name and version (``vllm@0.27``).

    Raises
    ------
    InputError
        Unknown name, with the closest known one; a version that is none.

    >>> engine("vllm").title
    'vLLM'
    """
    known = engines()
    base, at, version = name.lower().partition("@")
    if base not in known:
        raise InputError(f"unknown engine {base!r}{did_you_mean(base, known)}", f"Known: {', '.join(sorted(known))}.")
    if at and not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", version):
        raise InputError(
            f"engine {name!r}: {version!r} is no version", "Numbers and dots after the @, e.g. vllm@0.27.1."
        )
    return replace(known[base], version=version) if at else known[base]
