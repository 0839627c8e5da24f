"""What a mesh answers without asking: how often callers are known at the edge, quota comes out of an allowance, and a
request runs on a credit. A figure of cost says little of a mesh in which these were not in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest import accounting

SHARES = ("edge_known_share", "allowance_share", "credit_share")
_COUNTERS = {
    "requests": ("gateway", "weir_gateway_outcomes_total", ""),
    "asked": ("edge-auth", "weir_edge_auth_checks_total", ""),
    "by_limiter": ("ratelimit", "weir_ratelimit_granted_total", 'by="limiter"'),
    "by_gateway": ("ratelimit", "weir_ratelimit_granted_total", 'by="gateway"'),
    "on_credit": ("admission", "weir_admission_credits_total", 'fate="used"'),
}
"""By name: the service, its counter, and the label that is wanted."""

Counts = Mapping[str, float]


async def read(services: Mapping[str, Mapping[str, Any]]) -> Counts:
    """What the processes of mesh.json have counted since their start.

    :raises LookupError: a service is not there.
    """
    if missing := {service for service, *_ in _COUNTERS.values()} - {each["service"] for each in services.values()}:
        raise LookupError(f"the mesh has no {', '.join(sorted(missing))}")
    counts = dict.fromkeys(_COUNTERS, 0.0)
    for each in services.values():
        wanted = {name: what for name, (service, *what) in _COUNTERS.items() if service == each["service"]}
        samples = await accounting.scrape(each["metrics"]) if wanted else {}
        for name, (counter, label) in wanted.items():
            counts[name] += sum(value for key, value in samples.items() if key.startswith(counter) and label in key)
    return counts


def shares(before: Counts, after: Counts) -> dict[str, float]:
    """Of the requests between two looks, by the names in SHARES; nan where there were none. Pure.

    What is told lazily, allowances and credits, is told a moment after: of few requests the shares are rough.
    """
    seen = {name: after[name] - before[name] for name in _COUNTERS}
    requests, granted = seen["requests"] or float("nan"), seen["by_limiter"] + seen["by_gateway"] or float("nan")
    return {
        "edge_known_share": max(0.0, 1 - seen["asked"] / requests),
        "allowance_share": seen["by_gateway"] / granted,
        "credit_share": seen["on_credit"] / requests,
    }
