"""The forward pass of a Llama-family decoder over a step's tokens, in float32.

All tokens of a step, whoever they belong to, form one flat batch for everything but attention. Attention runs once for
all decoding sequences together and once for each prompt chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.config import ModelConfig, RopeConfig
from services.worker.engines.torch_engine.kv import ModelKv


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chunk of a prompt in a batch: its tokens lie at `first` … `first+count-1` of the batch and at positions
    `start` … of its sequence. `table` (1, blocks) is None when nothing comes before the chunk."""

    first: int
    count: int
    start: int
    table: Tensor | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's tokens for one model. The first `decodes` of them are the single next tokens of as many sequences.

    `tokens`, `positions` and `slots` are (n,); `tables` (decodes, blocks) and `mask` (decodes, 1, 1,
    blocks·block_size, additive) describe what the decoding sequences attend to. `slots` is None when nothing is to be
    remembered (embeddings).
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor | None
    decodes: int
    tables: Tensor | None
    mask: Tensor | None
    prompts: Sequence[Prompt]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class LlamaModel:
    """The weights and the forward pass. Thread-compatible: one caller at a time."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        """:raises EngineLoadError: a tensor is missing or has the wrong shape."""
        self.config = config
        self._take = _Taker(weights)
        width = config.width
        self._embedding = self._take("model.embed_tokens.weight", config.vocabulary, width)
        self._layers = [self._layer(index) for index in range(config.layers)]
        self._norm = self._take("model.norm.weight", width)
        self._head = self._embedding if config.tied else self._take("lm_head.weight", config.vocabulary, width)
        self._cos, self._sin = rotation(config.rope, config.head_width, config.context)

    def hidden(self, batch: Batch, kv: ModelKv | None) -> Tensor:
        """Last hidden states of every token, after the final norm: (n, width)."""
        config = self.config
        cos, sin = self._cos[batch.positions].unsqueeze(1), self._sin[batch.positions].unsqueeze(1)
        hidden = self._embedding[batch.tokens]
        for index, layer in enumerate(self._layers):
            normed = functional.rms_norm(hidden, (config.width,), layer.input_norm, config.norm_eps)
            mixed = self._attend(index, layer, normed, cos, sin, batch, kv)
            hidden = hidden + functional.linear(mixed, layer.output, layer.output_bias)
            normed = functional.rms_norm(hidden, (config.width,), layer.mlp_norm, config.norm_eps)
            gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        return functional.rms_norm(hidden, (config.width,), self._norm, config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, width) hidden states → (n, vocabulary)."""
        return functional.linear(hidden, self._head)

    def _attend(
        self, index: int, layer: _Layer, normed: Tensor, cos: Tensor, sin: Tensor, batch: Batch, kv: ModelKv | None
    ) -> Tensor:
        config = self.config
        heads = functional.linear(normed, layer.qkv, layer.qkv_bias)
        heads = heads.view(-1, config.heads + 2 * config.kv_heads, config.head_width)
        turned = rotate(heads[:, : config.heads + config.kv_heads], cos, sin)
        query, key = turned[:, : config.heads], turned[:, config.heads :]
        value = heads[:, config.heads + config.kv_heads :]
        if kv is not None and batch.slots is not None:
            kv.write(index, batch.slots, key, value)
        parts = []
        if kv is not None and batch.tables is not None:
            keys, values = kv.read(index, batch.tables)
            # The query heads that share a key head attend as if they were successive queries of one head.
            grouped = query[: batch.decodes].view(batch.decodes, config.kv_heads, -1, config.head_width)
            attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=batch.mask)
            parts.append(attended.reshape(batch.decodes, -1))
        for prompt in batch.prompts:
            rows = slice(prompt.first, prompt.first + prompt.count)
            queries = query[rows].transpose(0, 1).unsqueeze(0)
            if kv is None or prompt.table is None:
                keys, values = key[rows].transpose(0, 1).unsqueeze(0), value[rows].transpose(0, 1).unsqueeze(0)
                mask = None
            else:
                keys, values = kv.read(index, prompt.table)
                mask = _chunk_mask(prompt, keys.shape[2])
            attended = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            parts.append(attended[0].transpose(0, 1).reshape(prompt.count, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _layer(self, index: int) -> _Layer:
        config, take = self.config, self._take
        width, hidden = config.width, config.hidden
        query, key = config.heads * config.head_width, config.kv_heads * config.head_width
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

        def joined(names: Sequence[tuple[str, int]], *inner: int, wanted: bool = True) -> Tensor | None:
            return torch.cat([take(name, rows, *inner) for name, rows in names]) if wanted else None

        def both(base: str, names: Sequence[tuple[str, int]], inner: int, bias: bool) -> tuple[Tensor, Tensor | None]:
            weight = joined([(f"{base}.{name}.weight", rows) for name, rows in names], inner)
            if weight is None:
                raise EngineLoadError(f"{base} has no weights")
            return weight, joined([(f"{base}.{name}.bias", rows) for name, rows in names], wanted=bias)

        qkv = both(attention, (("q_proj", query), ("k_proj", key), ("v_proj", key)), width, config.qkv_bias)
        output = both(attention, (("o_proj", width),), query, config.output_bias)
        gate_up = both(mlp, (("gate_proj", hidden), ("up_proj", hidden)), width, config.mlp_bias)
        down = both(mlp, (("down_proj", width),), hidden, config.mlp_bias)
        return _Layer(
            take(f"{prefix}.input_layernorm.weight", width),
            *qkv,
            *output,
            take(f"{prefix}.post_attention_layernorm.weight", width),
            *gate_up,
            *down,
        )


class _Taker:
    """Looks tensors up by name, checks their shape and turns them into float32."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights

    def __call__(self, name: str, *shape: int) -> Tensor:
        tensor = self._weights.get(name)
        if tensor is None:
            raise EngineLoadError(f"tensor {name} is missing")
        if tuple(tensor.shape) != shape:
            raise EngineLoadError(f"tensor {name} has shape {tuple(tensor.shape)} instead of {shape}")
        return tensor.to(torch.float32).contiguous()


def rotation(rope: RopeConfig, head_width: int, context: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for every position, each (context, head_width), the two halves alike."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


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
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def _chunk_mask(prompt: Prompt, keys: int) -> Tensor:
    """Who sees whom, for a chunk behind `start` earlier tokens: (count, keys), True where attention is allowed."""
    return torch.arange(keys) <= torch.arange(prompt.start, prompt.start + prompt.count).unsqueeze(1)
