"""The rotary embedding: which angle a position turns each pair of numbers by, and the turning itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from libs.families import RopeConfig


def rotation(rope: RopeConfig, head_width: int, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0 … `positions`-1, each (positions, head_width), for `rotate`: the first half of
    the sines is negative."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to (n, heads, head_width) with `cos` and `sin` (n, 1, head_width)."""
    turned = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos, turned, sin)


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Divide slow frequencies by the factor, keep fast ones, blend in between (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    share = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / rope.factor + share * frequencies
