"""Bounds of mirrored traffic; a table of its own in a service's settings."""

from __future__ import annotations

import msgspec


class ShadowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this process gives to mirrored requests at most. How many of an alias's requests are mirrored, and their
    quota, is said by its rollout."""

    queue: int = 64
    """Copies that may wait for their turn; more are dropped."""
    concurrent: int = 8
    """Copies at once that are being answered; 0 drops them all."""
    pause: float = 1.0
    """Seconds for which a pool is not asked again that had no room for a copy, or interrupted one: under load mirrored
    requests cost the mesh nothing but their being dropped here."""
    deadline: float = 60.0
    """Seconds from its being handed over in which a copy's answer must be whole."""

    def __post_init__(self) -> None:
        if min(self.queue, self.concurrent, self.pause) < 0:
            raise ValueError("shadow: queue, concurrent and pause must not be negative")
        if not 0 < self.deadline <= 600:
            raise ValueError("shadow: deadline must be above 0 and at most 600 seconds")
