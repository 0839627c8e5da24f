"""Admission's end of a grant: HMAC-SHA256 over the serialised grant under one worker session's key."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from weir.admission.v1.admission_pb2 import Grant, SignedGrant

from libs.clock import Clock

KEY_BYTES = 32  # as long as SHA-256's output; more adds nothing (RFC 2104 §3)
NONCE_BYTES = 16  # 128 random bits: no collision within the few seconds that a nonce is remembered


class GrantSigner:
    """Signs grants for one session of one worker."""

    def __init__(
        self,
        *,
        worker: str,
        key_id: str,
        key: bytes,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        lifetime: float = 5.0,
    ) -> None:
        """Binds the key to its worker.

        `key` is `KEY_BYTES` long; `lifetime` is how long a grant is accepted, in seconds; `random_bytes(n)` gives n
        unpredictable bytes (`os.urandom` in production).

        :raises ValueError: when the key's length or the lifetime is wrong.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a grant key has {KEY_BYTES} bytes, not {len(key)}")
        if lifetime <= 0:
            raise ValueError("a grant's lifetime must be positive")
        self.worker = worker
        self.key_id = key_id
        self.began = clock.time()
        """When the session began, by the clock of then: its grants are dated by what passed since, whatever becomes of
        that clock. The worker is told (`WorkerWelcome.time`)."""
        self._key = key
        self._clock = clock
        self._offset = self.began - clock.monotonic()
        self._random_bytes = random_bytes
        self._lifetime = lifetime

    def sign(
        self,
        *,
        request_id: str,
        model_version: str,
        tenant: str,
        prompt_tokens: int,
        max_output_tokens: int,
        choices: int,
        kv_share: float = 0.0,
        epoch: int = 0,
        blocks: int = 0,
        lifetime: float | None = None,
    ) -> SignedGrant:
        """Returns a fresh grant with its own nonce, accepted by the worker once and for `lifetime` seconds (None: the
        signer's), and not once it has heard of a newer term than `epoch`. `blocks` of KV are kept for it. Without a
        request id it is a credit's, for any one request within the caps."""
        grant = Grant(
            nonce=self._random_bytes(NONCE_BYTES),
            worker=self.worker,
            request_id=request_id,
            model_version=model_version,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            choices=choices,
            tenant=tenant,
            kv_share=kv_share,
            epoch=epoch,
            blocks=blocks,
            credit=not request_id,
        )
        expires = self._offset + self._clock.monotonic() + (self._lifetime if lifetime is None else lifetime)
        seconds = int(expires)
        grant.expires_at.seconds = seconds
        grant.expires_at.nanos = int((expires - seconds) * 1e9)
        data = grant.SerializeToString()
        return SignedGrant(grant=data, mac=hmac.digest(self._key, data, "sha256"), key_id=self.key_id)
