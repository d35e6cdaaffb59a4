"""Parquet that DuckLake does not have: files of inlined rows, and position deletes with Iceberg's field ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.memory import TableMemory
from duckicelake.catalog.outbox import Outbox
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.puffin import encode_deletion_vectors
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.rows import ColumnRow, InlinedTable, SchemaVersionRow, TableState
from duckicelake.store.inlined import InlinedColumn, convert_rows, encode_inlined, split_by_snapshot
from duckicelake.store.inlined import InlinedFile as StoredFile
from duckicelake.store.inlined_types import UnsayableValue
from duckicelake.store.parquet import encode_position_deletes
from duckicelake.store.rewritten import RowPlaces, restore_rows, take_rows
from duckicelake.translate.files import find_lower, find_upper, to_deletion_vector, to_position_deletes
from duckicelake.translate.locations import deletes_uri, file_uri, format_digest, inlined_uri, table_folder
from duckicelake.translate.schemas import V3, Schemas
from duckicelake.translate.shape.leaf_types import find_primitive
from duckicelake.translate.shape.remedies import ColumnTree
from duckicelake.translate.types import columns_at, find_hidden, refuse_value
from duckicelake.translate.visibility import FileKey, InlinedFile, Longs, RestoredFile

NO_LENGTHS: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Deriver:
    """Makes one table's derived files and hands them to the outbox."""

    state: TableState
    location: str
    memory: TableMemory
    outbox: Outbox
    schemas: Schemas

    @property
    def format_version(self) -> int:
        """The table's format version, which says what deletes are."""
        return self.schemas.format_version

    def derive_rows(self, files: Mapping[FileKey, InlinedFile | RestoredFile]) -> None:
        """Make every file of rows that is not remembered, reading each source of them once."""
        fresh: list[InlinedFile | RestoredFile] = []
        for key, file in files.items():
            known = self.memory.derived_rows.get(file.identity())
            if known is None:
                fresh.append(file)
            else:
                self.memory.derived_files[key] = known
        inlined = [file for file in fresh if isinstance(file, InlinedFile)]
        for table in {id(file.table): file.table for file in inlined}.values():
            self._derive_inlined(table, [file for file in inlined if file.table is table])
        restored = [file for file in fresh if isinstance(file, RestoredFile)]
        sources = {file.file.key: (file.version, frozenset(file.data_file_ids.tolist())) for file in restored}
        for source in sorted(set(sources.values()), key=lambda item: (item[0].begin_snapshot, sorted(item[1]))):
            self._restore(*source, [file for file in restored if sources[file.file.key] == source])

    def _derive_inlined(self, table: InlinedTable, files: Sequence[InlinedFile]) -> None:
        tree = columns_at(self.state.columns, (), table.begin_snapshot)
        columns = to_inlined_columns(tree, None, find_hidden(self.state.columns), self.schemas.lengths)
        by_begin = {file.file.begin_snapshot: file for file in files}
        rows = [(row[0], row[1], *row[3:]) for row in table.rows if row[1] in by_begin]
        try:
            converted = convert_rows(columns, rows)
        except UnsayableValue as found:
            present = columns_at(self.state.columns, (), self.state.position.lake_snapshot_id)
            raise refuse_value(self.state.table, present, found.field_id, found.reason) from None
        for begin, part in split_by_snapshot(converted):
            self._keep(by_begin[begin], encode_inlined(columns, part), tree)

    def _restore(self, version: SchemaVersionRow, data_file_ids: frozenset[int], files: Sequence[RestoredFile]) -> None:
        tree = columns_at(self.state.columns, (), version.begin_snapshot)
        columns = to_inlined_columns(tree, None, lengths=self.schemas.lengths)
        folder = table_folder(self.state.data_path, self.state.table)
        uris = {
            row.data_file_id: file_uri(folder, row.path, row.path_is_relative)
            for row in self.state.partial_files
            if row.data_file_id in data_file_ids
        }
        contents = self.outbox.objects.read_many(uris.values())
        rows = restore_rows(columns, {key: contents[uri] for key, uri in uris.items()})
        for file in files:
            part = take_rows(columns, rows, RowPlaces(file.data_file_ids, file.positions, file.row_ids, file.file.begin_snapshot))
            self._keep(file, encode_inlined(columns, part), tree)

    def _keep(self, file: InlinedFile | RestoredFile, made: StoredFile, tree: ColumnTree) -> None:
        uri = inlined_uri(self.location, file.file.begin_snapshot, format_digest(made.content))
        self.outbox.add(uri, made.content)
        found = to_inlined_data_file(uri, made, tree)
        self.memory.derived_files[file.file.key] = found
        if not self.outbox.is_holding:
            self.memory.derived_rows[file.identity()] = found

    def derive_deletes(self, target: AnyFile, positions: Longs) -> DataFile:
        """Return the delete file that marks these positions of a data file."""
        remembered = (target.file_path, f"v{self.format_version} {format_digest(positions.tobytes())} {target.partition}")
        found = self.memory.delete_files.get(remembered)
        if found is None:
            found = (self._derive_vector if self.format_version >= V3 else self._derive_positions)(target, positions)
            if not self.outbox.is_holding:
                # what is held may never be written, and is to be made again then
                self.memory.delete_files[remembered] = found
        return found

    def _derive_positions(self, target: AnyFile, positions: Longs) -> DataFile:
        content = encode_position_deletes(target.file_path, positions)
        uri = deletes_uri(self.location, format_digest(content), "parquet")
        self.outbox.add(uri, content)
        return to_position_deletes(uri, len(content), positions, target)

    def _derive_vector(self, target: AnyFile, positions: Longs) -> DataFile:
        puffin = encode_deletion_vectors([(target.file_path, positions)])
        uri = deletes_uri(self.location, format_digest(puffin.content), "puffin")
        self.outbox.add(uri, puffin.content)
        return to_deletion_vector(uri, puffin, len(positions), target)


def to_inlined_columns(
    tree: ColumnTree, parent: int | None, hidden: frozenset[int] = frozenset(), lengths: Mapping[int, int] = NO_LENGTHS
) -> tuple[InlinedColumn, ...]:
    """Return the columns below a parent (None: the table's own) as the store wants them; `lengths` are those of `fixed` ones by id."""
    return tuple(
        InlinedColumn(
            field_id=row.column_id,
            name=row.column_name,
            ducklake_type=row.column_type,
            children=to_inlined_columns(tree, row.column_id, hidden, lengths),
            is_shown=row.column_id not in hidden,
            length=lengths.get(row.column_id) if row.column_type.lower() == "blob" else None,
        )
        for row in tree.children.get(parent, ())
    )


def to_inlined_data_file(uri: str, made: StoredFile, tree: ColumnTree) -> DataFile:
    """Return a file of inlined rows for a manifest."""
    types = dict(_leaf_types(tree))
    known = {field_id: leaf for field_id, leaf in made.stats.items() if field_id in types}
    bounded = {field_id: leaf for field_id, leaf in known.items() if not leaf.nan_count}
    lower = {field_id: find_lower(types[field_id], leaf.lower) for field_id, leaf in bounded.items()}
    upper = {field_id: find_upper(types[field_id], leaf.upper) for field_id, leaf in bounded.items()}
    return DataFile(
        content=0,
        file_path=uri,
        file_format="PARQUET",
        partition=(),
        record_count=made.record_count,
        file_size_in_bytes=len(made.content),
        first_row_id=0,
        column_sizes={},
        value_counts={field_id: leaf.value_count for field_id, leaf in known.items()} or None,
        null_value_counts={field_id: leaf.null_count for field_id, leaf in known.items()} or None,
        nan_value_counts={field_id: leaf.nan_count for field_id, leaf in known.items() if leaf.nan_count is not None} or None,
        lower_bounds={i: low for i, low in lower.items() if low is not None and upper[i] is not None} or None,
        upper_bounds={i: high for i, high in upper.items() if high is not None and lower[i] is not None} or None,
    )


def _leaf_types(tree: ColumnTree) -> Iterable[tuple[int, PrimitiveType]]:
    rows: list[ColumnRow] = [row for siblings in tree.children.values() for row in siblings]
    for row in rows:
        found = find_primitive(row.column_type.lower())
        if found is not None:
            yield row.column_id, found
