"""Settings of the audit service."""

from pathlib import Path

import msgspec

from libs.auditlog.retention import check_days
from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the audit service needs beside the common settings."""

    log_dir: str = ""
    """The log's segments; empty is `state_dir`/log."""
    checkpoint_dir: str = ""
    """Signed checkpoints, best on another disk than the log; empty is `state_dir`/checkpoints."""
    key_dir: str = ""
    """The key that signs checkpoints (made at the first start); empty is `state_dir`/keys."""
    key_fingerprint: str = ""
    """SHA-256 of the public key, 64 hex digits, as `weir audit verify` tells it: another key in `key_dir` is a fault.
    Empty: the anchors outside the disk are what tells."""
    blobs: str = ""
    """A blob store that keeps a second anchor: a URI as `libs.artifacts.open_store` knows them, best a bucket with
    Object Lock and a retention of its own. Empty: etcd has the only one."""
    sealing_dir: str = ""
    """Wrapped data keys: a folder with rights of its own, apart from the log; empty is `state_dir`/sealing."""
    kek: str = ""
    """The key-encryption key that wraps them: a folder (a key is made at the first start) or
    awskms:///KEY?region=NAME. Empty is `state_dir`/kek, for development: whoever has that disk has all."""
    retention_days: dict[str, int] = msgspec.field(default_factory=dict)
    """How many days records of a class ("request", "admin", "safety", "security") are kept; without a class, for ever.
    Whole months go."""
    retention_seconds: float = 3_600.0
    """How often what is too old is looked for."""
    segment_bytes: int = 16 * 2**20
    """A segment is closed once it is longer than this."""
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
    bucket_seconds: float = 3_600.0
    """How often one is put into the blob store, which keeps them all; also at every start."""
    max_in_flight: int = 4_096
    """Calls in flight per session."""

    def __post_init__(self) -> None:
        """:raises ValueError: a class of data is unknown, or kept for less than a day."""
        super().__post_init__()
        if wrong := check_days(self.retention_days):
            raise ValueError(wrong)

    def directory(self, own: str, name: str) -> Path:
        """Return a configured directory, or the one of that name in `state_dir`."""
        return Path(own) if own else Path(self.state_dir or ".") / name
