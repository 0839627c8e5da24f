"""The output filter's client on a multiplexed stream whose fate the test decides, with the real filter behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from weir.safety.v1 import safety_pb2

from libs.clock import ManualClock, SystemClock
from libs.errors import Reason, WeirError
from libs.safety_filter import Pack, Rule, compile_pack
from services.gateway.clients.safety import SafetyClient
from services.safety.packs import PackKeeper
from services.safety.policy.book import PolicyBook
from services.safety.server import SafetyHandler
from services.safety.turns import Turns

RULES = [
    Rule(id="r", category="test.redact", pattern="a[bc]{2,6}d", action="redact", stage="both", replacement="[gone]"),
    Rule(id="b", category="test.block", pattern="STOP!", action="block", stage="both", replacement=""),
]
PACK: Pack = compile_pack("test", 1, RULES)
PINS = ("test@1",)
GRACE = 3.0


class Session:
    """What a handler keeps per stream."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def on_close(self, callback: Callable[[], None]) -> None: ...


@dataclass
class Call:
    """Written and not answered."""

    item: safety_pb2.SafetyCall
    on_reply: Callable[[Any, WeirError | None], None]
    traceparent: str


class Link:
    """A multiplexed stream whose fate the test decides; implements what `SafetyClient` uses of `MuxClient`."""

    def __init__(self) -> None:
        self.book = PolicyBook(shipped={}, floor="test@0", most=8)
        self.book.keep(PINS, PACK)
        keeper = PackKeeper(self.book, patience=0)
        self.handler = SafetyHandler(
            keeper=keeper,
            turns=Turns(clock=SystemClock(), max_waiting=1),
            max_filters=100,
            max_context=4096,
            max_input=1,
            max_delta=4096,
        )
        self.client: SafetyClient | None = None
        self.connected = False
        self.generation = 0
        self.session = Session()
        self.calls: list[Call] = []

    def call_nowait(self, item: safety_pb2.SafetyCall, *, on_reply: Any, **options: Any) -> None:
        if not self.connected or options["generation"] != self.generation:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "no such stream")
        copy = safety_pb2.SafetyCall.FromString(item.SerializeToString())
        self.calls.append(Call(copy, on_reply, options["traceparent"]))

    def open(self) -> None:
        self.generation += 1
        self.connected = True
        self.session = Session()
        assert self.client is not None
        self.client.on_stream(self.generation)

    def lose(self) -> None:
        self.connected = False
        lost, self.calls = self.calls, []
        for call in lost:
            call.on_reply(None, WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost"))

    def answer(self, *, executed: bool = True, told: bool = True) -> None:
        """Answer the oldest call: truly, or with an error although (or because not) it was executed."""
        if not self.calls:
            return
        call = self.calls.pop(0)
        reply, error = None, WeirError(Reason.INTERNAL, "failed")
        if executed:
            try:
                reply = self.handler(call.item, SimpleNamespace(session=self.session))  # type: ignore[arg-type]
            except WeirError as refusal:  # such as a feed behind one that was not executed
                error = refusal
        if told and reply is not None:
            call.on_reply(reply, None)
        else:
            call.on_reply(None, error)

    @property
    def open_filters(self) -> int:
        return len(self.session.state.get("filters", {}))


@dataclass
class Output:
    """A choice: collects what leaves."""

    text: str = ""
    ended: str = ""
    consumed: int = 0
    skipped: bool = False
    lost: bool = False
    ends: list[str] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)

    def on_released(
        self, text: str, *, consumed: int, blocked: str, last: bool, replaced: Sequence[tuple[int, int]] = ()
    ) -> None:
        assert not self.ended, "released after the end"
        assert consumed >= self.consumed
        self.text += text
        self.consumed = consumed
        self.replaced += replaced
        self.ended = blocked or ("last" if last else "")

    def on_filter_skipped(self) -> None:
        self.skipped = True

    def on_filter_lost(self) -> None:
        self.lost = True


class Rig:
    """A client on a link."""

    def __init__(self, *, fail_closed: bool = True) -> None:
        self.clock = ManualClock()
        self.link = Link()
        self.found: list[str] = []
        self.client = self.link.client = SafetyClient(
            mux=self.link,  # type: ignore[arg-type]
            clock=self.clock,
            decide_timeout=1.0,
            end_timeout=30.0,
            grace=GRACE,
            chance=lambda: 0.0,
            fail_closed=lambda tenant: fail_closed,
            on_found=lambda tenant, request, stage, found: self.found.append(found.category),
        )

    def open(self, output: Output, traceparent: str = "") -> int:
        return self.client.open(output, tenant="t", policies=PINS, request_id="r", traceparent=traceparent)

    def settle(self) -> None:
        """Let everything that was fed get its answer."""
        self.link.book.keep(PINS, PACK)
        if not self.link.connected:
            self.link.open()
        while self.link.calls or self.client._waiting:
            self.client.sweep()
            self.link.answer()


def rig(*, fail_closed: bool = True) -> Rig:
    return Rig(fail_closed=fail_closed)
