"""Settings of a predictor."""

from __future__ import annotations

import msgspec

from libs.config import MAX_PREDICTION_BYTES, ServiceSettings
from libs.mirrors import ShadowSettings

_SECONDS = {"classical": 0.5, "deep": 2.0}


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """gRPC targets of what predictions are accounted with: xDS names, or "host:port" in tests."""

    ratelimit: str = "xds:///ratelimit.weir.internal"
    audit: str = "xds:///audit.weir.internal"
    records: str = "xds:///records.weir.internal"


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a predictor needs beside the common settings."""

    max_message_bytes: int = MAX_PREDICTION_BYTES + 4096
    """What Envoy makes of the largest HTTP body (`edge.max_prediction_bytes`) is a little larger. What a compressed
    body grows to has the same bound, and so has an answer over HTTP."""
    pool: str = "predict"
    """Versions of this pool are served."""
    blobs: str = ""
    """Where model files lie (`file:///path`, `s3://bucket/prefix`)."""
    weight_cache: str = ""
    """Folder of the local cache of model files, which the processes of one machine may share; empty: `weights` in the
    state directory."""
    weight_cache_bytes: int = 10_737_418_240
    """Its bound."""
    require_signatures: bool = True
    """Refuse versions that are not signed, or whose namespace has no trust policy."""
    min_residency: float = 30.0
    """Seconds that a version stays loaded at least, and after it was wanted last: requests may be on their way. With
    `memory_bytes` also for how long what makes room for another version was not asked for."""
    memory_bytes: int = 0
    """Memory that the loaded versions may take together, in this process and those of their own, as measured when each
    was loaded; what was asked for longest ago makes room. Beside it are the predictor itself (some 300 MiB), what runs,
    and one more version while it is tried out. 0: no bound."""
    default_deadline: dict[str, float] = msgspec.field(default_factory=lambda: dict(_SECONDS))
    """Seconds for calls without a deadline, by the profile of the version ("classical", "deep")."""
    max_active: int = 4096
    """Requests at once; one more is refused."""
    max_active_share: float = 0.5
    """What one tenant may have of them."""
    cache_bytes: int = 32 * 2**20
    """Memory for answers of versions that allow it (`cache_seconds`); 0: none are kept."""
    stale_seconds: float = 60.0
    """For how long beyond its time a kept answer is given where nothing else is to be had, flagged."""
    idempotency_life: float = 86_400.0
    """Seconds that an answer under an idempotency key is kept for, while there is room; 0: keys are ignored."""
    idempotency_bytes: int = 16 * 2**20
    """Memory that such answers may take; the oldest go first."""
    idempotency_keys: str = ""
    """Path of the keys that seal such answers for the store of records, where another predictor finds them after this
    one died; see `libs.cursor.KeyringFile`. Empty: one predictor alone knows a key."""
    drain_grace: float = 5.0
    """How long running requests may go on after SIGTERM; at least two seconds below `drain_seconds`."""
    lame_duck_seconds: float = 1.0
    """For how long it serves on after its endpoint left the registry: whoever calls it learns that meanwhile."""
    targets: Targets = Targets()
    decide_timeout: float = 0.25
    """Seconds that the limiter may take before this process's own share of a limit decides."""
    end_timeout: float = 30.0
    """Seconds that settling is retried for."""
    leaf_patience: float = 10.0
    """Seconds that a starting predictor waits for limiter and audit log before it serves without them."""
    lease_seconds: float = 20.0
    """A quota lease that this process does not prolong, four times within, ends by itself after this long."""
    lazy_seconds: float = 0.05
    """A message that nobody waits for (settle, audit) waits this long for company."""
    journal_bytes: int = 256 * 2**20
    """Disk that audit records may take while the audit service is away, in files of 4 MiB; beside them, three
    kilobytes for each of `max_active`."""
    shadow: ShadowSettings = ShadowSettings(queue=256, deadline=5.0)
    """What mirrored predictions get of this process at most."""

    def __post_init__(self) -> None:
        """Check what a type cannot say."""
        super().__post_init__()
        if min(self.decide_timeout, self.end_timeout, self.leaf_patience, self.lazy_seconds) < 0:
            raise ValueError("decide_timeout, end_timeout, leaf_patience and lazy_seconds must not be negative")
        if self.memory_bytes < 0:
            raise ValueError("memory_bytes must not be negative")
        for profile, seconds in self.default_deadline.items():
            if not seconds > 0:
                raise ValueError(f"default_deadline.{profile} must be above 0")
        if missing := _SECONDS.keys() - self.default_deadline.keys():
            raise ValueError(f"default_deadline lacks {', '.join(sorted(missing))}")
        if not 0 < self.max_active_share <= 1:
            raise ValueError("max_active_share must be above 0 and at most 1")
