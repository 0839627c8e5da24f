"""Reads a Hugging Face `config.json` into the frozen shape that the model is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.versions.ends import ends_of, token_ids
from services.worker.engines.port import EngineLoadError
from services.worker.model_files import ModelFiles

GENERATION = "generation_config.json"

# What transformers takes for a field that config.json leaves out, where the architectures differ.
_ABSENT: Mapping[str, Mapping[str, Any]] = {
    "LlamaForCausalLM": {"bos_token_id": 1, "eos_token_id": 2},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096},
}

ARCHITECTURES = tuple(_ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding. `kind` is "default", "linear" (positions divided by `factor`) or "llama3", which divides only
    the slow frequencies and blends between; the last three fields are its parameters.

    A checkpoint's "dynamic" is read as "default": it changes frequencies only past max_position_embeddings, where this
    engine's context ends."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and variants of a Llama-family decoder. `hidden` is the width of the feed-forward part; `head_width` need
    not be `width / heads`."""

    architecture: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    context: int
    norm_eps: float
    rope: RopeConfig
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def load_config(files: ModelFiles) -> ModelConfig:
    """The configuration of a checkpoint. What ends a sequence is said in three places: see `libs.versions.ends`.

    :raises EngineLoadError: a file is missing, malformed or asks for something this engine does not do.
    """
    path = files.folder / "config.json"
    raw = files.read_object("config.json")
    generation = files.read_object(GENERATION) if GENERATION in files else {}
    raw |= {key: generation[key] for key in ("bos_token_id",) if key in generation}
    try:
        if ends := ends_of(lambda name: files.read_object(name) if name in files else {}):
            raw["eos_token_id"] = list(ends)
        return parse_config(raw)
    except EngineLoadError as error:
        raise EngineLoadError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EngineLoadError(f"{path}: malformed ({type(error).__name__}: {error})") from error


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Translate the content of config.json.

    :raises EngineLoadError: an unsupported architecture or variant.
    :raises KeyError: a required field is missing.
    """
    architecture = next(iter(raw.get("architectures") or []), "unnamed")
    if architecture not in ARCHITECTURES:
        raise EngineLoadError(f"architecture {architecture} is not supported")
    raw = {**_ABSENT[architecture], **raw}
    context = int(raw["max_position_embeddings"])
    _refuse_variants(architecture, raw, context)
    heads, width = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    # Only Llama has optional biases: transformers ignores the two fields in the other architectures.
    llama = architecture == "LlamaForCausalLM"
    bias = llama and bool(raw.get("attention_bias", False))
    config = ModelConfig(
        architecture=architecture,
        vocabulary=int(raw["vocab_size"]),
        width=width,
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_width=int(raw.get("head_dim") or _shared_width(width, heads)),
        hidden=int(raw["intermediate_size"]),
        context=context,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw, context),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bias or architecture == "Qwen2ForCausalLM",
        output_bias=bias,
        mlp_bias=llama and bool(raw.get("mlp_bias", False)),
        eos_token_ids=token_ids(raw.get("eos_token_id")),
        bos_token_id=next(iter(token_ids(raw.get("bos_token_id"))), None),
    )
    _check_sizes(config)
    return config


def _check_sizes(config: ModelConfig) -> None:
    sizes = (config.layers, config.vocabulary, config.context, config.width, config.heads, config.kv_heads)
    if min(*sizes, config.hidden, config.head_width) < 1:
        raise EngineLoadError("a size is below 1")
    if config.heads % config.kv_heads:
        raise EngineLoadError(f"{config.heads} query heads cannot share {config.kv_heads} key heads evenly")
    if config.head_width % 2:
        raise EngineLoadError(f"head_dim {config.head_width} is odd; the rotary embedding turns pairs")


def _shared_width(width: int, heads: int) -> int:
    if width % heads:
        raise EngineLoadError(f"hidden_size {width} is no multiple of {heads} heads and head_dim is not given")
    return width // heads


def _refuse_variants(architecture: str, raw: Mapping[str, Any], context: int) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise EngineLoadError(f"activation {raw['hidden_act']} is not supported")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unnamed")
        raise EngineLoadError(f"weights quantised by {method} are not supported; give the unquantised checkpoint")
    if _slides(architecture, raw) and int(raw["sliding_window"]) < context:
        raise EngineLoadError(f"sliding-window attention over {raw['sliding_window']} tokens is not supported")


def _slides(architecture: str, raw: Mapping[str, Any]) -> bool:
    """Whether any layer's attention is bounded to `sliding_window`."""
    if raw.get("sliding_window") is None:
        return False
    if architecture == "MistralForCausalLM":
        return True
    if architecture == "LlamaForCausalLM" or not raw.get("use_sliding_window", False):
        return False
    if raw.get("layer_types"):
        return any(kind != "full_attention" for kind in raw["layer_types"])
    return int(raw.get("max_window_layers", 28)) < int(raw["num_hidden_layers"])


def _rope(raw: Mapping[str, Any], context: int) -> RopeConfig:
    # transformers 5 writes everything into rope_parameters; earlier versions into rope_theta and rope_scaling.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise EngineLoadError("rotary embeddings that differ between layers are not supported")
    if float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise EngineLoadError("rotary embedding of a part of each head is not supported")
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind in ("default", "dynamic"):
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=float(scaling["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            # transformers prefers the field beside rope_parameters where both are given.
            original_context=int(
                raw.get("original_max_position_embeddings")
                or scaling.get("original_max_position_embeddings")
                or context
            ),
        )
    raise EngineLoadError(f"rotary embedding of type {kind} is not supported")
