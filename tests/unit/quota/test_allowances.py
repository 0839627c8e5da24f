"""Shares that are given out without asking: all that a gateway may have given out is held for it, whatever crosses."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.quota import (
    ALL_MODELS,
    Admitted,
    Answer,
    Ask,
    Bridge,
    BudgetSpec,
    Denied,
    LimitKind,
    LimitSpec,
    Question,
    Share,
    answer,
)
from libs.quota.amount import NO_LIMIT, Amount
from libs.quota.shares import PORTION, slots_of
from simulation.accounts import Mesh
from simulation.parties import SECOND, SHARE_NS, Gateway
from tests.unit.quota.test_shares import GATEWAYS, LIMIT, ask, bridge, granted, owner

LASTS = 10 * SECOND


def share_of(tokens: int) -> Share:
    """Of tokens; nothing else is limited."""
    return Share("*", Amount(tokens, NO_LIMIT, NO_LIMIT, NO_LIMIT))


def talk(mesh: Mesh, gateway: Gateway) -> None:
    """All that it says is answered."""
    while gateway.outbox:
        mesh.serve(gateway)
        mesh.hear(gateway)


def started(limit: int = 400, gateways: int = 2) -> tuple[Mesh, Gateway, Gateway]:
    """Two gateways that have been told allowances."""
    mesh = Mesh(limit=limit, limiters=2, gateways=gateways, allowances=True)
    for gateway in mesh.gateways:
        mesh.ask(gateway, 1)
        talk(mesh, gateway)
    return mesh, mesh.gateways[0], mesh.gateways[1]


def take_all(mesh: Mesh, gateway: Gateway) -> None:
    """Whatever the owner gives it."""
    for tokens in (100, 50, 20, 10, 5, 2, 1):
        for _ in range(5):
            mesh.ask(gateway, tokens)
            talk(mesh, gateway)


def running(mesh: Mesh) -> int:
    return sum(request.running for request in mesh.requests.values())


def spend_all(mesh: Mesh, gateway: Gateway) -> int:
    """What it gives out without asking."""
    before = running(mesh)
    while gateway.asking() is None and (share := gateway.own(mesh.now)) is not None and share.left.tokens > 0:
        mesh.ask(gateway, 1)
    return running(mesh) - before


def test_far_from_the_limit_nobody_is_asked_and_the_owner_hears_of_it() -> None:
    mesh, one, _ = started(limit=100_000)
    for _ in range(50):
        mesh.ask(one, 100)
        assert not any(message.kind == "reserve" for message in one.outbox)
        if len(one.outbox) >= 8:
            talk(mesh, one)
    talk(mesh, one)
    assert mesh.owner.replica.ledger.report("acme", "fast", mesh.now).tokens.remaining == 100_000 - 2 - 50 * 100


def test_what_was_given_out_while_the_next_share_was_on_its_way_is_a_part_of_it() -> None:
    mesh, one, other = started()
    share = one.own(mesh.now)
    assert share is not None
    mesh.ask(one, 15)  # leaves less than half: with this a new share is wanted
    mesh.serve(one)
    assert spend_all(mesh, one)
    mesh.hear(one)
    take_all(mesh, other)
    spend_all(mesh, one)
    assert mesh.excess == 0


def test_while_the_owner_is_asked_nothing_is_given_out() -> None:
    """It may grant the one who asks all that it holds for it."""
    mesh, one, _ = started()
    before = running(mesh)
    mesh.ask(one, 380)
    for _ in range(20):
        mesh.ask(one, 1)
    assert running(mesh) == before
    talk(mesh, one)
    assert mesh.excess == 0


def test_what_a_request_grew_by_is_untold_until_that_was_answered() -> None:
    key, made = ("acme", "r"), bridge(tokens_per_minute=LIMIT)
    made.told("acme", 1, [share_of(100)], LASTS, 0, allowance=True)
    for tokens in (20, 50):
        assert made.allow(ask("r", tokens, ""), "r", lease_ns=LASTS, until=LASTS, now=0)
    made.taken(key, 20)
    made.told("acme", 2, [share_of(100)], LASTS, 0, allowance=True)
    assert made.allow(ask("more", 71, ""), "more", lease_ns=LASTS, until=LASTS, now=0) is None
    assert made.allow(ask("less", 70, ""), "less", lease_ns=LASTS, until=LASTS, now=0)
    made.taken(key, 50)
    made.taken(("acme", "less"), 70)
    made.told("acme", 3, [share_of(100)], LASTS, 0, allowance=True)
    assert made.allow(ask("all", 100, ""), "all", lease_ns=LASTS, until=LASTS, now=0)


def test_a_share_that_is_less_than_what_is_untold_is_not_named() -> None:
    made = bridge(tokens_per_minute=LIMIT)
    made.told("acme", 7, [share_of(100)], LASTS, 0, allowance=True)
    assert made.allow(ask("r", 80, ""), "r", lease_ns=LASTS, until=LASTS, now=0)
    made.told("acme", 8, [share_of(10)], LASTS, 0, allowance=True)
    assert made.seen("acme", "fast", "", 0) == 7
    assert made.allow(ask("s", 1, ""), "s", lease_ns=LASTS, until=LASTS, now=0) is None
    made.taken(("acme", "r"), 80)
    made.told("acme", 9, [share_of(10)], LASTS, 0, allowance=True)
    assert made.seen("acme", "fast", "", 0) == 9


def test_the_allowance_runs_out_when_its_owner_is_gone() -> None:
    mesh, one, _ = started(limit=4000)
    mesh.kill(mesh.owner)
    assert one.to is None
    assert spend_all(mesh, one)
    mesh, one, _ = started(limit=4000)
    mesh.now += SHARE_NS
    assert spend_all(mesh, one) == 0  # it asks


def test_a_killed_gateway_takes_along_what_it_had_not_told_and_that_is_less_than_its_share() -> None:
    """The bound of ADR 27: while its share lasts it is counted, afterwards the limit is exceeded by so much."""
    mesh, one, other = started()
    lost = spend_all(mesh, one)
    assert 0 < lost <= mesh.limit // PORTION
    mesh.restart(one)
    take_all(mesh, other)
    assert delivered(mesh) <= mesh.limit
    mesh.wait(SHARE_NS)
    take_all(mesh, other)
    assert mesh.limit < delivered(mesh) <= mesh.limit + lost


def delivered(mesh: Mesh) -> int:
    """In the last minute, and what runs."""
    return sum(request.counts(mesh.now) for request in mesh.requests.values())


def test_changed_limits_are_asked_for() -> None:
    made = bridge(tokens_per_minute=LIMIT)
    for limits, budgets in (({"tokens_per_minute": 5}, 10**6), ({"tokens_per_minute": 5}, 7)):
        made.told("acme", 1, [share_of(100)], LASTS, 0, allowance=True)
        assert made.allow(ask(f"r{budgets}", 1, ""), "r", lease_ns=LASTS, until=LASTS, now=0)
        specs = {("acme", ALL_MODELS): LimitSpec(**limits)}
        made.apply(specs, {"acme": BudgetSpec(daily_microusd=budgets)}, 2, 0)
        assert made.allow(ask(f"s{budgets}", 1, ""), "s", lease_ns=LASTS, until=LASTS, now=0) is None


def test_a_limit_that_only_the_owner_knows_yet_is_asked_for() -> None:
    made = bridge(tokens_per_minute=LIMIT)
    made.told(
        "acme",
        1,
        [Share("*", Amount(100, NO_LIMIT, NO_LIMIT)), Share("fast", Amount(1, NO_LIMIT, NO_LIMIT))],
        LASTS,
        0,
        allowance=True,
    )
    assert made.allow(ask("r", 1, ""), "r", lease_ns=LASTS, until=LASTS, now=0) is None


def test_every_limit_that_covers_a_request_must_allow_it() -> None:
    made: Bridge[str] = Bridge()
    limits = {("acme", ALL_MODELS): LimitSpec(tokens_per_minute=LIMIT), ("acme", "fast"): LimitSpec(concurrency=9)}
    made.apply(limits, {}, 1, 0)
    made.told("acme", 1, [Share("*", Amount(100, NO_LIMIT, NO_LIMIT, NO_LIMIT))], LASTS, 0, allowance=True)
    assert made.allow(ask("r", 1, ""), "r", lease_ns=LASTS, until=LASTS, now=0) is None
    both = [
        Share("*", Amount(100, NO_LIMIT, NO_LIMIT, NO_LIMIT)),
        Share("fast", Amount(NO_LIMIT, NO_LIMIT, NO_LIMIT, 1)),
    ]
    made.told("acme", 2, both, LASTS, 0, allowance=True)
    assert made.allow(ask("r", 1, ""), "r", lease_ns=LASTS, until=LASTS, now=0)
    assert made.allow(ask("s", 1, ""), "s", lease_ns=LASTS, until=LASTS, now=0) is None
    assert made.allow(ask("r", 5, ""), "r", lease_ns=LASTS, until=LASTS, now=0)  # it grows, and takes no slot
    made.settle("acme", "fast", "r", 1, 0, spend=0)
    assert made.allow(ask("t", 1, ""), "t", lease_ns=LASTS, until=LASTS, now=0)


def test_the_oldest_share_that_covers_a_request_is_named() -> None:
    """Of one model it is older than what came for the other one since, and still in force."""
    limits = {("acme", each): LimitSpec(tokens_per_minute=LIMIT) for each in (ALL_MODELS, "a", "b")}
    made = bridge()
    made.apply(limits, {}, 1, 0)
    for number, model in ((1, "a"), (2, "b")):
        made.told("acme", number, [share_of(100), share_of(100)._replace(model=model)], LASTS, 0, allowance=True)
    assert [made.seen("acme", model, "", 0) for model in ("a", "b", "c")] == [1, 2, 2]
    assert made.seen("acme", "b", "a", 0) == 1


def test_slots_that_gateways_may_give_out_are_taken() -> None:
    book = owner(concurrency=100 * PORTION)
    (share,) = book.tell(ask("", 0, "one"), 0, 0, allowance=True)[1]
    assert share.amount.slots == 10
    for number in range(100 * PORTION - 10):
        assert granted(book, f"r{number}", 1, "two")
    denied = book.reserve(ask("last", 1, "two"), lease_ns=LASTS, now=0)
    assert isinstance(denied, Denied)
    assert denied.kind is LimitKind.CONCURRENCY
    assert granted(book, "own", 1, "one")
    assert book.due(ask("own", 1, "one"), 0)  # less is left than it holds
    assert slots_of(7, 7, 1) == 0  # of a limit of few none are kept from the others


def test_a_slot_that_is_held_is_no_reason_to_divide_by_those_in_use() -> None:
    book = owner(concurrency=PORTION * 10)
    for holder in range(10):
        book.tell(ask("", 0, f"g{holder}"), 0, 0, allowance=True)
    book.apply_limits({("acme", ALL_MODELS): LimitSpec(concurrency=10)}, 0)
    assert book.settle("acme", "fast", "x", 1, 0) is False
    assert isinstance(book.reserve(ask("r", 1, "new"), lease_ns=LASTS, now=0), Denied)


@pytest.mark.parametrize(("counted", "concurrency"), [(True, 0), (False, 0), (False, PORTION * GATEWAYS - 1)])
def test_requests_that_the_edge_does_not_count_are_held_against_it(counted: bool, concurrency: int) -> None:
    """But for those that cannot be given out, since no slot is."""
    book = owner(requests_per_minute=PORTION * GATEWAYS, concurrency=concurrency)
    asking = ask("", 0, "one", count_request=not counted)
    (share,) = book.tell(asking, 0, 0, allowance=True)[1]
    assert share.amount.requests == 1
    limit = PORTION * GATEWAYS
    passed = sum(isinstance(book.admit_edge("acme", requests=1, tokens=0, now=0), Admitted) for _ in range(limit))
    assert passed == limit - (0 if counted or concurrency else 1)


class Limits(NamedTuple):
    """Of everything, few."""

    requests: int
    tokens: int
    spend: int
    slots: int


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    limits=st.builds(
        Limits, st.integers(20, 400), st.integers(100, 1000), st.integers(100, 1000), st.integers(16, 200)
    ),
    steps=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from("aaaaaeeesgtw"),
            st.sampled_from((1, 1, 2, 3, 5, 8, 60)),
            st.sampled_from((0, 1, 2, 40)),
        ),
        min_size=20,
        max_size=150,
    ),
)
def test_no_limit_of_any_kind_is_passed_while_the_owner_lives(
    limits: Limits, steps: list[tuple[int, str, int, int]]
) -> None:
    """Messages of a gateway arrive in order, whenever they like; so do the answers. Some requests the edge counted."""
    world = World(limits)
    for gateway, what, tokens, spend in steps:
        world.step(gateway, what, tokens, spend)
        world.check()


class World:
    """An owner, two gateways and the edge; what really is used."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.now, self.serial = limits, 0, 0
        spec = LimitSpec(
            requests_per_minute=limits.requests,
            tokens_per_minute=limits.tokens,
            concurrency=limits.slots,
            spend_microusd=limits.spend,
        )
        self.owner = owner()
        self.owner.apply_limits({("acme", ALL_MODELS): spec}, 0)
        self.owner.terms.holders = 2
        self.bridges: list[Bridge[Ask]] = [Bridge(), Bridge()]
        for each in self.bridges:
            each.apply({("acme", ALL_MODELS): spec}, {}, 1, 0)
        self.out: list[list[tuple[Ask, Question | None]]] = [[], []]
        self.back: list[list[tuple[Ask, Question | None, Answer | None]]] = [[], []]
        self.open: dict[str, tuple[int, Ask]] = {}
        self.used: list[tuple[int, int, int]] = []
        self.edge = 0

    def step(self, number: int, what: str, tokens: int, spend: int) -> None:
        """Something happens at a gateway."""
        if what == "a":
            for _ in range(8 if tokens < 8 else 1):
                self._ask(number, tokens, spend)
        elif what == "s":
            self._serve(number, tokens)
        elif what == "g":
            for _ in range(len(self.back[number])):
                self._hear(number)
        elif what == "t":
            self._settle(number, tokens)
        elif what == "e":
            for _ in range(tokens):
                if isinstance(self.owner.admit_edge("acme", requests=1, tokens=0, now=self.now), Admitted):
                    self.edge += 1
                    self._ask(number, 1, spend, counted=True)
        else:
            for each in (0, 1):
                self._serve(each, 999)
                for _ in range(len(self.back[each])):
                    self._hear(each)

    def _ask(self, number: int, tokens: int, spend: int, *, counted: bool = False) -> None:
        self.serial += 1
        rid, made = f"r{self.serial}", self.bridges[number]
        wants = Ask("acme", "fast", rid, tokens, spend=spend, holder=f"g{number}", count_request=not counted)
        if made.allow(wants, wants, lease_ns=60 * SECOND, until=1 << 62, now=self.now) is not None:
            self.open[rid] = number, wants
            wants = wants._replace(granted=True)
        uncounted, claims = wants.count_request, wants.granted
        question = made.say(("acme", "fast", ""), self.now, uncounted=uncounted, claims=claims)
        self.out[number].append((wants, question))

    def _serve(self, number: int, count: int) -> None:
        for _ in range(min(count, len(self.out[number]))):
            wants, question = self.out[number].pop(0)
            if question is None:
                self.owner.settle("acme", "fast", wants.request_id, wants.tokens, self.now, spend=wants.spend)
                self.back[number].append((wants, None, None))
            else:
                seen, wanted = question.seen, question.wanted
                said = answer(self.owner, wants, seen=seen, wanted=wanted, lease_ns=60 * SECOND, now=self.now)
                self.back[number].append((wants, question, said))

    def _hear(self, number: int) -> None:
        wants, question, said = self.back[number].pop(0)
        made, key = self.bridges[number], ("acme", wants.request_id)
        if question is None or question.claims:
            made.taken(key, wants.tokens if question is not None else None)
        if question is not None and said is not None:
            made.hear(question, said.told, self.now)
            if not question.claims and isinstance(said.outcome, Admitted):
                made.served(key, wants, over_quota=False, until=1 << 62, tokens=wants.tokens, spend=wants.spend)
                self.open[wants.request_id] = number, wants

    def _settle(self, number: int, percent: int) -> None:
        mine = [each for each in self.open.values() if each[0] == number]
        if mine:
            wants = mine[0][1]
            used = wants._replace(tokens=wants.tokens * percent // 60, spend=wants.spend * percent // 60)
            del self.open[wants.request_id]
            self.bridges[number].settle("acme", "fast", wants.request_id, used.tokens, self.now, spend=used.spend)
            self.used.append((int(used.count_request), used.tokens, used.spend))
            self.out[number].append((used, None))

    def check(self) -> None:
        """Nothing is beyond a limit; time stands still, so all that was used counts."""
        running = [wants for _, wants in self.open.values()]
        alone = sum(each.count_request for each in running) + sum(each[0] for each in self.used)
        assert self.edge + alone <= self.limits.requests
        assert sum(each.tokens for each in running) + sum(each[1] for each in self.used) <= self.limits.tokens
        assert sum(each.spend for each in running) + sum(each[2] for each in self.used) <= self.limits.spend
        assert len(running) <= self.limits.slots
