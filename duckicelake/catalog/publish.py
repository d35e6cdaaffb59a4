"""From DuckLake's rows to published objects: the one path that every load of a changed table takes."""

import time
from collections.abc import Sequence

import psycopg

from duckicelake.catalog.derive import Deriver
from duckicelake.catalog.gather import Sources, gather
from duckicelake.catalog.manifests import FORMAT_VERSION, ManifestWriter
from duckicelake.catalog.memory import Published, TableMemory
from duckicelake.catalog.outbox import Outbox
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NotFound
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata
from duckicelake.lake.connect import writing
from duckicelake.lake.notes import Numbering, number
from duckicelake.lake.read_table import read_column_stats
from duckicelake.lake.rows import ColumnStatsRow, MetadataLogRow, TableNote, TableState
from duckicelake.translate.history import to_history
from duckicelake.translate.locations import metadata_uri, table_location, version_hint_uri
from duckicelake.translate.partitions import Partitioning, to_partitioning
from duckicelake.translate.schemas import Schemas, to_schemas
from duckicelake.translate.to_iceberg import format_token, to_metadata, with_version

HINT_TRIES = 5


def publish(warehouse: Warehouse, conn: psycopg.Connection, state: TableState, memory: TableMemory) -> Published:
    """Publish one state: write its objects, give it its numbers, write its metadata file. Returns what a load answers.

    `conn` is the transaction that read the state; statistics of files are read from it as they are needed.
    Raises: Unsupported: something in the table is not published. LakeMoved: a newer state was published meanwhile
    """
    sources = gather(warehouse.objects, state, memory)
    files = sources.tracked()
    oldest_row = min((file.begin_snapshot for file in files), default=state.position.lake_snapshot_id)
    schemas = to_schemas(state, oldest_row)
    partitioning = to_partitioning(state.partitions, schemas.current, state.notes.specs)
    memory.expect_specs(partitioning.specs)
    note = state.notes.table or new_note(state)
    writer = make_writer(warehouse, conn, state, memory, (note, sources, schemas, partitioning))
    writer.deriver.derive_inlined(sources.inlined)
    snapshots = writer.write_snapshots(to_history(state, files, sources.visibility))
    writer.deriver.outbox.ship()
    draft = to_metadata(state, note.location, schemas, partitioning, snapshots)
    token = format_token(draft)
    wanted = Numbering(state.position, token, note, schemas.new_notes, partitioning.new_notes)
    log = number_state(warehouse, state, wanted)
    metadata = with_version(draft, log)
    location = metadata_uri(note.location, log[-1].metadata_version)
    write_metadata(warehouse, metadata, location, log[-1].metadata_version, memory)
    return Published(state.position, metadata, location)


def new_note(state: TableState) -> TableNote:
    """Return the first note of a table made in DuckDB: sequence numbers are lake snapshot ids."""
    location = table_location(state.iceberg_path, state.table.table_uuid, state.table.schema_name, state.table.table_name)
    return TableNote(state.table.table_id, location, FORMAT_VERSION, 0, 0, -1, -1, "", 0)


def make_writer(
    warehouse: Warehouse,
    conn: psycopg.Connection,
    state: TableState,
    memory: TableMemory,
    parts: tuple[TableNote, Sources, Schemas, Partitioning],
) -> ManifestWriter:
    """Return the writer of a state's manifests. An earlier process may have written objects: what is there is listed once."""
    note, sources, schemas, partitioning = parts
    if memory.known_uris is None:
        is_published = state.notes.table is not None
        memory.known_uris = {uri for uri, _ in warehouse.objects.list_under(note.location)} if is_published else set()

    def read_stats(data_file_ids: Sequence[int]) -> Sequence[ColumnStatsRow]:
        return read_column_stats(conn, state.table.table_id, data_file_ids)

    deriver = Deriver(state, note.location, memory, Outbox(warehouse.objects, memory.known_uris))
    return ManifestWriter(deriver, sources, schemas, partitioning, read_stats, note.sequence_base)


def number_state(warehouse: Warehouse, state: TableState, wanted: Numbering) -> Sequence[MetadataLogRow]:
    """Return the log of metadata versions that ends with this state's, giving it one when it has none."""
    noted = state.notes.table
    if noted is not None and noted.token == wanted.token:
        return state.notes.metadata_log
    latest_ms = max((int(row.snapshot_time.timestamp() * 1000) for row in state.snapshots), default=0)
    now_ms = max(time.time_ns() // 1_000_000, latest_ms)
    with writing(warehouse.lake) as conn:
        return number(conn, wanted, now_ms).metadata_log


def write_metadata(warehouse: Warehouse, metadata: TableMetadata, location: str, version: int, memory: TableMemory) -> None:
    """Write a metadata version and let the version hint name it, unless it names a newer one."""
    known = memory.known_uris if memory.known_uris is not None else set[str]()
    if location in known:
        return
    warehouse.objects.put_new(location, encode_metadata(metadata))
    known.add(location)
    raise_hint(warehouse, version_hint_uri(metadata.location), version)


def raise_hint(warehouse: Warehouse, uri: str, version: int) -> None:
    """Let the version hint name this version or a newer one. It is only a hint: readers probe for newer versions."""
    for _ in range(HINT_TRIES):
        etag = warehouse.objects.find_etag(uri)
        if etag is not None and _read_hint(warehouse, uri) >= version:
            return
        if warehouse.objects.replace(uri, str(version).encode(), etag):
            return


def _read_hint(warehouse: Warehouse, uri: str) -> int:
    try:
        text = warehouse.objects.read(uri).decode("ascii", "replace").strip()
    except NotFound:
        return 0
    return int(text) if text.isdecimal() else 0
