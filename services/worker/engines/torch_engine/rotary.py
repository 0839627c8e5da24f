"""The rotary embedding: which angle a position turns each pair of numbers by, and the turning itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from libs.families import RopeConfig


def rotation(rope: RopeConfig, head_width: int, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0 … `positions`-1, each (positions, turned), for `rotate`: the first half of the
    sines is negative."""
    width = rope.turned(head_width)
    frequencies = 1.0 / rope.theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.kind == "yarn":
        frequencies = _yarn(frequencies, rope)
    elif rope.kind == "longrope":
        frequencies = frequencies / torch.tensor(rope.factors)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos() * rope.magnitude, angles.sin() * rope.magnitude
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to (n, heads, head_width) with `cos` and `sin` (n, 1, turned); what is beyond `turned`
    stays as it is."""
    width = cos.shape[-1]
    if width < heads.shape[-1]:
        return torch.cat((rotate(heads[..., :width], cos, sin), heads[..., width:]), dim=-1)
    turned = heads.roll(width // 2, dims=-1)
    return torch.addcmul(heads * cos, turned, sin)


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Divide slow frequencies by the factor, keep fast ones, blend in between (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    share = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / rope.factor + share * frequencies


def _yarn(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """The same between two places in the order of frequencies, found from how often each turns in the original context
    (https://arxiv.org/abs/2309.00071)."""
    count = len(frequencies)

    def place(turns: float) -> float:
        return count * math.log(rope.original_context / (turns * 2 * math.pi)) / math.log(rope.theta)

    first, last = place(rope.beta_fast), place(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * count - 1)
    share = (torch.arange(count, dtype=torch.float32) - first) / (last - first if last != first else 0.001)
    share = 1 - share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / rope.factor + share * frequencies
