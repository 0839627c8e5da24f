"""What a handler sees of the stream and of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.mux.v1 import mux_pb2

from libs.deadlines import Deadline


class Session:
    """One open stream. Lives until the stream ends, however it ends."""

    __slots__ = ("_on_close", "caller", "hello", "peer", "state")

    def __init__(self, peer: str, hello: mux_pb2.Hello) -> None:
        self.peer = peer
        """The caller's service name: from its certificate, or without TLS as it calls itself."""
        self.hello = hello
        """How the caller introduced itself."""
        self.caller = f"{hello.instance}/{hello.life}"
        """One life of one process: what it holds is not that of the next one."""
        self.state: dict[str, Any] = {}
        """For the handler: state that must not outlive the stream, such as open output filters."""
        self._on_close: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on the event loop, when the stream has ended."""
        self._on_close.append(callback)

    def take_close_hooks(self) -> list[Callable[[], None]]:
        """The registered callbacks, once; for the stream's owner."""
        hooks, self._on_close = self._on_close, []
        return hooks


class CallContext:
    """One call's surroundings."""

    __slots__ = ("deadline", "id", "session", "traceparent")

    def __init__(self, call_id: int, deadline: Deadline, traceparent: str, session: Session) -> None:
        self.id = call_id
        """Unique on the session."""
        self.deadline = deadline
        """On the local clock."""
        self.traceparent = traceparent
        """Parent for the handler's own spans and calls; empty when the request is not sampled."""
        self.session = session
        """The stream the call came on."""

    @property
    def peer(self) -> str:
        """The caller's service name."""
        return self.session.peer
