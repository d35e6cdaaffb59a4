"""A table's snapshots, folded from its rows: from the beginning, or on from where an earlier load stopped."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import psycopg

from duckicelake.catalog.adopting.adopted import Adopted
from duckicelake.catalog.adopting.layout import Layout
from duckicelake.catalog.data_files import DataFiles
from duckicelake.catalog.derive import Deriver
from duckicelake.catalog.gather import Sources, gather, without_lost
from duckicelake.catalog.manifests import ManifestWriter
from duckicelake.catalog.memory import BySchemas, Folded, TableMemory
from duckicelake.catalog.outbox import Outbox
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.snapshots import Snapshot, Snapshots
from duckicelake.lake.changes import REWRITE_KINDS, kinds_of_table
from duckicelake.lake.null_proofs import find_default_ends, list_required
from duckicelake.lake.read_table import Since, read_table
from duckicelake.lake.read_values import read_repeated_files
from duckicelake.lake.rows import TableNote, TableRow, TableState
from duckicelake.lake.writing.read_back import Foreseen, read_back
from duckicelake.store.objects import Objects
from duckicelake.translate.history import History, to_history
from duckicelake.translate.locations import table_folder
from duckicelake.translate.manifests import KEY_OF, Shelves, new_shelves, to_manifests
from duckicelake.translate.partitions import Partitioning, to_partitioning
from duckicelake.translate.schemas import Schemas, to_schemas
from duckicelake.translate.shape.name_mapping import NameMapping, to_name_mapping
from duckicelake.translate.shape.nullable import with_nullable
from duckicelake.translate.shape.told_specs import with_told_specs
from duckicelake.translate.visibility import FileKey, Visibility, check_repeated
from duckicelake.values import replace

EVERYTHING = Since()
NOTHING_HIDDEN = (b"", b"", b"")
NO_ROW = 2**63 - 1
"""Later than any lake snapshot: the oldest row of a table that has none."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One state and what has been found out about it. `earlier` is what an earlier load left, when it can go on; `layout` is all that
    its manifests are, when somebody has planned them before.
    """

    state: TableState
    sources: Sources
    schemas: Schemas
    partitioning: Partitioning
    mapping: NameMapping
    oldest_row: int
    earlier: Folded | None
    foreseen: Foreseen | None = None
    layout: Layout | None = None


def read(conn: psycopg.Connection, objects: Objects, table: TableRow, memory: TableMemory) -> Reading:
    """Read what changed since the last load, or everything when the past has been rewritten, expired or never read.

    Raises: Unsupported: something in the table is not published, by name and remedy. NotFound: a file is missing
    """
    if memory.folded is not None:
        reading = _interpret(objects, read_table(conn, table, memory.folded.since), memory, memory.folded)
        if reading is not None:
            _check_repeated(conn, reading)
            return reading
        memory.folded = None
    reading = _interpret(objects, read_table(conn, table, EVERYTHING), memory, None)
    assert reading is not None
    _check_repeated(conn, reading)
    return reading


def _check_repeated(conn: psycopg.Connection, reading: Reading) -> None:
    """Refuse a file that was added twice and has deletes; only files that DuckLake did not write itself can be."""
    state = reading.state
    if state.name_mappings:
        earlier: Mapping[FileKey, Visibility] = reading.earlier.visibility if reading.earlier else {}
        files = read_repeated_files(conn, state.table.table_id, table_folder(state.data_path, state.table))
        check_repeated(files, {**earlier, **reading.sources.visibility})


def _interpret(objects: Objects, state: TableState, memory: TableMemory, earlier: Folded | None) -> Reading | None:
    if earlier is not None and not _goes_on(state, earlier):
        return None
    folder = table_folder(state.data_path, state.table)
    required = list_required(state.columns, state.notes.schemas)
    if earlier is not None and not required <= earlier.required:
        # the files that were read before were not asked for NULLs of these columns
        return None
    state = with_nullable(state, find_default_ends(state.columns, required), earlier.nullable if earlier else ())
    if earlier is not None and not set(earlier.lacked) <= set(state.lacked):
        state = replace(state, lacked=sorted({*earlier.lacked, *state.lacked}))
    state = without_lost(objects, folder, state, memory)
    sources = gather(objects, folder, state, memory)
    first = min(map(attrgetter("begin_snapshot"), sources.files), default=NO_ROW)
    oldest_row = first if earlier is None else min(first, earlier.oldest_row)
    schemas = _find_schemas(state, oldest_row, bool(sources.visibility), memory)
    partitioning = to_partitioning(state.partitions, schemas.current, state.notes.specs)
    partitioning = with_told_specs(partitioning, state.partitions, schemas.current, state.notes)
    mapping = _remember_by(schemas, state, memory).mapping
    shape = (schemas.format_version, schemas.hidden, mapping.format())
    if earlier is not None and shape != (earlier.format_version, earlier.hidden, earlier.name_mapping):
        return None
    if earlier is not None and schemas.list_ids(earlier.since.lake_snapshot_id) != earlier.schema_ids:
        return None
    if earlier is not None and (partitioning.specs[: len(earlier.specs)] != earlier.specs or _rewrites_past(sources, earlier)):
        return None
    return Reading(state, sources, schemas, partitioning, mapping, oldest_row, earlier)


def _find_schemas(state: TableState, oldest_row: int, has_deletes: bool, memory: TableMemory) -> Schemas:
    """Return the table's schemas, those made last where all that they are made of is as it was then."""
    notes, note = state.notes, state.notes.table
    numbers = None if note is None else (note.format_version, note.last_column_id)
    told = (notes.schemas, notes.shapes, numbers, state.too_large, state.lacked, state.nullable)
    source = (state.table, state.columns, state.column_tags, state.name_mappings, told, oldest_row, has_deletes)
    if memory.schemas is None or memory.schemas[0] != source:
        memory.schemas = (source, to_schemas(state, oldest_row, has_deletes=has_deletes))
    return memory.schemas[1]


def _remember_by(schemas: Schemas, state: TableState, memory: TableMemory) -> BySchemas:
    """Return what is remembered under these schemas, made anew under others: they are the same as long as all that they are made of."""
    if memory.by_schemas is None or memory.by_schemas.schemas is not schemas:
        memory.by_schemas = BySchemas(schemas, to_name_mapping(state.name_mappings, state.columns))
    return memory.by_schemas


def _goes_on(state: TableState, earlier: Folded) -> bool:
    """Tell whether nothing since the earlier load expired or rewrote what it has seen."""
    if state.history_id != earlier.history_id:
        return False
    # an expired snapshot is shown for as long as it is the current one
    if state.snapshots and any(shown.snapshot_id < state.oldest.snapshot_id for shown in earlier.snapshots[:1]):
        return False
    kinds = [kinds_of_table(row.changes_made, state.table.table_id) for row in state.snapshots]
    return all(found and not found & REWRITE_KINDS for found in kinds)


def _rewrites_past(sources: Sources, earlier: Folded) -> bool:
    """Tell whether some delete counts from a lake snapshot that has been folded: a retried commit may say so."""
    since = earlier.since.lake_snapshot_id
    for key, visibility in sources.visibility.items():
        old = earlier.visibility.get(key)
        if visibility.until(since) != (NOTHING_HIDDEN if old is None else old.until(since)):
            return True
    return False


def read_on(conn: psycopg.Connection, objects: Objects, known: TableState, memory: TableMemory) -> Reading | None:
    """Read what the commit in this transaction did to a table that is as `known` otherwise; None when more must be read.

    Only for commits of plain rows: see `lake.writing.read_back`.
    """
    if memory.folded is None:
        return None
    state = read_back(conn, known, memory.folded.since)
    reading = None if state is None else _interpret(objects, state, memory, memory.folded)
    if reading is not None:
        _check_repeated(conn, reading)
    return reading


def foresee_on(objects: Objects, foreseen: Foreseen, memory: TableMemory) -> Reading | None:
    """Return the reading that a commit foresees of its table, None when more must be read."""
    reading = None if memory.folded is None else _interpret(objects, foreseen.state, memory, memory.folded)
    return None if reading is None else replace(reading, foreseen=foreseen)


def fold(conn: psycopg.Connection, objects: Objects, reading: Reading, note: TableNote, memory: TableMemory) -> tuple[Snapshots, Outbox]:
    """Return all snapshots of the table that was read, and their objects, not shipped yet; memory holds how to go on."""
    memory.folded = None
    earlier, state = reading.earlier, reading.state
    before = earlier.snapshots if earlier else Snapshots(())
    after_ms = before[-1].timestamp_ms if before else 0
    known = reading.layout
    history = known.history if known else to_history(state, reading.sources.files, reading.sources.visibility, after_ms)
    writer = make_writer(conn, objects, reading, note, memory)
    _derive_rows(writer, history, reading)
    with closing(writer.files):
        if earlier is None:
            _count_base(writer, history)
        layout = known or lay_out(history, writer.files, earlier.shelves if earlier else None)
        writer.files.has_unproven |= layout.has_unproven
        snapshots = before.grown(writer.write_snapshots(layout.snapshots, before[-1].snapshot_id if before else None))
    shelves = layout.shelves
    written = _still_carried(writer.written, shelves)
    memory.folded = Folded(
        since=Since(state.position.lake_snapshot_id, state.next_file_id),
        history_id=state.history_id,
        oldest_row=reading.oldest_row,
        lacked=state.lacked,
        required=list_required(state.columns, state.notes.schemas),
        nullable=state.nullable,
        specs=reading.partitioning.specs,
        format_version=reading.schemas.format_version,
        hidden=reading.schemas.hidden,
        schema_ids=reading.schemas.list_ids(state.position.lake_snapshot_id),
        name_mapping=reading.mapping.format(),
        shelves=shelves,
        written=written,
        held=writer.deriver.outbox.list_held(manifest.manifest_path for manifest in written.values()),
        totals=writer.totals,
        snapshots=snapshots,
        visibility=_still_live(writer.visibility, shelves),
        aliases=_still_aliased(writer, state),
        has_unproven=writer.files.has_unproven,
        breaks_vectors=writer.files.breaks_vectors,
    )
    return snapshots, writer.deriver.outbox


def lay_out(history: History, files: DataFiles, shelves: Shelves | None = None) -> Layout:
    """Return the manifests of a history, on from the shelves that an earlier one left. They are found as they are asked for."""
    files.place(map(KEY_OF, chain(history.base.added, *(step.added for step in history.steps))))
    shelves = new_shelves(history, files.spec_of) if shelves is None else shelves
    return Layout(history, shelves, to_manifests(history.steps, shelves, files.spec_of), files.has_unproven)


def _derive_rows(writer: ManifestWriter, history: History, reading: Reading) -> None:
    """Make the files of rows that lie in Postgres, or elsewhere by now; those of snapshots that nobody sees are held."""
    derived = reading.sources.derived
    steps = [(_find_first(history), history.base), *((step.snapshot_id, step) for step in history.steps)]
    for is_hidden in (False, True):
        keys = [file.key for i, step in steps if (i in writer.hidden) == is_hidden for file in step.added if file.key in derived]
        with writer.deriver.outbox.holding(is_hidden=is_hidden):
            writer.deriver.derive_rows({key: derived[key] for key in keys})


def _find_first(history: History) -> int:
    """Return the snapshot in whose manifests is what came before it."""
    return history.steps[0].snapshot_id if history.steps else history.base.snapshot_id


def make_writer(conn: psycopg.Connection, objects: Objects, reading: Reading, note: TableNote, memory: TableMemory) -> ManifestWriter:
    """Return what writes the manifests of the table that was read."""
    state, earlier = reading.state, reading.earlier
    if memory.known_uris is None:
        # an earlier process may have written objects: what is there is listed once
        memory.known_uris = {uri for uri, _ in objects.list_under(note.location)} if state.notes.table else set()
    if earlier is None:
        memory.data_files.clear()
        memory.checked_files.clear()
    outbox = Outbox(objects, memory.known_uris, held=dict(earlier.held) if earlier is not None else {})
    deriver = Deriver(state, note.location, memory, outbox, reading.schemas)
    folder = table_folder(state.data_path, state.table)
    files = DataFiles(conn, state.table.table_id, folder, reading.schemas, reading.partitioning, memory, objects, reading.mapping)
    files.foreseen = reading.foreseen
    files.maker.known_types = _remember_by(reading.schemas, state, memory).leaf_types
    notes = {found.lake_snapshot_id: found for found in state.snapshot_notes}
    aliased = frozenset(found.lake_snapshot_id for found in state.aliases)
    hidden = frozenset(move.lake_snapshot_id for move in state.notes.refs.moves)
    writer = ManifestWriter(deriver, files, reading.sources.visibility, note, notes=notes, aliased=aliased, hidden=hidden)
    writer.adopted = Adopted(conn, state, writer.maker, objects, memory, reading.sources.files)
    if reading.layout is not None:
        writer.adopted.digests.update(reading.layout.digests)
    if earlier is not None:
        files.has_unproven, files.breaks_vectors = earlier.has_unproven, earlier.breaks_vectors
        writer.visibility = {**earlier.visibility, **reading.sources.visibility}
        writer.totals, writer.written, writer.aliases = earlier.totals, dict(earlier.written), dict(earlier.aliases)
    return writer


def _still_aliased(writer: ManifestWriter, state: TableState) -> dict[int, Snapshot]:
    wanted = [note.lake_snapshot_id for note in state.aliases]
    return {snapshot_id: writer.aliases[snapshot_id] for snapshot_id in wanted if snapshot_id in writer.aliases}


def _count_base(writer: ManifestWriter, history: History) -> None:
    with writer.deriver.outbox.holding(is_hidden=_find_first(history) in writer.hidden):
        writer.count_base(history.base)


def _still_carried(written: Mapping[tuple[int, int], ManifestFile], shelves: Shelves) -> dict[tuple[int, int], ManifestFile]:
    carried = {(shelf.content, number) for shelf in shelves for number in shelf.plans}
    return {key: manifest for key, manifest in written.items() if key in carried}


def _still_live(visibility: Mapping[FileKey, Visibility], shelves: Shelves) -> dict[FileKey, Visibility]:
    live: Sequence[Iterable[FileKey]] = [shelf.where for shelf in shelves]
    return {key: found for key, found in visibility.items() if any(key in keys for keys in live)}
