"""Settings of the audit service."""

from pathlib import Path

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the audit service needs beside the common settings."""

    log_dir: str = ""
    """The log's segments; empty is `state_dir`/log."""
    checkpoint_dir: str = ""
    """Signed checkpoints, best on another disk than the log; empty is `state_dir`/checkpoints."""
    key_dir: str = ""
    """The key that signs checkpoints (made at the first start); empty is `state_dir`/keys."""
    session_peers: tuple[str, ...] = ("gateway", "registry", "safety")
    """Services that may append."""
    reader_peers: tuple[str, ...] = ("cli",)
    """Services that may read and verify."""
    segment_bytes: int = 16 * 2**20
    """A segment is closed once it is longer than this."""
    dedupe_records: int = 100_000
    """How many of the newest record ids are known (about 150 bytes each): how late a record may be sent again."""
    max_record_bytes: int = 16 * 2**10
    """Largest record, as JSON."""
    max_queued: int = 16_384
    """Records that may wait for the disk; one more is refused with REJECTED_QUEUE_FULL."""
    max_group: int = 2_048
    """Most records written at once."""
    probe_seconds: float = 1.0
    """After a failed write: how often the disk is tried while nothing comes."""
    anchor_seconds: float = 30.0
    """How often the newest checkpoint is put into etcd, if it changed."""
    max_in_flight: int = 4_096
    """Calls in flight per session."""

    def directory(self, own: str, name: str) -> Path:
        """Return a configured directory, or the one of that name in `state_dir`."""
        return Path(own) if own else Path(self.state_dir or ".") / name
