"""The ids of this gateway's streamed events: made, and read when a caller comes back with one."""

from __future__ import annotations

from hashlib import blake2b

from libs.clock import Clock
from libs.cursor import Cursor, KeyringFile, Origin, Position, Trail, read_cursor
from libs.telemetry import get_logger
from services.gateway import metrics
from services.gateway.policy.events import End
from services.gateway.policy.resuming import Resumptions, ends
from services.gateway.policy.spec import Resumed

log = get_logger(__name__)
FREE = 3
"""Times that an answer is gone on with at this gateway before computing it anew is billed."""
_ANSWERS = 65_536
_REFRESH_SECONDS = 5.0


class Cursors:
    """One per process."""

    def __init__(self, keys: str, *, life: float, clock: Clock) -> None:
        """`keys` is the path of the keyring, `life` the seconds in which an answer can be gone on with; 0: never.

        :raises OSError: the file cannot be read.
        :raises ValueError: it holds no keyring.
        """
        self._file = KeyringFile(keys)
        self._life = life
        self._clock = clock
        self._refreshed = clock.monotonic()
        self.resumptions = Resumptions(most=FREE, answers=_ANSWERS)

    @property
    def on(self) -> bool:
        """Events have ids."""
        return self._life > 0

    def trail(self, origin: Origin | None, tenant: str, body: bytes, cursor: Cursor | None = None) -> Trail | None:
        """What makes the ids of a stream; None where it cannot be gone on with. `body` is from `digest_of`."""
        if origin is None or not self.on:
            return None
        at: tuple[Position, ...] = () if cursor is None else cursor.positions
        return Trail(self._file.keys, origin, tenant=tenant, body=body, at=at)

    def read(self, given: str | bytes, tenant: str, body: bytes) -> Cursor | None:
        """Where a caller is that brought this id; None without one.

        :raises WeirError: CURSOR_INVALID, CURSOR_GONE.
        """
        if not given:
            return None
        return read_cursor(given, self._file.keys, tenant=tenant, body=body, now=self._clock.time(), life=self._life)

    def resumed(self, cursor: Cursor, tenant: str) -> Resumed:
        """What a caller goes on with, whose answer is computed anew."""
        resumed = Resumed(cursor, self.resumptions.begin(tenant, cursor))
        metrics.RESUMED.labels("billed_again" if resumed.billed is None else "free").inc()
        return resumed

    def seed(self, tenant: str, key: str, body: bytes) -> int:
        """Of an answer under an idempotency key: the same at every gateway, so that another one gives the same answer
        after a loss."""
        mac = blake2b(key=self._file.keys.signing, digest_size=8, person=b"weir-key-seed")
        for part in (tenant.encode(), key.encode(), body):
            mac.update(len(part).to_bytes(4, "big") + part)
        return int.from_bytes(mac.digest(), "big") >> 1

    def ended(self, origin: Origin | None, tenant: str, end: End | None) -> None:
        """A stream is over, whoever ended it: what it was billed is not billed again to who goes on with it."""
        if origin is not None and end is not None and not ends(end.finish):
            self.resumptions.ended(tenant, origin.request_id, end.whole_usage.completion_tokens)

    def sweep(self) -> None:
        """Take up new keys; called about twice a second."""
        now = self._clock.monotonic()
        if now - self._refreshed < _REFRESH_SECONDS:
            return
        self._refreshed = now
        try:
            self._file.refresh()
        except (OSError, ValueError) as error:
            log.error("cursor_keys_unreadable", error=type(error).__name__)


def digest_of(operation: str, body: bytes) -> bytes:
    """What a request's cursors are bound to."""
    return blake2b(body, digest_size=16, key=operation.encode()).digest()
