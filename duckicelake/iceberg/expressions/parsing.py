"""Filters as JSON: the specification's predicates, in their present and in their older words.

Source: Iceberg REST specification, «Predicate»; ExpressionParser of Iceberg 1.11
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import cast

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_reader import as_list, as_object, get_flag, get_int, get_text
from duckicelake.iceberg.expressions.tree import IN, NOT_IN, OPERATIONS, SETS, UNARY, And, Expression, Not, Or, Predicate, Term
from duckicelake.iceberg.transforms import parse_transform
from duckicelake.values import replace

WHAT = "filter"
DEPTH_MAX = 200
"""How deep AND, OR and NOT may change within each other; a chain of one of the two is no depth."""
NODES_MAX = 20_000
VALUES_MAX = 200_000
SHOWN_LENGTH = 100


@dataclass(slots=True)
class _FilterBudget:
    """How much a filter may still hold."""

    nodes: int = NODES_MAX
    values: int = VALUES_MAX

    def take(self, nodes: int, values: int) -> None:
        self.nodes -= nodes
        self.values -= values
        if self.nodes < 0 or self.values < 0:
            raise BadRequest(f"Cannot read {WHAT}: it has more than {NODES_MAX} predicates or {VALUES_MAX} values; ask for less at once")


def parse_expression(value: object) -> Expression:
    """The filter that JSON spells.

    Raises: BadRequest — malformed, of an unknown kind, nested deeper than DEPTH_MAX, or with too many parts
    """
    return _parse(value, _FilterBudget(), 0)


def _parse(value: object, budget: _FilterBudget, depth: int) -> Expression:
    if isinstance(value, bool):
        return value
    if depth > DEPTH_MAX:
        raise BadRequest(f"Cannot read {WHAT}: it is nested deeper than {DEPTH_MAX} levels; flatten it")
    budget.take(1, 0)
    node = as_object(value, WHAT)
    kind = get_text(node, "type", WHAT).lower().replace("_", "-")
    match kind:
        case "true" | "false":
            return kind == "true"
        case "literal":
            return get_flag(node, "value", WHAT)
        case "and" | "or":
            operands = _flatten_operands(node, kind, budget)
            # so much deeper does the first one stand when they are told again in pairs
            below = depth + max(1, (len(operands) - 1).bit_length())
            children = tuple(_parse(child, budget, below) for child in operands)
            return And(children) if kind == "and" else Or(children)
        case "not":
            return Not(_parse(node.get("child"), budget, depth + 1))
        case _:
            return _parse_predicate(kind, node, budget)


def _flatten_operands(node: Mapping[str, object], kind: str, budget: _FilterBudget) -> Sequence[object]:
    """The operands of AND or OR, and those of its operands that are the same, from left to right: clients nest thousands of them."""
    found: list[object] = []
    waiting: list[object] = [node]
    while waiting:
        item = waiting.pop()
        known: Mapping[str, object] = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        named = known.get("type")
        if isinstance(named, str) and named.lower() == kind:
            if "left" not in known or "right" not in known:
                raise BadRequest(f"Cannot read {WHAT}: {kind!r} needs 'left' and 'right'")
            budget.take(1, 0)
            waiting += [known["right"], known["left"]]
        else:
            found.append(cast("object", item))
    return found


def _parse_predicate(kind: str, node: Mapping[str, object], budget: _FilterBudget) -> Predicate:
    if kind not in OPERATIONS:
        raise BadRequest(
            f"Cannot read {WHAT}: {kind[:SHOWN_LENGTH]!r} is unknown; send one of {', '.join(sorted(OPERATIONS))}, and, or, not"
        )
    if kind in UNARY:
        return _build_predicate(kind, _get_operand(kind, node, "child", "term"), ())
    if kind in SETS:
        value = _get_operand(kind, node, "child", "term", "values")
        values = _parse_values(node.get("values"))
        budget.take(0, len(values))
        return _build_predicate(kind, value, values, {"values": list(values)})
    older = "term" in node
    term = _get_operand(kind, node, "left", "term", "value" if older else "right")
    literal = _parse_literal(node.get("value" if older else "right"))
    return _build_predicate(kind, term, (literal,), {"value" if older else "right": literal})


def _get_operand(kind: str, node: Mapping[str, object], name: str, older: str, *more: str) -> tuple[str, object]:
    """The key and what it holds of the two under which a predicate has its column; others must be there, and no more.

    Raises: BadRequest — it has both or none, or keys that do not belong there
    """
    if (name in node) == (older in node):
        raise BadRequest(f"Cannot read {WHAT}: {kind!r} needs {name!r}, or {older!r} as it was called before")
    found = name if name in node else older
    others = sorted(node.keys() ^ {"type", found, *more})
    if others:
        what = "which does not belong there" if others[0] in node else "which is missing"
        raise BadRequest(f"Cannot read {WHAT}: {kind!r} and {others[0][:SHOWN_LENGTH]!r}, {what}")
    return found, node[found]


def _build_predicate(
    kind: str, term: tuple[str, object], values: tuple[object, ...], more: Mapping[str, object] | None = None
) -> Predicate:
    """A predicate with its JSON in the words that its author chose, and no others."""
    key, told = term
    parsed = _parse_term(told)
    return Predicate(kind, parsed, values, {"type": kind, key: told if isinstance(told, str) else _format_term(parsed), **(more or {})})


def _format_term(term: Term) -> object:
    if term.transform is not None:
        return {"type": "transform", "transform": term.transform, "term": term.name or _format_term(replace(term, transform=None))}
    if term.name is None:
        return {"type": "reference", "id": term.field_id}
    return {"type": "reference", "name": term.name}


def _parse_term(value: object) -> Term:
    if isinstance(value, str):
        return Term(value)
    node = as_object(value, f"term of {WHAT}")
    kind = get_text(node, "type", f"term of {WHAT}")
    match kind:
        case "reference" if "id" in node:
            return Term(None, get_int(node, "id", f"term of {WHAT}"))
        case "reference":
            return Term(get_text(node, "name" if "name" in node else "term", f"term of {WHAT}"))
        case "transform":
            inner = _parse_term(node.get("term"))
            if inner.transform is not None:
                raise BadRequest(f"Cannot read {WHAT}: a transform of a transform is no term; send one of a column")
            return Term(inner.name, inner.field_id, str(parse_transform(get_text(node, "transform", f"term of {WHAT}"))))
        case _:
            raise BadRequest(
                f"Cannot read {WHAT}: a term of type {kind[:SHOWN_LENGTH]!r} is not known here; send a column's name or a transform of it"
            )


def _parse_values(value: object) -> tuple[object, ...]:
    if isinstance(value, dict):
        node = as_object(cast("object", value), f"values of {WHAT}")
        if node.get("type") != "literals":
            raise BadRequest(f"Cannot read {WHAT}: 'values' of {IN!r} and {NOT_IN!r} are an array, or an object of type 'literals'")
        value = node.get("values")
    return tuple(_parse_literal(item) for item in as_list(value, f"values of {WHAT}"))


def _parse_literal(value: object) -> object:
    if isinstance(value, dict):
        node = as_object(cast("object", value), f"value of {WHAT}")
        if node.get("type") != "literal" or "value" not in node:
            raise BadRequest(f"Cannot read {WHAT}: a value is a JSON single value, or an object of type 'literal'")
        value = node["value"]
    if value is None or isinstance(value, list | dict) or (isinstance(value, float) and not isfinite(value)):
        raise BadRequest(f"Cannot read {WHAT}: a value is null, no finite number, an array or an object; send a JSON single value")
    return value
