"""config.json files of current families against what their makers say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.catalog import gpu, model, profile
from planner.catalog.kv import kv_capacity, weight_bytes
from planner.cli.main import app
from planner.errors import InputError
from planner.machine.hardware import ModelSpec, shard
from planner.machine.roofline import roofline
from tests.catalog.families import ACCEPTED, REFUSED, shape

GIB = 2.0**30


def read(folder: Path, config: dict[str, Any], like: str | None = None) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return model(path, like=like)


@pytest.mark.parametrize("name", ACCEPTED)
def test_size_and_cache_of_a_family(name: str, tmp_path: Path) -> None:
    family = ACCEPTED[name]
    spec = read(tmp_path, family.config)
    assert spec.parameters_total == pytest.approx(family.parameters * 1e9, rel=0.02)
    if family.active:  # makers round it, and count the embedding or not
        assert spec.parameters_active == pytest.approx(family.active * 1e9, rel=0.1)
    part = shard(spec)
    assert part.full_bytes_per_token == pytest.approx(family.kv_bytes, rel=1e-9)
    assert part.window_bytes_per_token == pytest.approx(family.window_bytes, rel=1e-9)
    assert part.state_bytes_per_sequence == pytest.approx(family.state_bytes, rel=1e-9)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_family_has_an_estimate_and_a_place(name: str, tmp_path: Path) -> None:
    spec = read(tmp_path, ACCEPTED[name].config)
    tp = 4 if spec.q_heads % 8 else 8
    times = roofline(gpu("b200"), spec, tp)
    assert 0.0 < times.time(8, 8000.0) < times.time(512, 512 * 1000.0) < 1.0
    # every GPU of a group holds at least its share, and what is copied besides
    assert spec.parameters_total > 0.0 and weight_bytes(spec, tp) >= weight_bytes(spec, 1) / tp * 0.999
    assert kv_capacity(spec, gpu("b200"), tp, max_num_seqs=64).usable_bytes > 0.0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    assert message in str(caught.value)
    assert caught.value.exit_code == 3


def test_enough_families() -> None:
    assert len(ACCEPTED) >= 30


def test_an_unknown_architecture_goes_by_a_family_with_a_wider_band(tmp_path: Path) -> None:
    config = shape("brandnew", 32, 4096, 14336, (32, 8, 128), 128256, 131072)
    with pytest.raises(InputError, match="unknown family 'brandnew'") as caught:
        read(tmp_path, config)
    assert "--set like=FAMILY" in (caught.value.hint or "")
    spec = read(tmp_path, config, like="llama")
    assert spec.like == "llama"
    known = read(tmp_path, {**config, "model_type": "llama"}, like="llama")
    assert known.like == ""
    bands = [profile(gpu=gpu("h100"), model=m, tp=1).band for m in (spec, known)]
    assert bands[0] == pytest.approx(1.5 * bands[1])
    assert spec.parameters_total == known.parameters_total
    with pytest.raises(InputError, match="unknown family 'lama'; did you mean 'llama'"):
        read(tmp_path, config, like="lama")


def test_kinds_of_layers_nobody_measured_widen_the_band() -> None:
    band = {
        name: profile(gpu=gpu("h100"), model=model(name), tp=8).band
        for name in ("deepseek-v3", "deepseek-v3.2", "qwen3.5-397b-a17b")
    }
    assert band["deepseek-v3.2"] == band["qwen3.5-397b-a17b"] == pytest.approx(1.5 * band["deepseek-v3"])


def test_recurrent_states_count_per_sequence(tmp_path: Path) -> None:
    """Nemotron-3-Nano keeps 47 MiB a sequence: 1,000 sequences take 46 GiB whatever their length."""
    spec = read(tmp_path, ACCEPTED["nemotron-3-nano-30b-a3b"].config)
    few, many = (kv_capacity(spec, gpu("b200"), max_num_seqs=n) for n in (100, 200))
    assert few.kv_bytes - few.tokens * few.bytes_per_token == pytest.approx(100 * few.bytes_per_sequence, rel=1e-3)
    assert many.tokens < few.tokens
    assert kv_capacity(spec, gpu("h100"), max_num_seqs=1000).tokens == 0


def test_windows_count_per_sequence_once_they_are_full() -> None:
    oss, device = model("gpt-oss-120b"), gpu("h200")
    short = kv_capacity(oss, device, max_num_seqs=8192, memory_utilization=0.95)
    long = kv_capacity(oss, device, max_num_seqs=64, memory_utilization=0.95)
    every_layer = 36 * 2 * 8 * 64 * 2
    assert short.tokens == pytest.approx(max(0.0, short.kv_bytes) / every_layer, abs=16)
    kept = 18 * 2 * 8 * 64 * 2 * (64 * (128 + 16) + 8192)
    assert long.tokens * long.bytes_per_token + kept == pytest.approx(long.kv_bytes, rel=1e-3)


def test_quantization_beside_the_configuration(tmp_path: Path) -> None:
    """Older ModelOpt checkpoints keep it in a file of its own."""
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})
    )
    assert read(tmp_path, ACCEPTED["qwen3-32b"].config).weight_dtype == "fp4"


def test_experts_quantized_alone(tmp_path: Path) -> None:
    spec = read(tmp_path, ACCEPTED["kimi-k2.5"].config)
    assert (spec.weight_dtype, spec.dense_weight_dtype) == ("int4-g32", "bf16")
    # 4-bit experts with a 16-bit scale per 32 weights, 16-bit everything else; the maker's files take 595 GB
    assert weight_bytes(spec) == pytest.approx(595e9, rel=0.02)


def test_layers_in_different_dtypes_are_refused(tmp_path: Path) -> None:
    config = {
        **ACCEPTED["qwen3-32b"].config,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    }
    with pytest.raises(InputError, match="MIXED_PRECISION"):
        read(tmp_path, config)


def test_layer_lists_that_do_not_add_up(tmp_path: Path) -> None:
    config = {**ACCEPTED["olmo-3-7b"].config, "layer_types": ["full_attention"] * 3 + ["hyena"]}
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    assert "layer_types: 4 entries for 32 layers" in str(caught.value)
    assert "layers 'hyena' are not modelled" in str(caught.value)


def test_a_plan_by_likeness_says_so(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shape("brandnew", 32, 4096, 14336, (32, 8, 128), 128256, 131072)))
    asked = ["plan", "--cdf", "azure.csv", "--slo", "9", "--method", "mgc", "--model", str(path)]
    with pytest.raises(InputError, match="unknown family 'brandnew'"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    result = CliRunner().invoke(app, ["explain", *asked[1:], "--set", "like=llama"])
    assert result.exit_code == 0
    assert "known only by its likeness to llama" in " ".join(result.stdout.split())
