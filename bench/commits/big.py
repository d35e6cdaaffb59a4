"""Commits of many files: ten thousand in one snapshot, and deletes in some of a hundred thousand."""

import io
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from bench.accounting import read_peak
from bench.commits.client import Client, create_table, open_client
from bench.commits.costs import measure_commit
from bench.loads import restart_warm, to_mib
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import Stand
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DATA, POSITION_DELETES, DataFile

FILES_OF_A_SNAPSHOT = 1000
PATH_ID, POSITION_ID = 2147483546, 2147483545


def measure_many_files(stand: Stand, scale: Scale) -> Result:
    """Return what commits cost that add many files at once, and the memory that they take."""
    create_table(stand, "many_files")
    rows: list[dict[str, Cell]] = []
    for files in scale.commit_files:
        idle = restart_warm(stand)
        client = open_client(stand, "many_files")
        spent = measure_commit(stand, client, client.append(files))
        peak = read_peak(stand.pids["server"])
        cpu: dict[str, Cell] = {f"{name}_cpu_ms": used for name, used in spent.cpu_ms.items()}
        per_file = (spent.cpu_ms["server"] + spent.cpu_ms["postgres"]) / files
        above = to_mib(peak - idle)
        rows.append({"files": files, **cpu, "cpu_ms_per_file": per_file, "wall_ms": spent.wall_ms, "peak_mib_above_idle": above})
    return Result("Commits of many files in one snapshot", rows)


def measure_deletes(stand: Stand, scale: Scale) -> Result:
    """Return what deletes cost that touch some of a table's files, one row each, by one position-delete file."""
    rows: list[dict[str, Cell]] = []
    for files in scale.deleted_from:
        name = f"deletes_{files}"
        seed_table(stand, Growing(name, max(1, files // FILES_OF_A_SNAPSHOT), min(files, FILES_OF_A_SNAPSHOT)))
        stand.restart_server()
        client = open_client(stand, name)
        for touched in scale.deleted:
            spent = measure_commit(stand, client, client.add([], [_write_deletes(client, _list_files(client)[:touched])]))
            cpu: dict[str, Cell] = {f"{part}_cpu_ms": used for part, used in spent.cpu_ms.items()}
            total = spent.cpu_ms["server"] + spent.cpu_ms["postgres"]
            rows.append({"files": files, "touched": touched, **cpu, "cpu_ms_per_touched": total / touched, "wall_ms": spent.wall_ms})
    one, many = (float(next(row for row in reversed(rows) if row["files"] == files)["server_cpu_ms"] or 0) for files in scale.deleted_from)
    return Result("Deletes in some of many files", rows, {"the_same_files_of_the_most_over_of_the_fewest": many / one})


def _list_files(client: Client) -> Sequence[str]:
    """Return the table's data files that have no deletes yet, the newest last."""
    [current] = [one for one in client.metadata["snapshots"] if one["snapshot-id"] == client.metadata["current-snapshot-id"]]
    listed = decode_manifest_list(client.objects.read(current["manifest-list"]))
    live = [entry.data_file for one in listed for entry in decode_manifest(client.objects.read(one.manifest_path))[1]]
    marked = {file.referenced_data_file for file in live if file.content == POSITION_DELETES}
    return sorted(file.file_path for file in live if file.content == DATA and file.file_path not in marked)


def _write_deletes(client: Client, paths: Sequence[str]) -> DataFile:
    names = (("file_path", pa.string(), PATH_ID), ("pos", pa.int64(), POSITION_ID))
    fields = [pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)}) for name, kind, number in names]
    sink = io.BytesIO()
    columns = [pa.array(paths, pa.string()), pa.array([0] * len(paths), pa.int64())]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), sink)
    uri, content = f"{client.metadata['location']}/data/{uuid4()}-deletes.parquet", sink.getvalue()
    client.objects.put_new(uri, content)
    return DataFile(POSITION_DELETES, uri, "PARQUET", (), len(paths), len(content))
