"""A Hugging Face ``config.json`` -> :class:`planner.machine.hardware.ModelSpec`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.catalog.images import encoder_of
from planner.errors import InputError, did_you_mean, refuse
from planner.machine.hardware import DTYPE_BYTES, ModelSpec
from planner.shared.documents import parse_json, read_text, shipped

_KNOWN = shipped(Path(__file__).with_name("families.yaml"))

FAMILIES: Mapping[str, Mapping[str, Any]] = _KNOWN["families"]
"""Model types this reader knows, with the defaults of their configuration class."""

NOT_MODELLED: Mapping[str, str] = _KNOWN["not_modelled"]
"""Model types that are known and refused, with what the arithmetic here lacks for them."""

_TEXT_OF: Mapping[str, str] = _KNOWN["text_of"]
_KINDS: Mapping[str, str] = _KNOWN["kinds"]
_KEYS: Mapping[str, Sequence[Any]] = _KNOWN["keys"]
_REQUIRED = ("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")


def model_from_config(path: Path, like: str | None = None) -> ModelSpec:
    """Read a ``config.json``.

    Parameters
    ----------
    path
        The file.
    like
        Family whose arithmetic to take for an architecture that is not known; its estimates carry a wider band.

    Returns
    -------
    ModelSpec
        Named after the file's folder (``config.json``) or stem; parameter counts follow from the shape.

    Raises
    ------
    InputError
        Not readable, not JSON, an unknown architecture or one that is not modelled, or keys missing or ill-typed: all
        named at once.
    """
    where = str(path)
    if not path.is_file():
        raise InputError(f"{where}: no such file", "Give a model of the catalog or the path of a config.json.")
    # some families write Infinity, which JSON does not have; what is used of a file is checked by key
    raw = parse_json(read_text(path), where, infinite=True)
    if not isinstance(raw, dict):
        raise InputError(f"{where}: expected a JSON object with the keys of a Hugging Face config.json")
    beside = path.with_name("hf_quant_config.json")
    if "quantization_config" not in raw and path.name == "config.json" and beside.is_file():
        try:
            raw["quantization_config"] = {
                "quant_method": "modelopt",
                **parse_json(read_text(beside), str(beside))["quantization"],
            }
        except (KeyError, TypeError):
            raise InputError(f"{beside}: has no `quantization`") from None
    stem = path.parent.resolve().name if path.name == "config.json" else path.stem
    return model_from_mapping(raw, where, stem or "model", like)


def model_from_mapping(raw: Mapping[str, Any], where: str, name: str, like: str | None = None) -> ModelSpec:
    """The same from a parsed ``config.json``: `where` names it in complaints, `name` the model."""
    if like is not None and like not in FAMILIES:
        raise InputError(f"unknown family {like!r}{did_you_mean(like, FAMILIES)}", f"Known: {', '.join(FAMILIES)}.")
    return _Reader(where, raw, like).spec(name=name)


_INDEXER = ("index_layers", "index_heads", "index_head_dim", "index_bytes", "index_topk")
"""The indexer of sparse attention: layers with one, its shape, bytes it caches of a token, tokens it lets through."""

_MOST = 10**9
"""No dimension of a model is larger."""


class _Reader:
    """Collects every problem of one file before it complains."""

    def __init__(self, where: str, raw: Mapping[str, Any], like: str | None) -> None:
        self.where = where
        self.problems: list[str] = []
        nested = raw.get("text_config") or raw.get("llm_config")
        text: Mapping[str, Any] = nested if isinstance(nested, dict) else {}
        outer = str(raw.get("model_type", ""))
        own = str(text.get("model_type") or _TEXT_OF.get(outer, outer))
        self.like = like if like and own not in FAMILIES else ""
        self.family = self.like or own
        self.multimodal, self.outer = "vision_config" in raw, outer
        self.prefix = "text_config." if text else ""
        self.values = {**FAMILIES.get(self.family, {}), **raw, **text}
        self.slides = bool(self.values.get("sliding_window")) and self.values.get("use_sliding_window") is not False
        if text and "tie_word_embeddings" not in text and "tie_word_embeddings" not in raw:
            self.values["tie_word_embeddings"] = FAMILIES.get(self.family, {}).get("tie_word_embeddings", False)
        self.raw = raw
        if not own:
            self.problems.append("model_type: missing")
        elif self.family in NOT_MODELLED:
            self.problems.append(f"model_type: {own!r} is not modelled: {NOT_MODELLED[self.family]}")
        elif self.family not in FAMILIES:
            self.problems.append(f"model_type: unknown family {own!r}{did_you_mean(own, FAMILIES)}")
        self.complain()

    def complain(self) -> None:
        """Raise what was found wrong so far."""
        refuse(
            [f"{self.where}: {p}" for p in self.problems],
            f"Give the config.json of a model of one of these families: {', '.join(FAMILIES)}; or --set like=FAMILY takes "
            "one's arithmetic, with a wider band.",
        )

    def number(self, name: str) -> int:
        """A quantity of the table :data:`_KEYS`, under the first of its keys that is present and not null; else its default."""
        *keys, default = _KEYS[name]
        return self.whole(*keys, default=default, least=0 if default == 0 else 1)

    def whole(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of these keys that is present and not null, as a whole number."""
        key = next((key for key in keys if self.values.get(key) is not None), None)
        if key is None and default is not None:
            return default
        value: Any = None if key is None else self.values[key]
        if type(value) in (int, float) and least <= value <= _MOST and value % 1 == 0:
            return int(value)
        told = "missing" if key is None else f"expected a whole number >= {least}, got {value!r}"
        self.problems.append(f"{self.prefix}{key or ' or '.join(keys)}: {told}")
        return max(least, default or 1)

    def kinds(self) -> Counter[str]:
        """How many layers have which mixer: full, sliding, state, or none (mlp, moe)."""
        v = self.values
        # blocks listed one by one, as letters or words, say how many layers there are
        blocks = v.get("hybrid_override_pattern") or v.get("layers_block_type")
        if blocks:
            return self._named(blocks, "hybrid_override_pattern" if isinstance(blocks, str) else "layers_block_type")
        layers = self.whole("num_hidden_layers")
        linear = v.get("linear_attn_config")
        if isinstance(linear, dict):
            full = len(linear.get("full_attn_layers") or ())
            return Counter(full=full, state=layers - full)
        types = v.get("layer_types")
        if isinstance(types, list):
            if len(types) != layers:
                self.problems.append(f"{self.prefix}layer_types: {len(types)} entries for {layers} layers")
            found = self._named(types, "layer_types")
        elif isinstance(v.get("hybrid_layer_pattern"), list):
            found = Counter("sliding" if local else "full" for local in v["hybrid_layer_pattern"])
        elif "linear_num_value_heads" in v:
            full = layers // self.whole("full_attention_interval")
            found = Counter(full=full, state=layers - full)
        else:
            full = self._full_by_pattern(layers)
            found = Counter(full=full, sliding=layers - full)
        if not self.slides:
            found["full"] += found.pop("sliding", 0)
        return found

    def _named(self, names: Any, key: str) -> Counter[str]:
        """Kinds of a list (or string of letters) of layer names."""
        for name in sorted({str(n) for n in names} - _KINDS.keys()):
            self.problems.append(f"{self.prefix}{key}: layers {name!r} are not modelled")
        return Counter(_KINDS.get(str(n), "full") for n in names)

    def _full_by_pattern(self, layers: int) -> int:
        """Layers with full attention where only a rhythm of sliding windows is given."""
        v = self.values
        if not self.slides:
            return layers
        pattern = v.get("sliding_window_pattern") or v.get("_sliding_window_pattern")
        if isinstance(pattern, str) and pattern:  # "LLLG"
            return sum(pattern[i % len(pattern)] == "G" for i in range(layers))
        if isinstance(pattern, int) and pattern > 0:
            return layers // pattern
        if self.family.startswith("qwen"):
            return self.number("max_window_layers")
        return 0

    def dense_layers(self, mixers: Counter[str]) -> int:
        """Layers with a dense MLP in a model with experts."""
        v, layers = self.values, mixers.total()
        if mixers["moe"] or mixers["mlp"]:
            return mixers["mlp"]
        for key, dense in (("mlp_layer_types", "dense"), ("moe_layer_freq", 0)):
            if isinstance(v.get(key), list):
                return sum(1 for kind in v[key] if kind == dense)
        first, step = self.number("dense_first"), self.number("expert_step")
        if step > 1:
            return layers - layers // step
        named = v.get("mlp_only_layers")
        return first + (len(named) if isinstance(named, list) else 0)

    def state(self) -> tuple[float, float]:
        """(bytes of one sequence's state, parameters) of one layer with linear attention or a state-space mixer."""
        v, hidden = self.values, self.values.get("hidden_size")
        if not isinstance(hidden, int):
            return 0.0, 0.0
        told = v.get("mamba_ssm_cache_dtype") or v.get("mamba_ssm_dtype")
        stored = DTYPE_BYTES["fp32" if told == "float32" else "bf16"]
        if "linear_num_value_heads" in v:  # gated delta net
            key_heads, key_dim, heads, size, kernel = (
                self.whole(f"linear_{what}")
                for what in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
            )
            keys, values = key_heads * key_dim, heads * size
            channels = 2 * keys + values
            weights = hidden * (2 * keys + 2 * values + 2 * heads) + channels * kernel + values * hidden
            kept = heads * key_dim * size
        elif isinstance(v.get("linear_attn_config"), dict):  # Kimi delta attention
            delta: Mapping[str, Any] = v["linear_attn_config"]
            heads, size = int(delta.get("num_heads", 0)), int(delta.get("head_dim", 0))
            values, kernel = heads * size, int(delta.get("short_conv_kernel_size", 4))
            channels, decay = 3 * values, hidden * size + size * values
            gate = hidden * values if delta.get("use_full_rank_gate") else decay
            weights = hidden * (3 * values + heads) + gate + decay + channels * kernel + values * hidden
            kept, stored = heads * size * size, 4.0
        else:  # Mamba-2
            names = ("heads", "head_dim", "state", "conv", "groups")
            heads, size, depth, kernel, shared = (self.number(f"mamba_{what}") for what in names)
            inner = heads * size
            channels = inner + 2 * shared * depth
            weights = hidden * (inner + channels + heads) + channels * (kernel + 1) + inner * hidden
            kept = inner * depth
        return float((kernel - 1) * channels * 2 + kept * stored), float(weights)

    def weight_dtypes(self) -> tuple[str, str]:
        """How the checkpoint stores its experts (or everything), and the rest where that differs."""
        quant = self.values.get("quantization_config") or self.raw.get("quantization_config")
        if not isinstance(quant, dict):
            dtype = str(self.values.get("torch_dtype") or self.values.get("dtype") or "bfloat16")
            # engines serve float32 checkpoints in 16 bits unless told otherwise
            return ("fp16" if dtype.endswith("float16") and not dtype.endswith("bfloat16") else "bf16"), ""
        method = str(quant.get("quant_method", "")).lower()
        groups = quant.get("config_groups")
        first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
        weights = (first.get("weights") or {}) if isinstance(first, dict) else {}
        bits = weights.get("num_bits", quant.get("bits", quant.get("w_bit")))
        algorithm = str(quant.get("quant_algo", "")).lower()
        if algorithm == "mixed_precision":
            self.problems.append("quantization_config: layers in different dtypes (MIXED_PRECISION) are not modelled")
            return "bf16", ""
        left = quant.get("ignore") or quant.get("exclude_modules") or quant.get("modules_to_not_convert") or ()
        # a checkpoint that leaves attention alone quantized its experts
        rest = "bf16" if any("attn" in str(name) and "*" in str(name) for name in left) else ""
        if method == "mxfp4" or "mxfp4" in str(quant.get("format", "")):
            return "mxfp4", ""
        if method in DTYPE_BYTES:
            return method, ""
        if method in ("fbgemm_fp8", "modelopt") and "fp4" not in algorithm:
            return "fp8", ""
        if "fp4" in algorithm or (bits == 4 and weights.get("type") == "float"):
            return "fp4", rest
        if bits == 8:
            return ("fp8" if weights.get("type") == "float" else "int8"), ""
        if bits == 4 or quant.get("load_in_4bit"):
            group = weights.get("group_size", quant.get("group_size"))
            return ("int4-g32" if isinstance(group, int) and 0 < group <= 32 else "int4"), rest
        if quant.get("load_in_8bit"):
            return "int8", ""
        self.problems.append(f"quantization_config: unknown weight dtype (quant_method {method!r}, bits {bits!r})")
        return "bf16", ""

    def attention(self, mixers: Counter[str], q_heads: int) -> dict[str, Any]:
        """Heads, latent ranks, windows and indexers."""
        v = self.values
        latent = {name: self.number(name) for name in ("kv_lora_rank", "v_head_dim")}
        if lora := latent["kv_lora_rank"]:
            latent |= {k: self.whole(k) for k in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")}
            latent["q_lora_rank"] = self.number("q_lora_rank")
        elif v.get("latent"):
            self.problems.append("kv_lora_rank: missing")
        kv_heads = self.whole("num_key_value_heads", default=q_heads)
        hidden = v.get("hidden_size")
        even = hidden // q_heads if isinstance(hidden, int) else 1
        both = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"] if lora else 0
        head_dim = both or self.whole("head_dim", "attention_head_dim", default=max(1, even))
        sliding_heads, sliding_dim = self.number("swa_num_key_value_heads"), 0
        if v.get("global_head_dim"):  # full layers with a head of their own (Gemma 4)
            sliding_heads, sliding_dim, head_dim = kv_heads, head_dim, self.whole("global_head_dim")
            kv_heads = self.whole("num_global_key_value_heads", default=kv_heads)
        same = {"swa_num_attention_heads": q_heads, "swa_head_dim": head_dim, "swa_v_head_dim": latent["v_head_dim"]}
        for key in same:
            if v.get(key) not in (None, same[key]):
                self.problems.append(f"{self.prefix}{key}: {v[key]!r}, other than in the full layers, is not modelled")
        for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
            if v.get(key):
                self.problems.append(f"{self.prefix}{key}: {v[key]!r} is not modelled")
        if q_heads % kv_heads and not lora:
            self.problems.append(
                f"{self.prefix}num_attention_heads: {q_heads} is not a multiple of num_key_value_heads ({kv_heads})"
            )
        window = self.whole("sliding_window") if mixers["sliding"] else 0
        return {
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            **latent,
            "sliding_window": window,
            "full_attention_layers": mixers["full"],
            "sliding_kv_heads": sliding_heads if window else 0,
            "sliding_head_dim": sliding_dim if window else 0,
            "attention_gate": bool(v.get("attn_output_gate") or v.get("mla_use_output_gate")),
            "tied_values": bool(v.get("attention_k_eq_v")),
            **self.indexer(mixers["full"]),
        }

    def indexer(self, layers: int) -> dict[str, Any]:
        """The indexer of sparse attention, where there is one."""
        v = self.values
        blocks = v.get("sparse_attention_config")
        if isinstance(blocks, dict) and blocks.get("use_sparse_attention"):  # MiniMax: blocks of tokens, 16-bit keys
            which = blocks.get("sparse_attention_freq") or blocks.get("sparse_disable_index_value")
            heads, size, each, top = (
                int(blocks.get(f"sparse_{what}", 0))
                for what in ("num_index_heads", "index_dim", "block_size", "topk_blocks")
            )
            layers = sum(map(bool, which)) if isinstance(which, list) else layers
            return dict(zip(_INDEXER, (layers, heads, size, 2.0 * size, top * each), strict=True))
        if not v.get("index_n_heads"):
            return {}
        which = v.get("indexer_types")
        layers = sum(1 for t in which if t == "full") if isinstance(which, list) else layers
        size = self.whole("index_head_dim")
        # 8-bit keys with one 32-bit scale (DeepSeek-V3.2 in vLLM and SGLang)
        found = layers, self.whole("index_n_heads"), size, size + 4.0, self.whole("index_topk")
        return dict(zip(_INDEXER, found, strict=True))

    def experts(self, mixers: Counter[str]) -> dict[str, Any]:
        """The mixture, or the dense MLP alone."""
        v, layers = self.values, mixers.total()
        count = self.number("experts")
        if not count:
            width = self.number("shared_width") or self.whole("intermediate_size")
            return {"intermediate_size": width, "dense_layers": mixers["mlp"] or layers}
        width = self.whole("moe_intermediate_size", "intermediate_size")
        shared, together = self.number("shared_experts"), self.number("shared_together")
        if v.get("enable_moe_block"):  # a dense MLP beside the experts in every layer (Gemma 4)
            together = self.whole("intermediate_size")
        dense = self.dense_layers(mixers)
        keys = ("intermediate_size_mlp", "dense_intermediate_size") if dense else ()
        return {
            "intermediate_size": self.whole(*keys, "intermediate_size", default=width),
            "experts": count,
            "experts_per_token": self.number("experts_per_token"),
            "moe_intermediate_size": width,
            "shared_experts": shared or (1 if together else 0),
            "shared_intermediate_size": 0 if together == width * shared else together,
            "dense_layers": dense,
            "expert_hidden_size": self.number("expert_hidden"),
        }

    def spec(self, name: str) -> ModelSpec:
        """Everything read, or every problem."""
        from planner.catalog.kv import with_parameter_counts

        hidden, q_heads, vocab, context = (self.whole(key) for key in _REQUIRED)
        mixers = self.kinds()
        layers = mixers.total()
        attention, experts = self.attention(mixers, q_heads), self.experts(mixers)
        state = self.state() if mixers["state"] else (0.0, 0.0)
        dtype, rest = self.weight_dtypes()
        alone, mixing = mixers["mlp"] + mixers["moe"], mixers["full"] + mixers["sliding"] + mixers["state"]
        pooling = str(self.values.get("pooling") or "")
        if pooling not in ("", "encoder", "decoder"):
            self.problems.append(f"pooling: expected encoder or decoder, got {pooling!r}")
        self.complain()
        seen = self.raw.get("vision_config")
        vision = encoder_of(self.outer, seen) if isinstance(seen, dict) else None
        return with_parameter_counts(
            ModelSpec(
                name=name,
                layers=layers,
                hidden_size=hidden,
                q_heads=q_heads,
                vocab_size=vocab,
                max_context=context - self.number("position_offset"),
                tied_embeddings=bool(pooling or self.values.get("tie_word_embeddings", False)),
                weight_dtype=dtype,
                dense_dtype=rest if experts.get("experts") else "",
                attention_free_layers=mixers["state"] + alone,
                mlp_free_layers=mixing if alone else 0,
                state_layers=mixers["state"],
                state_bytes=state[0],
                state_parameters=state[1],
                mlp_matrices=self.number("mlp_matrices"),
                pooling=pooling,
                multimodal=self.multimodal,
                vision=vision,
                image_family=self.outer if vision else "",
                like=self.like,
                source=self.where,
                **attention,
                **experts,
            )
        )
