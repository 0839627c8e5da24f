"""Times and money as operators write them."""

from __future__ import annotations

from libs.resources.quantities import microusd_in, seconds_in
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
