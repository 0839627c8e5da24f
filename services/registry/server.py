"""The servicer: who calls, what they want, what came of it. Decisions are in the plans and in `policy`."""

# ruff: noqa: N802 - methods are named as in the proto

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Collection
from typing import Any

import grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs import apikeys
from libs.auditlog.security import Kind as SecurityKind
from libs.auditlog.security import Sight
from libs.auditlog.watch import SecurityWatch
from libs.authority.operators import EDGE_PEER, Grant, Refused
from libs.changes import Change, Committed, M, Writer, nothing, resource_of
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, RegistryView, Store, keys
from libs.registry.roles import caller_of, decide, refusal
from libs.resources.checks.bounds import MAX_REASON, shown
from libs.resources.checks.faults import check_text
from libs.resources.codec import key_of, kind_of, pack, redacted
from libs.resources.forms import differing
from libs.resources.kind import Kind
from libs.resources.kinds import BY_NAME, BY_PLURAL
from libs.resources.references import referrers
from libs.rpc import peer_service
from libs.telemetry import get_logger
from services.registry import api_keys, applying, metrics
from services.registry.admitting import Call, require_within
from services.registry.answers import finished
from services.registry.applying import StaleError
from services.registry.config import Settings
from services.registry.history import History, backwards, known_of
from services.registry.listing import Listings, exists_for, kinds_called, selector
from services.registry.rollback import rollback
from services.registry.rollouts import steered
from services.registry.touched import touched
from services.registry.watching import ChangeLog, Watch, require_known, require_reached

log = get_logger(__name__)
SERVICE = "weir.registry.v1.RegistryService"
_ATTEMPTS = 10
"""At going back, while others change something between the reading of the history and the writing."""


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """`weir.registry.v1.RegistryService`. Reads come from the view's snapshot, also while etcd is away."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        view: RegistryView,
        writer: Writer,
        history: History,
        watch: SecurityWatch,
        pepper: bytes,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._settings = settings
        self._store = store
        self._view = view
        self._writer = writer
        self._history = history
        self._watch = watch
        self._pepper = pepper
        self._clock = clock
        self._random_bytes = random_bytes
        self._listings = Listings(view, lambda: uuid.uuid4().hex)
        self._log = ChangeLog(view, self._listings)

    def drain(self) -> None:
        """Lets watchers go, to other processes."""
        self._log.end()

    async def Get(self, request: pb.GetRequest, context: grpc.aio.ServicerContext) -> pb.GetResponse:
        """See the proto."""
        [kind] = kinds_called([request.kind])
        grant = self._authorize("Get", context, [kind])
        kv = self._view.stored(kind.prefix + request.name)
        resource = self._listings.shown(kind, kv) if kv is not None else None
        if kv is None or (grant.tenants and (resource is None or not exists_for(grant, resource))):
            what = f"{kind.plural}/{request.name}"
            raise WeirError(Reason.NOT_FOUND, f"there is no {shown(what)[1:-1]}", limit=what)
        if resource is None:
            raise WeirError(Reason.INTERNAL, f"{kind.plural}/{request.name} cannot be read; apply it anew")
        named = [
            (other, name)
            for other, name in referrers(kind, request.name, self._view.snapshot)
            if (stored := self._listings.stored(other.prefix + name)) is None or exists_for(grant, stored)
        ]
        return pb.GetResponse(
            resource=resource,
            referrers=[pb.ResourceName(kind=other.name, name=name) for other, name in named],
        )

    async def List(self, request: pb.ListRequest, context: grpc.aio.ServicerContext) -> pb.ListResponse:
        """See the proto."""
        kinds = kinds_called(request.kinds)
        grant = self._authorize("List", context, kinds, secrets=request.secrets)
        if request.secrets and not request.kinds:
            # The registry whole: what lives with its process is not saved.
            kinds = [kind for kind in kinds if not kind.leased]
        if request.secrets and not request.page_token:
            log.info("registry_saved", actor=grant.actor, revision=self._view.revision)
        return self._listings.page(request, kinds, grant)

    async def Watch(self, request: pb.WatchRequest, context: grpc.aio.ServicerContext) -> None:
        """See the proto."""
        peer = peer_service(context)
        kinds = kinds_called(request.kinds)
        if not request.kinds:
            kinds = [kind for kind in kinds if peer in kind.followers] or kinds
        grant = self._authorize("Watch", context, kinds)
        if request.from_revision < 0:
            raise WeirError(Reason.INVALID_REQUEST, "a revision is not negative", limit="from_revision")
        await require_known(self._store, self._log, request.from_revision)
        await require_reached(self._store, self._log, request.at_least)
        held: tuple[object, object] | None = None

        def still() -> None:
            """Asked for every watcher of every change: only who holds what may have changed since.

            :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED: the role is gone, or another one now.
            """
            nonlocal held
            now = self._view.snapshot
            if held is None or held[0] is not now.roles or held[1] is not now.keys:
                if self._authorize("Watch", context, kinds).tenants != grant.tenants:
                    raise WeirError(Reason.PERMISSION_DENIED, "what you may see is not what it was; watch again")
                held = (now.roles, now.keys)

        matches = selector(request.selector) if request.selector else None
        watch = Watch(self._log, self._listings, kinds, grant=grant, matches=matches, still=still)
        with metrics.watchers.track_inprogress():
            async for response in watch.responses(request.from_revision):
                await context.write(response)

    async def Apply(self, request: pb.ApplyRequest, context: grpc.aio.ServicerContext) -> pb.ApplyResponse:
        """See the proto."""
        kinds = [kind for resource in request.resources if (kind := kind_of(resource)) is not None]

        def plan(snapshot: RegistrySnapshot, call: Call) -> Change[pb.ApplyResponse]:
            return applying.apply(snapshot, request, call, self._stored_for(call.grant))

        done = await self._change("Apply", plan, request, context, kinds, secrets=request.restore)
        return finished(done, request.change)

    async def Delete(self, request: pb.DeleteRequest, context: grpc.aio.ServicerContext) -> pb.DeleteResponse:
        """See the proto."""
        kinds = [BY_NAME[name.kind] for name in request.resources if name.kind in BY_NAME]

        def plan(snapshot: RegistrySnapshot, call: Call) -> Change[pb.DeleteResponse]:
            return applying.delete(snapshot, request, call, self._stored_for(call.grant))

        return finished(await self._change("Delete", plan, request, context, kinds), request.change)

    async def History(self, request: pb.HistoryRequest, context: grpc.aio.ServicerContext) -> pb.HistoryResponse:
        """See the proto."""
        grant = self._authorize("History", context)
        entries = await self._history.entries(
            resource=_place(request), limit=request.limit, before=request.before_revision, grant=grant
        )
        return pb.HistoryResponse(entries=entries)

    async def Diff(self, request: pb.DiffRequest, context: grpc.aio.ServicerContext) -> pb.DiffResponse:
        """See the proto."""
        grant = self._authorize("Diff", context)
        found, end = await self._history.differences(request.from_revision, request.to_revision, under=_place(request))
        return pb.DiffResponse(changes=known_of(grant, found), to_revision=end)

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: grpc.aio.ServicerContext) -> pb.WhoAmIResponse:
        """See the proto."""
        grant = self._authorize("WhoAmI", context)
        return pb.WhoAmIResponse(
            principal=grant.actor,
            known_by=caller_of(context).known_by,
            roles=sorted(role.value for role in grant.roles),
            namespaces=sorted(grant.namespaces),
            tenants=sorted(grant.tenants),
        )

    async def Rollback(self, request: pb.RollbackRequest, context: grpc.aio.ServicerContext) -> pb.RollbackResponse:
        """See the proto."""
        self._authorize("Rollback", context)
        _require_reason(request.change)
        for _ in range(_ATTEMPTS):
            done = await self._roll_back(request, context)
            if done is not None:
                return pb.RollbackResponse(changes=done.changes, revision=done.revision, kept=done.message.kept)
        raise WeirError(Reason.CONFLICT, "too many changes at once; try again", retry_after=1.0)

    async def CreateKey(self, request: pb.CreateKeyRequest, context: grpc.aio.ServicerContext) -> pb.CreateKeyResponse:
        """See the proto. The secret of a dry run opens nothing."""
        made = apikeys.make(self._random_bytes)
        hashed = apikeys.hash_key(made, self._pepper)

        def plan(snapshot: RegistrySnapshot, call: Call) -> Change[pb.ApiKey]:
            return api_keys.created(snapshot, request, made, hashed, call)

        done = await self._change("CreateKey", plan, request, context, [BY_PLURAL["keys"]])
        return pb.CreateKeyResponse(
            key=self._shown(done, request.change), secret="" if request.change.dry_run else made.text
        )

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: grpc.aio.ServicerContext) -> pb.RevokeKeyResponse:
        """See the proto."""

        def plan(snapshot: RegistrySnapshot, call: Call) -> Change[pb.ApiKey]:
            return api_keys.revoked(snapshot, request.key_id, call)

        done = await self._change("RevokeKey", plan, request, context, [BY_PLURAL["keys"]])
        return pb.RevokeKeyResponse(key=self._shown(done, request.change))

    async def SteerRollout(
        self, request: pb.SteerRolloutRequest, context: grpc.aio.ServicerContext
    ) -> pb.SteerRolloutResponse:
        """See the proto."""

        def plan(snapshot: RegistrySnapshot, call: Call) -> Change[pb.Rollout]:
            return steered(snapshot, request, rollout_id=call.new_id, actor=call.grant.actor, now=call.now)

        done = await self._change("SteerRollout", plan, request, context, [BY_PLURAL["rollouts"]])
        return pb.SteerRolloutResponse(rollout=self._shown(done, request.change))

    async def _roll_back(
        self, request: pb.RollbackRequest, context: grpc.aio.ServicerContext
    ) -> Committed[pb.RollbackResponse] | None:
        """None when something changed behind what was read of the history: to be read anew."""
        since, read = await self._history.differences(request.to_revision, 0, under=_place(request))
        late = False

        def plan(snapshot: RegistrySnapshot, call: Call) -> Change[pb.RollbackResponse]:
            nonlocal late
            # Every change rewrites the fence in the transaction that writes its history.
            fence = self._view.stored(keys.FENCE)
            late = fence is not None and fence.mod_revision > read
            if late:
                return nothing(pb.RollbackResponse())
            return rollback(snapshot, backwards(since), revision=request.to_revision, named=bool(request.name))

        done = await self._change("Rollback", plan, request, context)
        return None if late else done

    def _authorize(
        self, rpc: str, context: grpc.aio.ServicerContext, kinds: Collection[Kind] = (), *, secrets: bool = False
    ) -> Grant:
        """Who calls, if they may call this.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED.
        """
        caller, now = caller_of(context), self._view.snapshot
        key = now.keys.get(caller.key_id)
        if caller.peer == EDGE_PEER and key is not None and key.HasField("revoked_at"):
            # It passed the edge before it was revoked.
            raise self._refused(caller.principal, rpc, WeirError(Reason.KEY_REVOKED, "the key is revoked"))
        grant = decide(
            rpc,
            caller,
            now,
            kinds=kinds,
            secrets=secrets,
            owners=self._settings.owners,
            tls=self._settings.tls is not None,
        )
        if isinstance(grant, Refused):
            raise self._refused(grant.actor, rpc, refusal(grant))
        return grant

    def _refused(self, actor: str, rpc: str, why: WeirError) -> WeirError:
        """Every refusal for want of a right passes here."""
        metrics.refusals.labels(rpc).inc()
        log.warning("admin_refused", rpc=rpc, actor=actor, reason=why.message)
        reason = why.reason.name.lower()
        self._watch.note(Sight(SecurityKind.ADMIN_REFUSED, reason, actor=actor, action=f"registry.{rpc}"))
        return why

    async def _change(
        self,
        rpc: str,
        plan: Callable[[RegistrySnapshot, Call], Change[M]],
        request: Any,
        context: grpc.aio.ServicerContext,
        kinds: Collection[Kind] = (),
        *,
        secrets: bool = False,
    ) -> Committed[M]:
        """Carries out a call that changes something, as its `change` options say.

        :raises WeirError: as `_authorize`, the plan and `Writer.commit`; PERMISSION_DENIED when it touches a namespace
            that is not the caller's.
        """
        options: pb.ChangeOptions = request.change
        try:
            grant = self._authorize(rpc, context, kinds, secrets=secrets)
            for fault in check_text("change.reason", options.reason, MAX_REASON):
                raise WeirError(Reason.INVALID_REQUEST, fault.message, limit=fault.field)
            now, new_id = self._clock.time(), uuid.uuid4().hex

            def decide(snapshot: RegistrySnapshot) -> Change[M]:
                # Again, by the very state that is changed: here a role may be seen longer than it is held.
                call = Call(self._authorize(rpc, context, kinds, secrets=secrets), now, new_id, options.reason)
                change = plan(snapshot, call)
                require_within(call.grant, touched(snapshot, change.writes))
                return change

            done = await self._writer.commit(
                actor=grant.actor,
                action=f"registry.{rpc}",
                reason=options.reason,
                dry_run=options.dry_run,
                plan=decide,
            )
        except WeirError as error:
            metrics.changes.labels(rpc, error.reason.name).inc()
            if error.limit in ("namespace", "tenant") and error.reason is Reason.PERMISSION_DENIED:
                raise self._refused(caller_of(context).principal, rpc, error) from error
            if isinstance(error, StaleError):
                raise await self._told(error) from error
            raise
        outcome = "dry_run" if options.dry_run else "unchanged" if done.unchanged else "ok"
        metrics.changes.labels(rpc, outcome).inc()
        if outcome == "ok":
            log.info("registry_changed", action=rpc, actor=grant.actor, revision=done.revision)
        return done

    def _stored_for(self, grant: Grant) -> applying.Stored:
        """What lies under a key, if it exists for the caller."""

        def stored(key: str) -> pb.Resource | None:
            found = self._listings.stored(key)
            return found if found is not None and exists_for(grant, found) else None

        return stored

    async def _told(self, error: StaleError) -> WeirError:
        """The refusal, with what changed since the caller read, and by whom, as far as the history knows."""
        resource = resource_of(error.key)
        try:
            found, _ = await self._history.differences(max(error.expected, 1), 0, under=resource)
            [last] = await self._history.entries(resource=resource, limit=1)
        except (WeirError, ValueError):
            return error
        for each in found:
            changed = differing(json.loads(each.before or "{}"), json.loads(each.after or "{}"))
            fields = [path for path, _, _ in changed]
            if fields:
                since = f"{', '.join(fields[:5])} changed since, last by {last.actor}"
                return WeirError(error.reason, f"{error.message}: {since}", limit=f"{resource} {fields[0]}")
        return error

    def _shown(self, done: Committed[Any], options: pb.ChangeOptions) -> pb.Resource:
        resource = redacted(pack(done.message))
        stored = self._listings.stored(key_of(resource))
        if stored is not None:
            resource.metadata.CopyFrom(stored.metadata)
        if not (done.unchanged or options.dry_run):
            resource.metadata.revision = done.revision
        return resource


def _place(request: pb.HistoryRequest | pb.DiffRequest | pb.RollbackRequest) -> str:
    """What the history calls it: "tenants/acme", "tenants/", or "" for all.

    :raises WeirError: INVALID_REQUEST.
    """
    if not request.kind:
        return ""
    [kind] = kinds_called([request.kind])
    return f"{kind.plural}/{request.name}"


def _require_reason(options: pb.ChangeOptions) -> None:
    if not options.reason:
        raise WeirError(Reason.INVALID_REQUEST, "say why", limit="change.reason")
