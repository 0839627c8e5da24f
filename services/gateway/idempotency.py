"""Requests with an idempotency key: the first one begins an answer, every other one joins it or gets it again.

The edge sends a key to one gateway while that lives (a ring hash on the header), which has its answer in memory; after
that, or where a caller comes past the edge, another one finds it in the store of records (docs/adr, 33).
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from libs.callers import Caller
from libs.cursor import Cursor, Position
from libs.errors import Reason, WeirError
from libs.idempotency import Entry, KeptAnswers, Keyed, check_key, conflict
from libs.telemetry import get_logger, place_of
from services.gateway import metrics
from services.gateway.cursors import Cursors
from services.gateway.kept import pack, unpack
from services.gateway.output_buffer import OutputBuffer
from services.gateway.policy.events import End
from services.gateway.policy.resuming import ends
from services.gateway.policy.spec import Resumed, Spec
from services.gateway.recording import Joined, Recording
from services.gateway.serve import Pipeline

log = get_logger(__name__)
_WEIGHT = 2048
"""Characters that the shortest answer weighs as much as, with its key."""

READERS = 32
"""Of one answer while it is given: each has a buffer that its text is put into."""


class Idempotency:
    """One per process."""

    def __init__(self, pipeline: Pipeline, cursors: Cursors, kept: KeptAnswers | None) -> None:
        """:param kept: what other gateways find; None: keys are this process's alone."""
        settings = pipeline.parts.settings
        self._pipeline = pipeline
        self._cursors = cursors
        self._kept = kept
        self._clock = pipeline.parts.clock
        self._life = settings.idempotency_life
        most = settings.idempotency_chars
        self._keyed: Keyed[Recording] = Keyed(most_size=most, life=self._life, weight=_WEIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Answers that are being given."""
        return len(self._tasks)

    async def open(self, spec: Spec, caller: Caller, key: str, body: bytes, cursor: Cursor | None) -> OutputBuffer:
        """What the caller reads: the answer that its key stands for, behind the cursor. `body` is a digest of all that
        makes a request the same one. Without a `key` it is simply begun, or gone on with.

        :raises WeirError: INVALID_REQUEST, IDEMPOTENCY_CONFLICT; REJECTED_QUEUE_FULL where too much is kept already;
            DEPENDENCY_UNAVAILABLE where nobody knows what the key stands for; whatever refuses the request itself,
            which makes the key stand for nothing.
        """
        tenant = caller.identity.tenant
        if not key or not self._life:
            resumed = None if cursor is None else self._cursors.resumed(cursor, tenant)
            return await self._pipeline.open(spec if resumed is None else replace(spec, resumed=resumed), caller)
        check_key(key)
        try:
            recording = self._keyed.find(tenant, key, body)
        except WeirError:
            metrics.IDEMPOTENCY.labels("conflict").inc()
            raise
        begun = recording is None
        if recording is None:
            recording = Recording()
            entry = self._keyed.put(tenant, key, body, recording, self._clock.monotonic())
            task = asyncio.get_running_loop().create_task(self._answer(entry, spec, caller, cursor))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(recording.opened)
        except WeirError as error:
            if error.reason is Reason.IDEMPOTENCY_CONFLICT:
                metrics.IDEMPOTENCY.labels("conflict").inc()
            raise
        again = recording.restored or not begun
        metrics.IDEMPOTENCY.labels("began" if not again else "joined" if recording.end is None else "replayed").inc()
        if again:
            self._check_may_read(recording, spec, tenant)
            if len(recording.readers) >= READERS:
                message = f"{READERS} calls with this idempotency key read its answer already"
                raise WeirError(Reason.REJECTED_QUEUE_FULL, message, limit="idempotency_readers", retry_after=1.0)
            if cursor is not None and not _is_of(cursor, recording):
                return await self._pipeline.open(replace(spec, resumed=self._cursors.resumed(cursor, tenant)), caller)
        return Joined(
            recording,
            request_id=caller.request_id,
            replayed=again,
            at=() if cursor is None else cursor.positions,
            clock=self._clock,
            readers=self._pipeline.parts.readers,
        )

    def sweep(self) -> None:
        """Forget what is too old; called about twice a second."""
        self._keyed.expire(self._clock.monotonic())

    async def _answer(self, entry: Entry[Recording], spec: Spec, caller: Caller, cursor: Cursor | None) -> None:
        """Have it answered to the end, whoever leaves; or have the answer that was given before."""
        recording, keep, claimed = entry.answer, False, False

        async def ended(end: End) -> None:
            nonlocal keep, claimed
            keep = all(map(ends, end.choices))
            if keep and claimed and self._kept is not None:
                claimed = False
                packed = pack(recording.accepted, recording.choices, end, recording.policies)
                await self._kept.keep(entry.tenant, entry.key, packed)

        try:
            if self._kept is not None:
                found = await self._kept.begin(entry.tenant, entry.key, entry.body, take_over=cursor is not None)
                if found is not None:
                    self._restore(entry, found)
                    keep = True
                    return
                claimed = True
            buffer = await self._pipeline.open(self._seeded(entry, spec, cursor), caller)
            recording.policies = self._policies_of(buffer.accepted.model_version, entry.tenant)
            await recording.record(buffer, lambda size: self._keyed.grew(entry, size), ended)
        except WeirError as error:
            if not recording.opened.done():
                recording.opened.set_exception(error)
        except Exception as error:
            log.error("keyed_request_failed", error=type(error).__name__, where=place_of(error))
            if not recording.opened.done():
                recording.opened.set_exception(WeirError(Reason.INTERNAL, "internal error"))
        finally:
            self._keyed.ended(entry, keep=keep)
            if claimed and self._kept is not None:
                self._kept.drop(entry.tenant, entry.key)

    def _seeded(self, entry: Entry[Recording], spec: Spec, cursor: Cursor | None) -> Spec:
        """So that another gateway that computes it comes to the same."""
        if cursor is not None:  # the whole is computed anew; each reader drops what it has
            return replace(spec, resumed=_from_the_beginning(self._cursors.resumed(cursor, entry.tenant)))
        if spec.parameters.seed is not None:
            return spec
        seed = self._cursors.seed(entry.tenant, entry.key, entry.body)
        return replace(spec, parameters=replace(spec.parameters, seed=seed))

    def _restore(self, entry: Entry[Recording], found: bytes) -> None:
        """:raises WeirError: IDEMPOTENCY_CONFLICT: another version of the gateway kept it, in another form."""
        try:
            accepted, choices, end, entry.answer.policies = unpack(found)
        except msgspec.DecodeError as error:
            raise conflict("its answer cannot be read any more") from error
        entry.answer.restore(accepted, choices, end)
        self._keyed.grew(entry, len(found))

    def _check_may_read(self, recording: Recording, spec: Spec, tenant: str) -> None:
        """What was given under other terms is not given again.

        :raises WeirError: MODEL_NOT_FOUND, IDEMPOTENCY_CONFLICT.
        """
        catalog = self._pipeline.parts.catalog
        catalog.resolve(catalog.question(tenant, spec.model, user=spec.user, session=spec.session))
        if recording.policies != self._policies_of(recording.accepted.model_version, tenant):
            raise conflict("its answer was given under other safety policies")

    def _policies_of(self, model_version: str, tenant: str) -> tuple[str, ...]:
        catalog = self._pipeline.parts.catalog
        version = catalog.snapshot.model_versions.get(model_version)
        return () if version is None else catalog.policies(catalog.tenant(tenant), version)


def _from_the_beginning(resumed: Resumed) -> Resumed:
    cursor = resumed.cursor
    return Resumed(replace(cursor, positions=(Position(),) * len(cursor.positions)), resumed.billed)


def _is_of(cursor: Cursor, recording: Recording) -> bool:
    origin = recording.accepted.origin
    return origin is not None and origin.request_id == cursor.origin.request_id
