"""The engine dies; the worker around it does not notice more than it must."""

from __future__ import annotations

import asyncio
import os
import signal

import grpc
import pytest
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2
from worker_support import MODEL, Rig, rig, submission, until

from libs.errors import Reason
from libs.registry import EtcdStore, keys
from libs.registry.snapshot import snapshot_of
from services.worker import metrics
from services.worker.engines.process import ProcessEngine
from services.worker.engines.threaded import ThreadedEngine
from tests.support import cores
from tests.support.cores import OrderedCore
from tests.support.fixtures.etcd_fixtures import etcd

__all__ = ["etcd"]

LONG = {"max_tokens": 90}
FAST = {"engine_restart_delay": 0.0}


def in_process(on_failure) -> ProcessEngine:
    return ProcessEngine(OrderedCore, on_failure=on_failure)


def in_thread(on_failure) -> ThreadedEngine:
    return ThreadedEngine(OrderedCore(), on_failure=on_failure)


def kill(r: Rig) -> None:
    os.kill(r.engine.pid, signal.SIGKILL)


def value(counter) -> float:
    [family] = counter.collect()
    return next(sample.value for sample in family.samples if not sample.name.endswith("_created"))


async def suspended(r: Rig, gateway, handle: int, request_id: str) -> None:
    """A sequence that runs, in an engine that stands still, so that it cannot end before the test kills it."""
    os.kill(r.engine.pid, signal.SIGSTOP)
    await gateway.submit(submission(handle, r.admission.grant(request_id), request_id, sampling=LONG))
    await until(lambda: r.hub.live)


async def test_a_killed_engine_comes_back_and_its_sequences_go_back_to_their_gateway():
    async with rig(make_engine=in_process, **FAST) as r:
        gateway, other = await r.gateway(), await r.gateway()
        restarts, handed_back = value(metrics.RESTARTS), value(metrics.HANDED_BACK)
        await suspended(r, gateway, 1, "r1")
        kill(r)
        await gateway.until(lambda: 1 in gateway.refused)
        assert gateway.refused[1].reason == Reason.DRAINING
        assert (gateway.tokens, gateway.finished) == ({}, {})
        assert r.admission.reports[-1].draining  # heard before the gateway can have asked for another worker
        assert r.admission.reports[-1].free_blocks == 0
        await until(lambda: not r.admission.reports[-1].draining)
        assert r.admission.reports[-1].free_blocks == cores.BLOCKS
        for each, handle in ((gateway, 2), (other, 3)):  # streams that were open all along
            await each.submit(submission(handle, r.admission.grant(f"r{handle}"), f"r{handle}"))
            await each.until(lambda each=each, handle=handle: handle in each.finished)
            assert each.finished[handle].reason == worker_pb2.FINISH_REASON_LENGTH
            assert each.tokens[handle] == [0, 1, 2, 3]
        assert (len(r.admission.hellos), len(r.admission.contexts)) == (1, 1)  # its capacity stream was never lost
        assert value(metrics.RESTARTS) == restarts + 1
        assert value(metrics.HANDED_BACK) == handed_back + 1
        r.assert_idle()


async def test_a_core_that_raises_in_a_thread_is_replaced_too():
    async with rig(make_engine=in_thread, **FAST) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), prompt=[cores.RAISE, 1], sampling=LONG))
        await gateway.until(lambda: 1 in gateway.refused)
        await until(lambda: r.supervised.up)
        await gateway.submit(submission(2, r.admission.grant("r2"), "r2"))
        await gateway.until(lambda: 2 in gateway.finished)


async def test_while_it_is_down_submissions_are_sent_on_and_streams_may_open():
    async with rig(make_engine=in_process, engine_restart_delay=3600.0) as r:
        gateway = await r.gateway()
        kill(r)
        await until(lambda: r.admission.reports and r.admission.reports[-1].draining)
        await gateway.submit(submission(1, r.admission.grant("r1")))  # granted before admission heard of it
        await gateway.until(lambda: 1 in gateway.refused)
        assert gateway.refused[1].reason == Reason.DRAINING
        late = await r.gateway()
        assert late.welcome.engine == "ordered"
        await late.submit(submission(1, r.admission.grant("r2"), "r2"))
        await late.until(lambda: 1 in late.refused)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await r.stub.Embed(worker_pb2.EmbedRequest(model_version=MODEL), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert value(metrics.RESTARTING) == 1


async def test_a_preempted_sequence_of_a_dead_engine_stays_preempted():
    async with rig(make_engine=in_process, **FAST) as r:
        gateway = await r.gateway()
        await suspended(r, gateway, 1, "r1")
        await r.admission.say(preempt=admission_pb2.Preempt(request_ids=["r1"]))
        await until(lambda: next(iter(r.hub._sequences.values())).interrupted)
        kill(r)
        await gateway.until(lambda: 1 in gateway.refused)
        assert gateway.refused[1].reason == Reason.PREEMPTED


async def test_the_registration_outlives_the_engine(etcd):
    store = EtcdStore((etcd.endpoint,))
    key = keys.key("endpoints", "worker/worker-a")

    try:
        async with rig(make_engine=in_process, etcd=(etcd.endpoint,), **FAST) as r:
            async with asyncio.timeout(30):
                while (before := await store.get(key)) is None or not snapshot_of([before], 1).endpoints:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # it registers, and is ready, in its own time
            restarts = value(metrics.RESTARTS)
            kill(r)
            await until(lambda: value(metrics.RESTARTS) > restarts and r.supervised.up)
            after = await store.get(key)
            assert after is not None
            assert after.mod_revision == before.mod_revision  # not written again: the same lease all the while
            gateway = await r.gateway()
            await gateway.submit(submission(1, r.admission.grant("r1")))
            await gateway.until(lambda: 1 in gateway.finished)
    finally:
        await store.close()
