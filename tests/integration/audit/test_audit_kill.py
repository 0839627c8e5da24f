"""The audit service as a process, killed in the middle of its work."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from libs.auditlog import verify_directory
from libs.auditlog.layout import segments
from libs.errors import WeirError
from libs.sealing.vault import kept
from tests.support.audit import Link, connect, record
from tests.support.etcd import EtcdServer, free_ports


async def launch(config: Path) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.audit",
        "--config",
        str(config),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def test_sigkill_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path / "etcd")
    etcd.start()
    try:
        await _killed(tmp_path, etcd.endpoint)
    finally:
        etcd.stop()


async def _taking(link: Link, number: int) -> None:
    """Returns once the service takes records: it answers calls before it has compared the log with its anchors."""
    async with asyncio.timeout(30):
        while True:
            try:
                await link.append(record(number), seconds=10)
            except WeirError:
                await asyncio.sleep(0.02)
            else:
                return


async def _killed(tmp_path: Path, endpoint: str) -> None:
    [port] = free_ports(1)
    state = tmp_path / "state"
    config = tmp_path / "audit.json"
    config.write_text(
        json.dumps(
            {
                "service": "audit",
                "instance": "audit-0",
                "port": port,
                "state_dir": str(state),
                "etcd": [endpoint],
                "segment_bytes": 20_000,
                "max_group": 16,
            }
        )
    )
    acknowledged: dict[str, int] = {}
    total = 0
    for _ in range(3):
        process = await launch(config)
        enough = asyncio.Event()
        goal = len(acknowledged) + 150
        async with connect(port) as link:
            await link.client.wait_connected(30)
            await _taking(link, total)

            async def one(number: int, enough: asyncio.Event = enough, link: Link = link, goal: int = goal) -> None:
                try:
                    answer = await link.append(record(number), seconds=10)
                except WeirError:
                    return
                acknowledged[f"r{number}"] = answer.sequence
                if len(acknowledged) >= goal:
                    enough.set()

            async with asyncio.TaskGroup() as group:
                for number in range(total, total + 600):
                    group.create_task(one(number))
                await enough.wait()
                process.send_signal(signal.SIGKILL)
                await process.wait()
        total += 600
    assert len(acknowledged) < total
    process = await launch(config)
    async with connect(port) as link:
        await link.client.wait_connected(30)
        await _taking(link, 0)
        answers = await asyncio.gather(*(link.append(record(number)) for number in range(total)))
    process.terminate()
    assert await process.wait() == 0
    for number, answer in enumerate(answers):
        known = acknowledged.get(f"r{number}")
        if known is not None:
            assert answer.duplicate
            assert answer.sequence == known
    # No record's key is lost: each was on the disk before what it sealed.
    keys, _ = kept(state / "sealing" / "keys.db")
    report = verify_directory(
        state / "log", checkpoints=state / "checkpoints", public_key=state / "keys" / "checkpoint.pub", keys=keys
    )
    assert (report.sealed, report.erased) == (report.records, 0)
    stored = [
        json.loads(line)["record"]["id"]
        for _, path in segments(state / "log")
        for line in path.read_text().splitlines()
    ]
    assert (report.faults, report.notes, report.records) == ([], [], len(stored))
    # What a crash left beyond the last checkpoint is kept, and the service says so in records of its own.
    own = [each for each in stored if each.startswith("read-")]
    assert len(own) <= 3
    assert sorted(set(stored) - set(own)) == sorted(f"r{number}" for number in range(total))
    assert len(stored) == total + len(own)
