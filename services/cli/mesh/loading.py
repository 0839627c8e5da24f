"""Waits until workers have the models that a fresh mesh is to answer with."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.config import TlsFiles
from libs.rpc import make_channel

TIMEOUT = 60.0
"""Seconds from the last process's readiness: a worker is ready when it started, maybe before anything was wanted of
it."""
_POLL = 0.1


class LoadError(Exception):
    """A model cannot be had; the message says which, and what the workers say."""


def missing(aliases: Collection[str], models: pb.ListModelsResponse, endpoints: Iterable[pb.Endpoint]) -> list[str]:
    """Versions of these aliases that no worker has ready yet. Pure.

    :raises LoadError: every worker of a version's pool failed to load it.
    """
    workers = list(endpoints)
    pools = {f"{version.name}@{version.version}": version.pool for version in models.model_versions}
    wanted = [target.model_version for alias in models.aliases if alias.name in aliases for target in alias.targets]
    lacking = [name for name in wanted if not any(name in worker.model_versions for worker in workers)]
    for name in lacking:
        own = [worker for worker in workers if worker.pool == pools.get(name)]
        failures = {worker.instance: fault for worker in own if (fault := _fault(worker, name))}
        if own and len(failures) == len(own):
            instance, fault = next(iter(failures.items()))
            raise LoadError(f"{name} cannot be loaded: {fault} ({instance})")
    return lacking


async def wait_loaded(aliases: Collection[str], *, address: str, tls: TlsFiles) -> None:
    """Returns when every alias has a worker. Raises LoadError, WeirError."""
    async with make_channel(address, tls=tls, server_name="registry.weir.internal", translate_errors=True) as channel:
        stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
        lacking: list[str] = []
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    models = await stub.ListModels(pb.ListModelsRequest(), timeout=10)
                    found = await stub.ListEndpoints(pb.ListEndpointsRequest(service="worker"), timeout=10)
                    if not (lacking := missing(aliases, models, found.endpoints)):
                        return
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise LoadError(f"no worker has {', '.join(lacking) or 'the models'} after {TIMEOUT:.0f} s") from None


def _fault(worker: pb.Endpoint, name: str) -> str:
    for state in worker.model_states:
        if state.model_version == name and state.state == pb.LOAD_STATE_FAILED:
            return state.detail or "it does not say why"
    return ""
