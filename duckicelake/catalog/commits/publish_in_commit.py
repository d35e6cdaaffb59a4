"""Publishing within the commit: the new table state is read and numbered in the commit's transaction, which saves a disk flush.

Less simple commits are published by a load after COMMIT. Objects are written after COMMIT: no client can know their
names before, and after a crash the next load writes the same objects. Only full batches of a large commit are sent before it.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from duckicelake.catalog.commits.prepare import CommitBase
from duckicelake.catalog.publish import MetadataDraft, build_draft, compute_updated_ms, publish_numbered
from duckicelake.catalog.snapshot_building import TableReading, build_foreseen_reading, read_own_commit
from duckicelake.catalog.table_cache import TableCache
from duckicelake.catalog.table_changes import to_state_unknown
from duckicelake.catalog.tables import LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError
from duckicelake.lake.notes import assign_next_version, find_next_version
from duckicelake.lake.rows import TableNotes
from duckicelake.lake.writing.read_back import is_simple, predict_state
from duckicelake.lake.writing.rows import LakeStep, NewRow
from duckicelake.lake.writing.single_statement import MOST_ROWS, write_single_statement
from duckicelake.lake.writing.transaction import Commit


@dataclass(frozen=True, slots=True)
class NumberedCommit:
    """A table as a commit leaves it, with its number; its objects are to be written as soon as the commit is done."""

    base: CommitBase
    draft: MetadataDraft
    notes: TableNotes
    cache: TableCache

    def publish(self, warehouse: Warehouse) -> LoadedTable:
        """Return the table after its commit. Raises: CommitStateUnknown: it cannot be shown now, but it is there."""
        assert self.base.table is not None
        try:
            self.draft.uploads.flush()
            published = publish_numbered(warehouse.objects, self.draft, self.notes, self.cache, answers_commit=True)
        except CatalogError as error:
            raise to_state_unknown(self.base.ident, error) from error
        table_id, location = self.base.table.table_id, published.metadata_location
        self.cache.published = published
        warehouse.caches.estimate_size(table_id, self.cache)
        local_file = warehouse.objects.find_local_path(location)
        parts = location, published.encoded, dict[str, str](), table_id, published.position, local_file
        return LoadedTable(*parts, digest=published.digest, published=published)


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """The rows of a commit: a step for each lake snapshot, and notes that need none."""

    steps: Sequence[LakeStep]
    notes: Sequence[NewRow]

    @property
    def is_simple(self) -> bool:
        """Return True if all rows change only properties and the newest files."""
        return bool(self.steps) and not self.notes and is_simple(self.steps)


@dataclass(frozen=True, slots=True)
class WrittenCommit:
    """The state of a commit: if it is written, and its table if that has its metadata version.

    `has_waiting_session`: DuckDB was about to commit; None if that was not checked.
    """

    is_written: bool = False
    numbered: NumberedCommit | None = None
    has_waiting_session: bool | None = None


@contextmanager
def written_in_one_statement(warehouse: Warehouse, commit: Commit, base: CommitBase, planned: PlannedCommit) -> Generator[WrittenCommit]:
    """Write a small plain commit and the number of the state that it makes by one statement, if they can be predicted.

    After any failure the cache is invalidated: it may hold a state that was never committed.
    """
    is_small = len(planned.steps) == 1 and len(planned.steps[0].rows) <= MOST_ROWS
    if commit.locked_check is None or not planned.is_simple or not is_small:
        yield WrittenCommit()
        return
    with _locked_cache(warehouse, base) as cache:
        done = WrittenCommit() if cache is None else _write_in_one_statement(warehouse, commit, base, planned.steps[0], cache)
        if done.is_written:
            yield done
            return
    # what comes next needs the memory too
    yield done


def _write_in_one_statement(warehouse: Warehouse, commit: Commit, base: CommitBase, step: LakeStep, cache: TableCache) -> WrittenCommit:
    assert base.table is not None
    assert base.published is not None
    assert cache.built is not None
    foreseen = predict_state(commit, base.published.state, step, cache.built.since)
    reading = None if foreseen is None else build_foreseen_reading(warehouse.objects, foreseen, cache)
    if foreseen is None or reading is None:
        return WrittenCommit()
    draft = _make_draft(warehouse, commit.conn, reading, cache)
    version = None if draft is None else find_next_version(draft.wanted, draft.state.notes, compute_updated_ms(draft.state, draft.metadata))
    changed_at = foreseen.state.changed_at
    assert changed_at is not None
    if draft is None or version is None:
        _invalidate(warehouse, base.table.table_id, cache)
        return WrittenCommit()
    written = write_single_statement(commit, step, changed_at, version.parameters)
    if written.is_numbered:
        return WrittenCommit(True, NumberedCommit(base, draft, version.notes, cache), written.has_waiting_session)
    _invalidate(warehouse, base.table.table_id, cache)
    return WrittenCommit(is_written=True)


@contextmanager
def numbered_in_commit(
    warehouse: Warehouse, conn: psycopg.Connection, base: CommitBase, planned: PlannedCommit
) -> Generator[NumberedCommit | None]:
    """Number the table as this transaction leaves it, if that is cheap, and keep its cache locked until it is published.

    After any failure the cache is invalidated: it may hold a state that was never committed.
    """
    if not planned.is_simple:
        yield None
        return
    with _locked_cache(warehouse, base) as cache:
        made = None if cache is None else _number(warehouse, conn, base, cache)
        if cache is not None and made is None:
            assert base.table is not None
            _invalidate(warehouse, base.table.table_id, cache)
        yield made


@contextmanager
def _locked_cache(warehouse: Warehouse, base: CommitBase) -> Generator[TableCache | None]:
    """Hold the memory of a table that is as the base was read, None when it is not; it is lost when anything goes wrong."""
    if base.table is None or base.published is None:
        yield None
        return
    cache = warehouse.caches.of(base.table.table_id)
    # Do not wait: the holder may take long, and all writers wait for the lake's lock.
    if not cache.lock.acquire(blocking=False):
        yield None
        return
    is_known = not cache.is_invalid and cache.published is base.published and cache.known_uris is not None and cache.built is not None
    try:
        yield cache if is_known else None
    except BaseException:
        _invalidate(warehouse, base.table.table_id, cache)
        raise
    finally:
        cache.lock.release()


def _number(warehouse: Warehouse, conn: psycopg.Connection, base: CommitBase, cache: TableCache) -> NumberedCommit | None:
    assert base.published is not None
    try:
        reading = read_own_commit(conn, warehouse.objects, base.published.state, cache)
    except CatalogError:
        # The load after the commit reports the error.
        return None
    draft = None if reading is None else _make_draft(warehouse, conn, reading, cache)
    if draft is None:
        return None
    notes = assign_next_version(conn, draft.wanted, draft.state.notes, compute_updated_ms(draft.state, draft.metadata))
    return None if notes is None else NumberedCommit(base, draft, notes, cache)


def _make_draft(warehouse: Warehouse, conn: psycopg.Connection, reading: TableReading, cache: TableCache) -> MetadataDraft | None:
    try:
        return build_draft(conn, warehouse.objects, reading, cache)
    except CatalogError:
        # The load after the commit reports the error.
        return None


def _invalidate(warehouse: Warehouse, table_id: int, cache: TableCache) -> None:
    cache.is_invalid = True
    warehouse.caches.forget(table_id, cache)
