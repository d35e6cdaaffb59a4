"""Foreign readers of what we write."""

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile as OracleManifest
from pyiceberg.manifest import read_manifest_list
from pyiceberg.schema import Schema as OracleSchema
from pyiceberg.types import PrimitiveType as OracleType

from tests.support.lakes import open_duckdb


def oracle_type(name: str) -> OracleType:
    """PyIceberg's type of that name."""
    node = {"type": "struct", "fields": [{"id": 1, "name": "c", "required": False, "type": name}]}
    found = OracleSchema.model_validate(node).fields[0].field_type
    assert isinstance(found, OracleType)
    return found


def fastavro_rows(content: bytes) -> list[Any]:
    """The rows that fastavro finds in an Avro file."""
    return list(fastavro.reader(BytesIO(content)))


def fastavro_metadata(content: bytes) -> dict[str, str]:
    """The metadata that fastavro finds in an Avro file."""
    return dict(fastavro.reader(BytesIO(content)).metadata)


def pyiceberg_manifests(path: Path) -> list[Any]:
    """The manifests that PyIceberg finds in a list."""
    return list(read_manifest_list(PyArrowFileIO().new_input(str(path))))


def pyiceberg_entries(path: Path, sequence_number: int = 5, snapshot_id: int = 77) -> list[Any]:
    """The entries that PyIceberg finds in a manifest, deleted ones too."""
    manifest = OracleManifest.from_args(
        manifest_path=str(path),
        manifest_length=path.stat().st_size,
        partition_spec_id=0,
        content=0,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number,
        added_snapshot_id=snapshot_id,
        partitions=[],
    )
    return manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False)


def duckdb_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that DuckDB's Avro reader finds in a file, as JSON."""
    with open_duckdb("avro") as con:
        rows = con.execute("SELECT to_json(file)::VARCHAR FROM read_avro(?) file", [str(path)]).fetchall()
        # DuckDB spells a half as .5, which is no JSON.
        return [json.loads(re.sub(r'(":-?)\.', r"\g<1>0.", row[0])) for row in rows]
