"""The worker's end of a grant: checks the proof, the binding, the caps and the time, and takes each nonce once."""

from __future__ import annotations

import heapq
import hmac
from typing import NamedTuple

from google.protobuf.message import DecodeError
from weir.admission.v1.admission_pb2 import Grant, SignedGrant

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.grants.signer import KEY_BYTES, NONCE_BYTES

_UNKNOWN_KEY = bytes(KEY_BYTES)


class _Held(NamedTuple):
    """A key that is accepted."""

    key: bytes
    offset: float
    """The signer's clock less our monotonic one."""
    until: float | None = None
    """When it goes, in monotonic seconds."""


class GrantVerifier:
    """Verifies grants for one worker. Not thread-safe: use it from one event loop.

    Memory is bounded: a nonce is remembered only until its grant expires, and a grant that lives longer than
    `max_lifetime` is refused, so at most `accepted grants per second × max_lifetime` nonces are held.
    """

    def __init__(self, worker_id: str, *, clock: Clock, max_lifetime: float = 60.0) -> None:
        self._worker = worker_id
        self._clock = clock
        self._max_lifetime = max_lifetime
        self.epoch = 0
        """The newest term of the pool's owners that this worker has heard of; nothing older is accepted."""
        self.owner = ""
        """The admission process whose term that is."""
        self._keys: dict[str, _Held] = {}
        self._nonces: set[bytes] = set()
        self._expiries: list[tuple[float, bytes]] = []

    def add_key(self, key_id: str, key: bytes, time: float | None = None) -> None:
        """Accepts grants under this key, as given in WorkerWelcome.

        `time` is the signer's when it gave the key (Unix seconds): a grant's time is over when it is by the signer's
        clock, read now, but for what the key took to come here. None takes our clock for the signer's.

        :raises ValueError: when the key's length is wrong.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a grant key has {KEY_BYTES} bytes, not {len(key)}")
        offset = (self._clock.time() if time is None else time) - self._clock.monotonic()
        self._keys[key_id] = _Held(key, offset)

    def remove_key(self, key_id: str, *, after: float = 0.0) -> None:
        """Stops accepting the key, at once or `after` seconds from now; unknown ids are ignored.

        A worker whose capacity stream broke keeps the old key for a grant's lifetime, because grants signed before
        the break are still on their way through gateways.
        """
        held = self._keys.get(key_id)
        if held is None:
            return
        if after <= 0:
            del self._keys[key_id]
        else:
            self._keys[key_id] = held._replace(until=self._clock.monotonic() + after)

    def fence(self, epoch: int, owner: str) -> bool:
        """A process says that it owns the pool since this term: from now on no grant of an older one is accepted.
        False when this is not news."""
        if epoch <= self.epoch:
            return False
        self.epoch, self.owner = epoch, owner
        return True

    @property
    def remembered(self) -> int:
        """How many nonces are held now."""
        return len(self._nonces)

    def verify(
        self,
        signed: SignedGrant,
        *,
        request_id: str,
        model_version: str,
        prompt_tokens: int,
        max_output_tokens: int,
        choices: int,
    ) -> Grant:
        """Returns the grant and uses it up; a grant that is refused is not used up. A credit's is returned as the one
        of the request and the tenant that its holder names.

        `prompt_tokens`, `max_output_tokens` (of one choice, the largest) and `choices` are what is asked of the worker
        under this grant, all choices together; each must be within the grant's cap.

        :raises WeirError: GRANT_INVALID when it is forged, altered, or not for this worker, request, version or size;
            GRANT_EXPIRED when its time has passed, or its owner's term; GRANT_REPLAYED when it was used before.
        """
        grant, offset = self._authentic(signed)
        if grant.credit:
            grant.request_id, grant.tenant = signed.holder.request_id, signed.holder.tenant
            if not grant.tenant:
                raise WeirError(Reason.GRANT_INVALID, "Nobody holds the credit.", limit="holder")
        self._check_binding(grant, request_id=request_id, model_version=model_version)
        _check_caps(grant, prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens, choices=choices)
        self._use(grant, offset)
        return grant

    def _authentic(self, signed: SignedGrant) -> tuple[Grant, float]:
        """The decoded grant, once its MAC holds, and its key's offset. Nothing is decoded before."""
        held = self._held(signed.key_id)
        key = held.key if held is not None else None
        # The MAC is computed under an unknown key too, so that timing does not tell which key ids exist.
        expected = hmac.digest(key or _UNKNOWN_KEY, signed.grant, "sha256")
        if not hmac.compare_digest(expected, signed.mac) or held is None:
            raise WeirError(Reason.GRANT_INVALID, "The grant's proof does not hold for this worker.")
        try:
            return Grant.FromString(signed.grant), held.offset
        except DecodeError as error:
            raise WeirError(Reason.GRANT_INVALID, "The grant cannot be decoded.") from error

    def _held(self, key_id: str) -> _Held | None:
        held = self._keys.get(key_id)
        if held is not None and held.until is not None and self._clock.monotonic() >= held.until:
            del self._keys[key_id]
            return None
        return held

    def _check_binding(self, grant: Grant, *, request_id: str, model_version: str) -> None:
        if grant.worker != self._worker:
            raise WeirError(Reason.GRANT_INVALID, "The grant is for another worker.", limit="worker")
        if grant.request_id != request_id:
            raise WeirError(Reason.GRANT_INVALID, "The grant is for another request.", limit="request_id")
        if grant.model_version != model_version:
            raise WeirError(Reason.GRANT_INVALID, "The grant is for another model version.", limit="model_version")
        if len(grant.nonce) != NONCE_BYTES:
            raise WeirError(Reason.GRANT_INVALID, "The grant has no proper nonce.", limit="nonce")

    def _use(self, grant: Grant, offset: float) -> None:
        now = self._clock.monotonic()
        self._forget(now)
        expires = grant.expires_at.seconds + grant.expires_at.nanos * 1e-9 - offset
        if now >= expires:
            raise WeirError(Reason.GRANT_EXPIRED, "The grant's time has passed.", limit="expires_at")
        if grant.epoch < self.epoch:
            raise WeirError(Reason.GRANT_EXPIRED, "The pool has another owner by now.", limit="epoch")
        if expires > now + self._max_lifetime:
            raise WeirError(Reason.GRANT_INVALID, "The grant lives too long.", limit="expires_at")
        if grant.nonce in self._nonces:
            raise WeirError(Reason.GRANT_REPLAYED, "The grant was used before.", limit="nonce")
        self._nonces.add(grant.nonce)
        heapq.heappush(self._expiries, (expires, grant.nonce))

    def _forget(self, now: float) -> None:
        """Drops nonces whose grants are refused as expired from now on anyway."""
        while self._expiries and self._expiries[0][0] <= now:
            self._nonces.discard(heapq.heappop(self._expiries)[1])


def _check_caps(grant: Grant, *, prompt_tokens: int, max_output_tokens: int, choices: int) -> None:
    for name, asked, cap in (
        ("prompt_tokens", prompt_tokens, grant.prompt_tokens),
        ("max_output_tokens", max_output_tokens, grant.max_output_tokens),
        ("choices", choices, grant.choices),
    ):
        if not 0 <= asked <= cap:
            raise WeirError(Reason.GRANT_INVALID, f"The grant allows {cap} {name}, not {asked}.", limit=name)
    if choices == 0:
        raise WeirError(Reason.GRANT_INVALID, "A grant is used for at least one choice.", limit="choices")
