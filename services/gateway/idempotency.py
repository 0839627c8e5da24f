"""Requests with an idempotency key: the first one begins an answer, every other one joins it or gets it again.

The edge sends a key to one gateway while that lives (a ring hash on the header), which has its answer in memory; after
that, or where a caller comes past the edge, another one finds it in the store of records (docs/adr, 33).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from msgspec.structs import replace

from libs.callers import Caller
from libs.cursor import Cursor, Position
from libs.errors import Reason, WeirError
from libs.idempotency import Entry, KeptAnswers, Keyed, KeyedCalls, conflict, conflicts_counted
from services.gateway import metrics
from services.gateway.cursors import Cursors
from services.gateway.embed import Embedded
from services.gateway.kept import pack, pack_vectors, unpack, unpack_vectors
from services.gateway.output_buffer import OutputBuffer
from services.gateway.policy.events import End
from services.gateway.policy.resuming import ends
from services.gateway.policy.spec import Resumed, Spec
from services.gateway.recording import Joined, Recording
from services.gateway.request import NO_LIMITS
from services.gateway.serve import Pipeline

_WEIGHT = 2048
"""Characters that the shortest answer weighs as much as, with its key."""

READERS = 32
"""Of one answer while it is given: each has a buffer that its text is put into."""


class Idempotency:
    """One per process."""

    def __init__(self, pipeline: Pipeline, cursors: Cursors, kept: KeptAnswers) -> None:
        settings = pipeline.parts.settings
        self._pipeline = pipeline
        self._cursors = cursors
        self._kept = kept
        self._clock = pipeline.parts.clock
        self._life = settings.idempotency_life
        most = settings.idempotency_chars
        self._keyed: Keyed[Any] = Keyed(most_size=most, life=self._life, weight=_WEIGHT)
        self._embeddings: KeyedCalls[tuple[Embedded, tuple[str, ...]]] = KeyedCalls(
            *(self._keyed, kept, pack_vectors, unpack_vectors), outcomes=metrics.IDEMPOTENCY, clock=self._clock
        )

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
        with conflicts_counted(metrics.IDEMPOTENCY):
            recording = self._keyed.find(tenant, key, body)
            begun = recording is None
            if recording is None:
                recording = Recording()
                entry = self._keyed.put(tenant, key, body, recording, self._clock.monotonic())
                self._kept.spawn(self._answer(entry, spec, caller, cursor))
            await asyncio.shield(recording.opened)
        again = recording.restored or not begun
        metrics.IDEMPOTENCY.labels("began" if not again else "joined" if recording.end is None else "replayed").inc()
        if again:
            self._check_may_read(recording.accepted.model_version, recording.policies, spec, tenant)
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

    async def embed(self, spec: Spec, caller: Caller, key: str, body: bytes) -> Embedded:
        """The vectors that the caller's key stands for. See `open`."""
        if not key or not self._life:
            return await self._pipeline.embed(spec, caller)
        tenant = caller.identity.tenant
        (found, policies), again = await self._embeddings.answer(tenant, key, body, partial(self._embed, spec, caller))
        if not again:
            return found
        self._check_may_read(found.accepted.model_version, policies, spec, tenant)
        return replace(found, accepted=replace(found.accepted, replayed=True, limits=NO_LIMITS))

    def sweep(self) -> None:
        """Forget what is too old; called about twice a second."""
        self._keyed.expire(self._clock.monotonic())

    async def _answer(self, entry: Entry[Recording], spec: Spec, caller: Caller, cursor: Cursor | None) -> None:
        """Have it answered to the end, whoever leaves; or have the answer that was given before."""
        recording = entry.answer
        async with self._kept.answering(self._keyed, entry, recording.opened) as claim:
            if (found := await claim.begin(unpack, take_over=cursor is not None)) is not None:
                accepted, choices, end, recording.policies = found
                recording.restore(accepted, choices, end)
                return

            async def ended(end: End) -> None:
                if all(map(ends, end.choices)):
                    await claim.keep(pack(recording.accepted, recording.choices, end, recording.policies))

            buffer = await self._pipeline.open(self._seeded(entry, spec, cursor), caller)
            recording.policies = self._policies_of(buffer.accepted.model_version, entry.tenant)
            await recording.record(buffer, lambda size: self._keyed.grew(entry, size), ended)

    def _seeded(self, entry: Entry[Recording], spec: Spec, cursor: Cursor | None) -> Spec:
        """So that another gateway that computes it comes to the same."""
        if cursor is not None:  # the whole is computed anew; each reader drops what it has
            return replace(spec, resumed=_from_the_beginning(self._cursors.resumed(cursor, entry.tenant)))
        if spec.parameters.seed is not None:
            return spec
        seed = self._cursors.seed(entry.tenant, entry.key, entry.body)
        return replace(spec, parameters=replace(spec.parameters, seed=seed))

    async def _embed(self, spec: Spec, caller: Caller) -> tuple[Embedded, tuple[str, ...]]:
        found = await self._pipeline.embed(spec, caller)
        return found, self._policies_of(found.accepted.model_version, caller.identity.tenant)

    def _check_may_read(self, model_version: str, policies: tuple[str, ...], spec: Spec, tenant: str) -> None:
        """What was given under other terms is not given again.

        :raises WeirError: MODEL_NOT_FOUND, IDEMPOTENCY_CONFLICT.
        """
        catalog = self._pipeline.parts.catalog
        catalog.resolve(catalog.question(tenant, spec.model, user=spec.user, session=spec.session))
        if policies != self._policies_of(model_version, tenant):
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
