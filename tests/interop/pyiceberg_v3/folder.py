"""A catalog of one table in a local folder, as PyIceberg writes it: nobody publishes its manifests again."""

import json
from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata


class FolderCatalog(NoopCatalog):
    """Keeps metadata files under the names that Hadoop's tables have, so that Spark reads the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("folder")
        self.location, self.version = folder.as_uri(), 0
        self.io = load_file_io({}, self.location)

    def make(self, schema: Schema, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> Table:
        """A new table of version 3."""
        properties = {"format-version": "3"}
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, self.location, properties).model_copy(update={"next_row_id": 0})
        return Table(("t",), metadata, self._write(metadata), self.io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates)
        return CommitTableResponse(metadata=metadata, metadata_location=self._write(metadata))

    def _write(self, metadata: TableMetadata) -> str:
        self.version += 1
        path = f"{self.location}/metadata/v{self.version}.metadata.json"
        with self.io.new_output(path).create() as file:
            file.write(json.dumps(metadata.model_dump(mode="json", by_alias=True, exclude_none=True)).encode())
        with self.io.new_output(f"{self.location}/metadata/version-hint.text").create(overwrite=True) as hint:
            hint.write(str(self.version).encode())
        return path
