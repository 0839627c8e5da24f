"""The forward pass of a Llama-family decoder over a step's tokens.

All tokens of a step, whoever they belong to, form one flat batch for everything but attention, which the caller
provides: it knows whose tokens they are and where their keys and values lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.config import ModelConfig, RopeConfig
from services.worker.engines.torch_engine.linear import Kind, Linear, worthwhile_rows
from services.worker.engines.torch_engine.lora import Group
from services.worker.engines.torch_engine.weights import expected_shapes

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries (n, heads, head_width), keys and values (n, kv_heads, head_width)) → (n, heads·head_width)."""


class Adapting(Protocol):
    """What LoRA adapters add to a step."""

    def add(self, layer: int, site: Group, inputs: Tensor, outputs: Tensor) -> None:
        """Add the adapters' part to `outputs` (n, out) of the linear layer at `site` ("qkv", "o", "gate_up", "down"),
        given its `inputs` (n, in)."""


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """The weights and the forward pass. Thread-compatible: one caller at a time.

    `float32` and `int8` weights work on float32 activations, `bfloat16` weights on bfloat16 ones.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        kind: Kind = "float32",
        device: torch.device | None = None,
    ) -> None:
        """:raises EngineLoadError: a tensor is missing or has the wrong shape."""
        self.config = config
        self.dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        self.device = device or torch.device("cpu")
        self._kind = kind
        self._weights = weights
        table = self._take("model.embed_tokens.weight", config.vocabulary, config.width)
        self._head, self._own_rows = self._ends(table)
        del table
        self._layers = [self._layer(index) for index in range(config.layers)]
        self._norm = self._vector("model.norm.weight")
        cos, sin = rotation(config.rope, config.head_width, config.context)
        self._cos, self._sin = (part.to(self.device, self.dtype).unsqueeze(1) for part in (cos, sin))
        del self._weights

    @property
    def nbytes(self) -> int:
        """Bytes of all linear layers, the embeddings and the tables of the rotary embedding, in all their copies."""
        layers = [part for each in self._layers for part in (each.qkv, each.output, each.gate_up, each.down)]
        tables = [table for table in (self._own_rows, self._cos, self._sin) if table is not None]
        return sum(layer.nbytes for layer in (*layers, self._head)) + sum(table.nbytes for table in tables)

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend, adapting: Adapting | None = None) -> Tensor:
        """Last hidden states, after the final norm, of `tokens` (n,) at `positions` (n,): (n, width)."""
        count = len(tokens)
        padding = worthwhile_rows(count) - count if self.device.type == "cpu" else 0
        if padding:
            tokens, positions = functional.pad(tokens, (0, padding)), functional.pad(positions, (0, padding))
        cos, sin = self._cos[positions], self._sin[positions]
        hidden = self._rows(tokens).to(self.dtype)
        for index, layer in enumerate(self._layers):
            hidden += self._attended(
                index, layer, self._normed(hidden, layer.input_norm), cos, sin, count, attend, adapting
            )
            normed = self._normed(hidden, layer.mlp_norm)
            both = _linear(layer.gate_up, index, "gate_up", normed, adapting)
            gate, up = both.chunk(2, dim=-1)
            hidden += _linear(layer.down, index, "down", functional.silu(gate).mul_(up), adapting)
        return self._normed(hidden[:count], self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, width) hidden states → (n, vocabulary), float32."""
        return self._head(hidden).float()

    def _attended(
        self,
        index: int,
        layer: _Layer,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        count: int,
        attend: Attend,
        adapting: Adapting | None,
    ) -> Tensor:
        config = self.config
        heads = _linear(layer.qkv, index, "qkv", normed, adapting)
        heads = heads.view(-1, config.heads + 2 * config.kv_heads, config.head_width)
        turned = rotate(heads[:, : config.heads + config.kv_heads], cos, sin)[:count]
        mixed = attend(
            index, turned[:, : config.heads], turned[:, config.heads :], heads[:count, config.heads + config.kv_heads :]
        )
        if len(normed) > count:
            mixed = functional.pad(mixed, (0, 0, 0, len(normed) - count))
        return _linear(layer.output, index, "o", mixed, adapting)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.config.width,), weight, self.config.norm_eps)

    def _rows(self, tokens: Tensor) -> Tensor:
        if self._own_rows is None:
            return self._head.rows(tokens)
        return functional.embedding(tokens, self._own_rows)

    def _ends(self, table: Tensor) -> tuple[Linear, Tensor | None]:
        """The output layer, and the embeddings `table` (vocabulary, width) where they do not share its memory.

        Tied to one another they share their memory on a GPU. On a CPU a layer in its own packing is so much quicker
        (up to 1.8 times) that it is worth a second copy.
        """
        config, shared = self.config, self._kind == "int8" or self.device.type != "cpu"
        if config.tied and shared:
            return Linear.pack(table, None, self._kind, self.device, lookup=True), None
        own = table.to(self.device, self.dtype, copy=True)
        if config.tied:
            head = Linear.pack(table, None, self._kind, self.device)
        else:
            head = self._linear([("lm_head", config.vocabulary)], config.width)
        return head, own

    def _layer(self, index: int) -> _Layer:
        config = self.config
        query, key = config.heads * config.head_width, config.kv_heads * config.head_width
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [(f"{attention}.q_proj", query), (f"{attention}.k_proj", key), (f"{attention}.v_proj", key)]
        gate_up = [(f"{mlp}.gate_proj", config.hidden), (f"{mlp}.up_proj", config.hidden)]
        return _Layer(
            self._vector(f"{prefix}.input_layernorm.weight"),
            self._linear(qkv, config.width, bias=config.qkv_bias),
            self._linear([(f"{attention}.o_proj", config.width)], query, bias=config.output_bias),
            self._vector(f"{prefix}.post_attention_layernorm.weight"),
            self._linear(gate_up, config.width, bias=config.mlp_bias),
            self._linear([(f"{mlp}.down_proj", config.width)], config.hidden, bias=config.mlp_bias),
        )

    def _linear(self, parts: Sequence[tuple[str, int]], inner: int, *, bias: bool = False) -> Linear:
        """One layer of several with the same inputs: (name, outputs) of each."""
        weight = torch.cat([self._take(f"{name}.weight", rows, inner) for name, rows in parts])
        offset = torch.cat([self._take(f"{name}.bias", rows) for name, rows in parts]) if bias else None
        return Linear.pack(weight, offset, self._kind, self.device)

    def _vector(self, name: str) -> Tensor:
        return self._take(name, self.config.width).to(self.device, self.dtype)

    def _take(self, name: str, *shape: int) -> Tensor:
        if name not in self._weights:
            raise EngineLoadError(f"tensor {name} is missing")
        tensor = self._weights[name]
        if tuple(tensor.shape) != shape:
            raise EngineLoadError(f"tensor {name} has shape {tuple(tensor.shape)} instead of {shape}")
        return tensor.to(torch.float32)


def weight_bytes(config: ModelConfig, kind: Kind, device: torch.device) -> int:
    """What a model will take in memory (`LlamaModel.nbytes`, and the norms), but for the few bytes of int8's scales."""
    wide = 2 if kind == "bfloat16" else 4
    each = 1 if kind == "int8" else wide
    table = config.vocabulary * config.width
    second = table * each if device.type == "cpu" else 0  # see `_ends`
    copies = second if config.tied else table * (wide - each)
    angles = 2 * config.context * config.head_width * wide
    return sum(map(math.prod, expected_shapes(config).values())) * each + copies + angles


def _linear(layer: Linear, index: int, site: Group, inputs: Tensor, adapting: Adapting | None) -> Tensor:
    outputs = layer(inputs)
    if adapting is not None:
        adapting.add(index, site, inputs, outputs)
    return outputs


def rotation(rope: RopeConfig, head_width: int, context: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for every position, each (context, head_width), for `rotate`: the first half of the sines is
    negative."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Divide slow frequencies by the factor, keep fast ones, blend in between (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    share = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / rope.factor + share * frequencies


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to (n, heads, head_width) with `cos` and `sin` (n, 1, head_width)."""
    turned = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos, turned, sin)
