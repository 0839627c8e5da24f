"""Settings of the control plane."""

from __future__ import annotations

from libs.config import ServiceSettings
from services.controlplane.policy.config import EdgeConfig


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every service has, and the edge."""

    service: str = "controlplane"
    instance: str = "controlplane-0"
    services: tuple[str, ...] = (
        "admission",
        "audit",
        "controlplane",
        "edge-auth",
        "gateway",
        "predictor",
        "ratelimit",
        "records",
        "registry",
        "rollout",
        "router",
        "safety",
        "worker",
    )
    """Names that are always served, with an empty endpoint set while nobody is registered."""
    publish_interval_ms: int = 10
    """After a published change, how long further ones are gathered; the first goes out at once."""
    edge: EdgeConfig = EdgeConfig()
    """The public edge; its trace fields are set from this service's."""
