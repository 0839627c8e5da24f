"""The life of a prediction: `Predictions.serve`, read from top to bottom.

    decode → acquire (quota) → cache → run, in a batch → encode → settle; where that fails, the ladder

One coroutine per call, whatever asked for it: gRPC, REST or a copy that nobody sees.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from inference.open_inference_pb2 import ModelInferResponse
from weir.registry.v1 import registry_pb2

from libs.batching import Late
from libs.catalog import Catalog
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.occupancy import Occupancy, Visit
from libs.outcomes import CRASHES, RUNNING
from libs.telemetry import accelerators
from libs.usage.records import PREDICT
from services.predictor import ladder, metrics
from services.predictor.account import Account, Lease
from services.predictor.cache import Cache, key_of
from services.predictor.call import Answer, Call, Stages
from services.predictor.executors import Barred, Crashed, Executors, Ran
from services.predictor.port import ModelError, Signature, Tensor, Tensors
from services.predictor.statistics import Statistics
from services.predictor.tensors import check_rows, decode, encode, requested

T = TypeVar("T")


class Question(msgspec.Struct, frozen=True, eq=False):
    """A call in terms of one version."""

    version: str
    signature: Signature
    inputs: Tensors
    rows: int
    wanted: tuple[Tensor, ...]
    names: frozenset[str] | None
    """Of the outputs that are wanted; None: the usual ones."""
    put: tuple[str, ...] = ()
    """Flags: what was put in place of values that the version was not made for, see `rules.py`."""


class Predictions:
    """One per process."""

    def __init__(
        self,
        *,
        executors: Executors,
        catalog: Catalog,
        account: Account | None,
        cache: Cache,
        priors: Mapping[str, tuple[Signature, Tensors]],
        statistics: Statistics,
        occupancy: Occupancy,
        clock: Clock,
    ) -> None:
        """:param priors: by version: what it takes and gives, and one row of what it gives at last."""
        self.executors = executors
        self.statistics = statistics
        self._catalog = catalog
        self._account = account
        self._cache = cache
        self._priors = priors
        self._occupancy = occupancy
        self._clock = clock
        self._running: Counter[str] = Counter()

    def busy(self) -> frozenset[str]:
        """Versions that run something."""
        return frozenset(+self._running)

    def has(self, version: str) -> bool:
        """The version is loaded here."""
        try:
            self.executors.signature(version)
        except KeyError:
            return False
        return True

    async def serve(self, call: Call) -> Answer:
        """Answer the call.

        :raises WeirError: whatever refused it.
        """
        lease: Lease | None = None
        visit = Visit(self._occupancy, call.tenant)
        try:
            with visit:
                self._occupancy.check(call.tenant)
                stages = Stages(edge=call.edge)
                if call.edge:
                    metrics.EDGE.observe(call.edge)
                question = self._asked(call)
                stages.decode = self._clock.monotonic() - call.arrived
                if self._account is not None:
                    # A tenant that is kept out says nothing of the version that it is kept from.
                    judged = not self.executors.bars(call.version, call.tenant)
                    lease = await self._account.acquire(call, judged=judged)
                visit.had_place = True
                rank = call.rank if lease is None else lease.rank
                answer = await self._answer(call, question, rank, stages)
        except WeirError as error:
            self._over(call, lease, error)
            raise
        except asyncio.CancelledError:
            if not visit.cut:
                self._over(call, lease, self._left(call, RUNNING if lease is not None else ""))
                raise
            cut = self._occupancy.shutting_down()
            self._over(call, lease, cut)
            raise cut from None
        except BaseException:
            self._over(call, lease, WeirError(Reason.INTERNAL, "internal error"))
            raise
        self._over(call, lease, answer)
        return answer

    def _left(self, call: Call, limit: str = "") -> WeirError:
        """Why nobody waits any more. Who hangs up at the deadline does not leave: what ran until then was too slow."""
        if self._clock.monotonic() < call.deadline:
            return WeirError(Reason.CANCELLED, "the caller left")
        return WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before it was answered", limit=limit)

    def refused(self, call: Call, error: WeirError) -> None:
        """The call, of no version, was refused before it got here: for the books and its trace."""
        metrics.REFUSED.labels(error.reason.name).inc()
        self._end_span(call, error)
        if self._account is not None:
            self._account.refused(call, error)

    async def elsewhere(self, call: Call, handing: Callable[[], Awaitable[T | None]]) -> T | None:
        """What another predictor answers, who keeps the books of it; None: the call is to be served here. It is in this
        process meanwhile as what is served here is, and no more than that.

        :raises WeirError: what that predictor refused it with; or it has no place here.
        """
        visit = Visit(self._occupancy, call.tenant)
        with visit:
            try:
                self._occupancy.check(call.tenant)
            except WeirError as error:
                self._over(call, None, error)
                raise
            try:
                answer = await handing()
            except WeirError as error:
                self._end_span(call, error)
                raise
            except asyncio.CancelledError:
                if not visit.cut:
                    self._end_span(call, self._left(call))
                    raise
                cut = self._occupancy.shutting_down()
                self._end_span(call, cut)
                raise cut from None
        if answer is not None:
            self._end_span(call, None)
        return answer

    def _end_span(self, call: Call, ended: Answer | WeirError | None) -> None:
        trace = call.span
        if trace.recording:
            trace.set("gen_ai.operation.name", PREDICT)
            trace.set("gen_ai.request.model", self._catalog.told(call.model))
            trace.set("weir.tenant", call.tenant)
            trace.set("weir.request_id", call.request_id)
            trace.set("weir.rows", call.rows)
            if isinstance(ended, Answer):
                trace.set("gen_ai.response.model", ended.version)
        trace.end(ended.reason.name if isinstance(ended, WeirError) else "")

    def _over(self, call: Call, lease: Lease | None, ended: Answer | WeirError) -> None:
        seconds, now = self._clock.monotonic() - call.arrived, self._clock.time()
        counts = self.statistics.of(call.version)
        if isinstance(ended, WeirError):
            counts.failed(seconds, now)
            metrics.REFUSED.labels(ended.reason.name).inc()
        else:
            counts.succeeded(seconds, now, call.span.traceparent[3:35] if call.span.recording else "")
            for step in ended.degraded:
                metrics.DEGRADED.labels(call.version, step).inc()
        self._end_span(call, ended)
        if self._account is None:
            return
        if lease is not None:
            self._account.settle(lease, call, ended)
        elif isinstance(ended, WeirError):
            self._account.refused(call, ended)

    # ---- the version's own answer ------------------------------------------------------------------------------------

    def _asked(self, call: Call) -> Question | None:
        """What is asked of the version that is to answer; see `_question`.

        :raises WeirError: ENGINE_ERROR, it does not take what its rollout's baseline takes.
        """
        try:
            return self._question(call, call.version)
        except WeirError as refusal:
            baseline = self._catalog.baseline(call.model, call.route)
            if baseline is None:
                raise
            try:
                taken = self._question(call, baseline) is not None
            except WeirError:
                taken = False
            if not taken:
                raise
            raise WeirError(Reason.ENGINE_ERROR, f"{call.version} does not take what its baseline takes") from refusal

    def _question(self, call: Call, version: str) -> Question | None:
        """What is asked, in the version's terms; None while it is not loaded here.

        :raises WeirError: see `tensors.decode`, `tensors.requested`, `Rules.apply`.
        """
        try:
            signature = self.executors.ask(version)
        except KeyError:
            return None
        sent = decode(call.request, signature)
        rows = check_rows(sent, signature)
        wanted = requested(call.request, signature)
        names = frozenset(tensor.name for tensor in wanted) if call.request.outputs else None
        inputs, put = self.executors.rules(version).apply(sent, replace=call.degradable)
        return Question(version, signature, inputs, rows, wanted, names, put)

    async def _answer(self, call: Call, question: Question | None, rank: int, stages: Stages) -> Answer:
        spec = self._catalog.version(call.version).prediction
        key = b""
        try:
            if question is None:
                raise WeirError(Reason.NO_WORKERS, f"{call.version} is not loaded here", retry_after=1.0)
            if spec.cache_seconds and self._cache.max_bytes:
                digest = self._catalog.version(call.version).digest
                key = key_of(call.tenant, digest, question.signature, question.inputs, question.names)
                return await self._cached(call, question, key, spec.cache_seconds, rank, stages)
            outputs, batch = await self._run(call, question, rank, stages)
            return self._told(call, question, outputs, stages, batch_rows=batch)
        except WeirError as refusal:
            error = await self._whose(call, refusal, rank)
            if not call.degradable or error.reason not in ladder.WALKS:
                raise error from None
            instead = await self._instead(call, question, spec, key, rank, stages)
            if instead is None:
                raise error from None
            instead.cause = error
            return instead

    async def _whose(self, call: Call, refusal: WeirError, rank: int) -> WeirError:
        """The refusal; or ENGINE_ERROR where a rollout's version refuses inputs that its baseline answers: only beside
        that one is seen whether they are at fault or the version is. Who asks pays nothing for either."""
        if refusal.reason is not Reason.INVALID_REQUEST:
            return refusal
        baseline = self._catalog.baseline(call.model, call.route)
        try:
            question = None if baseline is None else self._question(call, baseline)
            if question is None:
                return refusal
            await self._run(call, question, rank, Stages())
        except WeirError:
            return refusal
        return WeirError(Reason.ENGINE_ERROR, f"{call.version} refuses what its baseline answers")

    async def _run(self, call: Call, question: Question, rank: int, stages: Stages) -> tuple[Tensors, int]:
        """Outputs, and the rows of the batch that it ran in.

        :raises WeirError: it could not be in time, or did not run.
        """
        version = question.version
        self._running[version] += 1
        try:
            ran: Ran = await self.executors.run(
                version,
                question.inputs,
                outputs=question.names,
                rows=question.rows,
                tenant=call.tenant,
                rank=rank,
                deadline=call.deadline,
            )
        except Late as late:
            raise _late(late) from None
        except ModelError as error:
            raise WeirError(Reason.INVALID_REQUEST, str(error), limit=error.tensor) from None
        except Crashed as error:
            raise WeirError(Reason.ENGINE_ERROR, f"{version}: {error}") from None
        except Barred as error:
            message = f"{version}: {error}"
            raise WeirError(Reason.REJECTED_QUEUE_FULL, message, limit=CRASHES, retry_after=error.retry_after) from None
        except KeyError:  # unloaded meanwhile
            raise WeirError(Reason.NO_WORKERS, f"{version} is not loaded here", retry_after=1.0) from None
        finally:
            self._running[version] -= 1
        stages.queue, stages.batch, stages.compute = ran.queue, ran.input + ran.output, ran.compute
        self.statistics.of(version).ran(ran, question.rows)
        metrics.observe(ran)
        if ran.rows:
            accelerators.used(call.tenant, ran.compute * question.rows / ran.rows, self._clock.monotonic())
        return ran.outputs, ran.rows

    async def _cached(
        self, call: Call, question: Question, key: bytes, seconds: float, rank: int, stages: Stages
    ) -> Answer:
        counts, began = self.statistics.of(call.version), self._clock.monotonic()
        if call.degradable and (kept := self._cache.fresh(key)) is not None:
            counts.cache_hit.add(self._clock.monotonic() - began)
            return self._told(call, question, kept, stages, cached=True)
        batch = 0

        async def compute() -> Tensors:
            nonlocal batch
            outputs, batch = await self._run(call, question, rank, stages)
            return outputs

        try:
            outputs, own = await self._cache.flight(key, seconds, compute, call.deadline)
        except TimeoutError:
            raise WeirError(Reason.EVICTED_DEADLINE, "the deadline passed while the same was computed") from None
        spent = self._clock.monotonic() - began
        (counts.cache_miss if own else counts.cache_hit).add(spent)
        return self._told(call, question, outputs, stages, batch_rows=batch, cached=not own)

    # ---- the ladder --------------------------------------------------------------------------------------------------

    async def _instead(
        self,
        call: Call,
        question: Question | None,
        spec: registry_pb2.PredictionSpec,
        key: bytes,
        rank: int,
        stages: Stages,
    ) -> Answer | None:
        """What the ladder has; None: nothing."""
        if question is not None and key and (kept := self._cache.stale(key)) is not None:
            return self._told(call, question, kept, stages, cached=True, degraded=ladder.CACHED)
        for version in spec.smaller:
            try:
                smaller = self._question(call, version)
                if smaller is None:
                    continue
                outputs, batch = await self._run(call, smaller, rank, stages)
            except WeirError:  # what the caller hears is what its own version said
                continue
            return self._told(call, smaller, outputs, stages, batch_rows=batch, degraded=ladder.SMALLER)
        return self._prior(call, question, stages)

    def _prior(self, call: Call, question: Question | None, stages: Stages) -> Answer | None:
        if call.version not in self._priors:
            return None
        signature, row = self._priors[call.version]
        if question is None:
            try:  # nothing of it was checked yet
                inputs, wanted = decode(call.request, signature), requested(call.request, signature)
            except WeirError:
                return None
            question = Question(call.version, signature, inputs, check_rows(inputs, signature), wanted, None)
        question = msgspec.structs.replace(question, put=())  # it is the same whatever was sent
        outputs = ladder.prior_of(row, question.wanted, signature, question.rows)
        return None if outputs is None else self._told(call, question, outputs, stages, degraded=ladder.PRIOR)

    # ---- the answer --------------------------------------------------------------------------------------------------

    def _told(
        self,
        call: Call,
        question: Question,
        outputs: Tensors,
        stages: Stages,
        *,
        batch_rows: int = 0,
        cached: bool = False,
        degraded: str = "",
    ) -> Answer:
        began = self._clock.monotonic()
        request, version = call.request, question.version
        response = ModelInferResponse(
            model_name=request.model_name, model_version=version.rpartition("@")[2], id=request.id
        )
        encode(outputs, question.wanted, response)
        stages.encode = self._clock.monotonic() - began
        return Answer(
            response=response,
            version=version,
            rows=question.rows,
            stages=stages,
            batch_rows=batch_rows,
            cached=cached,
            degraded=(degraded, *question.put) if degraded else question.put,
        )


def _late(late: Late) -> WeirError:
    if late.full:
        reason = Reason.EVICTED_SHED if late.waited else Reason.REJECTED_QUEUE_FULL
        message = "too many rows wait for this version"
        return WeirError(reason, message, limit="queue_rows", retry_after=late.retry_after)
    if late.waited:
        return WeirError(Reason.EVICTED_DEADLINE, "the deadline passed before it could run")
    return WeirError(Reason.REJECTED_DEADLINE, "it could not be answered in time", retry_after=late.retry_after)
