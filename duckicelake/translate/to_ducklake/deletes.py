"""Deleted positions: the sets that a commit puts together before DuckLake keeps them."""

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
from duckicelake.translate.to_ducklake.texts import decode_bound
from duckicelake.translate.visibility import DeletedRows, Longs


def merge_positions(parts: Iterable[Longs]) -> Longs:
    """Return all positions of these sets, ascending, each once."""
    found = list(parts)
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def check_positions(path: str, positions: Longs, record_count: int) -> None:
    """Raise BadRequest when a position lies outside a file."""
    if len(positions) and (positions[0] < 0 or positions[-1] >= record_count):
        raise BadRequest(f"A delete file names row {positions[-1]} of {path!r}, which has {record_count} rows.")


def has_restored_rows(before: Longs, after: Longs) -> bool:
    """Tell whether a row that was deleted before is not any more."""
    return len(np.setdiff1d(before, after)) > 0


def has_same_positions(before: Longs, after: Longs) -> bool:
    """Tell whether two sets have the same positions."""
    return np.array_equal(before, after)


@dataclass(frozen=True, slots=True)
class DatedDeletes:
    """Deleted positions, ascending, and the lake snapshot at which each was deleted."""

    positions: Longs
    snapshot_ids: Longs


def date_deletes(old: DeletedRows | None, inlined: Sequence[InlinedDeleteRow]) -> DatedDeletes:
    """Return what a delete file and inlined deletes say together of one data file; the earliest date of a position counts."""
    dated: dict[int, int] = {row.row_id: row.begin_snapshot for row in inlined}
    if old is not None:
        ids = np.full(len(old.positions), old.row.begin_snapshot) if old.snapshot_ids is None else old.snapshot_ids
        for position, snapshot_id in zip(old.positions.tolist(), np.maximum(ids, old.row.begin_snapshot).tolist(), strict=True):
            dated[position] = min(snapshot_id, dated.get(position, snapshot_id))
    positions = np.array(sorted(dated), dtype=np.int64)
    return DatedDeletes(positions, np.array([dated[position] for position in positions.tolist()], dtype=np.int64))


def choose_rows(path: str, positions: Longs, rows: Sequence[tuple[int, int | None]]) -> list[int]:
    """Return the ids of the live rows at these positions of an inlined batch: (row id, lake snapshot it ended at) by position.

    Raises: BadRequest: a position is none of the batch, or a dead row would come back
    """
    check_positions(path, positions, len(rows))
    marked = set(positions.tolist())
    if any(ended is not None and place not in marked for place, (_, ended) in enumerate(rows)):
        raise BadRequest(f"The commit brings deleted rows of {path!r} back, which is not taken yet; refresh and delete again.")
    return [row_id for place, (row_id, ended) in enumerate(rows) if ended is None and place in marked]


UNORDERED = frozenset({"uuid", "fixed"})
"""Types whose order readers disagree about."""


@dataclass(frozen=True, slots=True)
class EqualityColumn:
    """A column that rows are compared by, in the type it has now; `default` is what rows of older files hold."""

    field_id: int
    type: PrimitiveType
    default: object | None


def get_equality_columns(file: DataFile, schemas: Sequence[Schema]) -> list[EqualityColumn]:
    """Return the columns of an equality-delete file, each as the newest of the schemas that has it says.

    Raises: BadRequest: no schema has it, or its rows cannot be compared
    """
    found: list[EqualityColumn] = []
    for field_id in file.equality_ids or ():
        where = f"Equality-delete file {file.file_path!r} compares column {field_id}"
        item = next((item for schema in reversed(schemas) if (item := _find_outside_lists(schema.fields, field_id)) is not None), None)
        if item is None:
            raise BadRequest(f"{where}, which is no column of the table outside lists and maps; delete by position.")
        if not isinstance(item.type, PrimitiveType) or item.type.name in ("float", "double"):
            raise BadRequest(f"{where}, whose values have no equality to go by; delete by position.")
        default = None if item.initial_default is None else parse_value(item.type, item.initial_default)
        found.append(EqualityColumn(field_id, item.type, default))
    if not found:
        raise BadRequest(f"Equality-delete file {file.file_path!r} names no column; send its equality_ids.")
    return found


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
    """The values of one column that are deleted: ascending, and whether NULL is one of them."""

    column: EqualityColumn
    values: Sequence[Any]
    has_null: bool

    def may_be_in(self, file: DataFile) -> bool:
        """Tell whether a data file can hold one of them, as its manifest says; what it does not say proves nothing."""
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
    """Where equality deletes count: in the partition they were written for, or everywhere under a spec without fields."""

    spec_id: int
    partition: tuple[object, ...]

    def covers(self, spec_id: int, file: DataFile) -> bool:
        """Tell whether they count for a data file of a spec."""
        return not self.partition or (spec_id == self.spec_id and _to_comparable(file.partition) == _to_comparable(self.partition))


def _to_comparable(partition: tuple[object, ...]) -> list[object]:
    """Return a partition tuple by which NaN is itself and the two zeros differ, as Java has it."""
    return [repr(value) if isinstance(value, float) else value for value in partition]
