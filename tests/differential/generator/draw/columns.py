"""Draws of what is done to columns and to the fields in them."""

from hypothesis import strategies as st

from tests.differential.generator import schemas
from tests.differential.generator.definitions import AddColumn, DropColumn, PromoteColumn, RenameColumn, SetDefault, SetRequired
from tests.differential.generator.draw.names import free_fields, free_names
from tests.differential.generator.draw.tables import Draw, can_be_written, draw_rng, draw_table, without_default
from tests.differential.generator.kinds import NARROW, PARTIAL, PROMOTIONS, Scalar, Struct, has_leaf, is_nested
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.nested import AddField, DropField, Path, PromoteField, RenameField, list_structs
from tests.differential.generator.steps import Operation


def draw_add_column(draw: Draw, lake: Lake) -> Operation | None:
    """ADD COLUMN, with a default or without."""
    table = draw_table(draw, lake)
    column = schemas.draw_column(draw_rng(draw, lake), lake.column_types, table)
    if column is None or (lake.has_clients and not can_be_written(column)):
        return None
    return AddColumn(table.table_id, without_default(column) if lake.has_clients else column)


def draw_drop_column(draw: Draw, lake: Lake) -> Operation | None:
    """DROP COLUMN."""
    table = draw_table(draw, lake)
    free = [column for column in table.columns[1:] if column.column_id not in table.fixed_columns]
    targets = [column for column in free if not has_leaf(column.kind, PARTIAL)]
    return DropColumn(table.table_id, draw(st.sampled_from(targets)).column_id) if targets else None


def draw_rename_column(draw: Draw, lake: Lake) -> Operation | None:
    """RENAME COLUMN."""
    table = draw_table(draw, lake)
    column_id = draw(st.sampled_from(table.columns)).column_id
    return RenameColumn(table.table_id, column_id, draw(st.sampled_from(free_names(table.columns))))


def draw_promote(draw: Draw, lake: Lake) -> Operation | None:
    """A wider type."""
    table = draw_table(draw, lake)
    scalars = ((column.column_id, column.kind.name) for column in table.columns if isinstance(column.kind, Scalar))
    targets = [(column_id, wider) for column_id, name in scalars for wider in _list_wider(table, name)]
    return PromoteColumn(table.table_id, *draw(st.sampled_from(targets))) if targets else None


def _list_wider(table: Table, name: str) -> list[str]:
    """What a type can become; of one that a client may have widened already, what the wider one can become too."""
    wider = PROMOTIONS.get(name, ())
    return [other for other in wider if other == "int64" or not (table.may_be_wide and name in NARROW)]


def draw_required(draw: Draw, lake: Lake) -> Operation | None:
    """SET or DROP NOT NULL; DuckDB does not set it without statistics of its own, which clients' rows end."""
    table = draw_table(draw, lake)
    set_already = [column for column in table.columns[1:] if column.required]
    can_be = [
        column
        for column in table.columns[1:]
        if not column.required and column.column_id not in table.seen_null and not is_nested(column.kind)
    ]
    targets = set_already + (can_be if table.has_had_rows and not lake.has_clients else [])
    if not targets:
        return None
    column = draw(st.sampled_from(targets))
    return SetRequired(table.table_id, column.column_id, not column.required)


def draw_set_default(draw: Draw, lake: Lake) -> Operation | None:
    """SET or DROP DEFAULT, where there are any."""
    if lake.has_clients:
        return None
    table = draw_table(draw, lake)
    column = draw(st.sampled_from(table.columns[1:] or table.columns))
    if column.default is not None and draw(st.booleans()):
        return SetDefault(table.table_id, column.column_id, None)
    value = schemas.draw_default(draw_rng(draw, lake), column.kind, share=1.0)
    return None if value is None else SetDefault(table.table_id, column.column_id, value)


def draw_add_field(draw: Draw, lake: Lake) -> Operation | None:
    """ADD COLUMN a.b."""
    found = _draw_struct(draw, lake)
    if found is None:
        return None
    table, path, struct = found
    field = schemas.draw_field(draw_rng(draw, lake), table, (path, struct), lake.column_types)
    if field is None or (lake.has_clients and not can_be_written(field)):
        return None
    return AddField(table.table_id, path, without_default(field) if lake.has_clients else field)


def draw_drop_field(draw: Draw, lake: Lake) -> Operation | None:
    """DROP COLUMN a.b, when the struct keeps another: DuckLake breaks over a struct without fields."""
    found = _draw_struct(draw, lake)
    if found is None or len(found[2].fields) < 2:
        return None
    table, path, struct = found
    targets = [field for field in struct.fields if not has_leaf(field.kind, PARTIAL)]
    return DropField(table.table_id, path, draw(st.sampled_from(targets)).column_id) if targets else None


def draw_rename_field(draw: Draw, lake: Lake) -> Operation | None:
    """RENAME COLUMN a.b; a field's default would go by it."""
    found = _draw_struct(draw, lake)
    if found is None:
        return None
    table, path, struct = found
    field, name = draw(st.sampled_from(struct.fields)), draw(st.sampled_from(free_fields(struct.fields)))
    return RenameField(table.table_id, path, field.column_id, name) if field.initial is None else None


def draw_promote_field(draw: Draw, lake: Lake) -> Operation | None:
    """A wider type of a field; its default would go by it."""
    targets = [
        PromoteField(table.table_id, path, field.column_id, wider)
        for table in lake.tables.values()
        for path, struct in list_structs(table)
        # DuckDB is told the whole type, also of fields that a client has widened.
        if not (table.may_be_wide and has_leaf(table.column(int(path[0])).kind, NARROW))
        for field in struct.fields
        if isinstance(field.kind, Scalar) and field.initial is None
        for wider in _list_wider(table, field.kind.name)
    ]
    return draw(st.sampled_from(targets)) if targets else None


def _draw_struct(draw: Draw, lake: Lake) -> tuple[Table, Path, Struct] | None:
    found = [(table, *struct) for _, table in sorted(lake.tables.items()) for struct in list_structs(table)]
    return draw(st.sampled_from(found)) if found else None
