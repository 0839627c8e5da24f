"""An audit log that is being written, saved at its newest checkpoint with the keys of its payloads; and put back, where
what was erased since stays erased."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from libs.auditlog.base import BASE_NAME, decode_base
from libs.auditlog.chain import decode_checkpoint
from libs.auditlog.keys import PUBLIC_NAME, fingerprint, load_verifier
from libs.auditlog.layout import CHECKPOINTS_NAME, lines_of, segments
from libs.auditlog.tail import tombstones_after
from libs.auditlog.tombstones import TombstoneError, read
from libs.auditlog.verify import verify_directory
from libs.sealing.vault import NAME, Vault, VaultError, kept, saved

LOG, CHECKPOINTS, KEYS, SEALING = "log", "checkpoints", "keys", "sealing"
"""The folders of an audit log, as the service makes them in its state directory; `SEALING` may lie elsewhere."""
VAULT = f"{SEALING}/{NAME}"
"""The wrapped keys, as a backup calls them."""


class AuditLogError(Exception):
    """There is no log to save, or no room for one to be put back; the message says why."""


class SavedLog:
    """What is in a log's folder now: exactly the records that its newest checkpoint vouches for, and nothing of what is
    being written. So it verifies as it is, and a service starts with it, however long the copying takes."""

    def __init__(self, folder: Path, sealing: Path | None = None) -> None:
        """:param sealing: where its keys lie, if not in `folder`.

        :raises AuditLogError: there is no checkpoint yet.

        :raises OSError, KeyFileError, LineError: a file cannot be read, or does not hold.
        """
        self._folder = folder
        self._vault = (sealing or folder / SEALING) / NAME
        public = folder / KEYS / PUBLIC_NAME
        path = folder / CHECKPOINTS / CHECKPOINTS_NAME
        # Before the records: they are on the disk before a checkpoint counts them.
        lines = lines_of(path)[0] if path.is_file() else []
        self._base = _content(folder / CHECKPOINTS / BASE_NAME)
        if not lines:
            raise AuditLogError(f"{path} holds no checkpoint: there is no audit log to save")
        self._checkpoints = b"".join(lines)
        self._begins = decode_base(self._base, load_verifier(public)).count if self._base else 0
        self.fingerprint = fingerprint(public)
        """SHA-256 of the public key."""
        self.records = decode_checkpoint(lines[-1], load_verifier(public)).count
        """How many it has."""

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Paths and contents; one segment in memory at a time. Segments that are closed are the same bytes in every
        backup.

        :raises AuditLogError: records that were checkpointed are missing, or the keys cannot be read.
        :raises OSError: a file cannot be read.
        """
        yield f"{KEYS}/{PUBLIC_NAME}", (self._folder / KEYS / PUBLIC_NAME).read_bytes()
        yield f"{CHECKPOINTS}/{CHECKPOINTS_NAME}", self._checkpoints
        if self._base:
            yield f"{CHECKPOINTS}/{BASE_NAME}", self._base
        found = [each for each in segments(self._folder / LOG) if self._begins < each[0] <= self.records]
        last = self._begins
        for (first, path), following in itertools.zip_longest(found, found[1:]):
            end = following[0] - 1 if following else self.records
            lines = lines_of(path)[0][: end - first + 1]
            if first != last + 1 or len(lines) != end - first + 1:
                raise AuditLogError(f"{path} does not hold records {last + 1} to {end}: see `weir audit verify`")
            yield f"{LOG}/{path.name}", b"".join(lines)
            last = end
        if last != self.records:
            raise AuditLogError(f"records {last + 1} to {self.records} were acknowledged and are missing")
        # After the records: a record's key is on the disk before it. One that is erased meanwhile leaves its tombstone.
        if self._vault.is_file():
            try:
                yield VAULT, saved(self._vault)
            except VaultError as error:
                raise AuditLogError(str(error)) from error


def check_room(folder: Path) -> None:
    """Whether a log may be put into a folder: no other may be there.

    :raises AuditLogError: it may not.
    :raises OSError: it cannot be read.
    """
    for name in (LOG, CHECKPOINTS):
        path = folder / name
        if path.exists() and any(path.iterdir()):
            raise AuditLogError(f"{path} is not empty: move it away, as evidence, before a log is put there")


def check(folder: Path, records: int) -> None:
    """Verifies a saved log by what lies in its folder alone.

    :raises AuditLogError: it does not hold, or has another number of records.
    :raises OSError, KeyFileError: a file cannot be read.
    """
    found = verify_directory(folder / LOG, checkpoints=folder / CHECKPOINTS, public_key=folder / KEYS / PUBLIC_NAME)
    if not found.ok or found.records != records:
        raise AuditLogError(f"the saved log does not hold: {'; '.join(found.faults) or f'{found.records} records'}")


def check_key(source: Path, folder: Path) -> None:
    """Whether the key in a folder, if one is there, is the one that signed a saved log.

    :raises AuditLogError: it is another.
    :raises OSError, KeyFileError: one cannot be read.
    """
    own, saved = folder / KEYS / PUBLIC_NAME, source / KEYS / PUBLIC_NAME
    if own.exists() and fingerprint(own) != fingerprint(saved):
        raise AuditLogError(f"{own} is another key than the one that signed the saved log")


def forget_again(source: Path, since: Iterable[tuple[int, bytes]] = ()) -> int:
    """Destroys, in a saved log's keys, what its own tombstones cover and those of `since`, (number, record) of a later
    backup: a backup is no way back to what was erased. Says how many keys that were. Tombstones that another key signed
    are none of this log's.

    :raises AuditLogError: the keys cannot be written.
    :raises OSError, KeyFileError: a file cannot be read.
    """
    if not (source / VAULT).is_file():
        return 0
    verify, gone = load_verifier(source / KEYS / PUBLIC_NAME), 0
    try:
        vault = Vault(source / SEALING)
        try:
            own = tombstones_after(source / LOG, after=0, upto=10**18)
            for number, record in itertools.chain(own, vault.tombstones(), since):
                try:
                    grave = read(number, record, verify)
                except TombstoneError:
                    continue
                gone += vault.bury(number, record, grave.scope) if grave else 0
        finally:
            vault.close()
    except VaultError as error:
        raise AuditLogError(str(error)) from error
    return gone


def tombstones_in(vault: Path) -> list[tuple[int, bytes]]:
    """(number, record) of what a saved vault knows to be erased.

    :raises AuditLogError: it cannot be read.
    """
    try:
        return kept(vault)[1]
    except VaultError as error:
        raise AuditLogError(str(error)) from error


def move_into(source: Path, folder: Path, sealing: Path | None = None) -> None:
    """Puts a log where `check_room` found room for it and `check_key` no other key. The log last: it is there whole, or
    there is none. Keys that are there already stay: they are no older than any backup's, and know what was erased.

    :param sealing: where its keys belong, if not in `folder`.
    :raises OSError: a file cannot be written.
    """
    (folder / KEYS).mkdir(parents=True, exist_ok=True, mode=0o700)
    (source / KEYS / PUBLIC_NAME).replace(folder / KEYS / PUBLIC_NAME)
    target = (sealing or folder / SEALING) / NAME
    if (source / VAULT).is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.move(source / VAULT, target)
    for name in (CHECKPOINTS, LOG):
        (source / name).replace(folder / name)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
