"""What DuckDB 1.5.5 cannot do in one transaction; `test_upstream.py` holds it to each."""

from collections.abc import Iterable, Sequence

from tests.differential.generator.definitions import (
    AddColumn,
    DropNamespace,
    DropTable,
    PromoteColumn,
    RenameColumn,
    RenameTable,
    SetRequired,
)
from tests.differential.generator.operations import Delete, Insert, Merge, Update
from tests.differential.generator.steps import OnlyAdding, Operation, RowOperation, Step

_LONGEST_INLINED = 63
"""Bytes of a column's name, as Postgres has it; a table with a longer one keeps no rows inlined."""


def breaks_duckdb(steps: Iterable[Step], before: Sequence[Operation], operation: Operation) -> bool:
    """DuckDB does not survive the operation after those `before` it in the transaction, and after earlier steps.

    A table altered and then renamed gets its columns twice, and no table can be read any more. NOT NULL is only set on a
    table that the transaction has not touched. Rows inlined before a column got a long name have no place to go, and
    single-precision numbers inlined before their column becomes double lose digits. The past of a table that goes with its
    first inlined rows cannot be read.
    """
    table_id = getattr(operation, "table_id", None)
    same = [other for other in before if getattr(other, "table_id", None) == table_id]
    match operation:
        case RenameTable():
            return any(not isinstance(other, RowOperation | RenameTable) for other in same)
        case SetRequired(required=True):
            return bool(same)
        case DropTable():
            return _may_inline(same)
        case DropNamespace():
            return _may_inline(before)
        case AddColumn(column=column):
            return _is_long(column.name) and _may_inline(same)
        case PromoteColumn(type_name="float64"):
            return _may_inline(same)
        case RenameColumn(name=name):
            return _is_long(name) and _may_inline(same)
        case Delete() | Update() | Merge():
            return _has_ids_twice(steps, same, operation.table_id) and _updates(same)
        case _:
            return False


def _has_ids_twice(steps: Iterable[Step], same: Sequence[Operation], table_id: int) -> bool:
    """Two rows may have one row id, provisional in this transaction: once both are in its hands, a DELETE of one takes both.

    MERGE gives such ids out beside those of other additions, and so does a transaction after one that left some behind.
    """
    adding = [operation for operation in same if _adds([operation])]
    merged = len(adding) > 1 and any(isinstance(operation, Merge) for operation in adding)
    return merged or (bool(adding) and any(_leaves_provisional_ids(step, table_id) for step in steps))


def _leaves_provisional_ids(step: Step, table_id: int) -> bool:
    """Rows added and updated in one transaction may keep the row ids they had in it."""
    same = [other for other in step.operations if isinstance(other, RowOperation) and other.table_id == table_id]
    return any(_updates([operation]) and _adds(same[:place]) for place, operation in enumerate(same))


def _is_long(name: str) -> bool:
    return len(name.encode()) > _LONGEST_INLINED


def _may_inline(operations: Iterable[Operation]) -> bool:
    return any(isinstance(operation, Insert | Update | Merge) for operation in operations)


def _adds(operations: Iterable[Operation]) -> bool:
    return any(
        isinstance(operation, OnlyAdding) or (isinstance(operation, Merge) and operation.inserts_unmatched) for operation in operations
    )


def _updates(operations: Iterable[Operation]) -> bool:
    return any(isinstance(operation, Update | Merge) for operation in operations)
