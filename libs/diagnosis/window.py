"""Two scrapes of a mesh, and what happened between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from libs.diagnosis.pages import Page

_STARTED = "process_start_time_seconds"


class Process(NamedTuple):
    """Whose page it is. Workers are named as admission's labels name them."""

    name: str
    service: str
    zone: str = ""


class Scrape(NamedTuple):
    """The pages of all processes that could be read at about one time."""

    at: float
    """Seconds since the epoch."""
    pages: Mapping[Process, Page]
    silent: frozenset[Process] = frozenset()
    """Those that were asked and did not answer in time."""


class Span(NamedTuple):
    """A gauge at both scrapes."""

    before: float
    after: float

    @property
    def least(self) -> float:
        """What it was at both scrapes at least."""
        return min(self.before, self.after)

    @property
    def most(self) -> float:
        """What it was at neither scrape more than."""
        return max(self.before, self.after)


class Window:
    """What two scrapes say together. Of a process that is on one of them only, nothing is said: it has no rates."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        """:raises ValueError: the second is not later than the first."""
        if after.at <= before.at:
            raise ValueError("the second scrape must be later than the first")
        self.before, self.after = before, after
        self.seconds = after.at - before.at

    def of(self, *services: str) -> list[Process]:
        """The processes of these services that are on both scrapes, by name."""
        both = self.before.pages.keys() & self.after.pages.keys()
        return sorted(each for each in both if each.service in services)

    def span(self, process: Process, name: str, **labels: str) -> Span:
        """A gauge, summed over the series that have these labels; 0 where there are none."""
        return Span(*(_total(scrape.pages[process], name, labels) for scrape in (self.before, self.after)))

    def gained(self, process: Process, name: str, **labels: str) -> float:
        """By how much a counter grew, summed likewise. After a restart it counts from zero, as Prometheus' rate()."""
        before, after = self.span(process, name, **labels)
        return after - before if after >= before and not self.restarted(process) else after

    def rate(self, process: Process, name: str, **labels: str) -> float:
        """The same per second."""
        return self.gained(process, name, **labels) / self.seconds

    def values(self, process: Process, name: str, label: str) -> Iterator[str]:
        """The values that a label has on the later scrape, each once."""
        found = self.after.pages[process].get(name, ())
        return iter(sorted({sample.labels[label] for sample in found if label in sample.labels}))

    def started(self, process: Process) -> float:
        """When it was started, seconds since the epoch; 0 when its page does not say."""
        return self.span(process, _STARTED).after

    def restarted(self, process: Process) -> bool:
        """Whether it is not the one that it was."""
        before, after = self.span(process, _STARTED)
        return before != after


def _total(page: Page, name: str, labels: Mapping[str, str]) -> float:
    return sum(
        sample.value
        for sample in page.get(name, ())
        if all(sample.labels.get(label) == value for label, value in labels.items())
    )
