"""Metrics of a process that writes audit records."""

from prometheus_client import Counter, Gauge

_RECORDS = Counter("weir_audit_writer_records_total", "Audit records by what became of them.", ["outcome"])
ACKNOWLEDGED = _RECORDS.labels("acknowledged")
SPOOLED = _RECORDS.labels("spooled")
REFUSED = _RECORDS.labels("refused")
DROPPED = _RECORDS.labels("dropped")
BUFFERED = Gauge("weir_audit_writer_buffered", "Audit records in memory, not acknowledged yet.")
SPOOL_BYTES = Gauge("weir_audit_writer_spool_bytes", "Bytes of audit records waiting on disk.")
