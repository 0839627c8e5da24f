"""Remedies at the price book. Pure."""

from __future__ import annotations

from libs.diagnosis.findings import Cost, Finding, Remedy
from libs.diagnosis.pools import ready
from libs.diagnosis.window import Process, Window
from libs.quota import PriceBook

_HOUR = 3600.0
_MICRO = 1e-6


def priced(finding: Finding, window: Window, book: PriceBook) -> Finding:
    """The finding with its remedies in order of cost, the dearest last.

    The price book prices tokens, not machines. One more worker is therefore taken to cost what serving costs of the
    tokens that one of the finding's workers (of all, where it names none) makes now, per hour.

    :param book: what serving costs, not what is charged for it.
    """
    hour = worker_hour(window, finding.workers, book)
    remedies = [each._replace(usd_per_hour=_of(each, hour)) for each in finding.remedies]
    return finding._replace(remedies=tuple(sorted(remedies, key=lambda each: (each.cost, each.usd_per_hour or 0.0))))


def _of(remedy: Remedy, hour: float | None) -> float | None:
    return {Cost.NOTHING: 0.0, Cost.PROCESS: None, Cost.ACCELERATOR: hour}[remedy.cost]


def worker_hour(window: Window, names: tuple[str, ...], book: PriceBook) -> float | None:
    """US dollars per hour of a worker as these work now, on average; None when no version of theirs has a price or
    none of them made tokens."""
    found = [each for each in window.of("worker") if not names or each.name in names]
    hours = [hour for each in found if (hour := _hour(window, each, book))]
    return sum(hours) / len(hours) if hours else None


def _hour(window: Window, process: Process, book: PriceBook) -> float:
    """Of several versions the mean price: a worker does not count tokens by version."""
    prices = [price for each in ready(window, process, "weir_worker_") if (price := book.find(each)) is not None]
    if not prices:
        return 0.0
    prompt = window.rate(process, "weir_worker_prompt_tokens_total")
    output = window.rate(process, "weir_worker_generation_tokens_total")
    each_second = sum(price.exact(round((prompt + output) * _HOUR), round(prompt * _HOUR)) for price in prices)
    return each_second / len(prices) * _MICRO
