"""A real Envoy process for tests, and the whole edge around it: control plane in this process, fake upstreams."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
from weir.registry.v1 import registry_pb2

from libs import envoy_bootstrap
from libs.config import TlsFiles
from libs.registry import MemoryStore, Put, Store, keys
from libs.service import serve
from libs.supervisor.leash import leashed
from services.controlplane.app import ControlPlane, build
from services.controlplane.config import Settings
from services.controlplane.policy.config import Certificate, EdgeConfig, Identity
from services.controlplane.server import OnAck
from tests.support.certificates import tls_of


class EnvoyProcess:
    """Envoy with a bootstrap; status and listener ports are free ones."""

    def __init__(self, directory: Path, *, xds: str, tls: TlsFiles | None, zone: str = "zone-a") -> None:
        self._directory = directory
        self._xds = xds
        self._tls = tls
        self._zone = zone
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, listeners: tuple[str, ...], bootstrap: str = "") -> None:
        """Returns when the listeners are up; they come by xDS unless the bootstrap has them.

        :raises RuntimeError: Envoy died or is not ready in two minutes; with the end of its log.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "envoy.yaml"
        path.write_text(
            bootstrap
            or envoy_bootstrap.render(
                node_id="envoy-test", zone=self._zone, xds=(self._xds,), tls=self._tls, status_port=0
            )
        )
        self.admin_socket.unlink(missing_ok=True)
        self._launch(path)
        try:
            async with asyncio.timeout(120):
                while not self.admin_socket.exists() or not await self._are_up(listeners):
                    self._check()
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise RuntimeError(f"Envoy is not ready:\n{self._log_tail()}") from error

    async def _are_up(self, listeners: tuple[str, ...]) -> bool:
        """They are shown before they listen: a filter of theirs may be on its way (ECDS)."""
        try:
            return "LIVE" in await self.admin("/ready") and set(listeners) <= set(await self.listeners())
        except (OSError, http.client.HTTPException):
            return False

    def _launch(self, bootstrap: Path) -> None:
        command = [str(envoy_bootstrap.binary()), "-c", str(bootstrap), "--concurrency", "1", "--use-dynamic-base-id"]
        command += ["--log-level", "warning", "--file-flush-interval-msec", "100"]
        with open(self.log_file, "wb") as log:
            self._process = subprocess.Popen(leashed(*command), stdout=log, stderr=log, cwd=self._directory)

    async def listeners(self) -> dict[str, int]:
        """Listener → port."""
        try:
            found = json.loads(await self.admin("/listeners?format=json"))
        except (OSError, http.client.HTTPException):
            return {}
        return {
            entry["name"]: entry["local_address"]["socket_address"]["port_value"]
            for entry in found.get("listener_statuses", [])
        }

    @property
    def process(self) -> psutil.Process:
        """The process."""
        if self._process is None:
            raise RuntimeError("Envoy was not started")
        return psutil.Process(self._process.pid)

    @property
    def admin_socket(self) -> Path:
        """Where Envoy's admin interface listens."""
        return self._directory / "admin.sock"

    async def admin(self, path: str, *, method: str = "GET") -> str:
        """The answer of Envoy's admin interface."""

        def get() -> str:
            # Through a descriptor of the folder: its own path may be longer than a socket's.
            folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            connection = http.client.HTTPConnection("localhost", timeout=5)
            try:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(5)
                connection.sock.connect(f"/proc/self/fd/{folder}/{self.admin_socket.name}")
                connection.request(method, path)
                return connection.getresponse().read().decode()
            finally:
                connection.close()
                os.close(folder)

        return await asyncio.to_thread(get)

    async def counters(self, pattern: str) -> dict[str, int]:
        """Statistics whose name matches the regular expression."""
        text = await self.admin(f"/stats?filter={pattern}")
        found = (line.rpartition(": ") for line in text.splitlines())
        return {name: int(value) for name, _, value in found if value.isdigit()}

    async def wait_counter(self, name: str, condition: object) -> int:
        """Returns the statistic once `condition(value)` holds; 10 s at most."""
        async with asyncio.timeout(10):
            while True:
                value = (await self.counters(f"^{name}$")).get(name, 0)
                if condition(value):  # type: ignore[operator]
                    return value
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Ends it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    @property
    def log_file(self) -> Path:
        """Its output: access log and warnings."""
        return self._directory / "envoy.log"

    async def access_line(self, request_id: str) -> dict[str, object]:
        """The access-log line of a request, once it is written; 10 s at most."""
        async with asyncio.timeout(10):
            while True:
                for line in self.log_file.read_text(errors="replace").splitlines():
                    if line.startswith("{") and request_id in line:
                        return json.loads(line)
                await asyncio.sleep(0.02)

    def _check(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"Envoy died:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-30:])


async def put_endpoint(store: Store, service: str, instance: str, port: int, zone: str = "zone-a") -> int:
    """Registers an endpoint without a lease; returns the revision."""
    endpoint = registry_pb2.Endpoint(service=service, instance=instance, address=f"127.0.0.1:{port}", zone=zone)
    result = await store.txn(puts=[Put(keys.key_of(endpoint), keys.encode(endpoint))])
    return result.revision


async def drop_endpoint(store: Store, service: str, instance: str) -> int:
    """Takes an endpoint out, as its process does that drains; returns the revision."""
    leaving = registry_pb2.Endpoint(service=service, instance=instance, leaving=True)
    result = await store.txn(puts=[Put(keys.key_of(leaving), keys.encode(leaving))])
    return result.revision


class Plane:
    """A control plane served in this process."""

    def __init__(self, control: ControlPlane, store: Store, port: int) -> None:
        self.control = control
        self.store = store
        self.port = port

    @property
    def address(self) -> str:
        """Its "host:port"."""
        return f"127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def control_plane(
    *,
    store: Store | None = None,
    tls: TlsFiles | None = None,
    port: int = 0,
    state_dir: Path | None = None,
    edge: EdgeConfig | None = None,
    trace_endpoint: str = "",
    trace_sample_ratio: float = 1.0,
    acknowledged: OnAck | None = None,
) -> AsyncIterator[Plane]:
    """Served while the block runs. A store must hold something before anything is published."""
    store = store or MemoryStore()
    settings = Settings(
        instance="controlplane-test",
        port=port,
        tls=tls,
        state_dir=str(state_dir) if state_dir else "",
        edge=edge or EdgeConfig(http_port=0),
        trace_endpoint=trace_endpoint,
        trace_sample_ratio=trace_sample_ratio,
    )
    control = await build(settings, store=store, acknowledged=acknowledged)
    async with serve(
        control, settings, deadline_optional=("/envoy.service.status.", "/envoy.service.accesslog.")
    ) as running:
        yield Plane(control, store, running.port)


def edge_config(pki: Path, **changes: object) -> EdgeConfig:
    """The edge with mTLS to upstreams and every listener."""
    identity, public = tls_of(pki, "envoy"), tls_of(pki, "edge")
    base = EdgeConfig(
        http_port=0,
        admin_port=0,
        identity=Identity(identity.ca, identity.cert, identity.key),
        certificate=Certificate(public.cert, public.key),
    )
    return msgspec.structs.replace(base, **changes)
