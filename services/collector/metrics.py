"""Metrics of the collector."""

from prometheus_client import Counter, Gauge

SPANS = Counter("weir_collector_spans", "Spans received, by outcome.", ["outcome"])
KEPT = SPANS.labels("kept")
REJECTED = SPANS.labels("rejected")
TRACES = Gauge("weir_collector_traces", "Traces on disk.")
BYTES = Gauge("weir_collector_bytes", "Bytes of traces on disk.")
EVICTED = Counter("weir_collector_evicted_traces", "Traces removed to stay within the bounds.")
