"""Settings of the gateway."""

from __future__ import annotations

import msgspec

from libs.config import MAX_BODY_BYTES, ServiceSettings
from libs.mirrors import ShadowSettings


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """gRPC targets of the deciding services: xDS names, or "host:port" in tests."""

    ratelimit: str = "xds:///ratelimit.weir.internal"
    router: str = "xds:///router.weir.internal"
    admission: str = "xds:///admission.weir.internal"
    safety: str = "xds:///safety.weir.internal"
    audit: str = "xds:///audit.weir.internal"
    records: str = "xds:///records.weir.internal"
    rollout: str = "xds:///rollout.weir.internal"
    """Asked how objectives are met, for `/v1/status`; what it decides by is told to each of its processes."""


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See each field."""

    max_message_bytes: int = MAX_BODY_BYTES + 4096
    """As much as the edge takes over HTTP, in an envelope."""
    targets: Targets = Targets()
    """Where the deciding services are."""
    default_deadline: float = 120.0
    """Seconds for a request that names no deadline of its own and whose tenant has none."""
    decide_timeout: float = 1.0
    """Seconds that one decision (safety, quota, route) may take before its fallback is used."""
    leaf_patience: float = 10.0
    """Seconds that a starting gateway waits for a deciding service before it serves without it."""
    lame_duck_seconds: float = 1.0
    """Of a drain's time: how long it serves on after its endpoint has left the registry, so that everybody who sends
    requests has learned of that before it refuses any."""
    end_timeout: float = 30.0
    """Seconds that settling, releasing and reporting are retried for."""
    filter_grace: float = 5.0
    """Seconds that a fail-closed tenant's prompt or stream waits for a lost safety service before it ends with an
    error."""
    heartbeat_seconds: float = 10.0
    """Silence after which a stream gets a heartbeat."""
    max_active: int = 4096
    """Requests at once, waiting for a worker or running; more are refused."""
    max_active_share: float = 0.5
    """Of those, what one tenant may have; more are refused."""
    max_local_grants: int = 8
    """Requests at once that this gateway sends to workers on its own while admission is away."""
    max_migrations: int = 2
    """Times that one generation may be moved to another worker after a fault. Interruptions for more urgent requests
    do not count."""
    reader_stall_seconds: float = 30.0
    """A reader that takes nothing for this long loses its generation; after as long again, its call."""
    max_unread_stream: int = 2**20
    """Characters of output that one stream may leave unread."""
    max_unread: int = 128 * 2**20
    """Characters of output that all streams together may leave unread; the largest is cut first."""
    flush_max: float = 0.04
    """Seconds that a stream's output may wait for company when the gateway is busy, and never longer than the declared
    `itl_p95` of its route and tier; its first text and its end never wait. 0: nothing ever does."""
    pressure_seconds: float = 5.0
    """What admission last said of a pool's pressure holds for this long."""
    answer_cache_bytes: int = 32 * 2**20
    """Memory for answers that plans with the step `cached_answer` may give again."""
    max_input_chars: int = 262_144
    """Most characters of one input's texts together; the safety service refuses more too."""
    encode_inline_chars: int = 2048
    """Longer inputs are tokenised in a thread, so that they do not hold up everybody's tokens: well under a millisecond
    on the loop."""
    journal_bytes: int = 64 * 2**20
    """Disk that audit records may take while the audit service is away, in files of 4 MiB; beside them, two kilobytes
    for each of `max_active`."""
    blobs: str = ""
    """The mesh's blob store, for versions whose source is "blobs:": a URI as `libs.artifacts.open_store` knows them.
    Empty: such versions cannot be tokenised here."""
    model_files_bytes: int = 2**30
    """Disk that tokenizers fetched from there may take; the least recently used go first."""
    shadow: ShadowSettings = ShadowSettings()
    """What mirrored requests get of this gateway at most; see services/gateway/shadow."""
    scored_per_second: float = 5.0
    """Requests of one arm of a rollout, its baseline too, whose tokens' log-probabilities are asked of the worker, for
    the score "mean_logprob"."""
    allowances: bool = True
    """Requests of tenants that are far from their limits are reserved out of what the limiter told this gateway before,
    without asking it."""
    stream_per_owner: bool = True
    """What goes to one replica of the limiter travels on one stream, and not on one for each shard of tenants. Pools
    keep a stream each: their credits and their owner's term are those of the stream."""
    lazy_seconds: float = 0.05
    """A message that nobody waits for (settle, release, audit) waits this long for company."""
    cursor_keys: str = ""
    """Path of the keys that sign the ids of streamed events, the same for all gateways; see `libs.cursor.KeyringFile`.
    Empty: one of this process's own, so that no other gateway goes on with its streams."""
    cursor_life: float = 3600.0
    """Seconds after its beginning in which a stream can be gone on with; 0: never, and events have no ids."""
    idempotency_life: float = 86_400.0
    """Seconds that an answer under an idempotency key is kept for, while there is room; 0: keys are ignored."""
    idempotency_chars: int = 32 * 2**20
    """Characters that the answers under idempotency keys may take together in memory; the oldest go first."""
    idempotency_keys: str = ""
    """Path of the keys that seal such answers for the store of records, where another gateway finds them after this one
    died; as `cursor_keys`. While that store is away, requests with keys are refused (503). Empty: one gateway alone
    knows a key."""
    lease_seconds: float = 20.0
    """A quota lease that this gateway does not prolong, four times within, ends by itself after this long."""
