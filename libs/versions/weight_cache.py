"""The local cache of model files: content-addressed, verified, bounded in bytes, shared by the processes of a machine.

    lock                 held for moments, while the contents change
    fill/<xx>            held while a model is brought in, so that two processes do not copy the same one
    objects/<sha256>     the files
    stamps/<sha256>      length, time and inode of the object when its digest was last computed
    records/<key>        the manifests that objects are kept for; a record's time is the model's last use
    leases/<key>         locked by everyone who uses the model
    models/<key>/        the model's files under their own names: links to objects
    staging/<bytes>-…/   files on their way in; the name reserves their room

Every step leaves the cache usable when the process is killed after it: objects appear by rename when they are complete,
verified and on disk; what a killed process left in staging is removed by the next one that needs room. Locks are
`flock`s, which end with their process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from libs.clock import Clock, SystemClock
from libs.versions.cache_files import (
    bring,
    checked,
    fsync_folder,
    held_alive,
    is_held,
    link_over,
    locked,
    stamp_of,
    write_atomically,
)
from libs.versions.errors import LoadError
from libs.versions.manifest import HASH_THREADS, MANIFEST, Manifest, ManifestFile, parse_manifest, sha256_file

Bring = Callable[[ManifestFile, Path], None]
"""Writes a model's file to a path that does not exist yet. It may raise LoadError, or whatever else tells the
caller of `WeightCache.fetch` why it could not."""


class CacheUnavailableError(Exception):
    """The cache cannot hold the model: too small, full of models in use, or its disk failed. The source may be used
    directly."""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """What this process's cache object did since it was made. Files, but for `evictions` (models)."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    corrupted: int = 0


class WeightCache:
    """See the module docstring. Thread-safe; several processes may use one `root`."""

    def __init__(self, root: Path, max_bytes: int, *, clock: Clock | None = None, hard_links: bool = True) -> None:
        """Use (and make, if need be) the cache in `root`, of at most `max_bytes`.

        Files come in as copy-on-write clones where the file system can, else as hard links, else as copies.
        `hard_links=False` leaves the links out: for sources that are overwritten in place, which would damage the
        cache's file as well (that is noticed, and the file fetched again).

        :raises CacheUnavailableError: `root` cannot be used.
        """
        self._root = root
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._hard_links = hard_links
        self._counters = CacheCounters()
        self._leases: dict[Path, list[int]] = {}
        self._mutex = threading.Lock()
        try:
            for name in ("fill", "objects", "stamps", "records", "leases", "models", "staging"):
                (root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheUnavailableError(f"{root}: {error.strerror}") from error

    # ---- use ------------------------------------------------------------------------------------------------------

    def fetch(self, source: Path | Bring, manifest: Manifest, *, full: bool = False) -> Path:
        """A folder with exactly the files of `manifest`, each verified; missing ones come from the folder `source`,
        which need not exist otherwise, or are brought by it. The model is not evicted before `release` or the end of
        the process.

        A file is trusted when it has not changed since its digest was last computed; `full` computes all again.

        :raises LoadError: a file is neither here nor, with the right digest, in `source`; the message names it.
        :raises CacheUnavailableError: see there.
        """
        if manifest.total_bytes > self._max_bytes:
            raise CacheUnavailableError(
                f"{manifest.model} has {manifest.total_bytes} bytes, the cache at most {self._max_bytes}"
            )
        folder = self._root / "models" / manifest.key
        try:
            # The first digits give at most 256 such files, so that none ever has to be removed.
            with locked(self._root / "fill" / manifest.key[:2]):
                self._claim(folder, manifest)
                try:
                    self._complete(source, folder, manifest, full)
                except BaseException:
                    self.release(folder)
                    raise
        except OSError as error:
            raise CacheUnavailableError(f"{error.filename or self._root}: {error.strerror}") from error
        return folder

    def release(self, folder: Path) -> None:
        """Give back a folder that `fetch` returned, once per `fetch`. Others are ignored."""
        with self._mutex:
            held = self._leases.get(folder, [])
            if held:
                os.close(held.pop())
            if not held:
                self._leases.pop(folder, None)

    def close(self) -> None:
        """Give back every folder. Idempotent."""
        with self._mutex:
            for held in self._leases.values():
                for descriptor in held:
                    os.close(descriptor)
            self._leases.clear()

    def knows(self, descriptor: int, file: ManifestFile) -> bool:
        """Whether an open file is the object of that digest, not written since the digest was last computed."""
        return self._stamp(file.sha256) == stamp_of(descriptor)

    def find(self, model: str) -> Manifest | None:
        """The manifest under which `model` ("name@version") was last used here, for when its source is away; None when
        a file of it is gone."""
        with self._changing():
            known = [manifest for manifest, _ in self._records() if manifest.model == model]
            whole = [each for each in known if all(self._object(file.sha256).exists() for file in each.files)]
        return whole[-1] if whole else None

    @property
    def counters(self) -> CacheCounters:
        """What happened so far, in this process."""
        return self._counters

    @property
    def max_bytes(self) -> int:
        """The bound."""
        return self._max_bytes

    def used_bytes(self) -> int:
        """Bytes of all objects and of what is on its way in."""
        with self._changing():
            self._drop_abandoned()
            return self._used()

    # ---- bringing a model in ----------------------------------------------------------------------------------------

    def _claim(self, folder: Path, manifest: Manifest) -> None:
        """Lease the model and record which objects it needs: from here on nobody evicts them."""
        with self._changing():
            lease = os.open(self._root / "leases" / manifest.key, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            fcntl.flock(lease, fcntl.LOCK_SH)  # at once: an exclusive lock is only ever held inside _changing
            with self._mutex:
                self._leases.setdefault(folder, []).append(lease)
            record = self._root / "records" / manifest.key
            if not record.exists():
                self._write(record, manifest.content)
            self._touch(record)

    def _complete(self, source: Path | Bring, folder: Path, manifest: Manifest, full: bool) -> None:
        needed = {file.sha256: file for file in manifest.files}
        with ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="weight-cache") as pool:
            sound = pool.map(lambda file: self._sound(file, full), needed.values())
            missing = [file for file, good in zip(needed.values(), sound, strict=True) if not good]
            self._count(hits=len(needed) - len(missing), misses=len(missing))
            if missing:
                self._bring(source, missing, pool)
        self._publish(folder, manifest)

    def _bring(self, source: Path | Bring, missing: list[ManifestFile], pool: ThreadPoolExecutor) -> None:
        def bring_one(file: ManifestFile) -> bytes:
            target = staging / file.sha256
            if isinstance(source, Path):
                return bring(source / file.path, target, file, hard_links=self._hard_links)
            source(file, target)
            return checked(target, file)

        with self._reserved(sum(file.size for file in missing)) as staging:
            coming = [pool.submit(bring_one, file) for file in missing]
            wait(coming)  # all of them, before an error of one removes the folder under the others
            stamps = [each.result() for each in coming]
            with self._changing():
                for file, stamp in zip(missing, stamps, strict=True):
                    os.replace(staging / file.sha256, self._object(file.sha256))
                    self._write(self._root / "stamps" / file.sha256, stamp)
                fsync_folder(self._root / "objects")
                shutil.rmtree(staging)  # now, or its room would count twice

    def _sound(self, file: ManifestFile, full: bool) -> bool:
        """Whether the object is there and right; a wrong one is dropped."""
        path = self._object(file.sha256)
        try:
            before = stamp_of(path)
        except FileNotFoundError:
            return False
        if self._stamp(file.sha256) == before and not full:
            return True
        try:
            right = sha256_file(path) == file.sha256 and path.stat().st_size == file.size
        except LoadError:
            right = False  # unreadable: as good as wrong
        with self._changing():
            # Another process may have replaced it meanwhile; then its word counts.
            if not path.exists() or stamp_of(path) != before:
                return path.exists() and self._stamp(file.sha256) == stamp_of(path)
            if right:
                self._write(self._root / "stamps" / file.sha256, before)
            else:
                self._drop(file.sha256)
                self._count(corrupted=1)
        return right

    def _publish(self, folder: Path, manifest: Manifest) -> None:
        """Make the model's folder hold links to its objects and nothing else."""
        with self._changing():
            folder.mkdir(exist_ok=True)
            wanted = {folder / file.path: file.sha256 for file in manifest.files}
            kept = {folder / MANIFEST, *wanted}  # whoever loads from the folder now must find it whole at every moment
            for path in sorted(folder.rglob("*"), reverse=True):
                if path not in kept and not (path.is_dir() and any(path in each.parents for each in wanted)):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for path, digest in wanted.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                link_over(self._object(digest), path, self._root / "staging")
            self._write(folder / MANIFEST, manifest.content)

    # ---- room -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _reserved(self, size: int) -> Iterator[Path]:
        """A staging folder of ours that counts as `size` bytes until it is left."""
        with self._changing():
            self._make_room(size)
            staging = Path(tempfile.mkdtemp(prefix=f"{size}-", dir=self._root / "staging"))
            alive = held_alive(staging / "alive")
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            os.close(alive)

    def _make_room(self, size: int) -> None:
        """Evict the models least recently used until `size` more bytes fit."""
        self._drop_abandoned()
        self._drop_unclaimed()
        for manifest, record in self._records():
            if self._used() + size <= self._max_bytes:
                return
            self._evict(manifest, record)
        if self._used() + size > self._max_bytes:
            raise CacheUnavailableError(f"{size} bytes do not fit beside the models in use")

    def _evict(self, manifest: Manifest, record: Path) -> None:
        lease = self._root / "leases" / manifest.key
        if is_held(lease):
            return
        shutil.rmtree(self._root / "models" / manifest.key, ignore_errors=True)
        record.unlink()
        lease.unlink(missing_ok=True)
        self._drop_unclaimed()
        self._count(evictions=1)

    def _drop_abandoned(self) -> None:
        """Remove what killed processes left in staging."""
        for left in (self._root / "staging").iterdir():
            # Single files are written while the cache is locked, as it is now: whoever left one here was killed.
            if not left.is_dir():
                left.unlink()
            elif not is_held(left / "alive"):
                shutil.rmtree(left)

    def _drop_unclaimed(self) -> None:
        claimed = {file.sha256 for manifest, _ in self._records() for file in manifest.files}
        for path in (*(self._root / "objects").iterdir(), *(self._root / "stamps").iterdir()):
            if path.name not in claimed:
                path.unlink(missing_ok=True)

    def _records(self) -> list[tuple[Manifest, Path]]:
        """Every model known here with its record, the one least recently used first. A record that is not what its
        name says is removed."""
        found = []
        for path in (self._root / "records").iterdir():
            try:
                manifest = parse_manifest(path.read_bytes(), path)
                intact = manifest.key == path.name
            except LoadError:
                intact = False
            if intact:
                found.append((path.stat().st_mtime_ns, path.name, manifest, path))
            else:
                path.unlink()
        return [(manifest, path) for _, _, manifest, path in sorted(found, key=lambda each: each[:2])]

    def _used(self) -> int:
        objects = sum(path.stat().st_size for path in (self._root / "objects").iterdir())
        staged = (path.name.partition("-")[0] for path in (self._root / "staging").iterdir())
        return objects + sum(int(size) for size in staged if size.isdecimal())

    def _drop(self, digest: str) -> None:
        self._object(digest).unlink(missing_ok=True)
        (self._root / "stamps" / digest).unlink(missing_ok=True)

    # ---- small things -----------------------------------------------------------------------------------------------

    def _object(self, digest: str) -> Path:
        return self._root / "objects" / digest

    def _stamp(self, digest: str) -> bytes:
        try:
            return (self._root / "stamps" / digest).read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, path: Path, content: bytes) -> None:
        write_atomically(path, content, self._root / "staging")

    def _touch(self, record: Path) -> None:
        now = int(self._clock.time() * 1e9)
        os.utime(record, ns=(now, now))

    def _changing(self) -> AbstractContextManager[None]:
        return locked(self._root / "lock")

    def _count(self, **more: int) -> None:
        with self._mutex:
            now = self._counters
            self._counters = replace(now, **{name: getattr(now, name) + count for name, count in more.items()})
