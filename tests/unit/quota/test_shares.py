"""Shares that gateways were told: held until they were replaced or have ended, and given out within."""

from __future__ import annotations

import pytest

from libs.quota import ALL_MODELS, Admitted, Ask, Bridge, BudgetSpec, Denied, Ledger, LimitKind, LimitSpec, Share
from libs.quota.amount import NO_LIMIT, Amount
from libs.quota.shares import PORTION, Holdings, part_of
from libs.quota.types import Told

SECOND = 1_000_000_000
LASTS = 10 * SECOND
LIMIT = 1000
GATEWAYS = 10


def owner(**limits: int) -> Ledger:
    book = Ledger(track_changes=True)
    book.apply_limits({("acme", ALL_MODELS): LimitSpec(**limits)}, 0)
    book.terms.holders = GATEWAYS
    return book


def ask(name: str, tokens: int, holder: str, **more: int) -> Ask:
    return Ask("acme", "fast", name, tokens, holder=holder, **more)


def granted(book: Ledger, name: str, tokens: int, holder: str, now: int = 0) -> bool:
    return isinstance(book.reserve(ask(name, tokens, holder), lease_ns=20 * SECOND, now=now), Admitted)


def of_spend(spend: int) -> Share:
    """Nothing else is limited."""
    return Share("*", Amount(NO_LIMIT, NO_LIMIT, spend))


def test_c1_what_was_granted_and_all_that_was_told_is_within_the_limit() -> None:
    """Nine gateways are told early, the tenth takes all that it can get, and the owner dies."""
    book = owner(tokens_per_minute=LIMIT)
    told = {}
    total = 0
    for number in range(GATEWAYS):
        holder = f"gateway-{number}"
        assert granted(book, f"first-{number}", 2, holder)
        total += 2
        told[holder] = book.tell(ask("", 0, holder), 0, 0)[1][0].amount.tokens
    while granted(book, f"much-{total}", 20, "gateway-9"):
        total += 20
    told["gateway-9"] = book.tell(ask("", 0, "gateway-9"), 0, 0)[1][0].amount.tokens
    assert all(told[f"gateway-{number}"] for number in range(9))
    assert total > LIMIT * (1 - 2 / PORTION)
    assert total + sum(told.values()) <= LIMIT


def test_a_share_is_held_until_a_later_one_came_or_it_has_ended() -> None:
    book = owner(tokens_per_minute=LIMIT)
    number, shares = book.tell(ask("", 0, "one"), 0, 0)
    most = shares[0].amount.tokens
    assert most
    assert granted(book, "r1", LIMIT - most, "two")
    # Its answer was lost, it asked again: either may be what it holds.
    again, shares = book.tell(ask("", 0, "one"), 0, 0)
    assert 0 < shares[0].amount.tokens < most
    assert not granted(book, "r2", 1, "two")
    # It names the one that came: the other is given back.
    last, shares = book.tell(ask("", 0, "one"), again, 0)
    assert number < again < last
    assert granted(book, "r3", most - max(shares[0].amount.tokens, part_of(LIMIT, most, GATEWAYS)), "two")
    # For itself a holder's own share is in no way.
    fresh = owner(tokens_per_minute=LIMIT)
    fresh.tell(ask("", 0, "one"), 0, 0)
    assert granted(fresh, "all", LIMIT, "one")
    later = owner(tokens_per_minute=LIMIT)
    later.tell(ask("", 0, "one"), 0, 0)
    assert not granted(later, "all", LIMIT, "two", LASTS - 1)
    assert granted(later, "all", LIMIT, "two", LASTS)


def test_a_holding_never_holds_less_than_the_largest_that_may_be_in_force() -> None:
    holdings = Holdings()
    for number, tokens in enumerate((50, 90, 10, 40, 20, 30, 5), start=1):
        holdings.tell(Told("acme", "*", "one", number, tokens, 0, 0, LASTS), 0)
    assert holdings.but("two", 0)[:3] == (90, 0, 0)
    assert holdings.but("one", 0)[:3] == (0, 0, 0)
    holdings.tell(Told("acme", "*", "one", 8, 7, 0, 0, LASTS, 8), 0)
    assert holdings.but("two", 0)[:3] == (7, 0, 0)
    assert holdings.but("two", LASTS)[:3] == (0, 0, 0)
    assert not holdings.knows("one")


def test_a_follower_holds_what_the_owner_told() -> None:
    book, other = owner(tokens_per_minute=LIMIT), owner(tokens_per_minute=LIMIT)
    number, shares = book.tell(ask("", 0, "one"), 0, 0)
    held = shares[0].amount.tokens
    other.apply(book.take_changes(0), ("a", "1"), SECOND)
    assert not granted(other, "r1", LIMIT - held + 1, "two", SECOND)
    assert granted(other, "r2", LIMIT - held, "two", SECOND)
    assert other.tell(ask("", 0, "one"), number, SECOND)[0] > number


def test_c1_an_owner_that_heard_of_no_share_numbers_on_from_what_the_holder_has_seen() -> None:
    """Else the next question, which names that again, would release what this owner has told."""
    book = owner(tokens_per_minute=LIMIT)
    number, shares = book.tell(ask("", 0, "one"), 9, 0)
    most = shares[0].amount.tokens
    assert number > 9
    assert granted(book, "r1", LIMIT - most, "two")
    assert book.tell(ask("", 0, "one"), 9, 0)[1][0].amount.tokens < most  # the answer before was lost
    assert not granted(book, "r2", 1, "two")


def test_c1_no_share_is_named_while_what_was_given_out_of_the_one_before_is_untold() -> None:
    """The owner holds that one for it."""
    book, one = owner(tokens_per_minute=LIMIT), bridge(tokens_per_minute=LIMIT)

    def told() -> int:
        number, shares = book.tell(ask("", 0, "one"), one.seen("acme", "fast", "", 0), 0)
        one.told("acme", number, shares, LASTS, 0)
        return shares[0].amount.tokens

    most = told()
    assert isinstance(given(one, "r1", most), Admitted)
    assert granted(book, "r2", LIMIT - most, "two")
    assert 0 < told() < most
    assert isinstance(given(one, "r3", 1), Denied)  # nor is anything given out of the new one
    told()
    assert not granted(book, "r4", 1, "two")
    assert book.reserve(ask("r1", most, "one", granted=True), lease_ns=LASTS, now=0)
    one.taken(("acme", "r1"))
    told()
    told()
    assert one.seen("acme", "fast", "", 0) == 5
    assert book.report("acme", "fast", 0).tokens.remaining == 0


def test_the_edge_counts_requests_beside_the_shares() -> None:
    book = owner(requests_per_minute=10)
    book.tell(ask("", 0, "one"), 0, 0)
    assert all(isinstance(book.admit_edge("acme", requests=1, tokens=9, now=0), Admitted) for _ in range(10))


def test_c2_money_is_shared_of_the_cap_and_of_hard_budgets() -> None:
    book = owner(spend_microusd=8000)
    book.apply_budgets({"acme": BudgetSpec(daily_microusd=1600)})
    book.budgets.set_wall(0, 0)
    assert book.tell(ask("", 0, "one"), 0, 0)[1] == [
        Share("*", Amount(NO_LIMIT, NO_LIMIT, 1600 // PORTION // GATEWAYS))
    ]
    book.apply_budgets({"acme": BudgetSpec(daily_microusd=1600, hard=False)})
    assert book.tell(ask("", 0, "two"), 0, 0)[1] == [
        Share("*", Amount(NO_LIMIT, NO_LIMIT, 8000 // PORTION // GATEWAYS))
    ]
    assert book.settle("acme", "fast", "r1", 0, 0, spend=8000) is False
    assert book.tell(ask("", 0, "two"), 9, 0)[1] == [of_spend(0)]


def bridge(**limits: int) -> Bridge[str]:
    made: Bridge[str] = Bridge()
    made.apply({("acme", ALL_MODELS): LimitSpec(**limits)}, {"acme": BudgetSpec(daily_microusd=10**6)}, 2, 0)
    return made


def given(one: Bridge[str], name: str, tokens: int, spend: int = 0, now: int = 0) -> Admitted | Denied:
    outcome = one.reserve(ask(name, tokens, "", spend=spend), name, lease_ns=60 * SECOND, until=10**18, now=now)
    assert isinstance(outcome, Admitted | Denied)
    return outcome


def test_a_gateway_gives_out_its_share_and_what_came_back_of_it() -> None:
    one = bridge(tokens_per_minute=LIMIT)
    one.told("acme", 4, [Share("*", Amount(100, NO_LIMIT, NO_LIMIT))], LASTS, 0)
    assert one.seen("acme", "fast", "", 0) == 4
    assert isinstance(given(one, "r1", 80), Admitted)
    assert isinstance(given(one, "r2", 21), Denied)
    one.settle("acme", "fast", "r1", 10, 0, spend=0)
    assert isinstance(given(one, "r3", 90), Admitted)
    assert isinstance(given(one, "r4", 1), Denied)
    # After its time it has a part of the limit, of which what it gave out is a part.
    assert isinstance(given(one, "r5", 401, now=LASTS), Denied)
    assert isinstance(given(one, "r6", 400, now=LASTS), Admitted)


def test_c1_what_a_gateway_gave_out_by_itself_counts_there_for_as_long_as_it_runs() -> None:
    """No owner is found for minutes, and answers are long."""
    one = bridge(tokens_per_minute=LIMIT)
    assert isinstance(given(one, "long", LIMIT // 2), Admitted)
    for second in range(5, 300, 5):
        now = second * SECOND
        assert list(one.running(now)) == [("acme", "long")]
        assert isinstance(given(one, f"at-{second}", 1, now=now), Denied)
    one.settle("acme", "fast", "long", LIMIT // 2 - 1, now, spend=0)
    assert isinstance(given(one, "short", 1, now=now), Admitted)


@pytest.mark.parametrize(("tokens", "spend"), [(0, 1), (5, 3)])
def test_c2_of_money_that_nobody_was_told_of_nothing_is_spent(tokens: int, spend: int) -> None:
    one = bridge(spend_microusd=10**9)
    denied = given(one, "r1", tokens, spend)
    assert isinstance(denied, Denied)
    assert denied.kind is LimitKind.SPEND
    assert isinstance(given(one, "r2", tokens), Admitted)
    one.told("acme", 1, [of_spend(2 * spend)], LASTS, 0)
    assert isinstance(given(one, "r3", tokens, 2 * spend), Admitted)
    assert isinstance(given(one, "r4", tokens, 1), Denied)
    # The owner may not know yet of what was given out here: of the next share that is left out.
    one.told("acme", 2, [of_spend(3 * spend)], LASTS, 0)
    assert isinstance(given(one, "early", tokens, spend + 1), Denied)
    assert isinstance(given(one, "early", tokens, spend), Admitted)
    one.taken(("acme", "r3"))
    one.taken(("acme", "early"))
    one.told("acme", 3, [of_spend(10)], LASTS, 0)
    assert isinstance(given(one, "r5", tokens, 1, now=LASTS), Denied)


def test_what_runs_is_known_until_it_should_have_ended() -> None:
    one = bridge(tokens_per_minute=LIMIT)
    one.served(("acme", "r1"), "first", over_quota=True, until=5, tokens=1, spend=0)
    one.served(("acme", "r2"), "second", over_quota=False, until=9, tokens=1, spend=0)
    assert list(one.running(4)) == [("acme", "r1"), ("acme", "r2")]
    assert one.lost(("acme", "r1")) == ("first", True)
    assert list(one.running(5)) == [("acme", "r2")]
    assert one.settle("acme", "fast", "r2", 1, 6, spend=0) is False
    assert list(one.running(6)) == []
    assert one.lost(("acme", "r2")) is None


def outage(one: Bridge[str], now: int, *, name: str, tenant: str = "acme") -> None:
    """A request is given out here and ends; no owner ever hears of it."""
    asked = Ask(tenant, "fast", name, 1)
    assert isinstance(one.reserve(asked, name, lease_ns=LASTS, until=now + LASTS, now=now), Admitted)
    one.settle(tenant, "fast", name, 1, now, spend=0)


def untold(one: Bridge[str]) -> int:
    """Entries of requests whose owner may not know of them."""
    return sum(len(account.untold) for account in one._accounts.values()) + len(one._given)


def test_g3_while_nobody_can_be_told_a_gateway_keeps_a_minute_of_what_it_gave_out() -> None:
    one: Bridge[str] = Bridge()
    for number in range(300):
        outage(one, number * SECOND, name=f"r{number}", tenant=f"t{number % 7}")
    assert untold(one) == 2 * 60
    for number in range(300, 360):  # its owner is back, and hears of some out of turn
        outage(one, number * SECOND, name=f"r{number}")
        one.taken(("acme", f"r{number - number % 2}"))
    assert untold(one) <= 2 * 60
    one.taken(("acme", "r359"))
    outage(one, 480 * SECOND, name="last")
    assert untold(one) == 2


def test_g3_many_tenants_are_forgotten_a_few_at_a_time() -> None:
    """Of an outage with more tenants than are kept, nothing stays, and no newcomer waits until all were looked at."""
    one: Bridge[str] = Bridge(max_idle_tenants=100)
    for number in range(250):
        outage(one, 0, name="r", tenant=f"t{number}")
    assert len(one._accounts) == 250  # each has something that is not told
    least = 250
    for number in range(400):
        outage(one, 60 * SECOND, name="r", tenant=f"new{number}")
        one.taken((f"new{number}", "r"))
        assert len(one._accounts) >= least - 1  # each newcomer looks at two
        least = len(one._accounts)
    assert least == 100
