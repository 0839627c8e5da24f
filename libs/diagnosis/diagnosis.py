"""The diagnosis itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from libs.diagnosis.findings import Finding, remembered
from libs.diagnosis.pools import pools
from libs.diagnosis.prices import priced
from libs.diagnosis.rules import findings
from libs.diagnosis.thresholds import MIN_SECONDS
from libs.diagnosis.window import Scrape, Window
from libs.quota import PriceBook


class Diagnosis(NamedTuple):
    """What two scrapes say."""

    seconds: float
    """Between them."""
    findings: tuple[Finding, ...]
    """The first is what binds; what follows it would, or binds elsewhere. Empty: nothing does."""

    @property
    def binds(self) -> Finding | None:
        """What binds."""
        return self.findings[0] if self.findings else None


def diagnose(before: Scrape, after: Scrape, book: PriceBook | None = None) -> Diagnosis:
    """What binds, by `rules.RULES`.

    :param book: what serving costs; without it no worker has a price.
    :raises ValueError: the scrapes are less than `MIN_SECONDS` apart.
    """
    if after.at - before.at < MIN_SECONDS:
        raise ValueError(f"two scrapes must be {MIN_SECONDS:g} s apart at least")
    window = Window(before, after)
    found = findings(window, pools(window))
    return Diagnosis(window.seconds, tuple(priced(each, window, book or PriceBook({})) for each in found))


def follow(scrapes: Sequence[Scrape], book: PriceBook | None = None) -> Diagnosis:
    """The diagnosis of the last two, whose findings have held since the first of the windows in a row that had them.

    :param scrapes: in the order of time.
    :raises ValueError: there are fewer than two, or two of them are less than `MIN_SECONDS` apart.
    """
    if len(scrapes) < 2:
        raise ValueError("a diagnosis needs two scrapes at least")
    found = Diagnosis(0.0, ())
    for before, after in pairwise(scrapes):
        now = diagnose(before, after, book)
        found = now._replace(findings=remembered(now.findings, found.findings))
    return found
