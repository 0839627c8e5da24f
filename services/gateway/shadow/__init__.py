"""Mirrored requests: answered a second time by a rollout's candidate, where no user sees it, and compared."""

from services.gateway.shadow.mirrors import Evidence, Mirrors
from services.gateway.shadow.settings import ShadowSettings

__all__ = ["Evidence", "Mirrors", "ShadowSettings"]
