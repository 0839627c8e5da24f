"""The collector's files."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec

from libs.traces.span import Span

_TRACE_ID = re.compile(r"[0-9a-f]{32}")
REQUEST_IDS = ("weir.request_id", "guid:x-request-id")
"""Attributes that hold a request's id: of a gateway's or predictor's span, and of Envoy's."""
_EVERY = 1_000_000
_decoder = msgspec.json.Decoder(Span)


def trace_path(folder: Path | str, trace_id: str) -> Path:
    """Where the spans of a trace are. Raises ValueError when it is no trace id: 32 lower-case hex digits."""
    if not _TRACE_ID.fullmatch(trace_id):
        raise ValueError(f"not a trace id: {trace_id!r}")
    return Path(folder) / f"{trace_id}.jsonl"


def read_trace(folder: Path | str, trace_id: str) -> list[Span]:
    """The spans of a trace; empty when nothing of it is kept. A line that is still being written is left out.

    Raises ValueError for a malformed id.
    """
    try:
        content = trace_path(folder, trace_id).read_bytes()
    except FileNotFoundError:
        return []
    return [_decoder.decode(line) for line in content.split(b"\n")[:-1] if line]


def recent_traces(folder: Path | str, count: int) -> list[str]:
    """Ids of the traces that were written to last, newest first."""
    files = [(path.stat().st_mtime_ns, path.stem) for path in Path(folder).glob("*.jsonl")]
    return [trace_id for _, trace_id in sorted(files, reverse=True)[:count]]


def trace_of(folder: Path | str, asked: str) -> str | None:
    """The id of the trace that is kept under it, or of the one whose request has it as its id (`weir.request_id`, or
    Envoy's `guid:x-request-id`), the newest when several have; None when there is none. Reads every file, newest first.
    """
    if _TRACE_ID.fullmatch(asked) and trace_path(folder, asked).exists():
        return asked
    sought = asked.encode()
    for trace_id in recent_traces(folder, _EVERY) if asked else ():
        with suppress(FileNotFoundError):  # evicted meanwhile
            if sought in trace_path(folder, trace_id).read_bytes() and any(
                span.attributes.get(name) == asked for span in read_trace(folder, trace_id) for name in REQUEST_IDS
            ):
                return trace_id
    return None
