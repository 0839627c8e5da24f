"""What a refusal says beside its reason; how that is told over HTTP is said in `libs/quota/headers.py`."""

from libs.quota import Admitted, Denied, LimitKind

_SECOND = 1_000_000_000
_MS = 1_000_000
_JITTER_SHARE = 10
_LEAST_JITTER_NS = 100 * _MS
_MOST_JITTER_NS = 60 * _SECOND
"""A tenth of what is left of a month would be days."""


def jittered(wait_ns: int | None, chance: float) -> int | None:
    """The wait, up to a tenth (at least 100 ms, at most a minute) longer, so that those who were refused together do
    not come back together; never shorter.

    :param chance: 0 to 1, drawn by the caller.
    """
    if wait_ns is None:
        return None
    return wait_ns + int(chance * min(max(wait_ns // _JITTER_SHARE, _LEAST_JITTER_NS), _MOST_JITTER_NS))


def replaced(outcome: Admitted, denied: Denied) -> Admitted:
    """The outcome as it stands for a refused request: the refusing limit's own report, the others as they are."""
    report = denied.report
    if denied.kind is LimitKind.REQUESTS:
        return outcome._replace(requests=report)
    if denied.kind is LimitKind.TOKENS:
        return outcome._replace(tokens=report)
    if denied.kind is LimitKind.CONCURRENCY:
        return outcome._replace(concurrency=report)
    if denied.kind in (LimitKind.SPEND, LimitKind.BUDGET_DAY, LimitKind.BUDGET_MONTH):
        return outcome._replace(spend=report)
    return outcome
