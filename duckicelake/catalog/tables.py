"""Tables: list, exists, load."""

from dataclasses import dataclass
from typing import Literal

import psycopg

from duckicelake.catalog.memory import Published
from duckicelake.catalog.namespaces import find_schema, format_levels, get_parent
from duckicelake.catalog.publish import publish
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import LakeMoved, NoSuchTable, NotFound
from duckicelake.iceberg.metadata import encode_metadata
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table, read_position, read_table_names
from duckicelake.lake.rows import Position, TableRow
from duckicelake.translate.namespaces import Levels, to_levels, to_schema_name
from duckicelake.translate.to_iceberg import only_refs

LOAD_TRIES = 5


@dataclass(frozen=True, slots=True)
class Ident:
    """A table's name within its namespace."""

    namespace: Levels
    name: str

    def __str__(self) -> str:
        return f"{format_levels(self.namespace)}.{self.name}"


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """What a load answers. `metadata` is encoded JSON; `position` is how much of the lake it shows.

    `metadata_location` is None for a table that is only staged.
    """

    metadata_location: str | None
    metadata: bytes
    config: dict[str, str]
    table_id: int
    position: Position


def list_tables(warehouse: Warehouse, levels: Levels) -> list[Ident]:
    """Return the tables of a namespace in order of name.

    Raises: NoSuchNamespace: it does not exist
    """
    with reading(warehouse.lake) as conn:
        schema = find_schema(conn, levels)
        if schema is None:
            get_parent(conn, levels)
            return []
        stored = to_levels(schema.schema_name)
        return [Ident(stored, name) for name in read_table_names(conn, schema.schema_id)]


def check_table_exists(warehouse: Warehouse, ident: Ident) -> None:
    """Raise NoSuchTable when it does not exist."""
    with reading(warehouse.lake) as conn:
        get_table(conn, ident)


def load_table(warehouse: Warehouse, ident: Ident, snapshots: Literal["all", "refs"] = "all") -> LoadedTable:
    """Return a table's metadata, published when its state was not yet; `refs` leaves out snapshots no ref names.

    Raises: NoSuchTable: it does not exist. Unsupported: something in it is not published, by name and remedy.
    NotFound: an object that DuckLake names is missing
    """
    table, published = publish_table(warehouse, ident)
    encoded = published.encoded if snapshots == "all" else encode_metadata(only_refs(published.metadata))
    return LoadedTable(published.metadata_location, encoded, {}, table.table_id, published.position)


def publish_table(warehouse: Warehouse, ident: Ident) -> tuple[TableRow, Published]:
    """Return a table and its published state, as new as the call. Raises what `load_table` raises."""
    for attempt in range(1, LOAD_TRIES + 1):
        try:
            return _publish(warehouse, ident)
        except (LakeMoved, NotFound):
            # maintenance may have removed what was being read; a new reading sees what replaced it
            if attempt == LOAD_TRIES:
                raise
    raise AssertionError("unreachable")


def _publish(warehouse: Warehouse, ident: Ident) -> tuple[TableRow, Published]:
    with reading(warehouse.lake) as conn:
        memory = warehouse.memories.of(get_table(conn, ident).table_id)
    with memory.lock, reading(warehouse.lake) as conn:
        table = get_table(conn, ident)
        if warehouse.memories.of(table.table_id) is not memory:
            raise LakeMoved(f"The table {ident} was replaced while it was being read; try again.")
        position = read_position(conn)
        published = memory.published
        if published is None or published.position != position:
            published = memory.published = publish(warehouse, conn, table, memory)
        return table, published


def get_table(conn: psycopg.Connection, ident: Ident) -> TableRow:
    """Return the live table of that name, in any case.

    Raises: NoSuchTable: there is none, or no such namespace
    """
    table = find_table(conn, to_schema_name(ident.namespace), ident.name)
    if table is None:
        raise NoSuchTable(f"Table does not exist: {ident}")
    return table
