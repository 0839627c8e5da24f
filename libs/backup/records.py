"""The sums of a store of records in SQLite: of what the audit log has truncated they are the only book."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

NAME = "records.sqlite"
"""The store's file, in the service's state directory."""
SUMS = "records.sums"
"""What a backup calls it."""
_LEFT_OUT = frozenset({"requests", "answers"})
"""Tables whose rows are in no backup: what the log still has, so that `weir records rebuild` makes it again; and what
idempotency keys stand for, sealed words that are gone after a day, which a backup is not. After a restore a key stands
for nothing."""


class SumsError(Exception):
    """They cannot be read; the message says why."""


def sums_in(folder: Path) -> bytes:
    """A database like the store's, with the rows of all tables but `_LEFT_OUT`; empty where there is no store. The
    store may be written meanwhile: it is as of one moment.

    :raises SumsError: it cannot be read.
    """
    path = folder / NAME
    if not path.is_file():
        return b""
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
            made.execute("ATTACH ? AS live", (str(path),))
            made.execute("BEGIN")
            found = made.execute(
                "SELECT type, name, sql FROM live.sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC"
            )
            for kind, name, sql in found.fetchall():
                made.execute(sql)
                if kind == "table" and name not in _LEFT_OUT:
                    made.execute(f'INSERT INTO main."{name}" SELECT * FROM live."{name}"')  # noqa: S608 - its own names
            made.execute("COMMIT")
            return made.serialize()
    except sqlite3.Error as error:
        raise SumsError(f"{path}: {error}") from error


def move_into(source: Path, folder: Path) -> None:
    """Puts what `sums_in` gave into a folder, where no store is: one that is there knows no less.

    :raises OSError: a file cannot be written.
    """
    if (source / SUMS).is_file() and not (folder / NAME).exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.move(source / SUMS, folder / NAME)
