"""Configurations of current model families: facts from their public descriptions, with what their model cards say of them.

A row: what config.json says (abridged to what matters, `_blocks` spelled out); total parameters [1e9] as the maker prints
them and how many digits it prints; KV cache of one token in the layers that keep it and in the sliding-window layers
[bytes, 16-bit], and the recurrent state of a sequence [bytes], each as a product written from the description; sources.
Configurations were read on 2026-11-21, those marked AIC in github.com/ai-dynamo/aiconfigurator (commit 095f58a,
model_configs/), which keeps the makers' own files; counts from the pages named.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def shape(
    family: str,
    layers: int,
    hidden: int,
    mlp: int | None,
    heads: tuple[int, ...],
    vocab: int,
    context: int,
    **more: Any,
) -> dict[str, Any]:
    """The keys every configuration has; heads = (query, KV) or (query, KV, head size)."""
    config = {
        "model_type": family, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "vocab_size": vocab, "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    if len(heads) > 2:
        config["head_dim"] = heads[2]
    return {**config, **more}


def every(period: int, layers: int, rare: str, common: str) -> list[str]:
    """`rare` in every `period`-th layer, `common` elsewhere."""
    return [rare if (i + 1) % period == 0 else common for i in range(layers)]


def text(outer: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A multimodal configuration around a text model's."""
    return {"model_type": outer, "text_config": config, "vision_config": {"hidden_size": 1152}, **more}


class Family(NamedTuple):
    """One configuration and what its maker says."""

    config: dict[str, Any]
    parameters: float
    kv_bytes: float
    source: str
    window_bytes: float = 0.0
    state_bytes: float = 0.0
    active: float = 0.0


ACCEPTED: dict[str, Family] = {
    "llama-3.1-8b": Family(
        shape("llama", 32, 4096, 14336, (32, 8), 128256, 131072), 8.03, 32 * 2 * 8 * 128 * 2, "AIC; model card: 8.03B"),
    "qwen3-32b": Family(
        shape("qwen3", 64, 5120, 25600, (64, 8, 128), 151936, 40960), 32.8, 64 * 2 * 8 * 128 * 2, "AIC; model card: 32.8B"),
    "qwen3-coder-480b": Family(
        shape("qwen3_moe", 62, 6144, 8192, (96, 8, 128), 151936, 262144, moe_intermediate_size=2560, num_experts=160,
              num_experts_per_tok=8, shared_expert_intermediate_size=0),
        480, 62 * 2 * 8 * 128 * 2, "AIC; named 480B-A35B by its maker", active=35),
    "qwen3-next-80b-a3b": Family(
        shape("qwen3_next", 48, 2048, 5120, (16, 2, 256), 151936, 262144, **DELTA, linear_num_value_heads=32,
              full_attention_interval=4, num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
              shared_expert_intermediate_size=512),
        80, 12 * 2 * 2 * 256 * 2, "AIC (commit 1b7cfb1); named 80B-A3B by its maker",
        state_bytes=36 * (32 * 128 * 128 * 2 + 3 * (2 * 16 * 128 + 32 * 128) * 2)),
    "qwen3.5-27b": Family(
        text("qwen3_5", shape("qwen3_5_text", 64, 5120, 17408, (24, 4, 256), 248320, 262144, **DELTA, linear_num_value_heads=48,
             attn_output_gate=True, layer_types=every(4, 64, "full_attention", "linear_attention"), mamba_ssm_dtype="float32")),
        27, 16 * 2 * 4 * 256 * 2, "AIC; named 27B by its maker",
        state_bytes=48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2)),
    "qwen3.5-397b-a17b": Family(
        text("qwen3_5_moe", shape("qwen3_5_moe_text", 60, 4096, None, (32, 2, 256), 248320, 262144, **DELTA,
             linear_num_value_heads=64, attn_output_gate=True, layer_types=every(4, 60, "full_attention", "linear_attention"),
             num_experts=512, num_experts_per_tok=10, moe_intermediate_size=1024, shared_expert_intermediate_size=1024,
             mamba_ssm_dtype="float32")),
        397, 15 * 2 * 2 * 256 * 2, "AIC; named 397B-A17B by its maker", active=17,
        state_bytes=45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2)),
    "qwen3-vl-8b": Family(
        text("qwen3_vl", shape("qwen3_vl_text", 36, 4096, 12288, (32, 8, 128), 151936, 262144)),
        8.2, 36 * 2 * 8 * 128 * 2, "AIC; its text part is Qwen3-8B, whose card says 8.2B"),
    "qwen3-vl-30b-a3b": Family(
        text("qwen3_vl_moe", shape("qwen3_vl_moe_text", 48, 2048, 6144, (32, 4, 128), 151936, 262144, num_experts=128,
             num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[])),
        30.5, 48 * 2 * 4 * 128 * 2, "AIC; its text part is Qwen3-30B-A3B, whose card says 30.5B"),
    "deepseek-v3": Family(
        shape("deepseek_v3", 61, 7168, 18432, (128, 128), 129280, 163840, **MLA, first_k_dense_replace=3, n_routed_experts=256,
              n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, quantization_config=FP8),
        671, 61 * (512 + 64) * 2, "AIC; model card: 671B total, 37B active", active=37),
    "deepseek-v3.2": Family(
        shape("deepseek_v32", 61, 7168, 18432, (128, 128), 129280, 163840, **MLA, first_k_dense_replace=3, n_routed_experts=256,
              n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, quantization_config=FP8,
              index_head_dim=128, index_n_heads=64, index_topk=2048),
        671, 61 * ((512 + 64) * 2 + 128 + 4), "AIC; V3.1's size plus an indexer: 671B; index keys 132 bytes (vLLM docs)"),
    "kimi-k2": Family(
        shape("kimi_k2", 61, 7168, 18432, (64, 64), 163840, 131072, **MLA, first_k_dense_replace=1, n_routed_experts=384,
              n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, quantization_config=FP8),
        1040, 61 * (512 + 64) * 2, "AIC; technical report: 1.04T total, 32B active", active=32),
    "kimi-k2.5": Family(
        text("kimi_k25", shape("kimi_k2", 61, 7168, 18432, (64, 64), 163840, 262144, **MLA, first_k_dense_replace=1,
             n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
             quantization_config={"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*", "lm_head"],
                                  "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}})),
        1040, 61 * (512 + 64) * 2, "AIC; the text model of Kimi-K2"),
    "kimi-k3": Family(
        text("kimi_k3", shape("kimi_linear", 93, 7168, 33792, (96, 96), 163840, 1048576, **MLA, first_k_dense_replace=1,
             num_experts=896, num_experts_per_token=16, num_shared_experts=2, moe_intermediate_size=3072,
             routed_expert_hidden_size=3584, mla_use_output_gate=True, hidden_act="situ",
             linear_attn_config={"full_attn_layers": [*range(4, 93, 4), 93], "head_dim": 128, "num_heads": 96,
                                 "short_conv_kernel_size": 4, "use_full_rank_gate": True},
             quantization_config={"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
                                  "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}}})),
        2780, 24 * (512 + 64) * 2, "AIC; arXiv:2607.24653 table 1 as github.com/TimRots/kimi3 cites it: 2.78T, 104.2B active",
        state_bytes=69 * (96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2), active=104.2),
    "glm-4.7": Family(
        shape("glm4_moe", 92, 5120, 12288, (96, 8, 128), 151552, 202752, n_routed_experts=160, n_shared_experts=1,
              num_experts_per_tok=8, moe_intermediate_size=1536, first_k_dense_replace=3),
        357, 92 * 2 * 8 * 128 * 2, "AIC (commit a0ba9ec); GLM-4.6, of the same shape: 357B (atlascloud.ai)"),
    "glm-4.7-flash": Family(
        shape("glm4_moe_lite", 47, 2048, 10240, (20, 20), 154880, 202752, n_routed_experts=64, n_shared_experts=1,
              num_experts_per_tok=4, moe_intermediate_size=1536, first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=768,
              qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256),
        29.9, 47 * (512 + 64) * 2, "AIC (commit 19d098a); ollama.com/library/glm-4.7-flash: 29.9B"),
    "glm-5": Family(
        shape("glm_moe_dsa", 78, 6144, 12288, (64, 64, 64), 154880, 202752, n_routed_experts=256, n_shared_experts=1,
              num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=2048,
              qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, index_head_dim=128, index_n_heads=32, index_topk=2048),
        744, 78 * ((512 + 64) * 2 + 128 + 4), "AIC; model card: 744B total, 40B active"),
    "glm-5.2": Family(
        shape("glm_moe_dsa", 78, 6144, 12288, (64, 64, 192), 154880, 1048576, n_routed_experts=256, n_shared_experts=1,
              num_experts_per_tok=8, moe_intermediate_size=2048, mlp_layer_types=["dense"] * 3 + ["sparse"] * 75,
              kv_lora_rank=512, q_lora_rank=2048, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256,
              index_head_dim=128, index_n_heads=32, index_topk=2048, indexer_types=["full"] * 21 + ["shared"] * 57),
        744, 78 * (512 + 64) * 2 + 21 * (128 + 4), "AIC; GLM-5's size, indexers in 21 of 78 layers"),
    "minimax-m2": Family(
        shape("minimax_m2", 62, 3072, 1536, (48, 8, 128), 200064, 196608, num_local_experts=256, num_experts_per_tok=8,
              shared_intermediate_size=0, quantization_config=FP8),
        230, 62 * 2 * 8 * 128 * 2, "AIC; docs.sglang.io/basic_usage/minimax_m2: 230B total, 10B active"),
    "minimax-m3": Family(
        shape("minimax_m3", 60, 6144, 3072, (64, 4, 128), 200064, 1048576, dense_intermediate_size=12288, num_local_experts=128,
              num_experts_per_tok=4, n_shared_experts=1, shared_intermediate_size=3072, moe_intermediate_size=3072,
              moe_layer_freq=[0] * 3 + [1] * 57,
              sparse_attention_config={"use_sparse_attention": True, "sparse_attention_freq": [0] * 3 + [1] * 57,
                                       "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16,
                                       "sparse_block_size": 128}),
        428, 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2, "AIC; inference.readthedocs.io builtin/llm/minimax-m3: 428B, 23B active; "
        "one 16-bit index key of 128 per token (TensorRT-LLM MiniMaxM3SparseAttentionConfig)"),
    "llama-4-scout": Family(
        text("llama4", shape("llama4_text", 48, 5120, 8192, (40, 8, 128), 202048, 10485760, interleave_moe_layer_step=1,
             intermediate_size_mlp=16384, num_local_experts=16, num_experts_per_tok=1, attention_chunk_size=8192)),
        109, 48 * 2 * 8 * 128 * 2, "AIC; model card: 109B total, 17B active (with its image tower)", active=17),
    "llama-4-maverick": Family(
        text("llama4", shape("llama4_text", 48, 5120, 8192, (40, 8, 128), 202048, 1048576, interleave_moe_layer_step=2,
             intermediate_size_mlp=16384, num_local_experts=128, num_experts_per_tok=1, attention_chunk_size=8192)),
        400, 48 * 2 * 8 * 128 * 2, "AIC; model card: 400B total, 17B active", active=17),
    "gemma-3-27b": Family(
        text("gemma3", {"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "intermediate_size": 21504,
                        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024}),
        27.4, 10 * 2 * 16 * 128 * 2, "model card: 27.4B with its image tower", window_bytes=52 * 2 * 16 * 128 * 2),
    "gemma-4-26b-a4b": Family(
        text("gemma4", shape("gemma4_text", 30, 2816, 2112, (16, 8, 256), 262144, 262144, global_head_dim=512,
             num_global_key_value_heads=2, attention_k_eq_v=True, enable_moe_block=True, num_experts=128, top_k_experts=8,
             moe_intermediate_size=704, sliding_window=1024, tie_word_embeddings=True,
             layer_types=every(6, 30, "full_attention", "sliding_attention"))),
        25.2, 5 * 2 * 2 * 512 * 2, "AIC; huggingface.co/OpenExplorer/gemma-4-26B-A4B-it after the model card: 25.2B, 3.8B active",
        window_bytes=25 * 2 * 8 * 256 * 2, active=3.8),
    "gemma-4-31b": Family(
        text("gemma4", shape("gemma4_text", 60, 5376, 21504, (32, 16, 256), 262144, 262144, global_head_dim=512,
             num_global_key_value_heads=4, attention_k_eq_v=True, sliding_window=1024, tie_word_embeddings=True,
             num_experts=None, layer_types=every(6, 60, "full_attention", "sliding_attention"))),
        31, 10 * 2 * 4 * 512 * 2, "AIC (NVFP4 copy); named 31B by its maker", window_bytes=50 * 2 * 16 * 256 * 2),
    "gpt-oss-120b": Family(
        shape("gpt_oss", 36, 2880, 2880, (64, 8, 64), 201088, 131072, num_local_experts=128, num_experts_per_tok=4,
              sliding_window=128, layer_types=every(2, 36, "full_attention", "sliding_attention"),
              quantization_config={"quant_method": "mxfp4"}),
        116.83, 18 * 2 * 8 * 64 * 2, "AIC; model card (arXiv:2508.10925): 116.83B", window_bytes=18 * 2 * 8 * 64 * 2),
    "mimo-v2-flash": Family(
        shape("mimo_v2_flash", 48, 4096, 16384, (64, 4, 192), 152576, 262144, v_head_dim=128, sliding_window=128,
              swa_num_attention_heads=64, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128,
              hybrid_layer_pattern=[0] + [1] * 39 + [0] * 8, moe_layer_freq=[0] + [1] * 47, n_routed_experts=256,
              n_shared_experts=None, num_experts_per_tok=8, moe_intermediate_size=2048, quantization_config=FP8),
        309, 9 * 4 * (192 + 128) * 2, "AIC; README: 309B total, 15B active", window_bytes=39 * 8 * (192 + 128) * 2, active=15.4),
    "nemotron-3-nano-30b-a3b": Family(
        shape("nemotron_h", 52, 2688, 1856, (32, 2, 128), 131072, 262144, n_routed_experts=128, n_shared_experts=1,
              num_experts_per_tok=6, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712, conv_kernel=4,
              mamba_num_heads=64, mamba_head_dim=64, n_groups=8, ssm_state_size=128, mamba_ssm_cache_dtype="float32",
              hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"),
        31.6, 6 * 2 * 2 * 128 * 2, "AIC; technical report: 31.6B total, 3.6B active with embeddings", active=3.6,
        state_bytes=23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)),
    "nemotron-3-super-120b-a12b": Family(
        shape("nemotron_h", 88, 4096, 2688, (32, 2, 128), 131072, 262144, n_routed_experts=512, n_shared_experts=1,
              num_experts_per_tok=22, moe_intermediate_size=2688, moe_latent_size=1024, conv_kernel=4,
              moe_shared_expert_intermediate_size=5376, mamba_num_heads=128, mamba_head_dim=64, n_groups=8, ssm_state_size=128,
              mamba_ssm_cache_dtype="float32", hybrid_override_pattern="MEMEMEM*E" + "MEMEMEM*E" * 2 + "MEMEMEMEM*E" * 4
              + "MEMEMEM*E" + "MEMEMEME"),
        120.6, 8 * 2 * 2 * 128 * 2, "AIC; named 120B-A12B by its maker (technical report: 120.6B, 12.7B active)", active=12.7,
        state_bytes=40 * (128 * 64 * 128 * 4 + 3 * (128 * 64 + 2 * 8 * 128) * 2)),
    "nemotron-h-56b": Family(
        shape("nemotron_h", 118, 8192, 32768, (64, 8), 131072, 8192, attention_head_dim=128, conv_kernel=4, mamba_num_heads=256,
              mamba_head_dim=64, n_groups=8, ssm_state_size=256,
              hybrid_override_pattern="M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"),
        56, 10 * 2 * 8 * 128 * 2, "AIC; named 56B by its maker",
        state_bytes=54 * (256 * 64 * 256 * 2 + 3 * (256 * 64 + 2 * 8 * 256) * 2)),
    "granite-4.0-h-small": Family(
        shape("granitemoehybrid", 40, 4096, 768, (32, 8), 100352, 131072, num_local_experts=72, num_experts_per_tok=10,
              shared_intermediate_size=1536, mamba_d_conv=4, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1,
              mamba_n_heads=128, tie_word_embeddings=True,
              layer_types=["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)]),
        32, 4 * 2 * 8 * 128 * 2, "ollama.com/ibm/granite4:small-h (GGUF metadata), layer pattern of granite-4.0-h-tiny's "
        "config.json; named 32B-A9B by its maker", state_bytes=36 * (128 * 64 * 128 * 2 + 3 * (128 * 64 + 2 * 128) * 2), active=9),
    "ministral-3-8b": Family(
        text("mistral3", shape("ministral3", 34, 4096, 14336, (32, 8, 128), 131072, 262144, tie_word_embeddings=False)),
        8.4, 34 * 2 * 8 * 128 * 2, "huggingface.co/IMISLab/Maistros-8B-Instruct-4bit config.json; model card: 8.4B text part"),
    "mistral-small-3.2-24b": Family(
        text("mistral3", shape("mistral", 40, 5120, 32768, (32, 8, 128), 131072, 131072, sliding_window=None,
             tie_word_embeddings=False)),
        24.0, 40 * 2 * 8 * 128 * 2, "huggingface.co/AIPrep/gem-mid-ckpt config.json (same shape); model card: 24B"),
    "olmo-2-32b": Family(
        shape("olmo2", 64, 5120, 27648, (40, 8), 100352, 4096), 32.2, 64 * 2 * 8 * 128 * 2,
        "huggingface.co/allenai/OLMo-2-0325-32B config.json; model card: 32.2B"),
    "olmo-3-7b": Family(
        shape("olmo3", 32, 4096, 11008, (32, 32), 100278, 65536, sliding_window=4096,
              layer_types=every(4, 32, "full_attention", "sliding_attention")),
        7.3, 8 * 2 * 32 * 128 * 2, "huggingface.co/mlx-community/Olmo-3-7B-RLZero-Code-4bit config.json; model card: 7.3B",
        window_bytes=24 * 2 * 32 * 128 * 2),
    "phi-4": Family(
        shape("phi3", 40, 5120, 17920, (40, 10), 100352, 16384, sliding_window=None), 14.7, 40 * 2 * 10 * 128 * 2,
        "microsoft/phi-4 config.json; model card: 14.7B"),
    "seed-oss-36b": Family(
        shape("seed_oss", 64, 5120, 27648, (80, 8, 128), 155136, 524288), 36, 64 * 2 * 8 * 128 * 2,
        "huggingface.co/darkc0de/4.3test2 config.json, transformers docs; model card: 36B"),
}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "deepseek-v4-flash": (
        shape("deepseek_v4", 43, 4096, 2048, (64, 1, 512), 129280, 1048576, compress_ratios=[0, 0, 4, 128]),
        "'deepseek_v4' is not modelled: its cache compressed by layer",
    ),
    "llama-3.3-nemotron-super-49b": (
        shape("nemotron-nas", 80, 8192, 28672, (64, 8), 128256, 131072, block_configs=[]),
        "'nemotron-nas' is not modelled: blocks that differ from layer to layer",
    ),
    "step-3.7-flash": (
        shape("step3p7", 45, 4096, 11264, (64, 8, 128), 128896, 65536),
        "'step3p7' is not modelled: another number of query heads",
    ),
    "gemma-4-e4b": (
        text("gemma4", shape("gemma4_text", 42, 2560, 10240, (8, 2, 256), 262144, 131072, hidden_size_per_layer_input=256)),
        "hidden_size_per_layer_input: 256 is not modelled",
    ),
    "falcon-h1-7b": (
        shape("falcon_h1", 44, 3072, 12288, (12, 2, 128), 130049, 262144),
        "'falcon_h1' is not modelled: attention and state-space heads side by side",
    ),
}  # fmt: skip
