"""The forward pass of a decoder over a step's tokens, as its family says (`libs.families`).

All tokens of a step, whoever they belong to, form one flat batch for everything but attention, which the caller
provides: it knows whose tokens they are and where their keys and values lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from libs.families import ModelConfig
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.activations import activation
from services.worker.engines.torch_engine.linear import Kind, Linear, worthwhile_rows
from services.worker.engines.torch_engine.rotary import rotate, rotation
from services.worker.engines.torch_engine.weights import Group, Site, expected_shapes, norm_widths, sites

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries (n, heads, head_width), keys and values (n, kv_heads, head_width)) → (n, heads·head_width)."""


class Adapting(Protocol):
    """What LoRA adapters add to a step."""

    def add(self, layer: int, site: Group, inputs: Tensor, outputs: Tensor) -> None:
        """Add the adapters' part to `outputs` (n, out) of the linear layer at `site` ("qkv", "o", "gate_up", "down"),
        given its `inputs` (n, in)."""


Turn = tuple[Tensor, Tensor]
"""Cosines and sines for `rotate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A norm is None where the family has none. `head_norms` are the weights of those of queries and keys: of both as
    one (heads + kv_heads, head_width) where each head has its own norm, else of each. `rope` is its rotary embedding's
    place among those of the model, None without one."""

    attention_in: Tensor | None
    qkv: Linear
    head_norms: tuple[Tensor, ...]
    rope: int | None
    output: Linear
    attention_out: Tensor | None
    mlp_in: Tensor | None
    gate_up: Linear
    down: Linear
    mlp_out: Tensor | None


class Decoder:
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
        positions: int = 0,
    ) -> None:
        """Positions are below `positions`, 0 for the whole context, until `reach` is called.

        :raises EngineLoadError: a tensor is missing or has the wrong shape.
        """
        self.config = config
        self.dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        self.device = device or torch.device("cpu")
        self._kind = kind
        self._weights = weights
        table = self._take("model.embed_tokens.weight", config.vocabulary, config.width)
        self._head, self._own_rows = self._ends(table)
        del table
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()
        self._activation = activation(config.activation)
        self._layers = [self._layer(index) for index in range(config.layers)]
        self._norm = self._norm_weight("model.norm", config.width)
        self._turns: list[Turn] = []
        self.reach(positions or config.context)
        del self._weights

    @property
    def nbytes(self) -> int:
        """Bytes of all linear layers, the embeddings and the tables of the rotary embedding, in all their copies."""
        layers = [part for each in self._layers for part in (each.qkv, each.output, each.gate_up, each.down)]
        tables = [table for turn in self._turns for table in turn]
        tables += [self._own_rows] if self._own_rows is not None else []
        return sum(layer.nbytes for layer in (*layers, self._head)) + sum(table.nbytes for table in tables)

    def reach(self, positions: int) -> None:
        """Allow all positions below `positions` from now on."""
        config = self.config
        if not self._turns or positions > len(self._turns[0][0]):
            pairs = [rotation(rope, config.head_width, positions) for rope in config.ropes]
            self._turns = [
                (cos.to(self.device, self.dtype).unsqueeze(1), sin.to(self.device, self.dtype).unsqueeze(1))
                for cos, sin in pairs
            ]

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend, adapting: Adapting | None = None) -> Tensor:
        """Last hidden states, after the final norm, of `tokens` (n,) at `positions` (n,): (n, width)."""
        count = len(tokens)
        padding = worthwhile_rows(count) - count if self.device.type == "cpu" else 0
        if padding:
            tokens, positions = functional.pad(tokens, (0, padding)), functional.pad(positions, (0, padding))
        turns: dict[int | None, Turn] = {
            index: (cos[positions], sin[positions]) for index, (cos, sin) in enumerate(self._turns)
        }
        hidden = self._rows(tokens).to(self.dtype)
        if self._embedding_scale != 1.0:
            hidden = hidden * self._embedding_scale
        for index, layer in enumerate(self._layers):
            normed = self._normed(hidden, layer.attention_in)
            attended = self._attended(index, layer, normed, turns.get(layer.rope), count, attend, adapting)
            hidden += self._added(attended, layer.attention_out)
            normed = self._normed(hidden, layer.mlp_in)
            gate, up = _linear(layer.gate_up, index, "gate_up", normed, adapting).chunk(2, dim=-1)
            fed = _linear(layer.down, index, "down", self._activation(gate).mul_(up), adapting)
            hidden += self._added(fed, layer.mlp_out)
        return self._normed(hidden[:count], self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, width) hidden states → (n, vocabulary), float32."""
        config, logits = self.config, self._head(hidden).float()
        if config.logit_scale != 1.0:
            logits = logits / config.logit_scale
        return config.logit_cap * torch.tanh(logits / config.logit_cap) if config.logit_cap else logits

    def _attended(
        self,
        index: int,
        layer: _Layer,
        normed: Tensor,
        turn: Turn | None,
        count: int,
        attend: Attend,
        adapting: Adapting | None,
    ) -> Tensor:
        config = self.config
        qkv = _linear(layer.qkv, index, "qkv", normed, adapting)
        heads = qkv.view(-1, config.heads + 2 * config.kv_heads, config.head_width)
        turned = self._asking(qkv, heads, layer.head_norms)
        turned = (turned if turn is None else rotate(turned, *turn))[:count]
        mixed = attend(
            index, turned[:, : config.heads], turned[:, config.heads :], heads[:count, config.heads + config.kv_heads :]
        )
        if len(normed) > count:
            mixed = functional.pad(mixed, (0, 0, 0, len(normed) - count))
        return _linear(layer.output, index, "o", mixed, adapting)

    def _asking(self, qkv: Tensor, heads: Tensor, norms: tuple[Tensor, ...]) -> Tensor:
        """Queries and keys (n, heads + kv_heads, head_width), normed where the family does so."""
        config, count = self.config, self.config.heads + self.config.kv_heads
        if not norms:
            return heads[:, :count]
        if config.family.head_norms == "each":
            return self._normed(heads[:, :count], norms[0])
        widths = [config.heads * config.head_width, config.kv_heads * config.head_width]
        parts = qkv[:, : sum(widths)].split(widths, dim=-1)
        whole = torch.cat([self._normed(part, norm) for part, norm in zip(parts, norms, strict=True)], dim=-1)
        return whole.view(-1, count, config.head_width)

    def _added(self, out: Tensor, norm: Tensor | None) -> Tensor:
        """What is added to the hidden states of what attention or the feed-forward part put out."""
        out = self._normed(out, norm)
        return out if self.config.residual_scale == 1.0 else out * self.config.residual_scale

    def _normed(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        """Over the last axis; `weight` may have one more before it. Without a weight nothing is done."""
        if weight is None:
            return hidden
        if weight.dtype is not hidden.dtype:  # one plus a weight is rounded with the product alone
            return self._normed(hidden.float(), weight).to(hidden.dtype)
        if weight.dim() == 1:
            return functional.rms_norm(hidden, weight.shape, weight, self.config.norm_eps)
        return functional.rms_norm(hidden, weight.shape[-1:], None, self.config.norm_eps).mul_(weight)

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
            weight = self._take("lm_head.weight", config.vocabulary, config.width)
            head = Linear.pack(weight, None, self._kind, self.device)
        return head, own

    def _layer(self, index: int) -> _Layer:
        config, prefix = self.config, f"model.layers.{index}"
        linear = {name: self._linear(prefix, site) for name, site in sites(config).items()}
        norms = {name: self._norm_weight(f"{prefix}.{name}", width) for name, width in norm_widths(config).items()}
        own = tuple(norms[f"self_attn.{name}"] for name in ("q_norm", "k_norm") if config.family.head_norms)
        if config.family.head_norms == "each":
            counts = (config.heads, config.kv_heads)
            own = (torch.cat([norm.expand(count, -1) for norm, count in zip(own, counts, strict=True)]),)
        places, rope = config.family.norms, config.rope_of(index)
        return _Layer(
            attention_in=norms.get(places.attention_in),
            qkv=linear["qkv"],
            head_norms=own,
            rope=None if rope is None else config.ropes.index(rope),
            output=linear["o"],
            attention_out=norms.get(places.attention_out),
            mlp_in=norms.get(places.mlp_in),
            gate_up=linear["gate_up"],
            down=linear["down"],
            mlp_out=norms.get(places.mlp_out),
        )

    def _linear(self, prefix: str, site: Site) -> Linear:
        names = [(f"{prefix}.{name}", rows) for name, rows in site.parts]
        weight = torch.cat([self._take(f"{name}.weight", rows, site.inner) for name, rows in names])
        offset = torch.cat([self._take(f"{name}.bias", rows) for name, rows in names]) if site.bias else None
        return Linear.pack(weight, offset, self._kind, self.device)

    def _norm_weight(self, name: str, width: int) -> Tensor:
        weight = self._take(f"{name}.weight", width).to(self.device)
        # One plus a small number would lose the number in bfloat16.
        return weight + 1 if self.config.family.norm_from_one else weight.to(self.dtype)

    def _take(self, name: str, *shape: int) -> Tensor:
        if name not in self._weights:
            raise EngineLoadError(f"tensor {name} is missing")
        tensor = self._weights[name]
        if tuple(tensor.shape) != shape:
            raise EngineLoadError(f"tensor {name} has shape {tuple(tensor.shape)} instead of {shape}")
        return tensor.to(torch.float32)


def weight_bytes(config: ModelConfig, kind: Kind, device: torch.device, positions: int = 0) -> int:
    """What a model will take in memory (`Decoder.nbytes`, and the norms), but for the few bytes of int8's scales."""
    positions = positions or config.context
    wide = 2 if kind == "bfloat16" else 4
    each = 1 if kind == "int8" else wide
    table = config.vocabulary * config.width
    second = table * each if device.type == "cpu" else 0  # see `_ends`
    copies = second if config.tied else table * (wide - each)
    angles = 2 * positions * wide * sum(rope.turned(config.head_width) for rope in config.ropes)
    return sum(map(math.prod, expected_shapes(config).values())) * each + copies + angles


def _linear(layer: Linear, index: int, site: Group, inputs: Tensor, adapting: Adapting | None) -> Tensor:
    outputs = layer(inputs)
    if adapting is not None:
        adapting.add(index, site, inputs, outputs)
    return outputs
