"""The part of etcd's API that a service needs to keep keys of its own: reads, flat transactions, leases.

Each call is held against the table of stores by the caller's certificate, and what a call does not need is not there:
no watch, no nested transaction, no maintenance. So it does not matter here what etcd's own roles let through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from aetcd import rpc
from weir.registry.v1 import registry_pb2

from libs.authority.identity import Identity
from libs.authority.stores import Access, Range, access_of, may
from libs.config.addresses import split
from libs.errors import Reason, WeirError
from libs.registry.endpoints import HAS_LEADER, Endpoints, KeepAlive, Stubs
from libs.resources.codec import located, read, unpack
from libs.rpc import peer_identity
from libs.telemetry import get_logger
from services.door.metrics import REFUSED

log = get_logger(__name__)
_CALL_SECONDS = 2.0
"""Of one call to etcd, as long as its clients wait."""
_MAX_TTL = 60
"""Seconds of a lease: what a dead process leaves behind goes within it."""
_MAX_OPERATIONS = 128
"""Of one transaction, as etcd's default."""


class Door:
    """Lets calls through, or not."""

    def __init__(self, endpoints: Endpoints, *, new_id: Callable[[], int]) -> None:
        """:param new_id: ids of leases that nobody can guess: whoever knows one was given it."""
        self._endpoints = endpoints
        self._new_id = new_id

    async def range(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """Reads what the caller may read.

        :raises WeirError: PERMISSION_DENIED.
        """
        caller = _caller(context)
        _require(caller, Access.READ, request.key, request.range_end)
        return await self._pass(context, lambda stubs: stubs.kv.Range(request, timeout=_CALL_SECONDS))

    async def txn(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """Writes what the caller may write, compared with what it may read.

        :raises WeirError: PERMISSION_DENIED, also for what nobody needs, such as reading within a transaction;
            INVALID_REQUEST for too large a one, and for an endpoint whose address is not an IP's.
        """
        caller = _caller(context)
        if len(request.compare) + len(request.success) > _MAX_OPERATIONS:
            raise WeirError(Reason.INVALID_REQUEST, f"more than {_MAX_OPERATIONS} operations")
        if request.failure:
            raise _refused(caller, "a transaction's other branch")
        for compare in request.compare:
            _require(caller, Access.READ, compare.key, compare.range_end)
        for operation in request.success:
            match operation.WhichOneof("request"):
                case "request_put":
                    _require_put(caller, operation.request_put)
                case "request_delete_range" if not operation.request_delete_range.prev_kv:
                    delete = operation.request_delete_range
                    _require(caller, Access.WRITE, delete.key, delete.range_end)
                case other:
                    raise _refused(caller, f"{other} within a transaction")
        return await self._pass(
            context, lambda stubs: stubs.kv.Txn(request, timeout=_CALL_SECONDS, metadata=HAS_LEADER)
        )

    async def lease_grant(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """A lease of at most a minute.

        :raises WeirError: PERMISSION_DENIED.
        """
        _caller(context)
        grant = rpc.LeaseGrantRequest(TTL=min(request.TTL, _MAX_TTL), ID=self._new_id())
        return await self._pass(context, lambda stubs: stubs.lease.LeaseGrant(grant, timeout=_CALL_SECONDS))

    async def lease_revoke(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """Ends a lease, and the keys under it.

        :raises WeirError: PERMISSION_DENIED.
        """
        _caller(context)
        return await self._pass(context, lambda stubs: stubs.lease.LeaseRevoke(request, timeout=_CALL_SECONDS))

    async def lease_keep_alive(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Any]:
        """Prolongs a lease per request.

        :raises WeirError: PERMISSION_DENIED.
        """
        _caller(context)
        kept = KeepAlive()
        try:
            async for request in requests:
                yield await self._pass(context, partial(kept.beat, lease=request.ID))
        finally:
            kept.close()

    async def _pass(self, context: grpc.aio.ServicerContext, call: Callable[[Stubs], Awaitable[Any]]) -> Any:
        """etcd's answer, or its refusal as it is: the client knows what to do with each."""
        stubs = self._endpoints.stubs()
        if not await self._endpoints.connected(stubs, _CALL_SECONDS):
            self._endpoints.rotate(stubs)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "etcd does not answer")
        try:
            return await call(stubs)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._endpoints.rotate(stubs)
            await context.abort(error.code(), error.details() or "")
        except (TimeoutError, asyncio.InvalidStateError):  # the latter for a write to a stream that has just ended
            await context.abort(grpc.StatusCode.UNAVAILABLE, "etcd does not answer")


def handlers(door: Door) -> dict[str, grpc.GenericRpcHandler]:
    """The methods that there are, by service."""

    def unary(behaviour: Callable[..., Any], request: type) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(behaviour, request.FromString, _serialize)  # type: ignore[attr-defined]

    methods = {
        "etcdserverpb.KV": {"Range": unary(door.range, rpc.RangeRequest), "Txn": unary(door.txn, rpc.TxnRequest)},
        "etcdserverpb.Lease": {
            "LeaseGrant": unary(door.lease_grant, rpc.LeaseGrantRequest),
            "LeaseRevoke": unary(door.lease_revoke, rpc.LeaseRevokeRequest),
            "LeaseKeepAlive": grpc.stream_stream_rpc_method_handler(
                door.lease_keep_alive, rpc.LeaseKeepAliveRequest.FromString, _serialize
            ),
        },
    }
    return {name: grpc.method_handlers_generic_handler(name, each) for name, each in methods.items()}


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _caller(context: grpc.aio.ServicerContext) -> Identity:
    """Who calls, if there is anything at all that it may.

    :raises WeirError: PERMISSION_DENIED.
    """
    caller = peer_identity(context)
    if caller is None or not access_of(caller):
        raise _refused(caller, "the mesh's store")
    return caller


def _require(caller: Identity, access: Access, start: bytes, end: bytes) -> None:
    # An end at or before the start, "\0" among them, is etcd's way to say "and all that follows", or nothing.
    usual = (start + end).isascii() and (not end or start < end)
    if not usual or not may(caller, access, Range(start.decode("ascii"), end.decode("ascii"))):
        raise _refused(caller, f"to {access.word} {start!r}")


def _require_put(caller: Identity, put: Any) -> None:
    """:raises WeirError: PERMISSION_DENIED; INVALID_REQUEST for an endpoint that nobody could be sent to."""
    _require(caller, Access.WRITE, put.key, b"")
    if put.prev_kv or put.ignore_value or put.ignore_lease:
        raise _refused(caller, "a put of that kind")
    kind, name = located(put.key.decode()) or (None, "")
    if kind is None or kind.message is not registry_pb2.Endpoint:
        return
    resource = read(kind, name, put.value, 0)
    endpoint: Any = unpack(resource) if resource is not None else registry_pb2.Endpoint()
    claimed = (endpoint.service, endpoint.instance, endpoint.zone, endpoint.pool, endpoint.region)
    if claimed != (caller.service, caller.instance, caller.zone, caller.pool, caller.region):
        raise _refused(caller, f"an endpoint of {claimed}")
    for address in (endpoint.address, endpoint.metrics_address or endpoint.address):
        try:
            split(address)
        except ValueError as error:
            raise WeirError(Reason.INVALID_REQUEST, f"no endpoint: {error}", limit="address") from error


def _refused(caller: Identity | None, what: str) -> WeirError:
    REFUSED.labels(caller.service if caller else "").inc()
    who = caller.spiffe if caller else "an unidentified peer"
    log.warning("store_refused", caller=who, what=what)
    return WeirError(Reason.PERMISSION_DENIED, f"{who} has no right to this: {what}")
