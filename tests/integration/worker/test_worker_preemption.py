"""Admission and a worker, both real: urgent work gets the room of less urgent work, which goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from weir.admission.v1 import admission_pb2, admission_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc
from worker_support import CLOCK, MODEL, Gateway, submission, until

from libs.deadlines import Deadline
from libs.errors import Reason
from libs.mux import Codec, MuxClient, Semantics
from libs.rpc import make_channel
from libs.service import serve
from services.admission import app as admission_app
from services.admission.config import Settings as AdmissionSettings
from services.admission.policy.limits import Limits
from services.worker import app as worker_app
from services.worker.config import Settings, SimulatedOptions

CODEC = Codec.of(admission_pb2.SessionRequest, admission_pb2.SessionResponse)


class Mesh:
    """What a gateway talks to."""

    def __init__(self, admission: MuxClient, worker: Gateway, engine: Any) -> None:
        self.admission = admission
        self.worker = worker
        self.engine = engine

    async def admit(self, request_id: str, queue_class: int, *, prompt: int, output: int, **more: Any) -> Any:
        """The grant, once there is one."""
        admit = admission_pb2.Admit(
            request_id=request_id,
            tenant="acme",
            pool="default",
            model_version=MODEL,
            prompt_tokens=prompt,
            max_output_tokens=output,
            choices=1,
            queue_class=queue_class,  # type: ignore[arg-type]
            weight=1.0,
            **more,
        )
        call = admission_pb2.AdmissionCall(admit=admit)
        reply = await self.admission.call(call, deadline=Deadline.after(30.0, CLOCK), semantics=Semantics.RETRY)
        assert reply.WhichOneof("result") == "granted", reply
        return reply.granted

    async def release(self, request_id: str, tokens: int) -> None:
        """The request is over."""
        call = admission_pb2.AdmissionCall(release=admission_pb2.Release(request_id=request_id, output_tokens=tokens))
        await self.admission.call(call, deadline=Deadline.after(30.0, CLOCK), semantics=Semantics.RETRY)


@contextlib.asynccontextmanager
async def mesh() -> AsyncIterator[Mesh]:
    """A worker of ten blocks of 16 tokens, a token per sequence in 3 ms."""
    async with contextlib.AsyncExitStack() as stack:
        admitting = AdmissionSettings(limits=Limits(preempt_after=0.05))
        admission = await stack.enter_async_context(serve(await admission_app.build(admitting), admitting))
        target = f"127.0.0.1:{admission.port}"
        working = Settings(
            service="worker",
            instance="worker-a",
            engine="simulated",
            simulated=SimulatedOptions(vocabulary=600, max_context=160, total_blocks=10, step_interval=0.003),
            admission=(target,),
            models={MODEL: ""},
            report_interval=0.001,
            drain_seconds=5.0,
            drain_grace=3.0,
        )
        service = await worker_app.build(working)
        worker = await stack.enter_async_context(serve(service, working))
        await worker.ready.wait()
        channel = await stack.enter_async_context(make_channel(target, tls=None))
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        client = MuxClient(
            open_stream=lambda: stub.Session(wait_for_ready=True),
            codec=CODEC,
            hello=mux_pb2.Hello(service="gateway", instance="gateway-0"),
            clock=CLOCK,
            rng=random.Random(1),
        )
        running = asyncio.create_task(client.run())
        try:
            sessions = await stack.enter_async_context(make_channel(f"127.0.0.1:{worker.port}", tls=None))
            gateway = await Gateway(worker_pb2_grpc.WorkerServiceStub(sessions)).hello()
            await until(lambda: service.admission_live)
            yield Mesh(client, gateway, service._engine)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_urgent_work_takes_the_room_of_a_batch_which_loses_no_token_and_repeats_none() -> None:
    async with mesh() as m:
        batch = await m.admit("batch", admission_pb2.QUEUE_CLASS_BATCH, prompt=3, output=130)
        await m.worker.submit(submission(1, batch.grant, "batch", priority=10, sampling={"max_tokens": 130}))
        await m.worker.until(lambda: len(m.worker.tokens.get(1, ())) >= 45)
        urgent = asyncio.create_task(m.admit("urgent", admission_pb2.QUEUE_CLASS_PAID, prompt=3, output=40))
        await m.worker.until(lambda: 1 in m.worker.refused)
        assert m.worker.refused[1].reason == Reason.PREEMPTED
        assert m.engine.capacity().free_blocks == 10
        had = list(m.worker.tokens[1])
        await m.release("batch", len(had))
        granted = await urgent
        again = asyncio.create_task(
            m.admit(
                "batch",
                admission_pb2.QUEUE_CLASS_BATCH,
                prompt=3 + len(had),
                output=130 - len(had),
                resumed_tokens=len(had),
            )
        )
        await m.worker.submit(submission(2, granted.grant, "urgent", sampling={"max_tokens": 40}))
        await m.worker.until(lambda: 2 in m.worker.finished)
        await m.release("urgent", 40)
        resumed = {"prompt": [7, 8, 9, *had], "resumed_tokens": len(had), "priority": 10}
        rest = {"max_tokens": 130 - len(had)}
        await m.worker.submit(submission(3, (await again).grant, "batch", sampling=rest, **resumed))
        await m.worker.until(lambda: 3 in m.worker.finished)
        await m.release("batch", 130 - len(had))
        whole = await m.admit("whole", admission_pb2.QUEUE_CLASS_PAID, prompt=3, output=130)
        await m.worker.submit(submission(4, whole.grant, "whole", sampling={"max_tokens": 130}))
        await m.worker.until(lambda: 4 in m.worker.finished)
        assert m.worker.finished[3].reason == worker_pb2.FINISH_REASON_LENGTH
        assert had + m.worker.tokens[3] == m.worker.tokens[4]
        assert m.worker.tokens[2] == m.worker.tokens[4][:40]
