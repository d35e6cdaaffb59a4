"""What a table had before it was registered: its past goes on into what the lake made of it."""

import json
from collections.abc import Sequence
from itertools import accumulate

from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.note_rows import RegisteredNote
from duckicelake.values import replace

OPERATION, REPLACE = "operation", "replace"

Log = tuple[tuple[int, int], ...]


def format_log(log: Sequence[tuple[int, int]] | Sequence[tuple[int, str]]) -> str:
    """Return a log as it is noted."""
    return json.dumps(log, separators=(",", ":"), ensure_ascii=False)


def with_past(steps: Sequence[Snapshot], note: RegisteredNote | None) -> Sequence[Snapshot]:
    """Return main's snapshots, the first one left a child of what was current before; the one that took it in changed no row."""
    if note is None or note.snapshot_id is None or not steps or steps[0].parent_snapshot_id is not None:
        return steps
    first = steps[0]
    if first.snapshot_id == note.lake_snapshot_id and not note.is_shown:
        return steps
    first = replace(first, parent_snapshot_id=note.snapshot_id)
    if first.snapshot_id == note.lake_snapshot_id:
        first = replace(first, summary={**first.summary, OPERATION: REPLACE})
    return [first, *steps[1:]]


def to_whole_log(log: Log, note: RegisteredNote | None, known: set[int]) -> Log:
    """Return when main was where, before it was registered too; times never go back, and what is gone cuts off what was before."""
    if note is None:
        return log
    earlier: list[tuple[int, int]] = [(at_ms, snapshot_id) for at_ms, snapshot_id in json.loads(note.snapshot_log)]
    lost = [place for place, (_, snapshot_id) in enumerate(earlier) if snapshot_id not in known]
    earlier = earlier[lost[-1] + 1 :] if lost else earlier
    later = log[1:] if earlier and log and log[0][1] == earlier[-1][1] else log
    whole = [*earlier, *later]
    times = accumulate((at_ms for at_ms, _ in whole), max)
    return tuple((at_ms, snapshot_id) for at_ms, (_, snapshot_id) in zip(times, whole, strict=True))


def with_past_log(metadata: TableMetadata, note: RegisteredNote | None) -> TableMetadata:
    """Return the metadata with the log of the files it had elsewhere."""
    if note is None:
        return metadata
    return replace(metadata, metadata_log=tuple((at_ms, path) for at_ms, path in json.loads(note.metadata_log)))
