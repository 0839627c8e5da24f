"""One recorded span."""

from __future__ import annotations

from typing import Any

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A finished span, as one line of JSON. Ids are lower-case hex, times nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    """Empty for a span that says it is a root."""
    name: str
    kind: str = "INTERNAL"
    """SERVER, CLIENT, INTERNAL, PRODUCER or CONSUMER."""
    service: str = ""
    """`service.name` of the process that recorded it."""
    instance: str = ""
    """`service.instance.id`."""
    zone: str = ""
    """`weir.zone`."""
    start_ns: int
    end_ns: int
    error: str = ""
    """The status message when the status is an error ("error" when it has none)."""
    attributes: dict[str, Any] = {}
    links: list[str] = []
    """Of other requests' spans that this one served as well, or of the one that served it: trace id, "-", span id."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9
