"""A tenant's admin asks how its models stand: of rollout controllers and the registry, which may be away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from weir.openai.v1 import openai_pb2, openai_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from libs.deadlines import to_duration
from libs.errors import Reason, grpc_code
from libs.resources.codec import pack
from tests.support.leaves import Rig, rig
from tests.support.tokenizer import write_byte_tokenizer

ADMIN = (("x-weir-tenant", "closed"), ("x-weir-scopes", "usage.read"), ("x-weir-key-id", "k1"))
USER = (("x-weir-tenant", "closed"), ("x-weir-scopes", "inference models.read"))


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    async def GetSloStatus(  # noqa: N802 - the name on the wire
        self, request: Any, context: Any
    ) -> rollout_pb2.GetSloStatusResponse:
        objective = pb.ObjectiveBudget(objective="availability", good=99, bad=1, consumed=0.5)
        return rollout_pb2.GetSloStatusResponse(
            budgets=[pb.ErrorBudget(route="generate", tier="fast", objectives=[objective])]
        )


class Registry(registry_pb2_grpc.RegistryServiceServicer):
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.spend: pb.Spend | None = None

    async def Get(  # noqa: N802 - the name on the wire
        self, request: pb.GetRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetResponse:
        self.asked.append((request.kind, request.name))
        if self.spend is None:
            await context.abort(grpc_code(Reason.NOT_FOUND), "there is none")
        return pb.GetResponse(resource=pack(self.spend))


@asynccontextmanager
async def answering(registry: Registry) -> AsyncIterator[str]:
    server = grpc.aio.server()
    rollout_pb2_grpc.add_RolloutServiceServicer_to_server(Rollout(), server)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(registry, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def mesh(folder: Path, address: str) -> AsyncIterator[Rig]:
    model = folder / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), folder / "state", rollout=address, registry=address) as running:
        await running.put(pb.Slo(route="generate", tier="fast", ttft_p95=to_duration(2), availability=0.99))
        await running.put(pb.Budget(tenant="closed", monthly_microusd=5_000_000))
        await running.put(pb.Budget(tenant="flagged", monthly_microusd=7_000_000))
        catalog = running.gateway._catalog
        await running.gateway._view.wait_until(lambda snapshot: len(snapshot.budgets) == 2)
        assert len(catalog.snapshot.budgets) == 2
        yield running


async def status(running: Rig, metadata: Any = ADMIN) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call = openai_pb2_grpc.OpenAIServiceStub(channel).GetStatus(
            openai_pb2.GetStatusRequest(), metadata=metadata, timeout=20
        )
        [body] = [each async for each in call]
    return json.loads(body.data)


async def test_an_admin_is_told_of_its_own_tenant_and_others_are_refused(tmp_path: Path) -> None:
    registry = Registry()
    async with answering(registry) as address, mesh(tmp_path, address) as running:
        told = await status(running)
        assert told["unknown"] == []
        objectives = {each["objective"]: each for each in told["models"][0]["objectives"]}
        assert (objectives["availability"]["attainment"], objectives["ttft_p95"]["target"]) == (0.99, 2.0)
        # Nothing is written of whom has spent nothing.
        [budget] = told["budgets"]
        assert (budget["limit"]["value"], budget["spent"]["value"]) == (5.0, 0.0)
        await status(running)
        assert registry.asked == [("Spend", "closed")]
        refused = await status(running, USER)
        assert "usage.read" in refused["error"]["message"]


async def test_what_cannot_be_asked_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    async with mesh(tmp_path, "127.0.0.1:9") as running:
        told = await status(running)
    assert told["unknown"] == ["objectives", "budgets"]
    assert told["models"][0]["objectives"]
    assert told["budgets"][0]["spent"] is None
