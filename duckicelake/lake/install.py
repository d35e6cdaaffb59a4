"""The installation of our tables and triggers in a lake's metadata schema.

`commands.prepare` calls it for `init` and before a server opens the lake, as often as need be. `install` and `uninstall` run on a
connection that is in no transaction, and begin one for each try.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import LiteralString

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest, ServiceUnavailable, Unsupported
from duckicelake.lake.lake_format import get_format

SELECT_METADATA = """
SELECT key, value FROM ducklake_metadata
 -- Table and schema options carry a scope; global options have none.
 WHERE scope IS NULL AND key IN ('version', 'data_path', 'encrypted')
"""

UPSERT_ICEBERG_PATH = """
INSERT INTO iceberg_setting (key, value) VALUES ('iceberg_path', %(iceberg_path)s)
ON CONFLICT (key) DO NOTHING
"""


SELECT_IS_RESTORED_MAX = """
SELECT FROM iceberg_setting WHERE key = 'restored_max_bytes' AND value = %(restored_max_bytes)s
"""

UPDATE_RESTORED_MAX = """
WITH changed AS (
    INSERT INTO iceberg_setting (key, value) VALUES ('restored_max_bytes', %(restored_max_bytes)s)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE iceberg_setting.value <> excluded.value
    RETURNING value
)
-- Snapshots from before a flush or merge may be published differently now, in every table.
INSERT INTO iceberg_change (kind) SELECT 'restore' FROM changed
"""

LOCK_CHANGES = """
LOCK TABLE iceberg_change IN EXCLUSIVE MODE
"""

UPSERT_INSTALLED = """
INSERT INTO iceberg_setting (key, value) VALUES ('installed', %(digest)s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

SELECT_HAS_SETTINGS = """
SELECT to_regclass('iceberg_setting') IS NOT NULL
"""

SELECT_INSTALLED = """
SELECT value FROM iceberg_setting WHERE key = 'installed'
"""

DELETE_PINS = """
DELETE FROM ducklake_delete_file WHERE data_file_id = 9223372036854775807
"""

DELETE_PLACEHOLDER_TABLE = """
DELETE FROM ducklake_table WHERE table_id = 9223372036854775807
"""

DELETE_PLACEHOLDER_SCHEMA = """
DELETE FROM ducklake_schema WHERE schema_id = 9223372036854775807
"""

RELATIVE_PATH_ADVICE = (
    "is relative: it depends on the folder each program was started in. Give it as seen from everywhere, with "
    "UPDATE ducklake_metadata SET value = '/absolute/path/' WHERE key = 'data_path' AND scope IS NULL, "
    "and attach the lake without DATA_PATH. The files stay where they are."
)
PATH_PARTS_ADVICE = (
    "Name the same folder without, with UPDATE ducklake_metadata SET value = '…' WHERE key = 'data_path' AND scope IS NULL; in an object "
    "store an empty part is a name of its own: copy the lake's tables with DuckDB into a lake without one."
)
LOCK_TRIES, LOCK_PAUSE_S = 600, 0.05
NEVER_IDLE = "Other transactions hold the lake's tables all the time; end the long ones, or try again when the lake is quieter."
OWN_OBJECTS: Sequence[tuple[LiteralString, str]] = (
    ("TRIGGER", r"CREATE OR REPLACE TRIGGER (\w+)\s+[\w ]+ ON (\w+)"),
    # Older releases made the indexes that the script drops.
    ("INDEX", r"(?:CREATE INDEX IF NOT EXISTS|DROP INDEX IF EXISTS) (\w+)"),
    ("FUNCTION", r"CREATE OR REPLACE FUNCTION (\w+)"),
    ("TABLE", r"CREATE TABLE IF NOT EXISTS (\w+)"),
    ("SEQUENCE", r"CREATE SEQUENCE IF NOT EXISTS (\w+)"),
)
"""The objects that the script creates, by patterns of its statements, in the order in which they can be dropped."""


def format_search_path(metadata_schema: str) -> sql.Composed:
    """Return the statement that limits unqualified names to the lake's metadata schema."""
    return sql.SQL("SET search_path TO {}").format(sql.Identifier(metadata_schema))


def install(conn: psycopg.Connection, metadata_schema: str, iceberg_path: str, tries: int = LOCK_TRIES) -> None:
    """Prepare an existing DuckLake: check it, and add our tables, triggers and indexes. DuckDB sees no difference.

    Concurrent writers are not blocked: the locks are taken with NOWAIT and tried again.
    Units:  `iceberg_path` is a URI or an absolute folder; the first one given to a lake stays
    Raises: Unsupported: the lake has another version of DuckLake, is encrypted, or is in a store that we do not support.
            BadRequest: `iceberg_path` lies under DATA_PATH, or DATA_PATH is relative. ServiceUnavailable: the lake is never idle
    """
    for _ in range(tries):
        try:
            with conn.transaction():
                _check(conn, metadata_schema, iceberg_path)
                _lock(conn, "SHARE ROW EXCLUSIVE")
                _install(conn, iceberg_path)
        except psycopg.errors.LockNotAvailable:
            if _is_installed(conn, metadata_schema):
                return
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


def _check(conn: psycopg.Connection, metadata_schema: str, iceberg_path: str) -> None:
    conn.execute(format_search_path(metadata_schema))
    settings = dict(conn.execute(SELECT_METADATA).fetchall())
    check_supported(settings)
    check_absolute(settings["data_path"])
    check_separate(settings["data_path"], iceberg_path)


def _lock(conn: psycopg.Connection, mode: LiteralString) -> None:
    """Lock the tables that the script adds to. Raises: LockNotAvailable."""
    lock_tables(conn, read_script(), mode)


def lock_tables(conn: psycopg.Connection, script: bytes, mode: LiteralString) -> None:
    """Lock DuckLake's tables that a script adds to, all at once or none: a wait with some of them could make DuckDB a deadlock's victim.

    Raises: LockNotAvailable
    """
    tables = sorted(set(re.findall(r" ON (ducklake_\w+)", script.decode())))
    names = sql.SQL(", ").join(sql.Identifier(name) for name in tables)
    conn.execute("SET LOCAL lock_timeout = '500ms'")
    conn.execute(sql.SQL("LOCK TABLE {} IN {} MODE NOWAIT").format(names, sql.SQL(mode)))


def _install(conn: psycopg.Connection, iceberg_path: str) -> None:
    conn.execute(read_script())
    conn.execute(UPSERT_ICEBERG_PATH, {"iceberg_path": with_slash(iceberg_path)})
    conn.execute(UPSERT_INSTALLED, {"digest": compute_digest()})


def write_restored_max(conn: psycopg.Connection, metadata_schema: str, restored_max_bytes: int) -> None:
    """Set the size in bytes up to which a flush or merge is restored; every server and job publishes by the same number."""
    with conn.transaction():
        conn.execute(format_search_path(metadata_schema))
        parameters = {"restored_max_bytes": str(restored_max_bytes)}
        if conn.execute(SELECT_IS_RESTORED_MAX, parameters).fetchone() is None:
            conn.execute(LOCK_CHANGES)
            conn.execute(UPDATE_RESTORED_MAX, parameters)


def _is_installed(conn: psycopg.Connection, metadata_schema: str) -> bool:
    """Return True if this version of the script was installed before, so that a busy lake need not wait for it."""
    with conn.transaction():
        conn.execute(format_search_path(metadata_schema))
        return has_settings(conn) and conn.execute(SELECT_INSTALLED).fetchone() == (compute_digest(),)


def has_settings(conn: psycopg.Connection) -> bool:
    """Return True if any version of the script was ever installed."""
    row = conn.execute(SELECT_HAS_SETTINGS).fetchone()
    return bool(row and row[0])


def uninstall(conn: psycopg.Connection, metadata_schema: str, tries: int = LOCK_TRIES) -> None:
    """Remove everything that `install` added, and nothing else; metadata versions and ids are lost with our tables.

    The objects under ICEBERG_PATH stay.
    Raises: ServiceUnavailable: the lake is never idle
    """
    for _ in range(tries):
        try:
            with conn.transaction():
                conn.execute(format_search_path(metadata_schema))
                if has_settings(conn):
                    _lock(conn, "ACCESS EXCLUSIVE")
                    _uninstall(conn)
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


def _uninstall(conn: psycopg.Connection) -> None:
    drop_objects(conn, read_script())
    for statement in (DELETE_PINS, DELETE_PLACEHOLDER_TABLE, DELETE_PLACEHOLDER_SCHEMA):
        conn.execute(statement)


def drop_objects(conn: psycopg.Connection, script_bytes: bytes) -> None:
    """Drop everything that a script creates."""
    script = script_bytes.decode()
    for kind, pattern in OWN_OBJECTS:
        for match in re.finditer(pattern, script):
            on = sql.SQL(" ON {}").format(sql.Identifier(match[2])) if kind == "TRIGGER" else sql.SQL("")
            conn.execute(sql.SQL("DROP {} IF EXISTS {}{}").format(sql.SQL(kind), sql.Identifier(match[1]), on))


def read_script() -> bytes:
    """Return the script that installs our tables, triggers and indexes."""
    return files("duckicelake.lake").joinpath("install.sql").read_bytes()


def compute_digest() -> str:
    """Return the digest by which an installed version of the script is recognised."""
    return hashlib.sha256(read_script()).hexdigest()


def check_supported(settings: dict[str, str]) -> None:
    """Raise Unsupported for a lake that this catalog cannot serve."""
    get_format(settings.get("version"))
    if settings.get("encrypted") == "true":
        raise Unsupported("The lake is encrypted; no Iceberg reader can open its files. Copy it into a lake without ENCRYPTED.")


def check_absolute(data_path: str) -> None:
    """Refuse a relative DATA_PATH, because each reader resolves it differently, and one in a store that we cannot read."""
    if data_path.startswith(("/", "file:/", "s3://", "s3a://", "s3n://")):
        _check_parts("The lake's DATA_PATH", data_path, PATH_PARTS_ADVICE)
        return
    if "://" in data_path:
        raise Unsupported(
            f"The lake's DATA_PATH {data_path!r} is in no object store this catalog speaks; it speaks S3 and local folders. "
            "Copy the lake's tables with DuckDB into a lake whose DATA_PATH is an s3:// location or a folder."
        )
    raise BadRequest(f"The lake's DATA_PATH {data_path!r} {RELATIVE_PATH_ADVICE}")


def _check_parts(what: str, path: str, remedy: str) -> None:
    """Refuse a path with an empty, '.' or '..' part: it has other spellings, or names objects that S3 clients cannot address."""
    below = with_slash(path)[:-1]
    below = below.partition("://")[2] if below.startswith("s3") else below.removeprefix("file:").lstrip("/")
    if below and not {"", ".", ".."}.isdisjoint(below.split("/")):
        raise BadRequest(f"{what} {path!r} has an empty, '.' or '..' part. {remedy}")


def check_separate(data_path: str, iceberg_path: str) -> None:
    """Refuse paths that contain each other: DuckLake's orphan clean-up deletes unknown files under DATA_PATH."""
    _check_parts("ICEBERG_PATH", iceberg_path, "Choose a plain folder.")
    if "?" in iceberg_path or "#" in iceberg_path:
        raise BadRequest(f"ICEBERG_PATH {iceberg_path!r} holds '?' or '#', where clients take a path to end. Choose a plain folder.")
    ours, ducklakes = _normalize_folder(iceberg_path), _normalize_folder(data_path)
    if ours.startswith(ducklakes) or ducklakes.startswith(ours):
        raise BadRequest(
            f"ICEBERG_PATH {iceberg_path!r} and the lake's DATA_PATH {data_path!r} lie one under the other, and DuckLake removes "
            "files it does not know under its own. Choose a folder outside of it, or another bucket."
        )


def _normalize_folder(path: str) -> str:
    """Return a folder in one spelling, for comparisons."""
    folder = with_slash(path)
    if folder.startswith(("s3a://", "s3n://")):
        return "s3://" + folder.partition("://")[2]
    return folder if "://" in folder and not folder.startswith("file:") else re.sub("/+", "/", folder.removeprefix("file:"))


def with_slash(path: str) -> str:
    """Return the path with one trailing slash, as DuckLake's own paths have it."""
    return path if path.endswith("/") else path + "/"
