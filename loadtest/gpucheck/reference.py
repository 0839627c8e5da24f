"""A Llama in the plainest torch there is: no cache, no batch, no library. What the engine computes is compared with it.

A test compares it with transformers, so that machines without transformers have the same oracle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    tensors = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            dtype = _DTYPES[entry["dtype"]]
            flat = torch.frombuffer(
                content, dtype=dtype, offset=8 + length + first, count=(last - first) // dtype.itemsize
            )
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)


class Reference:
    """One checkpoint, in float32 on the CPU; with `rounded` its weights are those that fit into bfloat16."""

    def __init__(self, folder: Path, *, rounded: bool = False) -> None:
        """:raises ValueError: it is no plain Llama."""
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default" or self.config.get("attention_bias"):
            raise ValueError(f"{folder}: the reference knows plain Llamas only")
        self._theta = float(rope.get("rope_theta") or self.config.get("rope_theta") or 10000.0)
        self._weights = {
            name: (each.bfloat16() if rounded else each).float()
            for name, each in read_tensors(folder / "model.safetensors").items()
        }

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int]) -> Tensor:
        """Natural-log probabilities of what follows each token: (tokens, vocabulary)."""
        weights, config = self._weights, self.config
        count = len(tokens)
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        inverse = self._theta ** (-torch.arange(0, width, 2).float() / width)
        angles = (torch.arange(count).float()[:, None] * inverse).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()

        def turned(rows: Tensor) -> Tensor:
            first, second = rows.chunk(2, dim=-1)
            return rows * cos + torch.cat((-second, first), dim=-1) * sin

        hidden = weights["model.embed_tokens.weight"][torch.tensor(list(tokens))]
        for index in range(config["num_hidden_layers"]):
            layer = f"model.layers.{index}."

            def linear(name: str, rows: Tensor, layer: str = layer) -> Tensor:
                return rows @ weights[f"{layer}{name}.weight"].T

            rows = self._norm(f"{layer}input_layernorm.weight", hidden)
            query, key, value = (
                linear(f"self_attn.{name}_proj", rows).view(count, -1, width).transpose(0, 1) for name in "qkv"
            )
            query, key = turned(query), turned(key)
            key, value = (each.repeat_interleave(heads // each.shape[0], dim=0) for each in (key, value))
            scores = query @ key.transpose(1, 2) / width**0.5
            scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), float("-inf"))
            attended = (scores.softmax(dim=-1) @ value).transpose(0, 1).reshape(count, -1)
            hidden = hidden + linear("self_attn.o_proj", attended)
            rows = self._norm(f"{layer}post_attention_layernorm.weight", hidden)
            gate = functional.silu(linear("mlp.gate_proj", rows))
            hidden = hidden + linear("mlp.down_proj", gate * linear("mlp.up_proj", rows))
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        return (self._norm("model.norm.weight", hidden) @ head.T).log_softmax(dim=-1)

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        scale = (rows.pow(2).mean(dim=-1, keepdim=True) + self.config.get("rms_norm_eps", 1e-6)).rsqrt()
        return rows * scale * self._weights[name]
