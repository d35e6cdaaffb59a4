"""Equality deletes: the columns that rows are compared by, and which data files can hold a row that they delete."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_values import parse_value
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType
from duckicelake.translate.to_ducklake.texts import decode_bound

UNORDERED = frozenset({"uuid", "fixed"})
"""Types whose order readers disagree about."""


@dataclass(frozen=True, slots=True)
class EqualityColumn:
    """A column that rows are compared by, in the type it has now; `default` is what rows of older files hold."""

    field_id: int
    type: PrimitiveType
    default: object | None


def find_columns(file: DataFile, schemas: Sequence[Schema]) -> list[EqualityColumn]:
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
class Scope:
    """Where equality deletes count: in the partition they were written for, or everywhere under a spec without fields."""

    spec_id: int
    partition: tuple[object, ...]

    def covers(self, spec_id: int, file: DataFile) -> bool:
        """Tell whether they count for a data file of a spec."""
        return not self.partition or (spec_id == self.spec_id and _to_comparable(file.partition) == _to_comparable(self.partition))


def _to_comparable(partition: tuple[object, ...]) -> list[object]:
    """Return a partition tuple by which NaN is itself and the two zeros differ, as Java has it."""
    return [repr(value) if isinstance(value, float) else value for value in partition]
