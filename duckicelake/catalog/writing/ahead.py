"""A commit that shows its table itself: read, folded and numbered in its own transaction, so that Postgres waits for the disk once.

What is not as plain as most commits are is shown by the load that follows it. Objects are written after COMMIT only: until
then nobody can know their names, and after a crash the next load writes the same ones.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from duckicelake.catalog.fold import Reading, foresee_on, read_on
from duckicelake.catalog.memory import TableMemory
from duckicelake.catalog.publish import Draft, find_updated_ms, make_draft, show
from duckicelake.catalog.tables import LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.bases import Base
from duckicelake.catalog.writing.tables import cannot_show
from duckicelake.errors import CatalogError
from duckicelake.lake.notes import find_next_version, number_next
from duckicelake.lake.rows import TableNotes
from duckicelake.lake.writing.at_once import MOST_ROWS, write_at_once
from duckicelake.lake.writing.read_back import foresee, is_plain
from duckicelake.lake.writing.rows import LakeStep, NewRow
from duckicelake.lake.writing.transaction import Commit


@dataclass(frozen=True, slots=True)
class Ahead:
    """A table as a commit leaves it, with its number; its objects are to be written as soon as the commit is done."""

    base: Base
    draft: Draft
    notes: TableNotes
    memory: TableMemory

    def show(self, warehouse: Warehouse) -> LoadedTable:
        """Return the table after its commit. Raises: CommitStateUnknown: it cannot be shown now, but it is there."""
        assert self.base.table is not None
        try:
            self.draft.outbox.ship()
            published = show(warehouse.objects, self.draft, self.notes, self.memory)
        except CatalogError as error:
            raise cannot_show(self.base.ident, error) from error
        table_id, location = self.base.table.table_id, published.metadata_location
        self.memory.published = published
        warehouse.memories.weigh(table_id, self.memory)
        local_file = warehouse.objects.find_local_path(location)
        return LoadedTable(location, published.encoded, {}, table_id, published.position, local_file, digest=published.digest)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a commit writes: a step for each lake snapshot, and notes that make none."""

    steps: Sequence[LakeStep]
    notes: Sequence[NewRow]

    @property
    def is_plain(self) -> bool:
        """Tell whether all of it is rows that change nothing but properties and the newest files."""
        return bool(self.steps) and not self.notes and is_plain(self.steps)


@dataclass(frozen=True, slots=True)
class Done:
    """Whether a commit has been written, and its table as it leaves it, when that has its number.

    `is_in_the_way`: DuckDB was about to commit then; None when nobody has looked.
    """

    is_written: bool = False
    ahead: Ahead | None = None
    is_in_the_way: bool | None = None


@contextmanager
def committed_at_once(warehouse: Warehouse, commit: Commit, base: Base, planned: Planned) -> Generator[Done]:
    """Write a small plain commit and the number of the state that it makes by one statement, if they can be foreseen.

    Whatever goes wrong until the end, the memory is lost: it knows of what may never have been.
    """
    is_small = len(planned.steps) == 1 and len(planned.steps[0].rows) <= MOST_ROWS
    if commit.opening is None or not planned.is_plain or not is_small:
        yield Done()
        return
    with _holding(warehouse, base) as memory:
        done = Done() if memory is None else _write_at_once(warehouse, commit, base, planned.steps[0], memory)
        if done.is_written:
            yield done
            return
    # what comes next needs the memory too
    yield done


def _write_at_once(warehouse: Warehouse, commit: Commit, base: Base, step: LakeStep, memory: TableMemory) -> Done:
    assert base.table is not None
    assert base.published is not None
    assert memory.folded is not None
    foreseen = foresee(commit, base.published.state, step, memory.folded.since)
    reading = None if foreseen is None else foresee_on(warehouse.objects, foreseen, memory)
    if foreseen is None or reading is None:
        return Done()
    draft = _make_draft(warehouse, commit.conn, reading, memory)
    version = None if draft is None else find_next_version(draft.wanted, draft.state.notes, find_updated_ms(draft.state, draft.metadata))
    changed_at = foreseen.state.changed_at
    assert changed_at is not None
    if draft is None or version is None:
        _lose(warehouse, base.table.table_id, memory)
        return Done()
    written = write_at_once(commit, step, changed_at, version.parameters)
    if written.is_numbered:
        return Done(True, Ahead(base, draft, version.notes, memory), written.is_in_the_way)
    _lose(warehouse, base.table.table_id, memory)
    return Done(is_written=True)


@contextmanager
def numbered_ahead(warehouse: Warehouse, conn: psycopg.Connection, base: Base, planned: Planned) -> Generator[Ahead | None]:
    """Number the table as this transaction leaves it, if that is easy, and keep its memory for its showing.

    Whatever goes wrong until the end, the memory is lost: it knows of what may never have been.
    """
    if not planned.is_plain:
        yield None
        return
    with _holding(warehouse, base) as memory:
        made = None if memory is None else _number(warehouse, conn, base, memory)
        if memory is not None and made is None:
            assert base.table is not None
            _lose(warehouse, base.table.table_id, memory)
        yield made


@contextmanager
def _holding(warehouse: Warehouse, base: Base) -> Generator[TableMemory | None]:
    """Hold the memory of a table that is as the base was read, None when it is not; it is lost when anything goes wrong."""
    if base.table is None or base.published is None:
        yield None
        return
    memory = warehouse.memories.of(base.table.table_id)
    # whoever holds it may take long, and everybody waits for the lake's lock
    if not memory.lock.acquire(blocking=False):
        yield None
        return
    is_known = not memory.is_lost and memory.published is base.published and memory.known_uris is not None and memory.folded is not None
    try:
        yield memory if is_known else None
    except BaseException:
        _lose(warehouse, base.table.table_id, memory)
        raise
    finally:
        memory.lock.release()


def _number(warehouse: Warehouse, conn: psycopg.Connection, base: Base, memory: TableMemory) -> Ahead | None:
    assert base.published is not None
    try:
        reading = read_on(conn, warehouse.objects, base.published.state, memory)
    except CatalogError:
        # the load that follows the commit tells what is wrong
        return None
    draft = None if reading is None else _make_draft(warehouse, conn, reading, memory)
    if draft is None:
        return None
    notes = number_next(conn, draft.wanted, draft.state.notes, find_updated_ms(draft.state, draft.metadata))
    return None if notes is None else Ahead(base, draft, notes, memory)


def _make_draft(warehouse: Warehouse, conn: psycopg.Connection, reading: Reading, memory: TableMemory) -> Draft | None:
    try:
        return make_draft(conn, warehouse.objects, reading, memory)
    except CatalogError:
        # the load that follows the commit tells what is wrong
        return None


def _lose(warehouse: Warehouse, table_id: int, memory: TableMemory) -> None:
    memory.is_lost = True
    warehouse.memories.forget(table_id, memory)
