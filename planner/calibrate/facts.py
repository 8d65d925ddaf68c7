"""What a server says of itself: its engine and version, KV cache, slots, token budget, prefix cache, load."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.calibrate.http import Endpoint, HttpError, page, parse_json

ASKING_S = 2.0
"""Longest wait for one page; a server that has none answers at once [s]."""

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


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of ``/metrics``; ``None`` where the server does not count it.

    Parameters
    ----------
    running
        Requests, all ranks together [requests].
    prefix_hits, prefix_queries
        Prompt tokens found in the prefix cache, and looked for, since the start [tokens].
    """

    running: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None

    def cached_share(self, before: Counters) -> float | None:
        """Share of the prompt tokens since `before` that came from the prefix cache [1].

        >>> Counters(prefix_hits=30, prefix_queries=200).cached_share(Counters(prefix_hits=10, prefix_queries=100))
        0.2
        """
        if self.prefix_hits is None or self.prefix_queries is None:
            return None
        looked_for = self.prefix_queries - (before.prefix_queries or 0.0)
        found = self.prefix_hits - (before.prefix_hits or 0.0)
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
    counters: Counters = field(default_factory=Counters)


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
        try:
            value = float(match[3])
        except ValueError:
            continue
        found.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    return found


def _total(samples: Samples, names: tuple[str, ...], largest: bool = False) -> float | None:
    """Sum (or largest) over the label sets of the first of the names that is there."""
    for name in names:
        values = [v for _, v in samples.get(name, ()) if math.isfinite(v)]
        if values:
            return max(values) if largest else math.fsum(values)
    return None


def _page(endpoint: Endpoint, path: str, seconds: float) -> str:
    """A page, empty where there is none: everything here is asked for, nothing is needed."""
    try:
        return page(endpoint, path, seconds).decode("utf-8", "replace")
    except HttpError:
        return ""


def _mapping(endpoint: Endpoint, path: str, seconds: float) -> Mapping[str, Any]:
    try:
        data = parse_json(_page(endpoint, path, seconds))
    except HttpError:
        return {}
    return data if isinstance(data, Mapping) else {}


def _counters(samples: Samples) -> Counters:
    return Counters(**{key: _total(samples, names) for key, names in COUNTED.items()})


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
    """A positive whole number, else ``None``: a server may say anything."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and 0 < number < 1e15 else None


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
    names = tuple(str(m["id"])[:200] for m in models if m.get("id"))
    owners = {str(m.get("owned_by", "")).lower() for m in models}
    context = next((c for c in (_whole(m.get("max_model_len")) for m in models) if c), None)
    samples = parse_metrics(_page(endpoint, "/metrics", seconds))
    engine = next((e for e in ("vllm", "sglang") if e in owners or any(n.startswith(e + ":") for n in samples)), None)
    common: dict[str, Any] = {"models": names, "max_context": context, "counters": _counters(samples), "engine": engine}
    if engine == "sglang":
        return _sglang(endpoint, seconds, samples, common)
    labels = next((labels for labels, _ in samples.get("vllm:cache_config_info", ())), {})
    blocks, block = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    return ServerFacts(
        version=_version(_mapping(endpoint, "/version", seconds)),
        kv_tokens=_whole(labels.get("kv_cache_size_tokens")) or (blocks * block if blocks and block else None),
        prefix_caching={"true": True, "false": False}.get(str(labels.get("enable_prefix_caching", "")).lower()),
        **common,
    )


def _version(page: Mapping[str, Any]) -> str | None:
    found = page.get("version")
    return found[:60] if isinstance(found, str) else None


def _sglang(endpoint: Endpoint, seconds: float, samples: Samples, common: Mapping[str, Any]) -> ServerFacts:
    info = _mapping(endpoint, "/server_info", seconds) or _mapping(endpoint, "/get_server_info", seconds)
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    no_radix = info.get("disable_radix_cache")
    kv = _whole(info.get("max_total_num_tokens")) or _whole(state.get("max_total_num_tokens"))
    return ServerFacts(
        version=_version(info),
        kv_tokens=kv or _whole(_total(samples, ("sglang:max_total_num_tokens",), largest=True)),
        slots=_whole(info.get("max_running_requests")) or _whole(state.get("max_running_requests")),
        token_budget=_whole(info.get("chunked_prefill_size")),
        prefix_caching=None if not isinstance(no_radix, bool) else not no_radix,
        **common,
    )
