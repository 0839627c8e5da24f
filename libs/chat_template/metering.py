"""Puts the charges into a template's syntax tree: what a turn of a loop, a branch or a macro does is charged when it is
done, by what stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_COSTS: tuple[tuple[type[nodes.Node], int], ...] = (
    (nodes.Call, 400),  # what it does is charged when it is called
    (nodes.Filter, 500),
    (nodes.Test, 300),
    (nodes.Getattr, 800),
    (nodes.Getitem, 800),
    (nodes.Compare, 1500),
    (nodes.Concat, 700),
    (nodes.BinExpr, 800),
    (nodes.For, 1500),
    (nodes.Output, 800),
    (nodes.Stmt, 200),
    (nodes.Expr, 40),
)
"""Units of each kind of node, the first that it is: as measured."""
_PARTS_OF_THEIR_OWN = ("body", "elif_", "else_")
_REFUSED = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.EvalContextModifier)


def metered(template: nodes.Template) -> nodes.Template:
    """The tree with its charges.

    :raises jinja2.TemplateAssertionError: it uses other templates, or changes how templates are evaluated.
    """
    for kind in _REFUSED:
        if (found := template.find(kind)) is not None:
            raise jinja2.TemplateAssertionError("other templates and autoescape cannot be used", found.lineno)
    charged: nodes.Template = _Metered().visit(template)
    return charged


class _Metered(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as the library calls it
        looks = _cost_of(node.test) if node.test is not None else 0
        self._branches(node, ("body", "else_"))
        node.iter = _through("_turns", node.iter, nodes.Const(looks, lineno=node.lineno))
        return node

    def visit_If(self, node: nodes.If) -> nodes.Node:  # noqa: N802
        return self._branches(node, ("body", "else_"))

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._branches(node, ("body",))

    visit_CallBlock = visit_Block = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_concat", nodes.List(list(node.nodes), lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _looked_at(node.expr)
        for operand in node.ops:
            operand.expr = _looked_at(operand.expr)
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _looked_at(pair.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_sliced", node) if isinstance(node.arg, nodes.Slice) else node

    def _branches(self, node: nodes.Node, names: Sequence[str]) -> nodes.Node:
        """Each of these bodies begins with what it costs."""
        costs = {name: _cost(getattr(node, name)) for name in names}
        self.generic_visit(node)
        for name, cost in costs.items():
            body = getattr(node, name)
            if body or name == "body":
                spend = _through("_spend", nodes.Const(cost, lineno=node.lineno))
                setattr(node, name, [nodes.ExprStmt(spend, lineno=node.lineno), *body])
        return node


def _through(name: str, value: nodes.Node, *arguments: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)


def _looked_at(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _through("_bounded", value)


def _cost(body: Iterable[nodes.Node]) -> int:
    """Of one run through it, without the bodies inside, which charge for themselves."""
    return 1000 + sum(_cost_of(each) for each in body)


def _cost_of(node: nodes.Node) -> int:
    own = next((cost for kind, cost in _COSTS if isinstance(node, kind)), 0)
    if isinstance(node, nodes.Output):
        own *= sum(not isinstance(each, nodes.TemplateData) for each in node.nodes)
    return own + sum(map(_cost_of, _within(node)))


def _within(node: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(node, nodes.For | nodes.If | nodes.Macro | nodes.CallBlock | nodes.Block):
        return node.iter_child_nodes(exclude=_PARTS_OF_THEIR_OWN)
    return node.iter_child_nodes()
