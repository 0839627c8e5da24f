"""How many KV blocks tenants and model versions hold in a pool, and may still take."""

from __future__ import annotations

import math

from services.admission.policy.model import Request


class Budgets:
    """Of one pool. A tenant that holds nothing may have one request whatever its size, and so may a version: no budget
    starves."""

    def __init__(self) -> None:
        self.tenants: dict[str, int] = {}
        """Blocks held, by tenant."""
        self._versions: dict[str, int] = {}

    def add(self, request: Request, blocks: int) -> None:
        """The request holds so many more; fewer, where that is negative."""
        _add(self.tenants, request.tenant, blocks)
        _add(self._versions, request.model_version, blocks)

    def left(self, request: Request, blocks: int) -> float:
        """What its tenant may still take of this version, where all workers have so many `blocks`."""
        budget = self.left_to_version(request, blocks) if request.version_share else math.inf
        held = self.tenants.get(request.tenant, 0)
        if not request.kv_share or not held:
            return budget
        return min(budget, request.kv_share * blocks - held)

    def left_to_version(self, request: Request, blocks: int) -> float:
        """What its version may still take, whoever asks."""
        held = self._versions.get(request.model_version, 0)
        return request.version_share * blocks - held if held else math.inf


def _add(held: dict[str, int], key: str, blocks: int) -> None:
    now = held.get(key, 0) + blocks
    if now:
        held[key] = now
    else:
        held.pop(key, None)
