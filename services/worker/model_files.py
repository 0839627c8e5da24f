"""The one way that engines read a model's files: each is hashed through the descriptor that it is then read by.

Between a check of a path and a later opening of it, whoever may write to the folder can put another file there; what
was hashed through a descriptor is what comes out of it. An engine that insists on reading paths itself gets a `Seal`,
which says afterwards whether the files were still those that were checked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from libs.versions.manifest import HASH_THREADS, MANIFEST, Manifest, ManifestFile, compare, read_manifest, sha256_of
from services.worker.checkpoint_files import parse_object
from services.worker.engines.port import EngineLoadError

Stamp = tuple[int, ...]


def stamp_of(opened: int | Path) -> Stamp:
    """What changes when a file is written or replaced: device, inode, length, the time of its content and that of its
    inode. Nobody but root can set the last one; it also changes when a hard link is added, as those who share a weight
    cache do, so it counts for files of one name only.

    :raises OSError: it is not there.
    """
    found = os.stat(opened)
    changed = found.st_ctime_ns if found.st_nlink == 1 else 0
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, changed


class ModelFiles:
    """The files of one model folder, by the paths of its manifest. Without a manifest nothing is checked."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest | None = None,
        *,
        known: Callable[[int, ManifestFile], bool] | None = None,
    ) -> None:
        """`known` says of an open descriptor that it is a file whose digest was computed and that was not written
        since: the weight cache's memory, which spares the hashing."""
        self.folder = folder
        self.manifest = manifest
        self._listed = {file.path: file for file in manifest.files} if manifest is not None else {}
        self._known = known

    @classmethod
    def of(cls, folder: Path, model: str, *, required: bool) -> ModelFiles:
        """The folder with its manifest, which must be that of `model` ("name@version"); without any if it has none and
        none is `required`.

        :raises EngineLoadError: the folder or the manifest is missing, malformed or of another model.
        """
        if not folder.is_dir():
            raise EngineLoadError(f"{folder}: no such folder for model {model}")
        checked = required or (folder / MANIFEST).exists()
        return cls(folder, read_manifest(folder, model) if checked else None)

    @cached_property
    def key(self) -> str:
        """What names the content: the digest of the manifest; without one, of every file's name and `Stamp`.

        :raises EngineLoadError: the folder cannot be read.
        """
        if self.manifest is not None:
            return self.manifest.key
        with _named(self.folder):
            stamps = sorted((path.name, stamp_of(path)) for path in self.folder.iterdir())
        return hashlib.sha256(repr(stamps).encode()).hexdigest()

    def __contains__(self, name: str) -> bool:
        """Whether there is such a file.

        :raises EngineLoadError: it is there, and the manifest does not list it: it would be used unchecked.
        """
        if name in self._listed:
            return True
        there = (self.folder / name).is_file()
        if there and self.manifest is not None:
            raise EngineLoadError(f"{self.folder / MANIFEST}: does not list {name}")
        return there

    def open(self, name: str) -> int:
        """A descriptor of the file, hashed through it. The caller closes it.

        :raises EngineLoadError: it is missing, not listed, cannot be read or is not what the manifest says.
        """
        descriptor, file = self._open(name)
        try:
            if file is not None and not (self._known is not None and self._known(descriptor, file)):
                _check(descriptor, file, self.folder / name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open_all(self, names: Iterable[str]) -> dict[str, int]:
        """Descriptors by name, as `open`, hashed side by side: all of them or none."""
        names = list(dict.fromkeys(names))
        with ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="verify") as pool:
            futures = {name: pool.submit(self.open, name) for name in names}
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        if errors:
            for future in futures.values():
                if future.exception() is None:
                    os.close(future.result())
            raise errors[0]
        return {name: future.result() for name, future in futures.items()}

    def read(self, name: str) -> bytes:
        """The content of a file.

        :raises EngineLoadError: as `open`.
        """
        path = self.folder / name
        descriptor, file = self._open(name)
        with _named(path), os.fdopen(descriptor, "rb") as opened:
            content = opened.read()
        if file is not None:
            compare(path, file, len(content), hashlib.sha256(content).hexdigest())
        return content

    def read_object(self, name: str) -> dict[str, Any]:
        """The JSON object in a file.

        :raises EngineLoadError: as `read`; also, it holds something else.
        """
        return parse_object(self.read(name), self.folder / name)

    def _open(self, name: str) -> tuple[int, ManifestFile | None]:
        file = self._listed.get(name)
        if file is None and self.manifest is not None:
            raise EngineLoadError(f"{self.folder / MANIFEST}: does not list {name}")
        with _named(self.folder / name):
            return os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC), file

    def seal(self, names: Iterable[str] = ()) -> Seal:
        """Check every file that the manifest lists, and that it lists `names`, for an engine that will read paths.

        :raises EngineLoadError: as `open`.
        """
        stamps: dict[Path, Stamp] = {}
        if self.manifest is not None:
            self.manifest.require(names, self.folder / MANIFEST)
            for name, descriptor in self.open_all(self._listed).items():
                stamps[self.folder / name] = stamp_of(descriptor)
                os.close(descriptor)
            stamps[self.folder] = stamp_of(self.folder)
        return Seal(stamps)


@dataclass(frozen=True, slots=True)
class Seal:
    """Files as they were when they were checked, and the folder that they lie in."""

    stamps: dict[Path, Stamp]

    def require_unbroken(self) -> None:
        """Check that none was written or replaced since.

        :raises EngineLoadError: one was; the message names it.
        """
        for path, stamp in self.stamps.items():
            with _named(path):
                if stamp_of(path) != stamp:
                    raise EngineLoadError(f"{path}: changed while the engine loaded it")


def _check(descriptor: int, file: ManifestFile, path: Path) -> None:
    with _named(path):
        before = stamp_of(descriptor)
        size = os.fstat(descriptor).st_size
        compare(path, file, size)  # before a byte is hashed
        compare(path, file, size, sha256_of(descriptor))
        if stamp_of(descriptor) != before:
            raise EngineLoadError(f"{path}: changed while it was verified")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineLoadError(f"{path}: {error.strerror}") from error
