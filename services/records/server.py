"""`weir.records.v1`: who may ask, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import grpc
from weir.audit.v1 import audit_pb2
from weir.records.v1 import records_pb2, records_pb2_grpc

from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.registry.roles import require_role
from libs.rpc import peer_service
from libs.usage import Counts
from services.records import convert, metrics
from services.records.compare import Comparer
from services.records.projector import Projector
from services.records.queries import MAX_SUMS, Question
from services.records.store import Store, StoreAwayError

SERVICE = "weir.records.v1.RecordsService"
T = TypeVar("T")
_FOR_TENANTS = "gateway"
_CATCH_UP_SECONDS = 1.0
"""That a question waits for what the log had when it came."""
_MOST_WAIT = 600.0
_MOST_USERS = 10_000


class Questions:
    """What the store is asked."""

    def __init__(
        self,
        store: Store,
        threads: Executor,
        projector: Projector,
        *,
        users: Callable[[Sequence[int]], Awaitable[audit_pb2.UsersResponse]],
    ) -> None:
        """:param users: asks the audit service whom records name."""
        self._store = store
        self._threads = threads
        self._projector = projector
        self._users = users

    async def requests(self, request: records_pb2.ListRequestsRequest) -> records_pb2.ListRequestsResponse:
        """A page.

        :raises WeirError: INVALID_REQUEST, naming the field; DEPENDENCY_UNAVAILABLE, the database is away.
        """
        wanted = convert.wanted_of(request)
        await self._projector.caught_up(_CATCH_UP_SECONDS)
        with metrics.QUESTIONS.labels("ListRequests").time():
            return convert.page_told(await self._asked(lambda: self._store.page(wanted)))

    async def usage(self, request: records_pb2.UsageRequest) -> records_pb2.UsageResponse:
        """The sums.

        :raises WeirError: INVALID_REQUEST, naming the field; NOT_FOUND for days of which the sums are lost;
            DEPENDENCY_UNAVAILABLE, the database is away.
        """
        question = convert.question_of(request)
        await self._projector.caught_up(_CATCH_UP_SECONDS)
        with metrics.QUESTIONS.labels("Usage").time():
            found = await self._asked(lambda: self._store.sums(question))
        if question.since < found.since:
            first = convert.day_of(found.since)
            raise WeirError(Reason.NOT_FOUND, f"the sums of days before {first} are lost", limit="since")
        if len(found.rows) > MAX_SUMS:
            raise WeirError(
                Reason.INVALID_REQUEST, f"more than {MAX_SUMS} rows: ask for less time, or by less", limit="by"
            )
        rows = [(convert.values_told(question.by, values), counts) for values, counts in found.rows]
        if "user" in question.by:
            rows = await self._named(question, rows)
        return records_pb2.UsageResponse(rows=map(convert.row_told, sorted(rows, key=_first)), sequence=found.sequence)

    async def _named(
        self, question: Question, rows: Sequence[tuple[tuple[str, ...], Counts]]
    ) -> list[tuple[tuple[str, ...], Counts]]:
        """With users' names, which only the audit service can read, in place of what stands for them."""
        place = question.by.index("user")
        sealed = {values[place] for values, _ in rows} - {""}
        if len(sealed) > _MOST_USERS:
            raise WeirError(Reason.INVALID_REQUEST, f"more than {_MOST_USERS} users: ask for less time", limit="by")
        newest = await self._asked(lambda: self._store.newest_of(sealed))
        asked = list(newest.values())
        answer = await self._users(asked) if asked else audit_pb2.UsersResponse()
        erased = frozenset(answer.erased)
        told = dict(zip(asked, answer.users, strict=True))
        names = {key: "<erased>" if at in erased else told[at] for key, at in newest.items()}
        merged: dict[tuple[str, ...], Counts] = {}
        for values, counts in rows:
            named = (*values[:place], names.get(values[place], ""), *values[place + 1 :])
            merged.setdefault(named, Counts()).add(counts)
        return list(merged.items())

    async def _asked(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except StoreAwayError as error:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, "the database of records is away", limit="database", retry_after=1.0
            ) from error


class RecordsServicer(records_pb2_grpc.RecordsServiceServicer):
    """The RPCs; by role, or a gateway for one tenant."""

    def __init__(
        self, questions: Questions, projector: Projector, comparer: Comparer, *, roles: RegistryView, tls: bool
    ) -> None:
        """:param roles: knows who may ask."""
        self._questions = questions
        self._projector = projector
        self._comparer = comparer
        self._roles = roles
        self._tls = tls

    async def ListRequests(  # noqa: N802 - the name on the wire
        self, request: records_pb2.ListRequestsRequest, context: grpc.aio.ServicerContext
    ) -> records_pb2.ListRequestsResponse:
        """A page of requests.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for whoever has no role, or none for this tenant; others
            as `Questions.requests`.
        """
        self._check("records.ListRequests", request.tenant, context)
        return await self._questions.requests(request)

    async def Usage(  # noqa: N802 - the name on the wire
        self, request: records_pb2.UsageRequest, context: grpc.aio.ServicerContext
    ) -> records_pb2.UsageResponse:
        """Sums.

        :raises WeirError: likewise; others as `Questions.usage`.
        """
        self._check("records.Usage", request.tenant, context)
        return await self._questions.usage(request)

    async def Rebuild(  # noqa: N802 - the name on the wire
        self, request: records_pb2.RebuildRequest, context: grpc.aio.ServicerContext
    ) -> records_pb2.RebuildResponse:
        """Begins anew.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but owners; DEPENDENCY_UNAVAILABLE.
        """
        require_role("records.Rebuild", context, self._roles.snapshot, tls=self._tls)
        first, upto = await self._projector.rebuild()
        if request.HasField("patience"):
            await self._projector.rebuilt(upto, min(_MOST_WAIT, request.patience.ToNanoseconds() / 1e9))
        return records_pb2.RebuildResponse(first=first, sequence=self._projector.sequence, upto=upto)

    async def Compare(  # noqa: N802 - the name on the wire
        self, request: records_pb2.CompareRequest, context: grpc.aio.ServicerContext
    ) -> records_pb2.CompareResponse:
        """Compares the store with the log.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but auditors and owners; others as
            `Comparer.compare`.
        """
        require_role("records.Compare", context, self._roles.snapshot, tls=self._tls)
        await self._projector.caught_up(_CATCH_UP_SECONDS)
        return await self._comparer.compare()

    def _check(self, call: str, tenant: str, context: grpc.aio.ServicerContext) -> None:
        if self._tls and peer_service(context) == _FOR_TENANTS:
            allowed = bool(tenant)
        else:
            allowed = require_role(call, context, self._roles.snapshot, tls=self._tls).knows(tenant)
        if not allowed:
            raise WeirError(Reason.PERMISSION_DENIED, "only of the tenants that are yours", limit="tenant")


def _first(row: tuple[Any, ...]) -> Any:
    return row[0]
