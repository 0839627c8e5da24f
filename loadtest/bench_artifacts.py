"""How fast model files are pushed and fetched: `python -m loadtest.bench_artifacts [--mb 1024] [--s3]`.

Makes a model folder of random bytes, pushes it into an empty store, pushes it again, fetches it into an empty folder
and fetches it again into the same one, each time checking every digest as `weir models push` and workers do. SHA-256
alone, over the same files from the page cache, is what all of it is bounded by; every file is flushed to the disk.
`--s3` does the same with a bucket of a moto server in another process, whose speed is that of a Python server in
memory, not of S3.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import boto3

from libs.artifacts import Options, fetch, make_key, open_store, push
from libs.supervisor.leash import leashed

T = TypeVar("T")
FILES = 4
CHUNK = 1 << 20


def main() -> None:
    """Measures and prints JSON: megabytes (10^6 bytes) per second, medians."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench_artifacts", description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="size of the model, MiB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--s3", action="store_true", help="a bucket of a moto server instead of a directory")
    parser.add_argument("--directory", type=Path, help="where to work; the system's folder for temporary files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        root = Path(name)
        folder = _model(root / "model", given.mb)
        figures: dict[str, list[float]] = {}
        for run in range(given.runs):
            with _bucket(run) if given.s3 else _folder(root, run) as uri:
                for what, rate in asyncio.run(_measure(folder, uri, root / f"fetched-{run}")).items():
                    figures.setdefault(what, []).append(rate)
    found = {f"{what}_mb_s": round(statistics.median(rates), 1) for what, rates in figures.items()}
    store = "s3 (moto)" if given.s3 else "local"
    sys.stdout.write(json.dumps({"store": store, "mib": given.mb, "files": FILES, **found}, indent=2) + "\n")


def _model(folder: Path, mebibytes: int) -> Path:
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            for _ in range(mebibytes // FILES):
                file.write(os.urandom(CHUNK))
    return folder


async def _measure(folder: Path, uri: str, into: Path) -> dict[str, float]:
    options = Options(name="m", version="1", tier="fast", pool="p", architecture="A", context_length=1)
    size = await asyncio.to_thread(_megabytes, folder)
    keys = [make_key()]
    store = open_store(uri)
    rates: dict[str, float] = {}

    async def timed(what: str, work: Callable[[], Awaitable[T]]) -> T:
        began = time.perf_counter()
        result = await work()
        rates[what] = size / (time.perf_counter() - began)
        return result

    try:
        await timed("sha256", lambda: asyncio.to_thread(_digest, folder))
        version = (await timed("push", lambda: push(folder, store, options, keys))).version
        await timed("push_again", lambda: push(folder, store, options, keys))
        await timed("fetch", lambda: fetch(version, store, into))
        await timed("fetch_again", lambda: fetch(version, store, into))
    finally:
        await store.close()
    return rates


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def _digest(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


@contextmanager
def _folder(root: Path, run: int) -> Iterator[str]:
    yield (root / f"blobs-{run}").as_uri()


@contextmanager
def _bucket(run: int) -> Iterator[str]:
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
    server = subprocess.Popen(
        leashed(sys.executable, "-c", _SERVER), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        bucket = f"models-{run}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
        yield f"s3://{bucket}?endpoint={endpoint}"
    finally:
        server.terminate()
        server.wait()


_SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
server._thread.join()
"""

if __name__ == "__main__":
    main()
