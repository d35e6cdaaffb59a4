"""Delete files: which rows of which data files they mark."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from duckicelake.iceberg.puffin import decode_deletion_vector

PATH, POSITION = "file_path", "pos"


@dataclass(frozen=True, slots=True)
class Marked:
    """The rows of one data file that a delete file marks: how many, and the last of them. `path` None: the file does not name it."""

    path: str | None
    rows: int
    last: int


def read_positions(file: pq.ParquetFile) -> list[Marked]:
    """What a Parquet file of positions marks."""
    found: dict[str, Marked] = {}
    for batch in file.iter_batches(columns=[PATH, POSITION]):
        table: Any = batch
        for path in table.column(PATH).unique().to_pylist():
            mine = table.filter(pc.equal(table.column(PATH), path)).column(POSITION)
            before = found.get(path, Marked(path, 0, -1))
            found[path] = Marked(path, before.rows + len(mine), max(before.last, max(mine.to_pylist(), default=-1)))
    return list(found.values())


def read_vector(blob: bytes, path: str | None) -> Marked:
    """What a deletion vector marks."""
    bitmap = decode_deletion_vector(blob)
    return Marked(path, len(bitmap), bitmap.max() if len(bitmap) else -1)


def check_count(marked: list[Marked], entry: Mapping[str, Any]) -> Iterator[str]:
    """What is said of how many rows are marked and is not so."""
    rows = sum(one.rows for one in marked)
    if entry["record_count"] is not None and entry["record_count"] != rows:
        yield f"marks {rows} rows, the manifest says {entry['record_count']}"
    if entry["lake_rows"] is not None and entry["lake_rows"] != rows:
        yield f"marks {rows} rows, DuckLake says {entry['lake_rows']}"
