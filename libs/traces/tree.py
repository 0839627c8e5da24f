"""Spans of one trace put together as a tree. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from libs.traces.span import Span


@dataclass(slots=True)
class Node:
    """A span with what it called, by start time."""

    span: Span
    children: list[Node] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        """This span and everything below, with depths, parents first."""
        waiting = [(depth, self)]
        while waiting:
            level, node = waiting.pop()
            yield level, node.span
            waiting.extend((level + 1, child) for child in reversed(node.children))


@dataclass(frozen=True, slots=True)
class Tree:
    """A trace."""

    roots: list[Node]
    """Spans whose parent was not recorded, by start time."""

    @property
    def is_one_tree(self) -> bool:
        """Whether all spans hang together: one root, or roots that name one and the same parent outside the record,
        which is what a caller's own span looks like when the caller does not export."""
        parents = {root.span.parent_id for root in self.roots}
        return len(self.roots) == 1 or (len(parents) == 1 and parents != {""})

    def spans(self) -> Iterator[tuple[int, Span]]:
        """Every span with its depth, parents first."""
        for root in self.roots:
            yield from root.walk()

    def edges(self) -> set[tuple[str, str]]:
        """(service of the parent, service of the child) of every parent and child in different services."""
        found: set[tuple[str, str]] = set()
        waiting = list(self.roots)
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children)
            found.update(
                (node.span.service, child.span.service)
                for child in node.children
                if child.span.service != node.span.service
            )
        return found

    def services(self) -> set[str]:
        """Every service that took part."""
        return {span.service for _, span in self.spans()}


def assemble(spans: Iterable[Span]) -> Tree:
    """Puts spans together by parent id; every span is in the tree exactly once.

    A span exported twice counts once. A circle of parents, which only a faulty exporter makes, is cut at its earliest
    span.
    """
    nodes: dict[str, Node] = {}
    for span in sorted(spans, key=lambda each: (each.start_ns, each.span_id)):
        nodes.setdefault(span.span_id, Node(span))
    order = {span_id: number for number, span_id in enumerate(nodes)}
    roots: list[Node] = []
    for node in nodes.values():
        parent = nodes.get(node.span.parent_id)
        if parent is None or parent is node or _closes_circle(node, nodes, order):
            roots.append(node)
        else:
            parent.children.append(node)
    return Tree(roots)


class Summary(NamedTuple):
    """A trace in one line."""

    start_ns: int
    """Since the epoch."""
    seconds: float
    """From the first span's start to the last one's end."""
    spans: int
    name: str
    """Of the first root."""
    tenant: str
    """Empty: nobody who knew it took part."""
    model: str
    """The version that answered, else what was asked for; empty likewise."""
    error: str
    """Of the span nearest to a root that has one."""


def summary(tree: Tree) -> Summary:
    """What a tree of at least one span is about.

    :raises ValueError: there is none.
    """
    spans = list(tree.spans())
    if not spans:
        raise ValueError("no spans")
    failed = sorted((depth, number) for number, (depth, span) in enumerate(spans) if span.error)
    start = min(span.start_ns for _, span in spans)
    return Summary(
        start_ns=start,
        seconds=(max(span.end_ns for _, span in spans) - start) / 1e9,
        spans=len(spans),
        name=spans[0][1].name,
        tenant=_attribute(spans, "weir.tenant"),
        model=_attribute(spans, "gen_ai.response.model") or _attribute(spans, "gen_ai.request.model"),
        error=spans[failed[0][1]][1].error if failed else "",
    )


def _attribute(spans: Iterable[tuple[int, Span]], name: str) -> str:
    return next((str(span.attributes[name]) for _, span in spans if span.attributes.get(name)), "")


def _closes_circle(node: Node, nodes: dict[str, Node], order: dict[str, int]) -> bool:
    """Whether the chain of parents comes back to `node`, and `node` is the earliest on that circle."""
    seen: set[str] = set()
    current = node.span.parent_id
    while current in nodes and current not in seen:
        if current == node.span.span_id:
            return all(order[node.span.span_id] <= order[each] for each in seen)
        seen.add(current)
        current = nodes[current].span.parent_id
    return False


def render(tree: Tree) -> str:
    """The tree as text: offset from the first span, duration, service, name, error, the traces that it is linked to."""
    spans = list(tree.spans())
    if not spans:
        return "(no spans)"
    first = min(span.start_ns for _, span in spans)
    lines = []
    for depth, span in spans:
        label = f"{'  ' * depth}{span.service or '?'}: {span.name}"
        where = f" [{span.instance}]" if span.instance and span.instance != span.service else ""
        error = f"  ERROR {span.error}" if span.error else ""
        told = f"{label}{where}{error}{_linked(span)}"
        lines.append(f"{(span.start_ns - first) / 1e6:9.2f} ms {span.seconds * 1e3:9.2f} ms  {told}")
    return "\n".join(["    start     duration", *lines])


def _linked(span: Span) -> str:
    """The first trace that it is linked to, and how many more."""
    traces = list(dict.fromkeys(link.partition("-")[0] for link in span.links))
    more = f" and {len(traces) - 1} more" if len(traces) > 1 else ""
    return f"  with {traces[0]}{more}" if traces else ""
