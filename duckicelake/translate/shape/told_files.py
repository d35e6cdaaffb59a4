"""Data files as Iceberg clients told them: what DuckLake has no column for."""

import json
from dataclasses import replace

from duckicelake.iceberg.manifest import DataFile
from duckicelake.lake.rows import DataFileRow, FileNote


def with_told(file: DataFile, row: DataFileRow, note: FileNote | None) -> DataFile:
    """Return a file with what its client said of it; its path is the client's, letter by letter."""
    if note is None:
        return file
    offsets = None if note.split_offsets is None else tuple(json.loads(note.split_offsets))
    return replace(file, file_path=row.path, split_offsets=offsets, sort_order_id=note.sort_order_id)
