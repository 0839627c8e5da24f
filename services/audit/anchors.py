"""Checkpoints kept in etcd: whoever rolls back the log and its checkpoint file together is still found out."""

import asyncio
from collections.abc import Callable

from libs.auditlog import Checkpoint, LineError
from libs.auditlog.chain import decode_checkpoint
from libs.auditlog.keys import Verifier
from libs.errors import WeirError
from libs.registry import Put, Store
from libs.registry.keys import ROOT
from libs.telemetry import get_logger
from services.audit import metrics

log = get_logger(__name__)
PREFIX = ROOT + "audit-checkpoints/"
"""{instance} → the newest checkpoint's line."""


class Anchors:
    """Puts the newest checkpoint into the store from time to time, and reads it back."""

    def __init__(self, store: Store, instance: str, *, verify: Verifier, interval: float) -> None:
        """`interval` in seconds."""
        self._store = store
        self._key = PREFIX + instance
        self._verify = verify
        self._interval = interval
        self._anchored = b""

    async def read(self) -> bytes:
        """Return the anchored line; empty when there is none.

        :raises WeirError: DEPENDENCY_UNAVAILABLE.
        """
        found = await self._store.get(self._key)
        return found.value if found is not None else b""

    async def write(self, line: bytes) -> None:
        """Anchor a checkpoint; a store that is away is logged and tried again with the next one."""
        if not line or line == self._anchored:
            return
        try:
            await self._store.txn(puts=[Put(self._key, line)])
        except WeirError as error:
            metrics.ANCHOR_FAILURES.inc()
            log.warning("audit_anchor_failed", reason=error.message)
            return
        self._anchored = line
        metrics.ANCHORED.set(decode_checkpoint(line, self._verify).count)

    async def run(self, newest: Callable[[], bytes]) -> None:
        """Anchor until cancelled."""
        while True:
            await self.write(newest())
            await asyncio.sleep(self._interval)

    async def fault(self, count: int, head: bytes) -> str:
        """Return what is wrong with a log of `count` records by the anchor, "" if nothing is (or the store is away)."""
        try:
            line = await self.read()
        except WeirError as error:
            log.warning("audit_anchor_unread", reason=error.message)
            return ""
        if not line:
            return ""
        try:
            anchor: Checkpoint = decode_checkpoint(line, self._verify)
        except LineError as error:
            return f"the anchor in etcd: {error}"
        if anchor.count > count:
            return f"records {count + 1} to {anchor.count} were anchored in etcd and are missing"
        if anchor.count == count and anchor.hash != head:
            return f"record {count} is not the one that was anchored in etcd"
        return ""
