"""The last step of a commit: its rows are written, the new state of its table gets its metadata version, and after COMMIT it is shown.

A commit of plain rows numbers the state in its own transaction, which saves a disk flush: by one statement with the rows if the state
can be predicted, else after the rows are read back. The lines of the audit log are rows of the same transaction on both ways. All others
are published by a load after COMMIT. Objects are written after COMMIT: no client can know their names before, and after a crash the next
load writes the same objects. Only full batches of a large commit are sent before it. `commits.commit` calls this, the first part in the
commit's transaction.
"""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from duckicelake.catalog.commits.lock import Locked
from duckicelake.catalog.commits.plan import Planned
from duckicelake.catalog.publish import MetadataDraft, build_draft, compute_updated_ms, publish_numbered
from duckicelake.catalog.snapshot_building import TableReading, build_foreseen_reading, read_own_commit
from duckicelake.catalog.table_cache import TableCache
from duckicelake.catalog.table_changes import load_committed_table, to_state_unknown
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError, CommitFailed
from duckicelake.lake.notes import assign_next_version, find_next_version
from duckicelake.lake.read import find_table
from duckicelake.lake.rows import TableNotes, TableState
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.idempotency import note_transaction
from duckicelake.lake.writing.read_back import is_simple, predict_state
from duckicelake.lake.writing.single_statement import MOST_ROWS, write_single_statement
from duckicelake.lake.writing.transaction import Commit
from duckicelake.lake.writing.waiting_sessions import LockYielded


@dataclass(frozen=True, slots=True)
class CachedBase:
    """The table of a commit of plain rows as it was before, and its cache, which is locked until the new state is published."""

    warehouse: Warehouse
    ident: Ident
    state: TableState
    cache: TableCache


@dataclass(frozen=True, slots=True)
class NumberedState:
    """The state of a table after a commit, with its metadata version; its objects are to be written as soon as the commit is done."""

    base: CachedBase
    draft: MetadataDraft
    notes: TableNotes


@dataclass(frozen=True, slots=True)
class Written:
    """The rows of a commit that waits for COMMIT: the uuid of its table if it is one, and the state of that if it is numbered."""

    table_uuid: UUID | None
    numbered: NumberedState | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that is in the lake, with the uuid of its table if it is one. `shown` is the table if the commit has published it.

    `refusals` are the errors of those members of a group that were left out, by their place in the group.
    """

    table_uuid: UUID | None
    shown: LoadedTable | None = None
    refusals: Mapping[int, CommitFailed] = field(default_factory=dict[int, CommitFailed])


@contextmanager
def writing(warehouse: Warehouse, locked: Locked, planned: Planned, *, yields: bool) -> Generator[Written]:
    """Write the rows of a commit, and number the state of its table if that is cheap; then its cache is locked until the end.

    Raises: LockYielded: with `yields`, a session of DuckDB is about to commit, and goes first
    """
    commit = locked.commit
    if yields and commit.locked_check is not None and commit.locked_check.has_waiting_session:
        raise LockYielded
    with ExitStack() as held:
        is_small = commit.locked_check is not None and len(planned.steps) == 1 and len(planned.steps[0].rows) <= MOST_ROWS
        base = held.enter_context(_locked_cache(warehouse, locked, planned)) if is_small else None
        result = None if base is None else _write_in_one_statement(base, commit, planned)
        if result is None:
            write_steps(commit, planned.steps, planned.notes)
            if planned.digest:
                note_transaction(commit.conn, planned.digest)
            if not is_small:
                # Many rows take long to write, and loads of the table wait for its cache.
                base = held.enter_context(_locked_cache(warehouse, locked, planned))
        table_uuid = _write_object(locked)
        # A session that started to wait after our check would lose this race; yield to it on the next attempt.
        if yields and (commit.has_waiting_session if result is None or result.numbered is None else result.has_waiting_session):
            raise LockYielded
        if result is None:
            numbered = None if base is None else _number(base, commit.conn)
        else:
            numbered = result.numbered
        yield Written(table_uuid, numbered)


def show(warehouse: Warehouse, written: Written, locked: Locked) -> Committed:
    """Return a commit that is done, with its table published if the commit has numbered that."""
    shown = None if written.numbered is None else _publish(warehouse, written.numbered)
    return Committed(written.table_uuid, shown, locked.refusals)


def load_committed(warehouse: Warehouse, ident: Ident, committed: Committed) -> LoadedTable:
    """Return the table after its commit. Raises: CommitStateUnknown: it cannot be shown now, but it is there."""
    return committed.shown or load_committed_table(warehouse, ident, committed.table_uuid)


@contextmanager
def _locked_cache(warehouse: Warehouse, locked: Locked, planned: Planned) -> Generator[CachedBase | None]:
    """Hold the cache of the only table of a commit of plain rows; None if the cache is not as the table was when the commit was prepared.

    A cache that holds a state of the commit is invalid until that is published: the state may never be committed.
    """
    prepared = locked.only_table
    if prepared is None or prepared.base.published is None or not planned.steps or planned.notes or not is_simple(planned.steps):
        yield None
        return
    published = prepared.base.published
    cache = warehouse.caches.of(published.state.table.table_id)
    # Do not wait: the holder may take long, and all writers wait for the lake's lock.
    if not cache.lock.acquire(blocking=False):
        yield None
        return
    known = cache.table
    is_known = not cache.is_invalid and known.published is published and known.built is not None and cache.files.known_uris is not None
    try:
        yield CachedBase(warehouse, prepared.request.ident, published.state, cache) if is_known else None
    finally:
        if cache.is_invalid:
            warehouse.caches.forget(published.state.table.table_id, cache)
        cache.lock.release()


@dataclass(frozen=True, slots=True)
class _OneStatement:
    """The result of writing a commit in one statement. `numbered` is None if another server has numbered the table meanwhile."""

    numbered: NumberedState | None
    has_waiting_session: bool


def _write_in_one_statement(base: CachedBase, commit: Commit, planned: Planned) -> _OneStatement | None:
    """Write a small commit and the number of the state that it makes by one statement; None if the state cannot be predicted."""
    built, step = base.cache.table.built, planned.steps[0]
    if built is None:
        return None
    foreseen = predict_state(commit, base.state, step, built.since)
    reading = None if foreseen is None else build_foreseen_reading(base.warehouse.objects, foreseen, base.cache)
    draft = None if reading is None else _build_draft(base, commit.conn, reading)
    if foreseen is None or draft is None or foreseen.state.changed_at is None:
        return None
    version = find_next_version(draft.wanted, draft.state.notes, compute_updated_ms(draft.state, draft.metadata))
    if version is None:
        return None
    result = write_single_statement(commit, step, foreseen.state.changed_at, version.parameters)
    return _OneStatement(NumberedState(base, draft, version.notes) if result.is_numbered else None, result.has_waiting_session)


def _number(base: CachedBase, conn: psycopg.Connection) -> NumberedState | None:
    """Number the table as this transaction leaves it; None if more must be read than the rows of the commit."""
    if base.cache.is_invalid:
        return None
    try:
        reading = read_own_commit(conn, base.warehouse.objects, base.state, base.cache)
    except CatalogError:
        # The load after the commit reports the error.
        return None
    draft = None if reading is None else _build_draft(base, conn, reading)
    if draft is None:
        return None
    notes = assign_next_version(conn, draft.wanted, draft.state.notes, compute_updated_ms(draft.state, draft.metadata))
    return None if notes is None else NumberedState(base, draft, notes)


def _build_draft(base: CachedBase, conn: psycopg.Connection, reading: TableReading) -> MetadataDraft | None:
    base.cache.is_invalid = True
    try:
        return build_draft(conn, base.warehouse.objects, reading, base.cache)
    except CatalogError:
        # The load after the commit reports the error.
        return None


def _write_object(locked: Locked) -> UUID | None:
    """Return the uuid of the commit's table, if it is one; of a new one it is stored with the request's key here."""
    prepared = locked.only_table
    if prepared is None:
        return None
    if prepared.base.row is not None:
        return prepared.base.row.table_uuid
    made = find_table(locked.commit.conn, *prepared.request.ident.stored)
    if made is not None:
        locked.commit.write_object(made.table_uuid)
    return None if made is None else made.table_uuid


def _publish(warehouse: Warehouse, numbered: NumberedState) -> LoadedTable:
    """Write the objects of a numbered state. Raises: CommitStateUnknown: it cannot be shown now, but it is there."""
    base, draft = numbered.base, numbered.draft
    cache, table_id = base.cache, base.state.table.table_id
    try:
        draft.uploads.flush()
        cache.table = publish_numbered(warehouse.objects, draft, numbered.notes, cache, answers_commit=True)
    except CatalogError as error:
        raise to_state_unknown(base.ident, error) from error
    cache.is_invalid = False
    warehouse.caches.estimate_size(table_id, cache)
    published = cache.table.published
    assert published is not None
    local_file = warehouse.objects.find_local_path(published.metadata_location)
    parts = published.metadata_location, published.encoded, dict[str, str](), table_id, published.position, local_file
    return LoadedTable(*parts, digest=published.digest, published=published)
