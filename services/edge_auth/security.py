"""What the edge's decisions mean for security: refused callers and keys in new places, for the audit log."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from pathlib import Path

from libs.auditlog.security import Kind, Sight, network_of
from libs.auditlog.watch import SecurityWatch
from libs.telemetry import get_logger
from services.edge_auth.policy.networks import KnownNetworks
from services.edge_auth.policy.types import Principal, Refusal

log = get_logger(__name__)
_FORBIDDEN = frozenset({Refusal.SCOPE_MISSING, Refusal.TENANT_INACTIVE})
_ADDRESSES = 8192
"""Addresses whose networks are remembered, so that a request costs a look-up."""
_SAVE_SECONDS = 60.0


class Lookout:
    """Counts for the audit log; `run` keeps what is known of keys' networks in a file."""

    def __init__(self, watch: SecurityWatch, *, pepper: bytes, file: Path | None) -> None:
        """`file` outlives a restart, after which every network would be new. It holds keys' ids and hashes only.

        :raises OSError: it exists and cannot be read.
        """
        self._watch = watch
        self._file = file
        # Of its own, so that nothing hashed here can be compared with anything hashed with the pepper itself.
        key = hashlib.blake2b(b"networks", key=pepper[:64], digest_size=32).digest()
        self._network = functools.lru_cache(_ADDRESSES)(functools.partial(network_of, key=key))
        known = file.read_text().splitlines() if file is not None and file.exists() else ()
        self._known = KnownNetworks(known)

    def refused(self, refusal: Refusal, address: str, principal: Principal | None) -> None:
        """A request was refused; the principal is known where the credential was good."""
        if refusal is Refusal.UNKNOWN_PATH:
            return  # a wrong address, which says nothing of who asks
        self._watch.note(
            Sight(
                Kind.FORBIDDEN if refusal in _FORBIDDEN else Kind.UNAUTHENTICATED,
                refusal.value,
                network=self._network(address),
                key_id=principal.key_id if principal else "",
                tenant=principal.tenant if principal else "",
            )
        )

    def repeated(self, times: int, address: str) -> None:
        """The edge refused so many requests by itself: what was said a moment ago, or all that was too much."""
        self._watch.note(Sight(Kind.UNAUTHENTICATED, "repeated", network=self._network(address)), times)

    def allowed(self, principal: Principal, address: str) -> None:
        """A request passed."""
        network = self._network(address)
        if not network or not principal.key_id:
            return
        if reason := self._known.seen(principal.key_id, network):
            self._watch.note(
                Sight(Kind.KEY_NEW_SOURCE, reason, network=network, key_id=principal.key_id, tenant=principal.tenant)
            )

    async def run(self) -> None:
        """Goes on until cancelled; saves at the end, too."""
        try:
            while True:
                await asyncio.sleep(_SAVE_SECONDS)
                if self._known.changed:
                    self._known.changed = not await asyncio.to_thread(self._saved, self._known.lines())
        finally:
            if self._known.changed:
                self._saved(self._known.lines())

    def _saved(self, lines: list[str]) -> bool:
        """Write down what is known; a disk that refuses is logged and tried again."""
        if self._file is None:
            return True
        partial = self._file.with_suffix(".new")
        try:
            partial.unlink(missing_ok=True)
            partial.touch(mode=0o600)
            partial.write_text("\n".join(lines))
            partial.replace(self._file)
        except OSError as error:
            log.warning("known_networks_not_saved", error=error.strerror or type(error).__name__)
            return False
        return True
