"""How a tenant's limits are told in headers, where the edge has not done it.

Sources: OpenAI's `x-ratelimit-*` headers; IETF draft-ietf-httpapi-ratelimit-headers-10 (`RateLimit`,
`RateLimit-Policy`); RFC 9110 section 10.2.3 (`Retry-After`).
"""

from __future__ import annotations

import math
from functools import lru_cache

Header = tuple[str, str]
State = tuple[int, int, float]
"""(limit, remaining, seconds until all of it is free)."""
WINDOW = 60
"""Seconds that limits of requests and tokens are about."""


def limit_headers(requests: State | None, tokens: State | None) -> list[Header]:
    """The headers for what is limited; nothing for what is not."""
    headers: list[Header] = []
    states: list[str] = []
    for kind, state in (("requests", requests), ("tokens", tokens)):
        if state is None:
            continue
        limit, remaining, reset = state
        headers.append((f"x-ratelimit-limit-{kind}", str(limit)))
        headers.append((f"x-ratelimit-remaining-{kind}", str(remaining)))
        headers.append((f"x-ratelimit-reset-{kind}", duration(reset)))
        states.append(f'"{kind}";r={remaining};t={math.ceil(reset)}')
    if states:
        headers.append(("ratelimit", ", ".join(states)))
        headers.append(("ratelimit-policy", _policy(requests[0] if requests else 0, tokens[0] if tokens else 0)))
    return headers


def retry_headers(seconds: float | None) -> list[Header]:
    """When to come back, in whole seconds and in milliseconds, rounded up; nothing when coming back does not help."""
    if seconds is None:
        return []
    milliseconds = max(1, math.ceil(seconds * 1000))
    return [("retry-after", str(-(-milliseconds // 1000))), ("retry-after-ms", str(milliseconds))]


def duration(seconds: float) -> str:
    """As OpenAI writes times: "0s", "20ms", "12s", "6m0s"; rounded up."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds > 0 else "0s"
    whole = math.ceil(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"


@lru_cache(maxsize=4096)
def _policy(requests: int, tokens: int) -> str:
    return ", ".join(
        f'"{kind}";q={limit};w={WINDOW}' for kind, limit in (("requests", requests), ("tokens", tokens)) if limit
    )
