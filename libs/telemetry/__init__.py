"""Logs and traces.

Logs are JSON lines on standard error: `get_logger(name).info("event", key=value)`. Traces are OpenTelemetry spans whose
context is passed explicitly as a W3C `traceparent` string, because the mesh's calls share long-lived streams and a
request's context must travel with its item (libs.telemetry.tracing). Metrics are plain `prometheus_client` objects in
each service's `metrics.py`.
"""

from libs.telemetry.logs import Logger, configure_logging, get_logger, place_of

__all__ = ["Logger", "configure_logging", "get_logger", "place_of"]
