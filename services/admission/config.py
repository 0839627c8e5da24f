"""Admission's settings."""

from __future__ import annotations

from libs.config import ServiceSettings
from services.admission.policy.limits import Limits


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations in seconds; token and block counts as in `weir.admission.v1`."""

    service: str = "admission"
    instance: str = "admission-0"

    grant_lifetime: float = 5.0
    """How long a worker accepts a grant: the way from here through the gateway to the worker, with room."""
    worker_heartbeat: float = 3.0
    """The longest silence of a worker before it counts as lost. A broken stream counts at once."""
    gateway_grace: float = 5.0
    """How long a gateway that lost its stream may take to come back before its shares are given up."""
    tick_seconds: float = 0.025
    """How often queued requests, workers and gateways are looked at for passed deadlines."""
    max_in_flight: int = 4096
    """Calls that one gateway may have open, waiting ones included."""

    level_ttl: float = 3.0
    """How long the level that the edge sheds by outlives this process, or its way to etcd."""
    settle_seconds: float = 2.0
    """How long the set of admission processes must rest before each takes the pools that are at home on it."""
    tenure_seconds: float = 5.0
    """How long a term lasts at least before another process takes the pool because its owner seems gone;
    where each reaches another one only, they take turns of this length."""
    limits: Limits = Limits()
    """What its policy decides by."""

    def __post_init__(self) -> None:
        """Check what a type cannot say; `libs.config.load` adds the source to the message."""
        super().__post_init__()
        if self.settle_seconds < 0:
            raise ValueError("settle_seconds must not be negative")
        if self.level_ttl < 1 or self.tenure_seconds < 1:
            raise ValueError("level_ttl and tenure_seconds must be at least 1")
