"""The ways one replica can be spread over GPUs: tensor, pipeline, attention data and expert parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from planner.catalog.kv import fits, smallest_tp, tensor_parallel_sizes
from planner.errors import InputError
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.shared.templates import refusals

_refusal = refusals(__file__)

MOST_STAGES = 8
"""Pipeline stages tried."""

MOST_NODES = 4
"""Nodes of one replica at most, unless asked for."""


def parallel_choices(model: ModelSpec, gpu: GpuSpec, node: int | None = None) -> tuple[Parallelism, ...]:
    """Every way engines accept to spread a model, whether or not it fits in memory.

    Tensor-parallel groups stay inside a node. A mixture of experts may also copy its attention (dp) and spread whole
    experts over all GPUs of a stage (ep), on up to four nodes. Pipeline stages take whole groups, on nodes of their own
    where one node does not hold them all.

    Parameters
    ----------
    model, gpu
        What runs on what.
    node
        GPUs of a node; ``None`` = the GPU's own ``gpus_per_node``.

    Returns
    -------
    tuple of Parallelism
        By number of GPUs, plain tensor parallelism before the others.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> [str(p) for p in parallel_choices(model("llama-3.1-8b"), gpu("h100"), node=2)]
    ['TP1', 'TP2', 'TP1 PP2', 'TP2 PP2', 'TP1 PP4', 'TP2 PP4', 'TP1 PP8', 'TP2 PP8']
    >>> [str(p) for p in parallel_choices(model("deepseek-v3"), gpu("h200")) if p.gpus == 8 and p.pp == 1]
    ['TP8', 'TP8 EP8', 'TP4 DP2 EP8', 'TP2 DP4 EP8', 'DP8 EP8']
    """
    node = node or gpu.gpus_per_node
    sizes = [tp for tp in tensor_parallel_sizes(model, gpu) if tp <= node]

    def all_ways() -> Iterator[Parallelism]:
        """Every split of a replica over GPUs, smaller ones first."""
        for tp in sizes:
            yield from (Parallelism(tp, pp) for pp in _doubled(1, min(MOST_STAGES, model.layers)))
            if model.experts and tp > 1:
                yield Parallelism(tp, ep=tp)
            yield from (
                Parallelism(tp, dp=gpus // tp) for gpus in _doubled(2 * tp, min(MOST_NODES * node, model.experts))
            )

    return tuple(sorted(all_ways(), key=lambda p: (p.gpus, p.pp, p.dp, p.ep)))


def _doubled(first: int, most: int) -> Iterator[int]:
    """A number, twice it, four times it, up to the most."""
    while first <= most:
        yield first
        first *= 2


def spreads(
    model: ModelSpec,
    gpu: GpuSpec,
    longest_request_tokens: float,
    asked: Mapping[str, int | None],
    tp_options: tuple[int, ...] = (),
    *,
    token_budget: int,
    memory_utilization: float,
    window_pool: float = 0.0,
) -> tuple[Parallelism, ...]:
    """The ways a search compares: what was asked for, else what the model needs.

    With nothing asked for: every tensor-parallel group of a node that holds one longest request; a mixture of experts also
    with copied attention and spread experts, on as many GPUs as the smallest and on a whole node; what fits in no node, on
    several, by pipeline stages or, experts, by spreading them.

    Parameters
    ----------
    model, gpu
        What runs on what.
    longest_request_tokens
        Input + output of the longest request [tokens].
    asked
        ``tp``, ``pp``, ``dp``, ``ep`` as given, ``None`` = open.
    tp_options
        Sizes of the tensor-parallel group to choose from; empty = any.
    token_budget, memory_utilization, window_pool
        Engine settings, see :func:`planner.catalog.kv.kv_capacity`.

    Raises
    ------
    InputError
        What was asked for is not possible, or does not fit; nothing fits.
    """

    settings = {"token_budget": token_budget, "memory_utilization": memory_utilization, "window_pool": window_pool}
    smallest = partial(smallest_tp, model, gpu, longest_request_tokens, **settings)

    def holds(spread: Parallelism) -> bool:
        return fits(model, gpu, spread, longest_request_tokens, **settings)

    given = {name: value for name, value in asked.items() if value is not None}
    beyond = set(given) - {"tp"}
    if "tp" in given:
        _check_group(model, gpu, given["tp"])
    if not beyond and (given or tp_options):
        one = smallest()
        if "tp" in given:
            if given["tp"] < one:
                longest = f"{longest_request_tokens:,.0f}"
                raise _refusal("small", model=model, gpu=gpu, tp=given["tp"], longest=longest, least=one)
            return (Parallelism(given["tp"]),)
        possible = [t for t in tensor_parallel_sizes(model, gpu) if t >= one and t in tp_options]
        if not possible:
            raise _refusal("none", options=", ".join(map(str, tp_options)), model=model, gpu=gpu, least=one)
        return tuple(Parallelism(t) for t in possible)
    if beyond:
        return _as_asked(model, gpu, given, tp_options, holds, longest_request_tokens)
    choices = parallel_choices(model, gpu)
    try:
        plain = smallest()
    except InputError:
        # the smallest of each kind that holds it: stages of whole nodes, experts over nodes
        node = gpu.gpus_per_node
        larger = [p for p in choices if node < p.gpus <= MOST_NODES * node and holds(p)]
        staged = [p for p in larger if p.dp == p.ep == 1][:1]
        over_nodes = [p for p in larger if p.dp > 1 and p.tp == 1][:1]
        if not staged and not over_nodes:
            raise
        return tuple(staged + over_nodes)
    copied = [
        p for p in choices if p.pp == p.tp == 1 and p.dp > 1 and p.gpus in (plain, gpu.gpus_per_node) and holds(p)
    ]
    return (*(Parallelism(t) for t in tensor_parallel_sizes(model, gpu) if t >= plain), *copied)


def _check_group(model: ModelSpec, gpu: GpuSpec, tp: int) -> None:
    if tp > gpu.gpus_per_node:
        raise _refusal("beyond", tp=tp, gpu=gpu)
    if model.q_heads % tp:
        raise _refusal("heads", tp=tp, model=model)


def _as_asked(
    model: ModelSpec,
    gpu: GpuSpec,
    given: Mapping[str, int],
    tp_options: tuple[int, ...],
    holds: Callable[[Parallelism], bool],
    longest: float,
) -> tuple[Parallelism, ...]:
    """Ways with the numbers given; those not given: tp the smallest that fits, the others 1."""
    if not model.experts and (given.get("dp", 1) > 1 or given.get("ep", 1) > 1):
        raise _refusal("dense", model=model, dp=given.get("dp", 1), ep=given.get("ep", 1))
    sizes = (given["tp"],) if "tp" in given else tp_options or tensor_parallel_sizes(model, gpu)
    tried = []
    refused: InputError | None = None
    for tp in sizes:
        try:
            rest = {name: given[name] for name in ("pp", "dp", "ep") if name in given}
            if rest.get("ep", 1) > 1 and "dp" not in rest and rest["ep"] % tp == 0:
                rest["dp"] = rest["ep"] // tp
            tried.append(Parallelism(tp, **rest))
        except InputError as error:
            refused = error
    if not tried:
        assert refused is not None
        raise refused
    found = [p for p in tried if p.pp <= model.layers and holds(p)]
    if not found:
        raise _refusal("asked", model=model, gpu=gpu, spread=tried[-1], longest=f"{longest:,.0f}")
    return tuple(found) if tp_options and "tp" not in given else (found[0],)
