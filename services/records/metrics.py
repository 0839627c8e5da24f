"""Metrics of the store of records."""

from prometheus_client import Counter, Gauge, Histogram

PROJECTED = Counter("weir_records_projected_total", "Records of the audit log that were projected.")
SEQUENCE = Gauge("weir_records_sequence", "The last record of the audit log that is in the store.")
BEHIND = Gauge("weir_records_behind", "Records of the audit log that are not in the store yet.")
INTACT = Gauge(
    "weir_records_intact", "0 while the log does not continue what the store has: see `weir records rebuild`."
)
INTACT.set(1)  # until it was read, nothing says otherwise
AVAILABLE = Gauge("weir_records_database_available", "0 while the database cannot be used.")
BATCH = Histogram(
    "weir_records_batch_seconds",
    "Time of a transaction that projects.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
QUESTIONS = Histogram(
    "weir_records_question_seconds",
    "Time of a question to the database.",
    ["rpc"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
RETIRED = Counter("weir_records_retired_total", "Rows of requests that retention removed.")
ANSWERS = Counter(
    "weir_records_answers_total", "Idempotency keys that were asked for, by what they stood for.", ["state"]
)
