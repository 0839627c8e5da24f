"""The worker's metrics, under vLLM's names with our prefix."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from libs.versions.metrics import DesiredMetrics
from services.worker.engines.port import Engine, FinishReason

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_STEP = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Preemptions(Collector):
    """Interruptions by who caused them: `admission` counts requests, `engine` sequences that ran out of memory.

    A collector of its own because the engine counts for itself; copying its counter now and then would lag behind.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._engine: Engine | None = None

    def inc(self, requests: int) -> None:
        """Admission had this many requests interrupted."""
        self._asked += requests

    def watch(self, engine: Engine) -> None:
        """Read the engine's own counter from here on."""
        self._engine = engine

    def collect(self) -> Iterable[CounterMetricFamily]:
        """See `prometheus_client.registry.Collector`."""
        family = CounterMetricFamily(
            "weir_worker_num_preemptions", "Sequences or requests interrupted, by who caused it.", labels=["cause"]
        )
        family.add_metric(["admission"], self._asked)
        family.add_metric(["engine"], self._engine.capacity().preemptions_total if self._engine else 0)
        return [family]


RUNNING = Gauge("weir_worker_num_requests_running", "Sequences that decode or prefill.")
WAITING = Gauge("weir_worker_num_requests_waiting", "Sequences that wait inside the engine.")
SWAPPED = Gauge("weir_worker_num_requests_swapped", "Sequences preempted to host memory or disk.")
KV_USAGE = Gauge("weir_worker_kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
KV_FREE = Gauge("weir_worker_kv_cache_free_blocks", "KV blocks that a new sequence may take, cached ones included.")
KV_CACHED = Gauge("weir_worker_kv_cache_cached_blocks", "Free KV blocks that hold reusable prefixes.")
KV_SPILLED = Gauge("weir_worker_kv_cache_spilled_blocks", "KV blocks kept in host memory and on disk.")
KV_FRAGMENTATION = Gauge(
    "weir_worker_kv_cache_fragmentation", "Share of the used blocks' token places that hold no token, 0 to 1."
)
BATCH_USAGE = Gauge("weir_worker_batch_usage_perc", "Sequences that run, of those that may at once, 0 to 1.")
DECODE_STEP = Gauge("weir_worker_decode_step_seconds", "Duration of steps that only decode, smoothed.")
PREFILL_RATE = Gauge("weir_worker_prefill_tokens_per_second", "Prompt tokens prefilled per second, smoothed.")
PROMPT_TOKENS = Counter("weir_worker_prompt_tokens", "Prompt tokens of accepted sequences.")
GENERATION_TOKENS = Counter("weir_worker_generation_tokens", "Tokens generated.")
CACHE_QUERIES = Counter("weir_worker_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
CACHE_HITS = Counter("weir_worker_prefix_cache_hits", "Prompt tokens served from the prefix cache.")
PREEMPTIONS = Preemptions()
REGISTRY.register(PREEMPTIONS)
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
HANDED_BACK = Counter(
    "weir_worker_handed_back",
    "Sequences given back to their gateways: the engine failed, or admission needed the room.",
)
CANCEL_STEPS = Histogram(
    "weir_worker_cancel_steps",
    "Steps that ended between a cancel's arrival and its sequence's KV blocks being free, the one under way included.",
    buckets=(0, 1, 2, 3, 4, 8, 16),
)
CANCEL_SECONDS = Histogram(
    "weir_worker_cancel_seconds",
    "From a cancel's arrival until its sequence's KV blocks were known to be free.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0),
)
RESTARTS = Counter("weir_worker_engine_restarts", "Starts of the engine after it failed.")
RESTARTING = Gauge("weir_worker_engine_restarting", "1 from a failure of the engine until it runs again.")
CAPACITY_STREAMS = Gauge("weir_worker_capacity_streams", "Admission processes that have taken this worker in.")

_finished = Counter("weir_worker_request_success", "Sequences that ended, by reason.", ["finished_reason"])
FINISHED = {int(reason): _finished.labels(reason.name.lower()) for reason in FinishReason}
"""By finish reason."""

MODELS = DesiredMetrics("weir_worker_")
WEIGHT_CACHE = Gauge(
    "weir_worker_weight_cache_files",
    "Model files that the engine looked up in the local weight cache at its start.",
    ["outcome"],
)
REFUSED = Counter("weir_worker_refused", "Sequences that did not start, by reason.", ["reason"])


def watch(engine: Engine) -> None:
    """Read the gauges from the engine whenever they are scraped; set those of its start."""
    for model, stages in engine.info.load_seconds.items():
        MODELS.loaded(model, stages)
    for outcome, files in engine.info.weight_cache_files.items():
        WEIGHT_CACHE.labels(outcome).set(files)
    RUNNING.set_function(lambda: engine.capacity().running)
    BATCH_USAGE.set_function(lambda: engine.capacity().running / max(1, engine.info.max_running))
    WAITING.set_function(lambda: engine.capacity().waiting)
    SWAPPED.set_function(lambda: engine.capacity().swapped)
    KV_USAGE.set_function(lambda: 1 - engine.capacity().free_blocks / max(1, engine.info.total_blocks))
    KV_FREE.set_function(lambda: engine.capacity().free_blocks)
    KV_CACHED.set_function(lambda: engine.capacity().cached_blocks)
    KV_SPILLED.set_function(lambda: engine.capacity().spilled_blocks)
    KV_FRAGMENTATION.set_function(lambda: engine.capacity().fragmentation)
    DECODE_STEP.set_function(lambda: engine.capacity().decode_step_seconds)
    PREFILL_RATE.set_function(lambda: engine.capacity().prefill_tokens_per_second)
    PREEMPTIONS.watch(engine)
