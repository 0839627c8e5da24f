"""`weir trace`: what the development collector kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from libs.traces import assemble, read_trace, recent_traces, render
from services.cli.app import say, warn
from services.cli.output import print_json


def show(folder: Path, trace_id: str, *, as_json: bool, count: int) -> int:
    """Prints one trace as a tree, or the latest ones when no id is given. Returns the exit code."""
    if not trace_id:
        return _list(folder, as_json=as_json, count=count)
    try:
        spans = read_trace(folder, trace_id)
    except ValueError as error:
        warn(f"error: {error}")
        return 1
    if not spans:
        warn(f"error: no trace {trace_id} in {folder}")
        return 1
    tree = assemble(spans)
    if as_json:
        ordered = [{"depth": depth, **msgspec.to_builtins(span)} for depth, span in tree.spans()]
        print_json({"trace_id": trace_id, "one_tree": tree.is_one_tree, "spans": ordered})
    else:
        say(render(tree))
    return 0


def _list(folder: Path, *, as_json: bool, count: int) -> int:
    rows: list[dict[str, Any]] = []
    for trace_id in recent_traces(folder, count):
        tree = assemble(read_trace(folder, trace_id))
        spans = [span for _, span in tree.spans()]
        if not spans:
            continue
        seconds = (max(span.end_ns for span in spans) - min(span.start_ns for span in spans)) / 1e9
        name = tree.roots[0].span.name
        rows.append(
            {"trace_id": trace_id, "spans": len(spans), "seconds": seconds, "name": name, "one_tree": tree.is_one_tree}
        )
    if as_json:
        print_json(rows)
    elif not rows:
        say(f"no traces in {folder}")
    else:
        for row in rows:
            say(f"{row['trace_id']}  {row['spans']:4} spans  {row['seconds'] * 1e3:9.1f} ms  {row['name']}")
    return 0
