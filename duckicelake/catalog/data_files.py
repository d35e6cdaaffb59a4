"""Details of data files, read in slices when a manifest needs them: a table may have more than fit in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import psycopg

from duckicelake.catalog.memory import TableMemory
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.schema import Schema, leaf_fields
from duckicelake.lake.read_table import read_column_stats, read_data_files
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_column_ids
from duckicelake.translate.files import LeafTypes, check_hive_columns, check_readable, choose_spec, to_data_file
from duckicelake.translate.locations import file_uri
from duckicelake.translate.partitions import Partitioning, PublishedSpec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.shape.name_mapping import FileColumns, NameMapping, check_mapped_file
from duckicelake.translate.visibility import FileKey

REMEMBERED_MAX = 20_000
SLICE = 4_000


@dataclass(slots=True)
class DataFiles:
    """One table's data files, real ones by their rows in `conn`'s transaction, derived ones from memory."""

    conn: psycopg.Connection
    table_id: int
    folder: str
    schemas: Schemas
    partitioning: Partitioning
    memory: TableMemory
    objects: Objects
    mapping: NameMapping
    spec_ids: dict[FileKey, int] = field(default_factory=dict[FileKey, int])
    leaf_types: dict[int, LeafTypes] = field(default_factory=dict[int, LeafTypes])

    def place(self, keys: Iterable[FileKey]) -> None:
        """Find out the specs of many files at once, before they are asked for one by one."""
        real = sorted(key for key in keys if key >= 0 and key not in self.spec_ids)
        if self.partitioning.by_partition_id:
            for part in _slices(real):
                for row in read_data_files(self.conn, part):
                    spec, _ = choose_spec(row, self.partitioning, self.schemas.at(row.begin_snapshot))
                    self.spec_ids[row.data_file_id] = spec.spec_id

    def spec_of(self, key: FileKey) -> int:
        """Return the id of the spec a file is published under."""
        if key < 0 or not self.partitioning.by_partition_id:
            return 0
        if key not in self.spec_ids:
            self.place([key])
        return self.spec_ids[key]

    def get(self, key: FileKey) -> DataFile:
        """Return one file for a manifest."""
        if key < 0:
            return self.memory.derived_files[key]
        if key not in self.memory.data_files:
            self.prepare([key])
        return self.memory.data_files[key]

    def prepare(self, keys: Iterable[FileKey]) -> None:
        """Have these files in memory, reading all that are missing in one go."""
        files = self.memory.data_files
        missing = sorted({key for key in keys if key >= 0 and key not in files})
        while files and len(files) + len(missing) > REMEMBERED_MAX:
            files.popitem(last=False)
        for part in _slices(missing):
            stats: dict[int, list[ColumnStatsRow]] = {key: [] for key in part}
            for row in read_column_stats(self.conn, self.table_id, part):
                stats[row.data_file_id].append(row)
            for row in read_data_files(self.conn, part):
                check_readable(row)
                schema = self.schemas.at(row.begin_snapshot)
                spec, partition = choose_spec(row, self.partitioning, schema)
                uri = file_uri(self.folder, row.path, row.path_is_relative)
                self._check_mapping(row, uri, spec)
                types = self._leaf_types(schema)
                files[row.data_file_id] = to_data_file(row, uri, partition, stats[row.data_file_id], types)

    def _leaf_types(self, schema: Schema) -> LeafTypes:
        if schema.schema_id not in self.leaf_types:
            self.leaf_types[schema.schema_id] = dict(leaf_fields(schema))
        return self.leaf_types[schema.schema_id]

    def _check_mapping(self, row: DataFileRow, uri: str, spec: PublishedSpec) -> None:
        """Refuse an added file that Iceberg would read otherwise than DuckLake; each is looked into once."""
        if row.mapping_id is None or row.data_file_id in self.memory.checked_files:
            return
        check_hive_columns(row, self.mapping.hive_columns.get(row.mapping_id, frozenset()), spec)
        columns = FileColumns(read_column_ids(self.objects.open(uri, row.file_size_bytes)))
        check_mapped_file(row.path, row.mapping_id, columns, self.mapping)
        self.memory.checked_files.add(row.data_file_id)


def _slices(keys: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(keys), SLICE):
        yield keys[start : start + SLICE]
