"""Table states made by hand, and random lives of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import numpy as np

from duckicelake.lake.note_rows import RefNotes
from duckicelake.lake.rows import Position, SnapshotRow, TableNote, TableNotes, TableRow, TableState
from duckicelake.translate.visibility import FOREVER, TrackedFile, Visibility

TABLE_ID = 7
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def snapshot(snapshot_id: int, changes_made: str | None = f"inserted_into_table:{TABLE_ID}", time: datetime | None = None) -> SnapshotRow:
    """A lake snapshot, one second after the one before."""
    return SnapshotRow(snapshot_id, time or EPOCH + timedelta(seconds=snapshot_id), changes_made)


def make_state(snapshots: Sequence[SnapshotRow], **given: object) -> TableState:
    """A table with these snapshots, and nothing else but what is given."""
    empty: dict[str, Any] = {item.name: [] for item in fields(TableState)}
    known = {
        "position": Position(max((row.snapshot_id for row in snapshots), default=0), 0),
        "next_file_id": 0,
        "next_row_id": 0,
        "since": -1,
        "data_path": "s3://b/data/",
        "iceberg_path": "s3://b/iceberg/",
        "table": TableRow(TABLE_ID, UUID(int=1), "t", "t/", True, "main", "main/", True),
        "snapshots": snapshots,
        "oldest": snapshots[0] if snapshots else snapshot(0),
        "notes": make_notes(None),
    }
    return TableState(**empty | known | given)


def make_notes(table: TableNote | None) -> TableNotes:
    """Notes that hold no more than a table's numbers."""
    empty: dict[str, Any] = {item.name: [] for item in fields(TableNotes)}
    return TableNotes(**empty | {"table": table, "refs": RefNotes()})


def visibility(born: Mapping[int, int], died: Mapping[int, int]) -> Visibility:
    """The visibility of a file in which these positions are born and die at these lake snapshots."""
    positions = sorted(born.keys() | died.keys())
    return Visibility(
        np.array(positions, dtype=np.int64),
        np.array([born.get(p, 0) for p in positions], dtype=np.int64),
        np.array([died.get(p, FOREVER) for p in positions], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class Life:
    """What happened to a table, and which of its lake snapshots are left."""

    files: list[TrackedFile]
    visibility: dict[int, Visibility]
    left: list[int]
    specs: dict[int, int]

    def state(self) -> TableState:
        """The state a reading finds."""
        return make_state([snapshot(snapshot_id) for snapshot_id in self.left])

    def live_at(self, lake_snapshot_id: int) -> dict[int, tuple[int, ...]]:
        """The files read at a lake snapshot and their deleted positions, found row by row."""
        return {file.key: self._deleted(file.key, lake_snapshot_id) for file in self.files if is_live(file, lake_snapshot_id)}

    def _deleted(self, key: int, lake_snapshot_id: int) -> tuple[int, ...]:
        found = self.visibility.get(key)
        if found is None:
            return ()
        rows = zip(found.positions.tolist(), found.born.tolist(), found.died.tolist(), strict=True)
        return tuple(position for position, born, died in rows if not born <= lake_snapshot_id < died)


def is_live(file: TrackedFile, lake_snapshot_id: int) -> bool:
    """Whether a file is read at a lake snapshot."""
    return file.begin_snapshot <= lake_snapshot_id and (file.end_snapshot is None or lake_snapshot_id < file.end_snapshot)


def make_life(random: Random, snapshot_count: int, files_each: int) -> Life:
    """A random life: files come and go, rows are deleted and hidden, lake snapshots expire."""
    files: list[TrackedFile] = []
    seen: dict[int, Visibility] = {}
    specs: dict[int, int] = {}
    for begin in range(1, snapshot_count + 1):
        for _ in range(random.randint(0, files_each)):
            key = len(files) + 1 if random.random() < 0.7 else -(len(files) + 1)
            end = random.randint(begin, snapshot_count) if random.random() < 0.3 else None
            files.append(TrackedFile(key, begin, end, 8))
            specs[key] = random.choice((0, 0, 0, 1))
            last = snapshot_count if end is None else end
            born = {p: random.randint(begin, last) for p in range(8) if random.random() < 0.05}
            died = {p: random.randint(max(begin, born.get(p, 0)), last) for p in range(8) if random.random() < 0.1}
            if born or died:
                seen[key] = visibility({p: b for p, b in born.items() if b > begin}, died)
    kept = random.choice((1.0, 0.8, 0.3))
    return Life(files, seen, [i for i in range(1, snapshot_count + 1) if random.random() < kept], specs)
