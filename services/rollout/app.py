"""The rollout controller's composition root."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from weir.rollout.v1 import rollout_pb2_grpc

from libs.changes import Writer
from libs.clock import Clock, SystemClock
from libs.election import Election
from libs.registry import EtcdStore, RegistrySnapshot, RegistryView, Store, followed_by, keys
from services.rollout.config import Settings
from services.rollout.controller import Controller
from services.rollout.history import History
from services.rollout.knowledge import Knowledge
from services.rollout.peers import Peers
from services.rollout.policy.decide import decide
from services.rollout.server import SERVICE, Changes, RolloutServicer
from services.rollout.status import StatusReader

_HOUSEKEEPING_SECONDS = 5.0


class RolloutService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        own_store: Store | None,
        view: RegistryView,
        knowledge: Knowledge,
        history: History,
        controller: Controller,
        election: Election,
        changes: Changes,
        peers: Peers,
        servicer: RolloutServicer,
    ) -> None:
        self._own_store = own_store
        self._view = view
        self._knowledge = knowledge
        self._history = history
        self._controller = controller
        self.election = election
        """Who decides."""
        self._changes = changes
        self._peers = peers
        self._servicer = servicer
        self._out = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready with the first snapshot, from etcd or from the cache: evidence is gathered also while etcd is away."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._view.run(), name="registry.view")
                await self._view.wait_ready()
                self._knowledge.restore()
                self._connect()
                tasks.create_task(self._history.run(self._view.snapshot), name="history")
                tasks.create_task(self._campaign(), name="election")
                tasks.create_task(self._keep_house(), name="housekeeping")
                ready()
        finally:
            await self._peers.close()
            if self._own_store is not None:
                await self._own_store.close()

    async def drain(self) -> None:
        """Hands the lead over, then sends gateways and watchers to the other replicas."""
        self.election.resign()
        await self._out.wait()
        self._servicer.drain()

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("etcd",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    def _connect(self) -> None:
        """What wakes whom."""
        self._knowledge.on_change(self._controller.touch)
        self._knowledge.on_change(self._changes.tell)
        self._history.on_decision(lambda _: self._changes.tell_all())
        self.election.on_change(self._changes.tell_all)
        self._view.on_change(self._use)

    def _use(self, snapshot: RegistrySnapshot) -> None:
        self._controller.use(snapshot)
        self._changes.tell_all()

    async def _campaign(self) -> None:
        try:
            await self.election.run(self._controller.lead)
        finally:
            self._out.set()

    async def _keep_house(self) -> None:
        while True:
            self._knowledge.forget()
            ids = {rollout.id for rollout in self._view.snapshot.rollouts.values()}
            self._history.keep(ids)
            self._controller.keep(ids)
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)


async def build(settings: Settings, *, clock: Clock | None = None, store: Store | None = None) -> RolloutService:
    """Wires the service. `store` replaces etcd in tests; it stays open.

    :raises ValueError: there is no etcd endpoint, or a setting is out of range.
    :raises OSError: a TLS file cannot be read.
    """
    clock = clock or SystemClock()
    rng = random.Random()  # noqa: S311 - jitter, not a secret
    own_store = None
    if store is None:
        store = own_store = EtcdStore(settings.etcd, tls=settings.tls, guarded=True)
    cache = Path(settings.state_dir) / "registry.cache" if settings.state_dir else None
    view = RegistryView(store, kinds=followed_by("rollout"), root=keys.ROOT, cache_file=cache, clock=clock)
    knowledge = Knowledge(settings=settings, view=view, clock=clock)
    writer = Writer(
        store=store,
        view=view,
        source=f"{settings.service}/{settings.instance}",
        clock=clock,
        new_id=lambda: uuid.uuid4().hex,
    )
    controller = Controller(
        settings=settings,
        store=store,
        view=view,
        writer=writer,
        knowledge=knowledge,
        decide=decide,
        clock=clock,
    )
    election = Election(
        store=store,
        service=settings.service,
        instance=settings.instance,
        ttl=settings.leader_ttl,
        clock=clock,
        rng=rng,
    )
    history = History(store=store, clock=clock, rng=rng)
    status = StatusReader(view=view, knowledge=knowledge, controller=controller, history=history, election=election)
    changes = Changes()
    peers = Peers(settings=settings, view=view)
    servicer = RolloutServicer(
        roles=view,
        settings=settings,
        knowledge=knowledge,
        status=status,
        changes=changes,
        replicas=peers,
        leader=lambda: election.leader,
    )
    return RolloutService(
        own_store=own_store,
        view=view,
        knowledge=knowledge,
        history=history,
        controller=controller,
        election=election,
        changes=changes,
        peers=peers,
        servicer=servicer,
    )
