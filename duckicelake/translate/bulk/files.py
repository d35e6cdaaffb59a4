"""Data files of manifest entries, made from DuckLake's rows: few of them value by value, many column by column, with equal bytes.

Called by `catalog` for loads, and by Spark executors that publish a large table.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import DataFile, EncodedFile, encode_files
from duckicelake.iceberg.schema import Schema, list_leaf_fields
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, FileNote, PackedColumnStats
from duckicelake.translate.bulk.statistics import encode_metrics
from duckicelake.translate.client_schemas import find_client_partition
from duckicelake.translate.files import LeafTypes, check_readable, choose_spec, to_data_file
from duckicelake.translate.locations import file_uri
from duckicelake.translate.partitions import Partitioning, PublishedSpec
from duckicelake.translate.schemas import Schemas

SINGLY_MAX = 20
"""The largest number of files for which row-by-row work is faster."""

CheckMapping = Callable[[DataFileRow, str, PublishedSpec], None]
"""Refuses an added file, given its row, URI and spec, if Iceberg would read it differently than DuckLake."""


def refuse_mapped(row: DataFileRow, uri: str, spec: PublishedSpec) -> None:
    """Refuse every file that was added by name mapping: only its footer shows if Iceberg reads it as DuckLake does."""
    if row.mapping_id is not None:
        raise Unsupported(f"Data file {row.path!r} was added by its names; only the server looks into such files.")


@dataclass(slots=True)
class DataFileBuilder:
    """Builds the data files of one table. Relative paths of rows start at `folder`."""

    folder: str
    schemas: Schemas
    partitioning: Partitioning
    check_mapping: CheckMapping = refuse_mapped
    known_types: dict[int, LeafTypes] = field(default_factory=dict[int, LeafTypes])

    def make(self, row: DataFileRow, note: FileNote | None, stats: Iterable[ColumnStatsRow]) -> DataFile:
        """Return one file. Raises: Unsupported: Iceberg readers cannot read it"""
        schema = self.schemas.at(row.begin_snapshot)
        uri, partition = self._get_uri_and_partition(row, schema, note)
        return with_client_values(to_data_file(row, uri, partition, stats, self.leaf_types(schema)), row, note)

    def make_many(self, rows: Sequence[DataFileRow], statistics: PackedColumnStats) -> list[EncodedFile]:
        """Return files without client notes, all of one schema, ordered by ascending id. Raises: as `make`"""
        schema = self.schemas.at(rows[0].begin_snapshot)
        files = [
            EncodedFile(*self._get_uri_and_partition(row, schema, None), row.record_count, row.file_size_bytes, row.row_id_start or 0)
            for row in rows
        ]
        metrics = encode_metrics(statistics, [row.data_file_id for row in rows], self.leaf_types(schema))
        return encode_files(files, metrics, self.schemas.format_version)

    def choose_spec(self, row: DataFileRow, schema: Schema, note: FileNote | None) -> tuple[PublishedSpec, tuple[object, ...]]:
        """Return the spec under which a file is published, and its partition tuple."""
        return find_client_partition(note, self.partitioning, schema) or choose_spec(row, self.partitioning, schema)

    def leaf_types(self, schema: Schema) -> LeafTypes:
        """Return the types of a schema's leaves."""
        if schema.schema_id not in self.known_types:
            self.known_types[schema.schema_id] = dict(list_leaf_fields(schema))
        return self.known_types[schema.schema_id]

    def _get_uri_and_partition(self, row: DataFileRow, schema: Schema, note: FileNote | None) -> tuple[str, tuple[object, ...]]:
        check_readable(row, is_client_path=note is not None)
        spec, partition = self.choose_spec(row, schema, note)
        uri = file_uri(self.folder, row.path, row.path_is_relative)
        self.check_mapping(row, uri, spec)
        return uri, partition


def with_client_values(file: DataFile, row: DataFileRow, note: FileNote | None) -> DataFile:
    """Return a file with the values from its client's note; its path is exactly the client's."""
    if note is None:
        return file
    offsets = None if note.split_offsets is None else tuple(json.loads(note.split_offsets))
    return replace(file, file_path=row.path, split_offsets=offsets, sort_order_id=note.sort_order_id)
