"""Required columns that may hold a NULL all the same: from the first such file or inlined row on they are published as optional.

Iceberg's readers rely on `required`: Spark reads 0 for a NULL there, and finds no row by IS NULL.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from duckicelake.iceberg.schema import Schema, can_identify, find_field
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType
from duckicelake.lake.rows import InlinedTable, NullableRow, TableState
from duckicelake.translate.types import columns_at, find_path, format_path
from duckicelake.values import replace


def loosen(schema: Schema, nullable: Collection[int]) -> Schema:
    """Return a schema in which these columns are optional, so that they identify no row any more."""
    if not nullable:
        return schema
    loosened = replace(schema, fields=_loosen_fields(schema.fields, nullable))
    still = ((i, find_field(loosened, i)) for i in schema.identifier_field_ids)
    return replace(loosened, identifier_field_ids=tuple(i for i, item in still if item is not None and can_identify(item)))


def _loosen_fields(fields: Iterable[NestedField], nullable: Collection[int]) -> tuple[NestedField, ...]:
    return tuple(
        replace(item, type=_loosen_type(item.type, nullable), required=item.required and item.field_id not in nullable) for item in fields
    )


def _loosen_type(type_: IcebergType, nullable: Collection[int]) -> IcebergType:
    match type_:
        case StructType(fields):
            return StructType(_loosen_fields(fields, nullable))
        case ListType(element_id, element_type, required):
            return ListType(element_id, _loosen_type(element_type, nullable), required and element_id not in nullable)
        case MapType(key_id, key_type, value_id, value_type, required):
            key, value = _loosen_type(key_type, nullable), _loosen_type(value_type, nullable)
            return MapType(key_id, key, value_id, value, required and value_id not in nullable)
        case PrimitiveType():
            return type_


def with_nullable(state: TableState, required: Mapping[int, int], earlier: Sequence[NullableRow]) -> TableState:
    """Return a state whose `nullable` columns are those of its files, of its inlined rows, and of an earlier load of the table.

    `required` are the columns that must hold no NULL, each with the lake snapshot before which its default stands for it.
    """
    found: dict[int, int] = {}
    inlined = [row for table in state.inlined_tables for row in _find_in_table(state, table, required)] if required else ()
    for column_id, begin in (*state.nullable, *earlier, *inlined):
        found[column_id] = min(begin, found.get(column_id, begin))
    rows = [NullableRow(*item) for item in sorted(found.items())]
    return state if rows == state.nullable else replace(state, nullable=rows)


def _find_in_table(state: TableState, table: InlinedTable, required: Mapping[int, int]) -> list[NullableRow]:
    """Return the required columns that a row of a table of inlined rows has a NULL of, and the parts of columns: nothing counts theirs."""
    tree = columns_at(state.columns, (), table.begin_snapshot)
    places = {row.column_id: place for place, row in enumerate(tree.children.get(None, ()), 3)}
    parts = {row.column_id for row in state.columns if row.parent_column is not None}
    found: list[NullableRow] = []
    for column_id, defaulted_until in required.items():
        place = places.get(column_id)
        if place is None and column_id not in parts and table.begin_snapshot < defaulted_until:
            continue
        begins = [begin for row in table.rows if place is None or row[place] is None if isinstance(begin := row[1], int)]
        found += [NullableRow(column_id, min(begins))] if begins else []
    return found


def list_nullable_names(state: TableState) -> list[str]:
    """Return the full names of the columns that must hold no NULL, by what DuckLake or a client's schema says, and may hold one."""
    tree = columns_at(state.columns, (), state.position.lake_snapshot_id)
    paths = [find_path(row.column_id, tree) for row in state.nullable]
    return [format_path(path) for path in paths if len(path) > 1 or (path and not path[-1].nulls_allowed)]
