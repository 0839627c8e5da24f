"""Answers under idempotency keys in the store of records, where another process finds them after this one died.

A key is claimed before its request is answered, and what it stands for is kept before the end of its answer is told.
The claims of a process hold for `LEASE` seconds, and on while it lives. What is kept is sealed with a key of those who
answer; the store sees digests and ciphertext.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any

import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.duration_pb2 import Duration
from weir.records.v1 import answers_pb2 as pb

from libs.clock import Clock
from libs.cursor import Keyring
from libs.errors import Reason, WeirError, from_rpc_error
from libs.idempotency.keyed import conflict
from libs.telemetry import get_logger

log = get_logger(__name__)
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


class KeptAnswers:
    """One per process and event loop."""

    def __init__(
        self, stub: Any, *, holder: str, keys: Callable[[], Keyring], life: float, timeout: float, clock: Clock
    ) -> None:
        """:param stub: of `weir.records.v1.AnswersService`.
        :param holder: this process, by instance.
        :param keys: shared by all who answer such requests.
        :param life: seconds that a key stands for its request.
        :param timeout: seconds of one question to the store.
        """
        self._stub = stub
        self._holder = holder
        self._sealer = Sealer(keys)
        self._life = _duration(life)
        self._timeout = timeout
        self._clock = clock
        self._claims = 0
        self._claimed = asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Goes on with the claims of this process, until cancelled."""
        lease = _duration(LEASE)
        while True:
            await self._claimed.wait()
            try:
                await self._ask(self._stub.Hold, pb.HoldRequest(holder=self._holder, lease=lease))
            except WeirError as error:
                log.warning("claims_not_held", reason=error.reason.name, claims=self._claims)
            await asyncio.sleep(_HOLD_SECONDS)

    async def begin(self, tenant: str, key: str, body: bytes, *, take_over: bool = False) -> bytes | None:
        """What a key stands for; None: nothing yet, and it is claimed, so that `keep` or `drop` has to follow.

        :param take_over: claims it though another process has, from which its caller was cut off.
        :raises WeirError: IDEMPOTENCY_CONFLICT, another request, one that another process answers, or an answer that
            cannot be given again; DEPENDENCY_UNAVAILABLE, nobody knows; REJECTED_QUEUE_FULL.
        """
        question = pb.BeginRequest(
            key=_key(tenant, key),
            body=body,
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
            self._claimed.set()
            return None
        if found.state == pb.BeginResponse.STATE_CONFLICT:
            raise conflict()
        if found.state == pb.BeginResponse.STATE_RUNNING:
            raise conflict("another process answers it", retry_after=LEASE)
        if not found.answer:
            raise conflict("its answer was too large to be given again")
        answer = self._sealer.open(found.answer, _bound(tenant, key))
        if answer is None:
            raise conflict("its answer cannot be read any more")
        return answer

    async def keep(self, tenant: str, key: str, answer: bytes) -> None:
        """What a claimed key stands for. When the store is away it is kept later; the claim holds until then."""
        sealed = self._sealer.seal(answer, _bound(tenant, key)) if len(answer) <= MOST_ANSWER else b""
        request = pb.KeepRequest(key=_key(tenant, key), holder=self._holder, answer=sealed)
        if not await self._kept(request):
            self._spawn(self._keep_later(request))

    def drop(self, tenant: str, key: str) -> None:
        """A claimed key stands for nothing. Returns at once."""
        self._spawn(self._drop(pb.DropRequest(key=_key(tenant, key), holder=self._holder)))

    async def drain(self) -> None:
        """Until what was left for later is done."""
        await asyncio.gather(*self._later)

    async def _kept(self, request: pb.KeepRequest) -> bool:
        try:
            answer = await self._ask(self._stub.Keep, request)
        except WeirError:
            return False
        if not answer.kept:
            log.warning("answer_not_kept", reason="another process has claimed its key")
        self._over()
        return True

    async def _keep_later(self, request: pb.KeepRequest) -> None:
        for _ in range(_KEEP_TRIES):
            await asyncio.sleep(_HOLD_SECONDS)
            if await self._kept(request):
                return
        log.error("answer_not_kept", reason="the store of records is away")
        self._over()

    async def _drop(self, request: pb.DropRequest) -> None:
        try:
            await self._ask(self._stub.Drop, request)
        except WeirError as error:  # then its claim ends by itself
            log.warning("claim_not_dropped", reason=error.reason.name)
        self._over()

    async def _ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    def _over(self) -> None:
        self._claims -= 1
        if not self._claims:
            self._claimed.clear()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)


def _aead(key: bytes) -> AESGCM:
    return AESGCM(hashlib.blake2b(key=key, digest_size=32, person=b"weir-answers").digest())


def _key(tenant: str, key: str) -> pb.AnswerKey:
    return pb.AnswerKey(tenant=tenant, key=hashlib.sha256(key.encode()).digest())


def _bound(tenant: str, key: str) -> bytes:
    return hashlib.sha256(tenant.encode() + b"\0" + key.encode()).digest()


def _duration(seconds: float) -> Duration:
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made
