"""Random columns and rows for the generator, from one seeded source of chance."""

from collections.abc import Sequence
from random import Random

from tests.differential.generator.draw.names import FIELDS, draw_names, free_fields, free_names
from tests.differential.generator.kinds import BEYOND_WORDS, Column, Kind, Listing, Mapping, Scalar, Struct, Value
from tests.differential.generator.model import PartitionKey, Table, count_ids
from tests.differential.generator.nested import Path
from tests.differential.generator.operations import Cells
from tests.differential.generator.predicates import key_column
from tests.differential.generator.values import StrictRandom, draw_present, draw_scalar, draw_value

_KEY_TYPES = ("int32", "int64")
_MAP_KEYS = ("int32", "int64", "varchar", "date")
_NESTED_SHARE = 0.3
_DEEPEST = 2
_DEFAULT_SHARE = 0.2
_REQUIRED_SHARE = 0.25
_DEFAULT_TYPES = {
    *("boolean", "int8", "int16", "int32", "int64", "float32", "float64", "decimal(4,2)", "decimal(9,2)", "decimal(38,10)"),
    *("varchar", "blob", "uuid", "date", "time", "timestamp", "timestamptz"),
}
# Leaves that DuckDB 1.5.5 reads back from an inlined root struct; its other leaves come back wrong or not at all.
_INLINED_STRUCT_LEAVES = ("boolean", "int8", "int16", "int32", "int64", "varchar", "float64")

_IDENTITY_TYPES = {"boolean", "int8", "int16", "int32", "int64", "varchar", "date", "uuid", "decimal(9,2)", "timestamp", "timestamptz"}
# No `uuid`, and nothing else that DuckLake hashes by its text: in DuckDB 1.5.5, an UPDATE or INSERT of filtered rows takes the buckets of
# other rows, or crashes (docs/upstream.md#filters-that-miss-rows).
_BUCKET_TYPES = {"int32", "int64", "varchar", "date", "timestamp", "timestamptz", "blob", "decimal(9,2)"}
_CALENDARS = {
    "date": (("year",), ("month",), ("year", "month"), ("year", "month", "day"), ("day",)),
    "timestamp": (("year",), ("year", "month"), ("year", "month", "day"), ("year", "month", "day", "hour"), ("hour",)),
    "timestamptz": (("year",), ("year", "month", "day"), ("year", "month", "day", "hour")),
}


def draw_columns(rng: Random, count: int, types: Sequence[str], *, inlined: bool) -> tuple[Column, ...]:
    """A key column and `count` others, with ids in the order in which DuckLake gives them."""
    columns = [Column(1, "id", Scalar(rng.choice(_KEY_TYPES)), required=rng.random() < 0.5)]
    next_id = 2
    for name in draw_names(rng, count):
        kind = _draw_kind(rng, next_id, types, inlined=inlined)
        required = rng.random() < _REQUIRED_SHARE
        default = draw_default(rng, kind)
        # DuckLake shows a default that is an expression in no older file; a text alone is never one.
        is_literal = kind == Scalar("varchar") or rng.random() < 0.7
        columns.append(Column(next_id, name, kind, required, initial=default if is_literal else None, default=default))
        next_id += count_ids(kind)
    return tuple(columns)


def draw_default(rng: Random, kind: Kind, share: float = _DEFAULT_SHARE) -> Value:
    """A default for some columns of some types; DuckLake takes no nested ones."""
    if rng.random() >= share or not isinstance(kind, Scalar) or kind.name not in _DEFAULT_TYPES:
        return None
    if kind.name in ("float32", "float64"):
        # Exact in both widths, since DuckLake keeps the text and not the number.
        return rng.choice((0.0, 1.5, -2.25))
    value = draw_scalar(kind.name, rng)
    # DuckLake takes that text for no default at all, and Iceberg's JSON has no words for the others.
    return None if value in ("NULL", *BEYOND_WORDS.get(kind.name, ())) else value


def draw_column(rng: Random, types: Sequence[str], table: Table) -> Column | None:
    """A nullable column to add to a table, under a name it does not have now."""
    names = free_names(table.columns)
    if not names:
        return None
    kind = _draw_kind(rng, table.next_column_id, types, inlined=table.inlined_rows > 0)
    default = draw_default(rng, kind)
    return Column(table.next_column_id, rng.choice(names), kind, initial=default, default=default)


def draw_field(rng: Random, table: Table, place: tuple[Path, Struct], types: Sequence[str]) -> Column | None:
    """A field to add to a struct of the table."""
    path, struct = place
    names = free_fields(struct.fields)
    if not names:
        return None
    in_root_struct = isinstance(table.column(int(path[0])).kind, Struct)
    leaves = _list_leaves(types, inlined=in_root_struct and table.inlined_rows > 0)
    kind = _draw_part(rng, table.next_column_id, leaves, _DEEPEST)
    default = draw_default(rng, kind)
    return Column(table.next_column_id, rng.choice(names), kind, initial=default, default=default)


def _draw_kind(rng: Random, column_id: int, types: Sequence[str], *, inlined: bool) -> Kind:
    if rng.random() >= _NESTED_SHARE:
        return Scalar(rng.choice(types))
    shape = rng.choice((Struct, Listing, Mapping))
    return _draw_nested(rng, shape, column_id, _list_leaves(types, inlined=inlined and shape is Struct), _DEEPEST)


def _list_leaves(types: Sequence[str], *, inlined: bool) -> list[str]:
    """Types of parts. PyArrow builds no array of uuids inside a list or map, so PyIceberg cannot show them."""
    return [name for name in types if name != "uuid" and (not inlined or name in _INLINED_STRUCT_LEAVES)]


def _draw_nested(rng: Random, shape: type, column_id: int, leaves: Sequence[str], depth: int) -> Kind:
    if shape is Listing:
        return Listing(_draw_part(rng, column_id + 1, leaves, depth))
    if shape is Mapping:
        return Mapping(Scalar(rng.choice([name for name in _MAP_KEYS if name in leaves])), _draw_part(rng, column_id + 2, leaves, depth))
    parts, next_id = list[Column](), column_id + 1
    for name in rng.sample(FIELDS, rng.randint(1, 4)):
        part = Column(next_id, name, _draw_part(rng, next_id, leaves, depth))
        parts.append(part)
        next_id += count_ids(part.kind)
    return Struct(tuple(parts))


def _draw_part(rng: Random, column_id: int, leaves: Sequence[str], depth: int) -> Kind:
    if depth <= 1 or rng.random() < 0.7:
        return Scalar(rng.choice(leaves))
    return _draw_nested(rng, rng.choice((Struct, Listing, Mapping)), column_id, leaves, depth - 1)


def next_key(table: Table) -> int:
    """One more than the largest key now in the table; keys of deleted rows come again."""
    key_id = key_column(table).column_id
    return 1 + max((row.values[key_id] for row in table.rows), default=0)


def draw_rows(table: Table, count: int, rng: Random) -> tuple[Cells, ...]:
    """Rows with keys that follow on, now and then with one that is there already."""
    first = next_key(table)
    keys = [rng.randint(1, first) if rng.random() < 0.1 else first + step for step in range(count)]
    return make_rows(table, keys, rng)


def make_rows(table: Table, keys: Sequence[int], rng: Random) -> tuple[Cells, ...]:
    """One row for each key."""
    key_id = key_column(table).column_id
    others = table.columns[1:]
    return tuple(((key_id, key), *((column.column_id, draw_cell(table, column, rng)) for column in others)) for key in keys)


def draw_cell(table: Table, column: Column, rng: Random) -> Value:
    """A value that the column accepts; DuckDB accepts NULL in NOT NULL columns of structs, lists and maps."""
    if column.required and isinstance(column.kind, Scalar):
        return draw_scalar(column.kind.name, rng)
    draw = draw_present if column.required and isinstance(rng, StrictRandom) else draw_value
    return draw(column.kind, rng, plain=table.inlined_rows > 0 and isinstance(column.kind, Struct))


def possible_partitionings(table: Table) -> list[tuple[PartitionKey, ...]]:
    """Partitionings over columns other than the key, which DuckDB's bucket pruning would read wrongly."""
    choices: list[tuple[PartitionKey, ...]] = []
    for column in table.columns[1:]:
        if not isinstance(column.kind, Scalar):
            continue
        name = column.kind.name
        if name in _IDENTITY_TYPES:
            choices.append((PartitionKey(column.column_id, "identity"),))
        if name in _BUCKET_TYPES:
            choices.append((PartitionKey(column.column_id, "bucket(4)"),))
        choices += [tuple(PartitionKey(column.column_id, part) for part in parts) for parts in _CALENDARS.get(name, ())]
    return choices + [
        (*first, *second) for first, second in zip(choices, choices[3:], strict=False) if first[0].column_id != second[0].column_id
    ]
