"""`weir.safety.v1`: decode, filter, encode. Synchronous: a whole batch of calls is answered by one frame."""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import grpc
from weir.safety.v1 import safety_pb2, safety_pb2_grpc

from libs.errors import Reason, WeirError
from libs.mux import CallContext, MuxServer, Session
from libs.rpc import require_peer
from libs.safety_filter import Finding, Pack, StreamFilter
from libs.telemetry import get_logger
from services.safety import convert, metrics
from services.safety.policy.book import PolicyBook, UnknownPolicyError

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
    sealed: bool = False
    """Its policy is unknown: nothing leaves. One such choice must not fail the call that carries all the others."""


class SafetyHandler:
    """Handles the calls of all sessions. The filters live in their session's state and end with it."""

    def __init__(self, *, book: Callable[[], PolicyBook], max_filters: int, max_context: int) -> None:
        self._book = book
        self._max_filters = max_filters
        self._max_context = max_context

    def __call__(self, call: safety_pb2.SafetyCall, ctx: CallContext) -> safety_pb2.SafetyReply:
        """Return the reply to one call.

        :raises WeirError: INVALID_REQUEST for a malformed call, NOT_FOUND for an input's policy or a filter that is not
            there (nothing was fed then), REJECTED_QUEUE_FULL when the session has too many filters.
        """
        if call.HasField("filter_output"):
            return self._filter(call.filter_output, ctx.session)
        if call.HasField("check_input"):
            return self._check(call.check_input)
        raise WeirError(Reason.INVALID_REQUEST, "the call has no operation", limit="op")

    def _check(self, ask: safety_pb2.CheckInput) -> safety_pb2.SafetyReply:
        verdict = self._pack(ask.tenant, ask.policy).check_input(ask.texts)
        metrics.INPUTS[verdict.action].inc()
        if verdict.findings:
            _report(convert.distinct(verdict.findings), "input", ask.tenant, ask.request_id)
        return convert.input_reply(verdict)

    def _filter(self, ask: safety_pb2.FilterOutput, session: Session) -> safety_pb2.SafetyReply:
        filters: dict[int, _Open] | None = session.state.get(_FILTERS)
        if filters is None:
            filters = session.state[_FILTERS] = {}
            session.on_close(lambda: metrics.FILTERS.dec(len(filters)))
        numbers, deltas, last = ask.filters, ask.deltas, ask.last
        if len(deltas) != len(numbers) or (last and len(last) != len(numbers)):
            raise WeirError(Reason.INVALID_REQUEST, "filters, deltas and last differ in length", limit="deltas")
        opening = self._opening(ask.open, filters) if ask.open else {}
        # Everything is looked up before anything is fed: a call that fails has changed nothing.
        try:
            fed = [filters.get(number) or opening[number] for number in numbers]
        except KeyError as error:
            raise WeirError(Reason.NOT_FOUND, f"filter {error} is not open on this stream", limit="filters") from None
        if opening:
            filters.update(opening)
            metrics.FILTERS.inc(len(opening))
        reply = safety_pb2.SafetyReply()
        output = reply.output
        output.SetInParent()
        released, held = [], []
        for position, (one, delta) in enumerate(zip(fed, deltas, strict=True)):
            stream = one.stream
            text = stream.feed(delta)
            if last and last[position]:
                text += stream.finish()
                self._forget(filters, numbers[position])
            released.append(text)
            held.append(stream.held)
            if stream.findings:
                _add_findings(output, position, one)
            elif one.sealed:
                _seal(output, position, one)
        output.released.extend(released)
        output.held.extend(held)
        for number in ask.close:
            self._forget(filters, number)
        metrics.DELTAS.inc(len(released))
        return reply

    def _opening(self, asks: Iterable[safety_pb2.OpenFilter], filters: dict[int, _Open]) -> dict[int, _Open]:
        opening: dict[int, _Open] = {}
        for ask in asks:
            if ask.filter in filters or ask.filter in opening:
                raise WeirError(Reason.INVALID_REQUEST, f"filter {ask.filter} is open already", limit="open")
            if len(filters) + len(opening) >= self._max_filters:
                raise WeirError(Reason.REJECTED_QUEUE_FULL, "too many output filters are open", limit="max_filters")
            opening[ask.filter] = self._open(ask)
        return opening

    def _open(self, ask: safety_pb2.OpenFilter) -> _Open:
        book = self._book()
        try:
            pack = book.pack_for(ask.tenant, ask.policy)
        except UnknownPolicyError:
            pack = book.pack_for("", book.default)
            sealed = _Open(pack.open_output(), pack, ask.tenant, ask.request_id, sealed=True)
            sealed.stream.blocked = True
            return sealed
        stream = pack.open_output()
        if ask.context:
            stream.seed(ask.context[-self._max_context :])
        return _Open(stream, pack, ask.tenant, ask.request_id)

    def _forget(self, filters: dict[int, _Open], number: int) -> None:
        if filters.pop(number, None) is not None:
            metrics.FILTERS.dec()

    def _pack(self, tenant: str, policy: str) -> Pack:
        try:
            return self._book().pack_for(tenant, policy)
        except UnknownPolicyError as error:
            raise WeirError(Reason.NOT_FOUND, f"no safety policy {error}", limit="policy") from None


class SafetyServicer(safety_pb2_grpc.SafetyServiceServicer):
    """The multiplexed stream of each gateway."""

    def __init__(self, *, mux: MuxServer, peers: tuple[str, ...], tls: bool) -> None:
        self._mux = mux
        self._peers = peers
        self._tls = tls

    async def Session(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[safety_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serves one stream until it ends.

        :raises WeirError: PERMISSION_DENIED for a peer that may not open a session.
        """
        require_peer(context, self._peers, tls=self._tls)
        await self._mux.serve(request_iterator, context)


def _add_findings(output: safety_pb2.OutputReleased, position: int, one: _Open) -> None:
    stages = one.pack.output.full
    findings = convert.distinct(one.pack.finding(stages, index) for index in one.stream.findings)
    one.stream.findings.clear()
    for finding in findings:
        output.findings.add(position=position, intervention=convert.intervention(finding))
    _report(findings, "output", one.tenant, one.request_id)


def _seal(output: safety_pb2.OutputReleased, position: int, one: _Open) -> None:
    finding = Finding(category="policy.unknown", pattern="", action="block", pack="")
    output.findings.add(position=position, intervention=convert.intervention(finding))
    _report((finding,), "output", one.tenant, one.request_id)


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
