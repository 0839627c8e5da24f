"""Metrics of a process that writes audit records."""

from prometheus_client import Counter, Gauge

from libs.auditlog.security import Kind

_RECORDS = Counter("weir_audit_writer_records_total", "Audit records by what became of them.", ["outcome"])
ACKNOWLEDGED = _RECORDS.labels("acknowledged")
SPOOLED = _RECORDS.labels("spooled")
REFUSED = _RECORDS.labels("refused")
DROPPED = _RECORDS.labels("dropped")
BUFFERED = Gauge("weir_audit_writer_buffered", "Audit records in memory, not acknowledged yet.")
SPOOL_BYTES = Gauge("weir_audit_writer_spool_bytes", "Bytes of audit records waiting on disk.")
_SECURITY = Counter("weir_security_events_total", "Security events seen, recorded one by one or summed up.", ["kind"])
SECURITY = {kind: _SECURITY.labels(kind.value) for kind in Kind}
SECURITY_LOST = Counter(
    "weir_security_records_lost_total", "Records of security events given up while the audit service was away."
)
