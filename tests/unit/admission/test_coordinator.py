"""The coordinator: waiters, grants, gateways and workers, on a manual clock."""

from __future__ import annotations

import asyncio
import random

import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2 as pb

from libs.clock import ManualClock
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.grants import GrantVerifier
from services.admission import convert
from services.admission.coordinator import Coordinator, Waiter
from services.admission.worker_session import WorkerSession
from tests.support.admission_limits import steady


class Desk:
    """A coordinator on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.coordinator = Coordinator(
            limits=steady(),
            clock=self.clock,
            random_bytes=random.Random(1).randbytes,
            grant_lifetime=5.0,
            worker_heartbeat=3.0,
            gateway_grace=5.0,
        )

    def worker(self, name: str = "w0", slots: int = 1, *, takes_credits: bool = False) -> WorkerSession:
        session = self.coordinator.worker_joined(
            pb.WorkerHello(
                worker=name,
                address="127.0.0.1:7700",
                zone="zone-a",
                pool="fast",
                model_versions=["m@1"],
                block_size=16,
                total_blocks=100,
                max_running=slots,
                max_context=512,
                takes_credits=takes_credits,
            )
        )
        self.report(session)
        return session

    def report(self, session: WorkerSession, **load: object) -> None:
        report = pb.CapacityReport(**{"free_blocks": 100, **load})  # type: ignore[arg-type]
        self.coordinator.worker_reported(session, report)

    def ask(self, request_id: str = "r0", **more: object) -> pb.AdmissionReply | Waiter:
        fields = {
            "request_id": request_id,
            "tenant": "acme",
            "pool": "fast",
            "model_version": "m@1",
            "prompt_tokens": 10,
            "max_output_tokens": 10,
            "choices": 1,
            **more,
        }
        deadline = self.clock.monotonic() + 60
        return self.coordinator.admit(pb.Admit(**fields), deadline=deadline, owner="gateway-0")  # type: ignore[arg-type]

    def granted(self, request_id: str = "r0", **more: object) -> pb.Granted:
        reply = self.ask(request_id, **more)
        assert isinstance(reply, pb.AdmissionReply)
        assert reply.HasField("granted")
        return reply.granted

    def waits(self, request_id: str) -> Waiter:
        waiter = self.ask(request_id)
        assert isinstance(waiter, asyncio.Future)
        return waiter

    def release(self, request_id: str) -> bool:
        return self.coordinator.release(pb.Release(request_id=request_id, output_tokens=3)).released.known


async def test_a_grant_is_one_that_the_worker_accepts() -> None:
    desk = Desk()
    session = desk.worker()
    granted = desk.granted()
    verifier = GrantVerifier("w0", clock=desk.clock)
    verifier.add_key(session.signer.key_id, session.key)
    asked = {"request_id": "r0", "model_version": "m@1", "prompt_tokens": 10, "max_output_tokens": 10, "choices": 1}
    assert verifier.verify(granted.grant, **asked).tenant == "acme"  # type: ignore[arg-type]
    assert (granted.worker, granted.address, granted.zone) == ("w0", "127.0.0.1:7700", "zone-a")


async def test_keys_differ_between_sessions() -> None:
    desk = Desk()
    first, second = desk.worker("w0"), desk.worker("w1")
    assert len(first.key) == 32
    assert first.key != second.key
    assert first.signer.key_id != second.signer.key_id


async def test_asking_again_gives_the_same_grant_while_it_is_good() -> None:
    desk = Desk()
    session = desk.worker()
    first = desk.granted().grant
    for _ in range(2):
        desk.clock.advance(2.4)
        desk.report(session)
        desk.coordinator.tick()
        assert desk.granted().grant == first
    desk.clock.advance(0.2)
    desk.coordinator.tick()
    assert desk.granted().grant != first


async def test_waiters_are_answered_in_turn() -> None:
    desk = Desk()
    desk.worker()
    desk.granted("r0")
    first, second = desk.waits("r1"), desk.waits("r2")
    assert desk.release("r0")
    assert first.result().granted.worker == "w0"
    assert not second.done()
    assert not desk.release("r0")
    assert desk.release("r1")
    assert second.done()


async def test_two_waiters_of_one_request_get_a_message_each() -> None:
    desk = Desk()
    desk.worker()
    desk.granted("r0")
    first, second = desk.waits("r1"), desk.waits("r1")
    desk.release("r0")
    assert first.result() == second.result()
    assert first.result() is not second.result()


async def test_a_wait_ends_with_its_last_waiter() -> None:
    desk = Desk()
    desk.worker()
    desk.granted("r0")
    first, second = desk.waits("r1"), desk.waits("r1")
    backlog = desk.coordinator.pools["fast"].backlog
    first.cancel()
    await asyncio.sleep(0)
    assert len(backlog) == 1
    second.cancel()
    await asyncio.sleep(0)
    assert len(backlog) == 0


async def test_releasing_a_waiting_request_ends_its_wait() -> None:
    desk = Desk()
    desk.worker()
    desk.granted("r0")
    waiter = desk.waits("r1")
    assert desk.release("r1")
    assert waiter.cancelled()


async def test_a_waiting_request_that_comes_back_larger_is_answered_for_both() -> None:
    desk = Desk()
    desk.worker()
    desk.granted("r0")
    waiter = desk.waits("r1")
    reply = desk.ask("r1", prompt_tokens=5000)
    assert isinstance(reply, pb.AdmissionReply)
    assert reply.rejected.reason == Reason.CONTEXT_LENGTH_EXCEEDED
    assert waiter.result().rejected.reason == Reason.CONTEXT_LENGTH_EXCEEDED


async def test_a_silent_worker_is_lost() -> None:
    desk = Desk()
    session = desk.worker("w0")
    desk.clock.advance(2.0)
    other = desk.worker("w1")
    desk.clock.advance(1.5)
    desk.coordinator.tick()
    assert await session.next_frame() is None
    assert desk.granted().worker == "w1"
    desk.report(session)  # too late: the session is over
    assert desk.coordinator.pools["fast"].fleet.serving("m@1")[0].spec.worker == "w1"
    assert other.send(pb.ReportCapacityResponse())


async def test_a_worker_that_joins_anew_replaces_its_session_and_the_old_stream_changes_nothing() -> None:
    desk = Desk()
    old = desk.worker("w0")
    new = desk.worker("w0")
    assert await old.next_frame() is None
    desk.coordinator.worker_left(old, "stream")
    assert desk.granted().grant.key_id == new.signer.key_id


async def test_a_gateway_that_stays_away_loses_its_shares() -> None:
    desk = Desk()
    session = desk.worker()
    desk.coordinator.gateway_opened("gateway-0", "fast")
    desk.granted("r0")
    desk.coordinator.gateway_closed("gateway-0", "fast")
    desk.clock.advance(4.9)
    desk.report(session)
    desk.coordinator.tick()
    assert desk.coordinator.pools["fast"].fleet.reservations
    desk.clock.advance(0.2)
    desk.coordinator.tick()
    assert not desk.coordinator.pools["fast"].fleet.reservations


async def test_a_gateway_that_asks_another_process_for_one_pool_keeps_what_it_has_in_others() -> None:
    desk = Desk()
    desk.worker()
    coordinator = desk.coordinator
    for pool in ("fast", "other"):
        coordinator.gateway_opened("gateway-0", pool)
    desk.granted("r0")
    assert (coordinator.pool_of("r0"), coordinator.pool_of("r1")) == ("fast", "")
    for pool, kept in (("other", True), ("fast", False)):
        coordinator.gateway_closed("gateway-0", pool)
        desk.clock.advance(5.1)
        coordinator.tick()
        assert bool(coordinator.pools["fast"].fleet.reservations) is kept


async def test_a_gateway_that_comes_back_in_time_keeps_them() -> None:
    desk = Desk()
    session = desk.worker()
    desk.coordinator.gateway_opened("gateway-0", "fast")
    desk.granted("r0")
    desk.coordinator.gateway_closed("gateway-0", "fast")
    desk.clock.advance(4.0)
    desk.coordinator.gateway_opened("gateway-0", "fast")
    desk.report(session)
    desk.clock.advance(2.0)
    desk.coordinator.tick()
    assert desk.release("r0")


async def test_drain_and_preempt_reach_the_worker_and_a_draining_one_gets_no_work() -> None:
    desk = Desk()
    session = desk.worker("w0", slots=4)
    assert desk.coordinator.preempt("w0", ["r0", "r1"])
    assert desk.coordinator.drain_worker("w0", "scale-in")
    preempt, drain = await session.next_frame(), await session.next_frame()
    assert preempt is not None
    assert drain is not None
    assert list(preempt.preempt.request_ids) == ["r0", "r1"]
    assert drain.drain.reason == "scale-in"
    desk.report(session)
    desk.waits("r0")
    assert not desk.coordinator.preempt("nobody", [])
    assert not desk.coordinator.drain_worker("nobody", "")


async def test_a_worker_that_reads_nothing_does_not_fill_memory() -> None:
    desk = Desk()
    desk.worker()
    assert [desk.coordinator.preempt("w0", ["r"]) for _ in range(65)] == [True] * 64 + [False]


async def test_draining_sends_waiting_requests_and_new_ones_elsewhere() -> None:
    desk = Desk()
    desk.worker()
    desk.granted("r0")
    waiter = desk.waits("r1")
    desk.coordinator.drain()
    assert waiter.result().rejected.reason == Reason.DRAINING
    reply = desk.ask("r2")
    assert isinstance(reply, pb.AdmissionReply)
    assert reply.rejected.reason == Reason.DRAINING
    with pytest.raises(WeirError):
        desk.worker("w1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", ""),
        ("request_id", "x" * 257),
        ("tenant", ""),
        ("pool", ""),
        ("model_version", ""),
        ("prompt_tokens", 0),
        ("choices", 0),
        ("weight", -1.0),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("queue_class", 9),
        ("ttft_target", Duration(seconds=-1)),
        ("ttft_target", Duration()),
        ("kv_share", 1.5),
        ("kv_share", float("nan")),
        ("version_share", -0.1),
        ("version_share", float("nan")),
        ("resumed_tokens", 10),
    ],
)
async def test_malformed_requests_are_refused_by_field(field: str, value: object) -> None:
    desk = Desk()
    with pytest.raises(WeirError) as caught:
        desk.ask(**{"request_id": "r0", field: value})  # type: ignore[arg-type]
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, field)


async def test_a_worker_without_capacity_is_refused() -> None:
    with pytest.raises(WeirError) as caught:
        Desk().coordinator.worker_joined(pb.WorkerHello(worker="w0", address="a:1", pool="fast", block_size=16))
    assert caught.value.limit == "total_blocks"


async def test_operators_see_what_every_worker_told_last_and_what_it_holds() -> None:
    desk = Desk()
    session = desk.worker("w1", slots=4)
    desk.coordinator.worker_joined(
        pb.WorkerHello(
            worker="w0", address="a", pool="other", block_size=1, total_blocks=1, max_running=1, max_context=9
        )
    )
    desk.granted()
    told = {"free_blocks": 98, "prefix_queried_total": 50, "prefix_hit_total": 20, "preemptions_total": 3}
    desk.report(session, **told, decode_step=Duration(nanos=7_000_000), fragmentation=0.25)
    desk.clock.advance(1.5)
    silent, known = desk.coordinator.workers().workers
    assert (silent.hello.worker, silent.HasField("report"), silent.HasField("report_age")) == ("w0", False, False)
    assert (known.hello.worker, known.hello.max_running, known.report_age.ToSeconds()) == ("w1", 4, 1)
    assert {name: getattr(known.report, name) for name in told} == told
    assert (known.report.decode_step.nanos, known.report.fragmentation) == (7_000_000, 0.25)
    assert (known.held_sequences, known.held_blocks, known.draining) == (1, 2, False)
    desk.report(session, draining=True)
    assert [each.draining for each in desk.coordinator.workers("fast").workers] == [True]
    desk.coordinator.worker_left(session, "stream")
    assert not desk.coordinator.workers("fast").workers


async def test_a_worker_that_was_told_to_drain_is_shown_so() -> None:
    desk = Desk()
    desk.worker()
    desk.coordinator.drain_worker("w0", "maintenance")
    assert desk.coordinator.workers().workers[0].draining


async def test_what_the_gateway_tells_reaches_the_policy() -> None:
    desk = Desk()
    desk.worker(slots=4)
    granted = desk.granted(
        ttft_target=Duration(seconds=2),
        prefix_hashes=range(100),
        prefix_block=16,
        resumed_tokens=4,
        kv_share=0.5,
        version_share=0.25,
    )
    held = desk.coordinator.pools["fast"].fleet.reservations["r0"].request
    assert held.ttft_by == desk.clock.monotonic() + 2
    assert held.prefix_hashes == tuple(range(64))
    assert (held.prefix_block, held.resumed_tokens, held.kv_share, held.version_share) == (16, 4, 0.5, 0.25)
    assert pb.Grant.FromString(granted.grant.grant).kv_share == 0.5  # which the worker's engine holds


def test_what_a_worker_tells_of_requests_that_came_far_reaches_the_policy() -> None:
    progress = pb.Progress(request_id="r0", output_tokens=48)
    report = convert.to_report(pb.CapacityReport(free_blocks=3, progress=[progress]))
    assert report.progress == (("r0", 48),)
    sizes = {"block_size": 16, "total_blocks": 100, "max_running": 4, "max_context": 4096}
    hello = pb.WorkerHello(worker="w0", address="a:1", pool="fast", holds_shares=True, **sizes)
    assert convert.to_spec(hello).holds_shares


async def test_a_worker_gets_requests_for_what_it_says_that_it_has_ready() -> None:
    desk = Desk()
    session = desk.worker(slots=4)
    desk.report(session, model_versions=["m@1", "m@2"])
    desk.granted("r0", model_version="m@2")
    desk.report(session, model_versions=["m@2"])
    assert isinstance(desk.ask("r1"), asyncio.Future)
    desk.report(session)  # as it said in the beginning
    desk.granted("r2")
    assert isinstance(desk.ask("r3", model_version="m@2"), asyncio.Future)


async def test_a_copy_that_waits_can_be_called_off() -> None:
    desk = Desk()
    desk.worker(slots=1)
    copy = {"queue_class": pb.QUEUE_CLASS_SHADOW, "tenant": "shadow"}
    assert isinstance(desk.ask("s0", **copy), asyncio.Future)  # of one sequence half is not enough
    assert desk.coordinator.pool_of("s0") == "fast"
    waiter = desk.ask("s1", **copy)
    assert isinstance(waiter, asyncio.Future)
    waiter.cancel()
    await asyncio.sleep(0)
    assert (desk.release("s0"), desk.release("s1")) == (True, False)


async def test_hashes_without_the_size_of_their_blocks_are_refused() -> None:
    with pytest.raises(WeirError) as caught:
        Desk().ask(prefix_hashes=[1])
    assert caught.value.limit == "prefix_block"


async def test_what_a_worker_tells_of_its_speed_is_what_first_tokens_are_predicted_by() -> None:
    desk = Desk()
    session = desk.worker(slots=4)
    desk.report(session, prefill_tokens_per_second=100.0, decode_step=Duration(nanos=20_000_000), resident_models=["a"])
    granted = desk.granted()
    assert granted.predicted_first_token.ToMilliseconds() == 120  # 10 prompt tokens and a step
    assert granted.pressure == 0.0
    report = desk.coordinator.pools["fast"].fleet.workers["w0"].report
    assert report is not None
    assert report.resident == frozenset({"a"})


async def test_releases_teach_the_predictions_and_the_metrics_tell_their_errors() -> None:
    desk = Desk()
    desk.worker(slots=4)
    labels = {"pool": "fast"}
    name = "weir_admission_first_token_error_seconds_count"
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    desk.granted()
    desk.clock.advance(0.5)
    release = pb.Release(request_id="r0", output_tokens=5, first_token=Duration(nanos=300_000_000))
    assert desk.coordinator.release(release).released.known
    desk.coordinator.tick()
    assert REGISTRY.get_sample_value(name, labels) == before + 1
    assert desk.granted("r1").predicted_first_token.ToMilliseconds() == 300


async def test_an_interruption_reaches_the_worker_and_its_room_the_urgent_request() -> None:
    desk = Desk()
    session = desk.worker(slots=1)
    desk.granted("batch", queue_class=pb.QUEUE_CLASS_BATCH)
    desk.clock.advance(1.0)
    desk.report(session)
    waiter = desk.ask("urgent", queue_class=pb.QUEUE_CLASS_PAID)
    assert isinstance(waiter, asyncio.Future)
    desk.clock.advance(1.1)
    desk.report(session)
    frame = await session.next_frame()
    assert frame is not None
    assert list(frame.preempt.request_ids) == ["batch"]
    assert desk.release("batch")
    assert waiter.result().granted.worker == "w0"


async def test_a_failure_counts_against_the_worker() -> None:
    desk = Desk()
    desk.worker("w0", slots=8)
    desk.worker("w1", slots=8)
    outliers = desk.coordinator.pools["fast"].fleet.outliers
    now = desk.clock.monotonic()
    for number in range(40):
        worker = desk.granted(f"r{number}").worker
        desk.coordinator.release(pb.Release(request_id=f"r{number}", output_tokens=1, failed=worker == "w0"))
    assert outliers.ejected("w0", now)
    assert not outliers.ejected("w1", now)


def roomy(desk: Desk) -> WorkerSession:
    return desk.worker(slots=16, takes_credits=True)


def presented(credit: pb.Credit, request_id: str) -> pb.SignedGrant:
    grant = credit.granted.grant
    grant.holder.request_id, grant.holder.tenant = request_id, "acme"
    return grant


async def test_a_grant_carries_credits_that_the_worker_accepts_and_admission_notes() -> None:
    desk = Desk()
    session = roomy(desk)
    credits = desk.granted(queue_class=pb.QUEUE_CLASS_PAID, credits=9).credits
    assert [(each.prompt_tokens, each.max_output_tokens, to_seconds(each.lifetime)) for each in credits] == [
        (16, 10, 1.0)
    ] * 2
    assert len({each.id for each in credits}) == 2
    verifier = GrantVerifier("w0", clock=desk.clock)
    verifier.add_key(session.signer.key_id, session.key)
    asked = {"request_id": "r1", "model_version": "m@1", "prompt_tokens": 12, "max_output_tokens": 10, "choices": 1}
    assert verifier.verify(presented(credits[0], "r1"), **asked).tenant == "acme"  # type: ignore[arg-type]
    told = desk.ask("r1", prompt_tokens=12, queue_class=pb.QUEUE_CLASS_PAID, credit=credits[0].id, credits=1)
    assert isinstance(told, pb.AdmissionReply)
    assert (told.granted.worker, len(told.granted.credits), told.contended) == ("w0", 1, False)
    assert desk.release("r1")
    assert desk.release(credits[1].id)
    with pytest.raises(WeirError) as caught:
        desk.ask("r2", prompt_tokens=12, credit=credits[1].id)
    assert (caught.value.reason, caught.value.limit) == (Reason.GRANT_EXPIRED, "credit")


async def test_replies_say_when_somebody_waits_and_carry_no_credits_then() -> None:
    desk = Desk()
    desk.worker(slots=2, takes_credits=True)
    for name in ("r0", "r1"):
        assert not desk.ask(name).contended  # type: ignore[union-attr]
    waiter, other = desk.waits("r2"), desk.waits("r3")
    reply = desk.coordinator.release(pb.Release(request_id="r0", output_tokens=3))
    assert reply.contended
    assert waiter.result().contended
    assert not waiter.result().granted.credits
    desk.release("r1")
    assert not other.result().contended


async def test_credits_of_a_pool_that_was_lost_are_unknown_to_its_next_term() -> None:
    desk = Desk()
    roomy(desk)
    (credit,) = desk.granted(queue_class=pb.QUEUE_CLASS_PAID, credits=1).credits
    desk.coordinator.won("fast", 7)
    with pytest.raises(WeirError):
        desk.ask("r1", credit=credit.id)
