"""Both blob stores: a directory, and a bucket of a real S3 server (moto) over HTTP on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path

import boto3
import pytest
from botocore.loaders import JSONFileLoader

from libs.artifacts import BlobStore, LocalBlobStore, open_store

BUCKET = "models"
S3_PAGE = 20
"""How many objects the server lists at once; AWS's lists 1000."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server."""
    from moto.server import ThreadedMotoServer  # a second, which every process that collects tests would take

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(S3_PAGE))
        # Every store is a session of boto3's, which would read the same megabytes anew.
        read = cache(JSONFileLoader().load_file)
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.stop()


@pytest.fixture
def s3_uri(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket, with credentials in the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = boto3.resource("s3", endpoint_url=s3_server).Bucket(BUCKET)
    bucket.create()
    try:
        yield f"s3://{BUCKET}/some/where?endpoint={s3_server}"
    finally:
        bucket.objects.all().delete()
        bucket.delete()
        bucket.meta.client.close()


@pytest.fixture(params=["local", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobStore]:
    """An empty store, opened by its address."""
    if request.param == "local":
        made = open_store((tmp_path / "a store").as_uri())
    else:
        made = open_store(await asyncio.to_thread(request.getfixturevalue, "s3_uri"))
    yield made
    await made.close()


@pytest.fixture
def damage(request: pytest.FixtureRequest, store: BlobStore, tmp_path: Path) -> Callable[[str, bytes], Awaitable[None]]:
    """Writes other bytes in place of a blob, behind the store's back."""

    async def local(digest: str, content: bytes) -> None:
        path = tmp_path / "a store" / "sha256" / digest[:2] / digest
        path.chmod(0o644)
        path.write_bytes(content)

    async def bucket(digest: str, content: bytes) -> None:
        server = request.getfixturevalue("s3_server")
        client = boto3.client("s3", endpoint_url=server)
        client.put_object(Bucket=BUCKET, Key=f"some/where/sha256/{digest[:2]}/{digest}", Body=content)
        client.close()

    return local if isinstance(store, LocalBlobStore) else bucket
