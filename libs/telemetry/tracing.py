"""Traces with explicit context.

    with span("quota.reserve", parent=traceparent, kind=CLIENT) as s:
        … pass s.traceparent on …; s.set("weir.tenant", tenant)

The parent is a W3C traceparent string (https://www.w3.org/TR/trace-context/). An unsampled or empty parent costs a
string comparison and nothing else: the span is a shared no-op that hands the parent on. Whoever receives a request
without a decision makes one with `root`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from time import monotonic_ns
from types import TracebackType
from typing import Any, Protocol, Self

from libs.authority.identity import dns_name
from libs.config import TlsFiles
from libs.telemetry.scrub import scrub, scrub_value

INTERNAL, SERVER, CLIENT = "INTERNAL", "SERVER", "CLIENT"
Attribute = str | int | float | bool | list[str]
MOST_LINKS = 32
"""Of one span."""
# Version 00 of the W3C format; ids of zeros are invalid there.
_TRACEPARENT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """A timed operation."""

    recording: bool
    """Somebody will see its attributes."""

    @property
    def traceparent(self) -> str:
        """The context to hand to whatever this operation calls."""

    def set(self, key: str, value: Attribute) -> None:
        """Attach an attribute. Never a prompt, an output or a secret: texts are scanned for these, by shape only."""

    def end(self, error: str = "") -> None:
        """Finish; `error` is the closed reason's name. Ending twice changes nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class _Unsampled:
    __slots__ = ("traceparent",)
    recording = False

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def set(self, key: str, value: Attribute) -> None: ...

    def end(self, error: str = "") -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class _Sampled:
    __slots__ = ("_began", "_ended", "_span", "traceparent")
    recording = True

    def __init__(self, otel_span: Any) -> None:
        context = otel_span.get_span_context()
        self._span = otel_span
        self._began = monotonic_ns()
        self._ended = False
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def set(self, key: str, value: Attribute) -> None:
        self._span.set_attribute(key, scrub_value(value))

    def end(self, error: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(self._span.start_time + monotonic_ns() - self._began)  # whatever the clock is set to meanwhile

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        reason = getattr(exc, "reason", None)
        self.end("" if exc_type is None else getattr(reason, "name", exc_type.__name__))


_NOTHING = _Unsampled()
_tracer: Any = None
_provider: Any = None


def configure_tracing(
    *, service: str, instance: str, zone: str, endpoint: str = "", tls: TlsFiles | None = None, exporter: Any = None
) -> None:
    """Export this process's spans over OTLP to `endpoint`, or to `exporter` (tests). Without either nothing is traced.

    OpenTelemetry is imported here and not at the top: a process that traces nothing should not pay for it.
    """
    global _tracer, _provider
    if not endpoint and exporter is None:
        return
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    resource = Resource(
        {"service.name": service, "service.instance.id": instance, "service.namespace": "weir", "weir.zone": zone}
    )
    # `shutdown_tracing` ends it, which knows how long the end of a process may take.
    _provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if exporter is not None:
        _provider.add_span_processor(SimpleSpanProcessor(exporter))
    else:
        _provider.add_span_processor(BatchSpanProcessor(_otlp(endpoint, tls), schedule_delay_millis=1000))
    _tracer = _provider.get_tracer("weir")


def _otlp(endpoint: str, tls: TlsFiles | None) -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    if tls is None:
        return OTLPSpanExporter(endpoint=endpoint, insecure=True)

    from opentelemetry.sdk.trace.export import SpanExporter

    from libs.rpc.credentials import Material, TlsSource, channel_credentials

    source = TlsSource(tls)

    def connect(material: Material) -> SpanExporter:
        options = (("grpc.ssl_target_name_override", dns_name("collector")),)
        return OTLPSpanExporter(endpoint=endpoint, credentials=channel_credentials(material), channel_options=options)

    class Renewed(SpanExporter):
        """Connects anew when the TLS files have changed."""

        def __init__(self) -> None:
            self._material = source.current()
            self._exporter = connect(self._material)

        def export(self, spans: Any) -> Any:
            if (latest := source.current()) is not self._material:
                former, self._material, self._exporter = self._exporter, latest, connect(latest)
                former.shutdown()
            return self._exporter.export(spans)

        def shutdown(self) -> None:
            self._exporter.shutdown()

    return Renewed()


def shutdown_tracing() -> None:
    """Flush what is buffered (bounded by the exporter's own timeout). Call once, at exit."""
    global _tracer, _provider
    if _provider is not None:
        _provider.shutdown()
    _tracer = _provider = None


def traceparent_or_empty(header: str) -> str:
    """The header if it is a well-formed traceparent, else "": for headers that come from outside."""
    return header if _TRACEPARENT.fullmatch(header) else ""


def is_sampled(traceparent: str) -> bool:
    """Whether a traceparent asks to be recorded."""
    return len(traceparent) == 55 and traceparent[-1] in "13579bdf"


def root(ratio: float, rng: random.Random) -> str:
    """A sampling decision for a request that came with none: a new traceparent, sampled with probability `ratio`.

    The ids are fresh; the first span takes this as a parent that nobody recorded, which every backend shows as a root.
    """
    flag = 1 if rng.random() < ratio else 0
    return f"00-{rng.getrandbits(128) or 1:032x}-{rng.getrandbits(64) or 1:016x}-{flag:02d}"


def span(
    name: str,
    parent: str = "",
    *,
    kind: str = INTERNAL,
    attributes: Mapping[str, Attribute] | None = None,
    links: Iterable[str] = (),
) -> Span:
    """Start a span under `parent`; see the module docstring. A malformed parent counts as none.

    :param links: traceparents of spans that it serves as well, or that serve it: the first `MOST_LINKS` well-formed
        ones are kept.
    """
    if _tracer is None or not is_sampled(parent):
        return _Unsampled(parent) if parent else _NOTHING
    if not _TRACEPARENT.fullmatch(parent):
        return _NOTHING
    from opentelemetry import trace

    return _Sampled(
        _tracer.start_span(
            scrub(name),
            context=trace.set_span_in_context(trace.NonRecordingSpan(_context(parent))),
            kind=trace.SpanKind[kind],
            attributes=scrub_value(dict(attributes)) if attributes else None,
            links=[trace.Link(_context(each)) for each in islice(filter(_TRACEPARENT.fullmatch, links), MOST_LINKS)],
        )
    )


def linked(name: str, origin: str, *, kind: str = INTERNAL) -> Span:
    """Start a trace of its own that only links to the span `origin` (a traceparent): for work that a request gave rise
    to and that is none of its parts. Recorded if the origin is."""
    if _tracer is None or not is_sampled(origin) or not _TRACEPARENT.fullmatch(origin):
        return _NOTHING
    from opentelemetry import trace
    from opentelemetry.context import Context

    links = [trace.Link(_context(origin))]
    return _Sampled(_tracer.start_span(scrub(name), context=Context(), kind=trace.SpanKind[kind], links=links))


def _context(traceparent: str) -> Any:
    from opentelemetry import trace

    return trace.SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), True, trace.TraceFlags(1))
