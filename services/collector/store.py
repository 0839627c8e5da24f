"""Traces on disk, one file each, within bounds: the oldest go first."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from libs.traces import Span, trace_path


@dataclass(slots=True)
class _Kept:
    spans: int
    size: int


class TraceStore:
    """Appends spans to their traces' files. One writer per folder."""

    def __init__(self, folder: Path, *, max_traces: int, max_bytes: int, max_spans_per_trace: int) -> None:
        """Takes over what the folder holds. Raises OSError when it cannot be made or read."""
        self._folder = folder
        self._max_traces = max_traces
        self._max_bytes = max_bytes
        self._max_spans = max_spans_per_trace
        self._encoder = msgspec.json.Encoder()
        self._traces: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self.evicted = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(folder.glob("*.jsonl"), key=lambda each: each.stat().st_mtime_ns):
            content = path.read_bytes()
            self._traces[path.stem] = _Kept(content.count(b"\n"), len(content))
            self._bytes += len(content)
        self._evict()

    @property
    def traces(self) -> int:
        """How many are kept."""
        return len(self._traces)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._bytes

    def add(self, spans: Iterable[Span]) -> tuple[int, int]:
        """Appends spans. Returns how many were kept and how many dropped because their trace has too many."""
        by_trace: defaultdict[str, list[Span]] = defaultdict(list)
        for span in spans:
            by_trace[span.trace_id].append(span)
        kept = dropped = 0
        for trace_id, group in by_trace.items():
            entry = self._traces.setdefault(trace_id, _Kept(0, 0))
            fitting = group[: max(0, self._max_spans - entry.spans)]
            kept += len(fitting)
            dropped += len(group) - len(fitting)
            self._append(trace_id, entry, fitting)
        self._evict()
        return kept, dropped

    def _append(self, trace_id: str, entry: _Kept, spans: list[Span]) -> None:
        if not spans:
            return
        # One write of whole lines, so that a reader sees no half of a batch.
        data = b"".join(self._encoder.encode(span) + b"\n" for span in spans)
        with open(trace_path(self._folder, trace_id), "ab", buffering=0) as file:
            file.write(data)
        entry.spans += len(spans)
        entry.size += len(data)
        self._bytes += len(data)
        self._traces.move_to_end(trace_id)

    def _evict(self) -> None:
        while self._traces and (len(self._traces) > self._max_traces or self._bytes > self._max_bytes):
            trace_id, entry = self._traces.popitem(last=False)
            trace_path(self._folder, trace_id).unlink(missing_ok=True)
            self._bytes -= entry.size
            self.evicted += 1
