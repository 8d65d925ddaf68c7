"""Reading Hugging Face config.json files, abridged to the keys that matter, as their repositories publish them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import model
from planner.catalog.kv import kv_bytes_per_token, weight_bytes
from planner.errors import InputError

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": False, "vocab_size": 152064,
    },
    "qwen3-4b": {
        "model_type": "qwen3", "head_dim": 128, "hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 40960,
        "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 768, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "sliding_window": None,
        "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "mistral-nemo-12b": {
        "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 131072,
    },
    "gemma-3-27b": {
        "model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {
            "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
            "num_attention_heads": 32,
            "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
        },
    },
    "gemma-3-4b": {
        "model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072, "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": 201088,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False, "vocab_size": 129280,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    },
    "llama-4-scout": {
        "model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": {
            "model_type": "llama4_text", "head_dim": 128, "hidden_size": 5120, "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760, "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16, "vocab_size": 202048,
        },
    },
    "phi-4": {
        "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384,
        "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 100352,
    },
}  # fmt: skip


def write(folder: Path, config: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_same_shape_as_the_catalog(name: str, tmp_path: Path) -> None:
    read = model(write(tmp_path, CONFIGS[name]))
    known = model(name)
    for field in dataclasses.fields(known):
        if field.name not in (
            "name",
            "aliases",
            "source",
            "parameters_total",
            "parameters_active",
            "vision",
            "image_family",
        ):
            assert getattr(read, field.name) == getattr(known, field.name), field.name
    assert read.parameters_total == pytest.approx(known.parameters_total, rel=0.10 if known.multimodal else 0.004)
    assert kv_bytes_per_token(read, 2) == kv_bytes_per_token(known, 2)
    assert weight_bytes(read, 2) == pytest.approx(weight_bytes(known, 2), rel=0.1 if known.multimodal else 1e-9)


def test_a_folder_will_do_and_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    write(folder, CONFIGS["llama-3.1-8b"])
    assert model(folder).name == model(folder / "config.json").name == "my-model"


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            "int8",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    ],
)
def test_quantization(quantization: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    config = {**CONFIGS["llama-3.1-8b"], "quantization_config": quantization}
    assert model(write(tmp_path, config)).weight_dtype == dtype


def test_all_missing_keys_are_named_at_once(tmp_path: Path) -> None:
    config = {k: v for k, v in CONFIGS["qwen3-4b"].items() if k not in ("num_hidden_layers", "vocab_size")}
    config["hidden_size"] = "wide"
    path = write(tmp_path, config)
    with pytest.raises(InputError) as caught:
        model(path)
    text = str(caught.value)
    for expected in (
        "num_hidden_layers: missing",
        "vocab_size: missing",
        "hidden_size: expected a whole number >= 1, got 'wide'",
    ):
        assert f"{path}: {expected}" in text
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ({"model_type": "mixtrall"}, "unknown family 'mixtrall'; did you mean 'mixtral'?"),
        ({}, "model_type: missing"),
        ({**CONFIGS["llama-3.1-8b"], "num_key_value_heads": 7}, "32 is not a multiple of num_key_value_heads (7)"),
        (
            {**CONFIGS["llama-3.1-8b"], "quantization_config": {"quant_method": "hqq"}},
            "quantization_config: unknown weight dtype",
        ),
        ({**CONFIGS["deepseek-v3"], "kv_lora_rank": None}, "kv_lora_rank: missing"),
        (
            {**CONFIGS["gemma-3-4b"], "text_config": {"model_type": "gemma3_text"}},
            "text_config.num_hidden_layers: missing",
        ),
    ],
)
def test_unusable_files(config: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        model(write(tmp_path, config))
    assert message in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        model(tmp_path / "absent.json")
