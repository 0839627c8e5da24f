"""The replicas of a service as the registry knows them, and the moments at which they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from weir.registry.v1 import registry_pb2

from libs.registry import RegistrySnapshot, RegistryView

OnChange = Callable[[Mapping[str, registry_pb2.Endpoint]], None]
"""Gets the members by instance; must not block."""


class Members:
    """Watches the endpoints of one service.

        members = Members(view, "admission", settle_seconds=1.0, on_change=lambda _: mux.rebalance())
        group.create_task(members.run())

    `on_change` is called when the set has been another than before for `settle_seconds`: long enough for the control
    plane to tell the callers of it, since a stream that is sent away earlier would come back to its old owner. The set
    that is found first is not a change. A member that was started anew is one, at the same address too: while it was
    away, the ring gave its shards to others. With `again_seconds`, `on_change` is also called that long after the last
    time, while there are several members: it brings streams home that strayed over a passing network fault.

    :param view: the registry; whoever owns it runs it.
    :param service: as in `Endpoint.service`.
    :param settle_seconds: quiet time before a change is told.
    :param again_seconds: None never repeats.
    """

    def __init__(
        self,
        view: RegistryView,
        service: str,
        *,
        settle_seconds: float,
        on_change: OnChange,
        again_seconds: float | None = None,
    ) -> None:
        self._view = view
        self._service = service
        self._settle_seconds = settle_seconds
        self._on_change = on_change
        self._again_seconds = again_seconds
        self._known: frozenset[tuple[str, str, int]] | None = None
        self._changed = asyncio.Event()

    @property
    def current(self) -> dict[str, registry_pb2.Endpoint]:
        """The members now, by instance, settled or not."""
        return _members(self._view.snapshot, self._service)

    async def run(self) -> None:
        """Watches until cancelled. An exception of `on_change` ends it."""
        stop = self._view.on_change(self._look)
        try:
            while True:
                try:
                    async with asyncio.timeout(self._again_seconds):
                        await self._changed.wait()
                except TimeoutError:
                    if len(self.current) > 1:
                        self._on_change(self.current)
                    continue
                while self._changed.is_set():
                    self._changed.clear()
                    await asyncio.sleep(self._settle_seconds)
                self._on_change(self.current)
        finally:
            stop()

    def _look(self, snapshot: RegistrySnapshot) -> None:
        members = _members(snapshot, self._service)
        found = frozenset((name, member.address, member.started_at.seconds) for name, member in members.items())
        if self._known is not None and found != self._known:
            self._changed.set()
        self._known = found


def _members(snapshot: RegistrySnapshot, service: str) -> dict[str, registry_pb2.Endpoint]:
    return {instance: endpoint for (name, instance), endpoint in snapshot.endpoints.items() if name == service}
