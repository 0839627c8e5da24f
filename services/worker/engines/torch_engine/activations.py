"""Activations of the gated feed-forward part, with the same bits of a row alone and in any batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from libs.families import Activation

_TOGETHER = 64  # numbers, or a divisor of it, that torch's kernels compute at once


class _Kernel(NamedTuple):
    """A kernel of torch's. From `shared` numbers on threads share them, `grain` each at least."""

    compute: Callable[[Tensor], Tensor]
    shared: int
    grain: int


_KERNELS: Mapping[Activation, _Kernel] = {
    "silu": _Kernel(functional.silu, 32768, 32768),  # at::internal::GRAIN_SIZE
    "gelu_tanh": _Kernel(partial(functional.gelu, approximate="tanh"), 16384, 1),  # GeluKernelImpl
}


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    """A function of (n, width) numbers, elementwise."""
    return partial(_by_rows, _KERNELS[name])


def _by_rows(kernel: _Kernel, x: Tensor) -> Tensor:
    """torch computes the last few numbers of each thread's part one by one, with another exponential, and where parts
    end depends on how many rows there are. Where a part would end within what is computed at once, rows are computed a
    few at a time by one thread."""
    count, width = x.shape
    if count * width >= kernel.shared and x.device.type == "cpu":
        threads = min(torch.get_num_threads(), -(-count * width // kernel.grain))
        part = -(-count * width // threads)
        if threads > 1 and part % width and (part % _TOGETHER or width % _TOGETHER):
            return torch.cat([kernel.compute(rows) for rows in x.split(max(1, (kernel.shared - 1) // width))])
    return kernel.compute(x)
