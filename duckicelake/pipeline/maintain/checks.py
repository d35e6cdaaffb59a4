"""What must be so before a step is taken."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from duckicelake.errors import BadRequest, CommitFailed, Forbidden, NoSuchTable, Unsupported
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType, walk_fields
from duckicelake.pipeline.asking.callers import ANONYMOUS
from duckicelake.pipeline.ingest.staging import format_identifier
from duckicelake.pipeline.maintain.policy import Policy, Strategy
from duckicelake.pipeline.rest import Rest, TableIdent, fold
from duckicelake.pipeline.verify.columns import check_readable

_ZORDERED = ("boolean", "int", "long", "float", "double", "string", "uuid", "binary", "fixed", "date", "timestamp")
"""How the types begin that Iceberg puts in z-order; of times with a date, Spark reads those in microseconds alone."""


def check_may_write(rest: Rest, ident: TableIdent) -> None:
    """Have the catalog look at an account's rights before something is done that needs them, by a commit of nothing.

    Raises: Forbidden, NoSuchTable: what it says
    """
    if rest.caller is not ANONYMOUS:
        rest.change([{"identifier": format_identifier(ident), "requirements": [], "updates": []}])


def may_write(rest: Rest, ident: TableIdent) -> bool:
    """Whether an account may write to a table, as far as the catalog says that it may not. Of one that cannot be shown it says nothing."""
    try:
        check_may_write(rest, ident)
    except (Forbidden, NoSuchTable):
        return False
    except (BadRequest, Unsupported, CommitFailed):
        return True
    return True


def check_possible(policy: Policy, metadata: Mapping[str, Any]) -> None:
    """Raises: Unsupported: Spark cannot read the table, or it has no order to sort by; BadRequest: it cannot have the policy's."""
    schema = _read_schema(metadata)
    check_readable(schema)
    if policy.strategy is Strategy.sort and not policy.order and not metadata["default-sort-order-id"]:
        raise Unsupported("strategy sort needs an order, of the policy or of the table itself")
    if policy.strategy is not Strategy.binpack:
        found = [_get_column(schema, field.column) for field in policy.order]
        if policy.strategy is Strategy.zorder:
            _check_zorder(found, metadata)


def spell_order(policy: Policy, metadata: Mapping[str, Any]) -> Policy:
    """The policy with the columns of its order in the table's spelling. Raises: BadRequest: the table lacks one"""
    if policy.strategy is Strategy.binpack:
        return policy
    schema = _read_schema(metadata)
    return replace(policy, order=tuple(replace(field, column=_get_column(schema, field.column)[0]) for field in policy.order))


def _read_schema(metadata: Mapping[str, Any]) -> Schema:
    return parse_schema(next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]))


def _get_column(schema: Schema, name: str) -> tuple[str, NestedField]:
    """A column, or a field of one, with its dotted path; as it is spelled, else in any case."""
    columns = list(walk_fields(schema.fields))
    same = [one for one in columns if one[0] == name] or [one for one in columns if fold(one[0]) == fold(name)]
    if not same:
        raise BadRequest(f"there is no column {name} to order by")
    return same[0]


def _check_zorder(columns: Sequence[tuple[str, NestedField]], metadata: Mapping[str, Any]) -> None:
    """Source: SparkZOrderUDF and SparkZOrderFileRewriteRunner of Iceberg 1.11"""
    for path, item in columns:
        why = _explain_obstacle(path, item)
        if why:
            raise BadRequest(f"strategy zorder cannot take column {path}, which {why}")
    spec = next(one for one in metadata["partition-specs"] if one["spec-id"] == metadata["default-spec-id"])
    constant = {part["source-id"] for part in spec["fields"] if part["transform"] == "identity"}
    if all(item.field_id in constant for _, item in columns):
        raise BadRequest("strategy zorder needs a column that is not the same in all of a partition")


def _explain_obstacle(path: str, item: NestedField) -> str:
    if path != item.name:
        return "is inside another one"
    if "." in path or "`" in path:
        return "has a dot or a backtick in its name"
    if not isinstance(item.type, PrimitiveType):
        return "has others inside it"
    return "" if item.type.name.startswith(_ZORDERED) else f"is {item.type}"
