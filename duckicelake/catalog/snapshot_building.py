"""The Iceberg snapshots of a table, built from its rows: from the first one, or on from an earlier load.

`publish` calls this in a read transaction, and `commits.write` in the commit's transaction under the lake's lock, both with the table's
cache locked. `manifest_import`, `commits.unreadable` and `duckicelake check` call it in a read transaction, mostly with a cache of their
own. Objects go to an `UploadQueue`, which sends full batches while the transaction is open, and as a rule does not let it wait for the
store. What `FileCache` does not know is read from the store within the transaction: the list of the table's objects, delete files, merged
data files (through `row_files`) and footers of files with a name mapping (through `manifests`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter

import psycopg

from duckicelake.catalog.manifest_import.imported import ImportedManifests, Submission
from duckicelake.catalog.manifests import DataFiles, ManifestWriter, VariantRewriter
from duckicelake.catalog.row_files import FileDeriver, RowFiles, collect_row_files, without_lost_snapshots
from duckicelake.catalog.table_cache import BuiltHistory, FileCache, SchemaCache, TableCache, UploadQueue
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.snapshots import Snapshots
from duckicelake.lake.changes import REWRITE_KINDS, kinds_of_table
from duckicelake.lake.null_proofs import compute_default_ends, list_required, read_repeated_files
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import TableNote, TableRow, TableState
from duckicelake.lake.writing.read_back import PredictedState, read_back
from duckicelake.store.objects import Objects
from duckicelake.translate.client_schemas import with_client_specs
from duckicelake.translate.locations import table_folder
from duckicelake.translate.manifests import KEY_OF, ManifestSets, SnapshotPlan, new_manifest_sets, plan_manifests
from duckicelake.translate.name_mapping import NameMapping, to_name_mapping
from duckicelake.translate.partitions import Partitioning, to_partitioning
from duckicelake.translate.schemas import Schemas, to_schemas
from duckicelake.translate.types import with_nullable
from duckicelake.translate.unreadable_columns import hides_columns
from duckicelake.translate.visibility import FileKey, TableHistory, Visibility, build_history, check_repeated


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    """The manifests of a history. `manifest_sets` are as the last snapshot leaves them, when all `snapshots` have been asked for.

    `has_unproven`: some file is under a spec that claims nothing. `digests` identify large manifests, by content and number.
    """

    history: TableHistory
    manifest_sets: ManifestSets
    snapshots: Iterable[SnapshotPlan]
    has_unproven: bool
    digests: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])


SINCE_THE_BEGINNING = LastRead()
NOTHING_HIDDEN = (b"", b"", b"")
AFTER_ALL_SNAPSHOTS = 2**63 - 1
"""Later than any lake snapshot: the oldest row of a table that has none."""


@dataclass(frozen=True, slots=True)
class TableReading:
    """One state and what has been found out about it. `earlier` is what an earlier load left, when it can go on; `layout` is all that
    its manifests are, if they were planned before. `submission` are manifests that are offered for it.
    """

    state: TableState
    sources: RowFiles
    schema_cache: SchemaCache
    partitioning: Partitioning
    oldest_row: int
    earlier: BuiltHistory | None
    foreseen: PredictedState | None = None
    layout: ManifestLayout | None = None
    submission: Submission | None = None

    @property
    def schemas(self) -> Schemas:
        """The schemas of the table."""
        return self.schema_cache.schemas

    @property
    def mapping(self) -> NameMapping:
        """The names of columns in the table's files."""
        return self.schema_cache.mapping


def read_changes(conn: psycopg.Connection, objects: Objects, table: TableRow, cache: TableCache) -> TableReading:
    """Read what changed since the last load, or everything when the past has been rewritten, expired or never read.

    Raises: Unsupported: something in the table is not published, by name and remedy. NotFound: a file is missing
    """
    built, reading = cache.table.built, None
    if built is not None:
        reading = _build_reading(objects, read_table(conn, table, built.since), cache, built)
    return read_state(conn, objects, read_table(conn, table, SINCE_THE_BEGINNING), cache) if reading is None else _checked(conn, reading)


def read_state(conn: psycopg.Connection, objects: Objects, state: TableState, cache: TableCache) -> TableReading:
    """Return the reading of a state that was read from the table's beginning on. Raises what `read_changes` raises."""
    reading = _build_reading(objects, state, cache, None)
    assert reading is not None
    return _checked(conn, reading)


def _checked(conn: psycopg.Connection, reading: TableReading) -> TableReading:
    _check_repeated(conn, reading)
    return reading


def _check_repeated(conn: psycopg.Connection, reading: TableReading) -> None:
    """Refuse a file that was added twice and has deletes; only files that DuckLake did not write itself can be."""
    state = reading.state
    if state.name_mappings:
        earlier: Mapping[FileKey, Visibility] = reading.earlier.visibility if reading.earlier else {}
        files = read_repeated_files(conn, state.table.table_id, table_folder(state.data_path, state.table))
        check_repeated(files, {**earlier, **reading.sources.visibility})


def _build_reading(objects: Objects, state: TableState, cache: TableCache, earlier: BuiltHistory | None) -> TableReading | None:
    if earlier is not None and not _is_continuation(state, earlier):
        return None
    folder = table_folder(state.data_path, state.table)
    required = list_required(state.columns, state.notes.schemas)
    if earlier is not None and not required <= earlier.required:
        # the files that were read before were not asked for NULLs of these columns
        return None
    state = with_nullable(state, compute_default_ends(state.columns, required), earlier.nullable if earlier else ())
    if earlier is not None and not set(earlier.lacked) <= set(state.lacked):
        state = replace(state, lacked=sorted({*earlier.lacked, *state.lacked}))
    if earlier is not None and not set(earlier.too_large) <= set(state.too_large):
        state = replace(state, too_large=sorted({*earlier.too_large, *state.too_large}))
    state = without_lost_snapshots(objects, folder, state, cache.files)
    sources = collect_row_files(objects, folder, state, cache.files)
    first = min(map(attrgetter("begin_snapshot"), sources.files), default=AFTER_ALL_SNAPSHOTS)
    oldest_row = first if earlier is None else min(first, earlier.oldest_row)
    schema_cache = _get_schema_cache(state, oldest_row, bool(sources.visibility), cache)
    schemas, mapping = schema_cache.schemas, schema_cache.mapping
    partitioning = to_partitioning(state.partitions, schemas.current, state.notes.specs)
    partitioning = with_client_specs(partitioning, state.partitions, schemas.current, state.notes)
    shape = (schemas.format_version, schemas.hidden, mapping.format())
    if earlier is not None and shape != (earlier.format_version, earlier.hidden, earlier.name_mapping):
        return None
    if earlier is not None and schemas.list_ids(earlier.since.lake_snapshot_id) != earlier.schema_ids:
        return None
    if earlier is not None and (partitioning.specs[: len(earlier.specs)] != earlier.specs or _has_late_deletes(sources, earlier)):
        return None
    return TableReading(state, sources, schema_cache, partitioning, oldest_row, earlier)


def _get_schema_cache(state: TableState, oldest_row: int, has_deletes: bool, cache: TableCache) -> SchemaCache:
    """Return the table's schemas, those made last where all that they are made of is as it was then."""
    notes, note = state.notes, state.notes.table
    numbers = None if note is None else (note.format_version, note.last_column_id)
    told = (notes.schemas, notes.shapes, numbers, state.too_large, state.lacked, state.nullable)
    shown = (state.columns, state.column_tags, hides_columns(state.tags))
    source = (state.table, shown, state.name_mappings, told, oldest_row, has_deletes)
    built = cache.table.built
    if built is not None and built.schema_cache.source == source:
        return built.schema_cache
    return SchemaCache(source, to_schemas(state, oldest_row, has_deletes=has_deletes), to_name_mapping(state.name_mappings, state.columns))


def _is_continuation(state: TableState, earlier: BuiltHistory) -> bool:
    """Return True if nothing that the earlier load read was expired or rewritten since."""
    if state.history_id != earlier.history_id:
        return False
    # an expired snapshot is shown for as long as it is the current one
    if state.snapshots and any(shown.snapshot_id < state.oldest.snapshot_id for shown in earlier.snapshots[:1]):
        return False
    kinds = [kinds_of_table(row.changes_made, state.table.table_id) for row in state.snapshots]
    return all(found and not found & REWRITE_KINDS for found in kinds)


def _has_late_deletes(sources: RowFiles, earlier: BuiltHistory) -> bool:
    """Return True if a delete begins at a lake snapshot that was built before, which a retried commit may cause."""
    since = earlier.since.lake_snapshot_id
    for key, visibility in sources.visibility.items():
        old = earlier.visibility.get(key)
        if visibility.until(since) != (NOTHING_HIDDEN if old is None else old.until(since)):
            return True
    return False


def read_own_commit(conn: psycopg.Connection, objects: Objects, known: TableState, cache: TableCache) -> TableReading | None:
    """Read what the commit in this transaction did to a table that is as `known` otherwise; None when more must be read.

    Only for commits of plain rows: see `lake.writing.read_back`.
    """
    built = cache.table.built
    if built is None:
        return None
    state = read_back(conn, known, built.since)
    reading = None if state is None else _build_reading(objects, state, cache, built)
    if reading is not None:
        _check_repeated(conn, reading)
    return reading


def build_foreseen_reading(objects: Objects, foreseen: PredictedState, cache: TableCache) -> TableReading | None:
    """Return the reading that a commit foresees of its table, None when more must be read."""
    built = cache.table.built
    reading = None if built is None else _build_reading(objects, foreseen.state, cache, built)
    return None if reading is None else replace(reading, foreseen=foreseen)


def build_snapshots(
    conn: psycopg.Connection, objects: Objects, reading: TableReading, note: TableNote, cache: FileCache
) -> tuple[BuiltHistory, UploadQueue]:
    """Return all snapshots of the table that was read and how to go on from them, and their objects, not shipped yet."""
    earlier, state = reading.earlier, reading.state
    before = earlier.snapshots if earlier else Snapshots(())
    after_ms = before[-1].timestamp_ms if before else 0
    known = reading.layout
    history = known.history if known else build_history(state, reading.sources.files, reading.sources.visibility, after_ms)
    writer = build_manifest_writer(conn, objects, reading, note, cache)
    _derive_rows(writer, history, reading)
    with closing(writer.files):
        if earlier is None:
            _count_base(writer, history)
        layout = known or plan_layout(history, writer.files, earlier.manifest_sets if earlier else None)
        writer.files.has_unproven |= layout.has_unproven
        snapshots = before.with_added(writer.write_snapshots(layout.snapshots, before[-1].snapshot_id if before else None))
    manifest_sets = layout.manifest_sets
    written = _select_listed(writer.written, manifest_sets)
    built = BuiltHistory(
        since=LastRead(state.position.lake_snapshot_id, state.next_file_id),
        history_id=state.history_id,
        oldest_row=reading.oldest_row,
        lacked=state.lacked,
        too_large=state.too_large,
        required=list_required(state.columns, state.notes.schemas),
        nullable=state.nullable,
        specs=reading.partitioning.specs,
        format_version=reading.schemas.format_version,
        hidden=reading.schemas.hidden,
        schema_ids=reading.schemas.list_ids(state.position.lake_snapshot_id),
        name_mapping=reading.mapping.format(),
        manifest_sets=manifest_sets,
        written=written,
        held=writer.deriver.uploads.list_held(manifest.manifest_path for manifest in written.values()),
        totals=writer.totals,
        snapshots=snapshots,
        visibility=_select_live(writer.visibility, manifest_sets),
        has_unproven=writer.files.has_unproven,
        breaks_vectors=writer.files.breaks_vectors,
        newest_list=writer.newest_list,
        schema_cache=reading.schema_cache,
    )
    return built, writer.deriver.uploads


def plan_layout(history: TableHistory, files: DataFiles, manifest_sets: ManifestSets | None = None) -> ManifestLayout:
    """Return the manifests of a history, continuing from the `manifest_sets` of an earlier load; snapshots are planned lazily."""
    files.assign_specs(map(KEY_OF, chain(history.base.added, *(step.added for step in history.steps))))
    manifest_sets = new_manifest_sets(history, files.spec_of) if manifest_sets is None else manifest_sets
    return ManifestLayout(history, manifest_sets, plan_manifests(history.steps, manifest_sets, files.spec_of), files.has_unproven)


def _derive_rows(writer: ManifestWriter, history: TableHistory, reading: TableReading) -> None:
    """Make the files of rows that lie in Postgres, or elsewhere by now; those of hidden snapshots are held back."""
    derived = reading.sources.derived
    steps = [(_get_first_snapshot_id(history), history.base), *((step.snapshot_id, step) for step in history.steps)]
    for is_hidden in (False, True):
        keys = [file.key for i, step in steps if (i in writer.hidden) == is_hidden for file in step.added if file.key in derived]
        with writer.deriver.uploads.holding(is_hidden=is_hidden):
            writer.deriver.derive_rows({key: derived[key] for key in keys})


def _get_first_snapshot_id(history: TableHistory) -> int:
    """Return the snapshot in whose manifests is what came before it."""
    return history.steps[0].snapshot_id if history.steps else history.base.snapshot_id


def build_manifest_writer(
    conn: psycopg.Connection, objects: Objects, reading: TableReading, note: TableNote, cache: FileCache
) -> ManifestWriter:
    """Return what writes the manifests of the table that was read."""
    state, earlier = reading.state, reading.earlier
    if cache.known_uris is None:
        # an earlier process may have written objects: what is there is listed once
        cache.known_uris = {uri for uri, _ in objects.list_under(note.location)} if state.notes.table else set()
    if earlier is None:
        cache.data_files.clear()
        cache.checked_files.clear()
    uploads = UploadQueue(objects, cache.known_uris, held=dict(earlier.held) if earlier is not None else {})
    deriver = FileDeriver(state, note.location, cache, uploads, reading.schemas)
    folder = table_folder(state.data_path, state.table)
    files = DataFiles(conn, state.table.table_id, folder, reading.schemas, reading.partitioning, cache, objects, reading.mapping)
    files.rewriter = VariantRewriter(note.location, objects, uploads)
    files.foreseen = reading.foreseen
    files.maker.known_types = reading.schema_cache.leaf_types
    notes = {found.lake_snapshot_id: found for found in state.snapshot_notes}
    hidden = frozenset(move.lake_snapshot_id for move in state.notes.refs.moves)
    writer = ManifestWriter(deriver, files, reading.sources.visibility, note, notes=notes, hidden=hidden)
    writer.adopted = ImportedManifests(conn, state, writer.maker, objects, cache, reading.sources.files, reading.submission)
    if reading.layout is not None:
        writer.adopted.digests.update(reading.layout.digests)
    if earlier is not None:
        files.has_unproven, files.breaks_vectors = earlier.has_unproven, earlier.breaks_vectors
        writer.visibility = {**earlier.visibility, **reading.sources.visibility}
        writer.totals, writer.written, writer.newest_list = earlier.totals, dict(earlier.written), earlier.newest_list
    return writer


def _count_base(writer: ManifestWriter, history: TableHistory) -> None:
    with writer.deriver.uploads.holding(is_hidden=_get_first_snapshot_id(history) in writer.hidden):
        writer.count_base(history.base)


def _select_listed(written: Mapping[tuple[int, int], ManifestFile], manifest_sets: ManifestSets) -> dict[tuple[int, int], ManifestFile]:
    carried = {(manifest_set.content, number) for manifest_set in manifest_sets for number in manifest_set.plans}
    return {key: manifest for key, manifest in written.items() if key in carried}


def _select_live(visibility: Mapping[FileKey, Visibility], manifest_sets: ManifestSets) -> dict[FileKey, Visibility]:
    live: Sequence[Iterable[FileKey]] = [manifest_set.where for manifest_set in manifest_sets]
    return {key: found for key, found in visibility.items() if any(key in keys for keys in live)}
