"""From the address of a blob store to the store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from libs.artifacts.blobs import BlobStore
from libs.artifacts.local import LocalBlobStore


class BlobUriError(ValueError):
    """An address of a blob store makes no sense; the message says why and does not repeat it."""


def open_store(uri: str) -> BlobStore:
    """The store at an address: `file:///path`, or `s3://bucket/prefix?endpoint=URL&region=NAME`, of which only the
    bucket is needed. Nothing is read or created yet.

    :raises BlobUriError: it is neither, or it holds credentials: these come from where AWS's tools look for them.
    :raises BlobStoreUnavailable: what is found there makes no sense.
    """
    try:
        parts = urlsplit(uri)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise BlobUriError("the address of the blob store is no URI") from None
    if parts.fragment or "@" in parts.netloc:
        raise BlobUriError("the address of a blob store has no user, password or fragment")
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or options or not path.startswith("/"):
            raise BlobUriError("the address of a local blob store is file:///absolute/path")
        return LocalBlobStore(Path(path))
    if parts.scheme == "s3":
        if not parts.netloc:
            raise BlobUriError("the address of a bucket is s3://bucket/prefix")
        if unknown := sorted(options.keys() - {"endpoint", "region"}):
            raise BlobUriError(f"the address of a bucket takes endpoint and region, not {unknown[0]}")
        endpoint = options.get("endpoint", "")
        if endpoint:
            server = urlsplit(endpoint)
            if server.scheme not in ("http", "https") or not server.netloc or "@" in server.netloc or server.query:
                raise BlobUriError("the endpoint of a bucket must be an http or https URL without credentials")
        # boto3 takes a seventh of a second to import, which those without a bucket need not wait for.
        from libs.artifacts.s3 import S3BlobStore

        return S3BlobStore(
            parts.netloc, prefix=unquote(parts.path), endpoint=endpoint, region=options.get("region", "")
        )
    raise BlobUriError(f"a blob store is at file:// or s3://, not {parts.scheme or 'a path'}")
