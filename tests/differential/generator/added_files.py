"""Files that DuckDB writes beside a lake and then hands to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.differential.generator.kinds import Column, Kind, Listing, Scalar, Struct, Value
from tests.differential.generator.kinds import Mapping as MapKind
from tests.differential.generator.literals import format_literal, format_query
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.operations import Cells

NamePath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddFile:
    """COPY to a file without field ids, then `ducklake_add_data_files`.

    Columns `left_out` are not in the file and show their initial default; a partition key is in its path alone.
    """

    table_id: int
    rows: tuple[Cells, ...]
    left_out: frozenset[int] = frozenset()
    in_capitals: bool = False

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        columns = [replace(column, name=self._spell(column.name)) for column in list_in_file(table, self.left_out)]
        place = f"(getvariable('outside') || {_text(self._folders(table) + f'f{lake.next_version}.parquet')})"
        options = "allow_missing => true, hive_partitioning => " + str(bool(table.partitioning)).lower()
        names = f"'lake', {_text(table.name)}, {place[1:-1]}, schema => {_text(table.namespace)}, {options}"
        rows = format_query(columns, (dict(row) for row in self.rows))
        return f"COPY ({rows}) TO {place} (FORMAT parquet); CALL ducklake_add_data_files({names})"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        kept = ({key: value for key, value in row if key not in self.left_out} for row in self.rows)
        grown = lake.add_rows(table, kept)
        names = {**table.file_names, **dict(list_paths(list_in_file(table, self.left_out)))}
        changed = replace(grown.tables[self.table_id], file_names=names, has_added_files=True)
        checked = (column.column_id for column in table.columns if column.required and isinstance(column.kind, Scalar))
        changed = replace(changed, strayed=table.strayed | {column_id for column_id in checked if changed.holds_null(column_id)})
        return grown.with_table(replace(changed, seen_null=changed.seen_null | self.left_out, lacking=changed.lacking | self.left_out))

    def _spell(self, name: str) -> str:
        return name.upper() if self.in_capitals and name.isascii() else name

    def _folders(self, table: Table) -> str:
        cells: Mapping[int, Value] = dict(self.rows[0])
        columns = [table.column(key.column_id) for key in table.partitioning]
        return "".join(f"{column.name}={cells[column.column_id]}/" for column in columns)


def list_in_file(table: Table, left_out: frozenset[int]) -> list[Column]:
    """The columns that an added file has."""
    away = left_out | {key.column_id for key in table.partitioning}
    return [column for column in table.columns if column.column_id not in away]


def list_paths(columns: list[Column]) -> Iterator[tuple[NamePath, int]]:
    """Every name at every level, in lower case, and what it means."""
    for column in columns:
        yield from _walk((column.name.lower(),), column.column_id, column.kind)


def _walk(path: NamePath, column_id: int, kind: Kind) -> Iterator[tuple[NamePath, int]]:
    yield path, column_id
    match kind:
        case Scalar():
            return
        case Struct(fields):
            for part in fields:
                yield from _walk((*path, part.name.lower()), part.column_id, part.kind)
        case Listing(element):
            yield from _walk((*path, "element"), column_id + 1, element)
        case MapKind(_, value):
            yield from _walk((*path, "value"), column_id + 2, value)


def names_agree(table: Table, left_out: frozenset[int]) -> bool:
    """Whether a new file's names mean what they meant in the files added before; Iceberg has one mapping for all."""
    return all(table.file_names.get(path, column_id) == column_id for path, column_id in list_paths(list_in_file(table, left_out)))


def can_be_added(kind: Kind) -> bool:
    """Whether a file that DuckDB writes says the type so that DuckLake takes it back as it, and the catalog too."""
    match kind:
        case Scalar(name):
            return name not in ("int128", "uint128", "timetz", "timestamp_s")
        case Struct(fields):
            return all(can_be_added(part.kind) for part in fields)
        case Listing(element):
            return can_be_added(element)
        case MapKind(key, value):
            return can_be_added(key) and can_be_added(value)


def _text(value: str) -> str:
    return format_literal(Scalar("varchar"), value)
