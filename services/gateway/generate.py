"""The last steps of a generation: a worker's answer, streamed, or one that needs no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from libs.clock import Clock
from libs.telemetry import get_logger
from services.gateway.acquire import Held
from services.gateway.catalog import Catalog
from services.gateway.flushing import Flushing
from services.gateway.generation import Generation
from services.gateway.internal import READERS, Unfiltered
from services.gateway.outcomes.recorder import mean_logprob
from services.gateway.output_buffer import OutputBuffer, Replay
from services.gateway.policy.answers import Answer, AnswerCache, restored
from services.gateway.policy.events import Finish
from services.gateway.policy.plans import ALTERED
from services.gateway.policy.scoring import Scoring
from services.gateway.policy.spec import BoundParameters, is_json
from services.gateway.ports import Mirrored, MirrorPort, SafetyPort, WorkerPort
from services.gateway.request import (
    Acquired,
    Candidate,
    Request,
    Served,
    accepted_of,
    with_seed,
    with_texts,
)
from services.gateway.slow_readers import SlowReaders
from services.gateway.stream import Stream, Streaming

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generating:
    """Generates on workers. One per process."""

    streaming: Streaming
    answers: AnswerCache
    scoring: Scoring
    workers: WorkerPort
    safety: SafetyPort
    readers: SlowReaders
    flushing: Flushing
    flush_max: float
    catalog: Catalog
    mirror: MirrorPort | None
    clock: Clock
    active: set[Generation] = field(default_factory=set)
    """Those that run."""

    async def run(
        self, request: Request, acquired: Acquired, held: Held, hand: Callable[[OutputBuffer], None]
    ) -> Served:
        """Generate to the end, whatever that is, and hand on what there is to read."""
        if acquired.answer is not None:
            return self._replay(request, acquired, acquired.answer, held, hand)
        prepared, candidate = acquired.prepared, acquired.candidate
        parameters = with_seed(candidate.bound)
        mirrored = self._mirrored(request, candidate, parameters)
        with self._generation(request, acquired, parameters, held, mirrored) as generation:
            self._begin(generation, request, acquired, held)
            generation.breakdown.queue = self.clock.monotonic() - prepared.decided
            held.visit.generation = generation
            stream = Stream(self.streaming, request, candidate, generation, held)
            hand(generation)
            self.active.add(generation)
            try:
                await stream.run()
            finally:
                self.active.discard(generation)
        return self._ended(request, acquired, generation, mirrored, moved=stream.moved)

    def _generation(
        self,
        request: Request,
        acquired: Acquired,
        parameters: BoundParameters,
        held: Held,
        mirrored: Mirrored | None,
    ) -> Generation:
        candidate, arm = acquired.candidate, acquired.candidate.arm
        internal = request.internal is not None
        scored = arm is not None and self.scoring.take(arm.rollout_id, arm.arm, self.clock.monotonic())
        return Generation(
            request,
            candidate,
            parameters=parameters,
            degraded=acquired.degraded,
            workers=self.workers,
            safety=Unfiltered() if internal else self.safety,
            clock=self.clock,
            readers=READERS if internal else self.readers,
            keep_text=bool(acquired.prepared.answer_key) and ALTERED.isdisjoint(acquired.degraded),
            observed=mirrored is not None or scored or internal,
            growth=held.lease.growth(candidate),
            flushing=None if request.spec.whole else self.flushing,
            flush_most=min(self.flush_max, self._declared_itl(request, candidate)),
            on_text=None if mirrored is None else lambda: self._mirror_soon(mirrored),
        )

    def _declared_itl(self, request: Request, candidate: Candidate) -> float:
        """Seconds between tokens that its reader may count on."""
        itl = self.catalog.objectives(request.route, candidate.version.tier).itl
        return self.flush_max if itl is None else itl

    def _replay(
        self,
        request: Request,
        acquired: Acquired,
        answer: Answer,
        held: Held,
        hand: Callable[[OutputBuffer], None],
    ) -> Served:
        """An answer without a worker: it is over when it begins."""
        candidate = acquired.candidate
        if candidate.check.values:
            answer = restored(answer, candidate.check.values, json=is_json(candidate.bound.structure))
        replay = Replay(
            answer,
            request_id=request.id,
            clock=self.clock,
            arrived=request.arrived,
            readers=self.readers,
            degraded=acquired.degraded,
        )
        self._begin(replay, request, acquired, held)
        if replay.accepted is None or replay.end is None:
            raise RuntimeError("a replay has begun and ended")
        hand(replay)
        first = replay.breakdown.time_to_first_token
        return Served(candidate=candidate, accepted=replay.accepted, end=replay.end, ran=False, first=first)

    def _begin(self, buffer: OutputBuffer, request: Request, acquired: Acquired, held: Held) -> None:
        granted, reservation, prepared = held.grant.granted, held.lease.reservation, acquired.prepared
        buffer.accepted = accepted_of(request, acquired, reservation, granted, self.clock.time())
        buffer.breakdown.preprocess = prepared.tokenised - request.arrived
        buffer.breakdown.decide = prepared.decided - prepared.tokenised

    def _ended(
        self,
        request: Request,
        acquired: Acquired,
        generation: Generation,
        mirrored: Mirrored | None,
        *,
        moved: bool,
    ) -> Served:
        end, accepted = generation.end, generation.accepted
        if end is None or accepted is None:
            raise RuntimeError("it has not ended")
        key = acquired.prepared.answer_key
        if key and ALTERED.isdisjoint(generation.degraded):
            answer = generation.answer(simulated=accepted.simulated)
            if answer is not None:  # whole, and nothing altered it: for the ladder of later requests
                self.answers.put(key, answer, self.clock.monotonic())
        mean = None
        if generation.observed:
            final = generation.final(model_version=accepted.model_version, moved=moved)
            mean = mean_logprob(final)
            if mirrored is not None and not mirrored.answer.done():
                mirrored.answer.set_result(final)
        return Served(
            candidate=acquired.candidate,
            accepted=accepted,
            end=end,
            worker=generation.granted.worker if generation.granted is not None else "",
            lengths=[(len(one.tokens), one.finish is Finish.STOP) for one in generation.sequences],
            # Text that leaves in groups of tokens is waited for by nobody.
            first=generation.first_after if request.spec.whole else end.breakdown.time_to_first_token,
            error=generation.error,
            mean_logprob=mean,
        )

    # ---- a second answer -----------------------------------------------------------------------------------------

    def _mirrored(self, request: Request, candidate: Candidate, parameters: BoundParameters) -> Mirrored | None:
        """What is to be answered a second time."""
        if self.mirror is None or candidate.arm is None or candidate.route.mirror is None:
            return None
        return Mirrored(
            request_id=request.id,
            spec=with_texts(request.spec, candidate.check.texts),
            identity=request.identity,
            prompt=candidate.prompt,
            parameters=parameters,
            route=candidate.route,
            arm=candidate.arm,
            traceparent=request.traceparent,
            answer=asyncio.get_running_loop().create_future(),
        )

    def _mirror_soon(self, mirrored: Mirrored) -> None:
        """Its first text is about to be handed on: once its face has had its turn, have it answered a second time."""
        asyncio.get_running_loop().call_soon(self._mirror_now, mirrored)

    def _mirror_now(self, mirrored: Mirrored) -> None:
        try:
            if self.mirror is not None:
                self.mirror.mirror(mirrored)
        except Exception as error:  # nothing of a copy may reach the user's request; the text may quote a prompt
            log.error("not_mirrored", request_id=mirrored.request_id, error=type(error).__name__)
