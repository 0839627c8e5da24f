"""Between the engine and the gateways: numbers sequences, hands each step's output to the sessions it belongs to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from weir.worker.v1 import worker_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.mux.wake import Wake
from libs.telemetry import accelerators
from libs.telemetry.tracing import SERVER, Span, is_sampled, span
from services.worker import metrics
from services.worker.convert import request_of
from services.worker.engines.port import Engine, EngineInfo, FinishReason, StepOutput
from services.worker.policy.checks import Asked
from services.worker.policy.outbox import Outbox

_MAX_REFUSED = 4096  # refusals kept for one gateway: more than any that reads will ever have unread
_PREEMPTED = WeirError(Reason.PREEMPTED, "interrupted for more urgent work; what is delivered stands")


_FAR = 16  # tokens; as CapacityReport.progress says


class Mailbox:
    """A gateway session as the hub sees it. `wake` is set when there is something to write."""

    __slots__ = ("closed", "handles", "on_overrun", "outbox", "refused", "wake")

    def __init__(self, *, on_overrun: Callable[[], None]) -> None:
        """`on_overrun` is called when the reader has fallen too far behind."""
        self.outbox = Outbox()
        self.wake = Wake()
        self.handles: dict[int, int] = {}
        """The gateway's number of each live sequence to the engine's handle."""
        self.refused: list[tuple[int, WeirError]] = []
        """The gateway's numbers of sequences that the worker does not run, or runs no more."""
        self.closed = False
        self.on_overrun = on_overrun

    def refuse(self, refusals: Iterable[tuple[int, WeirError]]) -> None:
        """Tell the gateway of sequences that do not run here, or no more. Bounded as the outbox is: a gateway that
        submits and does not read is cut."""
        if self.closed:
            return
        self.refused += refusals
        if len(self.refused) > _MAX_REFUSED:
            self.on_overrun()
        self.wake.set()

    def take_refused(self) -> list[tuple[int, WeirError]]:
        """All that was refused since the last call."""
        refused, self.refused = self.refused, []
        return refused


class _Sequence:
    __slots__ = (
        "blocks",
        "cancelled_at",
        "cancelled_step",
        "epoch",
        "first_at",
        "group",
        "held",
        "interrupted",
        "mailbox",
        "milestone",
        "model",
        "number",
        "produced",
        "prompt_tokens",
        "request_id",
        "seconds",
        "span",
        "start",
        "tenant",
    )

    def __init__(
        self,
        mailbox: Mailbox,
        asked: Asked,
        start: float,
        sequence_span: Span | None,
        *,
        tenant: str,
        group: int,
        epoch: int,
        blocks: int,
    ) -> None:
        self.mailbox = mailbox
        self.tenant = tenant
        self.seconds = 0.0  # its share of the steps that brought it tokens
        self.epoch = epoch
        self.blocks = blocks
        self.number = asked.number
        self.request_id = asked.request_id
        self.model = asked.model
        self.prompt_tokens = asked.prompt_tokens
        self.start = start
        self.first_at = 0.0
        self.produced = 0
        self.milestone = _FAR  # tokens at which admission is told of it next
        self.group = group  # deliver tokens in groups of this many
        self.held: list[int] = []  # of the group under way
        self.interrupted = False  # by admission: its gateway goes on with it elsewhere
        self.cancelled_at: float | None = None
        self.cancelled_step = 0  # the last step that had ended then
        self.span = sequence_span


class Hub:
    """Owns the engine's handles. All methods run on the event loop and return at once."""

    def __init__(self, *, clock: Clock, max_unread_tokens: int) -> None:
        self.clock = clock
        self._max_unread = max_unread_tokens
        self._engine: Engine | None = None
        self._info: EngineInfo | None = None
        self._sequences: dict[int, _Sequence] = {}
        self._epochs: Counter[int] = Counter()  # live sequences by the term in which they were granted
        self._last_handle = 0
        self.progress: dict[str, int] = {}
        """Of live requests that have come far (see CapacityReport.progress), the output tokens to tell admission of."""
        self._last_step = -1  # the engine's number of the last step that has ended
        self._unshared = 0.0  # seconds of steps that brought nobody a token yet: of prompts that took several
        self._on_change: list[Callable[[], None]] = []
        self._idle = asyncio.Event()
        self._idle.set()

    def attach(self, engine: Engine) -> None:
        """Serve this engine; before the first submission, and again when it is up after a failure."""
        self._engine = engine
        self._info = engine.info
        self._last_step = -1
        self._changed()

    def hand_back(self, error: WeirError) -> None:
        """The engine is gone: give every sequence back to its gateway with `error`, so that it goes on elsewhere, and
        serve no engine until the next `attach`. What a gateway has not read of a sequence yet is made anew there."""
        self._engine = None
        for handle, sequence in list(self._sequences.items()):
            self._hand_back(handle, sequence, _PREEMPTED if sequence.interrupted else error)
        self._changed()

    @property
    def info(self) -> EngineInfo:
        """What the engine is, also while it is started again.

        :raises WeirError: DRAINING before the first one.
        """
        if self._info is None:
            raise WeirError(Reason.DRAINING, "the engine is not ready")
        return self._info

    @property
    def engine(self) -> Engine:
        """The engine.

        :raises WeirError: DRAINING while there is none.
        """
        if self._engine is None:
            raise WeirError(Reason.DRAINING, "the engine is not ready")
        return self._engine

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return len(self._sequences)

    @property
    def busy_models(self) -> frozenset[str]:
        """Models with live sequences."""
        return frozenset(sequence.model for sequence in self._sequences.values())

    def earlier(self, epoch: int) -> tuple[int, int]:
        """KV blocks and sequences of all that runs and was granted before this term: of each sequence what it was
        promised, or more when it has outgrown that."""
        count = sum(count for term, count in self._epochs.items() if term < epoch)
        if not count or self._info is None:
            return 0, 0
        size = self._info.block_size
        older = [each for each in self._sequences.values() if each.epoch < epoch]
        return sum(max(each.blocks, -(-(each.prompt_tokens + each.produced) // size)) for each in older), count

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the load may have changed: after each step, submission and cancel."""
        self._on_change.append(callback)

    async def wait_idle(self) -> None:
        """Return once no sequence is live."""
        await self._idle.wait()

    def submit(
        self,
        mailbox: Mailbox,
        submissions: Sequence[tuple[worker_pb2.Submit, Asked]],
        *,
        tenant: str,
        kv_share: float = 0.0,
        epoch: int = 0,
        blocks: int = 0,
    ) -> None:
        """Start the choices of one request, whose grant has been accepted: it promises so many blocks to all of them
        together, in this term of the pool's owner."""
        now = self.clock.monotonic()
        share = -(-blocks // len(submissions))
        salt = tenant.encode()
        group = self._last_handle + 1  # the first choice's handle names them all
        requests = []
        for submit, asked in submissions:
            self._last_handle += 1
            sequence_span = None
            if submit.traceparent and is_sampled(submit.traceparent):
                sequence_span = span("worker.generate", submit.traceparent, kind=SERVER)
                sequence_span.set("gen_ai.response.model", asked.model)
                sequence_span.set("gen_ai.usage.input_tokens", asked.prompt_tokens)
            # Log-probabilities are not held back, and must not travel without their tokens.
            tokens_per_frame = submit.group_tokens if asked.params.logprobs is None else 0
            self._sequences[self._last_handle] = _Sequence(
                mailbox,
                asked,
                now,
                sequence_span,
                tenant=tenant.partition("/")[0],
                group=tokens_per_frame,
                epoch=epoch,
                blocks=share,
            )
            self._epochs[epoch] += 1
            mailbox.handles[asked.number] = self._last_handle
            handle = self._last_handle
            requests.append(
                request_of(submit, asked, handle=handle, group=group, now=now, salt=salt, kv_share=kv_share)
            )
            metrics.PROMPT_TOKENS.inc(asked.prompt_tokens)
        self._idle.clear()
        self.engine.submit(requests)
        self._changed()

    def cancel(self, mailbox: Mailbox, numbers: Iterable[int]) -> None:
        """End a gateway's sequences; unknown numbers have ended already."""
        handles = [mailbox.handles[number] for number in numbers if number in mailbox.handles]
        if handles:
            self._cancel(handles)
            self._changed()

    def close(self, mailbox: Mailbox) -> None:
        """A gateway is gone: end all its sequences and drop what they still say."""
        mailbox.closed = True
        mailbox.refused.clear()
        handles = list(mailbox.handles.values())
        if handles:
            self._cancel(handles)

    def interrupt(self, request_ids: Sequence[str]) -> int:
        """End requests because admission needs their room; returns how many sequences that are.

        Their memory is free within one step. Each is handed back with PREEMPTED once what it produced until then is on
        its way, so that its gateway goes on from there: no token is lost and none is made twice.
        """
        wanted = frozenset(request_ids)
        handles = [
            handle
            for handle, sequence in self._sequences.items()
            if sequence.request_id in wanted and sequence.cancelled_at is None
        ]
        for handle in handles:
            self._sequences[handle].interrupted = True
        if handles:
            metrics.PREEMPTIONS.inc(len({self._sequences[handle].request_id for handle in handles}))
            self._cancel(handles)
        return len(handles)

    def on_step(self, output: StepOutput) -> None:
        """The engine's sink: one call per step. The hot path; about a microsecond per token."""
        sequences = self._sequences
        touched: set[Mailbox] = set()
        produced = 0
        rows = len(output.tokens) - output.tokens.count([])
        self._unshared += output.step_seconds
        if rows:
            share, self._unshared = self._unshared / rows, 0.0
        if output.step >= 0:
            self._last_step = output.step
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            sequence = sequences.get(handle)
            if sequence is None:
                continue
            mailbox = sequence.mailbox
            outbox = mailbox.outbox
            if tokens:
                produced += len(tokens)
                if not sequence.produced:
                    self._first(sequence, output.prompt_tokens_cached.get(handle, 0))
                sequence.produced += len(tokens)
                sequence.seconds += share
                if sequence.produced >= sequence.milestone:
                    self._came_far(sequence)
                if handle in output.logprobs:
                    outbox.add_logprobs(sequence.number, output.logprobs[handle])
            if sequence.group > 1:
                sequence.held += tokens
                if len(sequence.held) < sequence.group and not finish:
                    continue
                tokens, sequence.held = sequence.held, []
            if tokens:
                outbox.add(sequence.number, tokens)
            if finish:
                reason = FinishReason(finish)
                if reason is FinishReason.CANCELLED and sequence.cancelled_at is not None:
                    self._observe_cancel(sequence, sequence.cancelled_at, output)
                if reason is FinishReason.CANCELLED and sequence.interrupted:
                    self._hand_back(handle, sequence, _PREEMPTED)
                else:
                    self._finish(handle, sequence, reason, output.errors.get(handle, ""))
            touched.add(mailbox)
        for mailbox in touched:
            self._deliver(mailbox, output.step)
        if produced:
            metrics.GENERATION_TOKENS.inc(produced)
            metrics.STEPS.observe(output.step_seconds)
        self._changed()

    def _deliver(self, mailbox: Mailbox, step: int) -> None:
        if mailbox.closed:
            mailbox.outbox.take()
            return
        batch = mailbox.outbox.batch
        if batch.step and step != batch.step:
            metrics.MERGED_STEPS.inc()
        batch.step = step
        batch.steps += 1
        if mailbox.outbox.unread > self._max_unread:
            mailbox.on_overrun()
        mailbox.wake.set()

    def _first(self, sequence: _Sequence, cached: int) -> None:
        sequence.first_at = self.clock.monotonic()
        numerics = self.info.numerics.get(sequence.model, "")
        sequence.mailbox.outbox.add_first(sequence.number, cached, sequence.first_at - sequence.start, numerics)
        metrics.TTFT.observe(sequence.first_at - sequence.start)
        metrics.CACHE_QUERIES.inc(sequence.prompt_tokens)
        if cached:
            metrics.CACHE_HITS.inc(cached)

    def _came_far(self, sequence: _Sequence) -> None:
        while sequence.milestone <= sequence.produced:
            sequence.milestone *= 2
        told = self.progress.get(sequence.request_id, 0)
        self.progress[sequence.request_id] = max(told, sequence.milestone // 2)

    def _cancel(self, handles: Sequence[int]) -> None:
        now = self.clock.monotonic()
        for handle in handles:
            sequence = self._sequences[handle]
            if sequence.cancelled_at is None:
                sequence.cancelled_at, sequence.cancelled_step = now, self._last_step
        self.engine.cancel(handles)

    def _observe_cancel(self, sequence: _Sequence, cancelled_at: float, output: StepOutput) -> None:
        """How long a cancelled sequence still held its memory: in steps that ended meanwhile, and in seconds."""
        metrics.CANCEL_SECONDS.observe(self.clock.monotonic() - cancelled_at)
        if output.step >= 0:
            last = output.step - output.ended_before
            metrics.CANCEL_STEPS.observe(max(0, last - sequence.cancelled_step))

    def _hand_back(self, handle: int, sequence: _Sequence, error: WeirError) -> None:
        """Give a sequence to its gateway, which goes on with it elsewhere after the tokens that it has."""
        self._end(handle, sequence, error.reason.name)
        metrics.HANDED_BACK.inc()
        sequence.mailbox.refuse([(sequence.number, error)])

    def _finish(self, handle: int, sequence: _Sequence, reason: FinishReason, message: str) -> None:
        sequence.mailbox.outbox.finish(sequence.number, reason, message)
        metrics.FINISHED[reason].inc()
        if sequence.produced > 1:
            seconds = self.clock.monotonic() - sequence.first_at
            metrics.PER_TOKEN.observe(seconds / (sequence.produced - 1))
        if sequence.span is not None:
            sequence.span.set("gen_ai.response.finish_reasons", [reason.name.lower()])
        self._end(handle, sequence, "ENGINE_ERROR" if reason is FinishReason.ERROR else "")

    def _end(self, handle: int, sequence: _Sequence, error: str) -> None:
        """The sequence is no more; `error` is its span's, if any."""
        del self._sequences[handle]
        accelerators.used(sequence.tenant, sequence.seconds, self.clock.monotonic())
        self.progress.pop(sequence.request_id, None)
        self._epochs[sequence.epoch] -= 1
        if not self._epochs[sequence.epoch]:
            del self._epochs[sequence.epoch]
        if not self._sequences:
            self._idle.set()
        sequence.mailbox.handles.pop(sequence.number, None)
        if sequence.span is not None:
            sequence.span.set("gen_ai.usage.output_tokens", sequence.produced)
            if sequence.first_at:
                sequence.span.set("gen_ai.server.time_to_first_token", sequence.first_at - sequence.start)
            sequence.span.end(error)

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()
