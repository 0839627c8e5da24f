"""What a request's end says about us: of the route and tier as a whole, and of a rollout's arm.

| what happened | availability | the arm |
| --- | --- | --- |
| served, stopped by the safety policy included; served degraded (that is its own signal) | good | good |
| a prediction that something else answered because its own version failed | good | as that failure says |
| the caller left, did not read, or asked for what cannot be | neither | neither |
| a quota refused, or the limit of one tenant's share; any refusal of what was over its quota | neither | neither |
| the tenant's own requests ended a model's processes, and so no more of them run for a while | neither | neither |
| worker lost, engine failed, a fault of ours | bad | bad |
| the deadline passed, though the caller gave at least the declared time | bad | bad if it was running |
| the deadline passed, which was shorter than that | neither | neither |
| refused or evicted: overload, nobody there, draining, dependency away, interrupted and not resumed | bad | neither |
| the same, because the arm's own share of the pool is full, or its files are missing here | bad | bad |
| the same, because no worker has the arm's version, while some have the baseline | bad | bad |

So a canary is not blamed for what its baseline would have met in its place, and a caller cannot burn our budget.
"""

from __future__ import annotations

import enum

from libs.errors import Reason, WeirError


class Standing(enum.Enum):
    """What a request says."""

    GOOD = "good"
    BAD = "bad"
    NEITHER = "neither"


SHARE_FULL = "version_share"
"""The limit that admission names when an arm's own share of the pool is full."""
FILES = "model_files"
"""The limit that is named when a version's files are not here."""
NOBODY = "workers"
"""The limit that admission names when no worker has a version, or none came back."""
RUNNING = "running"
"""The limit that is named when the deadline passed while a worker had the request."""
_OWN = frozenset({SHARE_FULL, FILES, NOBODY, RUNNING})
CRASHES = "tenant_crashes"
"""The limit that is named when a tenant's own requests ended the processes of a model too often."""
_TENANTS = frozenset({"max_active_share", CRASHES})
FAULTS = frozenset({Reason.WORKER_LOST, Reason.ENGINE_ERROR, Reason.INTERNAL})
"""An arm's own, wherever they are met."""
_OVERLOAD = frozenset(
    {
        Reason.REJECTED_QUEUE_FULL,
        Reason.REJECTED_NO_CAPACITY,
        Reason.NO_WORKERS,
        Reason.REJECTED_OVERLOAD,
        Reason.EVICTED_TTL,
        Reason.EVICTED_SHED,
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.DRAINING,
        Reason.NOT_OWNER,
        Reason.PREEMPTED,
        Reason.GRANT_INVALID,
        Reason.GRANT_EXPIRED,
        Reason.GRANT_REPLAYED,
    }
)
_LATE = frozenset({Reason.DEADLINE_EXCEEDED, Reason.REJECTED_DEADLINE, Reason.EVICTED_DEADLINE})


def of_error(error: WeirError | None, *, patient: bool, over_quota: bool = False) -> tuple[Standing, Standing]:
    """(of the route and tier, of the arm) for a request that ended so, or was refused so; None: it was served.

    `patient`: the caller gave at least the declared time; `over_quota`: it stood in the class of those. Whoever knows
    that the baseline has no workers either must not blame the arm for `NOBODY`.
    """
    if error is None:
        return Standing.GOOD, Standing.GOOD
    if over_quota:
        return Standing.NEITHER, Standing.NEITHER
    if error.reason in FAULTS:
        return Standing.BAD, Standing.BAD
    late = error.reason in _LATE
    if error.limit in _TENANTS or (late and not patient) or not (late or error.reason in _OVERLOAD):
        return Standing.NEITHER, Standing.NEITHER
    return Standing.BAD, Standing.BAD if error.limit in _OWN else Standing.NEITHER
