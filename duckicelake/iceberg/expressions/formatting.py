"""Filters as JSON again: what is left of one, in its author's own words."""

from duckicelake.iceberg.expressions.tree import AllOf, And, AnyOf, BoundExpression, BoundPredicate, Expression, Not, Or, Predicate


def format_bound(bound: BoundExpression) -> object:
    """A bound filter as JSON. AND and OR become trees that are no deeper than they must be."""
    match bound:
        case bool():
            return bound
        case BoundPredicate():
            return bound.node
        case AllOf(parts):
            return _join("and", [format_bound(part) for part in parts])
        case AnyOf(parts):
            return _join("or", [format_bound(part) for part in parts])


def format_expression(expression: Expression) -> object:
    """A filter as JSON, no deeper than it must be: however its author nested it, it can be read again."""
    match expression:
        case bool():
            return expression
        case Predicate():
            return expression.node
        case Not(child):
            return {"type": "not", "child": format_expression(child)}
        case And(children):
            return _join("and", [format_expression(child) for child in children])
        case Or(children):
            return _join("or", [format_expression(child) for child in children])


def _join(kind: str, nodes: list[object]) -> object:
    while len(nodes) > 1:
        pairs = [{"type": kind, "left": left, "right": right} for left, right in zip(nodes[::2], nodes[1::2], strict=False)]
        nodes = [*pairs, *nodes[len(nodes) - len(nodes) % 2 :]]
    return nodes[0]
