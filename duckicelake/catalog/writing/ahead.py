"""A commit that shows its table itself: read, folded and numbered in its own transaction, so that Postgres waits for the disk once.

What is not as plain as most commits are is shown by the load that follows it. Objects are written after COMMIT only: until
then nobody can know their names, and after a crash the next load writes the same ones.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from duckicelake.catalog.fold import read_on
from duckicelake.catalog.memory import TableMemory
from duckicelake.catalog.publish import Draft, find_updated_ms, make_draft, show
from duckicelake.catalog.tables import LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.bases import Base
from duckicelake.catalog.writing.tables import cannot_show
from duckicelake.errors import CatalogError
from duckicelake.lake.notes import number_next
from duckicelake.lake.rows import TableNotes
from duckicelake.lake.writing.read_back import is_plain
from duckicelake.lake.writing.rows import LakeStep


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
        return LoadedTable(location, published.encoded, {}, table_id, published.position, local_file)


@contextmanager
def numbered_ahead(warehouse: Warehouse, conn: psycopg.Connection, base: Base, steps: Sequence[LakeStep]) -> Generator[Ahead | None]:
    """Number the table as this transaction leaves it, if that is easy, and keep its memory for its showing.

    Whatever goes wrong until the end, the memory is lost: it knows of what may never have been.
    """
    if base.table is None or base.published is None or not steps or not is_plain(steps):
        yield None
        return
    memory = warehouse.memories.of(base.table.table_id)
    # whoever holds it may take long, and everybody waits for the lake's lock
    if not memory.lock.acquire(blocking=False):
        yield None
        return
    try:
        is_known = memory.published is base.published and memory.known_uris is not None
        made = _number(warehouse, conn, base, memory) if is_known else None
        if is_known and made is None:
            _lose(warehouse, base.table.table_id, memory)
        yield made
    except BaseException:
        _lose(warehouse, base.table.table_id, memory)
        raise
    finally:
        memory.lock.release()


def _number(warehouse: Warehouse, conn: psycopg.Connection, base: Base, memory: TableMemory) -> Ahead | None:
    assert base.published is not None
    try:
        reading = read_on(conn, warehouse.objects, base.published.state, memory)
        draft = None if reading is None else make_draft(conn, warehouse.objects, reading, memory)
    except CatalogError:
        # the load that follows the commit tells what is wrong
        return None
    if draft is None:
        return None
    notes = number_next(conn, draft.wanted, draft.state.notes, find_updated_ms(draft.state, draft.metadata))
    return None if notes is None else Ahead(base, draft, notes, memory)


def _lose(warehouse: Warehouse, table_id: int, memory: TableMemory) -> None:
    memory.is_lost = True
    warehouse.memories.forget(table_id, memory)
