"""How fast a model is pushed, with how much memory: `make bench-push`, or `python -m loadtest.bench_push [--quick]`.

`weir models push` itself, a process from its start to its end, pushes a made-up Llama of 2 GB from a folder to an empty
store: checked, digested, sent, registered with a registry over mTLS. All flushed to the disk: `disk_gb_per_s` beside
it is a bare copy of the weights with one flush, by which the rest is bounded, and `sha256_gb_per_s` one thread.

    push_gb_per_s         to a directory
    push_of_disk          that over disk_gb_per_s
    push_rss_mb           the most memory that any of its processes had, of all the pushes here (10^6 bytes)
    cached_gb_per_s       the same from a snapshot in Hugging Face's cache, whose files are read once
    again_gb_per_s        once more: nothing is sent
    resumed_gb_per_s      after a push that was killed half way
    s3_gb_per_s           to a bucket of a moto server, whose speed is that of a Python server in memory, not of S3
    fetch_gb_per_s        what workers do: every byte checked, flushed
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import BLOBS, fetch, open_store
from libs.families import parse_config
from libs.registry import MemoryStore, keys, snapshot_of
from libs.supervisor.leash import leashed
from loadtest.figures import table
from loadtest.overload import output
from services.worker.engines.torch_engine.weights import expected_shapes
from tests.support.checkpoint import LLAMA, REVISION
from tests.support.operator import ROOT, Operator
from tests.support.tokenizer import write_byte_tokenizer

FULL, QUICK, SMOKE = 2_000_000_000, 400_000_000, 40_000_000
"""Bytes of weights."""
S3_SHARE = 4
"""The bucket gets a model so many times smaller: moto keeps it in memory."""
TARGETS = {"push_rss_mb": "≤ 300", "push_of_disk": "≥ 0.5", "push_gb_per_s": "≥ 0.1"}
CHUNK = 1 << 20


class Model:
    """A checkpoint of about so many bytes, in Hugging Face's cache and as a folder of the same files."""

    def __init__(self, root: Path, size: int) -> None:
        self.snapshot = root / "hub" / "models--Somebody--Bench" / "snapshots" / REVISION
        self.folder = root / "bench"
        blobs = self.snapshot.parent.parent / "blobs"
        for place in (self.snapshot, self.folder, blobs):
            place.mkdir(parents=True)
        write_byte_tokenizer(self.folder)
        one, two = (_numbers(_config(layers)) for layers in (1, 2))
        config = _config(max(1, (size // 2 - one) // (two - one) + 1))
        (self.folder / "config.json").write_text(json.dumps(config))
        digest = _weights(self.folder / "model.safetensors", config)
        for path in self.folder.iterdir():
            name = digest if path.suffix == ".safetensors" else hashlib.sha1(path.read_bytes(), usedforsecurity=False)
            blob = blobs / (name if isinstance(name, str) else name.hexdigest())
            os.link(path, blob)
            (self.snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
        self.size = sum(path.stat().st_size for path in self.folder.iterdir())
        self.weights = self.folder / "model.safetensors"


def _config(layers: int) -> dict[str, Any]:
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8}
    return LLAMA | wide | {"num_hidden_layers": layers}


def _numbers(config: dict[str, Any]) -> int:
    count = 0
    for shape in expected_shapes(parse_config(config)).values():
        size = 1
        for each in shape:
            size *= each
        count += size
    return count


def _weights(path: Path, config: dict[str, Any]) -> str:
    """Writes float16 weights of some random bytes again and again; their SHA-256."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in expected_shapes(parse_config(config)).items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    hasher, chunk = hashlib.sha256(), os.urandom(CHUNK)
    with path.open("wb") as file:
        for piece in (struct.pack("<Q", len(text)), text, *(chunk for _ in range(end // CHUNK)), chunk[: end % CHUNK]):
            hasher.update(piece)
            file.write(piece)
        os.fsync(file.fileno())
    return hasher.hexdigest()


class Bench:
    """A registry, and the command."""

    def __init__(self, operator: Operator, store: MemoryStore) -> None:
        self._operator, self._store = operator, store
        self.rss = 0.0

    async def push(self, folder: Path, uri: str, version: str, *, stop: tuple[Path, int] | None = None) -> float:
        """Seconds of a push. `stop`: it is killed when a file of a folder has so many bytes."""
        words = ["models", "push", str(folder), "--name", "m", "--version", version, "--unsigned", "--blobs", uri]
        words += ["--tier", "fast", "--pool", "p"]
        environ = {**os.environ, "WEIR_STATE_DIR": str(self._operator.state)}
        return await asyncio.to_thread(self._run, words, environ, stop)

    def _run(self, words: list[str], environ: dict[str, str], stop: tuple[Path, int] | None) -> float:
        began = time.perf_counter()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                leashed(sys.executable, "-c", _COMMAND, *words), cwd=ROOT, env=environ, stdout=said, stderr=said
            )
            if stop is not None:
                while not _grown(*stop):
                    assert process.poll() is None, "it has ended before it could be killed"
                    time.sleep(0.001)
                process.kill()
            code, seconds = process.wait(), time.perf_counter() - began
            said.seek(0)
            told = said.read()
        assert (code == 0) == (stop is None), told
        if stop is None:
            self.rss = max(self.rss, int(told.split()[-1]) * 1024 / 1e6)
        return seconds

    async def version(self, name: str) -> pb.ModelVersion:
        """A version as registered."""
        return snapshot_of(*await self._store.get_prefix(keys.ROOT)).model_versions[name]


async def measure(size: int, root: Path) -> dict[str, float]:
    """All figures."""
    store, operator = MemoryStore(), Operator(root)
    model = await asyncio.to_thread(Model, root, size)
    small = await asyncio.to_thread(Model, root / "small", size // S3_SHARE)
    gb = model.size / 1e9
    found = {"sha256_gb_per_s": gb / await asyncio.to_thread(_digested, model.weights)}
    found["disk_gb_per_s"] = gb / await asyncio.to_thread(_copied, model.weights, root / "copy")
    async with operator.registry(store):
        bench = Bench(operator, store)
        blobs = root / "blobs"
        found["push_gb_per_s"] = gb / await bench.push(model.folder, blobs.as_uri(), "1")
        found["again_gb_per_s"] = gb / await bench.push(model.folder, blobs.as_uri(), "1")
        version = await bench.version("m@1")
        assert version.source == BLOBS
        opened, began = open_store(blobs.as_uri()), time.perf_counter()
        await fetch(version, opened, root / "fetched")
        found["fetch_gb_per_s"] = gb / (time.perf_counter() - began)
        await opened.close()
        for each in (blobs, root / "fetched"):
            await asyncio.to_thread(shutil.rmtree, each)
        found["cached_gb_per_s"] = gb / await bench.push(model.snapshot, blobs.as_uri(), "2")
        await asyncio.to_thread(shutil.rmtree, blobs)
        await bench.push(model.folder, blobs.as_uri(), "3", stop=(blobs / "tmp", model.size // 2))
        found["resumed_gb_per_s"] = gb / await bench.push(model.folder, blobs.as_uri(), "3")
        with _bucket() as uri:
            found["s3_gb_per_s"] = small.size / 1e9 / await bench.push(small.folder, uri, "4")
    found["push_of_disk"] = found["push_gb_per_s"] / found["disk_gb_per_s"]
    return found | {"push_rss_mb": bench.rss}


def _grown(folder: Path, size: int) -> bool:
    with suppress(FileNotFoundError):
        return any(each.stat().st_size >= size for each in folder.glob("*.part"))
    return False  # it is in its place now


def _digested(path: Path) -> float:
    began = time.perf_counter()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    return time.perf_counter() - began


def _copied(path: Path, to: Path) -> float:
    began = time.perf_counter()
    with path.open("rb") as source, to.open("wb", buffering=0) as target:
        while chunk := source.read(CHUNK):
            target.write(chunk)
        os.fsync(target.fileno())
    seconds = time.perf_counter() - began
    to.unlink()
    return seconds


@contextmanager
def _bucket() -> Iterator[str]:
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
    server = subprocess.Popen(
        leashed(sys.executable, "-c", _SERVER), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="models")
        yield f"s3://models?endpoint={endpoint}"
    finally:
        server.terminate()
        server.wait()


_COMMAND = """
import resource, sys
from services.cli.__main__ import call
code = call(sys.argv[1:])
# Of this program alone: what the kernel says of a child counts what its parent had when it began.
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""
_SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
server._thread.join()
"""


def main() -> None:
    """Measure and print."""
    options = output.options(__doc__, smoke=True).parse_args()
    output.begin(options.nice)
    size = int(output.extent(options, FULL, QUICK, SMOKE))
    parts = output.Parts()
    with parts.part("push"), tempfile.TemporaryDirectory(prefix="weir-push-") as folder:
        parts.figures |= asyncio.run(measure(size, Path(folder)))
    output.say(table(("figure", "value"), [(name, f"{value:.3g}") for name, value in parts.figures.items()]))
    output.finish("push", parts, TARGETS, {"bytes": size, "store": "a directory; s3_ a moto server"})


if __name__ == "__main__":
    main()
