"""The tables of a JDBC catalog: rows in a database that name metadata files, with views (V1) or without (V0).

Source: Iceberg, JdbcUtil
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

from duckicelake.errors import BadRequest, CommitFailed, ServiceUnavailable
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.transfer.catalogs import (
    Entry,
    EntryKind,
    ScratchCatalog,
    TransferTable,
    UnfinishedCopy,
    get_file_name,
    parse_table_file,
    parse_view_file,
)
from duckicelake.pipeline.transfer.copies import Store, describe_new, encode_published, join_location, name_staged, write_rows
from duckicelake.pipeline.transfer.hadoop import NO_KEYS
from duckicelake.pipeline.transfer.options import name_place
from duckicelake.translate.locations import to_canonical

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
