"""Answers under idempotency keys in the store of records, where another process finds them after this one died.

A key is claimed before its request is answered, and what it stands for is kept before the end of its answer is told.
The claims of a process hold for `LEASE` seconds, and on while it lives. What is kept is sealed with a key of those who
answer; the store sees digests and ciphertext.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.duration_pb2 import Duration
from weir.records.v1 import answers_pb2 as pb

from libs.clock import Clock
from libs.cursor import Keyring, KeyringFile
from libs.errors import Reason, WeirError, from_rpc_error
from libs.idempotency.keyed import Entry, Keyed, conflict
from libs.telemetry import get_logger, place_of

log = get_logger(__name__)
T = TypeVar("T")
LEASE = 6.0
"""Seconds that a claim holds without another word: as long as others wait for a process that is gone."""
_HOLD_SECONDS = 1.5
_LOOK_SECONDS = 0.25
_KEEP_TRIES = 40
MOST_ANSWER = 2**20 - 64
"""Bytes, before it is sealed; a larger one is not kept, and its key stands for it all the same."""
_NONCE = 12


class Sealer:
    """Seals with the ring's first key, opens with any."""

    def __init__(self, keys: Callable[[], Keyring]) -> None:
        self._keys = keys

    def seal(self, plain: bytes, bound: bytes) -> bytes:
        """The key's id, a nonce, and the ciphertext; good for what it is bound to alone."""
        ring, nonce = self._keys(), os.urandom(_NONCE)
        return ring.signing_id + nonce + _aead(ring.signing).encrypt(nonce, plain, bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes | None:
        """What was sealed; None where its key is gone, or it is bound to something else."""
        key = self._keys().key(sealed[:2])
        if key is None:
            return None
        try:
            return _aead(key).decrypt(sealed[2 : 2 + _NONCE], sealed[2 + _NONCE :], bound)
        except (InvalidTag, ValueError):
            return None


class Claim:
    """On a key whose request is being answered here."""

    def __init__(self, answers: KeptAnswers, keyed: Keyed[Any], entry: Entry[Any]) -> None:
        self._answers, self._keyed, self._entry = answers, keyed, entry
        self.open = self.kept = False
        """It holds and nothing is kept; the key stands for something."""

    async def begin(self, unpack: Callable[[bytes], T], *, take_over: bool = False) -> T | None:
        """What the key stands for already; None: nothing, and it is claimed.

        :param unpack: raises ValueError for what another version of the service has kept, in another form.
        :param take_over: claims it though another process has, from which its caller was cut off.
        :raises WeirError: IDEMPOTENCY_CONFLICT, another request, one that another process answers, or an answer that
            cannot be given again; DEPENDENCY_UNAVAILABLE, nobody knows; REJECTED_QUEUE_FULL.
        """
        packed = await self._answers.begin(self._entry, take_over=take_over)
        if packed is None:
            self.open = True
            return None
        try:
            found = unpack(packed)
        except ValueError as error:
            raise conflict("its answer cannot be read any more") from error
        self._keyed.grew(self._entry, len(packed))
        self.kept = True
        return found

    async def keep(self, answer: bytes) -> None:
        """What it is to stand for."""
        self.open, self.kept = False, True
        await self._answers.keep(self._entry, answer)


class KeptAnswers:
    """One per process and event loop."""

    def __init__(self, stub: Any, *, holder: str, keys: KeyringFile, life: float, timeout: float, clock: Clock) -> None:
        """:param stub: of `weir.records.v1.AnswersService`; None: keys are this process's alone.
        :param holder: this process, by instance.
        :param keys: shared by all who answer such requests.
        :param life: seconds that a key stands for its request.
        :param timeout: seconds of one question to the store.
        """
        self._stub = stub
        self._holder = holder
        self._keys = keys
        self._sealer = Sealer(lambda: keys.keys)
        self._life = _duration(life)
        self._timeout = timeout
        self._clock = clock
        self._claims = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Goes on with the claims of this process and takes up changed keys, until cancelled."""
        lease = _duration(LEASE)
        while True:
            with suppress(OSError, ValueError):  # what was read before stays in force
                self._keys.refresh()
            if self._claims:
                try:
                    await self._ask(self._stub.Hold, pb.HoldRequest(holder=self._holder, lease=lease))
                except WeirError as error:
                    log.warning("claims_not_held", reason=error.reason.name, claims=self._claims)
            await asyncio.sleep(_HOLD_SECONDS)

    @asynccontextmanager
    async def answering(self, keyed: Keyed[Any], entry: Entry[Any], told: asyncio.Future[Any]) -> AsyncIterator[Claim]:
        """While the request of an entry of `keyed` is answered. Where nothing was found or kept the key stands for
        nothing afterwards, here and elsewhere. What goes wrong, `told` is told and nobody else."""
        claim = Claim(self, keyed, entry)
        try:
            yield claim
        except Exception as error:
            if not isinstance(error, WeirError):
                log.error("keyed_request_failed", error=type(error).__name__, where=place_of(error))
                error = WeirError(Reason.INTERNAL, "internal error")
            if not told.done():
                told.set_exception(error)
        finally:
            keyed.ended(entry, keep=claim.kept)
            if claim.open:
                self.drop(entry)
            told.cancel()  # of a process that ends: whoever waits is told so

    async def begin(self, entry: Entry[Any], *, take_over: bool) -> bytes | None:
        """See `Claim`; None: `keep` or `drop` has to follow."""
        if self._stub is None:
            return None
        question = pb.BeginRequest(
            key=_key(entry),
            body=entry.body,
            holder=self._holder,
            lease=_duration(LEASE),
            life=self._life,
            take_over=take_over,
        )
        patience = self._clock.monotonic() + LEASE + _HOLD_SECONDS
        while True:
            try:
                found = await self._ask(self._stub.Begin, question)
            except WeirError as error:
                if error.reason is Reason.REJECTED_QUEUE_FULL:
                    raise
                message = "what this idempotency key stands for is not known now"
                raise WeirError(
                    Reason.DEPENDENCY_UNAVAILABLE, message, limit="idempotency_key", retry_after=1.0
                ) from error
            if found.state != pb.BeginResponse.STATE_RUNNING or self._clock.monotonic() >= patience:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        if found.state == pb.BeginResponse.STATE_BEGUN:
            self._claims += 1
            return None
        if found.state == pb.BeginResponse.STATE_CONFLICT:
            raise conflict()
        if found.state == pb.BeginResponse.STATE_RUNNING:
            raise conflict("another process answers it", retry_after=LEASE)
        if not found.answer:
            raise conflict("its answer was too large to be given again")
        answer = self._sealer.open(found.answer, _bound(entry))
        if answer is None:
            raise conflict("its answer cannot be read any more")
        return answer

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Whoever waits for it may leave; `drain` waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Until what runs has ended, and is kept."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def keep(self, entry: Entry[Any], answer: bytes) -> None:
        """What a claimed key stands for. When the store is away it is kept later; the claim holds until then."""
        if self._stub is None:
            return
        sealed = self._sealer.seal(answer, _bound(entry)) if len(answer) <= MOST_ANSWER else b""
        request = pb.KeepRequest(key=_key(entry), holder=self._holder, answer=sealed)
        if not await self._kept(request):
            self.spawn(self._keep_later(request))

    def drop(self, entry: Entry[Any]) -> None:
        """A claimed key stands for nothing. Returns at once."""
        if self._stub is not None:
            self.spawn(self._drop(pb.DropRequest(key=_key(entry), holder=self._holder)))

    async def _kept(self, request: pb.KeepRequest) -> bool:
        try:
            answer = await self._ask(self._stub.Keep, request)
        except WeirError:
            return False
        if not answer.kept:
            log.warning("answer_not_kept", reason="another process has claimed its key")
        self._claims -= 1
        return True

    async def _keep_later(self, request: pb.KeepRequest) -> None:
        for _ in range(_KEEP_TRIES):
            await asyncio.sleep(_HOLD_SECONDS)
            if await self._kept(request):
                return
        log.error("answer_not_kept", reason="the store of records is away")
        self._claims -= 1

    async def _drop(self, request: pb.DropRequest) -> None:
        try:
            await self._ask(self._stub.Drop, request)
        except WeirError as error:  # then its claim ends by itself
            log.warning("claim_not_drop", reason=error.reason.name)
        self._claims -= 1

    async def _ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


def _aead(key: bytes) -> AESGCM:
    return AESGCM(hashlib.blake2b(key=key, digest_size=32, person=b"weir-answers").digest())


def _key(entry: Entry[Any]) -> pb.AnswerKey:
    return pb.AnswerKey(tenant=entry.tenant, key=hashlib.sha256(entry.key.encode()).digest())


def _bound(entry: Entry[Any]) -> bytes:
    return hashlib.sha256(entry.tenant.encode() + b"\0" + entry.key.encode()).digest()


def _duration(seconds: float) -> Duration:
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made
