"""How limits are told over HTTP.

Sources: OpenAI's `x-ratelimit-*` headers; IETF draft-ietf-httpapi-ratelimit-headers-10 (`RateLimit`,
`RateLimit-Policy`); RFC 9110 section 10.2.3 (`Retry-After`).
"""

from functools import lru_cache

from libs.gcra import Admitted, Denied

Header = tuple[str, str]
_SECOND = 1_000_000_000
_MS = 1_000_000


def limit_headers(outcome: Admitted, burst_seconds: int) -> list[Header]:
    """The headers of an answer that passed or was refused; limits that are not set are not told."""
    headers: list[Header] = []
    states: list[str] = []
    for name, report in (("requests", outcome.requests), ("tokens", outcome.tokens)):
        if not report.limit:
            continue
        headers += (
            (f"x-ratelimit-limit-{name}", str(report.limit)),
            (f"x-ratelimit-remaining-{name}", str(report.remaining)),
            (f"x-ratelimit-reset-{name}", duration(report.reset_ns)),
        )
        states.append(f'"{name}";r={report.remaining};t={_ceil(report.reset_ns, _SECOND)}')
    if states:
        headers.append(("ratelimit", ", ".join(states)))
        headers.append(("ratelimit-policy", _policy(outcome.requests.limit, outcome.tokens.limit, burst_seconds)))
    return headers


def retry_headers(denied: Denied) -> list[Header]:
    """When to come back; nothing when coming back does not help."""
    if denied.retry_after_ns is None:
        return []
    milliseconds = _ceil(denied.retry_after_ns, _MS)
    return [("retry-after", str(_ceil(milliseconds, 1000))), ("retry-after-ms", str(milliseconds))]


def duration(nanoseconds: int) -> str:
    """As OpenAI writes times: "0s", "20ms", "12s", "6m0s"; rounded up."""
    if nanoseconds < _SECOND:
        milliseconds = _ceil(nanoseconds, _MS)
        return f"{milliseconds}ms" if 0 < milliseconds < 1000 else "0s" if milliseconds == 0 else "1s"
    seconds = _ceil(nanoseconds, _SECOND)
    return f"{seconds}s" if seconds < 60 else f"{seconds // 60}m{seconds % 60}s"


def replaced(outcome: Admitted, denied: Denied) -> Admitted:
    """The outcome as it stands for a refused request: the refusing limit's own report, the others as they are."""
    return outcome._replace(**{_FIELDS[denied.kind.value]: denied.report})


_FIELDS = {"requests_per_minute": "requests", "tokens_per_minute": "tokens", "concurrency": "concurrency"}


@lru_cache(maxsize=4096)
def _policy(requests: int, tokens: int, burst_seconds: int) -> str:
    parts = [
        f'"{name}";q={max(1, limit * burst_seconds // 60)};w={burst_seconds}'
        for name, limit in (("requests", requests), ("tokens", tokens))
        if limit
    ]
    return ", ".join(parts)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
