"""What a killed gateway leaves behind: its next life accounts for what ran, up to what was delivered."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import grpc
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.apikeys import recorded_as
from libs.errors import Reason
from tests.support.leaves import Held, Rig, rig
from tests.support.native_stream import HEADERS, Stream, ids, refusal, taken
from tests.support.openai_call import chat
from tests.support.tokenizer import write_byte_tokenizer


def model_in(path: Path) -> Path:
    (path / "model").mkdir()
    return write_byte_tokenizer(path / "model")


PRICE = registry_pb2.Price(
    model="*", input_microusd_per_million=1_000_000, output_microusd_per_million=2_000_000
)  # of a token: 1 and 2 micro-dollars


async def test_what_ran_when_it_was_killed_is_recorded_and_settled_by_the_next_life(tmp_path: Path) -> None:
    model, state = model_in(tmp_path), tmp_path / "state"
    async with rig(model, state) as first, Stream(first, max_tokens=8) as stream:
        await first.put(PRICE)
        running = await taken(first.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
        async with Stream(first, max_tokens=8):
            await taken(first.workers[0])
            killed = tmp_path / "killed"
            shutil.copytree(state, killed)  # as the kernel has it, in the middle of both
            leases = [each.request_id for each in first.reserved]
            request_ids = [each.partition("/")[0] for each in leases]
            assert request_ids != leases  # another gateway may be given the same request, and holds its own
        await running.tokens(ids("c"))
    async with rig(model, killed) as second:
        found = {}
        for _ in request_ids:
            record = await asyncio.wait_for(second.records.get(), 20)
            found[record.id] = record.request
        settled = {}
        for _ in request_ids:
            settle = await asyncio.wait_for(second.settled.get(), 20)
            settled[settle.request_id] = settle
        assert second.records.empty()
    shown, unseen = (found[name] for name in request_ids)
    assert (shown.outcome, shown.prompt_tokens, shown.completion_tokens) == ("gateway_lost", 2, 2)
    assert (shown.tenant, shown.key_id, shown.model_version, shown.operation) == ("closed", "k1", "tiny@1", "generate")
    assert (unseen.outcome, unseen.prompt_tokens, unseen.completion_tokens) == ("gateway_lost", 0, 0)
    assert [settled[name].tokens for name in leases] == [4, 0]
    async with rig(model, killed) as third:
        async with Stream(third, max_tokens=8) as stream:
            await (await taken(third.workers[0])).finish()
            await stream.rest()
        assert (await asyncio.wait_for(third.records.get(), 20)).request.outcome == "stop"  # and nothing twice


def settles(call: quota_pb2.QuotaCall) -> bool:
    return call.HasField("settle")


async def test_what_was_recorded_and_whose_settlement_nobody_acknowledged_is_settled_again(tmp_path: Path) -> None:
    """Killed between the two, a request would be billed and count for no limit."""
    model, state, killed = model_in(tmp_path), tmp_path / "state", tmp_path / "killed"
    async with rig(model, state) as first:
        limiter = Held(first.quota, settles)
        async with Stream(first, max_tokens=8) as stream:
            await (await taken(first.workers[0])).last(ids("abc"))
            await stream.rest()
        record = await asyncio.wait_for(first.records.get(), 20)
        recorded = record.request
        told = (await limiter.question()).settle
        shutil.copytree(state, killed)
        limiter.go.set()
        await asyncio.wait_for(first.settled.get(), 20)
    async with rig(model, killed) as second:
        again = await asyncio.wait_for(second.settled.get(), 20)
        assert second.settled.empty()
        while not second.records.empty():  # it came again where its receipt had not come: once more, and not anew
            assert second.records.get_nowait().id == record.id
    assert recorded.completion_tokens == 3
    assert again == told
    assert (again.tokens, again.prompt_tokens) == (5, 2)
    for former in (state, killed):  # where it was acknowledged, that is all
        async with rig(model, former) as third:
            async with Stream(third, max_tokens=8) as stream:
                await (await taken(third.workers[0])).last(ids("a"))
                await stream.rest()
            assert (await asyncio.wait_for(third.settled.get(), 20)).tokens == 3


async def test_a_gateway_that_leaves_while_the_limiter_is_away_settles_when_it_is_back(tmp_path: Path) -> None:
    model, state = model_in(tmp_path), tmp_path / "state"
    async with rig(model, state) as first:
        limiter = Held(first.quota, settles)
        async with Stream(first, max_tokens=8) as stream:
            await (await taken(first.workers[0])).last(ids("abc"))
            await stream.rest()
        told = (await limiter.question()).settle
    async with rig(model, state) as second:
        assert await asyncio.wait_for(second.settled.get(), 20) == told


async def test_a_stream_that_was_gone_on_with_is_billed_for_what_came_since(tmp_path: Path) -> None:
    model, state = model_in(tmp_path), tmp_path / "state"
    async with rig(model, state) as first:
        async with Stream(first, max_tokens=8) as stream:
            await (await taken(first.workers[0])).tokens(ids("ab"))
            await stream.text(2)
        cursor = stream.frames[-1].delta.cursor
        cut = (await asyncio.wait_for(first.records.get(), 20)).request
        async with Stream(first, max_tokens=8, cursor=cursor) as stream:
            await (await taken(first.workers[0])).tokens(ids("abcde"))
            assert await stream.text(3) == "cde"
            killed = tmp_path / "killed"
            shutil.copytree(state, killed)
    async with rig(model, killed) as second:
        lost = (await asyncio.wait_for(second.records.get(), 20)).request
        settled = await asyncio.wait_for(second.settled.get(), 20)
    assert (cut.outcome, cut.prompt_tokens, cut.completion_tokens) == ("cancelled", 2, 2)
    assert (lost.outcome, lost.prompt_tokens, lost.completion_tokens) == ("gateway_lost", 0, 3)
    assert (lost.resumes, lost.resumed_tokens) == (cut.request_id, 2)
    assert (settled.tokens, settled.prompt_tokens) == (3, 0)


async def test_of_an_answer_that_is_given_whole_nothing_was_delivered(tmp_path: Path) -> None:
    """The edge asks another gateway, which gives and bills all of it."""
    model, state, killed = model_in(tmp_path), tmp_path / "state", tmp_path / "killed"
    async with rig(model, state) as first, grpc.aio.insecure_channel(f"127.0.0.1:{first.port}") as channel:
        spec = inference_pb2.GenerationSpec(model="tiny", prompt="hi")
        call = inference_pb2_grpc.InferenceServiceStub(channel).Complete(
            inference_pb2.CompleteRequest(spec=spec), metadata=HEADERS, timeout=20
        )
        answer = asyncio.ensure_future(call)  # type: ignore[arg-type]
        running = await taken(first.workers[0])
        await running.tokens(ids("ab"))
        active = first.gateway._pipeline.parts.active
        async with asyncio.timeout(20):
            while not any(each.delivered == 2 and each.reader_waits for each in active):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        shutil.copytree(state, killed)
        await running.finish()
        await answer
    async with rig(model, killed) as second:
        lost = (await asyncio.wait_for(second.records.get(), 20)).request
    assert (lost.outcome, lost.prompt_tokens, lost.completion_tokens) == ("gateway_lost", 0, 0)


async def test_an_end_costs_what_it_is_billed(mesh: Rig) -> None:
    await mesh.put(PRICE)
    async with asyncio.timeout(20):
        while not mesh.gateway._catalog.snapshot.prices:  # noqa: ASYNC110 - a watch's event
            await asyncio.sleep(0.01)
    async with Stream(mesh, max_tokens=8) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await running.finish()
        await stream.rest()
    record = (await asyncio.wait_for(mesh.records.get(), 20)).request
    assert (record.prompt_tokens, record.completion_tokens, record.spend_microusd) == (2, 3, 2 * 1 + 3 * 2)
    assert record.queue_class == "paid"


async def test_what_must_be_audited_is_refused_while_the_journal_is_full(tmp_path: Path) -> None:
    model = model_in(tmp_path)
    async with rig(model, tmp_path / "state") as mesh:
        journal = mesh.gateway._audit._journal
        await mesh.audit.stop()
        while journal.append(bytes(60_000)):
            pass
        assert mesh.gateway._audit.full
        await mesh.put(registry_pb2.Tenant(id="closed", plan=registry_pb2.PLAN_PAID, audit_required=True))
        async with asyncio.timeout(20):
            while not mesh.gateway._catalog.tenant("closed").audit_required:  # noqa: ASYNC110 - a watch's event
                await asyncio.sleep(0.01)
        async with Stream(mesh, max_tokens=8) as stream:
            error = await refusal(stream)
        assert error.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert "audited" in error.message


async def test_a_tenant_that_wants_it_is_told_what_an_answer_cost(mesh: Rig) -> None:
    asked = asyncio.create_task(chat(mesh, max_tokens=8))
    await (await taken(mesh.workers[0])).last(ids("ab"))
    assert "cost_microusd" not in (await asked).body["weir"]
    await mesh.records.get()
    await mesh.put(PRICE)
    await mesh.put(registry_pb2.Tenant(id="closed", plan=registry_pb2.PLAN_PAID, tell_cost=True))
    catalog = mesh.gateway._catalog
    async with asyncio.timeout(20):
        while not (catalog.snapshot.prices and catalog.tenant("closed").tell_cost):  # noqa: ASYNC110 - a watch's event
            await asyncio.sleep(0.01)
    asked = asyncio.create_task(chat(mesh, max_tokens=8))
    await (await taken(mesh.workers[0])).last(ids("ab"))
    answer = (await asked).body
    record = (await asyncio.wait_for(mesh.records.get(), 20)).request
    assert answer["weir"]["cost_microusd"] == record.spend_microusd == 1 * record.prompt_tokens + 2 * 2
    async with Stream(mesh, max_tokens=8) as stream:
        await (await taken(mesh.workers[0])).last(ids("abc"))
        _, end = await stream.rest()
    assert end.usage.spend_microusd == 2 * 1 + 3 * 2


async def test_users_are_recorded_by_a_pseudonym_and_their_name_is_on_no_disk(tmp_path: Path) -> None:
    name = "jane.roe@example.com"
    async with rig(model_in(tmp_path), tmp_path / "state") as mesh:
        asked = asyncio.create_task(chat(mesh, max_tokens=8, user=name))
        await (await taken(mesh.workers[0])).last(ids("ab"))
        assert (await asked).body["choices"]
        record = (await asyncio.wait_for(mesh.records.get(), 20)).request
        assert record.user == recorded_as("closed", name) == recorded_as("closed", record.user)
        assert record.user.startswith("user-")
        assert recorded_as("another", name) != record.user
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"jane" not in path.read_bytes()
