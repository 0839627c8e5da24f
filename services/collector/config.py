"""Settings of the development collector."""

from libs.config import ServiceSettings


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
