"""Wrapped data keys in a folder of their own: not the log's, not etcd's, with rights of their own.

One SQLite file: many new keys are one synced write, an erasure is one transaction (whole or not at all, on a full disk
too), and what is deleted is overwritten. Blocking; one process at a time, any thread.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from libs.sealing.scope import KeyName, Owner, Scope

NAME = "keys.db"
_LOCK = "lock"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, subject TEXT NOT NULL, class TEXT NOT NULL, month TEXT NOT NULL,
    kek TEXT NOT NULL, wrapped BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS owners ON keys (tenant, subject, class, month);
CREATE INDEX IF NOT EXISTS keks ON keys (kek);
CREATE TABLE IF NOT EXISTS tombstones (number INTEGER, record BLOB, PRIMARY KEY (number, record)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL DEFAULT 0, kek TEXT NOT NULL DEFAULT '',
    wrapped BLOB NOT NULL DEFAULT x'') WITHOUT ROWID;
"""
_KEY = "id, tenant, subject, class, month, kek, wrapped"


class VaultError(Exception):
    """The vault cannot be read or written, or is none; the message says why."""


class WrappedKey(NamedTuple):
    """A data key as it lies in the vault."""

    id: str
    owner: Owner
    kek: str
    """What wraps it: a key-encryption key or, of a subject, its tenant's data key of that class and month."""
    wrapped: bytes


class Vault:
    """The vault in a folder."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        """Opens it, or makes an empty one where there is none, and keeps other processes out.

        :param create: there may be none.
        :raises VaultError: there is none; another process has it, or it is damaged or cannot be used.
        """
        self._path = folder / NAME
        self._guard = threading.RLock()
        self._lock = -1
        if not create and not self._path.is_file():
            raise VaultError(f"{self._path} is missing, and there are records that its keys seal: put it back")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except BlockingIOError as error:
            self._unlock()
            raise VaultError(f"another process has the keys in {folder}") from error
        except OSError as error:
            self._unlock()
            raise VaultError(f"{folder} cannot be used: {error.strerror}") from error
        try:
            with self._failures():
                self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
                for pragma in ("journal_mode=DELETE", "synchronous=EXTRA", "secure_delete=ON", "quick_check"):
                    found = self._database.execute(f"PRAGMA {pragma}").fetchone()
                if found != ("ok",):
                    raise VaultError(f"{self._path} is damaged: {found[0]}")
                self._database.executescript(_SCHEMA)
        except VaultError:
            self._unlock()
            raise

    @property
    def empty(self) -> bool:
        """Nothing was ever wrapped, as far as the vault knows."""
        return self._one("SELECT (SELECT count(*) FROM keys) + (SELECT count(*) FROM state)") == 0

    @property
    def newest_month(self) -> str:
        """Of all keys; empty without any."""
        return str(self._one("SELECT coalesce(max(month), '') FROM keys"))

    @property
    def serial(self) -> int:
        """The last number that a key has had."""
        return self._number("serial")

    @property
    def applied(self) -> int:
        """Tombstones up to this record of the log were applied."""
        return self._number("applied")

    @property
    def clear_upto(self) -> int:
        """The log's records up to this one were written before there was a vault."""
        return self._number("clear_upto")

    def find(self, owner: Owner) -> WrappedKey | None:
        """The key that seals for an owner: the newest."""
        where = "WHERE (tenant, subject, class, month) = (?, ?, ?, ?) ORDER BY id DESC LIMIT 1"
        found = self._rows(f"SELECT {_KEY} FROM keys {where}", owner)  # noqa: S608
        return found[0] if found else None

    def get(self, key: str) -> WrappedKey | None:
        """A key by its id."""
        found = self._rows(f"SELECT {_KEY} FROM keys WHERE id = ?", (key,))  # noqa: S608
        return found[0] if found else None

    def add(self, keys: Sequence[WrappedKey]) -> None:
        """Keeps new keys, all of them or none; on disk when this returns.

        :raises VaultError: they are not.
        """
        rows = [(key.id, *key.owner, key.kek, key.wrapped) for key in keys]
        with self._transaction() as database:
            database.executemany(f"INSERT INTO keys ({_KEY}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)  # noqa: S608
            self._raise_to(database, "serial", max(int(key.id[:10], 16) for key in keys))

    def names(self) -> frozenset[str]:
        """Ids of all keys."""
        with self._failures():
            return frozenset(row[0] for row in self._database.execute("SELECT id FROM keys"))

    def covered(self, scope: Scope) -> list[KeyName]:
        """The keys that a scope covers. One of a subject that has no list of keys yet means all that it has."""
        where = [("tenant", scope.tenant), ("subject", scope.subject), ("class", scope.data_class)]
        given = [(column, value) for column, value in where if value]
        wanted = " AND ".join([f"{column} = ?" for column, _ in given] or ["1"])
        with self._failures():
            rows = self._database.execute(
                f"SELECT id, tenant, class, month FROM keys WHERE {wanted}",  # noqa: S608
                [value for _, value in given],
            ).fetchall()
        found = [KeyName(*row) for row in rows]
        if scope.subject and not scope.keys:
            return [key for key in found if not scope.before or key.month < scope.before]
        return [key for key in found if scope.covers(key)]

    def bury(self, number: int, record: bytes, scope: Scope) -> int:
        """Destroys what a tombstone covers and keeps the tombstone, in one step; says how many keys that were.

        :raises VaultError: nothing of it was done.
        """
        doomed = sorted({key.id for key in self.covered(scope)})
        with self._transaction() as database:
            database.executemany("DELETE FROM keys WHERE id = ?", [(key,) for key in doomed])
            database.execute("INSERT OR IGNORE INTO tombstones VALUES (?, ?)", (number, record))
            # A vault that was restored has numbered fewer keys than the tombstone knows of.
            self._raise_to(database, "serial", scope.upto)
        return len(doomed)

    def tombstones(self) -> list[tuple[int, bytes]]:
        """(number in the log, record) of all that were applied here."""
        with self._failures():
            return self._database.execute("SELECT number, record FROM tombstones ORDER BY number").fetchall()

    def note(self, name: str, number: int) -> None:
        """Keeps a number, "applied" or "clear_upto"; a log that was restored may have fewer records than before."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO state (name, number) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET number = excluded.number",
                (name, number),
            )

    def secret(self, name: str) -> tuple[str, bytes] | None:
        """(key-encryption key, wrapped) of a secret of the vault's own."""
        with self._failures():
            found = self._database.execute("SELECT kek, wrapped FROM state WHERE name = ?", (name,)).fetchone()
        return None if found is None else (str(found[0]), bytes(found[1]))

    def keep_secret(self, name: str, kek: str, wrapped: bytes) -> None:
        """Sets one."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO state VALUES (?, 0, ?, ?)", (name, kek, wrapped))

    def wrapped_otherwise(self, primary: str) -> list[WrappedKey]:
        """Keys of tenants that another key-encryption key than `primary` wraps."""
        return self._rows(f"SELECT {_KEY} FROM keys WHERE subject = '' AND kek != ?", (primary,))  # noqa: S608

    def rewrap(self, keys: Iterable[WrappedKey]) -> None:
        """Puts keys wrapped anew in the place of the same ones; all of them or none."""
        with self._transaction() as database:
            database.executemany(
                "UPDATE keys SET kek = ?, wrapped = ? WHERE id = ?", [(key.kek, key.wrapped, key.id) for key in keys]
            )

    def close(self) -> None:
        """Lets another process have it."""
        self._database.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _number(self, name: str) -> int:
        return int(self._one("SELECT coalesce(max(number), 0) FROM state WHERE name = ?", name))

    @staticmethod
    def _raise_to(database: sqlite3.Connection, name: str, number: int) -> None:
        database.execute(
            "INSERT INTO state (name, number) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET number = max(number, excluded.number)",
            (name, number),
        )

    def _one(self, query: str, *values: str) -> int | str:
        with self._failures():
            found: int | str = self._database.execute(query, values).fetchone()[0]
            return found

    def _rows(self, query: str, values: Sequence[str]) -> list[WrappedKey]:
        with self._failures():
            found = self._database.execute(query, values).fetchall()
        return [WrappedKey(row[0], Owner(*row[1:5]), row[5], row[6]) for row in found]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._failures():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                # SQLite rolls back by itself when the disk is full.
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            with self._guard:
                yield
        except sqlite3.Error as error:
            raise VaultError(f"{self._path}: {error}") from error


def saved(path: Path) -> bytes:
    """The bytes of a vault's file that may be in use, as of one moment.

    :raises VaultError: there is none, or it cannot be read.
    """
    with _reading(path) as database:
        return database.serialize()


def kept(path: Path) -> tuple[frozenset[str], list[tuple[int, bytes]]]:
    """(ids of its keys, tombstones with their numbers) of a vault's file that may be in use.

    :raises VaultError: there is none, or it cannot be read.
    """
    with _reading(path) as database:
        names = frozenset(row[0] for row in database.execute("SELECT id FROM keys"))
        return names, database.execute("SELECT number, record FROM tombstones ORDER BY number").fetchall()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as database:
            database.execute("BEGIN")
            database.execute("SELECT count(*) FROM keys").fetchone()
            yield database
    except sqlite3.Error as error:
        raise VaultError(f"{path}: {error}") from error
