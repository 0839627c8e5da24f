"""Real faults, each of which ends with its block. Yields when it began, `time.monotonic()`: when the last thing that it
takes was done, what makes it possible (a version, a tenant) excluded.

Nothing here writes a metric, a rule or an alert: processes are killed, delayed and cut off, disks filled, files and
keys changed, and clients ask for too much.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

from libs.auditlog.layout import segments
from libs.pki import reissue
from libs.pki.authority import LEAF_LIFE
from libs.registry.ports import Put
from libs.supervisor.leash import leashed
from loadtest.alerts.site import HASTY, PATIENT, Site, total, until
from loadtest.soak import network
from loadtest.soak.inject import filled
from tests.support.mesh import eventually

Fault = Callable[[Site], AbstractAsyncContextManager[float]]
_LOOK = 0.05
_SKEW = 60.0
"""Seconds that the clock is ahead."""
_FSYNC_MICROSECONDS = 900_000


def down(*processes: str, requests: bool = False) -> Fault:
    """These are killed, and again as soon as they come back. With `requests`, some are sent meanwhile."""

    @asynccontextmanager
    async def fault(site: Site) -> AsyncIterator[float]:
        over = threading.Event()
        killer = asyncio.create_task(asyncio.to_thread(_keep_killing, site, processes, over))
        try:
            async with site.load(HASTY, 4 * requests, pause=0.2):
                yield time.monotonic()
        finally:
            over.set()
            await killer
            await asyncio.to_thread(site.injector.wait_ready)

    return fault


def _keep_killing(site: Site, processes: Collection[str], over: threading.Event) -> None:
    while not over.is_set():
        for row in site.mesh.status():
            if row["name"] in processes and row["pid"]:
                with suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGKILL)
        over.wait(_LOOK)


def flapping(process: str) -> Fault:
    """It dies three times, each time after it was scraped."""

    @asynccontextmanager
    async def fault(site: Site) -> AsyncIterator[float]:
        for kill in range(3):
            await site.scraped(process)
            old = site.mesh.kill(process)
            if kill == 2:
                began = time.monotonic()
            await asyncio.to_thread(site.mesh.wait_back, process, old)
        yield began

    return fault


@asynccontextmanager
async def unheard(site: Site) -> AsyncIterator[float]:
    """Nothing reaches the metrics page of a process, which is well otherwise."""
    with network.closed(int(site.address("safety", "metrics").rpartition(":")[2])):
        yield time.monotonic()


@asynccontextmanager
async def slow_disk(site: Site) -> AsyncIterator[float]:
    """Each sync of a member of etcd takes most of a second longer: strace delays the system call's return."""
    inject = f"inject=fdatasync,fsync:delay_exit={_FSYNC_MICROSECONDS}"
    tracing = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject)
    tracer = await asyncio.create_subprocess_exec(*leashed(*tracing, "-p", str(site.pid("etcd-2"))))

    async def write() -> None:
        while True:
            with suppress(Exception):  # the cluster may be without a leader for a moment
                await site.store.txn(puts=[Put("/weir/drill", os.urandom(8))])
            await asyncio.sleep(0.1)

    writing = asyncio.create_task(write())
    try:
        yield time.monotonic()
    finally:
        writing.cancel()
        tracer.terminate()
        await tracer.wait()
        await site.store.txn(deletes=["/weir/drill"])


@asynccontextmanager
async def wrong_clock(site: Site) -> AsyncIterator[float]:
    """The clock of one process is a minute ahead."""
    clock = site.clocks / str(site.pid("safety"))
    try:
        clock.write_text(f"{_SKEW}\n", encoding="ascii")
        yield time.monotonic()
    finally:
        clock.unlink(missing_ok=True)


@asynccontextmanager
async def full_disk(site: Site) -> AsyncIterator[float]:
    """The audit service's disk is full to the last byte, and requests go on, which are to be recorded."""
    with filled(site.mesh.state / "data" / "audit"):
        began = time.monotonic()
        async with site.load(HASTY, 4, pause=0.1):
            yield began


@asynccontextmanager
async def damaged_log(site: Site) -> AsyncIterator[float]:
    """A bit of the audit log's oldest record in its newest segment is not as it was, which its service finds when it
    starts. Began when that one answered; ends when the bit is as it was, and the service has started again."""
    _, segment = segments(site.mesh.state / "data" / "audit" / "log")[-1]

    def flip() -> None:
        with segment.open("r+b") as file:
            file.seek(_BYTE)
            [byte] = file.read(1)
            file.seek(_BYTE)
            file.write(bytes([byte ^ 1]))

    flip()
    try:
        yield await _killed(site, "audit")
    finally:
        flip()
        await _killed(site, "audit")
        await asyncio.to_thread(site.injector.wait_ready)


_BYTE = 10
"""Within the line of any record."""


@asynccontextmanager
async def database_away(site: Site) -> AsyncIterator[float]:
    """The file of the records' database is gone, its place taken. Began when its service, started anew, answers."""
    folder = site.mesh.state / "data" / "records"
    place, away = folder / "records.sqlite", folder / "away"
    away.mkdir()
    for each in folder.glob(f"{place.name}*"):
        each.rename(away / each.name)
    place.mkdir()
    try:
        yield await _killed(site, "records")  # what it has open it would keep
    finally:
        place.rmdir()
        for each in away.iterdir():
            each.rename(folder / each.name)
        away.rmdir()
        await asyncio.to_thread(site.injector.wait_ready)


async def _killed(site: Site, process: str) -> float:
    """It is killed; when another answers in its place."""
    old = site.mesh.kill(process)

    def another() -> bool:
        return site.mesh.process(process)["pid"] not in (None, old)

    await asyncio.to_thread(eventually, another, seconds=60, what=f"another {process}")
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError):
                await site.page(process)
                return time.monotonic()
            await asyncio.sleep(_LOOK)


def without_audit(*, until_lost: bool) -> Fault:
    """The audit service is down and requests go on. Began when a thousand of their records waited; with `until_lost`,
    the gateway's disk is full as well, and it began when the first record was lost."""

    @asynccontextmanager
    async def fault(site: Site) -> AsyncIterator[float]:
        async def so() -> bool:
            page = await site.page("gateway")
            kept = {
                each: total(page, _RECORDS, outcome=each) for each in ("written", "acknowledged", "refused", "dropped")
            }
            if until_lost:
                return kept["dropped"] > 0
            return 2 * kept["written"] - sum(kept.values()) > 1_000

        disk = filled(site.mesh.state / "data" / "gateway") if until_lost else nullcontext()
        async with down("audit")(site), site.load(HASTY, 24, prompt=4, tokens=1):
            with disk:
                end = time.monotonic() + 600  # a busy machine takes long to fill two segments of the journal
                while not await so():
                    if time.monotonic() > end:
                        raise TimeoutError("requests leave no records")
                    await asyncio.sleep(0.2)
                yield time.monotonic()

    return fault


_RECORDS = "weir_audit_writer_records_total"


def old_certificates(days_left: float) -> Fault:
    """Everybody has certificates that were made so long ago that so many of their 90 days are left, by the mesh's own
    CA. Operators', which last a week, have ended: no command works meanwhile. Ends as the runbook says: `weir certs
    rotate`."""

    @asynccontextmanager
    async def fault(site: Site) -> AsyncIterator[float]:
        ago = LEAF_LIFE.total_seconds() - days_left * 86_400
        await asyncio.to_thread(reissue, site.mesh.state / "pki", now=lambda: time.time() - ago)
        try:
            yield time.monotonic()
        finally:
            await site.weir("certs", "rotate")

    return fault


@asynccontextmanager
async def impossible_port(site: Site) -> AsyncIterator[float]:
    """The control plane is started with a port for the edge that there is not; Envoy refuses that listener."""
    path = site.mesh.state / "config" / "controlplane.json"
    before = path.read_text()
    settings = json.loads(before)
    settings["edge"]["http_port"] = 70_000
    path.write_text(json.dumps(settings))
    try:
        await asyncio.to_thread(site.injector.restart, "controlplane")
        yield time.monotonic()
    finally:
        path.write_text(before)
        await asyncio.to_thread(site.injector.restart, "controlplane")
        await asyncio.to_thread(site.injector.wait_ready)


@asynccontextmanager
async def broken_version(site: Site) -> AsyncIterator[float]:
    """An alias points to a version whose files say what no engine takes. Ends when nobody wants it any more."""
    version = await site.push("drill-broken", "1", "fast", {"error_rate": 7.0})
    await site.alias("drill-broken", version)
    try:
        yield time.monotonic()
    finally:
        await site.weir("delete", "aliases", "drill-broken", "--reason", "the drill")
        await site.weir("delete", "modelversions", version, "--reason", "the drill")


@asynccontextmanager
async def failing_version(site: Site) -> AsyncIterator[float]:
    """An alias points to a version most of whose answers fail, and is used. Ends when it points to a good one."""
    good, bad = await site.two_versions("drill", {"error_rate": 0.9})
    async with site.load("drill", 6, tokens=9, pause=0.05):
        await site.alias("drill", bad)
        began = time.monotonic()
        yield began
        await site.alias("drill", good)


@asynccontextmanager
async def failing_canary(site: Site) -> AsyncIterator[float]:
    """A version half of whose answers fail is rolled out."""
    _, bad = await site.two_versions("drill-canary", {"error_rate": 0.5})
    async with site.load("drill-canary", 8, tokens=9, pause=0.05):
        plan = ("--steps", "30", "--step-duration", "2m", "--set", "sticky=user")
        await site.weir("rollout", "start", "drill-canary", bad, *plan, *_BECAUSE)
        yield time.monotonic()


@asynccontextmanager
async def frozen_rollout(site: Site) -> AsyncIterator[float]:
    """A rollout is under way when an operator freezes all of them."""
    _, other = await site.two_versions("drill-held", {"itl_factor": 1.0})
    await site.weir(*("rollout", "start", "drill-held", other, "--steps", "30", "--step-duration", "10m"), *_BECAUSE)
    await site.weir("rollout", "freeze", "--on", *_BECAUSE)
    try:
        yield time.monotonic()
    finally:
        await site.weir("rollout", "freeze", "--off", *_BECAUSE)


_BECAUSE = ("--reason", "the drill")


@asynccontextmanager
async def spent_budget(site: Site) -> AsyncIterator[float]:
    """A tenant spends more than its budget of the month."""
    await site.weir("set", "tenants", "drill", "plan=paid", "--create", *_BECAUSE)
    await site.weir("set", "limits", "drill/*", "requests_per_minute=100000", "--create", *_BECAUSE)
    key = await site.weir("keys", "create", "drill", "--scope", "inference")
    await site.served(HASTY, key)
    budget = ("monthly_microusd=200", "enforcement=BUDGET_ENFORCEMENT_SOFT")
    async with site.load(HASTY, 2, prompt=64, tokens=16, key=key, pause=0.1):
        await site.weir("set", "budgets", "drill", *budget, "--create", *_BECAUSE)
        yield time.monotonic()
        await site.weir("delete", "budgets", "drill", *_BECAUSE)


def flood(tokens: int) -> Fault:
    """Sixty callers ask for answers of so many tokens, many more than the workers can give, and their objective lets
    them wait. Of long ones each holds every KV block of the worker that keeps what an answer may need, and most are
    refused; of shorter ones the rest waits."""

    @asynccontextmanager
    async def fault(site: Site) -> AsyncIterator[float]:
        async with _patience(site):
            began = time.monotonic()
            async with site.load(PATIENT, 60, prompt=24, tokens=tokens, pause=0.2):
                yield began

    return fault


@asynccontextmanager
async def _patience(site: Site) -> AsyncIterator[None]:
    """An objective that lets requests wait."""
    await site.weir("set", "slos", "generate/quality", "ttft_p95=60s", *_BECAUSE)
    try:
        yield
    finally:
        await site.weir("set", "slos", "generate/quality", "ttft_p95=4s", *_BECAUSE)


@asynccontextmanager
async def misjudged(site: Site) -> AsyncIterator[float]:
    """Most answers end after a few tokens, so that admission keeps little memory for each, and some are long."""
    soon = ("a", "e", "i", " ")  # no more than four
    async with _patience(site), site.load(PATIENT, 24, prompt=24, tokens=_LONGER, stop=soon) as short:
        await until(lambda: short.count(200) > _LEARNED, what="short answers", within=240.0)
        began = time.monotonic()
        async with site.load(PATIENT, 16, prompt=24, tokens=_LONGER):
            yield began


_LONGER = 400
_LEARNED = 200
"""Answers: three times as many as are remembered (libs/answer_lengths)."""
LONG, SHORT = 990, 150
"""Tokens: all of a worker's blocks, and a sixth of them."""


def can_trace() -> str:
    """Why a system call cannot be delayed here; empty where it can."""
    return "" if shutil.which("strace") else "strace is not installed, and a slow disk cannot be had without it"


def can_part() -> str:
    """Why there is no network and no small disk of one's own; empty where there are."""
    return "" if network.inside() else "no namespaces to be had: unshare -Urmn is refused"
