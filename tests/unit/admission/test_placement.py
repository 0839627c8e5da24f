"""Which worker gets a request: what fits, zones, the score, ties, prefixes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits, Placement
from services.admission.policy.model import Report, Request, WorkerSpec
from services.admission.policy.selection import Failed
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "", "a", frozenset({"m@1", "n@1"}), 16, 1000, 32, 4096)
BLOCK = 32


def request(number: int = 0, prompt: int = 128, output: int = 64, **more: object) -> Request:
    return replace(Request(f"r{number}", "acme", "m@1", prompt, output, 1, deadline=100.0), **more)


def prompt_of(*blocks: int, number: int = 0, **more: object) -> Request:
    """A request whose prompt is these blocks and one token."""
    return request(number, len(blocks) * BLOCK + 1, prefix_hashes=blocks, prefix_block=BLOCK, **more)


def fleet_of(*specs: WorkerSpec, limits: Limits | None = None, **report: object) -> Fleet:
    fleet = Fleet(limits or steady())
    for spec in specs:
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(free_blocks=spec.total_blocks, **report), 0.0)  # type: ignore[arg-type]
    return fleet


def workers(count: int, **more: object) -> list[WorkerSpec]:
    return [replace(SPEC, worker=f"w{number}", **more) for number in range(count)]


def picked(fleet: Fleet, asked: Request, now: float = 1.0) -> str:
    worker = fleet.pick(asked, now)
    assert worker is not None
    return worker.spec.worker


LATE = steady(prefill_settle=1000.0, max_queued_prefill=1 << 30, placement=Placement(affinity_slack=0.05))
"""Prefill that never gets done, and little patience with it."""


# ---- zones -----------------------------------------------------------------------------------------------------------


def test_requests_stay_at_home_until_it_is_well_used_and_spill_over_before_it_is_full() -> None:
    home, away = replace(SPEC, max_running=10), replace(SPEC, worker="w1", zone="b", max_running=10)
    fleet = fleet_of(home, away, limits=steady(placement=Placement(zone_spill=0.8)))
    chosen = []
    for number in range(20):
        asked = request(number, zones=("a", "b"))
        chosen.append(picked(fleet, asked))
        fleet.reserve(asked, chosen[-1], 1.0)
    assert chosen[:8] == ["w0"] * 8
    assert chosen[8:16] == ["w1"] * 8
    assert chosen[16:] == ["w0", "w0", "w1", "w1"]  # all are well used: home first again


# ---- the score -------------------------------------------------------------------------------------------------------


def test_the_shorter_queue_wins_by_each_workers_own_rate() -> None:
    fleet = fleet_of(*workers(2))
    fleet.workers["w0"].heard(Report(1000, queued_prefill_tokens=2000, prefill_tokens_per_second=20_000.0), 0.0)
    fleet.workers["w1"].heard(Report(1000, queued_prefill_tokens=1000, prefill_tokens_per_second=5_000.0), 0.0)
    assert picked(fleet, request()) == "w0"


def test_a_worker_that_has_the_model_in_memory_wins() -> None:
    fleet = fleet_of(*workers(2))
    fleet.workers["w0"].heard(Report(1000, resident=frozenset({"n@1"})), 0.0)
    assert picked(fleet, request()) == "w1"
    assert picked(fleet, request(model_version="n@1")) == "w0"


def test_the_emptier_worker_wins_and_for_large_requests_the_larger_one() -> None:
    fleet = fleet_of(*workers(2))
    fleet.reserve(request(1), "w0", 0.0)
    assert picked(fleet, request(2)) == "w1"
    fleet = fleet_of(SPEC, replace(SPEC, worker="w1", total_blocks=4000))
    assert picked(fleet, request(3, 3000)) == "w1"


# ---- affinity --------------------------------------------------------------------------------------------------------


def test_a_prompt_goes_where_the_longest_part_of_it_was() -> None:
    fleet = fleet_of(*workers(4))
    fleet.reserve(prompt_of(1, 2, 3, number=1), "w2", 0.0)
    fleet.reserve(prompt_of(1, 9, number=2), "w3", 0.0)
    assert picked(fleet, prompt_of(1, 2, 3, 4, number=3)) == "w2"
    assert picked(fleet, prompt_of(1, 9, 4, number=3)) == "w3"


def test_what_a_lost_worker_had_is_lost_with_it() -> None:
    fleet = fleet_of(*workers(3))
    fleet.reserve(prompt_of(1, 2, 3, number=1), "w2", 0.0)
    fleet.leave("w2")
    fleet.join(replace(SPEC, worker="w2"), 1.0)
    assert fleet.affinity.matches(prompt_of(1, 2, 3)) == {}


def test_affinity_ends_where_the_queue_is_too_long() -> None:
    fleet = fleet_of(*workers(2), limits=steady(placement=Placement(affinity_slack=0.5)))
    long = tuple(range(1, 101))
    fleet.reserve(prompt_of(*long, number=1), "w0", 0.0)
    fleet.workers["w0"].heard(Report(1000, queued_prefill_tokens=390, prefill_tokens_per_second=800.0), 0.0)
    fleet.workers["w1"].heard(Report(1000, prefill_tokens_per_second=800.0), 0.0)
    assert picked(fleet, prompt_of(*long, number=2)) == "w0"
    fleet.workers["w0"].heard(Report(1000, queued_prefill_tokens=410, prefill_tokens_per_second=800.0), 0.0)
    assert picked(fleet, prompt_of(*long, number=2)) == "w1"


def test_a_popular_prefix_spreads_over_the_pool_instead_of_drowning_one_worker() -> None:
    fleet = fleet_of(*workers(4, max_running=64, total_blocks=9000), limits=LATE)
    for number in range(200):
        asked = prompt_of(1, 2, 3, 4, 5, 6, 7, 8, number=number)
        fleet.reserve(asked, picked(fleet, asked), 1.0)
    waits = sorted(worker.room(1.0).wait for worker in fleet.workers.values())
    assert waits[0] > 0
    assert waits[-1] - waits[0] <= 0.05 + 257 / 8000


def test_a_worker_that_caches_nothing_loses_its_attraction() -> None:
    fleet = fleet_of(*workers(2))
    long = tuple(range(1, 40))
    for number in range(40):
        asked = prompt_of(*long, number=number)
        fleet.reserve(asked, "w0", number)
        fleet.ended(asked.request_id, number, output_tokens=1, failed=False, cached_prompt_tokens=0)
        fleet.release(asked.request_id)
    assert fleet.affinity.trust("w0") < 0.05
    found = prompt_of(*long, number=99)
    fleet.reserve(found, "w0", 99.0)
    fleet.ended("r99", 99.0, output_tokens=1, failed=False, cached_prompt_tokens=39 * BLOCK)
    assert fleet.affinity.trust("w0") > 0.1


def test_what_gave_no_token_says_nothing_of_a_cache() -> None:
    fleet = fleet_of(*workers(1))
    for number in range(3):
        fleet.reserve(prompt_of(1, 2, number=number), "w0", 0.0)
        fleet.ended(f"r{number}", 0.0, output_tokens=0, failed=False, cached_prompt_tokens=0)
    assert fleet.affinity.trust("w0") == 1.0


# ---- stability -------------------------------------------------------------------------------------------------------

PREFIXES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40, unique=True)


@given(PREFIXES, st.integers(2, 8), st.data())
def test_a_worker_that_leaves_moves_only_what_was_on_it(firsts: list[int], count: int, data: st.DataObject) -> None:
    fleet = fleet_of(*workers(count))
    asked = [prompt_of(first, number=number) for number, first in enumerate(firsts)]
    before = {each.request_id: picked(fleet, each) for each in asked}
    gone = data.draw(st.sampled_from(sorted(fleet.workers)))
    fleet.leave(gone)
    after = {each.request_id: picked(fleet, each) for each in asked}
    assert {name for name in before if before[name] != after[name]} == {n for n, on in before.items() if on == gone}
    fleet.join(replace(SPEC, worker=gone), 2.0)
    fleet.workers[gone].heard(Report(1000), 2.0)
    assert {each.request_id: picked(fleet, each, 2.0) for each in asked} == before


@given(PREFIXES, st.integers(1, 8))
def test_a_worker_that_joins_only_attracts(firsts: list[int], count: int) -> None:
    fleet = fleet_of(*workers(count))
    asked = [prompt_of(first, number=number) for number, first in enumerate(firsts)]
    before = [picked(fleet, each) for each in asked]
    fleet.join(replace(SPEC, worker="new"), 1.0)
    fleet.workers["new"].heard(Report(1000), 1.0)
    after = [picked(fleet, each) for each in asked]
    assert all(now in (then, "new") for then, now in zip(before, after, strict=True))


def test_rendezvous_spreads_prefixes_evenly() -> None:
    fleet = fleet_of(*workers(4))
    chosen = [picked(fleet, prompt_of(first)) for first in range(4000)]
    assert all(850 <= chosen.count(f"w{number}") <= 1150 for number in range(4))


# ---- what holds always -----------------------------------------------------------------------------------------------

SHAPES = st.tuples(
    st.integers(1, 600),
    st.integers(1, 400),
    st.integers(1, 4),
    st.lists(st.integers(1, 4), max_size=4),
    st.sampled_from([(), ("a",), ("b", "a")]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(["acme", "globex"]),
)
STEPS = st.lists(
    st.tuples(SHAPES, st.sampled_from(["admit", "admit", "release", "report", "leave", "fail"])), max_size=40
)


@given(STEPS, st.integers(0, 3))
@settings(deadline=None)
def test_a_request_only_gets_a_worker_that_it_fits_and_the_same_one_every_time(
    steps: list[tuple[tuple[int, int, int, list[int], tuple[str, ...], float, str], str]], preemptive: int
) -> None:
    limits = steady(report_fresh=2.0, report_stale=6.0, max_queued_prefill=2000)
    specs = [
        replace(
            SPEC,
            worker=f"w{n}",
            zone="ab"[n % 2],
            total_blocks=60 + 20 * n,
            max_running=4,
            max_context=800,
            preemptive=n < preemptive,
        )
        for n in range(4)
    ]
    fleets = [Fleet(limits, expected_output=lambda asked, _: asked.max_output_tokens // 3) for _ in range(2)]
    for fleet in fleets:
        for spec in specs:
            fleet.join(spec, 0.0)
            fleet.workers[spec.worker].heard(Report(spec.total_blocks), 0.0)
    held: list[str] = []
    for number, ((prompt, output, choices, blocks, zones, share, tenant), kind) in enumerate(steps):
        now = number * 0.3
        if kind in ("release", "fail") and held:
            name = held.pop(prompt % len(held))
            for fleet in fleets:
                fleet.ended(name, now, output_tokens=1, failed=kind == "fail", cached_prompt_tokens=0)
                fleet.release(name)
        elif kind == "report":
            for fleet in fleets:
                worker = fleet.workers.get(f"w{prompt % 4}")
                if worker is not None:
                    worker.heard(Report(min(output, worker.spec.total_blocks), running=choices), now)
        elif kind == "leave":
            for fleet in fleets:
                spec = specs[prompt % 4]
                if not fleet.leave(spec.worker):
                    fleet.join(spec, now)
        else:
            asked = request(
                number,
                prompt,
                output,
                choices=choices,
                prefix_hashes=tuple(blocks),
                prefix_block=BLOCK,
                zones=zones,
                kv_share=share,
                tenant=tenant,
            )
            one, other = (fleet.pick(asked, now) for fleet in fleets)
            fitting = [each.spec.worker for each in fleets[0].eligible(asked) if fleets[0].fits(asked, each, now)]
            if one is None or other is None:
                assert one is other
                assert not fitting
                continue
            assert one.spec.worker == other.spec.worker
            assert one.spec.worker in fitting
            for fleet in fleets:
                fleet.reserve(asked, one.spec.worker, now)
            held.append(asked.request_id)
        for fleet in fleets:
            for worker in fleet.workers.values():
                assert (
                    worker.held_blocks == sum(each.blocks for each in worker.holds.values()) <= worker.spec.total_blocks
                )
                assert worker.held_sequences <= 4


@given(
    st.lists(
        st.tuples(st.integers(1, 900), st.integers(1, 900), st.sampled_from(["acme", "globex", "hooli"])), max_size=30
    )
)
def test_a_tenants_blocks_stay_within_its_share_but_one_request_is_always_allowed(
    shapes: list[tuple[int, int, str]],
) -> None:
    fleet = fleet_of(*workers(3, total_blocks=200))
    for number, (prompt, output, tenant) in enumerate(shapes):
        asked = request(number, prompt, output, tenant=tenant, kv_share=0.1, deadline=1e9)
        worker = fleet.pick(asked, number * 1.0)
        mine = [each for each in fleet.reservations.values() if each.request.tenant == tenant]
        if worker is None:
            if fleet.over_share(asked):
                assert mine
                assert fleet.to_keep(asked, number * 1.0) is None
                assert fleet.victims(asked, number * 1.0) is None
            continue
        fleet.reserve(asked, worker.spec.worker, number * 1.0)
        if mine:
            assert sum(each.blocks for each in mine) + asked.blocks(16) <= 0.1 * 600


def test_a_share_that_only_one_kind_of_worker_keeps_within_is_granted_there() -> None:
    coarse, fine = (replace(SPEC, worker=f"w{size}", block_size=size, total_blocks=100) for size in (64, 8))
    fleet = fleet_of(coarse, fine)
    fleet.reserve(request(1, 64, 64, kv_share=0.1), "w64", 0.0)
    fleet.reserve(request(9, 2048, 2048, tenant="other"), "w64", 0.0)
    second = request(2, 64, 256, kv_share=0.1)  # 5 blocks or 40; of the share of 20 blocks 2 are held
    assert picked(fleet, second) == "w64"
    assert not fleet.fits(second, fleet.workers["w8"], 0.0)
    fleet.reserve(request(3, 512, 512, kv_share=0.1), "w64", 0.0)
    assert fleet.pick(second, 0.0) is None
    assert fleet.over_share(second)
    fleet.release("r3")
    assert not fleet.over_share(second)


def test_shapes_that_failed_are_compared_by_what_they_are_expected_to_need() -> None:
    failed = Failed(lambda asked: 10 if asked.tenant == "short" else None)
    failed.add(request(1, 100, 500))
    assert failed.includes(request(2, 100, 500))
    assert failed.includes(request(2, 200, 600))
    assert not failed.includes(request(3, 100, 500, tenant="short"))
    assert not failed.includes(request(4, 99, 500))


@pytest.mark.parametrize(
    "bad",
    [
        {"zone_spill": 0.0},
        {"zone_spill": 1.1},
        {"prefill_rate": 0.0},
        {"affinity_slack": -1.0},
        {"prefix_memory": -1},
        {"tie_band": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Placement(**bad)  # type: ignore[arg-type]
