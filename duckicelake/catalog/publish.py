"""Publishing: writes the manifests and the metadata file of a table state that is read from DuckLake's rows.

`tables` and `manifest_import` call `publish` under the lock of the table's cache: on worker threads, in the object monitor's thread or in a
command. In their read transaction it reads rows, and files that the caches do not know. It ends that transaction before it waits for its
own objects to be written, and numbers the state in a short one; after two lost races `tables` holds the numbering lock throughout.
`commits.write` calls `build_draft` in the commit's transaction and `publish_numbered` after COMMIT. `commits.unreadable` and `duckicelake
check` only build drafts, which they never publish.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import psycopg

from duckicelake.catalog.manifest_import.imported import Submission
from duckicelake.catalog.snapshot_building import TableReading, build_snapshots, read_changes
from duckicelake.catalog.table_cache import BuiltHistory, CachedTable, FileCache, PublishedTable, TableCache, UploadQueue
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import LakeMoved, NotFound
from duckicelake.iceberg.metadata import TableMetadata, digest_metadata, encode_with_digest
from duckicelake.iceberg.snapshots import encode_snapshot, parse_snapshot
from duckicelake.lake.connect import writing
from duckicelake.lake.note_rows import UNPUBLISHED
from duckicelake.lake.notes import (
    ImportedManifestRow,
    VersionRequest,
    assign_and_commit_version,
    read_kept_list,
    update_kept_snapshots,
    write_imported_manifests,
)
from duckicelake.lake.rows import Position, TableNote, TableNotes, TableRow, TableState
from duckicelake.store.objects import Objects
from duckicelake.translate.bulk_manifests import normalize_submission
from duckicelake.translate.client_schemas import without_unused_spec
from duckicelake.translate.client_snapshots import with_registered_log, with_statistics
from duckicelake.translate.locations import metadata_uri, table_location, version_hint_uri
from duckicelake.translate.schemas import V2, V3
from duckicelake.translate.sort_orders import to_sort_orders, with_client_orders
from duckicelake.translate.to_iceberg import TableShape, to_metadata, with_version
from duckicelake.translate.visibility import to_ms

HINT_TRIES = 5


@dataclass(frozen=True, slots=True)
class MetadataDraft:
    """A state in Iceberg's words, without its number; the objects that it names are on their way. `built` is how to go on from it."""

    state: TableState
    metadata: TableMetadata
    wanted: VersionRequest
    uploads: UploadQueue
    built: BuiltHistory


@dataclass(frozen=True, slots=True)
class PublishContext:
    """One state of a lake, read on `conn`; `turn` is the transaction that holds the numbering lock, if any.

    `end_reading` returns `conn` to the pool: `publish` calls it before it waits for the store, which may be slow.
    """

    warehouse: Warehouse
    conn: psycopg.Connection
    end_reading: Callable[[], None]
    turn: psycopg.Connection | None = None

    def noting(self) -> AbstractContextManager[psycopg.Connection]:
        """A transaction for notes about that state."""
        return writing(self.warehouse.lake) if self.turn is None else nullcontext(self.turn)


def publish(reader: PublishContext, table: TableRow, cache: TableCache, known: TableReading | None = None) -> CachedTable:
    """Publish the state that is read, or is `known` already: write its objects, number it, write its metadata file.

    Returns what the cache is to have from now on.
    Raises: Unsupported: something in the table is not published. LakeMoved: a newer state was published meanwhile
    """
    objects = reader.warehouse.objects
    try:
        reading = known or read_changes(reader.conn, objects, table, cache)
        draft = build_draft(reader.conn, objects, reading, cache)
        reader.end_reading()
        if reading.submission is not None:
            record_submission(reader.warehouse, draft, reading.submission)
        draft.uploads.flush()
        update_ref_snapshots(reader, draft.state, draft.metadata)
        return publish_numbered(objects, draft, assign_metadata_version(reader, draft), cache, answers_commit=False)
    except BaseException:
        cache.forget_written()
        raise


def record_submission(warehouse: Warehouse, draft: MetadataDraft, submission: Submission) -> None:
    """Note the manifests that were offered to this load, so that every server knows them.

    Raises: BadRequest: the table needs others
    """
    submission.check_known(submission.used)
    rows = [ImportedManifestRow(digest, found.name, normalize_submission(found.told)) for digest, found in submission.manifests.items()]
    write_imported_manifests(warehouse.lake, draft.state.table.table_id, rows, sorted(submission.needed))


def build_draft(conn: psycopg.Connection, objects: Objects, reading: TableReading, cache: TableCache) -> MetadataDraft:
    """Return what was read of a table in Iceberg's words.

    Raises: Unsupported: something in the table is not published. LakeMoved: it is elsewhere now
    """
    state = reading.state
    note = upgrade_note(state.notes.table or build_first_note(objects, state), reading.schemas.format_version, state.position)
    files = cache.files
    if files.location not in (None, note.location):
        raise LakeMoved("The table has another location now; try again.")
    files.location = note.location
    built, uploads = build_snapshots(conn, objects, reading, note, files)
    snapshots = built.snapshots
    if snapshots:
        note = replace(note, current_snapshot_id=snapshots[-1].snapshot_id)
    orders = to_sort_orders(state.sort_keys, reading.schemas.current, state.notes.sort_orders)
    orders = with_client_orders(orders, bool(state.sort_keys), reading.schemas.current, state.notes)
    partitioning = without_unused_spec(reading.partitioning, built.has_unproven)
    schemas = replace(reading.schemas, breaks_vectors=reading.schemas.breaks_vectors or built.breaks_vectors)
    shape = TableShape(schemas, partitioning, orders, reading.mapping)
    add_branch_snapshots(conn, uploads, state)
    earlier_log = list_earlier_log(reading, cache.table.published)
    draft = with_statistics(to_metadata(state, note.location, shape, snapshots, earlier_log), state.notes)
    draft = with_registered_log(draft, state.notes.refs.registered)
    token = digest_metadata(draft, files.encoded)
    return MetadataDraft(state, draft, VersionRequest(state.position, token, note, *shape.new_notes()), uploads, built)


def publish_numbered(objects: Objects, draft: MetadataDraft, notes: TableNotes, cache: TableCache, *, answers_commit: bool) -> CachedTable:
    """Write the metadata file of a state that has its number and whose other objects are there; return what the cache is to have."""
    log = notes.metadata_log
    metadata = with_version(draft.metadata, log)
    location = metadata_uri(draft.wanted.note.location, log[-1].metadata_version)
    state = replace(draft.state, notes=notes, spans=(), snapshots=(), delete_files=(), inlined_tables=(), inlined_deletes=())
    encoded, digest = encode_with_digest(metadata, cache.files.encoded)
    file = MetadataFile(metadata.location, location, log[-1].metadata_version, encoded)
    is_new, hint_etag = write_metadata_file(objects, file, cache.files, cache.table.hint_etag)
    is_unanswered = is_new and bool(state.aliases) and not answers_commit
    published = PublishedTable(state.position, metadata, location, encoded, digest, state, draft.built.newest_list, is_unanswered)
    return CachedTable(published, None, draft.built, cache.table.repair_id, hint_etag)


def list_earlier_log(reading: TableReading, known: PublishedTable | None) -> Sequence[tuple[int, int]]:
    """Return the log of the snapshots that an earlier load has left, as it was published then, if it surely is theirs."""
    if reading.earlier is None or known is None or not reading.earlier.snapshots:
        return ()
    log, last = known.metadata.snapshot_log, reading.earlier.snapshots[-1]
    is_theirs = len(log) == len(reading.earlier.snapshots) and log[-1] == (last.timestamp_ms, last.snapshot_id)
    return log if is_theirs else ()


def build_first_note(objects: Objects, state: TableState) -> TableNote:
    """Return the first note of a table made in DuckDB: sequence numbers are lake snapshot ids.

    Where notes that are lost once gave out numbers, the table gets a location of its own: objects are never written over.
    """
    table = state.table
    first = location = table_location(state.iceberg_path, table.table_uuid, table.schema_name, table.table_name)
    tries = count(2)
    while objects.exists(metadata_uri(location, 1)):
        location = f"{first}-{next(tries)}"
    return TableNote(table.table_id, location, V2, 0, 0, -1, -1, "", 0)


def upgrade_note(note: TableNote, format_version: int, position: Position) -> TableNote:
    """Return a table's note in the format version that its state needs.

    In version 3 sequence numbers are lake snapshot ids, as in the rows of DuckLake's files; those given out stay.
    """
    rebased = note.sequence_base and note.format_version < V3 <= format_version
    return replace(note, format_version=format_version, numbered_until=position.lake_snapshot_id if rebased else note.numbered_until)


def assign_metadata_version(reader: PublishContext, draft: MetadataDraft) -> TableNotes:
    """Return the table's notes, whose log of metadata versions ends with this state's, giving it one when it has none."""
    noted = draft.state.notes.table
    if noted is not None and noted.token == draft.wanted.token:
        return draft.state.notes
    now_ms = compute_updated_ms(draft.state, draft.metadata)
    with reader.noting() as conn:
        return assign_and_commit_version(conn, draft.wanted, draft.state.notes, now_ms)


def update_ref_snapshots(reader: PublishContext, state: TableState, draft: TableMetadata) -> None:
    """Note the snapshots that branches and tags keep as they are published now: their files may be all that is left of them one day."""
    kept = {note.snapshot_id: note.json for note in state.notes.refs.kept if not note.is_off_main}
    named = [snapshot for snapshot in draft.snapshots if snapshot.snapshot_id in kept] if kept else []
    told = [(snapshot.snapshot_id, kept[snapshot.snapshot_id], encode_snapshot(snapshot).decode()) for snapshot in named]
    told = [
        (snapshot_id, old, new)
        for snapshot_id, old, new in told
        if old == UNPUBLISHED or parse_manifest_list_uri(old) != parse_manifest_list_uri(new)
    ]
    if told:
        with reader.noting() as conn:
            update_kept_snapshots(conn, state.table.table_id, told)


def parse_manifest_list_uri(encoded: str) -> str:
    """Return the manifest list of a snapshot that was noted."""
    return parse_snapshot(json.loads(encoded)).manifest_list


def compute_updated_ms(state: TableState, draft: TableMetadata) -> int:
    """Return when the table came into this state.

    That is the time of its commit, not of its first load: DuckDB's iceberg extension takes metadata that is younger than its
    transaction for a later state, and goes back to an older one.
    """
    changed_ms = time.time_ns() // 1_000_000 if state.changed_at is None else to_ms(state.changed_at)
    return max(changed_ms, draft.snapshot_log[-1][0]) if draft.snapshot_log else changed_ms


class MetadataFile(NamedTuple):
    """A metadata version of a table."""

    table_location: str
    uri: str
    version: int
    content: bytes


def write_metadata_file(objects: Objects, file: MetadataFile, cache: FileCache, hint_etag: str | None) -> tuple[bool, str | None]:
    """Write a metadata version and let the version hint name it, unless it names a newer one.

    Returns True if the file was not there, and the tag of the hint if it was written now or is as `hint_etag` says.
    """
    known = cache.known_uris if cache.known_uris is not None else set[str]()
    hint, is_new = version_hint_uri(file.table_location), False
    if file.uri not in known:
        is_new = objects.put_new(file.uri, file.content)
        known.discard(hint)
    if hint not in known:
        hint_etag = update_version_hint(objects, hint, file.version, hint_etag)
        known |= {file.uri, hint}
    return is_new, hint_etag


def update_version_hint(objects: Objects, uri: str, version: int, last_etag: str | None) -> str | None:
    """Let the version hint name this version or a newer one. It is only a hint: readers probe for newer versions.

    `last_etag` is what this returned for an older version: the tag of what was written, if it was.
    """
    content = str(version).encode()
    written = None if last_etag is None else objects.replace(uri, content, last_etag)
    for _ in range(HINT_TRIES):
        if written is not None:
            return written
        etag = objects.find_etag(uri)
        if etag is not None and read_version_hint(objects, uri) >= version:
            return None
        written = objects.replace(uri, content, etag)
    return written


def read_version_hint(objects: Objects, uri: str) -> int:
    """Return the metadata version that a version hint names, 0 when it names none."""
    try:
        text = objects.read(uri).decode("ascii", "replace").strip()
    except NotFound:
        return 0
    return int(text) if text.isdecimal() else 0


def add_branch_snapshots(conn: psycopg.Connection, uploads: UploadQueue, state: TableState) -> None:
    """Add the manifest lists of branch snapshots to the uploads."""
    for kept in state.notes.refs.kept:
        if not kept.is_off_main:
            continue
        snapshot = parse_snapshot(json.loads(kept.json))
        if snapshot.manifest_list in uploads.known_uris:
            continue
        content = read_kept_list(conn, state.table.table_id, kept.snapshot_id)
        if content:
            uploads.add(snapshot.manifest_list, content)
        else:
            # A registered table brought the list along.
            uploads.known_uris.add(snapshot.manifest_list)
