"""An etcd as the mesh has it, with everybody's rights in force, and its door."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import grpc

from libs.authority.identity import Identity, Operator, dns_name, etcd_user
from libs.authority.stores import DOOR, ROOT_USER, ROWS, connects
from libs.config import TlsFiles
from libs.pki import issue_all
from libs.registry import EtcdStore
from libs.registry.authorities import establish
from libs.rpc import make_channel
from libs.service import serve
from services.door.app import build
from services.door.config import Settings
from tests.support.etcd import EtcdServer, EtcdTls

PROCESSES = tuple(
    Identity(service, f"{service}-1", "demo" if service == "worker" else "", "zone-a") for service in ROWS
)
"""One of each service that has rights."""
OTHERS = (
    *(Identity(each) for each in ("demo-client", "envoy", "cli", "edge")),
    Identity("worker"),  # of no process
    Operator("ada"),
)
"""Certificates of the mesh's CA whose bearers have none."""


class GuardedEtcd:
    """See the module's docstring."""

    def __init__(self, server: EtcdServer, files: dict[str, TlsFiles], door: str = "") -> None:
        self.server = server
        self.files = files
        """By common name."""
        self.door = door
        """The door's "host:port"."""

    async def establish(self, identities: Iterable[Identity] = PROCESSES, **options: bool) -> list[str]:
        """See `libs.registry.authorities.establish`."""
        return await establish([self.server.endpoint], self.files[ROOT_USER], identities, **options)

    def address(self, identity: Identity | Operator) -> str:
        """Where somebody is expected to turn to."""
        return self.server.endpoint if connects(identity) else self.door

    def store(self, identity: Identity | Operator) -> EtcdStore:
        """The store as somebody has it."""
        return EtcdStore([self.address(identity)], tls=self.files[etcd_user(identity)])

    def root(self) -> EtcdStore:
        """The store as nobody has it but whoever gives rights."""
        return EtcdStore([self.server.endpoint], tls=self.files[ROOT_USER])

    def channel(self, identity: Identity | Operator, address: str) -> grpc.aio.Channel:
        """A channel of an attacker's with somebody's certificate."""
        return make_channel(address, tls=self.files[etcd_user(identity)], server_name=dns_name("etcd"))


def certificates(folder: Path) -> dict[str, TlsFiles]:
    """Everybody's, by common name."""
    issued = issue_all(folder, (*PROCESSES, *OTHERS, Identity("etcd"), Identity(ROOT_USER)))
    return {name: TlsFiles(ca=each.ca, cert=each.cert, key=each.key) for name, each in issued.items()}


@contextlib.asynccontextmanager
async def guarded_etcd(folder: Path) -> AsyncIterator[GuardedEtcd]:
    """One that runs, with a door, for the length of the block."""
    files = certificates(folder / "pki")
    tls = files["etcd"]
    server = EtcdServer(folder / "etcd", tls=EtcdTls(Path(tls.ca), Path(tls.cert), Path(tls.key)))
    server.start()
    try:
        guarded = GuardedEtcd(server, files)
        await guarded.establish()
        settings = Settings(
            service=DOOR, instance=f"{DOOR}-1", zone="zone-a", port=0, tls=files[f"{DOOR}-1"], etcd=(server.endpoint,)
        )
        async with serve(await build(settings), settings, deadline_optional=("/etcdserverpb.",)) as running:
            await running.ready.wait()
            guarded.door = f"127.0.0.1:{running.port}"
            yield guarded
    finally:
        server.stop()
