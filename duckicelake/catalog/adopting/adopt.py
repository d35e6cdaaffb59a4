"""Taking over manifests that executors made: one call, which publishes the table with them, or takes none.

What is ready sooner may be looked at before that, while executors make the others.
"""

import random
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version

import psycopg

from duckicelake.catalog.adopting.adopted import PACKAGE, draw
from duckicelake.catalog.adopting.kept import KeptPlan
from duckicelake.catalog.adopting.offers import Looks, Offer, OfferedManifest
from duckicelake.catalog.fold import make_writer
from duckicelake.catalog.memory import TableMemory
from duckicelake.catalog.publish import Reader, publish
from duckicelake.catalog.tables import LOAD_TRIES, Ident, check_memory, see
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CommitFailed, LakeMoved
from duckicelake.lake.connect import look, reading
from duckicelake.lake.notes import read_notes
from duckicelake.lake.read import is_touched
from duckicelake.lake.rows import Position

__all__ = ["OfferedManifest", "Position", "adopt_manifests"]


def adopt_manifests(warehouse: Warehouse, ident: Ident, planned: Position, made_by: str, manifests: Mapping[str, OfferedManifest]) -> int:
    """Publish a table with manifests that were planned at a position, note them, and return how many they are.

    All of them are looked at first, and some made again: see `Adopted`. A load never takes any that was not.
    Raises: NoSuchTable. CommitFailed: the table is not as it was planned any more. BadRequest: something that is offered is not there,
    or is not what it should be; none is taken then. Unsupported: something in the table is not published
    """
    _check_version(made_by)
    for attempt in range(1, LOAD_TRIES + 1):
        try:
            _publish(warehouse, ident, planned, manifests)
        except LakeMoved:
            if attempt == LOAD_TRIES:
                raise
        else:
            return len(manifests)
    raise AssertionError("unreachable")


def look_at_manifests(warehouse: Warehouse, ident: Ident, planned: Position, made_by: str, manifests: Mapping[str, OfferedManifest]) -> int:
    """Look at manifests that will be handed over with others, and return how many need not be looked at again.

    That is none where this server does not know the plan any more. Nothing is published, nor noted.
    Raises: as `adopt_manifests`
    """
    _check_version(made_by)
    with reading(warehouse.lake) as conn:
        table, seen = see(conn, ident)
        _check_untouched(conn, ident, table.table_id, (planned, seen.position))
        kept = warehouse.plans.find(table.table_id, planned)
        if kept is None:
            return 0
        with kept.lock:
            try:
                _look_at(conn, warehouse, kept, manifests)
            except BadRequest:
                # who guesses may not go on to find out which ones are made again
                warehouse.plans.forget(table.table_id)
                raise
    return len(manifests)


def _look_at(conn: psycopg.Connection, warehouse: Warehouse, kept: KeptPlan, manifests: Mapping[str, OfferedManifest]) -> None:
    offer = Offer(manifests, kept.looks)
    offer.check_known(kept.manifests.keys())
    memory = TableMemory(known_uris=set(), offer=offer)
    writer = make_writer(conn, warehouse.objects, kept.reading, kept.note, memory)
    with closing(writer.files):
        for digest, offered in manifests.items():
            kept.looks.found[digest] = offered, writer.look_at(kept.manifests[digest])


def _take_plan(conn: psycopg.Connection, warehouse: Warehouse, table_id: int, position: Position) -> KeptPlan | None:
    """Return the plan of a table as it is now, which is kept for one try alone; None when somebody has numbered the table since."""
    kept = warehouse.plans.find(table_id, position)
    warehouse.plans.forget(table_id)
    return kept if kept is not None and read_notes(conn, table_id) == kept.reading.state.notes else None


def _check_version(made_by: str) -> None:
    if made_by != version(PACKAGE):
        raise BadRequest(f"The manifests were made by version {made_by[:64]!r}, and this server is {version(PACKAGE)!r}; use the same.")


def _check_untouched(conn: psycopg.Connection, ident: Ident, table_id: int, positions: tuple[Position, Position]) -> None:
    if is_touched(conn, table_id, *positions):
        raise CommitFailed(f"The table {ident} has changed since its manifests were planned; plan again.")


def _publish(warehouse: Warehouse, ident: Ident, planned: Position, manifests: Mapping[str, OfferedManifest]) -> None:
    table, _ = look(warehouse.lake, lambda conn: see(conn, ident))
    memory = warehouse.memories.of(table.table_id)
    with memory.lock, reading(warehouse.lake) as conn:
        now, seen = check_memory(conn, warehouse, ident, (table, memory))
        _check_untouched(conn, ident, now.table_id, (planned, seen.position))
        kept = _take_plan(conn, warehouse, now.table_id, seen.position)
        # what has been published is not forgotten for this
        own = memory if memory.published is None and memory.folded is None else TableMemory()
        own.offer = Offer(manifests, kept.looks if kept else Looks(draw(random.choice(sorted(manifests))) if manifests else 0))
        try:
            published = publish(Reader(warehouse, conn), now, own, kept.reading if kept else None)
        finally:
            own.offer = None
    if own is memory:
        memory.published, memory.refusal = published, None
        warehouse.memories.weigh(now.table_id, memory)
