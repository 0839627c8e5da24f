"""What a tenant's owner answers a holder: whether the request passes, and the shares that go with the answer."""

from __future__ import annotations

from typing import NamedTuple

from libs.quota.ledger import Ledger
from libs.quota.shares import Allotment
from libs.quota.types import Admitted, Ask, Denied, SettledAlready


class Answer(NamedTuple):
    """To one question."""

    outcome: Admitted | Denied | SettledAlready
    told: Allotment | None = None
    """Shares that are held for the holder from now on."""


def answer(ledger: Ledger, ask: Ask, *, seen: int, wanted: bool, lease_ns: int, now: int, owned: bool = True) -> Answer:
    """Reserves what is asked for, or takes over what is served already (`Ask.granted`).

    Shares are told to whoever wants them, as allowances; and, to be used while nobody can be asked, to whoever is
    refused or has none of the last moments. Not by who does not own the tenant, and may only take over.

    :param seen: of the shares that came to the holder for these limits, the number of the oldest.
    """
    outcome = ledger.reserve(ask, lease_ns=lease_ns, now=now)
    if isinstance(outcome, SettledAlready) or not owned:
        return Answer(outcome)
    if not wanted and (ask.granted or not (isinstance(outcome, Denied) or ledger.due(ask, now))):
        return Answer(outcome)
    number, shares = ledger.tell(ask, seen, now, allowance=wanted)
    return Answer(outcome, Allotment(number, tuple(shares), ledger.terms.share_ns, wanted))
