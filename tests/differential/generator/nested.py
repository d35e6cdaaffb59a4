"""What DuckDB can do to the fields of structs, wherever in a column they are: as SQL, and as a change of the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.differential.generator.kinds import Column, Kind, Listing, Mapping, Scalar, Struct, format_sql_type, quote
from tests.differential.generator.literals import format_default
from tests.differential.generator.model import Lake, Table, count_ids

# From the root column's id down to a struct: a field's id, or "element", or "value".
Path = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class AddField:
    """ALTER TABLE … ADD COLUMN a.b; older rows show its default, or NULL."""

    table_id: int
    path: Path
    field: Column

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        has_default = isinstance(self.field.kind, Scalar) and self.field.default is not None
        default = f" DEFAULT {format_default(self.field.kind.name, self.field.default)}" if has_default else ""
        name = f"{format_path(table, self.path)}.{quote(self.field.name)}"
        return f"ALTER TABLE {table.sql_name} ADD COLUMN {name} {format_sql_type(self.field.kind)}{default}"

    def apply(self, lake: Lake) -> Lake:
        table = _change(lake.tables[self.table_id], self.path, lambda struct: Struct((*struct.fields, self.field)))
        return lake.with_table(replace(table, next_column_id=table.next_column_id + count_ids(self.field.kind)))


@dataclass(frozen=True, slots=True)
class DropField:
    """ALTER TABLE … DROP COLUMN a.b."""

    table_id: int
    path: Path
    field_id: int

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        return f"ALTER TABLE {table.sql_name} DROP COLUMN {format_path(table, (*self.path, self.field_id))}"

    def apply(self, lake: Lake) -> Lake:
        kept = _change(lake.tables[self.table_id], self.path, lambda struct: Struct(_without(struct.fields, self.field_id)))
        return lake.with_table(kept)


@dataclass(frozen=True, slots=True)
class RenameField:
    """ALTER TABLE … RENAME COLUMN a.b TO c."""

    table_id: int
    path: Path
    field_id: int
    name: str

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        return f"ALTER TABLE {table.sql_name} RENAME COLUMN {format_path(table, (*self.path, self.field_id))} TO {quote(self.name)}"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(_change_field(lake.tables[self.table_id], self.path, self.field_id, name=self.name))


@dataclass(frozen=True, slots=True)
class PromoteField:
    """ALTER COLUMN … TYPE of the whole column, in which one field has a wider type."""

    table_id: int
    path: Path
    field_id: int
    type_name: str

    def sql(self, lake: Lake) -> str:
        table, after = lake.tables[self.table_id], self.apply(lake).tables[self.table_id]
        root = self.path[0]
        assert isinstance(root, int)
        name, kind = quote(table.column(root).name), after.column(root).kind
        return f"ALTER TABLE {table.sql_name} ALTER COLUMN {name} TYPE {format_sql_type(kind)}"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(_change_field(lake.tables[self.table_id], self.path, self.field_id, kind=Scalar(self.type_name)))


def list_structs(table: Table) -> list[tuple[Path, Struct]]:
    """Every struct of a table, with the path to it."""
    return [found for column in table.columns for found in _walk((column.column_id,), column.kind)]


def _walk(path: Path, kind: Kind) -> Iterator[tuple[Path, Struct]]:
    match kind:
        case Scalar():
            return
        case Struct(fields):
            yield path, kind
            for part in fields:
                yield from _walk((*path, part.column_id), part.kind)
        case Listing(element):
            yield from _walk((*path, "element"), element)
        case Mapping(_, value):
            yield from _walk((*path, "value"), value)


def format_path(table: Table, path: Path) -> str:
    """The path in SQL, under the names of now."""
    return ".".join(quote(name) if isinstance(step, int) else name for step, name in zip(path, walk_names(table, path), strict=True))


def walk_names(table: Table, path: Path) -> Iterator[str]:
    """The names of now along a path; `element` and `value` stand for themselves."""
    return (name for name, _ in walk_path(table, path))


def find_field(table: Table, path: Path, field_id: int) -> Kind:
    """The type of a field of the struct at a path."""
    *_, (_, kind) = walk_path(table, (*path, field_id))
    return kind


def walk_path(table: Table, path: Path) -> Iterator[tuple[str, Kind]]:
    """Name and type of each step of a path."""
    kind: Kind = Struct(table.columns)
    for step in path:
        if isinstance(step, int):
            assert isinstance(kind, Struct)
            part = next(part for part in kind.fields if part.column_id == step)
            name, kind = part.name, part.kind
        else:
            assert isinstance(kind, Listing | Mapping)
            name, kind = step, kind.element if isinstance(kind, Listing) else kind.value
        yield name, kind


def _without(fields: tuple[Column, ...], field_id: int) -> tuple[Column, ...]:
    return tuple(part for part in fields if part.column_id != field_id)


def _change_field(table: Table, path: Path, field_id: int, **changed: str | Scalar) -> Table:
    def change(struct: Struct) -> Struct:
        return Struct(tuple(replace(part, **changed) if part.column_id == field_id else part for part in struct.fields))

    return _change(table, path, change)


def _change(table: Table, path: Path, change: Callable[[Struct], Struct]) -> Table:
    root = path[0]
    assert isinstance(root, int)
    column = table.column(root)
    return table.with_column(replace(column, kind=_change_kind(column.kind, path[1:], change)))


def _change_kind(kind: Kind, path: Path, change: Callable[[Struct], Struct]) -> Kind:
    match kind:
        case Struct() if not path:
            return change(kind)
        case Struct(fields):
            rest = path[1:]
            return Struct(
                tuple(replace(part, kind=_change_kind(part.kind, rest, change)) if part.column_id == path[0] else part for part in fields)
            )
        case Listing(element):
            return Listing(_change_kind(element, path[1:], change))
        case Mapping(key, value):
            return Mapping(key, _change_kind(value, path[1:], change))
        case Scalar():
            raise AssertionError("a scalar has no fields")
