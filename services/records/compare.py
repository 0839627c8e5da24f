"""Holds the store against the log: the log is projected again, apart, and the sums are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from weir.audit.v1 import audit_pb2
from weir.records.v1 import records_pb2

from libs.auditlog import LineError
from libs.errors import Reason, WeirError
from libs.usage import Counts
from libs.usage.totals import Key
from services.records.store import ForkError, Position, Store, StoreAwayError

_MOST = 1_000
"""Differences that are named."""


class Comparer:
    """One comparison at a time."""

    def __init__(
        self,
        store: Store,
        read: Callable[[audit_pb2.ReadRequest], Awaitable[audit_pb2.ReadResponse]],
        *,
        threads: Executor,
        folder: str | None,
    ) -> None:
        """:param folder: has room for as much as the store takes; None: wherever temporary files go."""
        self._store = store
        self._read = read
        self._threads = threads
        self._folder = folder
        self._one = asyncio.Lock()

    async def compare(self) -> records_pb2.CompareResponse:
        """The comparison, of the records that the store has and the log still has.

        :raises WeirError: DEPENDENCY_UNAVAILABLE, the log or the database is away; CONFLICT, the log is another one.
        """
        async with self._one:
            with TemporaryDirectory(prefix="compare-", dir=self._folder) as folder:
                again = Store(f"sqlite:///{Path(folder) / 'again.sqlite'}", statement_seconds=60.0)
                try:
                    return await self._compared(again)
                except StoreAwayError as error:
                    raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the database is away", limit="database") from error
                except (LineError, ForkError, msgspec.DecodeError) as error:
                    raise WeirError(Reason.CONFLICT, f"the log cannot be read again: {error}") from error
                finally:
                    again.close()

    async def _compared(self, again: Store) -> records_pb2.CompareResponse:
        loop = asyncio.get_running_loop()
        at, first = await loop.run_in_executor(self._threads, again.open), 0
        live, mine = await loop.run_in_executor(self._threads, self._store.everything)
        while at.sequence < live.sequence:
            answer = await self._read(audit_pb2.ReadRequest(after=at.sequence, again=True))
            lines = [line + b"\n" for line in answer.lines.split(b"\n")[:-1]]
            first = first or answer.base + 1
            lines = lines[: live.sequence - max(at.sequence, answer.base)]
            if not lines:
                raise WeirError(Reason.CONFLICT, f"the log does not reach record {live.sequence}")
            at = await loop.run_in_executor(self._threads, _project, again, at, lines, answer)
        if at.hash != live.hash:
            raise WeirError(Reason.CONFLICT, f"record {live.sequence} of the store is not the log's")
        _, theirs = await loop.run_in_executor(self._threads, again.everything)
        mine = {key: counts for key, counts in mine.items() if key[1] >= first}
        return records_pb2.CompareResponse(differences=_differences(mine, theirs), first=first, last=live.sequence)


def _project(store: Store, at: Position, lines: list[bytes], answer: audit_pb2.ReadResponse) -> Position:
    return store.project(at, lines, segment=answer.segment, base=answer.base)


def _differences(
    mine: dict[tuple[Key, int], Counts], theirs: dict[tuple[Key, int], Counts]
) -> list[records_pb2.SumDifference]:
    nothing = Counts()
    found: list[records_pb2.SumDifference] = []
    for key in sorted(mine.keys() | theirs.keys()):
        stored, logged = mine.get(key, nothing), theirs.get(key, nothing)
        if stored != logged and len(found) < _MOST:
            told = ", ".join(
                f"{name} {getattr(stored, name)} in the store, {getattr(logged, name)} in the log"
                for name in Counts.__struct_fields__
                if getattr(stored, name) != getattr(logged, name)
            )
            found.append(records_pb2.SumDifference(subject=" ".join(map(str, key[0])), detail=told))
    return found
