"""What other replicas decided, taken over; and what is known here, at rest, for them.

Every change is one of: a charge to the part of who decided it, a lease by its id, a share by its holder and number. So
two views of a tenant are joined by taking, of every part, the one that followed it further. Where two replicas charged
the same id, because a settle was repeated, one of the charges counts (`Charge.beats`), the same one everywhere, and
the other is taken back.
"""

from __future__ import annotations

from collections.abc import Callable

from libs.quota.books import Books, count
from libs.quota.lease import Lease
from libs.quota.settled import Charge, Key
from libs.quota.types import Batch, Closed, LedgerState, Opened, SettledId, Told
from libs.quota.window import Part

Newer = Callable[[str], frozenset[Part]]
"""By tenant, the parts of its bucket that are taken over."""


def apply(books: Books, batch: Batch, part: Part, now: int) -> None:
    """Takes over what `part` decided, once. It counts from `now` on: later than it was, never earlier."""
    for opened in batch.opened:
        if not opened.over_quota:
            scopes = books.scopes.covering(opened.tenant, opened.model, opened.version, now)
            count(scopes, opened.requests, opened.each, now, part)
        _apply_opened(books, opened, now)
    for grown in batch.grown:
        _apply_opened(books, grown, now)
    for taken in batch.taken:
        books.scopes.wide(taken.tenant, now).requests.charge(taken.requests, now, part)
    for closed in batch.closed:
        _apply_closed(books, closed, part, now)
    for key in batch.ended:
        lease = books.lease(key)
        if lease is not None:
            books.end(lease, now)
    for key in batch.recorded:
        lease = books.lease(key)
        if lease is not None and lease.here:  # its gateway prolonged it here
            continue
        if lease is not None:  # its end was nobody's decision: it has not come here yet
            books.end(lease, now)
        books.scopes.bucket(key[0]).settled.recorded(key)
    for told in batch.told:
        _hold(books, told, now)


def _apply_opened(books: Books, opened: Opened, now: int) -> None:
    key = (opened.tenant, opened.request_id)
    bucket = books.scopes.bucket(opened.tenant)
    known = bucket.settled.get(key)
    if known is not None and known.ended:
        books.reopen(key, known, now)
        known = None
    lease = bucket.leases.get(key)
    if lease is not None:
        _follow(lease, opened, now)
    elif known is None:
        books.restore(opened, now)


def _apply_closed(books: Books, closed: Closed, part: Part, now: int) -> None:
    key = (closed.tenant, closed.request_id)
    scopes = books.scopes.covering(closed.tenant, closed.model, closed.version, now)
    bucket = books.scopes.bucket(closed.tenant)
    lease = bucket.leases.get(key)
    if lease is not None:
        books.close(lease, now)
    charge = Charge(now, False, part, closed.model, closed.version, closed.tokens, closed.spend)
    known = bucket.settled.get(key)
    if known is not None:
        if not charge.beats(known):
            return
        books.void(key, known, now)
    books.charge(scopes, key, charge, now)


def _hold(books: Books, told: Told, now: int) -> None:
    scope = books.scopes.find(told.tenant, told.model, now)
    if scope is not None:
        scope.holdings.tell(told, now)


def state(books: Books, first: int, past: int, ids: tuple[int, int], now: int) -> LedgerState:
    """The buckets from one to another, at rest; or, where `ids` begins beyond 0, only those ids of one bucket."""
    known = books.scopes.buckets
    buckets = [known[number] for number in range(first, past) if number in known]
    if ids[0]:
        return LedgerState(settled=buckets[0].settled.state(*ids, now))
    return LedgerState(
        tuple(scope.state(now) for bucket in buckets for scope in bucket.scopes.values() if not scope.idle(now)),
        tuple(lease.state(now) for bucket in buckets for lease in bucket.leases.values()),
        tuple(each for bucket in buckets for each in bucket.settled.state(*ids, now)),
        books.budgets.state(first, past),
    )


def join(books: Books, told: LedgerState, newer: Newer, since: int, now: int) -> None:
    """Takes over another ledger's state of some buckets.

    :param newer: parts that it knows better: their use is taken over.
    :param since: when their use was taken over, where the ids follow in several pieces.
    """
    for each in told.scopes:
        scope = books.scopes.find(each.tenant, each.model, now)
        if scope is not None:
            better = newer(each.tenant)
            for part in each.parts:
                if part.part in better:
                    scope.replace(part, scope.spend.period - each.spend_period_ns, now)
            for share in each.told:
                _hold(books, share, now)
    books.budgets.join(told.budgets, newer)
    for budget in told.budgets:
        books.scopes.wide(budget.tenant, now).budget = books.budgets.of(budget.tenant)
    for settled in told.settled:
        _join_settled(books, settled, newer(settled.tenant), since, now)
    for opened in told.leases:
        _join_lease(books, opened, newer(opened.tenant), now)


def _join_settled(books: Books, told: SettledId, better: frozenset[Part], since: int, now: int) -> None:
    key = (told.tenant, told.request_id)
    bucket = books.scopes.bucket(told.tenant)
    charge = Charge(now - told.age_ns, told.ended, told.part, told.model, told.version, told.tokens, told.spend)
    taken_over = told.part in better
    lease, known = bucket.leases.get(key), bucket.settled.get(key)
    if lease is not None:
        if told.ended and lease.here:  # its gateway prolonged it here
            if taken_over:
                books.void(key, charge, now)
            return
        if told.ended and not taken_over:
            # Its end was charged to a part that is not taken over, because nothing else was decided in it.
            books.end(lease, now)
            return
        books.close(lease, now)
    if known is not None and not charge.beats(known):
        if taken_over and (charge.ended, charge.part) != (known.ended, known.part):
            books.void(key, charge, now)
        return
    if known is not None and (known.part not in better or known.at > since):
        books.void(key, known, now)
    bucket.settled.put(key, charge, now)


def _join_lease(books: Books, told: Opened, better: frozenset[Part], now: int) -> None:
    key: Key = (told.tenant, told.request_id)
    bucket = books.scopes.bucket(told.tenant)
    known = bucket.settled.get(key)
    if known is not None and not known.ended:
        return
    if known is not None:  # it ended here and not there yet
        if known.part not in better:
            return
        bucket.settled.forget(key)
    lease = bucket.leases.get(key)
    if lease is not None:
        _follow(lease, told, now)
    else:
        books.restore(told, now)


def _follow(lease: Lease, told: Opened, now: int) -> None:
    """It has grown, or was prolonged where its gateway's digests came."""
    lease.grow(told.tokens, told.spend)
    lease.expires = max(lease.expires, now + told.expires_in_ns)
