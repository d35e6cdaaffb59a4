"""What is asked in a crash, who makes the tables that it needs, and what everybody sees before and after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyConnection

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DataFile
from duckicelake.store.parquet import encode_position_deletes
from tests.rest.serving import Server
from tests.rest.writing.client import Client, write_file

FRESH_ROWS = [(1001, "new"), (1002, None)]
BASE_ROWS: list[Any] = [(i, f"r{i}") for i in range(20)] + [(100, "inlined")]

Rows = Sequence[Any] | None
Fact = Callable[[Server, DuckDBPyConnection], Rows]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the rows of the tables it concerns, None where there is no such table.

    `is_known`: whoever asks again without a key is answered that it is done; else its own work stands in its way.
    `facts`: what else it changes, and how that is found out; told in `before` and `after` like tables.
    `lake_snapshots`: how many it makes; what Iceberg alone knows of makes none.
    """

    method: str
    path: str
    body: Any
    before: Mapping[str, Rows]
    after: Mapping[str, Rows]
    is_known: bool = True
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    lake_snapshots: int = 1


@dataclass(frozen=True, slots=True)
class Stand:
    """Who makes the tables that a request needs."""

    client: Client
    duck: DuckDBPyConnection

    def make(self, name: str, format_version: int = 2) -> Any:
        """Make a table with a data file and an inlined row, and return its metadata."""
        properties = {"format-version": str(format_version)}
        assert self.client.create(name, properties=properties).status == 200
        self.duck.execute(f"INSERT INTO {name} SELECT range, 'r' || range FROM range(20)")
        self.duck.execute(f"INSERT INTO {name} VALUES (100, 'inlined')")
        return self.client.load(name)

    def write(self, metadata: Any) -> DataFile:
        """Write a data file with the fresh rows."""
        columns = {1: pa.array([row[0] for row in FRESH_ROWS]), 2: pa.array([row[1] for row in FRESH_ROWS])}
        return write_file(self.client, metadata, f"fresh-{uuid4()}", columns)

    def find_file(self, name: str) -> str:
        """Return the data file that DuckDB wrote."""
        found = self.duck.execute(f"FROM ducklake_list_files('lake', '{name}')").fetchone()
        assert found is not None
        return str(found[0])

    def find_derived_file(self, metadata: Any) -> str:
        """Return the file that stands for the inlined row."""
        current = next(item for item in metadata["snapshots"] if item["snapshot-id"] == metadata["current-snapshot-id"])
        manifests = decode_manifest_list(self.client.objects.read(current["manifest-list"]))
        entries = [entry for one in manifests for entry in decode_manifest(self.client.objects.read(one.manifest_path))[1]]
        return next(entry.data_file.file_path for entry in entries if "/inlined-" in entry.data_file.file_path)

    def write_deletes(self, metadata: Any, path: str, positions: Sequence[int]) -> DataFile:
        """Write a position delete file for a data file."""
        content = encode_position_deletes(path, np.array(positions))
        uri = f"{metadata['location']}/data/{uuid4()}.parquet"
        self.client.objects.put_new(uri, content)
        return DataFile(1, uri, "PARQUET", (), len(positions), len(content))


def table_path(name: str) -> str:
    """Where a table is asked for."""
    return f"namespaces/main/tables/{name}"


def to_body(updates: Sequence[Any], requirements: Sequence[Any] = ()) -> dict[str, Any]:
    """A commit of one table."""
    return {"requirements": list(requirements), "updates": list(updates)}


def require_main(metadata: Any) -> dict[str, Any]:
    """The requirement that nobody wrote since."""
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": metadata["current-snapshot-id"]}


def new_id() -> int:
    """A snapshot id as clients choose them."""
    return uuid4().int >> 65
