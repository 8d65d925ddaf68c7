"""Ways to spread a model over the GPUs of a replica."""

from __future__ import annotations

import pytest

from planner import plan
from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity, weight_bytes
from planner.errors import InputError
from planner.machine.engines import engine
from planner.machine.hardware import Parallelism
from planner.predict.parallel import parallel_choices, spreads

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances", "without_words")

SETTINGS = {"token_budget": 2048, "memory_utilization": 0.9}
OPEN = {"tp": None, "pp": None, "dp": None, "ep": None}


def test_what_is_asked_for_must_be_possible() -> None:
    with pytest.raises(InputError, match="experts are spread over all 8 GPUs"):
        Parallelism(2, dp=4, ep=4)
    with pytest.raises(InputError, match="pp must be a whole number"):
        Parallelism(2, pp=0)
    with pytest.raises(InputError, match="has no experts to spread"):
        spreads(model("llama-3.1-8b"), gpu("h100"), 8192, OPEN | {"dp": 2}, **SETTINGS)
    with pytest.raises(InputError, match="more than the 8 GPUs of a h100-80gb node"):
        spreads(model("llama-3.1-8b"), gpu("h100"), 8192, OPEN | {"tp": 16}, **SETTINGS)
    with pytest.raises(InputError, match="does not fit on h100-80gb x TP8 EP8"):
        spreads(model("deepseek-v3"), gpu("h100"), 8192, OPEN | {"ep": 8, "tp": 8}, **SETTINGS)


@pytest.mark.parametrize(
    ("name", "device", "asked", "found"),
    [
        ("llama-3.1-8b", "h100", {}, ["TP1", "TP2", "TP4", "TP8"]),
        ("llama-3.1-70b", "h100", {"pp": 2}, ["TP1 PP2"]),
        # 671 GB in 8 bits: a node of 8 x 141 GB holds them, one of 8 x 80 GB does not
        ("deepseek-v3", "h200", {}, ["TP8", "DP8 EP8"]),
        ("deepseek-v3", "h100", {}, ["TP8 PP2", "DP16 EP16"]),
        ("deepseek-v3", "h200", {"dp": 4}, ["TP2 DP4 EP8"]),
        ("deepseek-v3", "h200", {"ep": 8, "tp": 4}, ["TP4 DP2 EP8"]),
        ("deepseek-v3", "h200", {"tp": 8}, ["TP8"]),
        ("gpt-oss-120b", "b200", {}, ["TP1", "TP2", "TP4", "TP8", "DP8 EP8"]),
        ("llama-3.1-405b", "h100", {}, ["TP8 PP2"]),
    ],
)
def test_a_model_is_spread_as_it_needs(name: str, device: str, asked: dict[str, int], found: list[str]) -> None:
    ways = spreads(model(name), gpu(device), 8192, OPEN | asked, **SETTINGS)
    assert [str(way) for way in ways] == found


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.1-70b"])
def test_every_choice_is_one_an_engine_takes(name: str) -> None:
    network, device = model(name), gpu("h100")
    choices = parallel_choices(network, device)
    assert len(set(choices)) == len(choices)
    for way in choices:
        assert network.q_heads % way.tp == 0
        assert way.tp <= device.gpus_per_node
        assert way.ep in (1, way.stage_gpus)
        assert network.experts or way.dp == way.ep == 1


def test_memory_of_spread_experts() -> None:
    network, device = model("deepseek-v3"), gpu("h200")
    # every copy holds attention, dense layers and vocabulary; the experts (656e9 of 671e9 parameters) are held once by all
    group, copied = weight_bytes(network, 8), weight_bytes(network, Parallelism(dp=8))
    whole = weight_bytes(network)
    assert group == pytest.approx(whole / 8, rel=0.02)
    experts = 58 * 256 * 3 * 7168 * 2048
    assert copied == pytest.approx((whole - experts) + experts / 8, rel=1e-3)
    # the latent cache is copied in a tensor-parallel group: eight copies hold nearly eight times the tokens of it
    one, eight = (kv_capacity(network, device, way, max_num_seqs=64) for way in (8, Parallelism(dp=8)))
    assert eight.bytes_per_token == one.bytes_per_token
    assert 8 * eight.tokens > 4 * one.tokens


def test_stages_hold_the_layers_between_them() -> None:
    network = model("llama-3.1-70b")
    assert weight_bytes(network, Parallelism(4, 2)) == pytest.approx(weight_bytes(network, 8), rel=0.05)


@pytest.mark.parametrize("asked", [{"tp": 8}, {"tp": 1, "dp": 8}, {"tp": 4, "pp": 2}])
def test_a_plan_counts_every_gpu_and_keeps_its_promises(asked: dict[str, int]) -> None:
    found = plan(
        "azure", model="deepseek-v3", gpu="h200", slo=4.0, rate=30.0, burst="poisson", pools=1, confidence=0.5, **asked
    )
    pool = found.pools[0]
    assert pool.gpus == pool.replicas * 8
    assert found.cost_usd_per_hour == pytest.approx(pool.gpus * 3.59, rel=0.2)
    assert pool.quantile("ttft_s", 0.99) <= 4.0
    # what a replica holds at once is what its copies hold
    assert pool.slots == pool.settings.max_num_seqs * asked.get("dp", 1)
    flags = " ".join(engine("vllm").arguments(pool.settings.to_dict()))
    assert ("--enable-expert-parallel" in flags) == (asked.get("dp", 1) > 1)
    assert ("--pipeline-parallel-size 2" in flags) == ("pp" in asked)
