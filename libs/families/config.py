"""A Hugging Face `config.json` as the frozen shape that a model is built from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from libs.families.family import FAMILIES, Family
from libs.families.rope import RopeConfig, read_ropes
from libs.versions.ends import token_ids
from libs.versions.errors import LoadError

Activation = Literal["silu", "gelu_tanh"]

_MOST_LAYERS = 1024  # several times those of the largest; each layer costs before its weights are missed

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and variants of a decoder. `hidden` is the width of the feed-forward part; `head_width` need not be
    `width / heads`."""

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
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """What attention and the feed-forward part add is multiplied by it."""
    logit_scale: float = 1.0
    """Logits are divided by it."""
    logit_cap: float = 0.0
    """As `attention_cap`, of logits."""
    query_scale: float = 0.0
    """What queries are multiplied by; 0 for one through the root of `head_width`."""
    attention_cap: float = 0.0
    """Scores s of attention become cap · tanh(s / cap), where it is not 0."""
    windows: tuple[int, ...] = ()
    """By layer, how many tokens one of it sees, its own among them; 0 for all. Empty where no layer has less than the
    context."""

    layer_ropes: tuple[RopeConfig | None, ...] = ()
    """By layer, its rotary embedding, if it has one; empty where it is `rope` in all."""

    @property
    def family(self) -> Family:
        """What it has in common with all checkpoints of its architecture."""
        return FAMILIES[self.architecture]

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The rotary embeddings that any layer has, each once."""
        return tuple(dict.fromkeys(each for each in self.layer_ropes or (self.rope,) if each is not None))

    def rope_of(self, layer: int) -> RopeConfig | None:
        """The rotary embedding of a layer, if it has one."""
        return self.layer_ropes[layer] if self.layer_ropes else self.rope


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Translate the content of config.json.

    :raises LoadError: an unsupported architecture or variant, sizes that cannot be, or a field that is missing or
        malformed; the message names it.
    """
    try:
        return _parse(raw)
    except LoadError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise LoadError(f"malformed ({type(error).__name__}: {error})") from error


def _parse(raw: Mapping[str, Any]) -> ModelConfig:
    architecture = next(iter(raw.get("architectures") or []), "unnamed")
    if architecture not in FAMILIES:
        raise LoadError(f"architecture {architecture} is not supported")
    family = FAMILIES[architecture]
    raw = {**family.fields, **raw}
    own = {name: raw[name] for name in family.fields}
    if raw.get("use_bidirectional_attention"):
        raise LoadError("attention to later tokens (use_bidirectional_attention) is not supported")
    context = int(raw["max_position_embeddings"])
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unnamed")
        raise LoadError(f"weights quantised by {method} are not supported; give the unquantised checkpoint")
    if (layers := int(raw["num_hidden_layers"])) > _MOST_LAYERS:
        raise LoadError(f"num_hidden_layers is {layers}; at most {_MOST_LAYERS} are supported")
    heads, width = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    sliding = _sliding(family, raw)
    rope, local_rope = read_ropes(family, raw, context)
    bias = bool(own.get("attention_bias", False))
    config = ModelConfig(
        architecture=architecture,
        vocabulary=int(raw["vocab_size"]),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_width=int(raw.get("head_dim") or _shared_width(width, heads)),
        hidden=int(raw["intermediate_size"]),
        context=context,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=rope,
        layer_ropes=_layer_ropes(family, raw, sliding, rope, local_rope),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bias or family.qkv_bias,
        output_bias=bias,
        mlp_bias=bool(own.get("mlp_bias", False)),
        eos_token_ids=token_ids(raw.get("eos_token_id")),
        bos_token_id=next(iter(token_ids(raw.get("bos_token_id"))), None),
        activation=_activation(raw.get(family.activation, "silu")),
        embedding_scale=math.sqrt(width) if family.scaled_embeddings else _factor(own, "embedding_multiplier", 1.0),
        residual_scale=_factor(own, "residual_multiplier", 1.0),
        logit_scale=_factor(own, "logits_scaling", 1.0),
        query_scale=_factor(own, "attention_multiplier", _factor(own, "query_pre_attn_scalar", 0.0, power=-0.5)),
        attention_cap=_factor(own, "attn_logit_softcapping", 0.0),
        logit_cap=_factor(own, "final_logit_softcapping", 0.0),
        windows=_windows(raw, sliding, context),
    )
    _check_sizes(config)
    return config


def _activation(name: Any) -> Activation:
    if name not in _ACTIVATIONS:
        raise LoadError(f"activation {name} is not supported")
    return _ACTIVATIONS[name]


def _check_sizes(config: ModelConfig) -> None:
    sizes = (config.layers, config.vocabulary, config.context, config.width, config.heads, config.kv_heads)
    if min(*sizes, config.hidden, config.head_width) < 1:
        raise LoadError("a size is below 1")
    if config.heads % config.kv_heads:
        raise LoadError(f"{config.heads} query heads cannot share {config.kv_heads} key heads evenly")
    if config.head_width % 2:
        raise LoadError(f"head_dim {config.head_width} is odd; the rotary embedding turns pairs")
    for rope in config.ropes:
        turned = rope.turned(config.head_width)
        if turned < 2 or turned % 2:
            raise LoadError(f"partial_rotary_factor {rope.share} turns {turned} numbers of a head: not pairs")
        if rope.kind == "longrope" and len(rope.factors) != turned // 2:
            raise LoadError(f"longrope has {len(rope.factors)} factors for {turned // 2} frequencies")


def _shared_width(width: int, heads: int) -> int:
    if width % heads:
        raise LoadError(f"hidden_size {width} is no multiple of {heads} heads and head_dim is not given")
    return width // heads


def _factor(own: Mapping[str, Any], name: str, absent: float, power: float = 1.0) -> float:
    """A field of the family's own to some power; `absent` where it has none or is null."""
    if own.get(name) is None:
        return absent
    value = float(own[name])
    if not 0 < value < math.inf:
        raise LoadError(f"{name} is {value}; it must be above 0")
    return value**power


def _layer_ropes(
    family: Family, raw: Mapping[str, Any], sliding: Sequence[bool], rope: RopeConfig, local: RopeConfig
) -> tuple[RopeConfig | None, ...]:
    if family.ropeless:
        return tuple(None if _ropeless(raw, layer) else rope for layer in range(len(sliding)))
    return tuple(local if each else rope for each in sliding) if family.local_rope else ()


def _ropeless(raw: Mapping[str, Any], layer: int) -> bool:
    if raw.get("no_rope_layers") is not None:
        return not _of_layer(raw, "no_rope_layers", layer)
    return (layer + 1) % int(raw["no_rope_layer_interval"]) == 0


def _sliding(family: Family, raw: Mapping[str, Any]) -> list[bool]:
    """Which layers are meant to have a window, whatever its length."""
    if not family.windows or not raw.get("use_sliding_window", True):
        return [False] * int(raw["num_hidden_layers"])
    return [_slides(family, raw, layer) for layer in range(int(raw["num_hidden_layers"]))]


def _slides(family: Family, raw: Mapping[str, Any], layer: int) -> bool:
    if family.windows == "every":
        return True
    if raw.get("layer_types"):
        return bool(_of_layer(raw, "layer_types", layer) != "full_attention")
    if family.windows == "ropeless":
        return _ropeless(raw, layer)
    if family.windows == "pattern":
        return (layer + 1) % int(raw["sliding_window_pattern"]) != 0
    return layer >= int(raw["max_window_layers"])


def _of_layer(raw: Mapping[str, Any], name: str, layer: int) -> Any:
    if len(raw[name]) <= layer:
        raise LoadError(f"{name} says nothing of layer {layer}")
    return raw[name][layer]


def _windows(raw: Mapping[str, Any], sliding: Sequence[bool], context: int) -> tuple[int, ...]:
    if not any(sliding) or raw.get("sliding_window") is None:
        return ()
    window = int(raw["sliding_window"])
    if window < 1:
        raise LoadError(f"sliding_window is {window}; a token sees itself at least")
    return tuple(window if each else 0 for each in sliding) if window < context else ()
