"""Times and money as operators write and read them."""

from __future__ import annotations

from libs.resources.quantities import MICRO, UNITS, microusd_in, seconds_in
from services.cli.app import UsageError


def parse_seconds(text: str, option: str) -> float:
    """Seconds of "500ms", "2", "1.5s", "5m", "12h", "30d".

    :raises UsageError: naming the option.
    """
    try:
        return seconds_in(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def parse_microusd(text: str, option: str) -> int:
    """Micro-dollars of "0.02" or "$1.50".

    :raises UsageError: naming the option; also for a negative amount and for parts of a micro-dollar.
    """
    try:
        return microusd_in(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def show_seconds(seconds: float) -> str:
    """In the largest unit of which it is a whole number, else in seconds or milliseconds: "1 d", "90 s", "150 ms"."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % UNITS[unit] == 0:
            return f"{seconds / UNITS[unit]:.0f} {unit}"
    number, unit = (seconds * 1000, "ms") if 0 < seconds < 1 else (seconds, "s")
    return f"{number:.3f}".rstrip("0").rstrip(".") + f" {unit}"


def show_usd(microusd: int) -> str:
    """Dollars with at least two and at most six decimals: "$0.02", "$1.500001"."""
    whole, part = divmod(microusd, MICRO)
    decimals = f"{part:06d}"
    return f"${whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"
