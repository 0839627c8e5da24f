"""One version's work: the batcher (`libs.batching`) on the event loop's clock, and the executors that it fills."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

from libs.batching import Batch, Batcher, Item, Late
from libs.clock import Clock
from libs.telemetry import get_logger
from services.predictor.executors.threads import Executor
from services.predictor.executors.work import Barred, Crashed, Died, Done, Work
from services.predictor.port import ModelError, Signature, Tensors

log = get_logger(__name__)

TURN_SECONDS = 0.002
"""For which batches run on the event loop before it looks at its sockets again."""
TIMER_SECONDS = 0.001
"""The event loop's timers are as fine as this."""
OFFENDERS = 256
OFFENDER_SECONDS = 60.0
"""For which a tenant whose rows failed keeps to itself, and one whose rows end processes is counted."""
MOST_DEATHS = 3
"""Processes that one tenant's rows may end in that time before no more of them are run."""
MOST_DEADLY = 2
"""Tenants whose rows may end processes in that time before it is the version that does it, and not they."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A prediction.

    :ivar rows: of the batch that it ran in.
    :ivar executions: 1 for the first member of a batch, 0 for the others, so that the sum is what the model ran.
    :ivar queue: seconds until the batch started; `input`, `compute`, `output`: seconds of the batch.
    """

    outputs: Tensors
    rows: int
    executions: int
    queue: float
    input: float
    compute: float
    output: float


@dataclass(slots=True)
class Offence:
    """What a tenant's rows did lately."""

    until: float
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item's payload."""

    inputs: Tensors
    outputs: frozenset[str] | None
    answer: asyncio.Future[Ran]


class Dispatcher:
    """Takes one version's requests, batches them, and answers each once."""

    def __init__(self, signature: Signature, batcher: Batcher, executors: list[Executor], clock: Clock) -> None:
        self.signature = signature
        self._batcher = batcher
        self._executors = executors
        self._idle = list(executors)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._usual = frozenset(tensor.name for tensor in signature.outputs if not tensor.on_request)
        self._names = tuple(tensor.name for tensor in signature.inputs)
        self._offenders: OrderedDict[str, Offence] = OrderedDict()
        self._alone = 0
        self._revivals: set[asyncio.Task[None]] = set()
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def pids(self) -> list[int]:
        """Of its executors that are processes of their own."""
        return [executor.pid for executor in self._executors if executor.pid]

    async def run(
        self, inputs: Tensors, outputs: frozenset[str] | None, rows: int, tenant: str, rank: int, deadline: float
    ) -> Ran:
        """See `Executors.run`."""
        if outputs == self._usual:
            outputs = None
        now = self._clock.monotonic()
        answer: asyncio.Future[Ran] = self._loop.create_future()
        waiting = Waiting(inputs, outputs, answer)
        offence = self._offence(tenant, now) if self._offenders else None
        item = Item(tenant, self._key(waiting, tenant, offence), max(rows, 1), deadline, waiting, rank=rank)
        if offence is not None and offence.deaths:
            item.crashes = 1  # this is its second chance already
        for evicted in self._batcher.offer(item, now):
            _fail(evicted, Late(full=True, retry_after=self._batcher.full_seconds, waited=True))
        self._soon()
        try:
            return await answer
        except asyncio.CancelledError:
            self._batcher.cancel(item)
            self._soon()
            raise

    def bars(self, tenant: str) -> bool:
        """See `Executors.bars`."""
        try:
            self._offence(tenant, self._clock.monotonic())
        except Crashed:
            return False
        except Barred:
            return True
        return False

    async def close(self) -> None:
        """Wait for what waits and runs, then free the executors. Nothing may come any more."""
        if not self._batcher.idle:
            self._drained = self._loop.create_future()
            await self._drained
        if self._timer is not None:
            self._timer.cancel()
        for revival in self._revivals:
            revival.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)
        for executor in self._executors:
            await executor.close()

    def _key(self, waiting: Waiting, tenant: str, offence: Offence | None) -> tuple[object, ...]:
        """What must be equal in a batch."""
        if not self.signature.max_rows or (offence is not None and offence.deaths):
            self._alone += 1
            return (self._alone,)
        key = (waiting.outputs, *((a.dtype.str, a.shape[1:]) for a in map(waiting.inputs.__getitem__, self._names)))
        return key if offence is None else (tenant, *key)

    def _offence(self, tenant: str, now: float) -> Offence | None:
        """:raises Barred, Crashed: the tenant's rows ended too many processes; Crashed where others' did it, too."""
        offence = self._offenders.get(tenant)
        if offence is None or offence.until <= now:
            return None
        if offence.deaths >= MOST_DEATHS:
            if self._is_deadly(now):
                raise Crashed("the model's process died of several tenants' requests, and of this one's too often")
            raise Barred(offence.until - now)
        return offence

    def _is_deadly(self, now: float) -> bool:
        return sum(each.deaths > 0 and each.until > now for each in self._offenders.values()) > MOST_DEADLY

    # ---- from here on: the event loop calls ------------------------------------------------------------------------

    def _soon(self) -> None:
        """In this turn of the loop others may come yet."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = True  # what ends at once is seen here
        now = self._clock.monotonic()
        until = now + TURN_SECONDS
        while self._idle and (batch := self._batcher.take(now)) is not None:
            executor = self._idle.pop()
            executor.start(
                self._work(batch), self._batcher.cost.mean(batch.rows), partial(self._ended, executor, batch)
            )
            now = self._clock.monotonic()
            if now >= until:
                break
        self._pumping = False
        if now >= until:
            self._soon()
        for item in self._batcher.expired(now):
            _fail(item, Late(full=False, retry_after=None, waited=True))
        self._set_timer(now)
        if self._drained is not None and not self._drained.done() and self._batcher.idle:
            self._drained.set_result(None)

    def _set_timer(self, now: float) -> None:
        at = self._batcher.next_expiry()
        if self._idle:
            at = min(at, self._batcher.wake_at)
        if at == math.inf:
            return
        delay = max(TIMER_SECONDS, at - now)
        when = self._loop.time() + delay
        if self._timer is not None:
            if self._timer.when() <= when:  # it looks again, then
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._pump()

    def _work(self, batch: Batch) -> Work:
        members: list[Waiting] = [item.payload for item in batch.items]
        whole = not self.signature.max_rows
        inputs, rows = [member.inputs for member in members], [item.rows for item in batch.items]
        return Work(inputs, rows, members[0].outputs, whole)

    def _ended(self, executor: Executor, batch: Batch, result: Done | Exception) -> None:
        now = self._clock.monotonic()
        if isinstance(result, Died):
            self._lost(executor, now)
        else:
            self._idle.append(executor)
        if isinstance(result, Done):
            self._batcher.finished(batch, now)
            self._answer(batch, result)
        else:
            died = isinstance(result, Died)
            for item in self._batcher.crashed(batch) if died else self._batcher.failed(batch):
                self._offends(item, now, died=died)
                _fail(item, _error(result))
        self._soon()

    def _lost(self, executor: Executor, now: float) -> None:
        revival = self._loop.create_task(self._revive(executor))
        self._revivals.add(revival)
        revival.add_done_callback(self._revivals.discard)
        if len(self._revivals) == len(self._executors):
            self._batcher.free_at = now + executor.revival_seconds

    async def _revive(self, executor: Executor) -> None:
        await executor.revive()
        self._batcher.free_at = 0.0
        self._idle.append(executor)
        self._soon()

    def _answer(self, batch: Batch, done: Done) -> None:
        for n, (item, outputs) in enumerate(zip(batch.items, done.outputs, strict=True)):
            answer: asyncio.Future[Ran] = item.payload.answer
            if not answer.done():
                queue = batch.started - item.arrived
                answer.set_result(Ran(outputs, batch.rows, int(not n), queue, done.input, done.compute, done.output))

    def _offends(self, item: Item, now: float, *, died: bool) -> None:
        """What fails is bisected at the cost of its company: the next time it has none but its own."""
        offence = self._offenders.get(item.tenant)
        if offence is None or offence.until <= now:
            offence = self._offenders[item.tenant] = Offence(0.0)
        offence.until = now + OFFENDER_SECONDS
        offence.deaths += died
        self._offenders.move_to_end(item.tenant)
        if len(self._offenders) > OFFENDERS:
            self._offenders.popitem(last=False)


def _fail(item: Item, error: Exception) -> None:
    answer: asyncio.Future[Ran] = item.payload.answer
    if not answer.done():
        answer.set_exception(error)


def _error(error: Exception) -> Exception:
    """What the caller is told. A library's own text may show values of the caller's or of others."""
    if isinstance(error, (ModelError, Crashed)):
        return error
    log.error("model_broke", kind=type(error).__name__)
    return Crashed(f"the model raised {type(error).__name__}")
