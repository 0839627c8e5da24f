"""Settings of the safety service."""

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the safety service needs beside the common settings."""

    packs_dir: str = ""
    """A directory of shipped packs, `<policy>.json`; empty takes those in this folder. The registry's win over them."""
    default_policy: str = "default"
    """The policy of tenants that name none; it must be shipped; the registry may replace it."""
    session_peers: tuple[str, ...] = ("gateway", "jobs")
    """Services that may open a session."""
    max_filters: int = 16_384
    """Most output filters open on one session."""
    max_context: int = 4_096
    """Most characters of `OpenFilter.context` that are looked at, from its end; longer than any match (256)."""
    max_in_flight: int = 4_096
    """Calls in flight per session."""
