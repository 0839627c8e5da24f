"""Limiters and gateways under crashes, partitions, repeats and reordering: no history goes beyond the stated bound."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from libs.quota import ALL_MODELS
from simulation.accounts import Mesh
from simulation.parties import LEASE_NS, SECOND, TENANT, Gateway
from tests.support.quota import leases_of

LIMIT = 400
G, L = st.integers(0, 2), st.integers(0, 2)


def tell_all(mesh: Mesh) -> None:
    """Every batch comes to everybody."""
    for one in mesh.limiters:
        mesh.publish(one)
    for one, other in permutations(mesh.limiters, 2):
        while mesh.waiting.get((one.name, other.name)):
            mesh.tell(one, other)


def talk(mesh: Mesh, gateway: Gateway) -> None:
    """All that it says is answered."""
    while gateway.outbox:
        mesh.serve(gateway)
        mesh.hear(gateway)


class Accounts(RuleBasedStateMachine):
    """Whoever plays with the mesh of `simulation.accounts`; it raises when the bound is broken."""

    mesh: Mesh
    whole = True
    """Nothing died, nothing was lost for good, and no lease had the time to end: all is known in the end."""

    @initialize(
        skews=st.lists(st.integers(0, 500 * SECOND), min_size=1, max_size=6),
        allowances=st.booleans(),
        requests=st.sampled_from((0, 30, 100)),
    )
    def begin(self, skews: list[int], allowances: bool, requests: int) -> None:
        self.mesh = Mesh(
            limit=LIMIT, requests=requests, limiters=3, gateways=3, skews=tuple(skews), allowances=allowances
        )

    @rule(g=G, tokens=st.sampled_from((3, 16, 60, 133)), answered=st.booleans())
    def ask(self, g: int, tokens: int, answered: bool) -> None:
        gateway = self.mesh.gateways[g]
        self.mesh.ask(gateway, tokens)
        if answered:
            self.answer(gateway)

    def answer(self, gateway: Gateway) -> None:
        for _ in range(len(gateway.outbox)):
            self.mesh.serve(gateway)
        while gateway.inbox:
            self.mesh.hear(gateway)

    @rule(g=G, limiter=st.none() | L, count=st.sampled_from((1, 1, 3, 12, 100)), answered=st.booleans())
    def enter(self, g: int, limiter: int | None, count: int, answered: bool) -> None:
        """Requests that the edge asks about, mostly the owner; as many as pass."""
        gateway = self.mesh.gateways[g]
        asked = None if limiter is None else self.mesh.limiters[limiter]
        for _ in range(count):
            if not self.mesh.enter(gateway, 1, limiter=asked):
                break
        if answered:
            self.answer(gateway)

    @rule(g=G, tokens=st.sampled_from((1, 2, 5)), count=st.integers(1, 12), heard=st.integers(0, 12))
    def flow(self, g: int, tokens: int, count: int, heard: int) -> None:
        """Small requests, as an allowance is given out for; of the answers some are on their way yet."""
        gateway = self.mesh.gateways[g]
        for _ in range(count):
            self.mesh.ask(gateway, tokens)
        for _ in range(len(gateway.outbox)):
            self.mesh.serve(gateway)
        for _ in range(heard):
            self.mesh.hear(gateway)

    @rule(g=G, grown=st.booleans())
    def fill(self, g: int, grown: bool) -> None:
        """All are told their shares, and then one takes all that it is given, for a request that is known or for new
        ones."""
        for each in range(3):
            self.ask(each, 1, answered=True)
        if grown:
            tell_all(self.mesh)
            for _ in range(3):
                self.grow(g, 100, answered=True)
        for tokens in (100, 100, 100, 40, 40, 10, 10, 3):
            self.ask(g, tokens, answered=True)

    def give(self, gateway: Gateway, most: int = 20) -> None:
        """What it gives out without asking."""
        for _ in range(most):
            share = gateway.own(self.mesh.now)
            if gateway.asking() is None and share is not None and share.left.tokens > 0:
                self.mesh.ask(gateway, 1)

    def left(self, gateway: Gateway) -> int:
        """What its owner would grant it."""
        owner, now = self.mesh.owner, self.mesh.now + self.mesh.owner.skew
        others = owner.replica.ledger.scope(TENANT, ALL_MODELS, now).holdings.but(gateway.holder, now)
        return owner.replica.ledger.report(TENANT, "fast", now).tokens.remaining - others.tokens

    @rule(g=G, much=st.booleans(), reach=st.booleans())
    def cross(self, g: int, much: bool, reach: bool) -> None:
        """Answers cross what is given out meanwhile, and then all gateways take all that they are given."""
        mesh, gateway = self.mesh, self.mesh.gateways[g]
        for each in mesh.gateways if reach else (gateway,):
            if reach:
                mesh.connect(each)
            self.ask(each.number, 1, answered=True)
        if much and self.left(gateway) > 0:
            mesh.ask(gateway, self.left(gateway))
            for _ in range(9):
                mesh.ask(gateway, 1)
        self.give(gateway, 9)
        for _ in range(len(gateway.outbox)):
            mesh.serve(gateway)
        self.give(gateway)
        while gateway.inbox:
            mesh.hear(gateway)
        for tokens in (100, 100, 100, 40, 10, 10, 5, 3, 1, 1, 1):
            self.ask((g + 1) % 3, tokens, answered=True)
        for each in mesh.gateways:
            self.give(each)

    @rule(g=G, filled=st.sampled_from(("", "asked", "grown")), killed=st.booleans(), told=st.booleans())
    def alone(self, g: int, filled: str, killed: bool, told: bool) -> None:
        """All but one find nobody, and give out all that they may; the other one goes on at the next owner."""
        mesh = self.mesh
        if filled:
            for gateway in mesh.gateways:
                mesh.connect(gateway)
            self.fill(g, grown=filled == "grown")
        if told:
            for other in mesh.limiters:
                mesh.publish(mesh.owner)
                mesh.tell(mesh.owner, other)
        if killed:
            self.kill(mesh.limiters.index(mesh.owner))
            mesh.connect(mesh.gateways[g])
            self.ask(g, 60, answered=True)
        for each in {0, 1, 2} - {g}:
            self.cut(each, again=False)
            for tokens in (10, 4, 2, 1):
                self.ask(each, tokens, answered=False)

    @rule(g=G)
    def serve(self, g: int) -> None:
        self.mesh.serve(self.mesh.gateways[g])

    @rule(g=G)
    def hear(self, g: int) -> None:
        self.mesh.hear(self.mesh.gateways[g])

    @rule(g=G)
    def give_up(self, g: int) -> None:
        self.mesh.give_up(self.mesh.gateways[g])

    @rule(g=G, part=st.floats(0, 1), lost=st.booleans())
    def settle(self, g: int, part: float, lost: bool) -> None:
        self.whole = self.whole and not lost
        self.mesh.settle(self.mesh.gateways[g], part, lost=lost)

    @rule(g=G, tokens=st.sampled_from((5, 40, 133)), answered=st.booleans())
    def grow(self, g: int, tokens: int, answered: bool) -> None:
        gateway = self.mesh.gateways[g]
        self.mesh.grow(gateway, tokens)
        if answered:
            self.answer(gateway)

    @rule(g=G, again=st.booleans())
    def cut(self, g: int, again: bool) -> None:
        self.mesh.cut(self.mesh.gateways[g])
        if again:
            self.mesh.connect(self.mesh.gateways[g])

    @rule(g=G)
    def connect(self, g: int) -> None:
        self.mesh.connect(self.mesh.gateways[g])

    @rule(g=G)
    def restart(self, g: int) -> None:
        self.whole = False
        self.mesh.restart(self.mesh.gateways[g])

    @rule(g=G, limiter=L)
    def repeat(self, g: int, limiter: int) -> None:
        self.mesh.repeat(self.mesh.gateways[g], self.mesh.limiters[limiter])

    @rule(source=L, towards=L, how=st.sampled_from(["tell", "tell", "lose", "fetch"]))
    def replicate(self, source: int, towards: int, how: str) -> None:
        mesh = self.mesh
        one, other = mesh.limiters[source], mesh.limiters[towards]
        mesh.publish(one)
        if one is other:
            return
        if how == "lose":
            mesh.waiting.pop((one.name, other.name), None)
        elif how == "tell":
            mesh.tell(one, other)
        else:
            mesh.fetch(one, other)

    @rule(limiter=L)
    def kill(self, limiter: int) -> None:
        self.whole = False
        self.mesh.kill(self.mesh.limiters[limiter])

    @rule(limiter=L)
    def move(self, limiter: int) -> None:
        self.mesh.owner = self.mesh.limiters[limiter]

    @rule(seconds=st.floats(0.01, 1) | st.floats(1, 30))
    def wait(self, seconds: float) -> None:
        self.whole = self.whole and seconds <= 1
        self.mesh.wait(int(seconds * SECOND))

    def teardown(self) -> None:
        if not hasattr(self, "mesh"):
            return
        mesh = self.mesh
        mesh.check()
        for _ in range(2):  # all that was said arrives
            for gateway in mesh.gateways:
                mesh.connect(gateway)
                talk(mesh, gateway)
            tell_all(mesh)
            for one, other in permutations(mesh.limiters, 2):
                mesh.fetch(one, other)
        left = {
            one.replica.ledger.report(TENANT, "fast", mesh.now + one.skew).tokens.remaining for one in mesh.limiters
        }
        first = mesh.limiters[0]  # what died with limiter and gateway both, nobody knows
        used = sum(min(each.counts(mesh.now), first.counts(rid, mesh.now)) for rid, each in mesh.requests.items())
        assert max(left) <= max(0, LIMIT - used)
        if self.whole and mesh.now < 1000 * SECOND + LEASE_NS:
            reserved = sum(
                lease.tokens - mesh.requests[rid].counts(mesh.now)
                for rid, lease in leases_of(first.replica.ledger).items()
            )
            assert left == {max(0, LIMIT - used - reserved)}
        # A tenant is locked out by nothing that does not run.
        running = sum(request.running for request in mesh.requests.values())
        for _ in range(8):
            mesh.wait(LEASE_NS // 4)
            for gateway in mesh.gateways:
                talk(mesh, gateway)
        assert mesh.owner.replica.ledger.live_leases == running


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=25, suppress_health_check=list(HealthCheck)
)


def test_c1_a_killed_owner_leaves_what_it_granted_and_told_within_the_limit() -> None:
    """Everything was told: the bound is the limit itself, whatever the gateways then do by themselves."""
    mesh = Mesh(limit=1000, limiters=2, gateways=3)
    for turn in range(20):
        for gateway in mesh.gateways:
            mesh.ask(gateway, 7 if turn < 2 or gateway.number else 60)
            mesh.serve(gateway)
            mesh.hear(gateway)
    first, second = mesh.limiters
    mesh.publish(first)
    mesh.tell(first, second)
    mesh.kill(first)
    for _ in range(40):
        for gateway in mesh.gateways[:2]:
            mesh.ask(gateway, 3)
    mesh.connect(mesh.gateways[2])
    for _ in range(100):
        mesh.ask(mesh.gateways[2], 5)
        for _ in range(3):
            mesh.serve(mesh.gateways[2])
            mesh.hear(mesh.gateways[2])
    assert mesh.allowed == 0
    assert not mesh.tokens.since
    assert mesh.excess == 0
    assert sum(request.counts(mesh.now) for request in mesh.requests.values()) > 900


def test_c1_a_share_whose_room_was_granted_is_told_anew() -> None:
    """Nothing is refused, so nothing but the share itself says that it is used up."""
    mesh = Mesh(limit=400, limiters=2, gateways=3)
    gateway, (first, second) = mesh.gateways[0], mesh.limiters
    for tokens in (1, 100, 100, 100, 99):
        mesh.ask(gateway, tokens)
        mesh.serve(gateway)
        mesh.hear(gateway)
    assert mesh.excess == 0
    mesh.publish(first)
    mesh.tell(first, second)
    mesh.kill(first)
    for _ in range(16):
        mesh.ask(gateway, 1)
    assert mesh.excess == 0


@pytest.mark.parametrize("counted", [True, False])
def test_g4_with_everybody_well_edge_and_gateways_together_pass_the_limit_and_no_more(counted: bool) -> None:
    """Whoever carried the question for a share: what the edge did not count comes out of what is held against it."""
    mesh = Mesh(limit=100_000, requests=400, limiters=1, gateways=2, allowances=True)
    for gateway in mesh.gateways:
        if counted:
            assert mesh.enter(gateway, 1)
        else:
            mesh.ask(gateway, 1)
        talk(mesh, gateway)
    while mesh.enter(mesh.gateways[0], 1):
        pass
    talk(mesh, mesh.gateways[0])
    for gateway in mesh.gateways:
        for _ in range(100):
            mesh.ask(gateway, 1)
        talk(mesh, gateway)
    while mesh.enter(mesh.gateways[1], 1):
        talk(mesh, mesh.gateways[1])
    assert mesh.of_requests.allowed == 0
    assert mesh.of_requests.excess == 0
    assert mesh.of_requests.used >= 350  # an eighth may be with the gateways


def test_g4_what_the_edge_counted_with_a_limiter_that_died_is_all_that_is_beyond_the_limit() -> None:
    mesh = Mesh(limit=100_000, requests=30, limiters=2, gateways=1)
    (gateway,), (first, second) = mesh.gateways, mesh.limiters
    assert mesh.enter(gateway, 1, limiter=second)
    mesh.kill(second)
    while mesh.enter(gateway, 1, limiter=first):
        pass
    talk(mesh, gateway)
    assert (mesh.of_requests.excess, mesh.of_requests.allowed) == (1, 1)


def test_c5_a_settle_that_came_to_two_limiters_counts_once_wherever_both_are_heard() -> None:
    mesh = Mesh(limit=400, limiters=3, gateways=1)
    gateway = mesh.gateways[0]
    mesh.ask(gateway, 100)
    talk(mesh, gateway)
    tell_all(mesh)
    mesh.settle(gateway, 0.6)
    mesh.repeat(gateway, mesh.limiters[1])
    talk(mesh, gateway)
    tell_all(mesh)
    for each in mesh.limiters:
        assert each.replica.ledger.report(TENANT, "fast", mesh.now).tokens.remaining == 340


@pytest.mark.parametrize("how", ["tell", "fetch", "claim"])
def test_c7_what_a_lease_grew_by_is_known_to_the_next_owner(how: str) -> None:
    """Told in a batch, or joined with the state; and where neither came, told by the gateway."""
    mesh = Mesh(limit=400, limiters=2, gateways=2)
    (one, other), (first, second) = mesh.gateways, mesh.limiters
    mesh.ask(one, 100)
    talk(mesh, one)
    tell_all(mesh)
    mesh.grow(one, 200)
    talk(mesh, one)
    if how == "tell":
        tell_all(mesh)
    elif how == "fetch":
        mesh.fetch(first, second)
    mesh.kill(first)
    mesh.connect(other)
    if how == "claim":
        mesh.connect(one)
        talk(mesh, one)
    for tokens in (100, 50, 20, 10, 5, 1):
        mesh.ask(other, tokens)
        talk(mesh, other)
    assert second.counts("r1", mesh.now) == 300
    assert mesh.allowed == 0
    assert mesh.excess == 0
