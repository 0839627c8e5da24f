"""LoRA adapters as PEFT writes them: read and checked against the base model.

An adapter adds `B · A · x` to what some linear layers make of `x`. PEFT's scale (lora_alpha / r) is folded into B.
Whatever would change the result in another way (biases, DoRA, replaced modules, changed base weights) is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from libs.families import ModelConfig
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.weights import WEIGHT_TYPES, Weights, open_tensors
from services.worker.model_files import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
TARGETS: tuple[Target, ...] = ("q", "k", "v", "o", "gate", "up", "down")

Targets = tuple[Target, ...]
"""What one module of the base model computes: several where its projections are fused."""

_MODULES: Mapping[str, Targets] = {
    "self_attn.q_proj": ("q",),
    "self_attn.k_proj": ("k",),
    "self_attn.v_proj": ("v",),
    "self_attn.o_proj": ("o",),
    "mlp.gate_proj": ("gate",),
    "mlp.up_proj": ("up",),
    "mlp.down_proj": ("down",),
}
_FUSED: Mapping[str, Targets] = {
    "self_attn.qkv_proj": ("q", "k", "v"),
    "self_attn.o_proj": ("o",),
    "mlp.gate_up_proj": ("gate", "up"),
    "mlp.down_proj": ("down",),
}
_PREFIX = "base_model.model."

# Fields that do not change what a trained adapter computes, or that are read below.
_READ = frozenset(("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"))
_READ |= {"exclude_modules", "layers_to_transform", "layers_pattern", "peft_type", "bias", "init_lora_weights"}
_INERT = frozenset(("auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "inference_mode", "revision"))
_INERT |= {"lora_dropout", "loftq_config", "eva_config", "megatron_config", "megatron_core", "peft_version"}
_INERT |= {"qalora_group_size", "runtime_config", "task_type"}

# Other ways to begin the training (pissa, olora, corda, loftq …) change the base weights as well.
_INITS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraShape:
    """Sizes of the model that adapters must fit: `query` is heads · head width, `key` is key heads · head width,
    `hidden` the width of the feed-forward part."""

    layers: int
    width: int
    query: int
    key: int
    hidden: int

    @classmethod
    def of(cls, config: ModelConfig) -> LoraShape:
        """The sizes of a model."""
        return cls(
            layers=config.layers,
            width=config.width,
            query=config.heads * config.head_width,
            key=config.kv_heads * config.head_width,
            hidden=config.hidden,
        )

    def features(self, target: Target) -> tuple[int, int]:
        """(in, out) of a target."""
        return {
            "q": (self.width, self.query),
            "k": (self.width, self.key),
            "v": (self.width, self.key),
            "o": (self.query, self.width),
            "gate": (self.width, self.hidden),
            "up": (self.width, self.hidden),
            "down": (self.hidden, self.width),
        }[target]


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One adapted linear layer: `a` (r, in) and `b` (out, r), float32, contiguous, the scale folded into `b`."""

    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        """r, at least 1."""
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """One adapter: `layers[i]` maps the adapted targets of layer i to their pairs."""

    layers: tuple[Mapping[Target, LoraPair], ...]

    @property
    def rank(self) -> int:
        """The largest rank of any pair."""
        return max(pair.rank for layer in self.layers for pair in layer.values())

    @property
    def bytes(self) -> int:
        """Memory of all pairs."""
        return sum(pair.a.nbytes + pair.b.nbytes for layer in self.layers for pair in layer.values())


def load_adapter(files: ModelFiles, config: ModelConfig) -> LoraWeights:
    """An adapter, for a base model of shape `config`.

    :raises EngineLoadError: a file is missing or malformed, the adapter needs something this engine does not do, or a
        tensor is missing, unknown, misshapen or not finite; the message names the file and the field or tensor.
    """
    path = files.folder / CONFIG
    raw = files.read_object(CONFIG)
    try:
        _refuse_unsupported(raw)
        modules = _adapted_modules(raw, config)
        ranks = {key: _rank_and_scale(raw, key) for key in modules}
    except EngineLoadError as error:
        raise EngineLoadError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError, re.error) as error:
        raise EngineLoadError(f"{path}: malformed ({type(error).__name__}: {error})") from error
    weights = open_tensors(files, [WEIGHTS])
    try:
        return _read(weights, files.folder / WEIGHTS, config, modules, ranks)
    finally:
        weights.close()


def _read(
    weights: Weights,
    path: Path,
    config: ModelConfig,
    modules: Mapping[str, tuple[int, Targets]],
    ranks: Mapping[str, tuple[int, float]],
) -> LoraWeights:
    expected = {f"{_PREFIX}{key}.lora_{part}.weight" for key in modules for part in "AB"}
    for name in sorted(expected - weights.keys()):
        raise EngineLoadError(f"{path}: tensor {name} is missing")
    for name in sorted(weights.keys() - expected):
        raise EngineLoadError(f"{path}: tensor {name} is not one that {CONFIG} announces")
    shape = LoraShape.of(config)
    layers: list[dict[Target, LoraPair]] = [{} for _ in range(config.layers)]
    for key, (layer, targets) in modules.items():
        (rank, scale), outs = ranks[key], [shape.features(target)[1] for target in targets]
        a = _tensor(weights, f"{_PREFIX}{key}.lora_A.weight", (rank, shape.features(targets[0])[0]))
        b = _tensor(weights, f"{_PREFIX}{key}.lora_B.weight", (sum(outs), rank))
        layers[layer] |= {
            target: LoraPair(a, part) for target, part in zip(targets, (b * scale).split(outs), strict=True)
        }
    return LoraWeights(tuple(layers))


def _tensor(weights: Weights, name: str, shape: tuple[int, int]) -> Tensor:
    import torch

    info = weights.info(name)
    if info.shape != shape:
        raise EngineLoadError(f"{info.path}: tensor {name} has shape {info.shape} instead of {shape}")
    if info.kind not in WEIGHT_TYPES:
        raise EngineLoadError(f"{info.path}: tensor {name} has type {info.kind}")
    tensor = weights[name].to(torch.float32).contiguous()
    if not torch.isfinite(tensor).all():
        raise EngineLoadError(f"{info.path}: tensor {name} holds values that are not finite")
    return tensor


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise EngineLoadError(f"peft_type {raw.get('peft_type')} is not supported, only LORA")
    if raw.get("bias", "none") != "none":
        raise EngineLoadError(
            f"bias {raw['bias']!r} is not supported: the adapter would change the base model's biases"
        )
    if raw.get("init_lora_weights") not in _INITS:
        value = raw["init_lora_weights"]
        raise EngineLoadError(f"init_lora_weights {value!r} is not supported: it changes the base model's weights")
    for field, value in raw.items():
        # A field that this reader does not know may matter as soon as it is set.
        if value and field not in _READ and field not in _INERT:
            raise EngineLoadError(f"{field} is set to {value!r}, which is not supported")


def _adapted_modules(raw: Mapping[str, Any], config: ModelConfig) -> dict[str, tuple[int, Targets]]:
    """The linear layers that the adapter changes, by their name in the base model, as (layer, targets)."""
    wanted, excluded = raw["target_modules"], raw.get("exclude_modules") or ()
    every = {
        f"model.layers.{layer}.{name}": (layer, targets)
        for layer in range(config.layers)
        for name, targets in (_FUSED if config.family.fused else _MODULES).items()
    }
    if not isinstance(wanted, str):
        for name in wanted:
            if not any(_named(name, key) for key in every):
                raise EngineLoadError(f"target_modules names {name}, which is no adaptable layer of this model")
    found = {
        key: place
        for key, place in every.items()
        if _matches(wanted, key) and not (excluded and _matches(excluded, key)) and _layer_chosen(raw, key, place[0])
    }
    if not found:
        raise EngineLoadError("target_modules matches no layer of this model")
    return found


def _matches(patterns: str | Sequence[str], key: str) -> bool:
    if patterns == "all-linear":
        return True
    if isinstance(patterns, str):
        return re.fullmatch(patterns, key) is not None
    return any(_named(name, key) for name in patterns)


def _named(name: str, key: str) -> bool:
    return key == name or key.endswith(f".{name}")


def _layer_chosen(raw: Mapping[str, Any], key: str, layer: int) -> bool:
    chosen = raw.get("layers_to_transform")
    if chosen is None or chosen == [] or isinstance(raw["target_modules"], str):
        return True
    patterns = raw.get("layers_pattern") or ["layers"]
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not any(re.match(rf"(?:^|.*?\.){pattern}\.\d+\.", key) for pattern in patterns):
        return False
    return layer == chosen if isinstance(chosen, int) else layer in chosen


def _rank_and_scale(raw: Mapping[str, Any], key: str) -> tuple[int, float]:
    rank = int(_by_pattern(raw.get("rank_pattern") or {}, key, raw["r"]))
    alpha = float(_by_pattern(raw.get("alpha_pattern") or {}, key, raw["lora_alpha"]))
    if rank < 1 or not math.isfinite(alpha):
        raise EngineLoadError(f"{key} has rank {rank} and lora_alpha {alpha}")
    return rank, alpha / math.sqrt(rank) if raw.get("use_rslora") else alpha / rank


def _by_pattern(patterns: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a layer's name, as PEFT reads them."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", key):
            return value
    return default
