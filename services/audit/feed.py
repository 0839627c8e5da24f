"""What the store of records reads of the log, in its order, and what it has for good."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from weir.audit.v1 import audit_pb2

from libs.auditlog import Entry, LineError
from libs.auditlog.chain import decode_entry
from libs.auditlog.layout import lines_of, segments
from libs.errors import Reason, WeirError
from services.audit.sealing import Opened

_PIECE = 1 << 20
"""Bytes of an answer, and more by what a line is cut off."""
_MOST_WAIT = 10.0
_MOST_USERS = 10_000
_PLACES = 8
"""Readers whose place in a file is remembered."""


class _Place(NamedTuple):
    segment: int
    offset: int
    """Of the byte behind a record in its segment."""


class Feed:
    """Reads what is committed."""

    def __init__(
        self,
        directory: Path,
        *,
        count: Callable[[], int],
        compared: Callable[[], bool],
        grown: Callable[[int, float], Awaitable[None]],
        opened: Callable[[Entry], Opened],
    ) -> None:
        """:param directory: the log's.
        :param count: says how many records are committed.
        :param compared: whether the log was opened, and compared with its anchors.
        :param grown: waits until there are more than so many, or for so many seconds.
        :param opened: reads a sealed record.
        """
        self._directory = directory
        self._count = count
        self._compared = compared
        self._grown = grown
        self._opened = opened
        self._places: OrderedDict[int, _Place] = OrderedDict()
        self.kept = 0
        """The last record that the store of records has for good, as far as it has said since this process began."""

    async def read(self, request: audit_pb2.ReadRequest) -> audit_pb2.ReadResponse:
        """The next lines.

        :raises WeirError: CONFLICT for records that the log does not have; DEPENDENCY_UNAVAILABLE when it cannot be
            read, or is not open yet.
        """
        if not self._compared():
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log is not open yet", retry_after=1.0)
        if request.after > (count := self._count()):
            raise WeirError(Reason.CONFLICT, f"the log has {count} records, not {request.after}", limit="after")
        if not request.again:
            self.kept = request.after
        if request.after == count:
            await self._grown(count, min(_MOST_WAIT, request.wait.ToNanoseconds() / 1e9))
        try:
            return await asyncio.to_thread(self._lines, request.after, self._count())
        except OSError as error:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot be read") from error

    async def users(self, request: audit_pb2.UsersRequest) -> audit_pb2.UsersResponse:
        """Whom records name.

        :raises WeirError: INVALID_REQUEST for too many at once; DEPENDENCY_UNAVAILABLE when the log cannot be read.
        """
        if len(request.sequences) > _MOST_USERS:
            raise WeirError(Reason.INVALID_REQUEST, f"at most {_MOST_USERS} records at once", limit="sequences")
        try:
            return await asyncio.to_thread(self._users, list(request.sequences))
        except (OSError, LineError) as error:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot be read") from error

    def _lines(self, after: int, upto: int) -> audit_pb2.ReadResponse:
        found = segments(self._directory)
        base = found[0][0] - 1 if found else 0
        answer = audit_pb2.ReadResponse(count=upto, base=base)
        at = max(after, base)
        if at >= upto:
            return answer
        segment, path = next(each for each in reversed(found) if each[0] <= at + 1)
        place = self._places.get(at)
        offset = place.offset if place and place.segment == segment else _end_of(path, at + 1 - segment)
        with path.open("rb") as file:
            file.seek(offset)
            lines = (file.read(_PIECE) + file.readline()).split(b"\n")[:-1][: upto - at]
        answer.lines, answer.segment = b"".join(line + b"\n" for line in lines), segment
        self._places[at + len(lines)] = _Place(segment, offset + len(answer.lines))
        while len(self._places) > _PLACES:
            self._places.popitem(last=False)
        return answer

    def _users(self, sequences: list[int]) -> audit_pb2.UsersResponse:
        names: dict[int, str] = {}
        answer = audit_pb2.UsersResponse()
        found, upto = segments(self._directory), self._count()
        for (first, path), following in zip(found, [*found[1:], (upto + 1, None)], strict=True):
            there = sorted(each for each in {*sequences} if first <= each < min(following[0], upto + 1))
            lines = lines_of(path)[0] if there else []
            for sequence in there:
                opened = self._opened(decode_entry(lines[sequence - first]))
                if opened.erased_by:
                    answer.erased.append(sequence)
                names[sequence] = (opened.body or {}).get("request", {}).get("user", "")
        answer.users.extend(names.get(each, "") for each in sequences)
        return answer


def _end_of(path: Path, records: int) -> int:
    """The byte behind the first so many lines of a file."""
    with path.open("rb") as file:
        return sum(len(file.readline()) for _ in range(records))
