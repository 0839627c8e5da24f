"""Blobs in a bucket of anything that speaks S3.

Keys are as the paths of the local store: `PREFIX/sha256/<2>/<digest>` and `PREFIX/aside/<digest>`. Small blobs are put
in one request, larger ones in parts that become visible together; what is hashed is what is sent, from the same memory.
An upload that was interrupted goes on: parts whose MD5 the bucket has as their ETag are not sent again. boto3 blocks,
so it is called in threads. Credentials come from where AWS's own tools look for them (environment, files, instance
metadata) and nowhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from libs.artifacts.blobs import (
    CHUNK,
    BlobCorrupt,
    BlobInfo,
    BlobNotFound,
    BlobStoreUnavailable,
    Told,
    check_digest,
    untold,
)

PART = 16 << 20
"""Bytes of a part. S3 allows 10,000 parts, and so blobs of 156 GiB."""
_PARTS_AT_ONCE = 6
"""On their way; with the one that is read and the one that waits, 128 MiB."""
_MAX_PARTS = 10_000
_GONE = frozenset({"404", "NoSuchKey", "NoSuchUpload", "NotFound"})


class S3BlobStore:
    """Blobs in a bucket, which must exist."""

    def __init__(
        self, bucket: str, *, prefix: str = "", endpoint: str = "", region: str = "", part_bytes: int = PART
    ) -> None:
        """:param endpoint: URL of an S3 server other than AWS's.

        :param part_bytes: blobs above this size go in parts of it; S3 wants at least 5 MiB.
        :raises BlobStoreUnavailable: the configuration of AWS's tools that is found makes no sense.
        """
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._part = part_bytes
        self._writing = Lock()
        with self._available():
            self._client: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint or None,
                region_name=region or None,
                config=Config(
                    retries={"mode": "standard", "total_max_attempts": 4},
                    connect_timeout=5,
                    read_timeout=30,
                    max_pool_connections=16,
                    # Servers other than AWS's refuse the newer checksums; every byte has its digest anyway.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )

    def __repr__(self) -> str:
        return f"S3BlobStore({self._bucket!r}, prefix={self._prefix!r})"

    async def put(self, digest: str, source: Path | BinaryIO, told: Told = untold) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._put, check_digest(digest), source, told)

    async def get(self, digest: str, sink: BinaryIO) -> int:
        """As in the port."""
        return await asyncio.to_thread(self._get, check_digest(digest), sink)

    async def stat(self, digest: str) -> BlobInfo | None:
        """As in the port."""
        return await asyncio.to_thread(self._stat, check_digest(digest))

    async def blobs(self) -> AsyncIterator[BlobInfo]:
        """As in the port."""
        async for info in self._all("sha256/"):
            yield info

    async def set_aside(self, digest: str) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._move, self._key(digest), self._aside(digest))

    async def aside(self) -> AsyncIterator[BlobInfo]:
        """As in the port."""
        async for info in self._all("aside/"):
            yield info

    async def restore(self, digest: str) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._move, self._aside(digest), self._key(digest))

    async def discard(self, digest: str) -> None:
        """As in the port."""
        await asyncio.to_thread(self._call, "delete_object", Key=self._aside(digest))

    async def clean(self, before: float) -> int:
        """As in the port."""
        return await asyncio.to_thread(self._clean, before)

    async def keep(self, name: str, content: bytes) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._keep, f"{self._prefix}kept/{name}", content)

    async def first_kept(self, under: str) -> tuple[str, bytes] | None:
        """As in the port."""
        return await asyncio.to_thread(self._first_kept, f"{self._prefix}kept/", under)

    async def close(self) -> None:
        """As in the port."""
        await asyncio.to_thread(self._client.close)

    def _key(self, digest: str) -> str:
        return f"{self._prefix}sha256/{check_digest(digest)[:2]}/{digest}"

    def _aside(self, digest: str) -> str:
        return f"{self._prefix}aside/{check_digest(digest)}"

    def _put(self, digest: str, source: Path | BinaryIO, told: Told) -> bool:
        key = self._key(digest)
        found = self._stat(digest)
        cut = found is not None and isinstance(source, Path) and source.stat().st_size != found.size
        # A copy onto itself makes its age new; S3 takes it only if something changes, such as the metadata.
        renew = {"ExtraArgs": {"MetadataDirective": "REPLACE", "Metadata": {}}}
        if found is not None and not cut and self._copy(key, key, **renew):
            return False
        # One after the other, each in several parts at once: what is in memory is bounded by that.
        with self._writing:
            if isinstance(source, Path):
                with source.open("rb") as file:
                    self._write(digest, key, file, told)
            else:
                self._write(digest, key, source, told)
        return True

    def _write(self, digest: str, key: str, source: BinaryIO, told: Told) -> None:
        first = _read(source, self._part)
        if len(first) < self._part:
            _check(digest, hashlib.sha256(first).hexdigest())
            self._call("put_object", Key=key, Body=first)
            told(len(first))
            return
        upload, there = self._begun(key)
        try:
            upload = upload or self._call("create_multipart_upload", Key=key)["UploadId"]
            found, parts = self._write_parts(key, upload, there, first, source, told)
            _check(digest, found)
            self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BlobCorrupt:
            # What cannot be taken back now, `clean` takes later.
            with suppress(BlobStoreUnavailable, KeyError):
                self._call("abort_multipart_upload", Key=key, UploadId=upload)
            raise
        except KeyError:
            # Somebody else has gone on with the same upload, and ended it.
            if self._stat(digest) is None:
                raise BlobStoreUnavailable(f"{self!r}: the upload was ended by somebody else; push again") from None

    def _begun(self, key: str) -> tuple[str, Mapping[int, Mapping[str, Any]]]:
        """The latest upload of a blob that was interrupted, and its parts by number; "" where there is none, or nobody
        may ask."""
        try:
            uploads = self._call("list_multipart_uploads", Prefix=key).get("Uploads", ())
            latest = max((each for each in uploads if each["Key"] == key), key=lambda each: each["Initiated"])
            parts: dict[int, Mapping[str, Any]] = {}
            more: dict[str, int] = {}
            while True:
                page = self._call("list_parts", Key=key, UploadId=latest["UploadId"], **more)
                parts |= {each["PartNumber"]: each for each in page.get("Parts", ())}
                if not page.get("IsTruncated"):
                    return latest["UploadId"], parts
                more = {"PartNumberMarker": page["NextPartNumberMarker"]}
        except (BlobStoreUnavailable, KeyError, ValueError):  # the last one: of nothing there is no latest
            return "", {}

    def _write_parts(
        self,
        key: str,
        upload: str,
        there: Mapping[int, Mapping[str, Any]],
        first: bytes,
        source: BinaryIO,
        told: Told,
    ) -> tuple[str, list[dict[str, Any]]]:
        """Sends parts that are not there, while the next ones are read and hashed; at most a few are in memory."""
        hasher = hashlib.sha256()
        parts: list[Future[dict[str, Any]]] = []
        under_way: set[Future[dict[str, Any]]] = set()
        with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="s3-part") as pool:
            chunk = first
            while chunk:
                number = len(parts) + 1
                if number > _MAX_PARTS:
                    raise BlobStoreUnavailable(
                        f"{self!r}: a blob of more than {_MAX_PARTS} parts of {self._part} bytes"
                    )
                hasher.update(chunk)
                parts.append(pool.submit(self._write_part, key, upload, number, chunk, there.get(number), told))
                under_way.add(parts[-1])
                if len(under_way) > _PARTS_AT_ONCE:
                    done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    for each in done:
                        each.result()
                chunk = _read(source, self._part)
            return hasher.hexdigest(), [each.result() for each in parts]

    def _write_part(
        self, key: str, upload: str, number: int, chunk: bytes, there: Mapping[str, Any] | None, told: Told
    ) -> dict[str, Any]:
        etag = there["ETag"] if there is not None else ""
        # Where the bucket encrypts, an ETag is no MD5: these parts are sent again.
        if not etag or etag.strip('"') != hashlib.md5(chunk, usedforsecurity=False).hexdigest():
            etag = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=chunk)["ETag"]
        told(len(chunk))
        return {"PartNumber": number, "ETag": etag}

    def _get(self, digest: str, sink: BinaryIO) -> int:
        hasher = hashlib.sha256()
        size = 0
        try:
            body = self._call("get_object", Key=self._key(digest))["Body"]
        except KeyError:
            raise BlobNotFound(f"{self!r} has no blob {digest[:12]}…") from None
        with body:
            while True:
                with self._available():
                    chunk = body.read(CHUNK)
                if not chunk:
                    break
                hasher.update(chunk)
                sink.write(chunk)
                size += len(chunk)
        if hasher.hexdigest() != digest:
            raise BlobCorrupt(f"{self!r}: blob {digest[:12]}… has digest {hasher.hexdigest()[:12]}…")
        return size

    def _stat(self, digest: str) -> BlobInfo | None:
        try:
            found = self._call("head_object", Key=self._key(digest))
        except KeyError:
            return None
        return BlobInfo(digest, found["ContentLength"], found["LastModified"].timestamp())

    def _keep(self, key: str, content: bytes) -> bool:
        with suppress(KeyError):
            self._call("head_object", Key=key)
            return False
        # A digest of the content is what a bucket with Object Lock wants; botocore sends one where it is required.
        self._call("put_object", Key=key, Body=content, ChecksumAlgorithm="SHA256")
        return True

    def _first_kept(self, root: str, under: str) -> tuple[str, bytes] | None:
        page = self._call("list_objects_v2", Prefix=f"{root}{under}", MaxKeys=1)
        for item in page.get("Contents", ()):
            with self._available():
                return item["Key"].removeprefix(root), self._call("get_object", Key=item["Key"])["Body"].read()
        return None

    async def _all(self, under: str) -> AsyncIterator[BlobInfo]:
        prefix = f"{self._prefix}{under}"
        more: dict[str, str] = {}
        while True:
            page = await asyncio.to_thread(self._call, "list_objects_v2", Prefix=prefix, **more)
            for item in page.get("Contents", ()):
                digest = item["Key"].rpartition("/")[2]
                try:
                    yield BlobInfo(check_digest(digest), item["Size"], item["LastModified"].timestamp())
                except ValueError:
                    continue
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _move(self, source: str, target: str) -> bool:
        if not self._copy(source, target):
            return False
        self._call("delete_object", Key=source)
        return True

    def _copy(self, source: str, target: str, **options: Any) -> bool:
        """False when there is no source."""
        try:
            with self._available():
                self._client.copy(
                    {"Bucket": self._bucket, "Key": source},
                    self._bucket,
                    target,
                    # Copies happen at the server; large ones are in parts all the same.
                    Config=TransferConfig(multipart_threshold=4 << 30, multipart_chunksize=1 << 30, use_threads=False),
                    **options,
                )
        except KeyError:
            return False
        return True

    def _clean(self, before: float) -> int:
        removed = 0
        more: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=f"{self._prefix}sha256/", **more)
            for upload in page.get("Uploads", ()):
                if upload["Initiated"].timestamp() < before:
                    self._call("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])
                    removed += 1
            if not page.get("IsTruncated"):
                return removed
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _call(self, operation: str, **parameters: Any) -> Any:
        """A request for this bucket. KeyError: there is no such object."""
        with self._available():
            return getattr(self._client, operation)(Bucket=self._bucket, **parameters)

    @contextmanager
    def _available(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _GONE:
                raise KeyError from error
            raise BlobStoreUnavailable(f"{self!r}: {error.operation_name} was refused ({code or 'no code'})") from error
        except (BotoCoreError, HTTPClientError, Boto3Error) as error:
            # Their texts may hold the address with its query; the type says enough.
            raise BlobStoreUnavailable(f"{self!r}: {type(error).__name__}") from error


def _read(source: BinaryIO, size: int) -> bytes:
    """Exactly `size` bytes, fewer only at the end."""
    pieces: list[bytes] = []
    while size and (piece := source.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _check(digest: str, found: str) -> None:
    if found != digest:
        raise BlobCorrupt(f"what was put as {digest[:12]}… has digest {found[:12]}…")
