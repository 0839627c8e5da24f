"""A1: until etcd has been told who may what, those that speak with it have nothing to do with it, and are not ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.authority.stores import DOOR, ROWS
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, Put, keys
from libs.service import serve
from services.controlplane import app as controlplane
from services.controlplane.config import Settings as ControlPlaneSettings
from services.door import app as door
from services.door.config import Settings as DoorSettings
from services.registry import app as registry
from services.registry.config import Settings as RegistrySettings
from services.rollout import app as rollout
from services.rollout.config import Settings as RolloutSettings
from tests.support.etcd import EtcdServer, EtcdTls
from tests.support.guarded_etcd import GuardedEtcd, certificates

SECONDS = 20.0


class Complaint(logging.Handler):
    """Sets an event when somebody says that an etcd has no rights."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "etcd_without_rights" in record.getMessage():
            self.heard.set()


@pytest.fixture
def complaint() -> Iterator[Complaint]:
    handler = Complaint()
    logging.getLogger("libs.registry").addHandler(handler)
    yield handler
    logging.getLogger("libs.registry").removeHandler(handler)


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[GuardedEtcd]:
    """One that runs, of which `establish` was not called."""
    files = certificates(tmp_path / "pki")
    tls = files["etcd"]
    server = EtcdServer(tmp_path / "etcd", tls=EtcdTls(Path(tls.ca), Path(tls.cert), Path(tls.key)))
    server.start()
    yield GuardedEtcd(server, files)
    server.stop()


async def test_a1_nothing_is_read_or_written_before_there_are_rights(etcd: GuardedEtcd) -> None:
    store = EtcdStore([etcd.server.endpoint], tls=etcd.files["registry-1"], guarded=True)
    key = keys.key("tenants", "acme")
    for call in (store.txn(puts=[Put(key, b"a tenant")]), store.get(key), store.lease_grant(5)):
        with pytest.raises(WeirError) as caught:
            await call
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    root = etcd.root()
    assert await root.get(key) is None
    await etcd.establish()
    await store.txn(puts=[Put(key, b"a tenant")])
    # Another etcd at the same address: what was seen of the one before says nothing of it.
    etcd.server.stop()
    etcd.server.wipe()
    etcd.server.start()
    with pytest.raises(WeirError) as caught:
        await store.txn(puts=[Put(key, b"a tenant")])
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await root.get(key) is None
    for each in (store, root):
        await each.close()


@pytest.mark.parametrize("service", [name for name, row in ROWS.items() if row.direct and name != DOOR])
async def test_a1_a_service_is_ready_only_with_rights(
    etcd: GuardedEtcd, service: str, tmp_path: Path, complaint: Complaint
) -> None:
    pepper = tmp_path / "pepper"
    pepper.write_text("00" * 32)
    build, settings_type, more = {
        "controlplane": (controlplane.build, ControlPlaneSettings, {}),
        "registry": (registry.build, RegistrySettings, {"pepper_file": str(pepper), "audit_target": ""}),
        "rollout": (rollout.build, RolloutSettings, {}),
    }[service]
    common: dict[str, Any] = {"service": service, "instance": f"{service}-1", "zone": "zone-a", "port": 0}
    settings = settings_type(**common, **more, tls=etcd.files[f"{service}-1"], etcd=(etcd.server.endpoint,))
    async with asyncio.timeout(SECONDS), serve(await build(settings), settings) as running:  # type: ignore[operator]
        await complaint.heard.wait()
        assert not running.ready.is_set()
        await etcd.establish()
        await running.ready.wait()


async def test_a1_the_door_opens_onto_rights_alone(etcd: GuardedEtcd) -> None:
    settings = DoorSettings(
        service=DOOR,
        instance=f"{DOOR}-1",
        zone="zone-a",
        port=0,
        tls=etcd.files[f"{DOOR}-1"],
        etcd=(etcd.server.endpoint,),
    )
    async with serve(await door.build(settings), settings, deadline_optional=("/etcdserverpb.",)) as running:
        worker = EtcdStore([f"127.0.0.1:{running.port}"], tls=etcd.files["worker-1"])
        with pytest.raises(WeirError) as caught:
            await worker.lease_grant(5)
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        await etcd.establish()
        async with asyncio.timeout(SECONDS):
            await worker.lease_grant(5)
        await worker.close()
