"""Times, money and choices as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MICRO = 1_000_000


def seconds_in(text: str) -> float:
    """Seconds of "500ms", "2", "1.5s", "5m", "12h", "30d".

    :raises ValueError: it is no such time; the message says what is.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"a number and ms, s, m, h or d, such as 500ms or 30d; not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def microusd_in(text: str) -> int:
    """Micro-dollars of "0.02" or "$1.50".

    :raises ValueError: it is no such amount, negative, or has parts of a micro-dollar; the message says what is right.
    """
    try:
        micro = Decimal(text.removeprefix("$")) * _MICRO
    except InvalidOperation:
        micro = Decimal(-1)
    if not micro.is_finite() or micro < 0 or micro != int(micro):
        raise ValueError(f"dollars, such as 0.02, down to a millionth; not {text!r}")
    return int(micro)


def short_enum(enum: str, name: str) -> str:
    """ "serve-idle" of OverQuota's OVER_QUOTA_SERVE_IDLE."""
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum).upper() + "_"
    return name.removeprefix(prefix).replace("_", "-").lower()


def show_seconds(seconds: float) -> str:
    """In the largest unit of which it is a whole number, else in seconds or milliseconds: "1 d", "90 s", "150 ms"."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f} {unit}"
    number, unit = (seconds * 1000, "ms") if 0 < seconds < 1 else (seconds, "s")
    return f"{number:.3f}".rstrip("0").rstrip(".") + f" {unit}"


def show_usd(microusd: int) -> str:
    """Dollars with at least two and at most six decimals: "$0.02", "$1.500001"."""
    whole, part = divmod(microusd, _MICRO)
    decimals = f"{part:06d}"
    return f"${whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"
