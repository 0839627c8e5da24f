"""Takes secrets and personal data out of texts that are about to be kept: log values, span attributes, audit fields.

A net under the rule that such texts hold no words of users, not a licence to break it: it knows shapes, not meaning.
One pass of one pattern, in time linear in the text, of which at most `LONGEST` characters are kept at all.
"""

from __future__ import annotations

import re
from typing import Any

LONGEST = 16_384
"""Characters of one value that are looked at; what is beyond is not kept."""
_CUT = "…[cut]"
_DEEPEST = 8
"""Levels of nested values; deeper ones are not kept."""
_SHAPES = re.compile(
    r"(?P<pem>-----BEGIN [A-Z0-9 ]{0,40}KEY-----(?:(?!-----END)[\s\S]){0,16384}(?:-----END [A-Z0-9 ]{0,40}KEY-----)?)"
    r"|(?P<key>\bwk_[a-z0-9]{4,32}_[A-Za-z0-9-]{16,64}"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,200}|\bA(?:KI|SI)A[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,255}"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,255})"
    r"|(?P<jwt>\beyJ[A-Za-z0-9_-]{5,8192}\.[A-Za-z0-9_-]{5,8192}(?:\.[A-Za-z0-9_-]{0,8192})?)"
    r"|(?P<bearer>\b(?i:bearer|basic) {1,4}[A-Za-z0-9._~+/=-]{8,8192})"
    r"|(?P<login>(?<=://)[^/\s:@]{1,64}:[^/\s@]{1,128}@)"
    r"|(?P<email>(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,63}\b)"
    r"|(?P<iban>\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b)"
    r"|(?P<ssn>(?<![\w-])[0-9]{3}-[0-9]{2}-[0-9]{4}(?![\w-]))"
    r"|(?P<card>(?<![\w.-])[0-9](?:[ -]?[0-9]){12,18}(?![\w.-]))"
)


_MARKS = (
    *("wk_", "eyj", "-----begin", "bearer ", "basic ", "akia", "asia", "xox", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_"),
)
_SIGNS = tuple(
    re.compile(sign)
    for sign in (
        r"@[A-Za-z0-9-]{1,63}\.",
        r"://[^/\s:@]{1,64}:",
        r"[0-9](?<![\w.-].)(?:(?:[ -]?[0-9]){12}|[0-9]{2}-[0-9]{2}-[0-9]{4})",
        r"[A-Z]{2}[0-9]{2} ?[A-Z0-9]{4}",
    )
)
"""Every shape above has one of these: to look for them first costs a tenth, and nearly no text has any."""


def scrub(text: str) -> str:
    """The text with every secret and personal datum that has a known shape replaced by what it was, "[email]"."""
    if len(text) > LONGEST:
        text = text[:LONGEST] + _CUT
    return _SHAPES.sub(_replaced, text) if _suspicious(text) else text


def scrub_value(value: Any, depth: int = 0) -> Any:
    """A value with every text in it scrubbed, keys included; values that are no text are as they were."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, (list, tuple, set, frozenset, dict)) and depth >= _DEEPEST:
        return "[deep]"
    if isinstance(value, dict):
        return {_key(key): scrub_value(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [scrub_value(inner, depth + 1) for inner in value]
    return value


def _key(key: Any) -> Any:
    return scrub(key) if isinstance(key, str) else key


def has_findings(text: str) -> bool:
    """Whether `scrub` would change it."""
    if len(text) > LONGEST:
        return True
    return _suspicious(text) and any(_replaced(match) != match[0] for match in _SHAPES.finditer(text))


def _suspicious(text: str) -> bool:
    small = text.lower()
    for mark in _MARKS:
        if mark in small:
            return True
    return any(sign.search(text) for sign in _SIGNS)


def _replaced(match: re.Match[str]) -> str:
    kind = match.lastgroup or "secret"
    if kind == "card" and not _luhn(match[0]):
        return match[0]
    if kind == "iban" and not _iban(match[0]):
        return match[0]
    return f"[{kind}]"


def _luhn(text: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    digits = [int(each) for each in text if each.isdigit()][::-1]
    return sum(d if at % 2 == 0 else sum(divmod(2 * d, 10)) for at, d in enumerate(digits)) % 10 == 0


def _iban(text: str) -> bool:
    """ISO 13616: the rearranged number is 1 modulo 97."""
    plain = text.replace(" ", "")
    return int("".join(str(int(each, 36)) for each in plain[4:] + plain[:4])) % 97 == 1
