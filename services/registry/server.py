"""The servicer: who calls, what they want, what came of it. Decisions are in the plans and in `policy`."""

# ruff: noqa: N802 - methods are named as in the proto

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs import apikeys
from libs.apikeys.principals import principals_of
from libs.changes import Change, Committed, M, Writer, nothing
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, RegistryView, Store, keys
from libs.rpc import get_metadata, peer_service, peer_spiffe
from libs.telemetry import get_logger
from services.registry import changes, convert, metrics, restore, transfer
from services.registry.config import Settings
from services.registry.consistency import namespaces_of
from services.registry.history import History
from services.registry.messages import require
from services.registry.policy.access import (
    ADMIN_SCOPE,
    Caller,
    Grant,
    Refused,
    authorize,
    binding_of,
    check_namespaces,
    parse_scopes,
)
from services.registry.policy.differences import backwards
from services.registry.policy.faults import Fault, check_text
from services.registry.policy.rollouts import MAX_REASON
from services.registry.reads import READS, Read
from services.registry.rpcs import CHANGES, Call, ChangeRpc

log = get_logger(__name__)
SERVICE = "weir.registry.v1.RegistryService"
_ATTEMPTS = 10
"""At going back, while others change something between the reading of the history and the writing."""
_CATCH_UP_SECONDS = 3.0
"""For the view to show what the store has: normally milliseconds."""


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """`weir.registry.v1.RegistryService`. Reads come from the view's snapshot, also while etcd is away.

    The methods that only read a snapshot (`READS`) and those that change one thing (`CHANGES`) are attached below.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        view: RegistryView,
        writer: Writer,
        history: History,
        pepper: bytes,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._settings = settings
        self._store = store
        self._view = view
        self._writer = writer
        self._history = history
        self._pepper = pepper
        self._clock = clock
        self._random_bytes = random_bytes

    async def CreateKey(self, request: pb.CreateKeyRequest, context: grpc.aio.ServicerContext) -> pb.CreateKeyResponse:
        """See the proto. The secret of a dry run opens nothing."""
        made = apikeys.make(self._random_bytes)
        hashed = apikeys.hash_key(made, self._pepper)

        def plan(snapshot: RegistrySnapshot, request: pb.CreateKeyRequest, call: Call) -> Change[pb.ApiKey]:
            if ADMIN_SCOPE in request.scopes and not call.grant.owner:
                # Such a key is an owner; whoever may make one is one.
                raise WeirError(Reason.SCOPE_MISSING, f"only an owner gives the scope {ADMIN_SCOPE!r}", limit="scopes")
            return changes.create_key(snapshot, request, made, hashed, call.now)

        done = await self.change("CreateKey", plan, request, context)
        secret = "" if request.change.dry_run else made.text
        return pb.CreateKeyResponse(key=convert.without_hash(done.message), secret=secret)

    async def ListHistory(
        self, request: pb.ListHistoryRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListHistoryResponse:
        """See the proto."""
        self.authorize("ListHistory", context)
        entries = await self._history.entries(
            resource=request.resource, limit=request.limit, before=request.before_revision
        )
        return pb.ListHistoryResponse(entries=entries)

    async def DiffRevisions(
        self, request: pb.DiffRevisionsRequest, context: grpc.aio.ServicerContext
    ) -> pb.DiffRevisionsResponse:
        """See the proto."""
        self.authorize("DiffRevisions", context)
        found, end = await self._history.differences(request.from_revision, request.to_revision)
        return pb.DiffRevisionsResponse(
            changes=[pb.ResourceChange(resource=each.resource, before=each.before, after=each.after) for each in found],
            to_revision=end,
        )

    async def RollbackToRevision(
        self, request: pb.RollbackToRevisionRequest, context: grpc.aio.ServicerContext
    ) -> pb.RollbackToRevisionResponse:
        """See the proto."""
        self.authorize("RollbackToRevision", context)
        require(None if request.change.reason else Fault("change.reason", "say why"))
        for _ in range(_ATTEMPTS):
            done = await self._roll_back(request, context)
            if done is not None:
                return pb.RollbackToRevisionResponse(changes=done.changes, revision=done.revision)
        raise WeirError(Reason.CONFLICT, "too many changes at once; try again", retry_after=1.0)

    async def _roll_back(
        self, request: pb.RollbackToRevisionRequest, context: grpc.aio.ServicerContext
    ) -> Committed[pb.RollbackToRevisionResponse] | None:
        """None when something changed behind what was read of the history: to be read anew."""
        since, read = await self._history.differences(request.to_revision, 0)
        late = False

        def plan(
            snapshot: RegistrySnapshot, request: pb.RollbackToRevisionRequest, call: Call
        ) -> Change[pb.RollbackToRevisionResponse]:
            nonlocal late
            # Every change rewrites the fence in the transaction that writes its history.
            fence = self._view.stored(keys.FENCE)
            late = fence is not None and fence.mod_revision > read
            if late:
                return nothing(pb.RollbackToRevisionResponse())
            return restore.rollback(snapshot, backwards(since), revision=request.to_revision)

        done = await self.change("RollbackToRevision", plan, request, context)
        return None if late else done

    async def Export(
        self, request: pb.ExportRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ExportResponse]:
        """See the proto."""
        grant = self.authorize("Export", context)
        fence = await self._store.get(keys.FENCE)
        newest = fence.mod_revision if fence else 1
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await self._view.wait_until(lambda snapshot: snapshot.revision >= newest)
        except TimeoutError:
            message = "the registry has not caught up with its store"
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, message, retry_after=1.0) from None
        listing = transfer.exported(self._view.listing())
        history = await self._history.stored(until=listing.revision) if request.history else []
        log.info("registry_exported", actor=grant.actor, revision=listing.revision, values=len(listing.kvs))
        for part in transfer.export_parts(listing, history):
            yield part

    async def Import(
        self, request_iterator: AsyncIterator[pb.ImportRequest], context: grpc.aio.ServicerContext
    ) -> pb.ImportResponse:
        """See the proto."""
        grant = self.authorize("Import", context)
        content, options = await transfer.receive(request_iterator)
        require(check_text("change.reason", options.change.reason, MAX_REASON))
        work = transfer.Import(content, view=self._view, replace=options.replace)

        def decide(snapshot: RegistrySnapshot) -> Change[pb.ImportResponse]:
            # The first transactions may take the caller's own role away; the rest of them belong to it.
            if done is None:
                self.authorize("Import", context)
            return work.plan(snapshot)

        done: Committed[pb.ImportResponse] | None = None
        while done is None or not (work.finished or options.change.dry_run):
            done = await self._writer.commit(
                actor=grant.actor,
                action="registry.Import",
                reason=options.change.reason,
                dry_run=options.change.dry_run,
                plan=decide,
            )
            work.began()
        metrics.changes.labels("Import", _outcome(done, options.change)).inc()
        log.info("registry_imported", actor=grant.actor, digest=content.digest, revision=done.revision)
        return pb.ImportResponse(imported=len(content.values), deleted=work.deleted, revision=done.revision)

    def authorize(self, rpc: str, context: grpc.aio.ServicerContext) -> Grant:
        """Who calls, if they may call this at all.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED.
        """
        caller = Caller(
            peer=peer_service(context),
            spiffe=peer_spiffe(context),
            scopes=parse_scopes(get_metadata(context, "x-weir-scopes")),
            key_id=get_metadata(context, "x-weir-key-id"),
            tenant=get_metadata(context, "x-weir-tenant"),
        )
        known = self._view.snapshot.roles
        names = (*principals_of(caller.key_id, caller.tenant), caller.spiffe)
        bindings = {name: binding_of(known[name].roles, known[name].namespaces) for name in names if name in known}
        grant = authorize(
            rpc,
            caller,
            bindings=bindings,
            admin_services=self._settings.admin_services,
            tls=self._settings.tls is not None,
        )
        if isinstance(grant, Refused):
            metrics.refusals.labels(rpc).inc()
            log.warning("admin_refused", rpc=rpc, actor=grant.actor, peer=caller.peer)
            raise WeirError(Reason.SCOPE_MISSING if grant.scope_missing else Reason.PERMISSION_DENIED, grant.message)
        return grant

    def read(self, rpc: str, read: Read, request: Any, context: grpc.aio.ServicerContext) -> Message:
        """Answers a call that reads the snapshot.

        :raises WeirError: as `authorize`.
        """
        self.authorize(rpc, context)
        return read(self._view.snapshot, request)

    async def change(
        self,
        rpc: str,
        plan: Callable[[RegistrySnapshot, Any, Call], Change[M]],
        request: Any,
        context: grpc.aio.ServicerContext,
        *,
        reason: str = "",
    ) -> Committed[M]:
        """Carries out a call that changes something, as its `change` options say.

        :param reason: why, where the options do not say.
        :raises WeirError: as `authorize`, the plan and `Writer.commit`; PERMISSION_DENIED when it touches a namespace
            that is not the caller's; CONFLICT while an import is under way.
        """
        try:
            grant = self.authorize(rpc, context)
            require(check_text("change.reason", request.change.reason, MAX_REASON))
            now, new_id = self._clock.time(), uuid.uuid4().hex

            def decide(snapshot: RegistrySnapshot) -> Change[M]:
                # Again, by the very state that is changed: here a role may be seen longer than it is held.
                call = Call(self.authorize(rpc, context), now, new_id)
                return self._within(call.grant, snapshot, plan(snapshot, request, call))

            done = await self._writer.commit(
                actor=grant.actor,
                action=f"registry.{rpc}",
                reason=request.change.reason or reason,
                dry_run=request.change.dry_run,
                plan=decide,
            )
        except WeirError as error:
            metrics.changes.labels(rpc, error.reason.name).inc()
            raise
        outcome = _outcome(done, request.change)
        metrics.changes.labels(rpc, outcome).inc()
        if outcome == "ok":
            log.info("registry_changed", action=rpc, actor=grant.actor, revision=done.revision)
        return done

    def _within(self, grant: Grant, snapshot: RegistrySnapshot, change: Change[M]) -> Change[M]:
        mark = self._view.stored(keys.IMPORT)
        if mark is not None:
            raise WeirError(Reason.CONFLICT, transfer.under_way(mark), limit="import")
        if grant.namespaces and (fault := check_namespaces(grant, namespaces_of(snapshot, change.writes))):
            metrics.refusals.labels("namespace").inc()
            log.warning("admin_refused", actor=grant.actor, reason=fault)
            raise WeirError(Reason.PERMISSION_DENIED, fault, limit="namespace")
        return change


def _outcome(done: Committed[M], options: pb.ChangeOptions) -> str:
    return "dry_run" if options.dry_run else "unchanged" if done.unchanged else "ok"


def _reading(rpc: str, read: Read) -> Any:
    async def method(self: RegistryServicer, request: Any, context: grpc.aio.ServicerContext) -> Message:
        """See the proto."""
        return self.read(rpc, read, request, context)

    return method


def _changing(rpc: str, kind: ChangeRpc) -> Any:
    async def method(self: RegistryServicer, request: Any, context: grpc.aio.ServicerContext) -> Message:
        """See the proto."""
        return kind.answer(await self.change(rpc, kind.plan, request, context, reason=kind.reason(request)))

    return method


for _name, _read in READS.items():
    setattr(RegistryServicer, _name, _reading(_name, _read))
for _name, _kind in CHANGES.items():
    setattr(RegistryServicer, _name, _changing(_name, _kind))
