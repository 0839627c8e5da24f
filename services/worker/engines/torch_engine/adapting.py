"""The LoRA adapters of one model that are in memory, by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from libs.families import ModelConfig
from services.worker.engines.torch_engine.adapters import LoraShape, LoraWeights
from services.worker.engines.torch_engine.lora import LoraBank, LoraPlan
from services.worker.engines.torch_engine.weights import Group


class AdapterSet:
    """At most `most` adapters; the one used least recently makes room."""

    def __init__(self, base: str, config: ModelConfig, *, most: int, dtype: torch.dtype, device: torch.device) -> None:
        self._base = base
        self._bank = LoraBank(LoraShape.of(config), most, dtype=dtype, device=device)
        self._slots: OrderedDict[str, int] = OrderedDict()  # least recently used first

    def add(self, name: str, weights: LoraWeights, *, busy: Set[str]) -> list[str]:
        """Hold an adapter, in place of one that is not `busy` if there is no room; returns the names of those that
        are not held now: `name` itself when all others are busy.

        :raises ValueError: a number is not finite; nothing is changed.
        """
        gone, slot = list[str](), self._bank.free_slot()
        if slot is None:
            gone = [each for each in self._slots if each not in busy][:1]
            if not gone:
                return [name]
            slot = self._slots[gone[0]]
        pairs = {
            (layer, target): (pair.a, pair.b)
            for layer, targets in enumerate(weights.layers)
            for target, pair in targets.items()
        }
        self._bank.put(slot, pairs)  # in the other's place only now: if this fails, that one is still held
        for each in gone:
            del self._slots[each]
        self._slots[name] = slot
        return gone

    def exact(self, name: str) -> bool:
        """See `LoraBank.exact`; the base is, an adapter that is not held is not."""
        return name == self._base or (name in self._slots and self._bank.exact(self._slots[name]))

    def adapt(self, models: Sequence[str], counts: Sequence[int]) -> Adapted | None:
        """What the adapters do in a step whose chunks are of `models` (names of adapters, or of the base) and hold
        `counts` tokens; None when no adapter is among them.

        :raises KeyError: one of them is neither: its output must not silently be the base's.
        """
        slots = [None if model == self._base else self._slots[model] for model in models]
        if not any(slot is not None for slot in slots):
            return None
        for model in models:
            if model in self._slots:
                self._slots.move_to_end(model)
        plan = self._bank.plan([slot for slot, count in zip(slots, counts, strict=True) for _ in range(count)])
        return Adapted(plan) if plan is not None else None


class Adapted:
    """Implements `model.Adapting` for one step."""

    def __init__(self, plan: LoraPlan) -> None:
        self._plan = plan

    def add(self, layer: int, site: Group, inputs: Tensor, outputs: Tensor) -> None:
        """See `model.Adapting`."""
        self._plan.apply(site, layer, inputs, outputs)
