"""Metrics of a process that writes audit records."""

from prometheus_client import Counter, Gauge

from libs.auditlog.security import Kind

_RECORDS = Counter("weir_audit_writer_records_total", "Audit records by what became of them.", ["outcome"])
WRITTEN = _RECORDS.labels("written")
ACKNOWLEDGED = _RECORDS.labels("acknowledged")
REFUSED = _RECORDS.labels("refused")
DROPPED = _RECORDS.labels("dropped")
UNOPENED = Counter(
    "weir_audit_writer_unopened_total",
    "What began and found no slot in the journal: of it nothing is known should its process be killed.",
)
JOURNAL_BYTES = Gauge("weir_audit_writer_journal_bytes", "Disk that audit records take, those that wait and room.")
_SECURITY = Counter("weir_security_events_total", "Security events seen, recorded one by one or summed up.", ["kind"])
SECURITY = {kind: _SECURITY.labels(kind.value) for kind in Kind}
SECURITY_LOST = Counter(
    "weir_security_records_lost_total", "Records of security events given up while the audit service was away."
)
