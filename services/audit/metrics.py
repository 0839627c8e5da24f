"""Metrics of the audit service."""

from prometheus_client import Counter, Gauge, Histogram

_APPENDS = Counter("weir_audit_appends_total", "Records by what became of them.", ["outcome"])
APPENDED = _APPENDS.labels("appended")
DUPLICATE = _APPENDS.labels("duplicate")
REFUSED = _APPENDS.labels("refused")
FAILED = _APPENDS.labels("failed")
GROUP = Histogram("weir_audit_group_records", "Records per commit.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024))
COMMIT = Histogram(
    "weir_audit_commit_seconds",
    "Time of a commit, both syncs included.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
QUEUED = Gauge("weir_audit_queued_records", "Records waiting for the disk.")
SEQUENCE = Gauge("weir_audit_sequence", "The last committed record's number.")
INTACT = Gauge("weir_audit_intact", "0 while the log is damaged, or its anchors contradict it or are lost.")
INTACT.set(1)  # until it was read, nothing says otherwise; so with the keys
WRITABLE = Gauge("weir_audit_writable", "1 while writing works.")
SEALING = Gauge(
    "weir_audit_sealing", "0 while a key that seals records cannot be used; what it would seal is not written."
)
SEALING.set(1)
ANCHORED = Gauge("weir_audit_anchored_sequence", "The last record whose checkpoint is in etcd.")
ANCHOR_FAILURES = Counter(
    "weir_audit_anchor_failures_total", "Checkpoints that could not be put into etcd or the bucket."
)
UNSEALED = _APPENDS.labels("unsealed")
"""Refused: the key that would seal it cannot be had."""
ERASED = Counter("weir_audit_keys_destroyed_total", "Data keys that erasures and retention destroyed.")
READS = Counter("weir_audit_reads_total", "Reads by RPC.", ["rpc"])
