"""Taking over manifests that executors made: one call, which publishes the table with them, or takes none."""

import random
from collections.abc import Mapping
from importlib.metadata import version

from duckicelake.catalog.adopting.adopted import PACKAGE, draw
from duckicelake.catalog.memory import Offer, OfferedManifest, TableMemory
from duckicelake.catalog.publish import Reader, publish
from duckicelake.catalog.tables import LOAD_TRIES, Ident, check_memory, see
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CommitFailed, LakeMoved
from duckicelake.lake.connect import look, reading
from duckicelake.lake.read import is_touched
from duckicelake.lake.rows import Position

__all__ = ["OfferedManifest", "Position", "adopt_manifests"]


def adopt_manifests(warehouse: Warehouse, ident: Ident, planned: Position, made_by: str, manifests: Mapping[str, OfferedManifest]) -> int:
    """Publish a table with manifests that were planned at a position, note them, and return how many they are.

    All of them are looked at first, and some made again: see `Adopted`. A load never takes any that was not.
    Raises: NoSuchTable. CommitFailed: the table is not as it was planned any more. BadRequest: something that is offered is not there,
    or is not what it should be; none is taken then. Unsupported: something in the table is not published
    """
    if made_by != version(PACKAGE):
        raise BadRequest(f"The manifests were made by version {made_by[:64]!r}, and this server is {version(PACKAGE)!r}; use the same.")
    for attempt in range(1, LOAD_TRIES + 1):
        try:
            _publish(warehouse, ident, planned, manifests)
        except LakeMoved:
            if attempt == LOAD_TRIES:
                raise
        else:
            return len(manifests)
    raise AssertionError("unreachable")


def _publish(warehouse: Warehouse, ident: Ident, planned: Position, manifests: Mapping[str, OfferedManifest]) -> None:
    table, _ = look(warehouse.lake, lambda conn: see(conn, ident))
    memory = warehouse.memories.of(table.table_id)
    with memory.lock, reading(warehouse.lake) as conn:
        now, seen = check_memory(conn, warehouse, ident, (table, memory))
        if is_touched(conn, now.table_id, planned, seen.position):
            raise CommitFailed(f"The table {ident} has changed since its manifests were planned; plan again.")
        # what has been published is not forgotten for this
        own = memory if memory.published is None and memory.folded is None else TableMemory()
        lot = draw(random.choice(sorted(manifests))) if manifests else 0
        own.offer = Offer(manifests, lot)
        try:
            published = publish(Reader(warehouse, conn), now, own)
        finally:
            own.offer = None
    if own is memory:
        memory.published, memory.refusal = published, None
        warehouse.memories.weigh(now.table_id, memory)
