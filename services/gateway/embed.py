"""The last step of an embedding: a unary call to a worker for every part of the inputs that one grant is for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.clock import Clock
from libs.errors import Reason, WeirError, from_rpc_error
from services.gateway.acquire import Grant, Held
from services.gateway.messages import embed_message
from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.policy.standing import RUNNING
from services.gateway.policy.turnover import jittered
from services.gateway.ports import RouterPort
from services.gateway.request import Acquired, Request, Served, accepted_of, tokens_in

MAX_INPUTS = 256
_PASSED_ON = frozenset({Reason.MODEL_NOT_FOUND, Reason.DRAINING})
"""What a worker says that has done nothing, and that another one may not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """Vectors in the order of the inputs."""

    model_version: str
    vectors: list[list[float]]
    tokens: int
    simulated: bool
    # (limit, remaining, reset seconds) where the face has to tell them
    request_limit: tuple[int, int, float] | None = None
    token_limit: tuple[int, int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Embeds on workers. One per process."""

    router: RouterPort
    channel: Callable[[str, str], grpc.aio.Channel]
    """To a worker, by its name and address."""
    max_migrations: int
    clock: Clock
    chance: Callable[[], float]
    """Gives numbers in [0, 1): for jitter."""

    async def run(self, request: Request, acquired: Acquired, held: Held, hand: Callable[[Embedded], None]) -> Served:
        """Embed, the first part on the grant that is held, and hand the vectors on.

        :raises WeirError: the refusal of admission or the worker's error.
        """
        grant, vectors = held.grant, list[list[float]]()
        if grant.granted is None:
            raise RuntimeError("embedded before it was granted")
        worker = grant.granted
        for part in acquired.candidate.parts:
            response, worker = await self._part(request, part, grant)
            vectors += (list(vector.values) for vector in response.vectors)
        accepted = accepted_of(request, acquired, held.lease.reservation, worker, self.clock.time())
        hand(
            Embedded(
                model_version=accepted.model_version,
                vectors=vectors,
                tokens=accepted.prompt_tokens,
                simulated=accepted.simulated,
                request_limit=accepted.request_limit,
                token_limit=accepted.token_limit,
            )
        )
        breakdown = Breakdown(total=self.clock.monotonic() - request.arrived)
        usage = Usage(accepted.prompt_tokens)
        end = End(finish=Finish.STOP, usage=usage, breakdown=breakdown, degraded=acquired.degraded)
        return Served(candidate=acquired.candidate, accepted=accepted, end=end, worker=worker.worker)

    async def _part(
        self, request: Request, part: Sequence[list[int]], grant: Grant
    ) -> tuple[worker_pb2.EmbedResponse, admission_pb2.Granted]:
        """Embed inputs under one grant; under another one where the worker is lost, has unloaded the version or is
        about to leave."""
        admit, faults = grant.admit, 0
        if admit is None:
            raise RuntimeError("embedded before it was admitted")
        while True:
            granted = grant.granted
            if granted is None:
                admit.request_id, admit.prompt_tokens = grant.next_id, tokens_in(part)
                admit.ClearField("ttft_target")
                granted = await grant.ask(admit, may_be_local=True)
            failed = False
            try:
                response = await self._ask(granted, embed_message(admit, granted, part), request)
                self._served(admit, granted, ok=True)
                return response, granted
            except WeirError as error:
                failed = error.reason is Reason.WORKER_LOST
                if failed:
                    self._served(admit, granted, ok=False)
                    faults += 1
                if faults > self.max_migrations or not (failed or error.reason in _PASSED_ON):
                    raise
                admit.exclude_workers.append(granted.worker)
            finally:
                # Its length says nothing of what generations come to.
                grant.release(failed=failed, cut_short=True)

    async def _ask(
        self, granted: admission_pb2.Granted, message: worker_pb2.EmbedRequest, request: Request
    ) -> worker_pb2.EmbedResponse:
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel(granted.worker, granted.address))
        try:
            return await stub.Embed(message, timeout=request.deadline.timeout(self.clock))
        except grpc.aio.AioRpcError as error:
            told = from_rpc_error(error)
            if told.reason is Reason.DEADLINE_EXCEEDED:
                told = WeirError(told.reason, "the deadline passed while it ran", limit=RUNNING)
            elif told.reason is Reason.DEPENDENCY_UNAVAILABLE:  # as gRPC says of a connection that broke
                told = self._lost()
            raise told from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not our caller: the worker's channel was closed under the call.
            raise self._lost() from error

    def _lost(self) -> WeirError:
        return WeirError(Reason.WORKER_LOST, "the worker was lost", retry_after=jittered(1.0, self.chance))

    def _served(self, admit: admission_pb2.Admit, granted: admission_pb2.Granted, *, ok: bool) -> None:
        self.router.outcome(pool=admit.pool, model_version=admit.model_version, zone=granted.zone, ok=ok)
