"""A snapshot of etcd over its maintenance API, and the data directory that etcd's own tool makes of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from aetcd import rpc

from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.registry.endpoints import Endpoints, Stubs

_CONNECT_SECONDS = 2.0
_PIECE_SECONDS = 30.0
"""Until the next piece of a snapshot, of which etcd sends 32 KiB at a time, and first copies its database."""
_RESTORE_SECONDS = 600.0
_HASH_BYTES = 32
_SECTOR = 512
"""The database is a multiple of this; what is over is its SHA-256."""


class SnapshotError(Exception):
    """A snapshot is not whole, or cannot be restored; the message says why."""


async def save(endpoints: Sequence[str], tls: TlsFiles, path: Path) -> int:
    """Writes a snapshot to a file (mode 0600), and returns a revision that it holds at least.

    :param tls: the certificate of `libs.authority.stores.ROOT_USER`: nobody else may.
    :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint gives one.
    :raises SnapshotError: it is not whole.
    :raises OSError: the file cannot be written.
    """
    connection = Endpoints(endpoints, tls)
    why = "it cannot be reached"
    try:
        for _ in endpoints:
            stubs = connection.stubs()
            try:
                if await connection.connected(stubs, _CONNECT_SECONDS):
                    return await _save(stubs, path)
            except grpc.aio.AioRpcError as error:
                why = error.details() or error.code().name
            except TimeoutError:
                why = "it does not answer"
            connection.rotate(stubs)
    finally:
        await connection.close()
    raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, f"etcd gives no snapshot: {why}")


async def _save(stubs: Stubs, path: Path) -> int:
    # A member gives out its own database. Once it has answered a linearizable read it has applied what everybody has.
    async with asyncio.timeout(_CONNECT_SECONDS):
        read = await stubs.kv.Range(rpc.RangeRequest(key=b"\0", keys_only=True, limit=1))
    stream = rpc.MaintenanceStub(stubs.channel).Snapshot(rpc.SnapshotRequest())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            while True:
                async with asyncio.timeout(_PIECE_SECONDS):
                    piece = await stream.read()
                if piece is grpc.aio.EOF:
                    break
                file.write(piece.blob)
    finally:
        stream.cancel()
    check(path)
    return int(read.header.revision)


def check(path: Path) -> None:
    """Compares a snapshot with the SHA-256 at its end.

    :raises SnapshotError: it is not whole.
    :raises OSError: it cannot be read.
    """
    left = path.stat().st_size - _HASH_BYTES
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        if left <= 0 or left % _SECTOR:
            raise SnapshotError(f"{path.name} is no snapshot of etcd, or was cut short")
        while left:
            left -= len(piece := file.read(min(left, 1 << 20)))
            hasher.update(piece)
        if file.read() != hasher.digest():
            raise SnapshotError(f"{path.name} is not what etcd sent: its SHA-256 does not hold")


def restore(tool: Path, snapshot: Path, data: Path, *, name: str, peer_url: str) -> None:
    """As `restore_all`, of a cluster of one member."""
    restore_all(tool, snapshot, {name: data}, {name: peer_url})


def restore_all(tool: Path, snapshot: Path, folders: Mapping[str, Path], peers: Mapping[str, str]) -> None:
    """Makes the data directories of a cluster's members. Its token is a new one, and with it the cluster's id: who
    watched the former cluster knows by that that this is another history (libs/registry).

    :param tool: the program `etcdutl`.
    :param folders: by member; each must be empty or not there.
    :param peers: the members' URLs for one another.
    :raises SnapshotError: etcdutl refuses, or hangs.
    :raises OSError: it cannot be run, or a directory is not empty.
    """
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())
    token = f"weir-{secrets.token_hex(8)}"
    for name, data in folders.items():
        _restore(tool, snapshot, data, name=name, peer_url=peers[name], cluster=cluster, token=token)


def _restore(tool: Path, snapshot: Path, data: Path, *, name: str, peer_url: str, cluster: str, token: str) -> None:
    partial = data.with_name(f".{data.name}.{os.getpid()}")
    try:
        done = subprocess.run(  # noqa: S603 - our own argument list, no shell
            [
                *(tool, "snapshot", "restore", snapshot, f"--data-dir={partial}", f"--name={name}"),
                f"--initial-cluster={cluster}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster-token={token}",
            ],
            capture_output=True,
            text=True,
            timeout=_RESTORE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise SnapshotError(f"etcdutl refuses the snapshot: {(done.stderr.splitlines() or ['no word'])[-1]}")
        if data.exists():
            data.rmdir()
        partial.rename(data)
    except subprocess.TimeoutExpired as error:
        raise SnapshotError(f"etcdutl has not ended after {_RESTORE_SECONDS:g} s") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
