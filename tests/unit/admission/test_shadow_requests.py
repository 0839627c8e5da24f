"""Shadow requests: they start where there is room to spare, and cost nobody else more than one interruption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Interrupt,
    Outcome,
    QueueClass,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from tests.support.admission_limits import all_ttls, steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 100, 4, 1024)
LATER = 1.0  # after what was granted at 0 may be interrupted


def request(name: str, queue_class: QueueClass = QueueClass.PAID, **more: object) -> Request:
    base = Request(name, "acme", "m@1", 16, 16, 1, deadline=1000.0, queue_class=queue_class)
    return replace(base, **more)


def shadow(name: str, **more: object) -> Request:
    return request(name, QueueClass.SHADOW, **({"tenant": "shadow"} | more))


def pool(*specs: WorkerSpec, limits: Limits | None = None) -> Pool:
    made = Pool("fast", limits or steady(), now=0.0)
    for spec in specs or (SPEC,):
        made.worker_joined(spec, 0.0)
        made.worker_reported(spec.worker, Report(free_blocks=spec.total_blocks), 0.0)
    return made


def admit(target: Pool, asked: Request, now: float = 0.0) -> tuple[object, list[Event]]:
    return target.admit(asked, now)


def interrupted(events: Iterable[Event]) -> set[str]:
    return {name for event in events if isinstance(event, Interrupt) for name in event.request_ids}


def granted(events: Iterable[Event]) -> list[str]:
    return [event.request.request_id for event in events if isinstance(event, Granted)]


def refusal(answer: object) -> tuple[Outcome, str]:
    assert isinstance(answer, Refused)
    return answer.outcome, answer.limit


def test_they_start_up_to_the_room_that_is_theirs() -> None:
    target = pool()
    assert isinstance(admit(target, shadow("s0"))[0], Granted)
    assert isinstance(admit(target, shadow("s1"))[0], Granted)  # two of four sequences: shadow_room
    assert isinstance(admit(target, shadow("s2"))[0], Queued)
    assert granted(target.release("s0", LATER)[1]) == ["s2"]


def test_work_of_others_counts_against_that_room() -> None:
    target = pool()
    admit(target, request("a"))
    admit(target, request("b"))
    assert isinstance(admit(target, shadow("s0"))[0], Queued)
    assert granted(target.release("a", LATER)[1]) == ["s0"]


def test_a_large_one_is_measured_by_its_blocks() -> None:
    target = pool()
    assert isinstance(admit(target, shadow("s0", prompt_tokens=800))[0], Queued)  # 51 of 100 blocks
    assert isinstance(pool().admit(shadow("s0", prompt_tokens=784), 0.0)[0], Granted)  # 50


def test_while_anybody_waits_they_are_refused_at_once() -> None:
    target = pool()
    for number in range(4):
        admit(target, request(f"r{number}"))
    admit(target, request("waits", QueueClass.BATCH))
    assert refusal(admit(target, shadow("s0"))[0]) == (Outcome.REJECTED_QUEUE_FULL, "shadow")


def test_only_after_a_while_without_a_queue_do_they_start_again() -> None:
    target = pool()
    for number in range(5):
        admit(target, request(f"r{number}"))
    target.tick(1.0)
    target.release("r4", 1.0)  # which waited
    for number in range(4):
        target.release(f"r{number}", 1.0)
    target.tick(1.0)
    assert refusal(admit(target, shadow("s0"), 1.9)[0]) == (Outcome.REJECTED_QUEUE_FULL, "shadow")
    assert isinstance(admit(target, shadow("s1"), 2.0)[0], Granted)


def test_few_wait_and_not_for_long() -> None:
    target = pool(limits=steady(shadow_queue=1, shadow_room=0.0))
    assert isinstance(admit(target, shadow("s0"))[0], Queued)
    assert refusal(admit(target, shadow("s1"))[0]) == (Outcome.REJECTED_QUEUE_FULL, "shadow")
    assert target.tick(1.9) == []
    (event,) = target.tick(2.0)
    assert refusal(event) == (Outcome.EVICTED_TTL, "shadow")
    assert target.idle


def test_an_interrupted_one_does_not_go_on() -> None:
    answer, _ = admit(pool(), shadow("s0", prompt_tokens=20, resumed_tokens=4))
    assert refusal(answer) == (Outcome.REJECTED_QUEUE_FULL, "shadow")


@pytest.mark.parametrize("queue_class", [each for each in QueueClass if each is not QueueClass.SHADOW])
def test_they_make_way_at_once_for_every_class(queue_class: QueueClass) -> None:
    target = pool(limits=steady(shadow_room=1.0, shadow_yield=1.0))
    for number in range(4):
        assert isinstance(admit(target, shadow(f"s{number}"))[0], Granted)
    answer, events = admit(target, request("r", queue_class), LATER)
    assert isinstance(answer, Queued)
    assert interrupted(events) == {"s0", "s1", "s2", "s3"}
    assert granted(target.release("s1", LATER)[1]) == ["r"]


def test_nobody_is_refused_for_what_they_hold() -> None:
    target = pool(limits=steady(shadow_room=1.0, shadow_yield=1.0))
    report = Report(100, decode_step=0.1, prefill_tokens_per_second=100.0)
    target.worker_reported("w0", report, 0.0)
    for number in range(4):
        admit(target, shadow(f"s{number}"))
    answer, events = admit(target, request("r", ttft_by=LATER + 0.5), LATER)
    assert isinstance(answer, Queued)
    assert len(interrupted(events)) == 4


def test_one_that_was_granted_this_moment_is_asked_a_moment_later() -> None:
    target = pool(limits=steady(shadow_room=1.0, shadow_yield=1.0))
    for number in range(4):
        admit(target, shadow(f"s{number}"), 0.5)
    _, events = admit(target, request("r"), 0.55)
    assert interrupted(events) == set()  # the worker may not know them yet
    assert len(interrupted(target.tick(0.61))) == 4


def test_they_leave_before_a_worker_is_full() -> None:
    target = pool()
    admit(target, shadow("s0"))
    admit(target, shadow("s1"))
    admit(target, request("a"), LATER)  # three of four: shadow_yield
    assert interrupted(target.tick(LATER)) == {"s0", "s1"}


def test_only_workers_that_the_waiting_one_may_use_are_cleared() -> None:
    other = replace(SPEC, worker="w1", zone="zone-b")
    target = pool(SPEC, other, limits=steady(shadow_room=1.0, shadow_yield=1.0))
    for number in range(8):
        admit(target, shadow(f"s{number}"))
    _, events = admit(target, request("r", zones=("zone-b",)), LATER)
    (event,) = events
    assert isinstance(event, Interrupt)
    assert event.worker == "w1"
    assert len(event.request_ids) == 4


def test_whoever_is_kept_out_by_its_own_budget_clears_nobody() -> None:
    target = pool(limits=steady(shadow_room=1.0, shadow_yield=1.0))
    admit(target, request("a", prompt_tokens=160))
    admit(target, shadow("s0"))
    _, events = admit(target, request("b", prompt_tokens=160, kv_share=0.1), LATER)
    assert interrupted(events) == set()
    assert interrupted(target.tick(LATER + 1)) == set()


def test_nothing_of_theirs_is_learned_charged_or_told() -> None:
    target = pool(limits=steady(shadow_room=1.0, shadow_yield=1.0, shadow_queue=1))
    for number in range(6):
        admit(target, shadow(f"s{number}", prefix_hashes=(1, 2), prefix_block=16))
    for number in range(4):
        target.release(f"s{number}", 1.0, output_tokens=1, first_token=0.5, failed=number == 0)
    target.tick(5.0)
    assert target.edge_shedding.tenants(5.0) == ()
    assert target.estimates.lengths.mean("shadow", "m@1") is None
    assert target.books.take_predictions() == []
    assert target.fleet.affinity.matches(request("r", prefix_hashes=(1, 2), prefix_block=16)) == {}
    for queue in target.backlog.queues.values():
        assert queue.level_of("shadow") == 0.0


def test_failures_of_copies_eject_no_worker() -> None:
    target = pool()
    for number in range(10):
        admit(target, shadow(f"s{number}"))
        target.release(f"s{number}", 0.0, output_tokens=0, failed=True)
    assert isinstance(admit(target, request("r"))[0], Granted)


def test_the_same_copy_asked_twice_is_one() -> None:
    target = pool(limits=steady(shadow_room=0.0))
    assert isinstance(admit(target, shadow("s0"))[0], Queued)
    assert isinstance(admit(target, shadow("s0"))[0], Queued)
    assert refusal(admit(target, request("s0"))[0]) == (Outcome.INVALID_REQUEST, "request_id")
    assert target.cancel("s0", 0.0) == (True, [])
    assert target.idle


def test_draining_sends_waiting_copies_away() -> None:
    target = pool(limits=steady(shadow_room=0.0))
    admit(target, shadow("s0"))
    (event,) = target.drain(0.0)
    assert refusal(event) == (Outcome.DRAINING, "")
    assert target.idle


@dataclass(frozen=True)
class Step:
    """One thing that happens, `after` seconds from the last."""

    after: float
    kind: str
    size: int
    queue_class: QueueClass


STEPS = st.lists(
    st.builds(
        Step,
        after=st.sampled_from([0.0, 0.001, 0.02, 0.3]),
        kind=st.sampled_from(["admit", "admit", "copy", "copy", "release", "tick"]),
        size=st.integers(1, 6),
        queue_class=st.sampled_from([QueueClass.PAID, QueueClass.FREE, QueueClass.OVER_QUOTA, QueueClass.BATCH]),
    ),
    max_size=60,
)


def play(target: Pool, steps: Sequence[Step], *, copies: bool) -> list[tuple[float, str, str]]:
    """What became of the users' requests, and when. Interrupted copies are released at once."""
    now, told, running = 0.0, [], []

    def hear(events: Iterable[object]) -> None:
        for event in events:
            if isinstance(event, Interrupt):
                for name in event.request_ids:
                    if name.startswith("copy"):
                        hear(target.release(name, now)[1])
            elif isinstance(event, (Granted, Refused)) and not event.request.request_id.startswith("copy"):
                name = event.request.request_id
                told.append((now, name, "granted" if isinstance(event, Granted) else event.outcome.value))
                if isinstance(event, Granted):
                    running.append(name)

    for number, step in enumerate(steps):
        now += step.after
        if step.kind == "tick":
            hear(target.tick(now))
        elif step.kind == "release" and running:
            hear(target.release(running.pop(0), now)[1])
        elif step.kind == "admit" or (step.kind == "copy" and copies):
            name, queue_class = f"{step.kind}-{number}", step.queue_class
            tenant = f"t{step.size % 2}"
            if step.kind == "copy":
                tenant, queue_class = "shadow", QueueClass.SHADOW
            prompt = 64 * step.size
            asked = request(name, queue_class, tenant=tenant, prompt_tokens=prompt, deadline=now + 50)
            answer, events = target.admit(asked, now)
            hear([*events, answer])
            assert not (queue_class is QueueClass.SHADOW and isinstance(answer, Granted) and len(target.backlog))
    return told


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, room=st.sampled_from([0.25, 0.5, 1.0]))
def test_without_copies_everything_would_be_the_same(steps: Sequence[Step], room: float) -> None:
    """On one worker that releases at once what it is asked to: the whole cost to others is that interruption."""
    limits = steady(
        shadow_room=room,
        shadow_yield=1.0,
        shadow_calm=0.0,  # the hardest case
        prefill_settle=0.0,
        **all_ttls(1.0),
    )
    assert play(pool(limits=limits), steps, copies=True) == play(pool(limits=limits), steps, copies=False)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
def test_whoever_waits_finds_every_copy_on_its_way_out(steps: Sequence[Step], workers: int) -> None:
    limits = steady(shadow_room=1.0, shadow_yield=1.0, shadow_calm=0.0)
    target = pool(*(replace(SPEC, worker=f"w{n}") for n in range(workers)), limits=limits)
    now = 0.0
    for number, step in enumerate(steps):
        now += step.after
        if step.kind == "release":
            target.release(f"admit-{number - step.size}", now)
        elif step.kind == "tick":
            target.tick(now)
        else:
            shown = step.kind == "copy"
            queue_class = QueueClass.SHADOW if shown else step.queue_class
            target.admit(request(f"{step.kind}-{number}", queue_class, prompt_tokens=64 * step.size), now)
        if len(target.backlog):
            target.tick(now)
            for held in target.fleet.reservations.values():
                if held.request.queue_class is QueueClass.SHADOW:
                    asked = target.fleet.preemption.asked(held.request.request_id)
                    assert asked or now - held.granted_at < limits.prefill_settle


@settings(max_examples=100, deadline=None)
@given(
    requests=st.lists(st.tuples(st.sampled_from(["m@1", "m@2"]), st.integers(1, 12), st.booleans()), max_size=40),
    share=st.sampled_from([0.1, 0.25, 0.5]),
)
def test_a_version_stays_within_its_share(requests: list[tuple[str, int, bool]], share: float) -> None:
    spec = replace(SPEC, model_versions=frozenset({"m@1", "m@2"}), max_running=100)
    target = pool(spec, replace(spec, worker="w1"))
    running: list[str] = []
    for number, (version, size, ends) in enumerate(requests):
        part = share if version == "m@2" else 0.0
        asked = request(f"r{number}", model_version=version, prompt_tokens=64 * size, version_share=part)
        answer, events = target.admit(asked, float(number))
        running += granted(event for event in [*events, answer] if isinstance(event, Granted))
        if ends and running:
            _, events = target.release(running.pop(0), float(number))
            running += granted(events)
        held = [r.blocks for r in target.fleet.reservations.values() if r.request.model_version == "m@2"]
        assert sum(held) <= share * 200 or len(held) == 1


def test_what_its_versions_share_keeps_out_is_told_so() -> None:
    target = pool(replace(SPEC, model_versions=frozenset({"m@1", "m@2"})))
    candidate = {"model_version": "m@2", "prompt_tokens": 128, "version_share": 0.1}
    assert isinstance(admit(target, request("a", **candidate))[0], Granted)
    assert isinstance(admit(target, request("b", **candidate))[0], Queued)  # 18 of 10 blocks
    assert isinstance(admit(target, request("c"))[0], Granted)  # others go on
    (event,) = target.tick(40.0)
    assert refusal(event) == (Outcome.EVICTED_TTL, "version_share")


def test_copies_of_a_version_make_way_for_its_share() -> None:
    target = pool(replace(SPEC, model_versions=frozenset({"m@1", "m@2"})))
    candidate = {"model_version": "m@2", "prompt_tokens": 128, "version_share": 0.1}
    admit(target, shadow("s0", **candidate))
    answer, events = admit(target, request("b", **candidate), LATER)
    assert isinstance(answer, Queued)
    assert interrupted(events) == {"s0"}
    assert granted(target.release("s0", LATER)[1]) == ["b"]


def test_a_workers_versions_may_change() -> None:
    target = pool(limits=steady(absence_grace=5.0))
    held, _ = admit(target, request("held"))
    assert isinstance(held, Granted)
    target.worker_serves("w0", frozenset({"m@2"}), 10.0)
    assert isinstance(admit(target, request("new", model_version="m@2"), 10.0)[0], Granted)
    assert isinstance(admit(target, request("old"), 10.0)[0], Queued)  # a worker may come back
    assert isinstance(admit(target, request("held"), 10.0)[0], Queued)  # its worker does not have it any more
    assert refusal(admit(target, request("late"), 15.0)[0]) == (Outcome.NO_WORKERS, "workers")
    target.worker_serves("w0", frozenset({"m@1", "m@2"}), 16.0)
    assert granted(target.tick(16.0)) == ["old", "held"]
