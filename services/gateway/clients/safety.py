"""Safety over the multiplexed stream: the input check, and the output filters fed once per engine step.

Output filters live on the stream. When it is lost, every open filter is opened again on the next one with the text it
had already decided on as context, and fed again what it had not: nothing is lost, nothing leaks, nothing is doubled.
While safety is away the tenant's policy decides: fail closed holds the text back for a grace period and then ends the
stream; serve-and-flag lets it through. The same holds for one whose policies have not reached safety in that time.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence

from weir.safety.v1 import safety_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import MuxClient, Semantics
from libs.telemetry import get_logger, place_of
from services.gateway.clients.decision import start_decision
from services.gateway.clients.filter_batch import Batch, Filter, call_of, fits
from services.gateway.policy.turnover import jittered
from services.gateway.ports import FilteredChoice, InputCheck

log = get_logger(__name__)
_CONTEXT_CHARS = 512
"""Decided text kept for reopening a filter; longer than any pattern may match (services/safety bounds them)."""
_RETRY_SECONDS = 0.02
_REPLACED = (safety_pb2.ACTION_REDACT, safety_pb2.ACTION_TOKENISE)

OnFound = Callable[[str, str, str, safety_pb2.Intervention], None]
"""Called with tenant, request id, "input" or "output", and the finding. Must not block or raise."""


class SafetyClient:
    """Implements `SafetyPort`."""

    def __init__(
        self,
        mux: MuxClient,
        *,
        clock: Clock,
        decide_timeout: float,
        end_timeout: float,
        grace: float,
        fail_closed: Callable[[str], bool],
        on_found: OnFound,
        chance: Callable[[], float],
    ) -> None:
        """`fail_closed(tenant)` is the tenant's policy for an absent filter; `grace` is in seconds; `on_found` is told
        of every finding, for the audit log; `chance` gives numbers in [0, 1), for jitter."""
        self._mux = mux
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._end_timeout = end_timeout
        self._grace = grace
        self._fail_closed = fail_closed
        self._on_found = on_found
        self._chance = chance
        self._numbers = 0
        self._filters: dict[int, Filter] = {}
        self._batch = Batch()
        self._turn = 1  # the number of that batch
        self._wires = 0
        self._closing: list[int] = []
        self._waiting: dict[int, Filter] = {}  # filters with text that could not be sent
        self._retry: asyncio.TimerHandle | None = None

    # ---- input ---------------------------------------------------------------------------------------------------

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
        """See `SafetyPort`."""
        check = safety_pb2.CheckInput(tenant=tenant, policies=policies, texts=texts, request_id=request_id)
        asked = tuple(policies)

        def away() -> InputCheck:
            if self._fail_closed(tenant):
                retry = jittered(1.0, self._chance)
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the safety service is away", retry_after=retry)
            return InputCheck(None, skipped=True, asked=asked, policies=asked)

        def read(reply: safety_pb2.SafetyReply) -> InputCheck:
            for found in reply.input.interventions:
                self._tell_found(tenant, request_id, "input", found)
            return _input_check(reply.input, asked)

        return start_decision(
            self._mux,
            safety_pb2.SafetyCall(check_input=check),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=read,
            fallback=away,
            wait=self._mux.away < self._grace,  # as long as a restart takes
        )

    # ---- output --------------------------------------------------------------------------------------------------

    def open(
        self, choice: FilteredChoice, *, tenant: str, policies: Sequence[str], request_id: str, json: bool = False
    ) -> int:
        """See `SafetyPort`."""
        self._numbers += 1
        self._filters[self._numbers] = Filter(self._numbers, choice, tenant, tuple(policies), request_id, json=json)
        return self._numbers

    def feed(self, number: int, text: str, *, last: bool) -> None:
        """See `SafetyPort`."""
        entry = self._filters.get(number)
        if entry is None:
            return
        entry.undecided += text
        entry.fed += len(text)
        entry.last = last
        if number in self._waiting:
            return
        self._add(entry, text)

    def flush(self) -> None:
        """See `SafetyPort`."""
        batch = self._batch
        if not batch.filters and not self._closing:
            return
        self._next_batch()
        closing, self._closing = self._closing, []
        if not self._mux.connected:
            self._lost(batch, [entry.epoch for entry in batch.filters])
            return
        self._send(batch, closing)

    def close(self, number: int) -> None:
        """See `SafetyPort`."""
        entry = self._filters.pop(number, None)
        self._waiting.pop(number, None)
        if entry is not None and entry.opened == self._mux.generation:
            self._closing.append(entry.wire)

    def on_stream(self, generation: int) -> None:
        """A new stream is open (MuxClient's `on_stream`): every filter with undecided text is reopened on it."""
        self._waiting.clear()
        self._next_batch()  # whatever it holds is undecided, and so is fed again below
        for entry in self._filters.values():
            if entry.opened != generation and (entry.undecided or entry.last):
                self._reopen(entry)
        self.flush()

    def sweep(self) -> None:
        """End or release what has waited for the grace period; called about once a second."""
        for entry in [each for each in self._waiting.values() if self._is_overdue(each)]:
            self._give_up(entry)
        self.flush()

    # ---- internals -----------------------------------------------------------------------------------------------

    def _next_batch(self) -> None:
        self._batch = Batch()
        self._turn += 1

    def _add(self, entry: Filter, text: str) -> None:
        batch = self._batch
        if entry.turn == self._turn:
            # Its tokens and its end in one frame: one entry, since `last` belongs to the end of both.
            batch.deltas[entry.slot] += text
            return
        if entry.opened != self._mux.generation:
            entry.opened = self._mux.generation
            entry.base = entry.fed - len(entry.undecided)
            self._wires += 1
            entry.wire = self._wires
            batch.opens.append(entry)
        entry.turn, entry.slot = self._turn, len(batch.filters)
        batch.filters.append(entry)
        batch.deltas.append(text)

    def _reopen(self, entry: Filter) -> None:
        entry.epoch += 1
        entry.opened = 0
        self._add(entry, entry.undecided)

    def _send(self, batch: Batch, closing: list[int]) -> None:
        entries, generation = batch.filters, self._mux.generation
        # The state of each filter at this moment: what the answer will be about.
        marks = [(entry.epoch, entry.fed, entry.last) for entry in entries]

        def on_reply(reply: safety_pb2.SafetyReply | None, error: WeirError | None) -> None:
            if reply is None or not fits(reply.output, len(entries)):
                if generation == self._mux.generation:
                    self._closing += closing  # perhaps not done; once more does no harm
                self._lost(batch, [mark[0] for mark in marks])
            else:
                self._released(entries, marks, reply.output)

        try:
            self._mux.call_nowait(
                call_of(batch, closing),
                deadline=Deadline.after(self._end_timeout, self._clock),
                semantics=Semantics.ONCE,
                on_reply=on_reply,
                generation=generation,
            )
        except (WeirError, ValueError):  # ValueError: text of one of them that cannot travel; each is tried alone next
            self._lost(batch, [mark[0] for mark in marks])

    def _released(
        self, entries: list[Filter], marks: list[tuple[int, int, bool]], output: safety_pb2.OutputReleased
    ) -> None:
        blocked: dict[int, str] = {}
        for finding in output.findings:
            entry, found = entries[finding.position], finding.intervention
            if entry.epoch == marks[finding.position][0] and entry.number in self._filters:
                self._tell_found(entry.tenant, entry.request_id, "output", found)
            if found.action == safety_pb2.ACTION_BLOCK:
                blocked[finding.position] = found.category
        replaced: dict[int, list[tuple[int, int]]] = {}
        for span in output.replaced:
            base = entries[span.position].base
            replaced.setdefault(span.position, []).append((base + span.begin, base + span.end))
        absent = frozenset(output.absent)
        for position, (entry, mark, text, held) in enumerate(
            zip(entries, marks, output.released, output.held, strict=True)
        ):
            epoch, fed, last = mark
            if entry.epoch != epoch or entry.number not in self._filters:
                continue
            if position in absent:  # its policies have not arrived there yet
                entry.opened = 0
                self._wait(entry)
                if self._is_overdue(entry):  # it is never still for long enough to be swept
                    self._give_up(entry)
                continue
            decided = len(entry.undecided) - (entry.fed - fed) - held
            entry.blocked_since = None
            if decided > 0:
                entry.context = (entry.context + entry.undecided[:decided])[-_CONTEXT_CHARS:]
                entry.undecided = entry.undecided[decided:]
            category = blocked.get(position, "")
            if last or category:
                del self._filters[entry.number]
                if not last:  # it forgets those that got their last text by itself
                    self._closing.append(entry.wire)
            spans = replaced.get(position, ())
            try:
                entry.choice.on_released(text, consumed=fed - held, blocked=category, last=last, replaced=spans)
            except Exception as error:
                self._faulted(entry, error)
        self._retry_soon()

    def _lost(self, batch: Batch, epochs: list[int]) -> None:
        """A batch did not get through: hold its filters' text, or let it go where the tenant's policy says so."""
        for entry, epoch in zip(batch.filters, epochs, strict=True):
            if entry.epoch != epoch or entry.number not in self._filters:
                continue
            if entry.opened == self._mux.generation and self._mux.connected:
                self._closing.append(entry.wire)  # only this call failed: the filter may be open there still
            entry.opened = 0
            if self._fail_closed(entry.tenant):
                self._wait(entry)
            else:
                entry.epoch += 1
                self._pass(entry)
        self._retry_soon()

    def _wait(self, entry: Filter) -> None:
        entry.epoch += 1
        if entry.blocked_since is None:
            entry.blocked_since = self._clock.monotonic()
        self._waiting[entry.number] = entry

    def _is_overdue(self, entry: Filter) -> bool:
        since = entry.blocked_since
        return since is not None and self._clock.monotonic() - since >= self._grace

    def _give_up(self, entry: Filter) -> None:
        self._waiting.pop(entry.number, None)
        if not self._fail_closed(entry.tenant):
            self._pass(entry)
            return
        try:
            entry.choice.on_filter_lost()
        except Exception as error:
            self._faulted(entry, error)

    def _retry_soon(self) -> None:
        if self._waiting and self._mux.connected and self._retry is None:
            # Refused, or lost after the next stream had opened: no on_stream will come for it.
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._reopen_waiting)

    def _reopen_waiting(self) -> None:
        self._retry = None
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            # One call each: if the text of one is what breaks the filter, the others must not wait with it.
            self._reopen(entry)
            self.flush()

    def _pass(self, entry: Filter) -> None:
        text, entry.undecided = entry.undecided, ""
        entry.context = (entry.context + text)[-_CONTEXT_CHARS:]
        if entry.last:
            del self._filters[entry.number]
        try:
            entry.choice.on_filter_skipped()
            entry.choice.on_released(text, consumed=entry.fed, blocked="", last=entry.last)
        except Exception as error:
            self._faulted(entry, error)

    def _faulted(self, entry: Filter, error: Exception) -> None:
        """One choice's fault ends that choice's request: the others of its batch get their text."""
        log.error("choice_failed", error=type(error).__name__, where=place_of(error))
        entry.choice.on_fault()

    def _tell_found(self, tenant: str, request_id: str, stage: str, found: safety_pb2.Intervention) -> None:
        try:
            self._on_found(tenant, request_id, stage, found)
        except Exception as error:  # a finding that cannot be recorded still holds
            log.error("finding_not_recorded", error=type(error).__name__, where=place_of(error))


def _input_check(verdict: safety_pb2.InputVerdict, asked: tuple[str, ...]) -> InputCheck:
    if verdict.action == safety_pb2.ACTION_BLOCK:
        raise WeirError.from_rejection(verdict.rejection)
    return InputCheck(
        tuple(verdict.texts) if verdict.action in _REPLACED else None,
        tuple(found.category for found in verdict.interventions),
        asked=asked,
        policies=tuple(verdict.policies),
        alters_output=verdict.alters_output,
        values={value.token: value.value for value in verdict.values},
    )
