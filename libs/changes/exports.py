"""What an export of the registry holds, and the digest by which nobody takes half of one for the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import keys

EXPORTED: Mapping[str, type[Message]] = {
    keys.SAFETY: pb.SafetyPolicy,
    keys.PLANS: pb.PlanPolicy,
    keys.SLOS: pb.Slo,
    keys.TRUST: pb.TrustPolicy,
    keys.ROLES: pb.RoleBinding,
    keys.MODELS: pb.ModelVersion,
    keys.TENANTS: pb.Tenant,
    keys.KEYS: pb.ApiKey,
    keys.LIMITS: pb.Limits,
    keys.SWITCHES: pb.RolloutSwitch,
    keys.PINS: pb.Pin,
    keys.BUDGETS: pb.ErrorBudget,
    keys.ALIASES: pb.Alias,
    keys.PRICES: pb.Price,
    keys.ROLLOUTS: pb.Rollout,
}
"""Key prefixes and what lies under them: what is named by others before what names it. Whoever writes in this order and
deletes in the other leaves nothing in between that names what is not there."""
HISTORY = "history/"
"""Leads the names of history entries in an export."""


def exported_name(key: str) -> str:
    """What a store key is called in an export: "aliases/weir-fast", "history/…"."""
    if key.startswith(keys.HISTORY):
        return HISTORY + key.removeprefix(keys.HISTORY)
    return key.removeprefix(keys.ROOT)


class ExportDigest:
    """SHA-256 over names and values in order, each behind its length (8 bytes, big endian)."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, value: bytes) -> None:
        """Takes the next one."""
        for part in (name.encode(), value):
            self._hash.update(len(part).to_bytes(8, "big"))
            self._hash.update(part)

    @property
    def hex(self) -> str:
        """64 hex digits, of all so far."""
        return self._hash.hexdigest()
