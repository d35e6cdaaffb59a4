"""A fresh DuckLake for one test: a clone of a prepared database, with folders of its own."""

import os
import secrets
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from duckdb import DuckDBPyConnection
from psycopg import Connection, connect, sql

from duckicelake.embedded.ducklake import LakeAddress, connect_duckdb, format_attach, format_secret
from duckicelake.embedded.object_store import StoreAccess
from duckicelake.embedded.stack import ROLE
from tests.support.keys import format_s3_keys
from tests.support.shared_stack import EXTENSIONS, METADATA_SCHEMA, TEMPLATE, SharedStack

NOWHERE = Path(os.devnull)
"""Nobody installs extensions in tests."""

SET_DATA_PATH = "UPDATE lake.ducklake_metadata SET value = %(value)s WHERE key = 'data_path'"
SET_ICEBERG_PATH = "UPDATE lake.iceberg_setting SET value = %(value)s WHERE key = 'iceberg_path'"


@dataclass(slots=True)
class FreshLake:
    """One DuckLake nobody else uses. Connections taken from it are closed with it."""

    name: str
    dsn: str
    metadata_schema: str
    data_path: str
    iceberg_path: str
    store: StoreAccess
    extension_folder: Path
    opened: ExitStack = field(default_factory=ExitStack)

    def duckdb(self, *, read_only: bool = False) -> DuckDBPyConnection:
        """Return a new DuckDB session with this lake attached as `lake` and in use."""
        conn = self.bare_duckdb()
        conn.execute(format_attach(LakeAddress(self.dsn, self.metadata_schema, read_only=read_only)))
        conn.execute("USE lake")
        return conn

    def bare_duckdb(self) -> DuckDBPyConnection:
        """Return a new DuckDB session with the extensions and the S3 keys, nothing attached."""
        conn = open_duckdb()
        self.opened.callback(conn.close)
        conn.execute(format_secret(format_s3_keys(self.store)))
        return conn

    def psycopg(self, *, autocommit: bool = True) -> Connection:
        """Return a new connection to the lake's Postgres, its metadata schema on the search path."""
        conn = connect(self.dsn, autocommit=autocommit, options=f"-c search_path={self.metadata_schema}")
        self.opened.callback(conn.close)
        return conn


def open_duckdb(*extensions: str) -> DuckDBPyConnection:
    """Return a new DuckDB session with these or all extensions, whose signatures the stack's own session has checked.

    It has one thread: on two cores, several threads take twice the CPU time for the short statements that read a lake's rows.
    """
    conn = connect_duckdb(NOWHERE, extensions or EXTENSIONS, checks_signatures=False)
    conn.execute("SET threads = 1")
    return conn


@contextmanager
def make_lake(stack: SharedStack, folder: str | None = None) -> Generator[FreshLake]:
    """A fresh lake on the shared stack; its files lie on S3, or under `folder` when one is given."""
    name = f"t{secrets.token_hex(6)}"
    root = f"s3://{stack.store.bucket}/{name}" if folder is None else folder
    extensions = Path(stack.extension_folder)
    lake = FreshLake(name, _dsn(stack, name), METADATA_SCHEMA, f"{root}/data/", f"{root}/iceberg/", stack.store, extensions)
    with _database(stack, name, TEMPLATE), lake.opened:
        with connect(lake.dsn, autocommit=True) as conn:
            conn.execute(SET_DATA_PATH, {"value": lake.data_path})
            conn.execute(SET_ICEBERG_PATH, {"value": lake.iceberg_path})
        yield lake


@contextmanager
def clone_lake(stack: SharedStack, original: FreshLake) -> Generator[FreshLake]:
    """A copy of a lake's rows under the same paths; nobody may be connected to the original while it is made."""
    name = f"t{secrets.token_hex(6)}"
    lake = replace(original, name=name, dsn=_dsn(stack, name), opened=ExitStack())
    with _database(stack, name, original.name), lake.opened:
        yield lake


@contextmanager
def _database(stack: SharedStack, name: str, template: str) -> Generator[None]:
    made, owner, source = sql.Identifier(name), sql.Identifier(ROLE), sql.Identifier(template)
    with connect(stack.admin_dsn, autocommit=True) as admin:
        # With files in memory, the checkpoint costs less than a WAL of every block,
        # 37 instead of 60 ms of CPU. Postgres 14 always copies files.
        strategy = sql.SQL(" STRATEGY file_copy" if admin.info.server_version >= 150000 else "")
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}{}").format(made, source, owner, strategy))
    try:
        yield
    finally:
        with connect(stack.admin_dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(made))


def _dsn(stack: SharedStack, name: str) -> str:
    return stack.dsn.replace("dbname=lake", f"dbname={name}")
