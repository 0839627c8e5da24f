"""The grants that were given out and are still good."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from weir.admission.v1 import admission_pb2 as pb

from libs.clock import Clock
from libs.grants import KEY_BYTES, GrantSigner
from services.admission.policy.model import Request, WorkerSpec
from services.admission.worker_session import WorkerSession


class _Kept(NamedTuple):
    signed: pb.SignedGrant
    what: tuple[str, int, str, int, int, int, float]  # key id, term, version, caps, share
    expiry: float


class Granting:
    """Makes the keys of workers' sessions, signs grants with them, and remembers each grant while it is good."""

    def __init__(self, *, clock: Clock, random_bytes: Callable[[int], bytes], lifetime: float) -> None:
        """:param random_bytes: unpredictable ones, for keys and nonces.

        :param lifetime: seconds that a grant is good.
        """
        self._clock = clock
        self._random_bytes = random_bytes
        self._lifetime = lifetime
        self._kept: dict[str, _Kept] = {}  # by request
        self._expiries: deque[tuple[float, str]] = deque()

    def open(self, hello: pb.WorkerHello, spec: WorkerSpec) -> WorkerSession:
        """A session of a worker, with a key of its own."""
        key = self._random_bytes(KEY_BYTES)
        signer = GrantSigner(
            worker=spec.worker,
            key_id=self._random_bytes(8).hex(),
            key=key,
            clock=self._clock,
            random_bytes=self._random_bytes,
            lifetime=self._lifetime,
        )
        return WorkerSession(hello=hello, spec=spec, key=key, signer=signer)

    def grant(self, request: Request, session: WorkerSession, *, epoch: int, blocks: int) -> pb.SignedGrant:
        """The request's grant: the one it has while that is good, so that a repeated question cannot run twice."""
        now = self._clock.monotonic()
        # What is granted, in which term, and with which key: a share for something else needs a grant of its own.
        what = (
            session.signer.key_id,
            epoch,
            request.model_version,
            request.prompt_tokens,
            request.max_output_tokens,
            request.choices,
            request.kv_share,
        )
        kept = self._kept.get(request.request_id)
        if kept is not None and kept.what == what and kept.expiry > now:
            return kept.signed
        signed = session.signer.sign(
            request_id=request.request_id,
            model_version=request.model_version,
            tenant=request.tenant,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            choices=request.choices,
            kv_share=request.kv_share,
            epoch=epoch,
            blocks=blocks,
        )
        expiry = now + self._lifetime
        self._kept[request.request_id] = _Kept(signed, what, expiry)
        self._expiries.append((expiry, request.request_id))
        return signed

    def credit(
        self, request: Request, session: WorkerSession, *, epoch: int, blocks: int, lifetime: float
    ) -> pb.SignedGrant:
        """The grant of a credit with these caps, good for `lifetime` seconds. It names no request."""
        return session.signer.sign(
            request_id="",
            model_version=request.model_version,
            tenant="",
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            choices=request.choices,
            epoch=epoch,
            blocks=blocks,
            lifetime=lifetime,
        )

    def forget(self, request_id: str) -> None:
        """The request has ended: asked for again, it is another."""
        self._kept.pop(request_id, None)

    def expire(self, now: float) -> None:
        """Forgets what is good no more."""
        while self._expiries and self._expiries[0][0] <= now:
            _, request_id = self._expiries.popleft()
            kept = self._kept.get(request_id)
            if kept is not None and kept.expiry <= now:
                del self._kept[request_id]
