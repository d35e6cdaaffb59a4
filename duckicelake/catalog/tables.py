"""Tables: list, exists, load; and the ids that clients chose for their snapshots, in the answers that need them.

`rest`, `commands` and other modules of this package call this, a server on worker threads and in the object monitor's thread. Lists and
checks are one read transaction. A load looks for changes by one statement. It publishes a state that is not published yet: it reads that in
a read transaction, under the lock of the table's cache, and writes notes to Postgres and objects to the store.

A client's snapshot gets the id of its lake snapshot. Iceberg's Java library looks its own id up in the metadata that answers its commit,
and in a load if the commit was answered with a 5xx. `rest` asks for it in a thread, without a connection; a manifest list of that id is
written to the store for it.
Law: neither a metadata file nor a response that is cached lists a snapshot under a client's id.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal
from uuid import UUID

import psycopg

from duckicelake.catalog.namespaces import find_schema, format_levels, get_parent
from duckicelake.catalog.publish import PublishContext, publish
from duckicelake.catalog.table_cache import CachedRefusal, PublishedTable, TableCache
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError, Damaged, LakeMoved, NoSuchTable, NotFound, PostgresRefused, TableVanished, Unsupported
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest_list
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, encode_manifest_list
from duckicelake.iceberg.metadata import add_encoded_snapshots, encode_metadata, find_snapshot
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.connect import query_once, reading, writing
from duckicelake.lake.notes import lock_numbering
from duckicelake.lake.read import TableAtPosition, find_table, is_touched, read_table_at_position, read_table_names
from duckicelake.lake.rows import Position, TableRow
from duckicelake.store.objects import Objects
from duckicelake.translate.client_snapshots import build_alias
from duckicelake.translate.locations import format_manifest_name, manifest_list_uri
from duckicelake.translate.namespaces import Levels, to_levels, to_schema_name
from duckicelake.translate.to_iceberg import only_refs

LOAD_TRIES = 5
TRIES_WITHOUT_LOCK = 2
"""After so many tries a load lets no other server number the table meanwhile, so that it ends where many write."""


@dataclass(frozen=True, slots=True)
class Ident:
    """A table's name within its namespace."""

    namespace: Levels
    name: str

    @property
    def stored(self) -> tuple[str, str]:
        """The names of the schema and the table in DuckLake."""
        return to_schema_name(self.namespace), self.name

    def __str__(self) -> str:
        return f"{format_levels(self.namespace)}.{self.name}"


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """The result of a load. `metadata` is encoded JSON; `position` is how much of the lake it shows.

    `metadata_location` is None for a table that is only staged. `local_file` is that file where it lies on the local disk.
    `location` is the table's own. `moved_to` is its name when that is not the one that was asked for any more.
    `digest` differs whenever `metadata` does; empty if it was not computed. `published` is the state whose snapshots are all there.
    `is_signed_for`: clients may have their requests to the store signed. `snapshot_id`: the table's current snapshot, or the one that is
    scanned.
    """

    metadata_location: str | None
    metadata: bytes
    config: dict[str, str]
    table_id: int
    position: Position
    local_file: str | None = None
    location: str = ""
    table_uuid: UUID | None = None
    moved_to: Ident | None = None
    digest: bytes = b""
    published: PublishedTable | None = None
    is_signed_for: bool = False
    snapshot_id: int | None = None


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
    NotFound: an object that DuckLake names is missing, or the metadata file was deleted from a local disk
    """
    table, published = publish_table(warehouse, ident)
    location = published.metadata_location
    local_file = warehouse.objects.find_local_path(location)
    if local_file is not None and not warehouse.objects.exists(location):
        # Java's words
        raise NotFound(f"Failed to open input stream for file: {location} (`duckicelake check --repair` writes it again)")
    if snapshots == "all":
        encoded, digest, shown = published.encoded, published.digest, published
    else:
        encoded, digest, shown = encode_metadata(only_refs(published.metadata)), b"", None
    own, uuid = published.metadata.location, table.table_uuid
    parts = location, encoded, dict[str, str](), table.table_id, published.position, local_file, own, uuid
    return LoadedTable(*parts, digest=digest, published=shown, snapshot_id=published.metadata.current_snapshot_id)


def publish_table(warehouse: Warehouse, ident: Ident, seen: TableAtPosition | None = None) -> tuple[TableRow, PublishedTable]:
    """Return a table and its published state, as new as the call, or as what the caller has `seen`. Raises what `load_table` raises."""
    for attempt in range(1, LOAD_TRIES + 1):
        try:
            return _load(warehouse, ident, seen if attempt == 1 else None, locks_numbering=attempt > TRIES_WITHOUT_LOCK)
        except (LakeMoved, NotFound) as error:
            # maintenance may have removed what was being read; a new reading sees what replaced it
            if attempt == LOAD_TRIES:
                raise _to_last_error(error, ident) from error
    raise AssertionError("unreachable")


def _to_last_error(error: LakeMoved | NotFound, ident: Ident) -> CatalogError:
    """Return the error after the last attempt: an inlined table that is missing every time was not flushed but lost."""
    if isinstance(error, TableVanished):
        return Damaged(f"A Postgres table with inlined rows of {ident} is missing; run `duckicelake check`.")
    return error


def _load(warehouse: Warehouse, ident: Ident, seen: TableAtPosition | None, *, locks_numbering: bool) -> tuple[TableRow, PublishedTable]:
    table, seen = (
        query_once(warehouse.lake, lambda conn: read_live_table(conn, ident)) if seen is None or seen.table is None else (seen.table, seen)
    )
    cache = warehouse.caches.of(table.table_id)
    known = cache.table
    if known.published is not None and known.published.position == seen.position and known.repair_id == seen.repair_id:
        return table, known.published
    with cache.lock, ExitStack() as held:
        turn = held.enter_context(writing(warehouse.lake)) if locks_numbering else None
        if turn is not None:
            lock_numbering(turn, table.table_id)
        read = held.enter_context(ExitStack())
        conn = read.enter_context(reading(warehouse.lake))
        now, seen = check_cache(conn, warehouse, ident, (table, cache))
        return now, _publish(PublishContext(warehouse, conn, read.close, turn), cache, now, seen.position)


def check_cache(
    conn: psycopg.Connection, warehouse: Warehouse, ident: Ident, known: tuple[TableRow, TableCache]
) -> tuple[TableRow, TableAtPosition]:
    """Return the table as it is now, and what was seen of it, if the locked cache is still the one to use.

    Raises: LakeMoved: it is not, or the table is another one by now
    """
    table, cache = known
    if cache.is_invalid:
        raise LakeMoved(f"What was remembered of {ident} holds no longer; try again.")
    now, seen = read_live_table(conn, ident)
    if now.table_id != table.table_id:
        raise LakeMoved(f"The table {ident} was replaced while it was being read; try again.")
    if cache.table.repair_id not in (None, seen.repair_id):
        warehouse.caches.forget(table.table_id, cache)
        raise LakeMoved(f"The table {ident} is being repaired; try again.")
    cache.table = replace(cache.table, repair_id=seen.repair_id)
    return now, seen


def read_live_table(conn: psycopg.Connection, ident: Ident) -> tuple[TableRow, TableAtPosition]:
    """Return a live table and what a load sees of it first. Raises: NoSuchTable"""
    seen = read_table_at_position(conn, to_schema_name(ident.namespace), ident.name)
    if seen.table is None:
        raise NoSuchTable(f"Table does not exist: {ident}")
    return seen.table, seen


def _publish(reader: PublishContext, cache: TableCache, table: TableRow, position: Position) -> PublishedTable:
    """Return the published state of a table, or refuse it again, doing what was done before only once."""
    refusal, known = cache.table.refusal, cache.table.published
    if known is not None and (known.position == position or not is_touched(reader.conn, table.table_id, known.position, position)):
        known = replace(known, position=position)
        cache.table = replace(cache.table, published=known)
        return known
    if refusal is not None and not is_touched(reader.conn, table.table_id, refusal.position, position):
        cache.table = replace(cache.table, refusal=CachedRefusal(position, refusal.error))
        raise type(refusal.error)(refusal.error.message)
    try:
        cache.table = publish(reader, table, cache)
    except (Damaged, PostgresRefused):
        # A repair by hand makes no lake snapshot, so the refusal must not be cached.
        raise
    except Unsupported as error:
        cache.table = replace(cache.table, refusal=CachedRefusal(position, error))
        raise
    except TableVanished:
        raise
    except LakeMoved:
        # Another server assigned the version; objects made for ours must not be published under it.
        reader.warehouse.caches.forget(table.table_id, cache)
        raise
    reader.warehouse.caches.estimate_size(table.table_id, cache)
    assert cache.table.published is not None
    return cache.table.published


def get_table(conn: psycopg.Connection, ident: Ident) -> TableRow:
    """Return the live table of that name, in any case.

    Raises: NoSuchTable: there is none, or no such namespace
    """
    table = find_table(conn, to_schema_name(ident.namespace), ident.name)
    if table is None:
        raise NoSuchTable(f"Table does not exist: {ident}")
    return table


ASKED_MS = 3_600_000
"""How long after its commit an author may look for its snapshot: twice as long as Iceberg's Java library does by default."""


def may_be_looked_for(loaded: LoadedTable, now_ms: int) -> bool:
    """Return True if the author of a table's newest change may have got no answer, and may look for its snapshot in a load."""
    published = loaded.published
    if published is None or not published.is_unanswered:
        return False
    found = (find_snapshot(published.metadata, note.lake_snapshot_id) for note in published.state.aliases)
    return any(snapshot is not None and now_ms - snapshot.timestamp_ms < ASKED_MS for snapshot in found)


def with_client_ids(objects: Objects, loaded: LoadedTable, wanted: Collection[int] | None = None) -> LoadedTable:
    """Return a table with aliases of the snapshots of its newest change, if a client made that; `wanted` selects some by their ids.

    The aliases are after all other snapshots. If the store fails, there are none: the change has landed, and clients go on without them.
    """
    aliases: Sequence[Snapshot] = ()
    if loaded.published is not None and (wanted is None or wanted):
        with suppress(CatalogError):
            aliases = _write_aliases(objects, loaded.published, wanted)
    if not aliases:
        return loaded
    digest = sha256(b"%b%b" % (loaded.digest, repr([alias.snapshot_id for alias in aliases]).encode())).digest()
    return replace(loaded, metadata=add_encoded_snapshots(loaded.metadata, aliases), digest=digest)


def _write_aliases(objects: Objects, published: PublishedTable, wanted: Collection[int] | None) -> list[Snapshot]:
    aliases: list[Snapshot] = []
    for note in published.state.aliases:
        snapshot = find_snapshot(published.metadata, note.lake_snapshot_id)
        is_wanted = wanted is None or note.client_snapshot_id in wanted
        if is_wanted and snapshot is not None and find_snapshot(published.metadata, note.client_snapshot_id) is None:
            aliases.append(_write_alias(objects, published, snapshot, note.client_snapshot_id))
    return aliases


def _write_alias(objects: Objects, published: PublishedTable, snapshot: Snapshot, client_snapshot_id: int) -> Snapshot:
    """Return the alias of a snapshot, with a manifest list of its own, because clients delete the list of a snapshot that they expire."""
    version = 2 if snapshot.first_row_id is None else 3
    header = ManifestListHeader(client_snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number, version, snapshot.first_row_id)
    content = encode_manifest_list(header, _read_manifests(objects, published, snapshot))
    uri = manifest_list_uri(published.metadata.location, client_snapshot_id, format_manifest_name(content))
    objects.put_new(uri, content)
    return build_alias(snapshot, client_snapshot_id, uri)


def _read_manifests(objects: Objects, published: PublishedTable, snapshot: Snapshot) -> Sequence[ManifestFile]:
    uri, manifests = published.newest_list
    return manifests if uri == snapshot.manifest_list else decode_manifest_list(objects.read(snapshot.manifest_list))
