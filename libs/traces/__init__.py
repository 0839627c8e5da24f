"""Recorded spans: their form on disk and the tree that they make.

The development collector writes `<folder>/<trace id>.jsonl`, one span per line; `weir trace` and the tests read them.
"""

from libs.traces.files import read_trace, recent_traces, trace_of, trace_path
from libs.traces.span import Span
from libs.traces.tree import Node, Summary, Tree, assemble, render, summary

__all__ = [
    "Node",
    "Span",
    "Summary",
    "Tree",
    "assemble",
    "read_trace",
    "recent_traces",
    "render",
    "summary",
    "trace_of",
    "trace_path",
]
