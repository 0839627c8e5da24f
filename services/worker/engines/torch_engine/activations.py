"""Activations of the gated feed-forward part, with the same bits of a row alone and in any batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from libs.families import Activation

_AT_ONCE = 64  # numbers, or a divisor of it, that torch's kernels compute at once


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
    """A function of (n, width) numbers, elementwise. Call it first with torch's number of threads as it will stay."""
    kernel = _KERNELS[name]
    known: dict[torch.Size, int] = {}

    def compute(x: Tensor) -> Tensor:
        together = known.get(x.shape)
        if together is None:
            together = known[x.shape] = _together(kernel, x)
        return torch.cat([kernel.compute(rows) for rows in x.split(together)]) if together else kernel.compute(x)

    return compute


def _together(kernel: _Kernel, x: Tensor) -> int:
    """How many rows are to be computed at a time, by one thread; 0 for all.

    torch computes the last few numbers of each thread's part one by one, with another exponential, and where parts end
    depends on how many rows there are. So no part may end within what is computed at once."""
    count, width = x.shape
    if count * width < kernel.shared or x.device.type != "cpu":
        return 0
    threads = min(torch.get_num_threads(), -(-count * width // kernel.grain))
    part = -(-count * width // threads)
    within = threads > 1 and part % width and (part % _AT_ONCE or width % _AT_ONCE)
    return max(1, (kernel.shared - 1) // width) if within else 0
