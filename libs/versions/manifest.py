"""A model's manifest: the list of its files with their digests, and the check of files against it.

The manifest is what the registry signs off; weights, adapters and the local cache all trust nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from libs.versions.errors import LoadError

MANIFEST = "manifest.json"

CHUNK = 1 << 20
"""Bytes read at once while hashing: stays in the processor's cache, and larger brought nothing when measured."""

# hashlib lets other threads run while it works; more threads than this wait for the disk, not for the processor.
HASH_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of a model: its path inside the model's folder, its length in bytes and its SHA-256 in lower hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of `model` ("name@version"); `content` is the manifest as it was read, byte for byte."""

    model: str
    files: tuple[ManifestFile, ...]
    content: bytes

    @cached_property
    def key(self) -> str:
        """The SHA-256 of the manifest itself: what names the model's files as a whole."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def total_bytes(self) -> int:
        """Bytes of all files; equal files count once."""
        return sum({file.sha256: file.size for file in self.files}.values())

    def require(self, names: Iterable[str], where: Path) -> None:
        """Check that every one of `names` is listed; `where` is the manifest's path, for the message.

        :raises LoadError: one is not: it would be used unverified.
        """
        listed = {file.path for file in self.files}
        for name in names:
            if name not in listed:
                raise LoadError(f"{where}: does not list {name}")


def read_manifest(folder: Path, model: str) -> Manifest:
    """The manifest of `folder`, which must be that of `model` ("name@version").

    :raises LoadError: it is missing, malformed, of another model, or lists a file outside the folder.
    """
    path = folder / MANIFEST
    try:
        manifest = parse_manifest(path.read_bytes(), path)
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    if manifest.model != model:
        raise LoadError(f"{path}: describes {manifest.model}, not {model}")
    return manifest


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """The manifest in `content`; `path` is only for messages.

    :raises LoadError: it is malformed or lists a file outside its folder.
    """
    raw = parse_object(content, path)
    try:
        model = f"{raw['name']}@{raw['version']}"
        files = tuple(_file(each, path) for each in raw["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{path}: malformed ({type(error).__name__}: {error})") from error
    if len({file.path for file in files}) != len(files):
        raise LoadError(f"{path}: lists a file twice")
    return Manifest(model, files, content)


def parse_object(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `content`; `path` is only for messages.

    :raises LoadError: it is something else.
    """
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise LoadError(f"{path}: not a JSON object")
    return raw


def check_size(path: Path, file: ManifestFile) -> None:
    """Check the length of the file at `path`.

    :raises LoadError: it is missing or of another length.
    """
    try:
        found = path.stat().st_size
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    compare(path, file, found)


def compare(path: Path, file: ManifestFile, size: int, sha256: str = "") -> None:
    """Check what was found of a file; without a digest its length alone, which costs nothing.

    :raises LoadError: it is another.
    """
    if size != file.size:
        raise LoadError(f"{path}: has {size} bytes, the manifest says {file.size}")
    if sha256 and sha256 != file.sha256:
        raise LoadError(f"{path}: its sha256 is not the manifest's")


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file in lower-case hex.

    :raises LoadError: it cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            return sha256_of(file.fileno())
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from error


def sha256_of(descriptor: int) -> str:
    """The SHA-256 of an open file, wherever it stands in it.

    :raises OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    position = 0
    while count := os.preadv(descriptor, [buffer], position):
        digest.update(buffer[:count])
        position += count
    return digest.hexdigest()


def _file(raw: Any, path: Path) -> ManifestFile:
    name, size, digest = str(raw["path"]), int(raw["bytes"]), str(raw["sha256"]).lower()
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in name or "\\" in name:
        raise LoadError(f"{path}: {name!r} lies outside the model's folder")
    if str(pure) == MANIFEST:
        raise LoadError(f"{path}: lists itself")
    # The digest names a file of the cache: nothing but hex may get that far.
    if len(digest) != 64 or set(digest) - set("0123456789abcdef") or size < 0:
        raise LoadError(f"{path}: malformed (length or digest of {name!r})")
    return ManifestFile(str(pure), size, digest)
