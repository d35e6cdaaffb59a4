"""From DuckLake's rows to published objects: the one path that every load of a changed table takes."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count

import psycopg

from duckicelake.catalog.adopting.offers import Offer
from duckicelake.catalog.beside import publish_beside
from duckicelake.catalog.fold import Reading, fold, read
from duckicelake.catalog.memory import Published, TableMemory
from duckicelake.catalog.outbox import Outbox
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import LakeMoved, NotFound
from duckicelake.iceberg.metadata import TableMetadata, digest_metadata, encode_with_digest
from duckicelake.iceberg.snapshots import encode_snapshot, parse_snapshot
from duckicelake.lake.adopted.manifests import AdoptedRow, write_adopted
from duckicelake.lake.connect import writing
from duckicelake.lake.notes import Numbering, number_for_good
from duckicelake.lake.refs.rows import UNTOLD
from duckicelake.lake.refs.told import tell_kept
from duckicelake.lake.rows import Position, TableNote, TableNotes, TableRow, TableState
from duckicelake.store.objects import Objects
from duckicelake.translate.bulk.told import format_again
from duckicelake.translate.history import to_ms
from duckicelake.translate.locations import metadata_uri, table_location, version_hint_uri
from duckicelake.translate.schemas import V2, V3
from duckicelake.translate.shape.sort_orders import to_sort_orders, with_told_orders
from duckicelake.translate.shape.told_registered import with_past_log
from duckicelake.translate.shape.told_snapshots import with_aliases
from duckicelake.translate.shape.told_specs import without_unused
from duckicelake.translate.shape.told_statistics import with_statistics
from duckicelake.translate.to_iceberg import Shape, to_metadata, with_version
from duckicelake.values import replace

HINT_TRIES = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """A state in Iceberg's words, without its number; the objects that it names are on their way."""

    state: TableState
    metadata: TableMetadata
    wanted: Numbering
    outbox: Outbox


@dataclass(frozen=True, slots=True)
class Reader:
    """One state of a lake, read on `conn`; `turn` is the transaction that nobody else numbers the table in, when there is one."""

    warehouse: Warehouse
    conn: psycopg.Connection
    turn: psycopg.Connection | None = None

    def noting(self) -> AbstractContextManager[psycopg.Connection]:
        """A transaction for notes about that state."""
        return writing(self.warehouse.lake) if self.turn is None else nullcontext(self.turn)


def publish(reader: Reader, table: TableRow, memory: TableMemory, known: Reading | None = None) -> Published:
    """Publish the state that is read, or is `known` already: write its objects, number it, write its metadata file.

    Raises: Unsupported: something in the table is not published. LakeMoved: a newer state was published meanwhile
    """
    objects = reader.warehouse.objects
    try:
        draft = make_draft(reader.conn, objects, known or read(reader.conn, objects, table, memory), memory)
        if memory.offer is not None:
            note_offer(reader.warehouse, draft, memory.offer)
        draft.outbox.ship()
        tell_named(reader, draft.state, draft.metadata)
        return show(objects, draft, number_state(reader, draft), memory)
    except BaseException:
        memory.forget_made()
        raise


def note_offer(warehouse: Warehouse, draft: Draft, offer: Offer) -> None:
    """Note the manifests that were offered to this load, so that every server knows them.

    Raises: BadRequest: the table needs others
    """
    offer.check_known(offer.taken)
    rows = [AdoptedRow(digest, found.name, format_again(found.told)) for digest, found in offer.manifests.items()]
    write_adopted(warehouse.lake, draft.state.table.table_id, rows, sorted(offer.needed))


def make_draft(conn: psycopg.Connection, objects: Objects, reading: Reading, memory: TableMemory) -> Draft:
    """Return what was read of a table in Iceberg's words.

    Raises: Unsupported: something in the table is not published. LakeMoved: it is elsewhere now
    """
    state = reading.state
    note = raise_note(state.notes.table or new_note(objects, state), reading.schemas.format_version, state.position)
    if memory.location not in (None, note.location):
        raise LakeMoved("The table has another location now; try again.")
    memory.location = note.location
    snapshots, outbox = fold(conn, objects, reading, note, memory)
    if snapshots:
        note = replace(note, current_snapshot_id=snapshots[-1].snapshot_id)
    folded = memory.folded
    assert folded is not None
    orders = to_sort_orders(state.sort_keys, reading.schemas.current, state.notes.sort_orders)
    orders = with_told_orders(orders, bool(state.sort_keys), reading.schemas.current, state.notes)
    partitioning = without_unused(reading.partitioning, folded.has_unproven)
    schemas = replace(reading.schemas, breaks_vectors=reading.schemas.breaks_vectors or folded.breaks_vectors)
    shape = Shape(schemas, partitioning, orders, reading.mapping)
    aliases = (*folded.aliases.values(), *publish_beside(conn, objects, state, memory, note.location))
    earlier_log = find_earlier_log(reading, memory)
    draft = with_statistics(to_metadata(state, note.location, shape, snapshots, earlier_log), state.notes)
    shown = len(draft.snapshots)
    draft = with_past_log(with_aliases(draft, aliases), state.notes.refs.registered)
    memory.history.ahead = len(draft.snapshots) - shown
    token = digest_metadata(draft, memory.history)
    return Draft(state, draft, Numbering(state.position, token, note, *shape.new_notes()), outbox)


def show(objects: Objects, draft: Draft, notes: TableNotes, memory: TableMemory) -> Published:
    """Write the metadata file of a state that has its number and whose other objects are there."""
    log = notes.metadata_log
    metadata = with_version(draft.metadata, log)
    location = metadata_uri(draft.wanted.note.location, log[-1].metadata_version)
    state = replace(draft.state, notes=notes, spans=(), snapshots=(), delete_files=(), inlined_tables=(), inlined_deletes=())
    encoded, digest = encode_with_digest(metadata, memory.history)
    published = Published(state.position, metadata, location, encoded, digest, state, memory.newest_list)
    write_metadata(objects, published, log[-1].metadata_version, memory)
    return published


def find_earlier_log(reading: Reading, memory: TableMemory) -> Sequence[tuple[int, int]]:
    """Return the log of the snapshots that an earlier load has left, as it was published then, if it surely is theirs."""
    if reading.earlier is None or memory.published is None or not reading.earlier.snapshots:
        return ()
    log, last = memory.published.metadata.snapshot_log, reading.earlier.snapshots[-1]
    is_theirs = len(log) == len(reading.earlier.snapshots) and log[-1] == (last.timestamp_ms, last.snapshot_id)
    return log if is_theirs else ()


def new_note(objects: Objects, state: TableState) -> TableNote:
    """Return the first note of a table made in DuckDB: sequence numbers are lake snapshot ids.

    Where notes that are lost once gave out numbers, the table gets a location of its own: objects are never written over.
    """
    table = state.table
    first = location = table_location(state.iceberg_path, table.table_uuid, table.schema_name, table.table_name)
    tries = count(2)
    while objects.exists(metadata_uri(location, 1)):
        location = f"{first}-{next(tries)}"
    return TableNote(table.table_id, location, V2, 0, 0, -1, -1, "", 0)


def raise_note(note: TableNote, format_version: int, position: Position) -> TableNote:
    """Return a table's note in the format version that its state needs.

    In version 3 sequence numbers are lake snapshot ids, as in the rows of DuckLake's files; those given out stay.
    """
    rebased = note.sequence_base and note.format_version < V3 <= format_version
    return replace(note, format_version=format_version, numbered_until=position.lake_snapshot_id if rebased else note.numbered_until)


def number_state(reader: Reader, draft: Draft) -> TableNotes:
    """Return the table's notes, whose log of metadata versions ends with this state's, giving it one when it has none."""
    noted = draft.state.notes.table
    if noted is not None and noted.token == draft.wanted.token:
        return draft.state.notes
    now_ms = find_updated_ms(draft.state, draft.metadata)
    with reader.noting() as conn:
        return number_for_good(conn, draft.wanted, draft.state.notes, now_ms)


def tell_named(reader: Reader, state: TableState, draft: TableMetadata) -> None:
    """Note the snapshots that branches and tags keep as they are published now: their files may be all that is left of them one day."""
    kept = {note.snapshot_id: note.json for note in state.notes.refs.kept if not note.is_beside}
    named = [snapshot for snapshot in draft.snapshots if snapshot.snapshot_id in kept] if kept else []
    told = [(snapshot.snapshot_id, kept[snapshot.snapshot_id], encode_snapshot(snapshot).decode()) for snapshot in named]
    told = [(snapshot_id, old, new) for snapshot_id, old, new in told if old == UNTOLD or find_list(old) != find_list(new)]
    if told:
        with reader.noting() as conn:
            tell_kept(conn, state.table.table_id, told)


def find_list(encoded: str) -> str:
    """Return the manifest list of a snapshot that was noted."""
    return parse_snapshot(json.loads(encoded)).manifest_list


def find_updated_ms(state: TableState, draft: TableMetadata) -> int:
    """Return when the table came into this state.

    That is the time of its commit, not of its first load: DuckDB's iceberg extension takes metadata that is younger than its
    transaction for a later state, and goes back to an older one.
    """
    changed_ms = time.time_ns() // 1_000_000 if state.changed_at is None else to_ms(state.changed_at)
    return max(changed_ms, draft.snapshot_log[-1][0]) if draft.snapshot_log else changed_ms


def write_metadata(objects: Objects, published: Published, version: int, memory: TableMemory) -> None:
    """Write a metadata version and let the version hint name it, unless it names a newer one."""
    known = memory.known_uris if memory.known_uris is not None else set[str]()
    hint = version_hint_uri(published.metadata.location)
    if published.metadata_location not in known:
        objects.put_new(published.metadata_location, published.encoded)
        known.discard(hint)
    if hint not in known:
        memory.hint_etag = raise_hint(objects, hint, version, memory.hint_etag)
        known |= {published.metadata_location, hint}


def raise_hint(objects: Objects, uri: str, version: int, last_etag: str | None) -> str | None:
    """Let the version hint name this version or a newer one. It is only a hint: readers probe for newer versions.

    `last_etag` is what this returned for an older version: the tag of what was written, if it was.
    """
    content = str(version).encode()
    written = None if last_etag is None else objects.replace(uri, content, last_etag)
    for _ in range(HINT_TRIES):
        if written is not None:
            return written
        etag = objects.find_etag(uri)
        if etag is not None and read_hint(objects, uri) >= version:
            return None
        written = objects.replace(uri, content, etag)
    return written


def read_hint(objects: Objects, uri: str) -> int:
    """Return the metadata version that a version hint names, 0 when it names none."""
    try:
        text = objects.read(uri).decode("ascii", "replace").strip()
    except NotFound:
        return 0
    return int(text) if text.isdecimal() else 0
