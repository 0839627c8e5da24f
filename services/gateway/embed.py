"""The last step of an embedding: a unary call to a worker for every part of the inputs that one grant is for."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

import grpc
import msgspec
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.errors import Reason, WeirError, from_rpc_error
from libs.occupancy import jittered
from libs.outcomes.standing import RUNNING
from services.gateway.acquire import Grant, Held, accepted_of
from services.gateway.generation import ASK_AGAIN
from services.gateway.messages import embed_message
from services.gateway.parts import Parts
from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.request import Accepted, Prepared, Request, Served, tokens_in

MAX_INPUTS = 256
_PASSED_ON = frozenset({Reason.MODEL_NOT_FOUND, Reason.DRAINING})
"""What a worker says that has done nothing, and that another one may not say."""
_COUNTED = ASK_AGAIN - _PASSED_ON | {Reason.WORKER_LOST}
"""What the next grant may mend, of the same worker or another, so many times."""


class Embedded(msgspec.Struct, frozen=True):
    """Vectors of float32 in the order of the inputs."""

    accepted: Accepted
    vectors: list[array[float]]


async def embed(
    parts: Parts, request: Request, prepared: Prepared, held: Held, hand: Callable[[Embedded], None]
) -> Served:
    """Embed, the first part on the grant that is held, and hand the vectors on.

    :raises WeirError: the refusal of admission or the worker's error.
    """
    grant = held.grant
    vectors: list[array[float]] = []
    accepted = accepted_of(request, prepared, held, parts.clock.time())
    for part in prepared.candidate.parts:
        response, worker = await _part(parts, request, part, grant)
        vectors += (array("f", vector.values) for vector in response.vectors)
    accepted = replace(accepted, simulated=worker.simulated, zone=worker.zone)  # the last part's
    hand(Embedded(accepted, vectors))
    end = End(
        finish=Finish.STOP,
        usage=Usage(accepted.prompt_tokens),
        breakdown=Breakdown(total=parts.clock.monotonic() - request.arrived),
        degraded=prepared.degraded,
    )
    return Served(candidate=prepared.candidate, accepted=accepted, end=end, worker=worker.worker)


async def _part(
    parts: Parts, request: Request, part: Sequence[list[int]], grant: Grant
) -> tuple[worker_pb2.EmbedResponse, admission_pb2.Granted]:
    """Embed inputs under one grant; under another one where the worker is lost, has unloaded the version or is about to
    leave."""
    admit, faults = grant.admit, 0
    while True:
        if grant.granted is None:
            admit.request_id, admit.prompt_tokens = grant.next_id, tokens_in(part)
            admit.ClearField("ttft_target")
            # Who refused a grant without proof hears an owner: that is asked then, once it is reached.
            await grant.ask(admit, may_be_local=not faults)
        granted, failed = grant.held, False
        try:
            response = await _ask(parts, granted, embed_message(admit, granted, part), request)
            _served(parts, admit, granted, ok=True)
            return response, granted
        except WeirError as error:
            failed = error.reason is Reason.WORKER_LOST
            if failed:
                _served(parts, admit, granted, ok=False)
            faults += error.reason in _COUNTED
            if faults > parts.settings.max_migrations or error.reason not in _COUNTED | _PASSED_ON:
                raise
            if failed or error.reason in _PASSED_ON:
                admit.exclude_workers.append(granted.worker)
        finally:
            # Its length says nothing of what generations come to.
            grant.release(failed=failed, cut_short=True)


async def _ask(
    parts: Parts, granted: admission_pb2.Granted, message: worker_pb2.EmbedRequest, request: Request
) -> worker_pb2.EmbedResponse:
    stub = worker_pb2_grpc.WorkerServiceStub(parts.channel(granted.worker, granted.address))
    lost = WeirError(Reason.WORKER_LOST, "the worker was lost", retry_after=jittered(1.0, parts.chance))
    try:
        return await stub.Embed(message, timeout=request.deadline.timeout(parts.clock))
    except grpc.aio.AioRpcError as error:
        told = from_rpc_error(error)
        if told.reason is Reason.DEADLINE_EXCEEDED:
            told = WeirError(told.reason, "the deadline passed while it ran", limit=RUNNING)
        elif told.reason is Reason.DEPENDENCY_UNAVAILABLE:  # as gRPC says of a connection that broke
            told = lost
        raise told from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Not our caller: the worker's channel was closed under the call.
        raise lost from error


def _served(parts: Parts, admit: admission_pb2.Admit, granted: admission_pb2.Granted, *, ok: bool) -> None:
    parts.router.outcome(pool=admit.pool, model_version=admit.model_version, zone=granted.zone, ok=ok)
