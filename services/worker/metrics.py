"""The worker's metrics, under vLLM's names with our prefix."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from services.worker.engines.port import Engine, FinishReason

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_STEP = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

RUNNING = Gauge("weir_worker_num_requests_running", "Sequences that decode or prefill.")
WAITING = Gauge("weir_worker_num_requests_waiting", "Sequences that wait inside the engine.")
KV_USAGE = Gauge("weir_worker_kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
PROMPT_TOKENS = Counter("weir_worker_prompt_tokens", "Prompt tokens of accepted sequences.")
GENERATION_TOKENS = Counter("weir_worker_generation_tokens", "Tokens generated.")
CACHE_QUERIES = Counter("weir_worker_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
CACHE_HITS = Counter("weir_worker_prefix_cache_hits", "Prompt tokens served from the prefix cache.")
PREEMPTIONS = Counter("weir_worker_num_preemptions", "Requests interrupted because admission asked.")
TTFT = Histogram("weir_worker_time_to_first_token_seconds", "Submission to first token.", buckets=_TTFT)
PER_TOKEN = Histogram(
    "weir_worker_request_time_per_output_token_seconds",
    "Mean time between a sequence's tokens, observed at its end.",
    buckets=_PER_TOKEN,
)
STEPS = Histogram("weir_worker_step_seconds", "Duration of an engine step.", buckets=_STEP)
MERGED_STEPS = Counter("weir_worker_merged_steps", "Steps that travelled in a later frame: their reader was slow.")
SESSIONS = Gauge("weir_worker_sessions", "Open gateway streams.")
SLOW_READERS = Counter("weir_worker_slow_readers", "Gateway streams ended because they did not read.")
CAPACITY_STREAMS = Gauge("weir_worker_capacity_streams", "Admission processes that have taken this worker in.")

_finished = Counter("weir_worker_request_success", "Sequences that ended, by reason.", ["finished_reason"])
FINISHED = {int(reason): _finished.labels(reason.name.lower()) for reason in FinishReason}
"""By finish reason."""

REFUSED = Counter("weir_worker_refused", "Sequences that did not start, by reason.", ["reason"])


def watch(engine: Engine) -> None:
    """Read the gauges from the engine whenever they are scraped."""
    total = max(1, engine.info.total_blocks)
    RUNNING.set_function(lambda: engine.capacity().running)
    WAITING.set_function(lambda: engine.capacity().waiting)
    KV_USAGE.set_function(lambda: 1 - engine.capacity().free_blocks / total)
