"""Statistics files as Iceberg clients told them: notes beside the snapshots that they are of."""

import json
from collections.abc import Callable, Mapping, Sequence

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.snapshots import (
    PartitionStatisticsFile,
    StatisticsFile,
    format_partition_statistics,
    format_statistics,
    parse_partition_statistics,
    parse_statistics,
)
from duckicelake.lake.note_rows import NewStatistics, RemovedStatistics
from duckicelake.lake.rows import TableNotes
from duckicelake.lake.writing.rows import NewRow
from duckicelake.values import replace

TABLE, PARTITION = "table", "partition"

AnyStatistics = StatisticsFile | PartitionStatisticsFile


def with_statistics(metadata: TableMetadata, notes: TableNotes) -> TableMetadata:
    """Return the metadata with the statistics files of its snapshots; those of others are not shown."""
    if not notes.statistics:
        return metadata
    known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    of_table = (parse_statistics(json.loads(text)) for kind, text in notes.statistics if kind == TABLE)
    of_partitions = (parse_partition_statistics(json.loads(text)) for kind, text in notes.statistics if kind == PARTITION)
    return replace(
        metadata,
        statistics=tuple(file for file in of_table if file.snapshot_id in known),
        partition_statistics=tuple(file for file in of_partitions if file.snapshot_id in known),
    )


def map_statistics(file: StatisticsFile, to_ours: Callable[[int], int]) -> StatisticsFile:
    """Return a file with our snapshot ids, in what its blobs say too."""
    blobs = tuple(replace(blob, snapshot_id=to_ours(blob.snapshot_id)) for blob in file.blob_metadata)
    return replace(file, snapshot_id=to_ours(file.snapshot_id), blob_metadata=blobs)


def change_statistics(table_id: int, base: TableMetadata | None, new: TableMetadata, holds: Callable[[str], bool]) -> list[NewRow]:
    """Return what becomes of the notes; `holds` tells whether a file may lie there.

    Raises: BadRequest: a file is of no snapshot of the table, or lies elsewhere
    """
    rows: list[NewRow] = []
    known = {snapshot.snapshot_id for snapshot in new.snapshots} if new.statistics or new.partition_statistics else set[int]()
    for kind, before, after in (
        (TABLE, _by_snapshot(base.statistics if base else ()), _by_snapshot(new.statistics)),
        (PARTITION, _by_snapshot(base.partition_statistics if base else ()), _by_snapshot(new.partition_statistics)),
    ):
        for snapshot_id, file in after.items():
            if file == before.get(snapshot_id):
                continue
            if snapshot_id not in known:
                raise BadRequest(f"Cannot set statistics for unknown snapshot: {snapshot_id}")
            if not holds(file.statistics_path):
                raise BadRequest(f"Statistics file {file.statistics_path!r} does not lie in the table's location; write it there.")
            rows.append(NewStatistics(table_id, kind, snapshot_id, _format(file)))
        rows += (RemovedStatistics(table_id, kind, snapshot_id) for snapshot_id in before.keys() - after.keys())
    return rows


def _by_snapshot(files: Sequence[AnyStatistics]) -> Mapping[int, AnyStatistics]:
    return {file.snapshot_id: file for file in files}


def _format(file: AnyStatistics) -> str:
    node = format_statistics(file) if isinstance(file, StatisticsFile) else format_partition_statistics(file)
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False)
