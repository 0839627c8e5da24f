"""Which pages in browsers may call the public API: Envoy's CORS filter, as https://fetch.spec.whatwg.org asks for it.

It stands first, so that a preflight, which carries no key, is answered before anybody is asked anything and counts for
no limit, and so that every later refusal can be read by the page. Credentials in the sense of the standard, which are
cookies, are never allowed: a key in a header is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.controlplane.policy.names import Resource

CORS = "envoy.filters.http.cors"
ALLOWED_HEADERS = (
    "accept",
    "api-key",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-type",
    "idempotency-key",
    "inference-header-content-length",
    "last-event-id",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "x-api-key",
    "x-weir-model",
    "x-weir-session",
    "x-weir-user",
    # OpenAI's own client tells these of itself.
    *(
        f"x-stainless-{name}"
        for name in (
            *("arch", "async", "custom-poll-interval", "helper-method", "lang", "os", "package-version"),
            *("poll-helper", "retry-count", "runtime", "runtime-version", "timeout"),
        )
    ),
)
"""What a page may send. A list, since `*` does not stand for `authorization`."""
EXPOSED_HEADERS = (
    "idempotent-replayed",
    "inference-header-content-length",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "retry-after-ms",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-weir-arm",
    "x-weir-degraded",
    "x-weir-model-version",
    "x-weir-original-request-id",
    "x-weir-reason",
    "x-weir-simulated",
    "x-weir-zone",
)
"""What a page may read beside the body."""
MAX_AGE_SECONDS = 7200
"""How long a browser may remember a preflight; Chrome takes no more."""

_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_ORIGIN = re.compile(
    rf"https?://(?:\*\.)?{_LABEL}(?:\.{_LABEL})*(?::[1-9][0-9]{{0,4}})?|https?://\[[0-9a-f:]+\](?::\d+)?"
)
_BELOW = rf"(?:{_LABEL}\.)+"


def is_origin(text: str) -> bool:
    """Whether it is an origin as browsers write it, "https://app.example.com", or all of a domain's subdomains,
    "https://*.example.com"; never `*`, and no path."""
    return _ORIGIN.fullmatch(text) is not None


def cors_policy(origins: Sequence[str]) -> Resource:
    """The CorsPolicy of the public listeners. A preflight of another origin is answered, too, with nothing allowed."""
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
        "allow_origin_string_match": [_matcher(origin) for origin in origins],
        "allow_methods": "GET, POST",
        "allow_headers": ", ".join(ALLOWED_HEADERS),
        "expose_headers": ", ".join(EXPOSED_HEADERS),
        "max_age": str(MAX_AGE_SECONDS),
        "allow_credentials": False,
        "forward_not_matching_preflights": False,
    }


def _matcher(origin: str) -> Resource:
    scheme, star, domain = origin.partition("*.")
    return {"exact": origin} if not star else {"safe_regex": {"regex": scheme + _BELOW + re.escape(domain)}}
