"""Keeps a process's endpoint in the registry for as long as the process lives."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.registry import keys
from libs.registry.ports import Compare, Put, Store

_log = logging.getLogger(__name__)
_RETRY = 0.5
"""Seconds before another attempt when the store is away: short, since a mesh that restarts waits for endpoints."""
_BLIND_BEATS = 2
"""Beats that only prolong the lease, between two that see to the key, too."""
_BEAT = 2 / 3
"""Of the ttl, until the next beat: who loses the lease in what is left is still kept by whoever follows the registry
(libs/registry/lingering.py) until it has another one."""


class EndpointRegistration:
    """One endpoint under one lease; the lease outlives the process by at most its ttl.

    A lost lease (the store restarted or was restored, or was away for longer than the ttl) is replaced; a key that
    somebody deleted is put back within two ttls. Whoever follows the registry keeps an endpoint for a while that went
    without a word (see libs/registry/lingering.py), so one that is taken out says so.
    """

    def __init__(self, store: Store, endpoint: pb.Endpoint, ttl: float = 6.0) -> None:
        """:param ttl: seconds from the process's death to the end of its key."""
        self._store = store
        self._endpoint = pb.Endpoint()
        self._endpoint.CopyFrom(endpoint)
        self._ttl = ttl
        self._lease = 0
        self._revision = 0
        """The key's, as it was last written or looked at."""
        self._blind = 0
        """Beats until the key is looked at again."""
        self._registered = asyncio.Event()
        self._update = asyncio.Event()
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Registers and keeps registered until `close` or cancellation, then takes the endpoint out."""
        try:
            while not self._closing.is_set():
                self._update.clear()
                pause = await self._step()
                # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with an update.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._update.wait()
        finally:
            await self._revoke()

    async def wait_registered(self) -> None:
        """Returns once the endpoint is in the registry."""
        await self._registered.wait()

    def update(self, endpoint: pb.Endpoint) -> None:
        """Replaces what is registered, such as the models of a worker; written by `run` as soon as possible.

        :raises ValueError: for another service or instance.
        """
        if (endpoint.service, endpoint.instance) != (self._endpoint.service, self._endpoint.instance):
            raise ValueError("an update must be for the same service and instance")
        self._endpoint.CopyFrom(endpoint)
        self._blind = 0
        self._update.set()

    def close(self) -> None:
        """Asks `run` to take the endpoint out of the registry and return; the first act of a drain."""
        self._closing.set()
        self._update.set()

    async def _step(self) -> float:
        """One round; returns the seconds until the next."""
        try:
            if self._lease:
                await self._store.lease_keepalive(self._lease)
            else:
                self._lease = await self._store.lease_grant(self._ttl)
            if self._blind > 0:
                self._blind -= 1
            else:
                self._blind = _BLIND_BEATS  # before an update that comes meanwhile says otherwise
                await self._write()
        except WeirError as error:
            self._blind = 0
            if error.reason is Reason.NOT_FOUND:
                _log.warning("endpoint_lease_lost")
                self._lease = 0
                return 0.0
            if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
            return min(_RETRY, self._ttl / 3)
        self._registered.set()
        # A beat that fails is tried again every half second.
        return self._ttl * _BEAT

    async def _write(self) -> None:
        key, value = keys.key_of(self._endpoint), keys.encode(self._endpoint)
        present = await self._store.get(key)
        if present is None or present.lease != self._lease or present.value != value:
            self._revision = (await self._store.txn(puts=[Put(key, value, self._lease)])).revision
        else:
            self._revision = present.mod_revision

    async def _revoke(self) -> None:
        if not self._lease:
            return
        lease, self._lease = self._lease, 0
        leaving = pb.Endpoint(leaving=True)
        leaving.MergeFrom(self._endpoint)
        key = keys.key_of(leaving)
        with suppress(WeirError):
            # Without the store the lease runs out by itself. Another process of that name is not spoken for.
            await self._store.txn(compares=[Compare(key, self._revision)], puts=[Put(key, keys.encode(leaving), lease)])
            await self._store.lease_revoke(lease)
