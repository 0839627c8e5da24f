"""The registry service as a real server on a free port, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.errors import WeirError
from libs.registry import Store
from libs.rpc import make_channel
from libs.service.process import serve
from services.registry.app import Registry, build
from services.registry.config import Settings

PEPPER = "0123456789abcdef0123456789abcdef"
HEX = "b" * 64


def settings(tmp_path: Path, **more: Any) -> Settings:
    pepper = tmp_path / "pepper"
    pepper.write_text(PEPPER + "\n")
    values: dict[str, Any] = {
        "service": "registry",
        "instance": "registry-0",
        "pepper_file": str(pepper),
        "audit_target": "",
        "drain_seconds": 0.1,
    }
    return Settings(**(values | more))


class Client:
    """The registry's stub with a timeout on every call."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
        self._metadata = metadata

    def __getattr__(self, method: str) -> Any:
        return lambda request: getattr(self._stub, method)(request, timeout=20, metadata=self._metadata)


@contextlib.asynccontextmanager
async def serving(config: Settings, store: Store) -> AsyncIterator[tuple[Client, Registry]]:
    service = await build(config, store=store)
    async with serve(service, config) as running, asyncio.timeout(60):
        await running.ready.wait()
        async with make_channel(f"127.0.0.1:{running.port}", tls=None, translate_errors=True) as channel:
            yield Client(channel), service


def model(name: str = "weir-fast", version: str = "1", **more: Any) -> pb.CreateModelVersionRequest:
    values: dict[str, Any] = {
        "artifacts": [pb.Artifact(path="model.safetensors", sha256=HEX, bytes=5)],
        "source": "models/demo/fast",
        "context_length": 1024,
        "tier": "fast",
        "pool": "fast",
        "sampling_defaults": pb.SamplingDefaults(temperature=0.7, top_p=0.95, max_tokens=64),
    }
    return pb.CreateModelVersionRequest(model_version=pb.ModelVersion(name=name, version=version, **(values | more)))


def tenant(name: str, revision: int = -1, **more: Any) -> pb.SetTenantRequest:
    return pb.SetTenantRequest(tenant=pb.Tenant(id=name, plan=pb.PLAN_PAID, revision=revision, **more))


def alias(weight: int = 100, revision: int = -1) -> pb.SetAliasRequest:
    target = pb.AliasTarget(model_version="weir-fast@1", weight=weight)
    return pb.SetAliasRequest(alias=pb.Alias(name="weir-fast", targets=[target], revision=revision))


async def refused(call: Any) -> WeirError:
    with pytest.raises(WeirError) as caught:
        await call
    return caught.value
