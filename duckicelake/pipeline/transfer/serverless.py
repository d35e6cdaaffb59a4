"""Iceberg's catalogs without a server as sources of `import` and targets of `export`: Hadoop warehouses and JDBC catalogs.

In a Hadoop warehouse folders are namespaces and tables, and the newest `vN.metadata.json` in a row is the table. A JDBC catalog has rows
in a database that name metadata files, with views (V1) or without (V0).

`transfer.job` calls this in the driver. A copy is published in a Hadoop warehouse by an object that must not exist yet, and in a JDBC
catalog by one transaction of its database.

Source: Iceberg, HadoopTableOperations, HadoopCatalog and JdbcUtil
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duckicelake.errors import BadRequest, CommitFailed, NoSuchTable, ServiceUnavailable
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.storage import DELTA_LOG, Child, StoredFiles
from duckicelake.pipeline.transfer.catalogs import (
    Entry,
    EntryKind,
    ScratchCatalog,
    TransferTable,
    UnfinishedCopy,
    get_file_name,
    parse_table_file,
    parse_view_file,
    refuse_views,
)
from duckicelake.pipeline.transfer.copies import Store, describe_new, encode_published, join_location, name_staged, write_rows
from duckicelake.pipeline.transfer.options import name_place
from duckicelake.translate.locations import to_canonical

METADATA, HINT = "metadata", "version-hint.text"
ENDS = (".metadata.json", ".metadata.json.gz")
NAMES = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
"""In the order in which Java looks for them."""
NO_KEYS: Mapping[str, str] = {}
_VERSION = re.compile(r"v(\d{1,9})(?:\.gz)?\.metadata\.json(?:\.gz)?")
_LEVELS_OF_A_TABLE = 2
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HadoopWarehouse:
    """The tables below a folder, whose files are the catalog."""

    root: str
    store: Store

    @property
    def name(self) -> str:
        return self.root

    @property
    def identity(self) -> str:
        return self.root

    def list_entries(self) -> Iterator[Entry]:
        """Yield every folder below the root that is a table, or meant to be one; the root itself may be the only one."""
        objects = self.store.open(self.root, NO_KEYS)
        children = objects.list_folder(self.root)
        if not children:
            raise BadRequest(f"{self.root} is no folder, or has nothing in it")
        yield from self._walk(objects, (), children)

    def _walk(self, objects: StoredFiles, levels: tuple[str, ...], children: Collection[Child]) -> Iterator[Entry]:
        place = "/".join((self.root.rstrip("/"), *levels))
        if any(child.is_folder and child.name == METADATA for child in children) and _is_table(objects.list_folder(f"{place}/{METADATA}")):
            yield _name_entry(place, levels)
            return
        if is_delta(children):
            # It is no table of this warehouse, so it is reported as a failure and not passed over.
            yield _name_entry(place, levels)
            return
        for child in children:
            if child.is_folder:
                yield from self._look_into(objects, (*levels, child.name))

    def _look_into(self, objects: StoredFiles, levels: tuple[str, ...]) -> Iterator[Entry]:
        place = "/".join((self.root.rstrip("/"), *levels))
        try:
            found = list(self._walk(objects, levels, objects.list_folder(place)))
        except ServiceUnavailable:
            if len(levels) < _LEVELS_OF_A_TABLE:
                raise
            # The entry fails with the reason when it is loaded; the others are brought.
            found = [_name_entry(place, levels)]
        yield from found

    def load(self, entry: Entry) -> TransferTable:
        """Return the table in a folder, at its newest version. Raises: BadRequest: its files do not say which that is, or are damaged."""
        objects = self.store.open(entry.place, NO_KEYS)
        folder = f"{entry.place}/{METADATA}"
        if is_delta(objects.list_folder(entry.place)) and not objects.list_folder(folder):
            raise BadRequest("it is a Delta table: import it with --format delta")
        names = {child.name for child in objects.list_folder(folder)}
        hint = objects.read(f"{folder}/{HINT}") if HINT in names else None
        version = choose_version(hint, names)
        if version is None:
            raise BadRequest(f"{folder} has no metadata file of a Hadoop table")
        uri = f"{folder}/{version}"
        return TransferTable(entry.ident, parse_table_file(objects.read(uri), uri), uri, NO_KEYS)

    def load_view(self, entry: Entry) -> ViewMetadata:
        """Refuse: there are no views."""
        raise refuse_views("a Hadoop warehouse")

    def find(self, ident: TableIdent) -> TransferTable | None:
        """Return the table in the folder of that name."""
        place = join_location(self.root, ident)
        objects = self.store.open(place, NO_KEYS)
        if not _is_table(objects.list_folder(f"{place}/{METADATA}")):
            return None
        return self.load(Entry(ident, place=place))

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows as of the metadata file that was read."""
        return bench.open_file(loaded.metadata_location, self.store.format_settings(NO_KEYS))

    def prepare(self, ident: TableIdent, asked: CreateTable) -> TransferTable:
        """Return a table in the folder that has its name."""
        location = join_location(self.root, ident)
        return TransferTable(ident, describe_new(asked, location), name_staged(location), NO_KEYS)

    def write(self, bench: ScratchCatalog, prepared: TransferTable, rows: str) -> TableMetadata:
        """Return files below the table's folder."""
        return write_rows(bench, self.store, prepared, rows, self.identity)

    def publish(self, prepared: TransferTable, written: TableMetadata) -> None:
        """Write version 1, which must not exist yet."""
        folder = f"{prepared.metadata.location}/{METADATA}"
        if not self.store.put_new(f"{folder}/v1.metadata.json", encode_published(replace(written, metadata_log=()))):
            raise CommitFailed(f"another session has just created {prepared.ident}")
        # Readers do without it.
        self.store.put_new(f"{folder}/{HINT}", b"1")

    def list_places(self, loaded: TransferTable) -> Iterable[str]:
        """Return the folder that has its name."""
        return [join_location(self.root, loaded.ident)]

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Return all of it: no other table can be in that folder."""
        return [*begun.metadata, *begun.data]


def _name_entry(place: str, levels: tuple[str, ...]) -> Entry:
    *namespace, name = levels or (place.rpartition("/")[2],)
    return Entry(TableIdent(tuple(namespace), name), place=place)


def is_delta(children: Collection[Child]) -> bool:
    """Return True if what lies in a folder is a Delta table."""
    return any(child.is_folder and child.name == DELTA_LOG for child in children)


def _is_table(children: Collection[Child]) -> bool:
    return any(child.name == HINT or child.name.endswith(ENDS) for child in children if not child.is_folder)


def choose_version(hint: bytes | None, names: Collection[str]) -> str | None:
    """Return the file of the newest version, as Java finds it: from the hint on as far as versions follow each other; None: there is none.

    A hint that is missing or torn counts as the highest version there is.
    Raises: NoSuchTable: the hint names a version that is not there
    """
    versions = {int(match[1]) for name in names if (match := _VERSION.fullmatch(name))}
    hinted = None if hint is None else _read_hint(hint)
    version = max(versions, default=0) if hinted is None else hinted
    if version not in versions:
        if version == 0:
            return None
        newest = f"the newest that is there is {max(versions)}: write that into {HINT}, if it is the table" if versions else "there is none"
        raise NoSuchTable(f"{HINT} names version {version}, which is missing; {newest}")
    while version + 1 in versions:
        version += 1
    return next(name for form in NAMES if (name := form.format(version)) in names)


def _read_hint(hint: bytes) -> int | None:
    first = hint.decode("utf-8", "replace").splitlines()[:1]
    return int(first[0]) if first and _NUMBER.fullmatch(first[0]) else None


TYPE = "iceberg_type"
POSTGRES, SQLITE = ("postgresql", "postgres"), "sqlite"
CONNECT_SECONDS = 10
FAILURES = (psycopg.Error, sqlite3.Error)
ADDRESS = ("host", "hostaddr", "port", "dbname", "service", "options")
"""What says which database of Postgres is meant, and no secret."""
FIRST = "00000-"
_UUID = re.compile("-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

HAS_TABLES_SQLITE = "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
HAS_TABLES_POSTGRES = "SELECT 1 WHERE to_regclass('iceberg_tables') IS NOT NULL"
HAS_TYPE = "SELECT * FROM iceberg_tables WHERE 1 = 0"
SELECT_NAMES = "SELECT DISTINCT catalog_name FROM iceberg_tables ORDER BY catalog_name"
SELECT_V0 = "SELECT table_namespace, table_name, metadata_location, NULL FROM iceberg_tables WHERE catalog_name = {0} ORDER BY 1, 2"
SELECT_V1 = "SELECT table_namespace, table_name, metadata_location, iceberg_type FROM iceberg_tables WHERE catalog_name = {0} ORDER BY 1, 2"
SELECT_PLACES = "SELECT metadata_location FROM iceberg_tables WHERE metadata_location IS NOT NULL"
INSERT_V0 = "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) VALUES ({0}, {0}, {0}, {0})"
INSERT_V1 = """
INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) VALUES ({0}, {0}, {0}, {0}, 'TABLE')
"""
CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name))
"""
CREATE_PROPERTIES = """
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255), property_value VARCHAR(1000),
    PRIMARY KEY (catalog_name, namespace, property_key))
"""


@dataclass(frozen=True, slots=True)
class Database:
    """A database of a JDBC catalog; `mark` is how its statements write a parameter, `has_tables` asks whether there is a catalog at all.

    `identity` is no other database's, wherever it is asked from.
    """

    name: str
    mark: str
    has_tables: str
    connect: Callable[[], Any]
    identity: str = ""

    @contextmanager
    def opening(self) -> Generator[Any]:
        """A connection, its work committed at the end. Raises: ServiceUnavailable: it cannot be reached, or does not answer."""
        try:
            with closing(self.connect()) as conn:
                yield conn
                conn.commit()
        except FAILURES as error:
            raise ServiceUnavailable(f"{self.name}: {str(error).strip()}") from error

    def ask(self, conn: Any, query: str, values: Sequence[str] = ()) -> Any:
        """Return the cursor of a statement, in which `{0}` stands for a parameter."""
        cursor = conn.cursor()
        cursor.execute(query.format(self.mark), values)
        return cursor


def open_database(uri: str, properties: Mapping[str, str]) -> Database:
    """Return the database of a URI. Raises: BadRequest: it is of another kind."""
    parts, name = urlsplit(uri), name_place(uri)
    if parts.scheme == SQLITE:
        if parts.fragment:
            raise BadRequest(f"#{parts.fragment} is no part of a file's path: write %23 where its name has a #")
        path = quote(unquote(parts.path.removeprefix("/")))
        found = os.path.realpath(unquote(path))
        return Database(name, "?", HAS_TABLES_SQLITE, lambda: sqlite3.connect(f"file:{path}?mode=rw", uri=True), found)
    if parts.scheme not in POSTGRES:
        raise BadRequest(f"{parts.scheme} is no database that can be read here: write postgresql://… or sqlite:///…")
    given = {name: properties[f"jdbc.{name}"] for name in ("user", "password") if f"jdbc.{name}" in properties}
    address = {key: text for key, text in conninfo_to_dict(uri).items() if key in ADDRESS}
    return Database(
        name,
        "%s",
        HAS_TABLES_POSTGRES,
        lambda: psycopg.connect(make_conninfo(uri, **given), connect_timeout=CONNECT_SECONDS),
        json.dumps(address, sort_keys=True),
    )


@dataclass(frozen=True, slots=True)
class JdbcCatalog:
    """The tables that a database knows under one catalog's name; `warehouse` is where new ones go."""

    database: Database
    store: Store
    catalog_name: str | None = None
    warehouse: str | None = None

    @property
    def name(self) -> str:
        return self.database.name

    @property
    def identity(self) -> str:
        return f"{self.database.identity} {self.catalog_name}"

    def settle(self) -> "JdbcCatalog":
        """Return the same as a target, its name decided. Raises: BadRequest: it cannot be, or nothing says where new tables go."""
        if self.warehouse is None:
            raise BadRequest("say where new tables go: --property warehouse=FOLDER")
        with self.database.opening() as conn:
            return replace(self, catalog_name=self._choose_name(conn))

    def list_entries(self) -> Iterator[Entry]:
        """Yield every table and view."""
        with self.database.opening() as conn:
            query = SELECT_V1 if self._has_type(conn) else SELECT_V0
            rows = self.database.ask(conn, query, [self._choose_name(conn)]).fetchall()
        for namespace, name, location, kind in rows:
            ident = TableIdent(tuple(namespace.split(".")) if namespace else (), name)
            yield Entry(ident, EntryKind.view if kind == "VIEW" else EntryKind.table, location or "")

    def load(self, entry: Entry) -> TransferTable:
        """Return the table of a row. Raises: BadRequest, ServiceUnavailable: its metadata file cannot be read."""
        if not entry.place:
            raise BadRequest(f"the row of {entry.ident} names no metadata file")
        metadata = parse_table_file(self.store.read(entry.place, NO_KEYS), entry.place)
        return TransferTable(entry.ident, metadata, entry.place, NO_KEYS)

    def load_view(self, entry: Entry) -> ViewMetadata:
        """Return the view of a row."""
        return parse_view_file(self.store.read(entry.place, NO_KEYS), entry.place)

    def find(self, ident: TableIdent) -> TransferTable | None:
        """Return the table of that name. Raises: BadRequest: none can have it."""
        if any("." in level for level in ident.namespace):
            raise BadRequest(f"a JDBC catalog cannot tell the dot in a name of {ident} from one between names: rename it")
        with self.database.opening() as conn:
            if not self._has_tables(conn):
                return None
        found = next((entry for entry in self.list_entries() if entry.ident == ident), None)
        if found is not None and found.kind is EntryKind.view:
            raise CommitFailed(f"{ident} is a view there")
        return None if found is None else self.load(found)

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows as of the metadata file that was read."""
        return bench.open_file(loaded.metadata_location, self.store.format_settings(NO_KEYS))

    def prepare(self, ident: TableIdent, asked: CreateTable) -> TransferTable:
        """Return a table in a folder of its own, which no other table of that name has had."""
        if self.warehouse is None:
            raise BadRequest("say where new tables go: --property warehouse=FOLDER")
        location = f"{join_location(self.warehouse, ident)}-{uuid4()}"
        return TransferTable(ident, describe_new(asked, location), name_staged(location), NO_KEYS)

    def write(self, bench: ScratchCatalog, prepared: TransferTable, rows: str) -> TableMetadata:
        """Return files below the table's folder."""
        return write_rows(bench, self.store, prepared, rows, self.identity)

    def publish(self, prepared: TransferTable, written: TableMetadata) -> None:
        """Insert the row, of which there is one for each name; the catalog's own tables are made if they are missing."""
        uri = f"{prepared.metadata.location}/metadata/{FIRST}{uuid4()}.metadata.json"
        self.store.put_new(uri, encode_published(replace(written, metadata_log=())))
        with self.database.opening() as conn:
            for statement in () if self._has_tables(conn) else (CREATE_TABLES, CREATE_PROPERTIES):
                self.database.ask(conn, statement)
            values = [self._choose_name(conn), ".".join(prepared.ident.namespace), prepared.ident.name, uri]
            try:
                self.database.ask(conn, INSERT_V1 if self._has_type(conn) else INSERT_V0, values)
            except (psycopg.errors.UniqueViolation, sqlite3.IntegrityError) as error:
                raise CommitFailed(f"another session has just created {prepared.ident}") from error

    def list_places(self, loaded: TransferTable) -> Iterable[str]:
        """The table's own folder, and folders next to it that were made for tables of its name and that no row of the database names."""
        if self.warehouse is None:
            return []
        with self.database.opening() as conn:
            rows: list[Any] = self.database.ask(conn, SELECT_PLACES).fetchall() if self._has_tables(conn) else []
        named = {to_canonical(row[0]) for row in rows}
        root = join_location(self.warehouse, loaded.ident)
        folder, _, name = root.rpartition("/")
        names = [child.name for child in self.store.open(folder, NO_KEYS).list_folder(folder) if child.is_folder]
        found = [f"{folder}/{each}" for each in names if each.startswith(name) and _UUID.fullmatch(each.removeprefix(name))]
        free = [place for place in found if not any(uri.startswith(f"{to_canonical(place)}/") for uri in named)]
        own = loaded.metadata.location
        return [own, *(place for place in free if to_canonical(place) != to_canonical(own))]

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Return all of it, and the metadata file whose row never came: that of this catalog alone, if no one has written to the table."""
        if is_there:
            return []
        own = [*begun.metadata, *begun.data]
        if not begun.beside:
            return own
        is_ours = identity == self.identity and [get_file_name(uri)[: len(FIRST)] for uri in begun.beside] == [FIRST]
        return [*begun.beside, *own] if is_ours else []

    def _has_tables(self, conn: Any) -> bool:
        return self.database.ask(conn, self.database.has_tables).fetchone() is not None

    def _has_type(self, conn: Any) -> bool:
        return any(column[0] == TYPE for column in self.database.ask(conn, HAS_TYPE).description)

    def _choose_name(self, conn: Any) -> str:
        if self.catalog_name is not None:
            return self.catalog_name
        names = [row[0] for row in self.database.ask(conn, SELECT_NAMES).fetchall()] if self._has_tables(conn) else []
        if len(names) != 1:
            told = f"there are {', '.join(names)}" if names else "it has no tables yet"
            raise BadRequest(f"say which catalog of the database is meant, --property catalog-name=NAME: {told}")
        return names[0]
