"""Several etcd endpoints behind one call: which one to use, when to try another, what a failure means."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from aetcd import rpc

from libs.authority.identity import dns_name
from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.rpc.channel import open_channel

_log = logging.getLogger(__name__)
T = TypeVar("T")

_CONNECT_SECONDS = 1.0
"""A local or in-zone connection takes milliseconds; after this another endpoint is the better bet."""
_CALL_SECONDS = 2.0
"""etcd itself gives up on a proposal after 5 s + two election timeouts; our callers want to know earlier."""
_BUDGET_SECONDS = 4.0
"""All endpoints together, once one could be connected to: long enough for an election (1 s)."""
_REFUSED_SECONDS = 2.5
"""All endpoints together, while none can be connected to: a single server that restarts is back after about 1.5 s."""
_PAUSE_SECONDS = 0.1
"""Between attempts after every endpoint had its turn."""

_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # etcd refuses pings more often than every 5 s; a dead peer is noticed within 13 s on an idle watch.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
)

_TRY_ANOTHER = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DATA_LOSS,
        # A member that is restarting or was taken out answers so.
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)

_REFUSED = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})
"""This process has no right to what it asks for, or etcd has not been told of it yet (`weir authority establish`).
That may be at any time, so this is like an outage: what is known goes on being served."""
_NOT_KNOWN = frozenset({"etcdserver: user name not found", "auth: user not found"})
"""The same, as other calls have it."""
_RIGHTS_CHANGED = frozenset({"auth: revision in header is old", "etcdserver: revision of auth store is old"})
"""Users or roles changed between etcd's two looks at them: refused before anything was done, and right at once."""

HAS_LEADER = (("hasleader", "true"),)
"""Metadata that makes a member without a leader refuse a call at once, and end a stream that would go silent."""

_STRANGERS = rpc.RangeRequest(key=b"\0", serializable=True, keys_only=True)
"""What nobody but `root` may ask: a key outside of every right. Serializable, so that a member answers by itself."""


class Stubs:
    """The channel and stubs of one endpoint."""

    def __init__(self, target: str, tls: TlsFiles | None) -> None:
        self.target = target
        self.channel = open_channel(target, tls=tls, server_name=dns_name("etcd"), options=_OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.guarded = False
        """Whether it was seen to hold to rights, over the present connection."""


class KeepAlive:
    """A stream that prolongs a lease, kept open between beats: to open one costs several times the beat."""

    def __init__(self) -> None:
        self._stubs: Stubs | None = None
        self._stream: Any = None

    async def beat(self, stubs: Stubs, lease: int) -> Any:
        """etcd's answer; one beat at a time. The next one after a failure opens a stream anew.

        :raises TimeoutError: there was none in time.
        :raises grpc.aio.AioRpcError: etcd's refusal.
        :raises asyncio.InvalidStateError: the stream has ended.
        """
        if self._stubs is not stubs:
            self.close()
            self._stubs, self._stream = stubs, stubs.lease.LeaseKeepAlive(metadata=HAS_LEADER)
        stream = self._stream
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await stream.write(rpc.LeaseKeepAliveRequest(ID=lease))
                answer = await stream.read()
                if answer is grpc.aio.EOF:
                    await stream  # its status says why
                    raise asyncio.InvalidStateError
        except BaseException:
            self.close()
            raise
        return answer

    def close(self) -> None:
        """Ends the stream."""
        if self._stream is not None:
            self._stream.cancel()
        self._stubs = self._stream = None


class Endpoints:
    """The endpoints, tried in turn from the last one that worked."""

    def __init__(self, targets: Sequence[str], tls: TlsFiles | None, *, guarded: bool = False) -> None:
        """:param guarded: with TLS, have nothing to do with an etcd that has not been told who may what: there whoever
        connects may everything, and nothing would show it. It is as if it were away, until it is told.
        """
        if not targets:
            raise ValueError("at least one etcd endpoint is needed")
        self._targets = tuple(targets)
        self._tls = tls
        self._guarded = guarded and tls is not None
        self._stubs: dict[str, Stubs] = {}
        self._current = 0
        self._told = False
        self.available = True

    async def call(self, make: Callable[[Stubs], Awaitable[T]], *, repeatable: bool) -> T:
        """The call's answer from the first endpoint that gives one.

        A call that is not repeatable is tried again only when it was surely not carried out: there was no connection,
        or the member said that it has no leader.

        :raises WeirError: DEPENDENCY_UNAVAILABLE within `_BUDGET_SECONDS`; NOT_FOUND and INVALID_REQUEST as etcd says.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        reached = False
        tried = 0
        while True:
            left = started + (_BUDGET_SECONDS if reached else _REFUSED_SECONDS) - clock()
            if left <= 0:
                break
            tried += 1
            if tried > len(self._targets):
                # A server that starts, or a cluster that elects a leader, needs a moment.
                await asyncio.sleep(min(left, _PAUSE_SECONDS))
            stubs = self.stubs()
            if not await self.connected(stubs, left):
                self.rotate(stubs)
                continue
            reached = True
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    answer = await make(stubs)
            except (TimeoutError, asyncio.InvalidStateError):
                # grpc reports a write to a stream that has just ended as an invalid state.
                self.rotate(stubs)
                if not repeatable:
                    break
            except grpc.aio.AioRpcError as error:
                if error.details() in _RIGHTS_CHANGED:
                    continue
                if error.code() in _REFUSED or error.details() in _NOT_KNOWN:
                    self.available = False
                    _log.error("etcd_refuses_us: %s", error.details())
                    raise WeirError(
                        Reason.DEPENDENCY_UNAVAILABLE, f"etcd refuses this process: {error.details()}", retry_after=1.0
                    ) from error
                if error.code() not in _TRY_ANOTHER:
                    self.available = True
                    raise _mapped(error) from error
                _log.info("etcd_call_failed: %s %s", error.code().name, error.details())
                self.rotate(stubs)
                if not repeatable and not _surely_not_done(error):
                    break
            else:
                self.available = True
                return answer
        self.available = False
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the registry's store (etcd) does not answer", retry_after=1.0)

    def stubs(self) -> Stubs:
        """Those of the endpoint whose turn it is."""
        target = self._targets[self._current % len(self._targets)]
        if target not in self._stubs:
            self._stubs[target] = Stubs(target, self._tls)
        return self._stubs[target]

    def rotate(self, failed: Stubs) -> None:
        """Moves on from an endpoint that failed, unless somebody else has done so."""
        if self._targets[self._current % len(self._targets)] == failed.target:
            self._current += 1
            if len(self._targets) > 1:
                _log.warning("etcd_endpoint_failed")

    async def connected(self, stubs: Stubs, seconds: float) -> bool:
        """Whether the endpoint has a connection, or gets one in time."""
        channel = stubs.channel
        try:
            async with asyncio.timeout(min(seconds, _CONNECT_SECONDS)):
                state = channel.get_state(try_to_connect=True)
                stubs.guarded = stubs.guarded and state is grpc.ChannelConnectivity.READY
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.SHUTDOWN:
                        return False
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and len(self._targets) > 1:
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
                return stubs.guarded or not self._guarded or await self._holds_to_rights(stubs)
        except TimeoutError:
            return False

    async def _holds_to_rights(self, stubs: Stubs) -> bool:
        try:
            await stubs.kv.Range(_STRANGERS)
        except grpc.aio.AioRpcError as error:
            stubs.guarded = error.code() in _REFUSED or error.details() in _NOT_KNOWN
        else:
            if not self._told:
                _log.error("etcd_without_rights: whoever connects may everything, until `weir authority establish` ran")
            self._told = True
        return stubs.guarded

    async def close(self) -> None:
        """Closes every channel."""
        for stubs in self._stubs.values():
            await stubs.channel.close()


def _surely_not_done(error: grpc.aio.AioRpcError) -> bool:
    # Sent by etcd before it looks at a call that carries `HAS_LEADER`; other refusals may come after the proposal.
    return error.details() == "etcdserver: no leader"


def _mapped(error: grpc.aio.AioRpcError) -> WeirError:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return WeirError(Reason.NOT_FOUND, "the lease is gone")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        more = "; start it with a larger --max-txn-ops" if "too many operations" in (error.details() or "") else ""
        return WeirError(Reason.INVALID_REQUEST, f"etcd refuses the request: {error.details()}{more}")
    return WeirError(Reason.INTERNAL, f"etcd answers {error.code().name}: {error.details()}")
