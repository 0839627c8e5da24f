"""`weir.safety.v1`: decode, filter, encode. Outputs and short inputs are answered at once, a whole batch of calls by
one frame; long inputs take turns, and one whose policies are not compiled yet waits, on its own."""

from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass

import grpc
from weir.safety.v1 import safety_pb2, safety_pb2_grpc

from libs.errors import Reason, WeirError
from libs.mux import CallContext, MuxServer, Session
from libs.safety_filter import Finding, Pack, StreamFilter, Tokens, Verdict
from libs.telemetry import get_logger
from services.safety import convert, metrics
from services.safety.packs import PackKeeper
from services.safety.policy.book import Pins
from services.safety.turns import Turns

SERVICE = "weir.safety.v1.SafetyService"
_FILTERS = "filters"
log = get_logger(__name__)


@dataclass(slots=True)
class _Open:
    """An output filter and what its findings are logged with."""

    stream: StreamFilter
    pack: Pack
    tenant: str
    request_id: str


class SafetyHandler:
    """Handles the calls of all sessions. The filters live in their session's state and end with it."""

    def __init__(
        self,
        *,
        keeper: PackKeeper,
        turns: Turns,
        max_filters: int,
        max_context: int,
        max_input: int,
        max_delta: int,
    ) -> None:
        """`max_context`, `max_input` and `max_delta` are in characters."""
        self._keeper = keeper
        self._turns = turns
        self._max_filters = max_filters
        self._max_context = max_context
        self._max_input = max_input
        self._max_delta = max_delta

    def __call__(
        self, call: safety_pb2.SafetyCall, ctx: CallContext
    ) -> safety_pb2.SafetyReply | Awaitable[safety_pb2.SafetyReply]:
        """Return the reply to one call.

        :raises WeirError: INVALID_REQUEST for a malformed call, NOT_FOUND for a filter that is not there (nothing was
            fed then), REJECTED_QUEUE_FULL when the session has too many filters, REJECTED_OVERLOAD when too much of the
            tenant waits, PAYLOAD_TOO_LARGE for a text beyond the limits; of an input's policies see
            `PackKeeper.compiled`.
        """
        if call.HasField("filter_output"):
            return self._filter(call.filter_output, ctx.session)
        if call.HasField("check_input"):
            return self._check(call.check_input)
        raise WeirError(Reason.INVALID_REQUEST, "the call has no operation", limit="op")

    def _check(self, ask: safety_pb2.CheckInput) -> safety_pb2.SafetyReply | Awaitable[safety_pb2.SafetyReply]:
        _bound("max_input_chars", self._max_input, sum(map(len, ask.texts)))
        pins = self._keeper.book.in_force(ask.policies)
        pack = self._keeper.ready(pins)
        if pack is None:
            return self._check_compiled(ask, pins)
        tokens = Tokens(ask.texts)
        verdict = self._start(ask, pack, tokens)
        if isinstance(verdict, Verdict):
            return self._checked(ask, pins, pack, tokens, verdict)
        return self._check_later(ask, pins, pack, tokens, verdict)

    async def _check_compiled(self, ask: safety_pb2.CheckInput, pins: Pins) -> safety_pb2.SafetyReply:
        pack, tokens = await self._keeper.compiled(pins), Tokens(ask.texts)
        verdict = self._start(ask, pack, tokens)
        return self._checked(ask, pins, pack, tokens, verdict if isinstance(verdict, Verdict) else await verdict)

    async def _check_later(
        self, ask: safety_pb2.CheckInput, pins: Pins, pack: Pack, tokens: Tokens, verdict: Future[Verdict]
    ) -> safety_pb2.SafetyReply:
        return self._checked(ask, pins, pack, tokens, await verdict)

    def _start(self, ask: safety_pb2.CheckInput, pack: Pack, tokens: Tokens) -> Verdict | Future[Verdict]:
        texts = list(ask.texts)
        return self._turns.start(ask.tenant, pack.steps(pack.input, texts, tokens.token), sum(map(len, texts)))

    def _checked(
        self, ask: safety_pb2.CheckInput, pins: Pins, pack: Pack, tokens: Tokens, verdict: Verdict
    ) -> safety_pb2.SafetyReply:
        metrics.INPUTS[verdict.action].inc()
        if verdict.findings:
            _report(convert.distinct(verdict.findings), "input", ask.tenant, ask.request_id)
        return convert.input_reply(verdict, pins, values=tokens.values, alters_output=pack.alters_output)

    def _filter(self, ask: safety_pb2.FilterOutput, session: Session) -> safety_pb2.SafetyReply:
        filters: dict[int, _Open] | None = session.state.get(_FILTERS)
        if filters is None:
            filters = session.state[_FILTERS] = {}
            session.on_close(lambda: metrics.FILTERS.dec(len(filters)))
        numbers, deltas, last = ask.filters, ask.deltas, ask.last
        if len(deltas) != len(numbers) or (last and len(last) != len(numbers)):
            raise WeirError(Reason.INVALID_REQUEST, "filters, deltas and last differ in length", limit="deltas")
        _bound("max_delta_chars", self._max_delta, max(map(len, deltas), default=0))
        opening, absent = self._opening(ask.open, filters) if ask.open else ({}, frozenset())
        # Everything is looked up before anything is fed: a call that fails has changed nothing.
        fed = [None if each in absent else opening.get(each) or filters.get(each) for each in numbers]
        if not all(fed):
            for number, one in zip(numbers, fed, strict=True):
                if one is None and number not in absent:
                    raise WeirError(Reason.NOT_FOUND, f"filter {number} is not open on this stream", limit="filters")
        if opening:
            metrics.FILTERS.inc(len(opening.keys() - filters.keys()))
            filters.update(opening)
        reply = safety_pb2.SafetyReply()
        output = reply.output
        output.SetInParent()
        released, held = [], []
        for position, (one, delta) in enumerate(zip(fed, deltas, strict=True)):
            if one is None:
                # One such choice must not fail the call that carries all the others.
                output.absent.append(position)
                released.append("")
                held.append(len(delta))
                continue
            stream = one.stream
            text = stream.feed(delta)
            if last and last[position]:
                text += stream.finish()
                self._forget(filters, numbers[position])
            released.append(text)
            held.append(stream.held)
            if stream.findings:
                _add_findings(output, position, one)
        output.released.extend(released)
        output.held.extend(held)
        for number in ask.close:
            self._forget(filters, number)
        metrics.DELTAS.inc(len(released))
        return reply

    def _opening(
        self, asks: Iterable[safety_pb2.OpenFilter], filters: dict[int, _Open]
    ) -> tuple[dict[int, _Open], frozenset[int]]:
        """The filters opened, anew where they were open, and the numbers of those whose pack is not compiled."""
        opening: dict[int, _Open] = {}
        absent: set[int] = set()
        for ask in asks:
            if ask.filter in opening or ask.filter in absent:
                raise WeirError(Reason.INVALID_REQUEST, f"filter {ask.filter} is opened twice", limit="open")
            if len(filters) + len(opening) >= self._max_filters:
                raise WeirError(Reason.REJECTED_QUEUE_FULL, "too many output filters are open", limit="max_filters")
            # Exactly these: what held for the request's input holds for its output, wherever it is opened again.
            pack = self._keeper.ready(tuple(ask.policies) or self._keeper.book.floor)
            if pack is None:
                absent.add(ask.filter)
            else:
                opening[ask.filter] = self._open(ask, pack)
        return opening, frozenset(absent)

    def _open(self, ask: safety_pb2.OpenFilter, pack: Pack) -> _Open:
        stream = pack.open_output(json=ask.json)
        if ask.context:
            stream.seed(ask.context[-self._max_context :])
        return _Open(stream, pack, ask.tenant, ask.request_id)

    def _forget(self, filters: dict[int, _Open], number: int) -> None:
        if filters.pop(number, None) is not None:
            metrics.FILTERS.dec()


class SafetyServicer(safety_pb2_grpc.SafetyServiceServicer):
    """The multiplexed stream of each gateway."""

    def __init__(self, *, mux: MuxServer) -> None:
        self._mux = mux

    async def Session(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[safety_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serves one stream until it ends."""
        await self._mux.serve(request_iterator, context)


def _bound(limit: str, most: int, size: int) -> None:
    """Refuse a text by its length, before anything looks at it.

    :raises WeirError: PAYLOAD_TOO_LARGE, naming the limit.
    """
    if size > most:
        raise WeirError(Reason.PAYLOAD_TOO_LARGE, f"{size} characters; the limit is {most}", limit=limit)


def _add_findings(output: safety_pb2.OutputReleased, position: int, one: _Open) -> None:
    stages = one.pack.output.full
    findings = convert.distinct(one.pack.finding(stages, index) for index in one.stream.findings)
    one.stream.findings.clear()
    for begin, end in one.stream.replaced:
        output.replaced.add(position=position, begin=begin, end=end)
    one.stream.replaced.clear()
    for finding in findings:
        output.findings.add(position=position, intervention=convert.intervention(finding))
    _report(findings, "output", one.tenant, one.request_id)


def _report(findings: Iterable[Finding], stage: str, tenant: str, request_id: str) -> None:
    """Log and count findings: what was found and where, never the text."""
    for finding in findings:
        metrics.INTERVENTIONS.labels(stage, finding.category, finding.action).inc()
        log.info(
            "safety_intervention",
            tenant=tenant,
            request_id=request_id,
            stage=stage,
            category=finding.category,
            pattern=finding.pattern,
            action=finding.action,
            pack=finding.pack,
        )
