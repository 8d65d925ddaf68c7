"""Adapters: their size against published counts, the memory and time that they take from a replica, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from planner.catalog import gpu, model
from planner.catalog.kv import adapter_bytes, kv_capacity
from planner.errors import InputError
from planner.machine.engines import engine
from planner.machine.hardware import Parallelism
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.size.grid import engine_choices
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

ASKED = {"gpu": "h100", "rate": 5.0, "slo": 1.0, "pools": 1, "tp": 1, "token_budget": 2048}
LENGTHS = "isl=1000,isl-spread=0.5,osl=200,osl-spread=0.5"


@pytest.mark.parametrize(
    ("name", "numbers"),
    # "trainable params" that PEFT prints for rank 16 and all linear layers
    [("llama-3.1-8b", 41_943_040), ("mistral-7b", 41_943_040), ("llama-2-7b", 39_976_960), ("qwen2.5-7b", 40_370_176)],
)
def test_an_adapter_has_the_numbers_that_are_published(name: str, numbers: int) -> None:
    assert adapter_bytes(model(name), Parallelism(1), 16) == 2 * numbers
    assert adapter_bytes(model(name), Parallelism(1), 64) == 8 * numbers


def test_a_group_cuts_one_side_of_every_layer_and_copies_the_other() -> None:
    # Llama-3.1-8B by hand: q, o 4096; k, v 1024; gate, up, down 14336; 32 layers, rank 16, 2 bytes
    inputs = 3 * 4096 + 2 * 4096 + (4096 + 14336) / 4
    outputs = (4096 + 2 * 1024 + 2 * 14336) / 4 + 2 * 4096
    assert adapter_bytes(model("llama-3.1-8b"), Parallelism(4), 16) == pytest.approx(
        2 * 16 * 32 * (inputs + outputs), rel=1e-12
    )
    assert adapter_bytes(model("llama-3.1-8b"), Parallelism(1, pp=2), 16) == 41_943_040


def test_memory_is_taken_from_the_cache_and_two_milliseconds_from_an_iteration() -> None:
    plain, adapted = (planner.plan(LENGTHS, **ASKED, lora=n).pools[0] for n in (0, 100))
    slots = adapted.slots
    room = kv_capacity(model("llama-3.1-8b"), gpu("h100"), max_num_seqs=slots, token_budget=2048)
    left = room.kv_bytes - 100 * 2 * 41_943_040
    assert adapted.kv_tokens == pytest.approx(left / 131_072, abs=16)
    assert adapted.iteration["t0"] - plain.iteration["t0"] == pytest.approx(2e-3, rel=1e-9)
    assert (adapted.settings.max_loras, adapted.settings.max_lora_rank) == (100, 16)
    assert (plain.settings.max_loras, plain.settings.max_lora_rank) == (0, 0)


def test_a_measured_cache_gives_way_too() -> None:
    inputs = PlanInputs.from_dict({"cdf": LENGTHS, **ASKED, "lora": 100})
    option = engine_choices(compile_question(inputs, Workload.from_file(LENGTHS)))[0]
    measured = replace(option, profile=replace(option.profile, kv_tokens=400_000))
    # 131,072 bytes of cache a token
    assert measured.kv_tokens(64) == 400_000 - 100 * 2 * 41_943_040 / 131_072
    assert replace(measured, lora=0).kv_tokens(64) == 400_000


@pytest.mark.usefixtures("with_words")
def test_as_many_as_are_told_fit_and_one_more_does_not() -> None:
    with pytest.raises(
        InputError, match=r"lora: no replica of h100-80gb bears more than ([\d,]+) adapters of rank 64"
    ) as found:
        planner.plan(LENGTHS, **ASKED, lora=100_000, lora_rank=64)
    most = int(str(found.value).split("more than ")[1].split(" ")[0].replace(",", ""))
    told = [str(line) for line in planner.plan(LENGTHS, **ASKED, lora=most, lora_rank=64).assumptions]
    assert any(f"which bears {most:,} of them" in line for line in told)
    with pytest.raises(InputError, match="no replica"):
        planner.plan(LENGTHS, **ASKED, lora=most + 1, lora_rank=64)


def test_flags() -> None:
    settings = {"tensor_parallel_size": 1, "max_loras": 8, "max_lora_rank": 16}
    assert engine("vllm").arguments(settings)[-5:] == ["--enable-lora", "--max-loras", "8", "--max-lora-rank", "16"]
    assert "--max-loras-per-batch" in engine("sglang").arguments(settings)
    assert "--enable-lora" not in engine("vllm").arguments(
        {"tensor_parallel_size": 1, "max_loras": 0, "max_lora_rank": 0}
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"lora": -1}, "must not be negative"),
        ({"lora_rank": 20}, "write 32"),
        ({"model": "mixtral-8x7b", "tp": 2}, "mixtral-8x7b is a mixture of experts"),
        ({"model": "bge-m3", "token_budget": 8192}, "a model that writes nothing"),
        ({"engine": "trtllm"}, "engine trtllm: how it starts adapters"),
    ],
)
def test_refused(options: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        planner.plan(LENGTHS, **{**ASKED, "lora": 2, **options})
