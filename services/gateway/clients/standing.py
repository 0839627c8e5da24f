"""How a tenant's models and money stand: asked of whoever knows, seldom (see services/gateway/openai/desk.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from libs.errors import Reason, WeirError, from_rpc_error
from libs.mux import Dialer
from libs.resources.codec import unpack

_SECONDS = 2.0
"""For an answer; without one its part of the status is unknown."""


class Standing:
    """Asks the rollout controllers of objectives and the registry of spend. Channels are opened at first use."""

    def __init__(self, dialer: Dialer, *, rollout: str, registry: str) -> None:
        """:param registry: empty: there is none, and nobody knows what is spent."""
        self._dialer, self._targets = dialer, {"rollout": rollout, "registry": registry}
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def budgets(self) -> Mapping[tuple[str, str], pb.ErrorBudget]:
        """By route and tier, of the whole mesh.

        :raises WeirError: nobody answers.
        """
        stub = rollout_pb2_grpc.RolloutServiceStub(self._channel("rollout"))
        answer = await _answered(stub.GetSloStatus(rollout_pb2.GetSloStatusRequest(), timeout=_SECONDS))
        return {(each.route, each.tier): each for each in answer.budgets}

    async def spend(self, tenant: str) -> pb.Spend:
        """What a tenant has spent, as the limiter wrote it last: seconds ago.

        :raises WeirError: nobody answers.
        """
        stub = registry_pb2_grpc.RegistryServiceStub(self._channel("registry"))
        try:
            answer = await _answered(stub.Get(pb.GetRequest(kind="Spend", name=tenant), timeout=_SECONDS))
        except WeirError as error:
            if error.reason is Reason.NOT_FOUND:
                return pb.Spend(tenant=tenant)
            raise
        return cast("pb.Spend", unpack(answer.resource))

    async def aclose(self) -> None:
        """Once nobody asks any more."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, service: str) -> grpc.aio.Channel:
        target = self._targets[service]
        if not target:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, f"there is no {service}", limit=service)
        if service not in self._channels:
            self._channels[service] = self._dialer.channel(target, service)
        return self._channels[service]


async def _answered(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
