"""Tail sampling: whether a trace is kept is decided when its end is known. Pure.

Kept is a trace with a span that failed, one that took long, and a share of all others, drawn from the trace's id, so
that every collector draws the same (the last 8 bytes, as OpenTelemetry's TraceIdRatioBased does). The decision falls

- `settle` seconds after its root ended: exporters send what they have once a second, each its own;
- else `patience` seconds after its first span: of a root that never comes, or is a caller's own, nobody hears;
- at once, by what is known, of the oldest when more spans wait than `max_waiting`: memory is bounded.

Spans that come later follow the decision, as long as it is remembered: of the latest `max_decided` traces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from libs.traces import Span

_RANGE = 2**64


class Fate(Enum):
    """What became of spans."""

    KEPT = "kept"
    LEFT_OUT = "sampled_out"
    HURRIED = "hurried"
    """Left out, too, and decided early for want of room: an error may have come yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPolicy:
    """What is kept, and the bounds. Seconds."""

    share: float
    """Of traces that neither failed nor were slow, 0 to 1."""
    slow: float
    """A trace that took so long is kept; 0: none is for that."""
    settle: float = 3.0
    patience: float = 30.0
    max_waiting: int = 20_000
    max_decided: int = 50_000

    def __post_init__(self) -> None:
        """:raises ValueError: a value makes no sense."""
        if not 0 <= self.share <= 1:
            raise ValueError("keep_share must be 0 to 1")
        if min(self.slow, self.settle, self.patience) < 0 or min(self.max_waiting, self.max_decided) < 1:
            raise ValueError("seconds must not be negative, bounds at least 1")


@dataclass(slots=True)
class _Waiting:
    since: float
    spans: list[Span] = field(default_factory=list)
    rooted: float | None = None
    """When its root was here."""


Decided = Iterator[tuple[Fate, list[Span]]]


class TailSampler:
    """Holds spans until their trace is decided. The caller passes the time."""

    def __init__(self, policy: TailPolicy) -> None:
        self._policy = policy
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        """In the order in which they began."""
        self._decided: OrderedDict[str, bool] = OrderedDict()
        self.held = 0
        """Spans that wait."""

    def take(self, spans: Iterable[Span], now: float) -> Decided:
        """Takes spans in; gives back those that are decided by that, late ones and those for which there is no room.
        It must be read to its end."""
        for span in spans:
            if (kept := self._decided.get(span.trace_id)) is not None:
                yield (Fate.KEPT if kept else Fate.LEFT_OUT), [span]
                continue
            trace = self._waiting.setdefault(span.trace_id, _Waiting(now))
            trace.spans.append(span)
            self.held += 1
            if not span.parent_id:
                trace.rooted = now
            while self.held > self._policy.max_waiting:
                yield self._decide(next(iter(self._waiting)), hurried=True)

    def due(self, now: float) -> Decided:
        """Those whose time has come."""
        policy = self._policy
        for trace_id, trace in list(self._waiting.items()):
            settled = trace.rooted is not None and now >= trace.rooted + policy.settle
            if settled or now >= trace.since + policy.patience:
                yield self._decide(trace_id)

    def rest(self) -> Decided:
        """All that wait, for the end of the process."""
        for trace_id in list(self._waiting):
            yield self._decide(trace_id)

    def _decide(self, trace_id: str, *, hurried: bool = False) -> tuple[Fate, list[Span]]:
        spans = self._waiting.pop(trace_id).spans
        self.held -= len(spans)
        kept = self._decided[trace_id] = worth(trace_id, spans, self._policy)
        if len(self._decided) > self._policy.max_decided:
            self._decided.popitem(last=False)
        return (Fate.KEPT if kept else Fate.HURRIED if hurried else Fate.LEFT_OUT), spans


def worth(trace_id: str, spans: list[Span], policy: TailPolicy) -> bool:
    """Whether a trace of these spans is kept."""
    if any(span.error for span in spans):
        return True
    took = (max(span.end_ns for span in spans) - min(span.start_ns for span in spans)) / 1e9
    if policy.slow and took >= policy.slow:
        return True
    return int(trace_id[16:], 16) < policy.share * _RANGE
