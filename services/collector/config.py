"""Settings of the development collector."""

import msgspec

from libs.config import ServiceSettings
from services.collector.forward import Backend
from services.collector.policy.tail import TailPolicy


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the collector needs beside the common settings."""

    directory: str
    """Where traces are kept, one file each."""
    max_traces: int = 2000
    """Beyond this the oldest traces are removed."""
    max_bytes: int = 64 * 2**20
    """Beyond this too."""
    max_spans_per_trace: int = 5000
    """Further spans of a trace are dropped and counted."""
    max_value_chars: int = 1024
    """Longer attribute values are cut."""
    keep_share: float = 1.0
    """Of the traces that neither failed nor were slow, the share that is kept, 0 to 1. 1 keeps every span at once, with
    nothing to decide."""
    keep_slow: float = 5.0
    """Seconds: a trace that took so long is kept; 0: none is for that."""
    keep_after: float = 30.0
    """Seconds after its first span at which a trace is decided whose root has not ended."""
    max_waiting_spans: int = 20_000
    """Spans that wait for a decision; beyond, the oldest traces are decided by what is known."""

    forward: str = ""
    """https://HOST:PORT (or http://) of another backend that takes OTLP over gRPC: it is sent what is kept."""
    forward_ca: str = ""
    """A PEM file of who may sign that backend's certificate; empty: the usual ones."""
    forward_header_files: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers of what is sent there, each with the file that holds its value, such as a token."""
    max_forwarded_spans: int = 10_000
    """Spans that wait to be sent on; beyond, the oldest are dropped and counted."""

    def __post_init__(self) -> None:
        """:raises ValueError: a field makes no sense."""
        super().__post_init__()
        _ = self.tail, self.backend

    @property
    def backend(self) -> Backend | None:
        """Where what is kept goes as well."""
        if not self.forward:
            return None
        return Backend(url=self.forward, ca=self.forward_ca, header_files=self.forward_header_files)

    @property
    def tail(self) -> TailPolicy:
        """What is kept."""
        return TailPolicy(
            share=self.keep_share, slow=self.keep_slow, patience=self.keep_after, max_waiting=self.max_waiting_spans
        )
