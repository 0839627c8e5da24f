"""A process's end of the limiter: what it serves is reserved and settled with each tenant's owner, out of an allowance
that the owner told before, or, while no owner can be reached, out of this process's share."""

from libs.limiter.client import QuotaClient, Reservation
from libs.limiter.lease import AHEAD, Lease, forget
from libs.limiter.settlements import Settlements
from libs.limiter.shared import Diary, Key, SharedLease, SharedLeases
from libs.limiter.streams import LimiterStreams

__all__ = [
    "AHEAD",
    "Diary",
    "Key",
    "Lease",
    "LimiterStreams",
    "QuotaClient",
    "Reservation",
    "Settlements",
    "SharedLease",
    "SharedLeases",
    "forget",
]
