"""Families of decoders as data: what sets each apart from a Llama.

All of them are embeddings, layers of attention and a gated feed-forward part, each added to what went into it, a last
norm and an output layer. A family says which variant of each piece its class in transformers has; sizes are the
checkpoint's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """A layer's norms before and after attention and feed-forward part, by the names of their tensors; empty where
    there is none."""

    attention_in: str = ""
    attention_out: str = ""
    mlp_in: str = ""
    mlp_out: str = ""


PRE = Norms(attention_in="input_layernorm", mlp_in="post_attention_layernorm")
POST = Norms(attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
SANDWICH = Norms(
    attention_in="input_layernorm",
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture. `title` and `checkpoints` are for people.

    `fields` are those of config.json that its class reads beyond what all read, and what it takes where one is left
    out; of those that only some families have, no other is read, whatever it says.
    """

    title: str
    checkpoints: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    norms: Norms = PRE
    norm_from_one: bool = False
    """Norms multiply by one plus their weight."""
    head_norms: Literal["", "each", "whole"] = ""
    """Norms of queries and keys before the rotary embedding: of each head, or of all heads as one vector."""
    qkv_bias: bool = False
    """Queries, keys and values have biases whatever config.json says."""
    fused: bool = False
    """Checkpoints hold one qkv_proj and one gate_up_proj."""
    activation: str = "hidden_act"
    """The field of config.json that names it."""
    scaled_embeddings: bool = False
    """Embeddings are multiplied by the root of their width."""
    windows: Literal["", "every", "upper", "pattern", "ropeless"] = ""
    """Which layers see no more than `sliding_window` tokens: every one; or, where `layer_types` does not say, those
    from `max_window_layers` on, all but each `sliding_window_pattern`-th, or those without rotary embedding."""
    local_rope: bool = False
    """Layers with a window have a rotary embedding of their own."""
    ropeless: bool = False
    """Layers have no rotary embedding where `no_rope_layers` is 0; where that is not given, each
    `no_rope_layer_interval`-th has none."""
    partial_rotary: bool = False
    """Its rotary embedding may turn a part of each head."""
    rope_names: Mapping[str, str] = field(default_factory=dict)
    """Kinds of rotary embedding that mean another one here."""


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(
        title="Llama 2, 3",
        checkpoints="Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM2, DeepSeek-R1-Distill-Llama",
        fields={"attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "MistralForCausalLM": Family(
        title="Mistral",
        checkpoints="Mistral 7B, Nemo, Small, Zephyr",
        fields={"num_key_value_heads": 8, "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2},
        windows="every",
    ),
    "Qwen2ForCausalLM": Family(
        title="Qwen2",
        checkpoints="Qwen2, Qwen2.5, QwQ, DeepSeek-R1-Distill-Qwen",
        fields={
            "num_key_value_heads": 32, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
        },
        qkv_bias=True,
        windows="upper",
    ),
    "Qwen3ForCausalLM": Family(
        title="Qwen3",
        checkpoints="Qwen3 0.6B to 32B, dense",
        fields={
            "num_key_value_heads": 32, "head_dim": 128, "attention_bias": False, "use_sliding_window": False,
            "sliding_window": 4096, "max_window_layers": 28,
        },
        head_norms="each",
        windows="upper",
    ),
    "Phi3ForCausalLM": Family(
        title="Phi-3",
        checkpoints="Phi-3-mini, Phi-3.5-mini, Phi-4-mini, Phi-4",
        fields={
            "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": None, "bos_token_id": 1,
            "eos_token_id": 32000,
        },
        fused=True,
        windows="every",
        partial_rotary=True,
        rope_names={"su": "longrope", "yarn": "longrope"},
    ),
    "Gemma2ForCausalLM": Family(
        title="Gemma 2",
        checkpoints="Gemma 2 2B, 9B, 27B",
        fields={
            "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "attention_bias": False,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0, "sliding_window": 4096, "sliding_window_pattern": 2, "bos_token_id": 2,
            "eos_token_id": 1,
        },
        norms=SANDWICH,
        norm_from_one=True,
        activation="hidden_activation",
        scaled_embeddings=True,
        windows="pattern",
    ),
    "Gemma3ForCausalLM": Family(
        title="Gemma 3 (text)",
        checkpoints="Gemma 3 270M, 1B",
        fields={
            "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "attention_bias": False,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "final_logit_softcapping": None,
            "sliding_window": 4096, "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "bos_token_id": 2, "eos_token_id": 1,
        },
        norms=SANDWICH,
        norm_from_one=True,
        head_norms="each",
        activation="hidden_activation",
        scaled_embeddings=True,
        windows="pattern",
        local_rope=True,
    ),
    "GraniteForCausalLM": Family(
        title="Granite 3",
        checkpoints="Granite 3.0 to 3.3, dense",
        fields={
            "attention_bias": False, "mlp_bias": False, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
            "attention_multiplier": 1.0, "logits_scaling": 1.0, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "Olmo2ForCausalLM": Family(
        title="OLMo 2",
        checkpoints="OLMo 2 1B to 32B",
        fields={"attention_bias": False, "rms_norm_eps": 1e-5, "eos_token_id": 50279},
        norms=POST,
        head_norms="whole",
    ),
    "SmolLM3ForCausalLM": Family(
        title="SmolLM3",
        checkpoints="SmolLM3 3B",
        fields={
            "num_key_value_heads": 4, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
            "rope_theta": 2e6, "no_rope_layer_interval": 4, "use_sliding_window": False, "sliding_window": None,
            "bos_token_id": 128000, "eos_token_id": 128001,
        },
        windows="ropeless",
        ropeless=True,
    ),
}  # fmt: skip
"""By the name under `architectures` in config.json."""
