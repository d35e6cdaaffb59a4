"""A table's metadata at the measured snapshot: its statistics files, its size, and its growth; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType

SKETCH = "apache-datasketches-theta-v1"
POINTS = 300
"""As many snapshots as a line can show."""
_UNSKETCHED = ".`"
"""Iceberg's procedure takes these letters in a column's name for SQL."""


@dataclass(frozen=True, slots=True)
class Point:
    """A table at one of its snapshots."""

    at_ms: int
    snapshot_id: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A table's metadata, read for what a profile needs of it at one snapshot."""

    metadata: Mapping[str, Any]
    snapshot: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        return self.snapshot["snapshot-id"]

    @property
    def schema(self) -> Schema:
        """The columns that the snapshot is read with."""
        wanted = self.snapshot.get("schema-id", self.metadata["current-schema-id"])
        return parse_schema(next(one for one in self.metadata["schemas"] if one["schema-id"] == wanted))

    @property
    def is_partitioned(self) -> bool:
        spec = next(one for one in self.metadata["partition-specs"] if one["spec-id"] == self.metadata["default-spec-id"])
        return any(item["transform"] != "void" for item in spec["fields"])

    @property
    def has_partition_statistics(self) -> bool:
        return any(one["snapshot-id"] == self.snapshot_id for one in self.metadata.get("partition-statistics", ()))

    @property
    def statistics_path(self) -> str:
        """Return where the statistics file of the snapshot is; empty when there is none."""
        return next((one["statistics-path"] for one in self._list_statistics()), "")

    @property
    def total(self) -> Point:
        """Return how big the table is."""
        return _measure(self.snapshot)

    @property
    def delete_files(self) -> int:
        return _count(self.snapshot, "total-delete-files")

    def list_columns(self) -> list[NestedField]:
        """Return the columns that have values to count: no structs, lists and maps."""
        return [item for item in self.schema.fields if isinstance(item.type, PrimitiveType)]

    def list_sketched(self) -> list[str]:
        """Return the names of the columns that get a sketch."""
        return [item.name for item in self.list_columns() if not set(_UNSKETCHED) & set(item.name)]

    def read_distinct(self) -> dict[int, int]:
        """Return the number of distinct values by field id, as the sketches of the snapshot estimate it."""
        blobs = [blob for one in self._list_statistics() for blob in one["blob-metadata"] if blob["type"] == SKETCH]
        told = [(blob["fields"], blob.get("properties", {}).get("ndv", "")) for blob in blobs]
        return {fields[0]: int(text) for fields, text in told if len(fields) == 1 and text.isdecimal()}

    def has_sketches(self) -> bool:
        """Return True if every column that can have a sketch has one, of this snapshot."""
        known, wanted = self.read_distinct(), set(self.list_sketched())
        return all(item.field_id in known for item in self.list_columns() if item.name in wanted)

    def list_growth(self) -> tuple[Point, ...]:
        """Return how big the table was at the snapshots of main, oldest first; of very many, some."""
        return thin(tuple(replace(_measure(one), at_ms=at_ms) for at_ms, one in self._list_main()))

    def _list_main(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the snapshots that main was at, each with when it came there: to an older one again, when it was rolled back."""
        by_id = {one["snapshot-id"]: one for one in self.metadata.get("snapshots", ())}
        for entry in self.metadata.get("snapshot-log", ()):
            found = by_id.get(entry["snapshot-id"])
            if found is not None and "total-records" in found.get("summary", {}):
                yield entry["timestamp-ms"], found

    def _list_statistics(self) -> Iterator[Mapping[str, Any]]:
        return (one for one in self.metadata.get("statistics", ()) if one["snapshot-id"] == self.snapshot_id)


def find_state(metadata: Mapping[str, Any], snapshot_id: int | None = None) -> MeasuredTable | None:
    """Return the table at a snapshot, else at its current one; None when it has none such, as a table to which nothing was ever written."""
    wanted = snapshot_id or metadata.get("current-snapshot-id")
    snapshot = next((one for one in metadata.get("snapshots", ()) if one["snapshot-id"] == wanted), None)
    return None if snapshot is None else MeasuredTable(metadata, snapshot)


def thin(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Return at most POINTS of them, evenly chosen; the first and the last stay."""
    if len(points) <= POINTS:
        return points
    return tuple(points[number * (len(points) - 1) // (POINTS - 1)] for number in range(POINTS))


def _measure(snapshot: Mapping[str, Any]) -> Point:
    rows = _count(snapshot, "total-records") - _count(snapshot, "total-position-deletes")
    sizes = _count(snapshot, "total-data-files"), _count(snapshot, "total-files-size")
    return Point(snapshot["timestamp-ms"], snapshot["snapshot-id"], rows, *sizes)


def _count(snapshot: Mapping[str, Any], name: str) -> int:
    return int(snapshot.get("summary", {}).get(name, "0"))
