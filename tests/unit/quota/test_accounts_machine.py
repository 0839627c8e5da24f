"""Limiters and gateways under crashes, partitions, repeats and reordering: no history goes beyond the stated bound."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from simulation.accounts import LEASE_NS, SECOND, TENANT, Mesh
from tests.support.quota import leases_of

LIMIT = 400
G, L = st.integers(0, 2), st.integers(0, 2)


class Accounts(RuleBasedStateMachine):
    """Whoever plays with the mesh of `simulation.accounts`; it raises when the bound is broken."""

    mesh: Mesh
    whole = True
    """Nothing died, nothing was lost for good, and no lease had the time to end: all is known in the end."""

    @initialize(skews=st.lists(st.integers(0, 500 * SECOND), min_size=1, max_size=6))
    def begin(self, skews: list[int]) -> None:
        self.mesh = Mesh(limit=LIMIT, limiters=3, gateways=3, skews=tuple(skews))

    @rule(g=G, tokens=st.sampled_from((3, 16, 60, 133)), answered=st.booleans())
    def ask(self, g: int, tokens: int, answered: bool) -> None:
        gateway = self.mesh.gateways[g]
        self.mesh.ask(gateway, tokens)
        if answered:
            for _ in range(len(gateway.outbox)):
                self.mesh.serve(gateway)
            while gateway.inbox:
                self.mesh.hear(gateway)

    @rule(g=G)
    def fill(self, g: int) -> None:
        """All are told their shares, and then one takes all that it is given."""
        for each in range(3):
            self.ask(each, 1, answered=True)
        for tokens in (100, 100, 100, 40, 40, 10, 10, 3):
            self.ask(g, tokens, answered=True)

    @rule(g=G, filled=st.booleans(), killed=st.booleans(), told=st.booleans())
    def alone(self, g: int, filled: bool, killed: bool, told: bool) -> None:
        """All but one find nobody, and give out all that they may; the other one goes on at the next owner."""
        mesh = self.mesh
        if filled:
            for gateway in mesh.gateways:
                mesh.connect(gateway)
            self.fill(g)
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
            for _ in range(len(gateway.outbox)):
                self.mesh.serve(gateway)
            while gateway.inbox:
                self.mesh.hear(gateway)

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
                while gateway.outbox:
                    mesh.serve(gateway)
                    mesh.hear(gateway)
            for one in mesh.limiters:
                for other in mesh.limiters:
                    if one is not other:
                        mesh.fetch(one, other)
        left = {
            one.replica.ledger.report(TENANT, "fast", mesh.now + one.skew).tokens.remaining for one in mesh.limiters
        }
        first = mesh.limiters[0]  # what died with limiter and gateway both, nobody knows
        used = sum(each.counts(mesh.now) for rid, each in mesh.requests.items() if mesh.known(first, rid))
        assert max(left) <= max(0, LIMIT - used)
        if self.whole and mesh.now < 1000 * SECOND + LEASE_NS:
            reserved = sum(
                lease.tokens
                for rid, lease in leases_of(mesh.limiters[0].replica.ledger).items()
                if not mesh.requests[rid].running
            )
            assert left == {max(0, LIMIT - used - reserved)}
        # A tenant is locked out by nothing that does not run.
        running = sum(request.running for request in mesh.requests.values())
        for _ in range(8):
            mesh.wait(LEASE_NS // 4)
            for gateway in mesh.gateways:
                while gateway.outbox:
                    mesh.serve(gateway)
                    mesh.hear(gateway)
        assert mesh.owner.replica.ledger.live_leases == running


TestAccounts = pytest.mark.timeout(300)(Accounts.TestCase)
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
    assert not mesh.forgiven
    assert mesh.excess == 0
    assert sum(request.counts(mesh.now) for request in mesh.requests.values()) > 900
