"""How limits are told over HTTP.

Sources: OpenAI's `x-ratelimit-*` headers; IETF draft-ietf-httpapi-ratelimit-headers-10 (`RateLimit`,
`RateLimit-Policy`); RFC 9110 section 10.2.3 (`Retry-After`).
"""

from __future__ import annotations

from functools import lru_cache

from libs.quota.types import UNLIMITED, LimitReport

Header = tuple[str, str]
_SECOND = 1_000_000_000
_MS = 1_000_000


def limit_headers(requests: LimitReport, tokens: LimitReport, spend: LimitReport = UNLIMITED) -> list[Header]:
    """The headers of an answer that passed or was refused; limits that are not set are not told."""
    headers: list[Header] = []
    states: list[str] = []
    for name, report in (("requests", requests), ("tokens", tokens), ("spend", spend)):
        if not report.limit:
            continue
        if name != "spend":  # OpenAI's headers have no word for money
            headers += (
                (f"x-ratelimit-limit-{name}", str(report.limit)),
                (f"x-ratelimit-remaining-{name}", str(report.remaining)),
                (f"x-ratelimit-reset-{name}", duration(report.reset_ns)),
            )
        states.append(f'"{name}";r={report.remaining};t={_ceil(report.reset_ns, _SECOND)}')
    if states:
        headers.append(("ratelimit", ", ".join(states)))
        policy = _policy(requests.limit, tokens.limit, spend.limit, _ceil(spend.period_ns, _SECOND))
        headers.append(("ratelimit-policy", policy))
    return headers


def retry_headers(retry_after_ns: int | None) -> list[Header]:
    """When to come back, rounded up, and never at once; nothing when coming back does not help."""
    if retry_after_ns is None:
        return []
    milliseconds = max(1, _ceil(retry_after_ns, _MS))
    return [("retry-after", str(_ceil(milliseconds, 1000))), ("retry-after-ms", str(milliseconds))]


def duration(nanoseconds: int) -> str:
    """As OpenAI writes times: "0s", "20ms", "12s", "6m0s"; rounded up."""
    if nanoseconds < _SECOND:
        milliseconds = _ceil(nanoseconds, _MS)
        return f"{milliseconds}ms" if 0 < milliseconds < 1000 else "0s" if milliseconds == 0 else "1s"
    seconds = _ceil(nanoseconds, _SECOND)
    return f"{seconds}s" if seconds < 60 else f"{seconds // 60}m{seconds % 60}s"


@lru_cache(maxsize=4096)
def _policy(requests: int, tokens: int, spend: int, spend_seconds: int) -> str:
    limits = (("requests", requests, 60), ("tokens", tokens, 60), ("spend", spend, spend_seconds))
    return ", ".join(f'"{name}";q={limit};w={seconds}' for name, limit, seconds in limits if limit)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
