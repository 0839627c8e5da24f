"""Low-rank adapters (LoRA) beside the linear layers, several of them in one batch.

A step's plan says which rows use which adapter. For every layer the rows of one adapter pass through its two thin
matrices and are added to the output of the shared weights in place: two small products for each adapter present,
whatever the batch. At 32 rows and 16 adapters that is quicker than one product with all adapters at once (which also
computes what no row wants) and than a copy of the matrices for every row. Rows without an adapter are not touched,
and a step without adapters has no plan and no cost. A few rows, for which the libraries have kernels of their own, are
computed as some more, so that a row has the same bits alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.engines.torch_engine.adapters import LoraShape, Target
from services.worker.engines.torch_engine.linear import least_rows
from services.worker.engines.torch_engine.weights import Group

GROUPS: Mapping[Group, tuple[Target, ...]] = {
    "qkv": ("q", "k", "v"),
    "o": ("o",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}
"""The layers whose outputs the model computes together, in the order in which they lie in the output."""


@dataclass(frozen=True, slots=True)
class _Rise:
    """From columns `first:last` of the narrow product to `start:stop` of the output, by `weight` (rank, out)."""

    first: int
    last: int
    start: int
    stop: int
    weight: Tensor


@dataclass(frozen=True, slots=True)
class _Pair:
    """What an adapter adds to one group of one layer. `fall` (in, ranks) narrows the input for all its targets. From
    `least` rows on the bits of a row do not depend on how many there are; None where they go on to do so."""

    fall: Tensor
    rises: tuple[_Rise, ...]
    least: int | None

    def add(self, x: Tensor, out: Tensor) -> None:
        count = x.shape[0]
        if self.least is not None and count < self.least:
            x = functional.pad(x, (0, 0, 0, self.least - count))
        narrow = torch.mm(x, self.fall)
        for rise in self.rises:
            added = torch.mm(narrow[:, rise.first : rise.last], rise.weight)
            out[:, rise.start : rise.stop].add_(added[:count])  # not `addmm_`, which would sum in another order


_Adapter = Mapping[tuple[Group, int], _Pair]


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows `first:last` use `adapter`."""

    first: int
    last: int
    adapter: _Adapter


class LoraPlan:
    """Which rows of one step use which adapter. Valid for as long as none of them is dropped from the bank."""

    def __init__(self, runs: Sequence[_Run], order: Tensor | None) -> None:
        """Called by `LoraBank.plan`. The rows of the runs count in `order` if there is one, else in the batch."""
        self._runs = runs
        self._order = order

    def apply(self, group: Group, layer: int, x: Tensor, out: Tensor) -> None:
        """Add, in place, to `out` (n, out) what each row's adapter makes of `x` (n, in); both in the bank's dtype."""
        key = (group, layer)
        wanted = [(run, pair) for run in self._runs if (pair := run.adapter.get(key)) is not None]
        if not wanted:
            return
        order = self._order
        if order is None:
            rows, target = x, out
        else:
            rows, target = x.index_select(0, order), out.index_select(0, order)
        for run, pair in wanted:
            pair.add(rows[run.first : run.last], target[run.first : run.last])
        if order is not None:
            out.index_copy_(0, order, target)


class LoraBank:
    """The adapters of one model that are in memory, by slot. One caller at a time."""

    def __init__(
        self, shape: LoraShape, capacity: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        """Slots are 0 … `capacity`-1. `dtype` is that of the activations the adapters are applied to."""
        self._shape = shape
        self._dtype = dtype
        self._device = torch.device(device)
        self._slots: list[_Adapter | None] = [None] * capacity

    @property
    def capacity(self) -> int:
        """How many adapters fit."""
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes of all adapters held."""
        pairs = (pair for adapter in self._slots if adapter for pair in adapter.values())
        return sum(pair.fall.nbytes + sum(rise.weight.nbytes for rise in pair.rises) for pair in pairs)

    def exact(self, slot: int) -> bool:
        """Whether a row has the same bits alone and in any batch with the adapter in this slot."""
        return all(pair.least is not None for pair in (self._slots[slot] or {}).values())

    def free_slot(self) -> int | None:
        """The first empty slot, None if there is none."""
        return next((slot for slot, adapter in enumerate(self._slots) if adapter is None), None)

    def put(self, slot: int, weights: Mapping[tuple[int, Target], tuple[Tensor, Tensor]]) -> None:
        """Fill a slot with an adapter: for (layer, target) its A (rank, in) and B (out, rank), the scale folded into
        B. Layers and targets may be left out and ranks may differ. The tensors are copied.

        :raises ValueError: a matrix does not fit the model or holds a number that is not finite; the slot is
            unchanged.
        :raises IndexError: there is no such slot.
        """
        if not 0 <= slot < self.capacity:
            raise IndexError(f"slot {slot} of {self.capacity}")
        for (layer, target), (a, b) in weights.items():
            self._check(layer, target, a, b)
        adapter: dict[tuple[Group, int], _Pair] = {}
        for layer in sorted({layer for layer, _ in weights}):
            for group in GROUPS:
                pair = self._pair(layer, group, weights)
                if pair is not None:
                    adapter[group, layer] = pair
        self._slots[slot] = adapter

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        self._slots[slot] = None

    def plan(self, slots: Sequence[int | None]) -> LoraPlan | None:
        """The plan of a step whose row i uses the adapter in `slots[i]`, None if no row uses one. Cheapest when the
        rows of an adapter lie side by side.

        :raises KeyError: a slot is empty.
        """
        runs = self._runs(slots)
        used = {slot for slot in slots if slot is not None}
        if len(runs) <= 2 * len(used):
            return LoraPlan(runs, None) if runs else None
        # Scattered rows: bring those of each adapter together rather than compute one by one.
        rows = sorted((index for index, slot in enumerate(slots) if slot is not None), key=lambda row: slots[row] or 0)
        order = torch.tensor(rows, device=self._device)
        return LoraPlan(self._runs([slots[row] for row in rows]), order)

    def _runs(self, slots: Sequence[int | None]) -> list[_Run]:
        runs: list[_Run] = []
        first = 0
        for index in range(1, len(slots) + 1):
            if index < len(slots) and slots[index] == slots[first]:
                continue
            slot = slots[first]
            if slot is not None:
                adapter = self._slots[slot] if 0 <= slot < self.capacity else None
                if adapter is None:
                    raise KeyError(slot)
                runs.append(_Run(first, index, adapter))
            first = index
        return runs

    def _check(self, layer: int, target: Target, a: Tensor, b: Tensor) -> None:
        inner, outer = self._shape.features(target)
        name = f"adapter matrices of {target} in layer {layer}"
        if not 0 <= layer < self._shape.layers:
            raise ValueError(f"{name}: the model has {self._shape.layers} layers")
        if a.dim() != 2 or a.shape[1] != inner or tuple(b.shape) != (outer, a.shape[0]):
            raise ValueError(f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit {inner} to {outer}")
        if not (a.isfinite().all() and b.isfinite().all()):
            raise ValueError(f"{name}: not all numbers are finite")

    def _pair(
        self, layer: int, group: Group, weights: Mapping[tuple[int, Target], tuple[Tensor, Tensor]]
    ) -> _Pair | None:
        falls: list[Tensor] = []
        rises: list[_Rise] = []
        first = start = 0
        for target in GROUPS[group]:
            stop = start + self._shape.features(target)[1]
            if (layer, target) in weights:
                a, b = (each.detach().to(self._device, self._dtype) for each in weights[layer, target])
                last = first + a.shape[0]
                falls.append(a)
                rises.append(_Rise(first, last, start, stop, b.t().clone(memory_format=torch.contiguous_format)))
                first = last
            start = stop
        if not falls:
            return None
        fall = torch.cat(falls).t()
        least = [_least(matrix) for matrix in (fall, *(rise.weight for rise in rises))]
        return _Pair(fall, tuple(rises), None if None in least else max(filter(None, least)))


def _least(matrix: Tensor) -> int | None:
    """See `least_rows`; None on a GPU, where nothing is promised."""
    if matrix.device.type != "cpu":
        return None
    return least_rows(lambda x: torch.mm(x, matrix), matrix.shape[0], matrix.dtype)
