"""The faults of a soak are a function of the seed, and only what can go wrong goes wrong."""

from __future__ import annotations

from itertools import islice

from libs.authority.callgraph import calls
from loadtest.soak.faults import (
    BREAK,
    DELAYS,
    DURABLE,
    FOREIGN,
    FULL,
    KILL,
    PART,
    SECONDS,
    SKEW,
    SLOW,
    SLOW_DISK,
    WEIGHTS,
    faults,
)

SERVICES = {
    "etcd": "etcd",
    "envoy": "envoy",
    "gateway": "gateway",
    "gateway-2": "gateway",
    "worker-a": "worker",
    "audit": "audit",
    "ratelimit": "ratelimit",
    "door": "door",
}
MANY = 500


def test_the_same_seed_gives_the_same_faults() -> None:
    assert list(islice(faults(7, SERVICES, WEIGHTS), 50)) == list(islice(faults(7, SERVICES, WEIGHTS), 50))
    assert list(islice(faults(7, SERVICES, WEIGHTS), 50)) != list(islice(faults(8, SERVICES, WEIGHTS), 50))


def test_everything_that_can_go_wrong_does_and_nothing_else() -> None:
    drawn = list(islice(faults(1, SERVICES, WEIGHTS), MANY))
    assert {fault.kind for fault in drawn} == set(WEIGHTS)
    assert {fault.targets[0] for fault in drawn if fault.kind == KILL} == set(SERVICES)
    for fault in drawn:
        services = [SERVICES[name] for name in fault.targets]
        if fault.kind == PART:
            assert services[1] in calls(services[0])
            assert fault.targets[0] != fault.targets[1]
        if fault.kind == FULL:
            assert services[0] in DURABLE
        if fault.kind == SKEW:
            assert services[0] not in FOREIGN
            assert fault.skew
        if fault.kind in (SLOW, BREAK):
            assert services[0] != "envoy"
        if fault.kind == SLOW_DISK:
            assert services[0] in DURABLE - FOREIGN
        assert (fault.kind in DELAYS) == (fault.delay > 0)
        if fault.kind in DELAYS:
            assert DELAYS[fault.kind][0] <= fault.delay <= DELAYS[fault.kind][1]
        low, high = SECONDS.get(fault.kind, (0.0, 0.0))
        assert low <= fault.seconds <= high


def test_what_cannot_be_done_here_is_not_drawn() -> None:
    assert {fault.kind for fault in islice(faults(1, SERVICES, {KILL}), MANY)} == {KILL}
