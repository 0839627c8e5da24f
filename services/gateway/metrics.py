"""Prometheus metrics. The gen_ai_* names and buckets are OpenTelemetry's GenAI semantic conventions."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import Counter, Gauge

from libs.telemetry.counter import Count, FastCounter
from libs.telemetry.histogram import FastHistogram

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_MODEL = ("gen_ai_operation_name", "gen_ai_response_model")
_PLACE = (*_MODEL, "zone")
"""And the zone of the worker."""

DURATION = FastHistogram("gen_ai_server_request_duration", "Seconds from arrival to the end", _PLACE, buckets=_DURATION)
TTFT = FastHistogram(
    "gen_ai_server_time_to_first_token", "Seconds from arrival to the first token", _PLACE, buckets=_TTFT
)
PER_TOKEN = FastHistogram(
    "gen_ai_server_time_per_output_token", "Seconds per token after the first", _PLACE, buckets=_PER_TOKEN
)
TOKENS = FastCounter("gen_ai_client_token_usage", "Tokens delivered", (*_MODEL, "gen_ai_token_type"))
STAGE = FastHistogram("weir_gateway_stage_seconds", "Seconds per stage", ("stage",), buckets=_TTFT)
OUTCOMES = FastCounter("weir_gateway_outcomes_total", "Requests by outcome", ("operation", "outcome", "reason"))
DEGRADED = Counter("weir_gateway_degraded_total", "Requests served degraded", ("kind",))
LADDER = Counter(
    "weir_gateway_ladder_total", "Steps taken instead of a refusal, by what came of them", ("step", "outcome")
)
GROWN = Counter("weir_gateway_quota_grown_total", "Reservations that were asked to grow, by what came of it", ("fate",))
MOVED = Counter("weir_gateway_moved_total", "Requests taken to another worker or version", ("cause",))
ROLLOUT_ARMS = Gauge("weir_gateway_rollout_arms", "Entries of the table of rollouts' outcomes")
SLOW_READERS = Counter("weir_gateway_slow_readers_total", "Streams ended because nobody read them", ("why",))
UNREAD = Gauge("weir_gateway_unread_characters", "Output that readers have not taken yet")
MIGRATIONS = Counter("weir_gateway_migrations_total", "Streams moved to another worker", ("outcome",))
IDEMPOTENCY = Counter("weir_gateway_idempotency_total", "Requests with idempotency keys", ("outcome",))
RESUMED = Counter("weir_gateway_resumed_total", "Streams that were gone on with", ("outcome",))
ACTIVE = Gauge("weir_gateway_active_generations", "Generations that run")
WORKER_STREAMS = Gauge("weir_gateway_worker_streams", "Open streams to workers")

STAGES = {name: STAGE.labels(name) for name in ("preprocess", "decide", "queue", "prefill", "release", "decode")}
"""Of an answer's breakdown."""
EDGE = STAGE.labels("edge")
"""From Envoy's having the headers, authentication and limits there included."""
SAFETY, ROUTE, QUOTA = map(STAGE.labels, ("safety", "route", "quota"))
"""What `decide` waits for, one after the other: they are asked at once, and add up to it."""
FILTER = STAGE.labels("filter")
"""A question about output: once per engine step, of all texts together."""
WRITE = STAGE.labels("write")
"""What a reader's connection took to take an answer, all its pieces."""


class ModelMetrics:
    """The children of one (operation, version, zone), looked up once."""

    __slots__ = ("duration", "input_tokens", "output_tokens", "per_token", "ttft")

    def __init__(self, operation: str, model_version: str, zone: str) -> None:
        labels = (operation, model_version)
        self.duration = DURATION.labels(*labels, zone)
        self.ttft = TTFT.labels(*labels, zone)
        self.per_token = PER_TOKEN.labels(*labels, zone)
        self.input_tokens = TOKENS.labels(*labels, "input")
        self.output_tokens = TOKENS.labels(*labels, "output")


@lru_cache(maxsize=1024)
def model_metrics(operation: str, model_version: str, zone: str) -> ModelMetrics:
    """Cached; versions and zones come from the registry, so their number is bounded."""
    return ModelMetrics(operation, model_version, zone)


@lru_cache(maxsize=1024)
def outcome(operation: str, name: str, reason: str) -> Count:
    """Cached child of `OUTCOMES`; all three labels come from closed sets."""
    return OUTCOMES.labels(operation, name, reason)
