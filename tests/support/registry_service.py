"""The registry service as a real server on a free port, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.authority.identity import Operator
from libs.authority.operators import OPERATOR
from libs.changes import resource_of
from libs.config import TlsFiles
from libs.errors import WeirError
from libs.pki import issue
from libs.registry import Put, RegistrySnapshot, Store, keys, snapshot_of
from libs.resources.codec import key_of, pack, unpack
from libs.rpc import make_channel
from libs.service.process import Running, serve
from services.registry.app import Registry, build
from services.registry.config import Settings

PEPPER = "0123456789abcdef0123456789abcdef"
HEX = "b" * 64
OWNER = "operator:owner"
SERVER = "registry.weir.internal"
DEADLINE_OPTIONAL = ("/weir.registry.v1.",)
"""As its `__main__` says."""


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
    """The registry's stub with a timeout on every call, and the calls that tests make all the time."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
        self._metadata = metadata

    def __getattr__(self, method: str) -> Any:
        return lambda request: getattr(self._stub, method)(request, timeout=20, metadata=self._metadata)

    async def apply(self, *messages: Message, **options: Any) -> pb.ApplyResponse:
        """Applies messages, or resources; see `apply_of`."""
        answer: pb.ApplyResponse = await self.Apply(apply_of(*messages, **options))
        return answer

    async def delete(self, *names: str, **options: Any) -> pb.DeleteResponse:
        """Deletes resources by kind and name, "Tenant/acme"."""
        change = pb.ChangeOptions(**options)
        answer: pb.DeleteResponse = await self.Delete(
            pb.DeleteRequest(resources=[named(name) for name in names], change=change)
        )
        return answer

    async def get(self, name: str) -> pb.Resource:
        """One resource by kind and name, "Tenant/acme"."""
        which = named(name)
        return (await self.Get(pb.GetRequest(kind=which.kind, name=which.name))).resource

    async def read(self, name: str) -> Any:
        """One resource's message by kind and name."""
        return unpack(await self.get(name))

    async def listed(self, *kinds: str, **options: Any) -> list[pb.Resource]:
        """All pages of a list."""
        found: list[pb.Resource] = []
        request = pb.ListRequest(kinds=kinds, **options)
        while True:
            page = await self.List(request)
            found += page.resources
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def names(self, kind: str) -> list[str]:
        """Names of a kind's resources."""
        return [each.metadata.name for each in await self.listed(kind)]

    async def newest(self) -> pb.HistoryEntry:
        """The last change."""
        return (await self.History(pb.HistoryRequest(limit=1))).entries[0]


def named(name: str, revision: int = 0) -> pb.ResourceName:
    kind, _, rest = name.partition("/")
    return pb.ResourceName(kind=kind, name=rest, revision=revision)


def resource(message: Message, **metadata: Any) -> pb.Resource:
    """A message as a resource, with labels, owner or revision."""
    made = message if isinstance(message, pb.Resource) else pack(message)
    made.metadata.MergeFrom(pb.Metadata(**metadata))
    return made


def apply_of(
    *messages: Message,
    owner: str = "",
    prune: bool = False,
    take_over: bool = False,
    restore: bool = False,
    **change: Any,
) -> pb.ApplyRequest:
    return pb.ApplyRequest(
        resources=[resource(each) for each in messages],
        owner=owner,
        prune=prune,
        take_over=take_over,
        restore=restore,
        change=pb.ChangeOptions(**change),
    )


def outcomes(results: Iterable[pb.Applied]) -> dict[str, str]:
    """What became of which: {"Tenant/acme": "CREATED"}."""
    return {
        f"{each.resource.kind}/{each.resource.name}": pb.Outcome.Name(each.outcome).removeprefix("OUTCOME_")
        for each in results
    }


@contextlib.asynccontextmanager
async def running_of(config: Settings, store: Store) -> AsyncIterator[tuple[Running, Registry]]:
    service = await build(config, store=store)
    async with serve(service, config, deadline_optional=DEADLINE_OPTIONAL) as running, asyncio.timeout(100):
        await running.ready.wait()
        yield running, service


@contextlib.asynccontextmanager
async def serving(config: Settings, store: Store) -> AsyncIterator[tuple[Client, Registry]]:
    async with (
        running_of(config, store) as (running, service),
        make_channel(f"127.0.0.1:{running.port}", tls=None, translate_errors=True) as channel,
    ):
        yield Client(channel), service


def certificates(folder: Path, *names: str) -> dict[str, TlsFiles]:
    """A mesh's certificates, of services and, as "operator:jane", of people."""
    issued = {name: issue(folder / "pki", _identity(name)) for name in names}
    return {name: TlsFiles(ca=each.ca, cert=each.cert, key=each.key) for name, each in issued.items()}


def _identity(name: str) -> Operator | str:
    return Operator(name.removeprefix(OPERATOR)) if name.startswith(OPERATOR) else name


class Peers:
    """A registry with TLS, and clients of it by the services and people that they are; a fresh one's owner is OWNER."""

    def __init__(self, port: int, tls: dict[str, TlsFiles], stack: contextlib.AsyncExitStack) -> None:
        self.target = f"127.0.0.1:{port}"
        self.tls = tls
        self._stack = stack

    async def client(self, name: str, *metadata: tuple[str, str]) -> Client:
        channel = make_channel(self.target, tls=self.tls[name], server_name=SERVER, translate_errors=True)
        return Client(await self._stack.enter_async_context(channel), metadata)


@contextlib.asynccontextmanager
async def peers(tmp_path: Path, store: Store, *names: str) -> AsyncIterator[Peers]:
    tls = certificates(tmp_path, "registry", *names)
    async with (
        running_of(settings(tmp_path, tls=tls["registry"], owners=(OWNER,)), store) as (running, _),
        contextlib.AsyncExitStack() as stack,
    ):
        yield Peers(running.port, tls, stack)


async def put(store: Store, *messages: Message) -> int:
    """Writes as other services do, past the registry; the revision."""
    result = await store.txn(puts=[Put(key_of(each), keys.encode(each)) for each in messages])
    return result.revision


async def stored(store: Store, *without: str) -> dict[str, bytes]:
    """Resources as stored, by "aliases/a"; without endpoints, those that start with one of the names, and
    what the registry keeps for itself."""
    kvs = (await store.get_prefix(keys.EVERYTHING)).kvs
    own = (keys.FENCE, keys.EPOCH, "endpoints/", *without)
    found = {resource_of(kv.key): kv.value for kv in kvs}
    return {name: value for name, value in found.items() if not name.startswith(own)}


async def snapshot_in(store: Store) -> RegistrySnapshot:
    listing = await store.get_prefix(keys.EVERYTHING)
    return snapshot_of(listing.kvs, listing.revision)


def model(name: str = "weir-fast", version: str = "1", **more: Any) -> pb.ModelVersion:
    values: dict[str, Any] = {
        "artifacts": [pb.Artifact(path="model.safetensors", sha256=HEX, bytes=5)],
        "source": "models/demo/fast",
        "context_length": 1024,
        "tier": "fast",
        "pool": "fast",
        "sampling_defaults": pb.SamplingDefaults(temperature=0.7, top_p=0.95, max_tokens=64),
    }
    return pb.ModelVersion(name=name, version=version, **(values | more))


def tenant(name: str = "acme", **more: Any) -> pb.Tenant:
    return pb.Tenant(id=name, **({"plan": pb.PLAN_PAID} | more))


def alias(*versions: str, name: str = "weir-fast") -> pb.Alias:
    """The alias with equal weights; of nothing, "weir-fast@1"."""
    given = versions or ("weir-fast@1",)
    share = 100 // len(given)
    return pb.Alias(name=name, targets=[pb.AliasTarget(model_version=each, weight=share) for each in given])


def grant(subject: str = "all", **more: Any) -> pb.ModelGrant:
    """The namespace "default", by alias and by version, unless it says what else."""
    return pb.ModelGrant(subject=subject, **(more or {"namespaces": ["default"], "pinned_namespaces": ["default"]}))


def admitted(*tenants: str) -> dict[str, Any]:
    """Collections of a snapshot in which these tenants may use everything of the namespace "default"."""
    return {"tenants": {each: tenant(each) for each in tenants}, "model_grants": {"all": grant()}}


async def refused(call: Any) -> WeirError:
    with pytest.raises(WeirError) as caught:
        await call
    return caught.value
