"""The layout of the registry in the store. Resources lie under their kinds' prefixes, as libs.resources says."""

from __future__ import annotations

from libs.resources.codec import encode, key_of
from libs.resources.kind import EVERYTHING, ROOT, SECRETS
from libs.resources.kinds import BY_PLURAL

FENCE = ROOT + "fence"
"""Rewritten by every change of the configuration, so that each is validated against exactly what it applies to; its
value is the id of the last change."""
EPOCH = ROOT + "epoch"
"""Rewritten by every change that may take something from a credential: what was known of any before its revision is to
be asked anew. Its value is the id of that change."""
AUDIT_OUTBOX = "/weir/audit-outbox/v2/"
"""{record id} → weir.audit.v1.Record (binary): changes whose audit record is not acknowledged yet. Outside of what is
watched, like all that follows."""
AUDIT_CHECKPOINTS = "/weir/audit-checkpoints/v2/"
"""{instance} → the newest checkpoint's line of an audit service's log."""
HISTORY = "/weir/history/v2/"
"""{nanoseconds, 20 digits}-{change id} → HistoryEntry."""
LEADERS = "/weir/leaders/v1/"
"""{service} → the instance that leads, under its lease."""

__all__ = [
    "AUDIT_CHECKPOINTS",
    "AUDIT_OUTBOX",
    "EPOCH",
    "EVERYTHING",
    "FENCE",
    "HISTORY",
    "LEADERS",
    "ROOT",
    "SECRETS",
    "encode",
    "key",
    "key_of",
]


def key(plural: str, name: str) -> str:
    """Where a resource lies: `key("aliases", "weir-fast")`.

    :raises KeyError: there is no such kind.
    """
    return BY_PLURAL[plural].prefix + name
