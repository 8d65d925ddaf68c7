"""A Hugging Face ``config.json`` -> :class:`planner.hardware.ModelSpec`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError, did_you_mean
from planner.hardware import DTYPE_BYTES, ModelSpec

__all__ = ["FAMILIES", "model_from_config"]

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    # what a config.json of the family may leave out because the library's class has a default for it
    "llama": {"tie_word_embeddings": False},
    "mistral": {"tie_word_embeddings": False},
    "ministral": {"tie_word_embeddings": False},
    "mixtral": {"tie_word_embeddings": False, "sliding_window": None},
    "qwen2": {"tie_word_embeddings": False, "use_sliding_window": False},
    "qwen2_moe": {"tie_word_embeddings": False, "use_sliding_window": False},
    "qwen3": {"tie_word_embeddings": False, "use_sliding_window": False, "head_dim": 128},
    "qwen3_moe": {"tie_word_embeddings": False, "use_sliding_window": False, "head_dim": 128},
    "phi3": {"tie_word_embeddings": False},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"tie_word_embeddings": False, "head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "deepseek_v2": {"tie_word_embeddings": False},
    "deepseek_v3": {"tie_word_embeddings": False},
    "kimi_k2": {"tie_word_embeddings": False},
    "llama4_text": {"tie_word_embeddings": False, "head_dim": 128, "shared_experts": 1},
}
"""Model types this reader knows, with the defaults of their configuration class."""

# where the text model of a multimodal configuration says nothing of its own type
_TEXT_OF = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text"}

_REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")


def model_from_config(path: Path) -> ModelSpec:
    """Read a ``config.json``.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    ModelSpec
        Named after the file's folder (``config.json``) or stem; parameter counts follow from the shape.

    Raises
    ------
    InputError
        Not readable, not JSON, an unknown architecture, or keys missing or ill-typed: all named at once.
    """
    where = str(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{where}: no such file", "Give a model of the catalog or the path of a config.json."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}:{error.lineno}: not JSON ({error.msg})") from None
    if not isinstance(raw, dict):
        raise InputError(f"{where}: expected a JSON object with the keys of a Hugging Face config.json")
    stem = path.parent.resolve().name if path.name == "config.json" else path.stem
    return _Reader(where, raw).spec(name=stem or "model")


class _Reader:
    """Collects every problem of one file before it complains."""

    def __init__(self, where: str, raw: Mapping[str, Any]) -> None:
        self.where = where
        self.problems: list[str] = []
        nested = raw.get("text_config")
        text: Mapping[str, Any] = nested if isinstance(nested, dict) else {}
        outer = str(raw.get("model_type", ""))
        self.family = str(text.get("model_type") or _TEXT_OF.get(outer, outer))
        self.multimodal = "vision_config" in raw
        self.prefix = "text_config." if text else ""
        self.values = {**FAMILIES.get(self.family, {}), **raw, **text}
        if text and "tie_word_embeddings" not in text and "tie_word_embeddings" not in raw:
            self.values["tie_word_embeddings"] = FAMILIES.get(self.family, {}).get("tie_word_embeddings", False)
        self.raw = raw
        if not self.family:
            self.problems.append("model_type: missing")
        elif self.family not in FAMILIES:
            self.problems.append(f"model_type: unknown family {self.family!r}{did_you_mean(self.family, FAMILIES)}")

    def whole(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of these keys that is present and not null, as a whole number."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < least:
                self.problems.append(f"{self.prefix}{key}: expected a whole number >= {least}, got {value!r}")
                return max(least, default or 1)
            return int(value)
        if default is None:
            self.problems.append(f"{self.prefix}{' or '.join(keys)}: missing")
            return 1
        return default

    def sliding(self, layers: int) -> tuple[int, int]:
        """(window [tokens], layers that attend to the whole context); no window = (0, layers)."""
        v = self.values
        window = v.get("sliding_window")
        if not window or v.get("use_sliding_window") is False:
            return 0, layers
        window = self.whole("sliding_window")
        types = v.get("layer_types")
        if isinstance(types, list):
            return window, sum(1 for t in types if t == "full_attention")
        pattern = v.get("sliding_window_pattern")
        if isinstance(pattern, int) and pattern > 0:
            return window, layers // pattern
        if self.family.startswith("qwen"):
            return window, self.whole("max_window_layers", default=0, least=0)
        return window, 0

    def weight_dtype(self) -> str:
        """How the checkpoint stores its linear layers."""
        quant = self.values.get("quantization_config") or self.raw.get("quantization_config")
        if not isinstance(quant, dict):
            dtype = str(self.values.get("torch_dtype") or self.values.get("dtype") or "bfloat16")
            # engines serve float32 checkpoints in 16 bits unless told otherwise
            return "fp16" if dtype.endswith("float16") and not dtype.endswith("bfloat16") else "bf16"
        method = str(quant.get("quant_method", "")).lower()
        groups = quant.get("config_groups")
        first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
        weights = (first.get("weights") or {}) if isinstance(first, dict) else {}
        bits = weights.get("num_bits", quant.get("bits", quant.get("w_bit")))
        algorithm = str(quant.get("quant_algo", "")).lower()
        if method in DTYPE_BYTES:
            return method
        if method in ("fbgemm_fp8", "modelopt") and "fp4" not in algorithm:
            return "fp8"
        if "fp4" in algorithm or (bits == 4 and weights.get("type") == "float"):
            return "fp4"
        if bits == 8:
            return "fp8" if weights.get("type") == "float" else "int8"
        if bits == 4 or quant.get("load_in_4bit"):
            return "int4"
        if quant.get("load_in_8bit"):
            return "int8"
        self.problems.append(f"quantization_config: unknown weight dtype (quant_method {method!r}, bits {bits!r})")
        return "bf16"

    def spec(self, name: str) -> ModelSpec:
        from planner.catalog.kv import with_parameter_counts

        v = self.values
        layers, hidden, q_heads, vocab, context = (self.whole(key) for key in _REQUIRED)
        lora = self.whole("kv_lora_rank", default=0, least=0)
        rope = nope = value_dim = q_lora = 0
        if lora:
            rope, nope, value_dim = (self.whole(k) for k in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
            q_lora = self.whole("q_lora_rank", default=0, least=0)
        elif self.family.startswith(("deepseek", "kimi")):
            self.problems.append("kv_lora_rank: missing")
        kv_heads = self.whole("num_key_value_heads", default=q_heads)
        head_dim = nope + rope if lora else self.whole("head_dim", default=max(1, hidden // q_heads))
        experts = self.whole("num_local_experts", "n_routed_experts", "num_experts", default=0, least=0)
        per_token = moe_mlp = shared = dense = 0
        if experts:
            per_token = self.whole("num_experts_per_tok", "experts_per_token")
            moe_mlp = self.whole("moe_intermediate_size", "intermediate_size")
            shared = self.whole("n_shared_experts", "shared_experts", default=0, least=0)
            if v.get("shared_expert_intermediate_size"):
                shared = round(self.whole("shared_expert_intermediate_size") / moe_mlp)
            dense = self.whole("first_k_dense_replace", default=0, least=0)
            step = self.whole("interleave_moe_layer_step", "decoder_sparse_step", default=1)
            if step > 1:
                dense = layers - layers // step
        mlp = self.whole(*(("intermediate_size_mlp",) if dense else ()), "intermediate_size")
        window, full = self.sliding(layers)
        dtype = self.weight_dtype()
        tied = bool(v.get("tie_word_embeddings", False))
        if not self.problems and q_heads % kv_heads:
            self.problems.append(
                f"{self.prefix}num_attention_heads: {q_heads} is not a multiple of num_key_value_heads ({kv_heads})"
            )
        if self.problems:
            raise InputError.from_problems(
                [f"{self.where}: {p}" for p in self.problems],
                f"Give the config.json of a model of one of these families: {', '.join(FAMILIES)}.",
            )
        return with_parameter_counts(
            ModelSpec(
                name=name,
                layers=layers,
                hidden_size=hidden,
                intermediate_size=mlp,
                q_heads=q_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                vocab_size=vocab,
                max_context=context,
                tied_embeddings=tied,
                weight_dtype=dtype,
                experts=experts,
                experts_per_token=per_token,
                moe_intermediate_size=moe_mlp,
                shared_experts=shared,
                dense_layers=dense if experts else layers,
                kv_lora_rank=lora,
                qk_rope_head_dim=rope,
                qk_nope_head_dim=nope,
                v_head_dim=value_dim,
                q_lora_rank=q_lora,
                sliding_window=window,
                full_attention_layers=full,
                multimodal=self.multimodal,
                source=self.where,
            )
        )
