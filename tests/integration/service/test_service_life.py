"""The life of a service inside this process: health, reflection, readiness, drain, registration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.config import ServiceSettings
from libs.registry import EtcdStore, keys
from libs.registry.snapshot import snapshot_of
from libs.service import serve
from libs.service.process import Ready, Running
from tests.support.etcd import EtcdServer

NAME = "weir.test.Tiny"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Scripted:
    """A service that does what the test says."""

    def __init__(self) -> None:
        self.address = ""
        self.ready: Ready | None = None
        self.started = asyncio.Event()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.drained = asyncio.Event()
        self.may_drain = asyncio.Event()
        self.may_drain.set()

    def listening(self, address: str) -> None:
        self.address = address

    def register(self, server: grpc.aio.Server) -> list[str]:
        return [NAME]

    async def run(self, ready: Ready) -> None:
        self.ready = ready
        self.started.set()
        await self.broken

    async def drain(self) -> None:
        self.drained.set()
        await self.may_drain.wait()

    def endpoint_extra(self) -> Mapping[str, Any]:
        return {"model_versions": ["tiny@1"]}


def settings(**values: Any) -> ServiceSettings:
    return ServiceSettings(**{"service": "worker", "instance": "worker-0", "drain_seconds": 60.0, **values})


@contextlib.asynccontextmanager
async def watching(port: int, service: str = NAME) -> AsyncIterator[Any]:
    """The changes of a service's health."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))

        async def change() -> Any:
            return (await asyncio.wait_for(watch.read(), 10)).status

        yield change


@pytest.mark.parametrize("name", ["", NAME])
async def test_health_tells_the_truth(name: str) -> None:
    service = Scripted()
    service.may_drain.clear()
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(serve(service, settings()))
        await service.started.wait()
        assert service.ready is not None
        async with watching(running.port, name) as change:
            assert await change() == NOT_SERVING
            service.ready()
            assert await change() == SERVING
            service.ready.withdraw()
            assert await change() == NOT_SERVING
            service.ready()
            assert await change() == SERVING
            ending = asyncio.ensure_future(stack.aclose())
            assert await change() == NOT_SERVING
            await service.drained.wait()
            assert not ending.done()  # it waits for the drain
            service.may_drain.set()
            await ending


async def test_reflection_lists_the_services() -> None:
    async with (
        serve(Scripted(), settings()) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert names == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_a_service_learns_its_address() -> None:
    service = Scripted()
    async with serve(service, settings()) as running:
        assert service.address == f"127.0.0.1:{running.port}"
        assert running.port > 0


async def test_a_drain_is_cut_at_its_limit() -> None:
    service = Scripted()
    service.may_drain.clear()
    async with asyncio.timeout(10), serve(service, settings(drain_seconds=0.1)):
        await service.started.wait()
    assert service.drained.is_set()


async def test_a_failure_in_the_background_ends_the_block() -> None:
    service = Scripted()

    async def live() -> None:
        async with serve(service, settings()):
            service.broken.set_exception(RuntimeError("broke"))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(live(), 20)
    assert caught.group_contains(RuntimeError, match="broke")


async def test_a_taken_port_is_an_error() -> None:
    async with serve(Scripted(), settings()) as running:
        with pytest.raises(OSError, match=str(running.port)):
            async with serve(Scripted(), settings(port=running.port)):
                pass


async def test_the_endpoint_is_there_while_it_runs_counts_while_it_serves_and_is_gone_before_it_drains(
    tmp_path: Path,
) -> None:
    etcd = EtcdServer(tmp_path / "etcd")
    await asyncio.to_thread(etcd.start)
    store = EtcdStore((etcd.endpoint,), tls=None)
    try:
        await _registered_life(store, etcd.endpoint)
    finally:
        await store.close()
        await asyncio.to_thread(etcd.stop)


async def _registered_life(store: EtcdStore, endpoint: str) -> None:
    service = Scripted()
    service.may_drain.clear()
    async with contextlib.AsyncExitStack() as stack:
        told = settings(etcd=(endpoint,), metrics_port=9, host="0.0.0.0", advertise="127.0.0.1")
        running: Running = await stack.enter_async_context(serve(service, told))
        await service.started.wait()
        assert service.ready is not None
        assert service.address == f"127.0.0.1:{running.port}"
        own = registry_pb2.Endpoint(
            service="worker",
            instance="worker-0",
            address=service.address,
            metrics_address="127.0.0.1:9",
            zone=told.zone,
        )
        own.model_versions.append("tiny@1")
        unready = registry_pb2.Endpoint(leaving=True)
        unready.MergeFrom(own)
        await _eventually(store, unready)
        service.ready()
        await _eventually(store, own)
        service.ready.withdraw()
        await _eventually(store, unready)
        service.ready()
        await _eventually(store, own)
        ending = asyncio.ensure_future(stack.aclose())
        await service.drained.wait()
        assert await _endpoints(store) == []
        service.may_drain.set()
        await ending


async def _endpoints(store: EtcdStore) -> list[registry_pb2.Endpoint]:
    listing = await store.get_prefix(keys.key("endpoints", ""))
    snapshot = snapshot_of(listing.kvs, listing.revision)
    for each in (found := [*snapshot.endpoints.values(), *snapshot.unready.values()]):
        assert each.HasField("started_at") is not each.leaving
        each.ClearField("started_at")
    return found


async def _eventually(store: EtcdStore, expected: registry_pb2.Endpoint) -> None:
    async with asyncio.timeout(15):
        while await _endpoints(store) != [expected]:  # noqa: ASYNC110 - the state of another process
            await asyncio.sleep(0.02)
