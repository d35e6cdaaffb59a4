"""Sets of deleted positions, and equality deletes, as a commit combines them before they become DuckLake's rows. No I/O.

`file_changes` and `delete_resolution` of `catalog.incoming` call it on a worker thread, before the lake's lock.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import parse_value
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType
from duckicelake.lake.rows import InlinedDeleteRow
from duckicelake.translate.values import decode_bound
from duckicelake.translate.visibility import DeletedRows, Longs


def merge_positions(parts: Iterable[Longs]) -> Longs:
    """Return the union of these sets, ascending."""
    sets = list(parts)
    return np.unique(np.concatenate(sets)) if sets else np.empty(0, dtype=np.int64)


def check_positions(path: str, positions: Longs, record_count: int) -> None:
    """Raise BadRequest if a position is not in the file."""
    if len(positions) and (positions[0] < 0 or positions[-1] >= record_count):
        raise BadRequest(f"A delete file names row {positions[-1]} of {path!r}, which has {record_count} rows.")


def has_restored_rows(before: Longs, after: Longs) -> bool:
    """Return True if a row that was deleted before is not deleted any more."""
    return len(np.setdiff1d(before, after)) > 0


def has_same_positions(before: Longs, after: Longs) -> bool:
    """Return True if two sets are equal."""
    return np.array_equal(before, after)


@dataclass(frozen=True, slots=True)
class DatedDeletes:
    """Deleted positions, ascending, with the lake snapshot at which each was deleted."""

    positions: Longs
    snapshot_ids: Longs


def date_deletes(old: DeletedRows | None, inlined: Sequence[InlinedDeleteRow]) -> DatedDeletes:
    """Return the deletes of one data file from its delete file and its inlined deletes; the earliest snapshot of a position counts."""
    dated: dict[int, int] = {row.row_id: row.begin_snapshot for row in inlined}
    if old is not None:
        ids = np.full(len(old.positions), old.row.begin_snapshot) if old.snapshot_ids is None else old.snapshot_ids
        for position, snapshot_id in zip(old.positions.tolist(), np.maximum(ids, old.row.begin_snapshot).tolist(), strict=True):
            dated[position] = min(snapshot_id, dated.get(position, snapshot_id))
    positions = np.array(sorted(dated), dtype=np.int64)
    return DatedDeletes(positions, np.array([dated[position] for position in positions.tolist()], dtype=np.int64))


def choose_rows(path: str, positions: Longs, rows: Sequence[tuple[int, int | None]]) -> list[int]:
    """Return the ids of the live rows at these positions of an inlined batch: (row id, lake snapshot it ended at) by position.

    Raises: BadRequest: a position is not in the batch, or a deleted row would become live again
    """
    check_positions(path, positions, len(rows))
    marked = set(positions.tolist())
    if any(ended is not None and index not in marked for index, (_, ended) in enumerate(rows)):
        raise BadRequest(f"The commit brings deleted rows of {path!r} back, which is not supported yet; refresh and delete again.")
    return [row_id for index, (row_id, ended) in enumerate(rows) if ended is None and index in marked]


UNORDERED = frozenset({"uuid", "fixed"})
"""Types whose order readers disagree about."""


@dataclass(frozen=True, slots=True)
class EqualityColumn:
    """A column that rows are compared by, with its current type; `default` is the value of rows in older files."""

    field_id: int
    type: PrimitiveType
    default: object | None


def get_equality_columns(file: DataFile, schemas: Sequence[Schema]) -> list[EqualityColumn]:
    """Return the columns of an equality-delete file, each from the newest schema that has it.

    Raises: BadRequest: no schema has it, or its values cannot be compared
    """
    columns: list[EqualityColumn] = []
    for field_id in file.equality_ids or ():
        where = f"Equality-delete file {file.file_path!r} compares column {field_id}"
        item = next((item for schema in reversed(schemas) if (item := _find_outside_lists(schema.fields, field_id)) is not None), None)
        if item is None:
            raise BadRequest(f"{where}, which is no column of the table outside lists and maps; delete by position.")
        if not isinstance(item.type, PrimitiveType) or item.type.name in ("float", "double"):
            raise BadRequest(f"{where}, whose values have no equality to go by; delete by position.")
        default = None if item.initial_default is None else parse_value(item.type, item.initial_default)
        columns.append(EqualityColumn(field_id, item.type, default))
    if not columns:
        raise BadRequest(f"Equality-delete file {file.file_path!r} names no column; send its equality_ids.")
    return columns


def _find_outside_lists(fields: Iterable[NestedField], field_id: int) -> NestedField | None:
    for item in fields:
        if item.field_id == field_id:
            return item
        inner = _find_outside_lists(item.type.fields, field_id) if isinstance(item.type, StructType) else None
        if inner is not None:
            return inner
    return None


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The deleted values of one column, ascending; `has_null`: NULL is one of them."""

    column: EqualityColumn
    values: Sequence[Any]
    has_null: bool

    def may_be_in(self, file: DataFile) -> bool:
        """Return True unless the manifest's statistics prove that a data file has none of the values."""
        field_id, type_ = self.column.field_id, self.column.type
        nulls, counted = (file.null_value_counts or {}).get(field_id), (file.value_counts or {}).get(field_id)
        if self.has_null and nulls != 0:
            return True
        if nulls is not None and nulls == counted:
            return False
        lower = decode_bound(type_, (file.lower_bounds or {}).get(field_id))
        upper = decode_bound(type_, (file.upper_bounds or {}).get(field_id))
        if lower is None or upper is None or type_.name.partition("[")[0] in UNORDERED:
            return True
        return bisect_left(self.values, lower) < bisect_right(self.values, upper)


@dataclass(frozen=True, slots=True)
class DeleteScope:
    """The scope of equality deletes: the partition they were written for, or the whole table under a spec without fields."""

    spec_id: int
    partition: tuple[object, ...]

    def covers(self, spec_id: int, file: DataFile) -> bool:
        """Return True if the deletes apply to a data file of a spec."""
        return not self.partition or (spec_id == self.spec_id and _to_comparable(file.partition) == _to_comparable(self.partition))


def _to_comparable(partition: tuple[object, ...]) -> list[object]:
    """Return a partition tuple in which NaN equals itself and the two zeros differ, as in Java."""
    return [repr(value) if isinstance(value, float) else value for value in partition]
