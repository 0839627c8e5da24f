"""From an etcd write to the snapshot that Envoy and a proxyless gRPC channel have acknowledged.

    python -m loadtest.bench_xds [--samples 300] [--models 200 --tenants 2000]

A real etcd that syncs every write to disk, a real Envoy with its whole edge, and a gRPC client in a process of its own,
all over mTLS but etcd. The control plane runs in this process, so that an acknowledgement is seen as it arrives and
nothing polls. Each sample puts or deletes one endpoint of the gateway; the clock starts before the write is sent to
etcd and stops when both clients have acknowledged that revision. Ends with one line of JSON.

With --models or --tenants it is the weight of a rollout in a large registry that changes: see loadtest/xds_large.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import uvloop

from libs import xds_bootstrap
from libs.registry import EtcdStore
from libs.rpc import make_channel
from libs.service import serve
from libs.supervisor.leash import leashed
from loadtest.figures import percentile
from loadtest.overload import output
from loadtest.xds_large import measure_large
from services.controlplane.app import build
from services.controlplane.config import Settings
from services.controlplane.policy.names import ENDPOINTS
from tests.support.certificates import tls_of
from tests.support.edge import EnvoyProcess, drop_endpoint, edge_config, put_endpoint
from tests.support.etcd import EtcdServer

TARGETS = {"xds_ack_ms_p99": "≤ 100"}
TARGETS_LARGE = {"xds_ack_ms_p99_large": "≤ 1000", "edge_off_ms_p99_large": "≤ 1000"}
CLIENTS = ("envoy-test", "client-0")
"""Node ids of the two clients."""


class Acknowledgements:
    """The newest endpoint version that each client has acknowledged, and when."""

    def __init__(self) -> None:
        self._newest = dict.fromkeys(CLIENTS, 0)
        self._changed = asyncio.Event()

    def note(self, node: str, type_url: str, version: str) -> None:
        """Called by the control plane at every acknowledgement."""
        if type_url == ENDPOINTS and node in self._newest:
            self._newest[node] = max(self._newest[node], int(version))
            self._changed.set()

    async def wait(self, node: str, revision: int) -> float:
        """`perf_counter` when the client had acknowledged the revision."""
        while self._newest[node] < revision:
            self._changed.clear()
            await self._changed.wait()
        return time.perf_counter()


async def measure(samples: int) -> dict[str, float]:
    """Every figure."""
    acknowledged = Acknowledgements()
    async with running(acknowledged) as store:
        rng = random.Random(7)
        for number in range(20):
            await sample(store, acknowledged, number)
        figures: dict[str, list[float]] = {"both": [], **{client: [] for client in CLIENTS}}
        for number in range(samples):
            # Apart by more than the publishing interval, and not in step with any timer.
            await asyncio.sleep(rng.uniform(0.02, 0.06))
            taken = await sample(store, acknowledged, number)
            for client, seconds in taken.items():
                figures[client].append(seconds * 1e3)
            figures["both"].append(max(taken.values()) * 1e3)
    return report(figures, samples)


async def sample(store: EtcdStore, acknowledged: Acknowledgements, number: int) -> dict[str, float]:
    """One change: seconds until each client acknowledged it."""
    started = time.perf_counter()
    if number % 2:
        revision = await drop_endpoint(store, "gateway", "gateway-1")
    else:
        revision = await put_endpoint(store, "gateway", "gateway-1", 20_000 + number)
    async with asyncio.timeout(30):
        return {client: await acknowledged.wait(client, revision) - started for client in CLIENTS}


@contextlib.asynccontextmanager
async def running(acknowledged: Acknowledgements) -> AsyncIterator[EtcdStore]:
    """etcd, control plane, Envoy and the gRPC client, while the block runs; gives a store to write with."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pki = directory / "pki"
        etcd = EtcdServer(directory / "etcd", fsync=True)
        etcd.start()
        stack.callback(etcd.stop)
        store = EtcdStore((etcd.endpoint,))
        stack.push_async_callback(store.close)
        for service in ("gateway", "edge-auth", "ratelimit", "registry"):
            await put_endpoint(store, service, f"{service}-0", 9)
        tls = tls_of(pki, "controlplane")
        settings = Settings(
            tls=tls, etcd=(), state_dir=str(directory / "state"), edge=edge_config(pki, access_log=False)
        )
        followed = EtcdStore((etcd.endpoint,))
        stack.push_async_callback(followed.close)
        control = await build(settings, store=followed, acknowledged=acknowledged.note)
        served = await stack.enter_async_context(serve(control, settings))
        address = f"127.0.0.1:{served.port}"
        envoy = EnvoyProcess(directory / "envoy", xds=address, tls=tls_of(pki, "envoy"))
        stack.push_async_callback(envoy.stop)
        await envoy.start(("edge-http", "edge-https"))
        stack.enter_context(start_client(directory, pki, address))
        for name in CLIENTS:
            try:
                await asyncio.wait_for(acknowledged.wait(name, 1), 60)
            except TimeoutError:
                raise RuntimeError(f"{name} has acknowledged no endpoints within a minute") from None
        yield store


def start_client(directory: Path, pki: Path, address: str) -> subprocess.Popen[bytes]:
    """A process that holds an `xds:///` channel to the gateway, until its input ends.

    Not started by the event loop: uvloop forks with Python's hooks, and gRPC's is skipped while its threads are busy.
    """
    tls = tls_of(pki, "router")
    bootstrap = xds_bootstrap.render(node_id=CLIENTS[1], zone="zone-a", xds=(address,), tls=tls)
    return subprocess.Popen(
        leashed(sys.executable, "-m", "loadtest.bench_xds", "--client"),
        env={**os.environ, "GRPC_XDS_BOOTSTRAP_CONFIG": bootstrap, "GRPC_VERBOSITY": "NONE"},
        stdin=subprocess.PIPE,
    )


async def hold_channel() -> None:
    """The client process: a channel that is kept connected until standard input ends."""
    async with make_channel("xds:///gateway.weir.internal", tls=None) as channel:
        watched = asyncio.create_task(keep_connecting(channel))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        watched.cancel()


async def keep_connecting(channel: grpc.aio.Channel) -> None:
    """An idle channel drops its subscriptions; this one never idles."""
    while True:
        state = channel.get_state(try_to_connect=True)
        await channel.wait_for_state_change(state)


def report(taken: dict[str, list[float]], samples: int) -> dict[str, float]:
    """A table for people, and the figures."""
    output.say(f"etcd write to acknowledgement, {samples} changes, milliseconds")
    figures: dict[str, float] = {"samples": samples}
    for name, each in (("xds", "both"), ("envoy", CLIENTS[0]), ("grpc", CLIENTS[1])):
        values = taken[each]
        found = {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values)}
        output.say(f"  {each:12} " + "  ".join(f"{what} {value:7.2f}" for what, value in found.items()))
        figures |= {f"{name}_ack_ms_{what}": value for what, value in found.items() if what != "max" or name == "xds"}
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--models", type=int, default=0, help="measure a large registry instead")
    parser.add_argument("--tenants", type=int, default=0, help="likewise")
    options = parser.parse_args()
    output.begin()
    parts = output.Parts()
    if options.client:
        uvloop.run(hold_channel())
    elif options.models or options.tenants:
        with parts.part("xds_large"):
            sizes = {"models": options.models or 200, "tenants": options.tenants or 2000}
            parts.figures |= measure_large(**sizes, samples=options.samples)
        output.say("a rollout's weight in a large registry")
        output.say("\n".join(f"  {name:32} {value:12.2f}" for name, value in parts.figures.items()))
        output.finish("xds_large", parts, TARGETS_LARGE)
    else:
        with parts.part("xds"):
            parts.figures |= uvloop.run(measure(options.samples))
        output.finish("xds", parts, TARGETS)
