"""The canonical manifest of a model version: the bytes that are digested, signed and compared."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath

from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

BLOBS = "blobs:"
"""`ModelVersion.source` of a version whose files lie in the mesh's blob store, each under its SHA-256."""
FOLDER_MANIFEST = "manifest.json"
"""The file of a model folder that lists the others; no artifact may have this path."""
NOT_CONTENT = frozenset({"digest", "created_at", "signature"})
"""Fields of a model version that are not part of its manifest: who vouches for it is not what it is. Where its files
come from is: a signed version cannot be pointed elsewhere."""
ROLES = ("weights", "tokenizer", "config", "chat_template", "adapter")
"""Roles of files; other files have none."""


def manifest_bytes(version: pb.ModelVersion) -> bytes:
    """The canonical manifest: the version in protobuf's JSON form with the names of the proto file and without
    `NOT_CONTENT`, fields sorted, compact, UTF-8. Fields that are not set do not appear, so a field added to the proto
    later leaves the digests of older versions as they are."""
    content = json_format.MessageToDict(version, preserving_proto_field_name=True)
    kept = {name: value for name, value in content.items() if name not in NOT_CONTENT}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def manifest_digest(version: pb.ModelVersion) -> str:
    """The content address of a version: SHA-256 of its canonical manifest, 64 hex digits."""
    return hashlib.sha256(manifest_bytes(version)).hexdigest()


def full_name(version: pb.ModelVersion) -> str:
    """ "weir-fast@1"."""
    return f"{version.name}@{version.version}"


def inside(path: str) -> bool:
    """Whether a path of an artifact is relative, stays inside its folder and has one spelling only."""
    pure = PurePosixPath(path)
    return (
        bool(path)
        and not pure.is_absolute()
        and ".." not in pure.parts
        and str(pure) == path
        and path != "."
        and "\\" not in path
        and path.isprintable()
    )


def folder_manifest(version: pb.ModelVersion) -> bytes:
    """The `manifest.json` of a folder that holds the version's files: name, version and files with their digests, as
    engines check them. Made from the record, so that a folder says the same wherever it was fetched."""
    content = {
        "name": version.name,
        "version": version.version,
        "files": [{"path": each.path, "sha256": each.sha256, "bytes": each.bytes} for each in version.artifacts],
        "architecture": version.architecture,
        "context_length": version.context_length,
        "eos_token_ids": list(version.eos_token_ids),
        "digest": manifest_digest(version),
    }
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
