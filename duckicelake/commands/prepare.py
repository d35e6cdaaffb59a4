"""Preparation of a lake for serving: create it if it is missing, add our `iceberg_*` tables and triggers, and migrate it to DuckLake 1.1.

`init`, `serve` and `backends` prepare a lake before it is opened, which changes no row of DuckLake's own tables, unless there is no lake
yet; `duckicelake lake migrate` and `lake nest` do, or only print what they would do. Each preparation also writes, reads and deletes an
object under ICEBERG_PATH, and reads the paths of other lakes in the same database. Other commands connect to Postgres and read a lake's
paths with this module.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from rich.console import Console

from duckicelake.catalog.namespace_changes import NestingReport, nest_schemas
from duckicelake.config import LakeSettings, SettingsError, with_slash
from duckicelake.embedded.ducklake import LakeAddress, S3Keys, create_lake
from duckicelake.embedded.stack import Report
from duckicelake.errors import BadRequest, Forbidden, ServiceUnavailable
from duckicelake.lake.branches.create import remove_repository
from duckicelake.lake.connect import CONNECT_OPTIONS, SELECT_VERSION, close_lake, open_lake
from duckicelake.lake.install import check_absolute, check_separate, format_search_path, install, uninstall, write_restored_max
from duckicelake.lake.readers import drop_all_roles, remove_readers
from duckicelake.lake.writing.migrate import MigrationPlan, migrate, plan_migration
from duckicelake.store.objects import open_objects
from duckicelake.store_settings import read_store_settings
from duckicelake.translate.locations import to_uri

ADVISORY_LOCK = "SELECT pg_advisory_lock(hashtextextended('duckicelake prepare ' || %(schema)s, 0))"
NEWEST_TABLE = "iceberg_root"
"""The newest table that a server needs; newer columns were added together with it."""
NEWEST_TRIGGER = "iceberg_note_version"
"""The newest trigger that a server needs."""

HAS_TABLE = "SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) IS NOT NULL"
HAS_TRIGGER = """
SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = %(schema)s AND t.tgname = %(trigger)s)
"""
SELECT_LAKE_SCHEMAS = "SELECT schemaname FROM pg_tables WHERE tablename = 'ducklake_metadata' ORDER BY schemaname"
SELECT_SEPARATE_LAKES = """
SELECT l.schemaname FROM pg_tables l
 WHERE l.tablename = 'ducklake_metadata'
   -- no branch of another lake, and no schema that was made for one
   AND NOT EXISTS (SELECT FROM pg_tables b WHERE b.schemaname = l.schemaname AND b.tablename = 'branch_fork')
 ORDER BY l.schemaname
"""
SELECT_DATA_PATH = "SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL"
SELECT_DATA_PATH_OF = sql.SQL("SELECT value FROM {}.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL")
SELECT_ICEBERG_PATH_OF = sql.SQL("SELECT value FROM {}.iceberg_setting WHERE key = 'iceberg_path'")
SELECT_ICEBERG_PATH = "SELECT value FROM iceberg_setting WHERE key = 'iceberg_path'"

_CONNECT: Mapping[str, Any] = {**CONNECT_OPTIONS, "connect_timeout": 10}


def connect_postgres(lake: LakeSettings) -> psycopg.Connection:
    """Return a connection to the lake's Postgres, whose transactions are READ COMMITTED.

    Raises: ServiceUnavailable: Postgres does not respond or refuses the login; the message never holds the connection string
    """
    try:
        conn = psycopg.connect(lake.postgres_dsn.get_secret_value(), autocommit=True, **_CONNECT)
    except psycopg.ProgrammingError as error:
        raise SettingsError(f"Lake {lake.name!r}: postgres_dsn is not a connection string that Postgres understands.") from error
    except psycopg.OperationalError as error:
        raise ServiceUnavailable(f"Lake {lake.name!r}: its Postgres does not let us in: {error}") from error
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return conn


def find_version(lake: LakeSettings) -> str | None:
    """Return DuckLake's version of a lake; None if its Postgres does not answer, or there is no lake."""
    with suppress(ServiceUnavailable), connect_postgres(lake) as conn:
        if _has_table(conn, lake, "ducklake_metadata"):
            conn.execute(format_search_path(lake.metadata_schema))
            return _get_text(conn, SELECT_VERSION)
    return None


def prepare_lake(lake: LakeSettings, extension_folder: Path, report: Report) -> LakeSettings:
    """Create the lake if it is missing, install our tables and triggers, and return the settings with both paths.

    Several servers may do this at the same time: an advisory lock lets one create the lake.
    Raises: SettingsError: the settings contradict the lake, or there is no lake and no data_path for a new one
            Unsupported: a DuckLake that this catalog cannot serve. Forbidden: the role may not create our tables
            ServiceUnavailable: objects cannot be written under ICEBERG_PATH, or there is no bucket for DATA_PATH
    """
    with connect_postgres(lake) as conn:
        if not _has_table(conn, lake, "ducklake_metadata"):
            _lock(conn, lake)
        if not _has_table(conn, lake, "ducklake_metadata"):
            if lake.data_path is not None:
                check_store(lake, lake.data_path, lake.iceberg_path or get_default_iceberg_path(lake.data_path))
            _create(conn, lake, extension_folder)
            report(f"lake {lake.name}: created in schema {lake.metadata_schema}, data in {lake.data_path}")
            report(f"lake {lake.name}: it has DuckLake 1.0, for DuckDB 1.5; `duckicelake lake migrate --dry-run` says how it gets 1.1")
        found = read_paths(conn, lake)
        check_store(found, found.data_path or "", found.iceberg_path or "")
        _install(conn, found)
        if found.restored_max_bytes is not None:
            _note_restored_max(conn, found, found.restored_max_bytes)
    return found


def check_store(lake: LakeSettings, data_path: str, iceberg_path: str) -> None:
    """Write, read and delete one object under ICEBERG_PATH, and list DATA_PATH's bucket, where only DuckDB writes.

    Raises: ServiceUnavailable: the store fails at one of these
    """
    objects = open_objects(read_store_settings(lake))
    try:
        objects.prove(to_uri(iceberg_path))
        objects.check(to_uri(data_path))
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"Lake {lake.name!r}: {error.message}") from error


def abandon_lake(lake: LakeSettings) -> None:
    """Remove our tables, triggers, indexes and readers' roles from a lake. DuckLake's tables and all files stay.

    Raises: Forbidden: the role may not drop them. BadRequest: the lake has branches
    """
    with connect_postgres(lake) as conn:
        try:
            remove_repository(conn, lake.metadata_schema)
            remove_readers(conn, lake.metadata_schema, drop_all_roles)
            uninstall(conn, lake.metadata_schema)
        except psycopg.errors.InsufficientPrivilege as error:
            raise Forbidden(f"Lake {lake.name!r}: only the role that ran `duckicelake init` may remove what it made.") from error


def _lock(conn: psycopg.Connection, lake: LakeSettings) -> None:
    """Take the advisory lock for creating this lake, until the connection ends. Any session can hold it, so wait at most 30 s."""
    try:
        conn.execute("SET lock_timeout = '30s'")
        conn.execute(ADVISORY_LOCK, {"schema": lake.metadata_schema})
        conn.execute("RESET lock_timeout")
    except psycopg.errors.LockNotAvailable as error:
        message = f"Lake {lake.name!r}: another session of its Postgres holds the lock for making it; end that session, or try again."
        raise ServiceUnavailable(message) from error


def read_paths(conn: psycopg.Connection, lake: LakeSettings) -> LakeSettings:
    """Return the settings with the DATA_PATH and ICEBERG_PATH that are stored in the lake.

    Raises: SettingsError: there is no lake, or its paths differ from the settings
    """
    if not _has_table(conn, lake, "ducklake_metadata"):
        raise SettingsError(f"Lake {lake.name!r}: no DuckLake in schema {lake.metadata_schema!r}; run `duckicelake init`.")
    conn.execute(format_search_path(lake.metadata_schema))
    data_path = _get_text(conn, SELECT_DATA_PATH)
    check_absolute(data_path or "")
    _check_same(lake, "data_path", lake.data_path, data_path)
    kept = _get_text(conn, SELECT_ICEBERG_PATH) if _has_table(conn, lake, "iceberg_setting") else None
    _check_same(lake, "iceberg_path", lake.iceberg_path, kept)
    iceberg_path = kept or lake.iceberg_path or get_default_iceberg_path(data_path or "")
    if kept is None:
        _check_other_lakes(conn, lake, data_path or "", iceberg_path)
    return lake.model_copy(update={"data_path": data_path, "iceberg_path": iceberg_path})


def get_default_iceberg_path(data_path: str) -> str:
    """Return the default ICEBERG_PATH: a sibling folder of DATA_PATH.

    Raises: SettingsError: DATA_PATH is a whole bucket or disk, so it has no sibling
    """
    root, _, folder = data_path.rstrip("/").rpartition("://")
    top, _, last = folder.rpartition("/")
    if not last or (root not in ("", "file") and not top):
        raise SettingsError(
            f"DATA_PATH {data_path!r} is a whole bucket, and DuckLake removes files it does not know there: "
            "set iceberg_path to a folder in another bucket."
        )
    return f"{root}{'://' if root else ''}{top}/{'iceberg' if last == 'data' else last + '-iceberg'}/"


def _check_other_lakes(conn: psycopg.Connection, lake: LakeSettings, data_path: str, iceberg_path: str) -> None:
    """Refuse an ICEBERG_PATH below another lake's DATA_PATH, because its clean-up would remove our files; and the reverse.

    Raises: SettingsError: names the other lake's schema
    """
    others = [schema for (schema,) in conn.execute(SELECT_LAKE_SCHEMAS).fetchall() if schema != lake.metadata_schema]
    for schema in others:
        theirs = _find_value(conn, SELECT_DATA_PATH_OF, schema)
        if theirs is not None:
            _check_other_lake(lake, schema, (theirs, iceberg_path), "Set iceberg_path.")
        theirs = _find_value(conn, SELECT_ICEBERG_PATH_OF, schema)
        if theirs is not None:
            remedy = "This lake's clean-up would remove the other one's files: copy its tables with DuckDB into a lake elsewhere."
            _check_other_lake(lake, schema, (data_path, theirs), remedy)


def _find_value(conn: psycopg.Connection, query: sql.SQL, schema: str) -> str | None:
    try:
        row = conn.execute(query.format(sql.Identifier(schema))).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable):
        # The other lake is not readable for this role, has another version, or is not prepared.
        return None
    return None if row is None else row[0]


def _check_other_lake(lake: LakeSettings, schema: str, paths: tuple[str, str], remedy: str) -> None:
    try:
        check_separate(*paths)
    except BadRequest as error:
        raise SettingsError(f"Lake {lake.name!r}: in the lake of schema {schema!r}: {error.message} {remedy}") from error


def _create(conn: psycopg.Connection, lake: LakeSettings, extension_folder: Path) -> None:
    if lake.data_path is None:
        others = [schema for (schema,) in conn.execute(SELECT_SEPARATE_LAKES).fetchall()]
        hint = f"There is one in schema {', '.join(others)}: set metadata_schema. " if others else ""
        raise SettingsError(
            f"Lake {lake.name!r}: no DuckLake in schema {lake.metadata_schema!r} of its Postgres. {hint}"
            "To make one there, set data_path to where its data shall go."
        )
    address = LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema, with_slash(lake.data_path))
    create_lake(extension_folder, address, find_s3_keys(lake))


def find_s3_keys(lake: LakeSettings) -> S3Keys | None:
    """Return the lake's S3 keys for DuckDB, or None if it has none."""
    if lake.s3_access_key_id is None or lake.s3_secret_access_key is None:
        return None
    return S3Keys(lake.s3_endpoint, lake.s3_region, lake.s3_access_key_id, lake.s3_secret_access_key.get_secret_value())


def _install(conn: psycopg.Connection, lake: LakeSettings) -> None:
    try:
        install(conn, lake.metadata_schema, lake.iceberg_path or "")
    except psycopg.errors.InsufficientPrivilege as error:
        # A server may run with a role that only reads and writes, if the lake's owner has run `init` before.
        if _has_table(conn, lake, NEWEST_TABLE) and _has_trigger(conn, lake, NEWEST_TRIGGER):
            return
        if _has_table(conn, lake, "iceberg_setting"):
            raise Forbidden(
                f"Lake {lake.name!r}: it was prepared by an older version, and the Postgres role may not add what is new. "
                "Run `duckicelake init` once as the lake's owner."
            ) from error
        raise Forbidden(
            f"Lake {lake.name!r}: the Postgres role may not create tables and triggers in schema {lake.metadata_schema!r}. "
            "Run `duckicelake init` once as the lake's owner."
        ) from error


def _note_restored_max(conn: psycopg.Connection, lake: LakeSettings, restored_max_bytes: int) -> None:
    try:
        write_restored_max(conn, lake.metadata_schema, restored_max_bytes)
    except psycopg.errors.InsufficientPrivilege as error:
        raise Forbidden(f"Lake {lake.name!r}: the Postgres role may not write iceberg_setting; remove restored_max_bytes.") from error


def _has_table(conn: psycopg.Connection, lake: LakeSettings, table: str) -> bool:
    row = conn.execute(HAS_TABLE, {"schema": lake.metadata_schema, "table": table}).fetchone()
    return row is not None and row[0]


def _has_trigger(conn: psycopg.Connection, lake: LakeSettings, trigger: str) -> bool:
    row = conn.execute(HAS_TRIGGER, {"schema": lake.metadata_schema, "trigger": trigger}).fetchone()
    return row is not None and row[0]


def _get_text(conn: psycopg.Connection, query: LiteralString) -> str | None:
    row = conn.execute(sql.SQL(query)).fetchone()
    return None if row is None else row[0]


def _check_same(lake: LakeSettings, name: str, wanted: str | None, kept: str | None) -> None:
    if wanted is not None and kept is not None and with_slash(wanted) != with_slash(kept):
        raise SettingsError(f"Lake {lake.name!r}: {name} is {wanted!r} in the settings and {kept!r} in the lake; remove the setting.")


def migrate_lake(lake: LakeSettings, console: Console, *, is_dry_run: bool) -> bool:
    """Migrate a lake to DuckLake 1.1, or print what that would do; return False if something stands against it.

    Servers go on serving the lake; what they published before is published again where the migration changed it.
    Raises: Forbidden: the role does not own the lake's tables. SettingsError: there is no lake
    """
    with connect_postgres(lake) as conn:
        try:
            conn.execute(format_search_path(lake.metadata_schema))
            plan = plan_migration(conn)
            if not plan.is_done and not plan.obstacles and not is_dry_run:
                migrate(conn, lake.metadata_schema)
        except psycopg.errors.UndefinedTable as error:
            raise SettingsError(f"Lake {lake.name!r}: no DuckLake in schema {lake.metadata_schema!r}; run `duckicelake init`.") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise Forbidden(f"Lake {lake.name!r}: only the owner of DuckLake's tables may migrate them.") from error
    for line in _list_lines(lake.name, plan, is_dry_run=is_dry_run):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not plan.obstacles


def nest_lake(lake: LakeSettings, console: Console, *, is_dry_run: bool) -> bool:
    """Nest the schemas of a lake of DuckLake 1.1, or print what that would do; return False if something stands against it.

    Raises: BadRequest: the lake has DuckLake 1.0
    """
    opened = open_lake(lake.name, lake.postgres_dsn.get_secret_value(), lake.metadata_schema, 1)
    try:
        report = nest_schemas(opened, is_dry_run=is_dry_run)
    finally:
        close_lake(opened)
    for line in _list_nesting(lake.name, report, is_dry_run=is_dry_run):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not report.obstacles


def _list_nesting(name: str, report: NestingReport, *, is_dry_run: bool) -> list[str]:
    if not report.nested:
        return [f"lake {name}: no schema stands for a nested namespace; nothing was changed"]
    if report.obstacles:
        return [f"lake {name}: schemas cannot be nested yet; nothing was changed", *(f"  {text}" for text in report.obstacles)]
    done = "would be nested; nothing was changed" if is_dry_run else "are nested"
    lines = [f"lake {name}: the schemas of {', '.join(report.nested)} {done}"]
    if report.outdated_views:
        lines.append(
            f"  Create these views again, whose SQL names a schema by its former name: {', '.join(sorted(set(report.outdated_views)))}"
        )
    return lines


def _list_lines(name: str, plan: MigrationPlan, *, is_dry_run: bool) -> list[str]:
    if plan.is_done:
        return [f"lake {name}: it has DuckLake 1.1 already; nothing was changed"]
    if plan.obstacles:
        return [f"lake {name}: it cannot be migrated yet; nothing was changed", *(f"  {text}" for text in plan.obstacles)]
    if not is_dry_run:
        return [f"lake {name}: migrated to DuckLake 1.1. DuckDB attaches it from version 2.0 on; DuckDB 1.5 does not any more."]
    return [
        f"lake {name}: nothing stands against the migration to DuckLake 1.1; nothing was changed",
        f"  It would rename the system columns of {len(plan.inlined_tables)} tables of inlined rows, add seven columns and one table, and "
        "clear the bounds of columns whose type was changed. No row, file or snapshot changes.",
        "  There is no way back: DuckDB 1.5 cannot attach the lake any more. Back up the database first.",
        f"  {plan.session_count} other sessions use the database. End every DuckDB 1.5 session that has attached the lake: it would go on "
        "writing rows of the old layout.",
    ]
