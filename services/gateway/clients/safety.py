"""Safety over the multiplexed stream: inputs are checked, outputs filtered once per engine step, all texts together.

How a filter is reopened (ADR 3): it lives in the safety service, on one stream, and outlasts it here. What is kept of
each text is what is undecided, all of it, and the end of what is decided. One question about a text is under way at a
time; its answer is about all that was sent, and decides that but for the characters `held` at its end. A stream that
breaks, a call that fails, policies that are not compiled there: after any of these the filter counts as lost. The next
question opens it anew, with the decided end as context, and has everything undecided: nothing is lost, leaks, or is
doubled. It is asked about alone then, if one text is what breaks the filter. Until it is answered the tenant's policy
decides: fail closed holds the text for a grace period and then ends the stream, serve and flag lets it go. Either waits
that long for policies that have not reached safety yet.
"""

from __future__ import annotations

from asyncio import Future
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from weir.safety.v1 import safety_pb2 as pb

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import MuxClient, Semantics, start_decision
from libs.occupancy import jittered
from libs.telemetry import get_logger, place_of
from libs.telemetry.tracing import CLIENT, Span, is_sampled, span
from services.gateway import metrics
from services.gateway.ports import FilteredChoice, InputCheck

log = get_logger(__name__)
_CONTEXT_CHARS = 512
"""Decided text kept for opening a filter anew; longer than any pattern may match (services/safety bounds them)."""
_TRACED_QUESTIONS = 4
"""Questions about a text of a traced request that have a span: there is one per step, and a trace holds some spans."""
_REPLACED = (pb.ACTION_REDACT, pb.ACTION_TOKENISE)


@dataclass(slots=True, eq=False, repr=False)
class _Text:
    """On its way through its filter."""

    number: int
    choice: FilteredChoice
    opening: pb.OpenFilter
    traceparent: str
    traced: int = 0  # questions that had a span
    context: str = ""  # the end of the decided text
    undecided: str = ""  # fed, and not decided yet
    sent: int = 0  # characters of it that the open filter has
    decided: int = 0  # characters decided
    begun: int = 0  # of these, before the filter was opened
    stream: int = 0  # where it is open; 0: nowhere, -1: nobody knows
    asked: bool = False  # a question is under way
    last: bool = False  # the text is complete
    since: float | None = None  # when it was lost

    def reopen(self, stream: int) -> pb.OpenFilter:
        self.stream, self.begun, self.sent = stream, self.decided, 0
        self.opening.context = self.context
        return self.opening

    def send(self) -> str:
        text = self.undecided[self.sent :] if self.sent else self.undecided
        self.asked, self.sent = True, len(self.undecided)
        return text

    def decide(self, end: int) -> str:
        text, self.undecided = self.undecided[:end], self.undecided[end:]
        self.context = (self.context + text)[-_CONTEXT_CHARS:]
        self.decided += end
        self.sent -= end
        return text


@dataclass(eq=False, kw_only=True)
class SafetyClient:
    """Input check, and an `OutputFilter`. Fallback by the tenant's policy: refuse, or serve and flag. Times are in
    seconds."""

    mux: MuxClient
    clock: Clock
    decide_timeout: float
    end_timeout: float
    grace: float
    chance: Callable[[], float]
    """Gives numbers in [0, 1), for jitter."""
    fail_closed: Callable[[str], bool]
    """A tenant's policy for an absent filter."""
    on_found: Callable[[str, str, str, pb.Intervention], None]
    """Told tenant, request id, "input" or "output", and the finding, for the audit log. Must not block."""
    _numbers: count[int] = field(default_factory=lambda: count(1), init=False)
    _texts: dict[int, _Text] = field(default_factory=dict, init=False)
    _due: dict[int, _Text] = field(default_factory=dict, init=False)  # to be asked about
    _waiting: dict[int, _Text] = field(default_factory=dict, init=False)  # lost
    _closing: list[int] = field(default_factory=list, init=False)
    _traced: set[int] = field(default_factory=set, init=False)  # texts whose next question has a span

    def start_check(
        self,
        *,
        tenant: str,
        policies: Sequence[str],
        texts: Sequence[str],
        request_id: str,
        deadline: Deadline,
        traceparent: str,
    ) -> Future[InputCheck]:
        """Check an input under the floor and these policies.

        :raises WeirError: CONTENT_FILTER, or DEPENDENCY_UNAVAILABLE under fail closed (through the future).
        """
        asked, closed = tuple(policies), self.fail_closed(tenant)
        # Who may not pass unchecked waits as long as its output would: longer than a silent peer takes to be left.
        patience = max(self.decide_timeout, self.grace) if closed else self.decide_timeout

        def away() -> InputCheck:
            if closed:
                retry = jittered(1.0, self.chance)
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the safety service is away", retry_after=retry)
            return InputCheck(None, skipped=True, asked=asked, policies=asked)

        def read(reply: pb.SafetyReply) -> InputCheck:
            verdict = reply.input
            for found in verdict.interventions:
                self._found(tenant, request_id, "input", found)
            if verdict.action == pb.ACTION_BLOCK:
                raise WeirError.from_rejection(verdict.rejection)
            return InputCheck(
                tuple(verdict.texts) if verdict.action in _REPLACED else None,
                tuple(found.category for found in verdict.interventions),
                asked=asked,
                policies=tuple(verdict.policies),
                alters_output=verdict.alters_output,
                values={value.token: value.value for value in verdict.values},
            )

        check = pb.CheckInput(tenant=tenant, policies=policies, texts=texts, request_id=request_id)
        return start_decision(
            self.mux,
            pb.SafetyCall(check_input=check),
            deadline=Deadline.after(patience, self.clock).earlier(deadline),
            traceparent=traceparent,
            read=read,
            fallback=away,
            wait=self.mux.away < self.grace,  # as long as a restart takes
        )

    def open(
        self,
        choice: FilteredChoice,
        *,
        tenant: str,
        policies: Sequence[str],
        request_id: str,
        json: bool = False,
        traceparent: str = "",
    ) -> int:
        """See `OutputFilter`."""
        number = next(self._numbers)
        opening = pb.OpenFilter(filter=number, tenant=tenant, policies=policies, request_id=request_id, json=json)
        self._texts[number] = _Text(number, choice, opening, traceparent)
        if is_sampled(traceparent):
            self._traced.add(number)
        return number

    def feed(self, number: int, text: str, *, last: bool) -> None:
        """See `OutputFilter`."""
        if (entry := self._texts.get(number)) is not None:
            entry.undecided += text
            entry.last = last
            if not entry.asked and number not in self._waiting:
                self._due[number] = entry

    def flush(self) -> None:
        """See `OutputFilter`."""
        due, self._due = list(self._due.values()), {}
        if due or self._closing:
            self._ask(due)

    def close(self, number: int) -> None:
        """See `OutputFilter`."""
        if (entry := self._texts.pop(number, None)) is not None:
            self._due.pop(number, None)
            self._waiting.pop(number, None)
            self._traced.discard(number)
            if entry.stream:
                self._closing.append(number)

    def on_stream(self, generation: int) -> None:
        """A new stream is open (MuxClient's `on_stream`): ask again about what is lost."""
        self._due |= self._waiting
        self._waiting = {}
        self.flush()

    def sweep(self) -> None:
        """Ask again about what is lost, or give it up; called about twice a second."""
        waiting, self._waiting = self._waiting, {}
        for number, entry in waiting.items():
            if number in self._texts:
                self._ask([entry])

    def _ask(self, entries: list[_Text]) -> None:
        call, generation, asked = pb.SafetyCall(), self.mux.generation, self.clock.monotonic()
        question = call.filter_output
        spans = self._spans(entries) if self._traced else ()

        def answered(reply: pb.SafetyReply | None, error: WeirError | None) -> None:
            _end(spans, error)
            self._answered(entries, question, reply, asked)

        try:
            if not self.mux.connected:
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the safety service is away")
            question.open.extend([each.reopen(generation) for each in entries if each.stream != generation])
            question.deltas.extend([each.send() for each in entries])
            question.filters.extend([each.number for each in entries])
            question.last.extend([each.last for each in entries])
            question.close.extend(self._closing)
            self.mux.call_nowait(
                call,
                deadline=Deadline.after(self.end_timeout, self.clock),
                semantics=Semantics.ONCE,
                on_reply=answered,
                traceparent=spans[0].traceparent if spans else "",
                generation=generation,
            )
            self._closing = []
        except (WeirError, ValueError) as error:  # ValueError: a text that cannot travel
            _end(spans, error)
            self._lost(entries)

    def _spans(self, entries: list[_Text]) -> list[Span]:
        """Of a question, one under the span of each traced request that has a text in it. What safety does hangs under
        the first, which is linked to the other requests, and their spans to it."""
        asked = [entry for entry in entries if entry.number in self._traced]
        for entry in asked:
            entry.traced += 1
            if entry.traced == _TRACED_QUESTIONS:
                self._traced.discard(entry.number)
        spans, requests = list[Span](), list(dict.fromkeys(entry.traceparent for entry in asked))
        for request in requests:
            links = [spans[0].traceparent] if spans else requests[1:]
            texts = {"weir.filter.texts": len(entries)}
            spans.append(span("safety.filter_output", request, kind=CLIENT, attributes=texts, links=links))
        return spans

    def _answered(
        self, entries: list[_Text], question: pb.FilterOutput, reply: pb.SafetyReply | None, asked: float
    ) -> None:
        if reply is None or not _fits(reply.output, len(entries)):
            self._closing += question.close  # perhaps not done; once more does no harm
            self._lost(entries)
            return
        metrics.FILTER.observe(self.clock.monotonic() - asked)
        output = reply.output
        blocked: dict[int, str] = {}
        for finding in output.findings:
            opening, found = entries[finding.position].opening, finding.intervention
            if entries[finding.position].number in self._texts:
                self._found(opening.tenant, opening.request_id, "output", found)
            if found.action == pb.ACTION_BLOCK:
                blocked[finding.position] = found.category
        replaced: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for part in output.replaced:
            begun = entries[part.position].begun
            replaced[part.position].append((begun + part.begin, begun + part.end))
        absent = frozenset(output.absent)
        for position, (entry, text, held, last) in enumerate(
            zip(entries, output.released, output.held, question.last, strict=True)
        ):
            number, category = entry.number, blocked.get(position, "")
            if position in absent:
                self._lost([entry], absent=True)
            elif number in self._texts:
                entry.asked, entry.since = False, None
                entry.decide(entry.sent - held)
                if last:
                    del self._texts[number]  # as it is there
                    self._traced.discard(number)
                elif category:
                    self.close(number)
                elif entry.last or entry.sent < len(entry.undecided):  # fed meanwhile
                    self._due[number] = entry
                spans = replaced.get(position, ())
                try:
                    entry.choice.on_released(text, consumed=entry.decided, blocked=category, last=last, replaced=spans)
                except Exception as error:
                    self._failed(error, entry)
        self.flush()

    def _lost(self, entries: list[_Text], *, absent: bool = False) -> None:
        now = self.clock.monotonic()
        for entry in entries:
            entry.asked, entry.stream = False, -1
            if (number := entry.number) not in self._texts:
                continue
            entry.since = now if entry.since is None else entry.since
            closed = self.fail_closed(entry.opening.tenant)
            if len(entries) > 1 and self.mux.connected:
                self._ask([entry])
            elif (closed or absent) and now < entry.since + self.grace:
                self._waiting[number] = entry
            else:
                try:
                    self._give_up(entry, closed=closed)
                except Exception as error:
                    self._failed(error, entry)

    def _give_up(self, entry: _Text, *, closed: bool) -> None:
        if closed:
            entry.choice.on_filter_lost()
            return
        text = entry.decide(len(entry.undecided))
        if entry.last:
            self.close(entry.number)
        entry.choice.on_filter_skipped()
        entry.choice.on_released(text, consumed=entry.decided, blocked="", last=entry.last)

    def _found(self, tenant: str, request_id: str, stage: str, found: pb.Intervention) -> None:
        try:
            self.on_found(tenant, request_id, stage, found)
        except Exception as error:  # not recorded, it still holds
            self._failed(error)

    def _failed(self, error: Exception, entry: _Text | None = None) -> None:
        """One text's fault ends its own request: the others of its batch get theirs."""
        log.error("filter_not_heard", error=type(error).__name__, where=place_of(error))
        if entry is not None:
            entry.choice.on_fault()


def _end(spans: Sequence[Span], error: Exception | None) -> None:
    for each in spans:
        each.__exit__(None if error is None else type(error), error, None)


def _fits(output: pb.OutputReleased, count: int) -> bool:
    """Whether an answer is about as many texts as were asked about."""
    found = [each.position for each in output.findings] + [each.position for each in output.replaced]
    return len(output.released) == count == len(output.held) and all(position < count for position in found)
