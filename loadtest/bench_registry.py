"""The registry under 10,000 resources and 200 watchers.

    python -m loadtest.bench_registry [--quick]

A real etcd that syncs every write to disk, the registry as a process of its own over mTLS, without the audit service.
`apply_1000_s`: one Apply of 1,000 resources, one transaction, the worst of those that fill the registry. `list_10k_ms`:
all pages of a List of all, the median of five. `get_ms_p50`: one at a time. `watch_ms_p99`: from before a write is sent
to etcd until a watcher's callback, over 200 watchers with a connection each in one process of their own; `direct_` is
the same with watches of etcd itself, in the same run. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.authority.identity import Operator
from libs.config import TlsFiles
from libs.registry import EtcdStore, Put, Source, keys
from libs.registry.remote import SERVER, RegistrySource
from libs.resources.codec import pack
from libs.rpc import make_channel
from loadtest.accounting import resident_bytes
from loadtest.figures import percentile
from loadtest.helper import helper
from loadtest.overload import output
from tests.support.certificates import tls_of
from tests.support.etcd import EtcdServer

TARGETS = {
    "apply_1000_s": "≤ 3",
    "list_10k_ms": "≤ 300",
    "watch_ms_p99": "≤ 50",
    "get_ms_p50": "≤ 5",
    "registry_rss_mb_10k": "≤ 200",
}
BATCH = 1000
_PAUSE = 0.05
"""Seconds between two writes that watchers see: one has reached all before the next is sent."""


async def figures_of(*, resources: int, watchers: int, samples: int) -> dict[str, float]:
    """Every figure."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as (etcd, address, pid, tls):
            figures = await measure(address, tls, resources=resources, gets=samples)
            figures["registry_rss_mb_10k"] = round(resident_bytes(pid) / 1e6, 1)
            figures |= await watched("watch_ms", etcd, f"registry={address}", Path(folder), watchers, samples)
            figures |= await watched("direct_watch_ms", etcd, f"etcd={etcd.endpoint}", Path(folder), watchers, samples)
    return figures


async def measure(address: str, tls: TlsFiles, *, resources: int, gets: int) -> dict[str, float]:
    """Fills the registry, then reads it."""
    async with make_channel(address, tls=tls, server_name=SERVER, translate_errors=True) as channel:
        stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
        applied = []
        for first in range(0, resources, BATCH):
            half = [f"t{number:05d}" for number in range(first // 2, first // 2 + BATCH // 2)]
            wanted = [pb.Tenant(id=name, plan=pb.PLAN_PAID, display_name=f"Tenant {name}") for name in half]
            limits = [
                pb.Limits(tenant=name, model="*", requests_per_minute=60, tokens_per_minute=9000) for name in half
            ]
            request = pb.ApplyRequest(resources=[pack(each) for each in (*wanted, *limits)], owner="bench")
            applied.append(await timed(stub.Apply(request, timeout=60)))
        listed = [await timed(list_all(stub, resources)) for _ in range(5)]
        got = []
        for number in range(gets):
            request = pb.GetRequest(kind="Limits", name=f"t{number % (resources // 2):05d}/*")
            got.append(await timed(stub.Get(request, timeout=5)))
    return {
        "apply_1000_s": round(max(applied), 3),
        "list_10k_ms": round(statistics.median(listed) * 1e3, 1),
        "get_ms_p50": round(statistics.median(got) * 1e3, 3),
    }


async def list_all(stub: Any, expected: int) -> None:
    """Every page.

    :raises RuntimeError: a resource is missing.
    """
    token, found = "", 0
    while True:
        page = await stub.List(pb.ListRequest(page_token=token), timeout=30)
        found += len(page.resources)
        token = page.next_page_token
        if not token:
            break
    if found < expected:
        raise RuntimeError(f"{found} of {expected} resources were listed")


async def watched(
    name: str, etcd: EtcdServer, source: str, folder: Path, watchers: int, samples: int
) -> dict[str, float]:
    """Milliseconds from the write to each watcher's callback."""
    command = ("-m", "loadtest.bench_registry", "--watch", source, "--pki", str(folder / "pki"))
    counts = ("--watchers", str(watchers), "--samples", str(samples))
    store = EtcdStore((etcd.endpoint,))
    sent: dict[int, float] = {}
    try:
        async with asyncio.timeout(300), helper(*command, *counts, stdout=PIPE, limit=1 << 26) as process:
            assert process.stdout is not None
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("the watchers did not start")
            for number in range(samples):
                endpoint = pb.Endpoint(service="worker", instance="bench", address=f"127.0.0.1:{20_000 + number}")
                started = time.monotonic()
                put = Put(keys.key_of(endpoint), keys.encode(endpoint))
                sent[(await store.txn(puts=[put])).revision] = started
                await asyncio.sleep(_PAUSE)
            seen = json.loads(await process.stdout.readline())
    finally:
        await store.close()
    values = [(at - sent[int(revision)]) * 1e3 for revision, times in seen.items() for at in times]
    if len(values) != samples * watchers:
        raise RuntimeError(f"{len(values)} of {samples * watchers} callbacks came")
    return {f"{name}_p{q}": round(percentile(values, q / 100), 3) for q in (50, 99)}


async def watch(source: str, pki: Path, watchers: int, samples: int) -> None:
    """The watchers' process: when each saw each revision, as one line of JSON."""
    kind, _, address = source.partition("=")
    tls = tls_of(pki, "gateway")
    seen: dict[int, list[float]] = {}
    open_: list[Source] = [
        RegistrySource(address, ("endpoints",), tls=tls) if kind == "registry" else EtcdStore((address,))
        for _ in range(watchers)
    ]
    listings = [await each.get_prefix(keys.key("endpoints", "")) for each in open_]

    async def follow(each: Source, revision: int) -> None:
        done = 0
        async for batch in each.watch(keys.key("endpoints", ""), revision + 1, known={}):
            seen.setdefault(batch.revision, []).append(time.monotonic())
            done += 1
            if done == samples:
                return

    tasks = [asyncio.create_task(follow(each, listing.revision)) for each, listing in zip(open_, listings, strict=True)]
    await asyncio.sleep(1.0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*tasks)
    sys.stdout.write(json.dumps(seen) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def timed(call: Any) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[EtcdServer, str, int, TlsFiles]]:
    """etcd and the registry, while the block runs: etcd, the registry's address and process, the operator's files."""
    etcd = EtcdServer(folder / "etcd", fsync=True)
    etcd.start()
    try:
        pepper = folder / "pepper"
        pepper.write_text("0123456789abcdef0123456789abcdef\n")
        tls, operator = tls_of(folder / "pki", "registry"), tls_of(folder / "pki", Operator("bench"))
        settings = {
            "service": "registry",
            "instance": "registry-0",
            "tls": {"ca": tls.ca, "cert": tls.cert, "key": tls.key},
            "pepper_file": str(pepper),
            "audit_target": "",
            "owners": ["operator:bench"],
        }
        # etcd is without TLS here, the registry's own files would not do: it is told where by a process of its own.
        config = folder / "registry.json"
        config.write_text(json.dumps(settings))
        words = ("-m", "loadtest.bench_registry", "--serve", str(config), "--etcd", etcd.endpoint)
        async with helper(*words, stdout=PIPE) as process:
            assert process.stdout is not None
            port = int(await asyncio.wait_for(process.stdout.readline(), 30))
            yield etcd, f"127.0.0.1:{port}", process.pid, operator
    finally:
        etcd.stop()


async def serve_registry(config: Path, endpoint: str) -> None:
    """The registry's process."""
    from libs.config import load
    from libs.service import serve
    from services.registry.app import build
    from services.registry.config import Settings

    settings = load(Settings, ["--config", str(config)])
    store = EtcdStore((endpoint,))
    async with serve(await build(settings, store=store), settings) as served:
        await served.ready.wait()
        sys.stdout.write(f"{served.port}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


def run(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything: figures of little weight")
    parser.add_argument("--watchers", type=int, default=0)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--watch", default="", help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--etcd", default="", help=argparse.SUPPRESS)
    parser.add_argument("--pki", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.watch:
        uvloop.run(watch(options.watch, options.pki, options.watchers, options.samples))
    elif options.serve:
        uvloop.run(serve_registry(options.serve, options.etcd))
    else:
        quick = options.quick
        watchers, samples = options.watchers or (20 if quick else 200), options.samples or (20 if quick else 300)
        output.begin()
        parts = output.Parts()
        with parts.part("registry"):
            resources = 2000 if quick else 10_000
            parts.figures |= uvloop.run(figures_of(resources=resources, watchers=watchers, samples=samples))
        for name, value in parts.figures.items():
            output.say(f"  {name:24} {value}")
        output.finish("registry", parts, TARGETS)


if __name__ == "__main__":
    run()
