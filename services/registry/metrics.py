"""Metrics of the registry service."""

from prometheus_client import Counter, Gauge

changes = Counter("weir_registry_changes", "Administrative calls that change the registry", ["action", "outcome"])
"""`outcome`: "ok", "unchanged" or a reason."""
outbox_pending = Gauge("weir_registry_audit_outbox_pending", "Audit records not acknowledged yet")
"""At the last look."""
audit_appends = Counter("weir_registry_audit_appends", "Audit records handed to the audit service", ["outcome"])
"""`outcome`: "ok" or a reason."""
snapshot_revision = Gauge("weir_registry_snapshot_revision", "Store revision of the snapshot")
"""Set with every change."""
history_entries = Gauge("weir_registry_history_entries", "Entries of the history of changes")
"""At the last look; at most the limit."""
refusals = Counter("weir_registry_refusals", "Calls refused for want of a right", ["rpc"])
"""By RPC."""
watchers = Gauge("weir_registry_watchers", "Open watches")
"""Processes that follow the registry, and people."""
