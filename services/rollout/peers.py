"""The other replicas, found in the registry."""

from __future__ import annotations

import asyncio

import grpc
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.rpc import make_channel
from libs.telemetry import get_logger
from services.rollout.config import Settings

log = get_logger(__name__)
RELAYED = "x-weir-relayed"
"""Metadata of a call that another replica hands on: it goes no further."""
_SECONDS = 2.0


class Peers:
    """`ReplicaPort` over their endpoints; scores come rarely, so a channel lives as long as its address."""

    def __init__(self, *, settings: Settings, view: RegistryView) -> None:
        self._settings = settings
        self._view = view
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def relay(self, request: rollout_pb2.ReportScoresRequest, *, leader: str) -> None:
        """See `ReplicaPort`."""
        others = {
            each.instance: each.address
            for each in self._view.snapshot.endpoints_of("rollout")
            if each.instance != self._settings.instance
        }
        await self._close_gone(set(others.values()))
        taken = await asyncio.gather(*(self._hand_on(address, request) for address in others.values()))
        if leader and leader != self._settings.instance and not dict(zip(others, taken, strict=True)).get(leader):
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE,
                f"{leader}, which decides, did not take the scores; send them again",
                retry_after=1.0,
            )

    async def close(self) -> None:
        """Frees the connections."""
        await self._close_gone(set())

    async def _hand_on(self, address: str, request: rollout_pb2.ReportScoresRequest) -> bool:
        if address not in self._channels:
            self._channels[address] = make_channel(address, tls=self._settings.tls, server_name="rollout.weir.internal")
        stub = rollout_pb2_grpc.RolloutServiceStub(self._channels[address])
        try:
            await stub.ReportScores(request, timeout=_SECONDS, metadata=((RELAYED, "1"),))
        except grpc.aio.AioRpcError as error:
            log.warning("scores_not_relayed", address=address, code=error.code().name)
            return False
        return True

    async def _close_gone(self, present: set[str]) -> None:
        for address in [known for known in self._channels if known not in present]:
            await self._channels.pop(address).close()
