"""Gateway streams: grants, step frames, cancels, slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc
from worker_support import MODEL, Gateway, rig, submission, until

from libs.config import TlsFiles
from libs.deadlines import to_duration
from libs.errors import Reason, from_rpc_error
from libs.rpc import make_channel
from services.worker import metrics
from services.worker.engines.simulated import SimulatedEngine
from tests.support.certificates import tls_of

PACED = {"step_interval": 0.003}


async def test_a_granted_sequence_streams_to_its_end():
    async with rig() as r:
        gateway = await r.gateway()
        assert (gateway.welcome.worker, gateway.welcome.engine, gateway.welcome.simulated) == (
            "worker-a",
            "simulated",
            True,
        )
        await gateway.submit(submission(1, r.admission.grant("r1")))
        await gateway.until(lambda: 1 in gateway.finished)
        assert len(gateway.tokens[1]) == 4
        assert gateway.finished[1].reason == worker_pb2.FINISH_REASON_LENGTH
        assert [each.handle for frame in gateway.frames for each in frame.first] == [1]
        r.assert_idle()


async def test_choices_share_a_grant_and_a_frame():
    async with rig() as r:
        gateway = await r.gateway()
        grant = r.admission.grant("r1", choices=3)
        await gateway.submit(*(submission(n, grant, choice=n, sampling={"temperature": 1.0}) for n in (1, 2, 3)))
        await gateway.until(lambda: len(gateway.finished) == 3)
        assert [len(gateway.tokens[n]) for n in (1, 2, 3)] == [4, 4, 4]
        await gateway.submit(submission(4, grant))
        await gateway.until(lambda: gateway.refused)
        assert gateway.refused[4].reason == Reason.GRANT_REPLAYED


async def test_grants_that_do_not_fit_are_refused_one_by_one():
    async with rig() as r:
        gateway = await r.gateway()
        sign = r.admission.grant
        forged = admission_pb2.SignedGrant(grant=sign("r1").grant, mac=b"x" * 32, key_id=sign("r1").key_id)
        await gateway.submit(
            submission(1, forged),
            submission(2, sign("other"), "r2"),
            submission(3, sign("r3", max_output_tokens=2), "r3"),
            submission(4, sign("r4", prompt_tokens=2), "r4"),
            submission(5, sign("r5", model_version="n@1"), "r5"),
            submission(6, sign("r6"), "r6"),
            submission(7, sign("r7", choices=1), "r7", choice=0),
            worker_pb2.Submit(handle=8),
        )
        await gateway.until(lambda: 6 in gateway.finished and 7 in gateway.finished)
        reasons = {handle: Reason(each.reason) for handle, each in gateway.refused.items()}
        assert reasons == dict.fromkeys((1, 2, 3, 4, 5), Reason.GRANT_INVALID) | {8: Reason.MODEL_NOT_FOUND}


async def test_a_refusal_for_another_cause_does_not_use_the_grant_up():
    async with rig() as r:
        gateway = await r.gateway()
        grant = r.admission.grant("r1")
        await gateway.submit(submission(1, grant, sampling={"max_tokens": 0}))
        await gateway.until(lambda: 1 in gateway.refused)
        assert gateway.refused[1].reason == Reason.INVALID_REQUEST
        await gateway.submit(submission(2, grant))
        await gateway.until(lambda: 2 in gateway.finished)


async def test_a_handle_in_use_is_refused():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 90}))
        await gateway.submit(submission(1, r.admission.grant("r2"), "r2"))
        await gateway.until(lambda: gateway.refused)
        assert gateway.refused[1].limit == "handle"


async def test_cancel_frees_the_slot_within_a_step():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 90}))
        await gateway.until(lambda: 1 in gateway.tokens)
        steps = r.engine._core._steps
        await gateway.cancel(1, 55)
        await gateway.until(lambda: 1 in gateway.finished)
        assert gateway.finished[1].reason == worker_pb2.FINISH_REASON_CANCELLED
        assert r.engine._core._steps - steps <= 3  # one on the way, one to free, one of slack for the loop
        r.assert_idle()


async def test_a_lost_stream_cancels_everything_on_it_and_nothing_else():
    async with rig(simulated=PACED) as r:
        lost, stays = await r.gateway(), await r.gateway()
        await lost.submit(
            *(submission(n, r.admission.grant(f"r{n}"), f"r{n}", sampling={"max_tokens": 90}) for n in (1, 2))
        )
        await stays.submit(submission(1, r.admission.grant("r9"), "r9", sampling={"max_tokens": 20}))
        await lost.until(lambda: lost.tokens)
        lost.rpc.cancel()
        await until(lambda: r.hub.live == 1)
        await stays.until(lambda: 1 in stays.finished)
        assert len(stays.tokens[1]) == 20
        r.assert_idle()


async def test_a_deadline_ends_a_sequence_with_its_own_reason():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        late = {"remaining": to_duration(0.03), "sampling": {"max_tokens": 90}}
        await gateway.submit(submission(1, r.admission.grant("r1"), **late))
        await gateway.until(lambda: 1 in gateway.finished)
        assert gateway.finished[1].reason == worker_pb2.FINISH_REASON_DEADLINE
        await gateway.submit(submission(2, r.admission.grant("r2"), "r2", remaining=to_duration(0)))
        await gateway.until(lambda: 2 in gateway.refused)
        assert gateway.refused[2].reason == Reason.DEADLINE_EXCEEDED


async def test_a_half_closed_stream_delivers_what_runs_and_ends():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 10}))
        await gateway.rpc.done_writing()
        await gateway.read_to_the_end()
        assert len(gateway.tokens[1]) == 10


async def test_a_reader_that_does_not_read_is_cut_and_its_sequences_are_cancelled():
    """The engine is never held up: another gateway's sequence ends meanwhile."""
    big = {"max_context": 200_000, "total_blocks": 1_000_000, "max_running": 64}
    async with rig(simulated=big, max_unread_tokens=5_000) as r:
        deaf, other = await r.gateway(), await r.gateway()
        long = {"sampling": {"max_tokens": 150_000}}
        caps = {"max_output_tokens": 150_000}
        await deaf.submit(*(submission(n, r.admission.grant(f"d{n}", **caps), f"d{n}", **long) for n in range(1, 60)))
        await other.submit(submission(1, r.admission.grant("o"), "o", sampling={"max_tokens": 50}))
        await other.until(lambda: 1 in other.finished)
        await until(lambda: r.hub.live == 0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await deaf.read_to_the_end()
        assert from_rpc_error(caught.value).limit == "max_unread_tokens"
        await until(lambda: not r.engine.capacity().running)
        r.assert_idle()


async def test_a_slow_readers_steps_are_merged_without_loss():
    async with rig(simulated={"max_context": 20_000, "total_blocks": 10_000}) as r:
        gateway = await r.gateway()
        grant = r.admission.grant("r1", max_output_tokens=8000)
        await gateway.submit(submission(1, grant, sampling={"max_tokens": 8000}))
        await gateway.until(lambda: gateway.tokens)
        await until(lambda: r.hub.live == 0)  # the engine runs to the end while nobody reads
        await gateway.until(lambda: 1 in gateway.finished)
        assert len(gateway.tokens[1]) == 8000
        assert len(gateway.frames) < 8000
        assert all(len(set(frame.handles)) == len(frame.handles) for frame in gateway.frames)


async def test_more_than_the_worker_holds_is_refused():
    async with rig(simulated={**PACED, "max_running": 2}, max_waiting=1) as r:
        gateway = await r.gateway()
        for n in range(1, 5):
            await gateway.submit(submission(n, r.admission.grant(f"r{n}"), f"r{n}", sampling={"max_tokens": 90}))
        await gateway.until(lambda: 4 in gateway.refused)
        assert gateway.refused[4].limit == "max_waiting"


async def test_logprobs_travel_with_their_tokens():
    async with rig() as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 4, "logprobs": 2}))
        await gateway.until(lambda: 1 in gateway.finished)
        entries = [each for frame in gateway.frames for logprobs in frame.logprobs for each in logprobs.tokens]
        assert len(entries) == 4
        assert all(len(entry.top_ids) == 2 for entry in entries)


async def test_embeddings_and_their_refusals():
    async with rig(max_embed_inputs=2) as r:

        async def embed(model: str, *inputs: list[int]) -> worker_pb2.EmbedResponse:
            tokens = [worker_pb2.Tokens(ids=ids) for ids in inputs]
            grant = r.admission.grant("e1", model_version=model)
            request = worker_pb2.EmbedRequest(model_version=model, inputs=tokens, grant=grant, request_id="e1")
            return await r.stub.Embed(request, timeout=5)

        answer = await embed(MODEL, [1, 2], [3])
        assert answer.simulated
        assert sum(value * value for value in answer.vectors[0].values) == pytest.approx(1, abs=1e-5)
        for bad, reason in [
            (("other@1", [1]), Reason.MODEL_NOT_FOUND),
            ((MODEL, []), Reason.INVALID_REQUEST),
            ((MODEL, [1], [1], [1]), Reason.INVALID_REQUEST),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await embed(*bad)
            assert from_rpc_error(caught.value).reason is reason


async def test_a_stream_must_begin_with_hello():
    async with rig() as r:
        rpc = r.stub.Session()
        await rpc.write(worker_pb2.SessionRequest(cancel=worker_pb2.CancelSequences(handles=[1])))
        assert await rpc.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_grants_can_be_switched_off_for_measuring_alone():
    async with rig(require_grants=False) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, None))
        await asyncio.wait_for(gateway.until(lambda: 1 in gateway.finished), 10)


async def test_under_mtls_only_the_named_services_may_open_a_session(tmp_path):
    def files(service: str) -> TlsFiles:
        return tls_of(tmp_path, service, "gateway-0" if service == "gateway" else "")

    async with rig(tls_of=files) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1")))
        await gateway.until(lambda: 1 in gateway.finished)
        files_of_another = tls_of(tmp_path, "gateway", "gateway-1")
        async with make_channel(r.address, tls=files_of_another, server_name="worker.weir.internal") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Gateway(worker_pb2_grpc.WorkerServiceStub(channel)).hello()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_credit_runs_one_request_for_the_tenant_that_holds_it():
    async with rig() as r:
        gateway = await r.gateway()
        credit = r.admission.grant("", tenant="")
        await gateway.submit(submission(1, credit, "r1"))
        await gateway.until(lambda: gateway.refused)
        assert gateway.refused[1].reason == Reason.GRANT_INVALID, "nobody holds it"
        credit.holder.request_id, credit.holder.tenant = "r2", "acme"
        await gateway.submit(submission(2, credit, "r2"))
        await gateway.until(lambda: 2 in gateway.finished)
        await gateway.submit(submission(3, credit, "r2"))
        await gateway.until(lambda: 3 in gateway.refused)
        assert gateway.refused[3].reason == Reason.GRANT_REPLAYED


async def test_work_without_a_grant_runs_only_while_admission_is_away_and_only_a_little():
    none = admission_pb2.SignedGrant()
    async with rig(max_ungranted=2, simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, none, "r1"))
        await gateway.until(lambda: gateway.refused)
        assert gateway.refused[1].reason == Reason.GRANT_INVALID
        await r.admission.stop()
        await until(lambda: not r.service.admission_live)
        long = {"max_tokens": 50}
        await gateway.submit(*(submission(n, none, f"r{n}", sampling=long) for n in (2, 3, 4)))
        await gateway.until(lambda: len(gateway.finished) == 2)
        assert set(gateway.finished) == {2, 3}
        assert gateway.refused[4].reason == Reason.REJECTED_NO_CAPACITY
        r.assert_idle()


async def test_tokens_come_in_groups_where_nobody_reads_them_one_by_one():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), group_tokens=4, sampling={"max_tokens": 10}))
        await gateway.until(lambda: 1 in gateway.finished)
        assert [list(frame.counts) for frame in gateway.frames if frame.counts] == [[4], [4], [2]]
        await gateway.submit(
            submission(2, r.admission.grant("r2"), "r2", group_tokens=100, sampling={"max_tokens": 50}),
            submission(3, r.admission.grant("r3"), "r3", sampling={"max_tokens": 50}),
        )
        await gateway.until(lambda: len(gateway.tokens.get(3, ())) >= 3)
        await gateway.cancel(2)
        await gateway.until(lambda: 2 in gateway.finished)
        assert len(gateway.tokens[2]) >= 3  # what was held comes with the end


async def test_tokens_with_log_probabilities_are_not_held_back_from_them():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        wanted = {"max_tokens": 10, "logprobs": 1}
        await gateway.submit(
            submission(1, r.admission.grant("r1"), group_tokens=4, sampling=wanted),
            submission(2, r.admission.grant("r2"), "r2", sampling={"max_tokens": 10}),
        )
        await gateway.until(lambda: {1, 2} <= gateway.finished.keys())
        for frame in gateway.frames:
            counts = dict(zip(frame.handles, frame.counts, strict=True))
            assert [len(entry.tokens) for entry in frame.logprobs] == [counts[1]] * (1 in counts)
        assert len(gateway.tokens[1]) == 10


def count(metric: Any) -> float:
    """Observations of a histogram."""
    return sum(sample.value for each in metric.collect() for sample in each.samples if sample.name.endswith("_count"))


def at_most(metric: Any, bound: float) -> float:
    """Observations of a histogram up to one of its bounds."""
    buckets = [sample for each in metric.collect() for sample in each.samples if sample.name.endswith("_bucket")]
    return next(each.value for each in buckets if float(each.labels["le"]) == bound)


async def test_preempted_sequences_are_handed_back_behind_all_that_they_produced(monkeypatch: pytest.MonkeyPatch):
    """A gateway that goes on after what it got has each token once: prompt + tokens there, the rest elsewhere."""
    step, together, taken = SimulatedEngine._step, asyncio.Event(), []

    def ten_steps_together(engine: SimulatedEngine) -> None:
        """All four begin, and none comes to its end before it is preempted."""
        core = engine._core
        if not together.is_set() or core._cancelled or (len(core._live) == 4 and len(taken) < 10):
            taken.append(engine)
            step(engine)
        else:
            engine._timer = asyncio.get_running_loop().call_later(0.001, engine._step)

    monkeypatch.setattr(SimulatedEngine, "_step", ten_steps_together)
    alone = {"max_tokens": 60}
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("whole"), "whole", sampling=alone))
        await gateway.until(lambda: 1 in gateway.finished)
        taken.clear()
        together.set()
        grant = r.admission.grant("r1", choices=2)
        await gateway.submit(
            submission(2, grant, "r1", sampling=alone), submission(3, grant, "r1", choice=1, sampling=alone)
        )
        await gateway.submit(submission(4, r.admission.grant("r2"), "r2", group_tokens=50, sampling=alone))
        await gateway.submit(submission(5, r.admission.grant("r3"), "r3", sampling=alone))
        await until(lambda: len(taken) == 10)
        await r.admission.say(preempt=admission_pb2.Preempt(request_ids=["r1", "r2", "unknown"]))
        await gateway.until(lambda: {2, 3, 4} <= gateway.refused.keys())
        together.clear()
        assert {Reason(gateway.refused[number].reason) for number in (2, 3, 4)} == {Reason.PREEMPTED}
        got = {number: list(gateway.tokens[number]) for number in (2, 3, 4)}
        assert len(got[4]) >= 4  # what was held for its group came along
        for number, tokens in got.items():
            assert tokens == gateway.tokens[1][: len(tokens)]
            resumed = {"prompt": [7, 8, 9, *tokens], "resumed_tokens": len(tokens)}
            again = submission(
                10 + number,
                r.admission.grant(f"again{number}"),
                f"again{number}",
                sampling={"max_tokens": 60 - len(tokens)},
                **resumed,
            )
            await gateway.submit(again)
        await gateway.until(lambda: {5, 12, 13, 14} <= gateway.finished.keys())
        assert not gateway.finished.keys() & {2, 3, 4}
        for number in (2, 3, 4):
            assert got[number] + gateway.tokens[10 + number] == gateway.tokens[1]
            assert gateway.tokens[number] == got[number]
        assert len(gateway.tokens[5]) == 60
        r.assert_idle()


async def test_a_cancel_frees_memory_within_one_step_whoever_asks_for_it():
    before = at_most(metrics.CANCEL_STEPS, 1), count(metrics.CANCEL_STEPS), count(metrics.CANCEL_SECONDS)
    async with rig(simulated=PACED) as r:
        gateway, lost = await r.gateway(), await r.gateway()
        long = {"max_tokens": 90}
        for n in (1, 2, 3):
            await gateway.submit(submission(n, r.admission.grant(f"r{n}"), f"r{n}", sampling=long))
        await lost.submit(submission(1, r.admission.grant("l"), "l", sampling=long))
        await gateway.until(lambda: len(gateway.tokens) == 3)
        await gateway.cancel(1)
        await gateway.until(lambda: 1 in gateway.finished)
        await r.admission.say(preempt=admission_pb2.Preempt(request_ids=["r2"]))
        await gateway.until(lambda: 2 in gateway.refused)
        lost.rpc.cancel()
        await until(lambda: r.hub.live == 1)
        await gateway.cancel(3)
        await gateway.until(lambda: 3 in gateway.finished)
        r.assert_idle()
    after = at_most(metrics.CANCEL_STEPS, 1), count(metrics.CANCEL_STEPS), count(metrics.CANCEL_SECONDS)
    assert [now - then for now, then in zip(after, before, strict=True)] == [4, 4, 4]
