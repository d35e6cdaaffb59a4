"""`duckicelake check`: findings about a lake, each with a remedy, the repairs of `--repair`, and one request to each route's catalog.

The command line calls it. A check writes nothing: it reads Postgres and the store, and each table in its own savepoint of a read-only
REPEATABLE READ transaction. Warnings about readers leave the exit status as it is. Repairs do not take the lake's lock: they delete
objects, abort uploads, publish tables, drop expired Postgres roles of DuckDB users and make servers drop their caches. The Spark job
`maintain` calls `remove_orphans` and `repair_lake` too, on its driver. `check --storage` tries that vended credentials open one table and
no other object, on objects that it writes in the lake's own bucket and deletes.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import duckdb
import psycopg
from rich.console import Console

from duckicelake.app import build_gateway
from duckicelake.catalog.cleanup import finish_purge, forget_staged_location, list_abandoned_locations, list_leftovers, list_orphans
from duckicelake.catalog.health import list_lost_versions, list_missing_objects, list_stale_metadata
from duckicelake.catalog.publish import build_draft, build_first_note
from duckicelake.catalog.snapshot_building import TableReading, build_snapshots, read_changes
from duckicelake.catalog.table_cache import TableCache
from duckicelake.catalog.tables import Ident, load_table
from duckicelake.catalog.warehouse import Warehouse, WarehouseLimits, close_warehouse, open_warehouse
from duckicelake.commands.prepare import connect_postgres, read_paths
from duckicelake.config import LakeSettings, Settings, with_slash
from duckicelake.embedded.ducklake import connect_duckdb, quote
from duckicelake.embedded.home import Home
from duckicelake.errors import BadRequest, CatalogError, NoSuchTable, NotFound, ServiceUnavailable, TableVanished, Unsupported
from duckicelake.gateway.upstream import Gateway
from duckicelake.lake import inspect
from duckicelake.lake.branches.registry import is_shared, list_branches
from duckicelake.lake.connect import mapped_errors, writing
from duckicelake.lake.inspect import LakeFinding, list_public_findings
from duckicelake.lake.install import format_search_path
from duckicelake.lake.lake_format import FORMATS
from duckicelake.lake.locations import StagedLocation
from duckicelake.lake.notes import delete_imported_manifests, delete_versions, write_repair
from duckicelake.lake.read import find_table, read_schemas, read_table_names
from duckicelake.lake.readers import drop_expired_roles
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.registration import list_purges
from duckicelake.store.isolation_check import (
    CheckOutcome,
    CheckVerdict,
    ClientCredentials,
    ScratchFolder,
    call_with_own_keys,
    check_isolation,
    check_signing,
    create_sessions,
    open_client,
)
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import Uploads
from duckicelake.store.uris import parse_uri
from duckicelake.store.vending import Vendor
from duckicelake.store_settings import read_store_settings, read_sts_settings
from duckicelake.translate.locations import metadata_uri, to_uri
from duckicelake.translate.namespaces import to_levels
from duckicelake.translate.reader_limits import READER_LIMITS, ReaderLimit, list_columns, to_checked_table
from duckicelake.translate.types import list_nullable_names

LOOK_UP_THREADS = 16
MAY_HOLD_NULLS = "it must hold no NULL, and files or inlined rows that a snapshot shows are not proven to hold none"
NULLS_REMEDY = (
    "Look for rows WHERE {column} IS NULL in DuckDB and correct them, rewrite the table's files and expire its old snapshots; "
    "or ALTER COLUMN {column} DROP NOT NULL. Files without counts of NULLs, and empty lists and maps, count as NULLs here."
)
READ_ONLY_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


def check_lakes(settings: Settings, home: Home, console: Console, repair: timedelta | None = None) -> bool:
    """Print the findings of each lake, and return True if no finding is an error.

    `repair`: first publish missing objects again, then remove unreferenced objects that are older than this.
    """
    healthy = True
    for lake in settings.lakes():
        if repair is not None:
            restored = repair_lake(lake, is_corrected=True)
            removed = remove_orphans(lake, datetime.now(UTC) - repair)
            # A server may have referenced an object meanwhile that is removed now.
            restored += repair_lake(lake) if removed else []
            console.print(f"{lake.name}: {len(removed)} objects removed that nothing named", highlight=False)
            if branches := list_branch_names(lake):
                text = f"{lake.name}: objects are removed only while there are no branches; open: {', '.join(branches)}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            names = ", ".join(dict.fromkeys(restored)) or "nothing"
            console.print(f"{lake.name}: published again: {names}", markup=False, highlight=False, soft_wrap=True)
        found = list_findings(lake, home)
        errors = sum(finding.severity == "error" for finding in found)
        healthy = healthy and errors == 0
        console.print(f"[bold]{lake.name}[/]: " + (f"{errors} errors, {len(found) - errors} warnings" if found else "all is well"))
        for finding in found:
            style = "red" if finding.severity == "error" else "yellow"
            console.print(f"  [{style}]{finding.severity}[/] ", end="")
            text = f"{finding.subject}: {finding.problem.rstrip('.')}. {finding.remedy}".rstrip()
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    return check_routes(settings, console) and healthy


def list_findings(lake: LakeSettings, home: Home) -> list[LakeFinding]:
    """Return the findings of a lake. A finding that prevents further checks, such as a missing right, is the last one."""
    try:
        with connect_postgres(lake) as conn:
            lake = read_paths(conn, lake)
            conn.execute(format_search_path(lake.metadata_schema))
            return _list_lake_findings(conn, lake, home)
    except psycopg.errors.InsufficientPrivilege as error:
        return [
            LakeFinding("error", "lake", f"our Postgres role lacks a right: {error.diag.message_primary}", "Grant it, then check again.")
        ]
    except CatalogError as error:
        return [LakeFinding("error", "lake", error.message, "")]


def _list_lake_findings(conn: psycopg.Connection, lake: LakeSettings, home: Home) -> list[LakeFinding]:
    rights = inspect.read_privileges(conn, lake.metadata_schema)
    found = inspect.list_privilege_findings(rights)
    if not all(right.may_read for right in rights):
        return found
    settings = inspect.read_settings(conn)
    found += inspect.list_setting_findings(settings)
    if settings.get("version") not in FORMATS:
        return found
    found += inspect.read_findings(conn)
    found += list_public_findings(conn)
    found += _list_bad_defaults(conn, home)
    objects, data_uri = open_objects(read_store_settings(lake)), to_uri(lake.data_path or "")
    try:
        objects.check(data_uri)
    except ServiceUnavailable as error:
        return [*found, LakeFinding("error", "lake", error.message, "")]
    found += _list_missing_files(conn, objects, data_uri)
    found += list_lost_objects(conn, objects, ReadOnlyObjects(read_store_settings(lake)))
    found += _list_table_findings(conn, ReadOnlyObjects(read_store_settings(lake)))
    return found


def _list_bad_defaults(conn: psycopg.Connection, home: Home) -> list[LakeFinding]:
    defaults = inspect.read_defaults(conn)
    if not defaults:
        return []
    found: list[LakeFinding] = []
    with connect_duckdb(home.make_folder("extensions"), ()) as duck:
        for table, column, column_type, text in defaults:
            try:
                duck.execute(f"SELECT CAST({quote(text)} AS {get_duckdb_type(column_type)})")
            except duckdb.Error:
                problem = f"column {column} has the initial default {text!r}, which is no {column_type}"
                found.append(LakeFinding("error", table, problem, "DuckDB cannot attach the lake: correct it in Postgres."))
    return found


def get_duckdb_type(column_type: str) -> str:
    """Return the DuckDB name of a primitive DuckLake type; `varchar` for anything that is not a plain type name."""
    name = column_type.lower()
    if name.startswith("decimal(") and name.removeprefix("decimal(").removesuffix(")").replace(",", "").replace(" ", "").isdigit():
        return name
    renamed = {"int128": "hugeint", "uint128": "uhugeint", "float32": "float", "float64": "double", "timestamp_us": "timestamp"}
    renamed |= {"int8": "tinyint", "int16": "smallint", "int32": "integer", "int64": "bigint"}
    renamed |= {"uint8": "utinyint", "uint16": "usmallint", "uint32": "uinteger", "uint64": "ubigint"}
    same = {"boolean", "date", "time", "timetz", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamptz", "uuid", "blob"}
    return renamed.get(name, name if name in same | {"interval"} else "varchar")


class ReadOnlyObjects(Objects):
    """An object store that reads objects and writes nothing."""

    def put_new(self, uri: str, content: bytes) -> bool:
        """Write nothing, and report nothing as written."""
        return False

    def put_many_new(self, items: Iterable[tuple[str, bytes]]) -> set[str]:
        """Write nothing, and report nothing as written."""
        return set()


MOST_TABLES, MOST_COLUMNS = 5, 3
"""Limits of the tables that a warning lists, and of the columns for each."""


@dataclass(frozen=True, slots=True)
class AffectedTable:
    """A table, its columns that a reader's limit affects, and SQL that avoids the limit for the first of them."""

    name: str
    columns: Sequence[str]
    example: str


class ReaderWarnings:
    """Collects the tables that each reader's limit affects."""

    def __init__(self) -> None:
        self._affected: list[list[AffectedTable]] = [[] for _ in READER_LIMITS]

    def add(self, reading: TableReading) -> None:
        """Add the limits that affect a published table."""
        live = [file for file in reading.sources.files if file.end_snapshot is None]
        if live:
            oldest_row = min(file.begin_snapshot for file in live)
        else:
            oldest_row = reading.state.position.lake_snapshot_id
        has_files = any(file.key not in reading.sources.derived for file in live)
        table = to_checked_table(reading.state, oldest_row, has_files=has_files)
        for limit, affected in zip(READER_LIMITS, self._affected, strict=True):
            columns = limit.find(table)
            if columns:
                example = limit.format_example(table, columns[0]) if limit.format_example else ""
                affected.append(AffectedTable(table.name, list_columns(table, columns), example))

    def list_findings(self) -> list[LakeFinding]:
        """Return a warning for each limit that affects a table."""
        return [format_warning(limit, affected) for limit, affected in zip(READER_LIMITS, self._affected, strict=True) if affected]


def format_warning(limit: ReaderLimit, affected: Sequence[AffectedTable]) -> LakeFinding:
    """Return the warning of a limit with the affected tables and columns, and the remedy."""
    shown = [format_table(table) for table in affected[:MOST_TABLES]]
    more = [f"{len(affected) - MOST_TABLES} more tables"] if len(affected) > MOST_TABLES else []
    problem = f"{limit.effect}: {', '.join([*shown, *more])}"
    example = affected[0].example
    return LakeFinding("warning", limit.readers, problem, f"{limit.remedy}: {example}" if example else f"{limit.remedy}.")


def format_table(table: AffectedTable) -> str:
    """Return a table's name with at most MOST_COLUMNS of its affected columns."""
    shown = [*table.columns[:MOST_COLUMNS], *(["…"] if len(table.columns) > MOST_COLUMNS else [])]
    return f"{table.name} ({', '.join(shown)})"


def _list_table_findings(conn: psycopg.Connection, objects: ReadOnlyObjects) -> list[LakeFinding]:
    """Return the tables that Iceberg clients cannot read, and the columns that single readers cannot read."""
    found: list[LakeFinding] = []
    warnings = ReaderWarnings()
    with conn.transaction():
        conn.execute(READ_ONLY_SNAPSHOT)
        for schema in read_schemas(conn):
            for name in read_table_names(conn, schema.schema_id):
                table = find_table(conn, schema.schema_name, name)
                found += [] if table is None else _list_findings_of_table(conn, objects, table, warnings)
    return [*found, *warnings.list_findings()]


def _list_findings_of_table(
    conn: psycopg.Connection, objects: ReadOnlyObjects, table: TableRow, warnings: ReaderWarnings
) -> list[LakeFinding]:
    """Return the differences between a table in DuckDB and for Iceberg clients. The metadata is built as for a load, and not stored.

    Limits of single readers are added to `warnings`.
    """
    memory, name = TableCache(), f"{table.schema_name}.{table.table_name}"
    try:
        # A savepoint: an error of Postgres for one table must not end the checks of the others.
        with conn.transaction():
            reading = read_changes(conn, objects, table, memory)
            build_snapshots(conn, objects, reading, reading.state.notes.table or build_first_note(objects, reading.state), memory.files)
    except (Unsupported, TableVanished) as error:
        return [LakeFinding("warning", name, "Iceberg clients cannot read it yet", error.message)]
    except NotFound:
        # `_list_missing_files` reports missing files.
        return []
    warnings.add(reading)
    columns = ((path, f"Iceberg clients see column {path!r} as optional: {MAY_HOLD_NULLS}") for path in list_nullable_names(reading.state))
    return [LakeFinding("warning", name, problem, NULLS_REMEDY.format(column=path.partition(".")[0])) for path, problem in columns]


def list_lost_objects(conn: psycopg.Connection, objects: Objects, read_only_objects: ReadOnlyObjects | None = None) -> list[LakeFinding]:
    """Return a finding for every published object that is missing from the store.

    With `read_only_objects`, a table whose newest metadata file is outdated has no such finding: the next load publishes the table,
    and the new metadata references no object that expiry and clean-up have removed.
    """
    found: list[LakeFinding] = []
    for schema_name, table_name, location, metadata_version in inspect.read_published(conn):
        name = f"{schema_name}.{table_name}"
        try:
            lost = list_missing_objects(objects, location, metadata_version)
            if lost and read_only_objects is not None and _is_outdated(conn, read_only_objects, schema_name, table_name):
                lost = []
        except (BadRequest, ValueError) as error:
            remedy = f"Delete the folder {location}/metadata and run `duckicelake check --repair`."
            found.append(LakeFinding("error", name, f"a published object cannot be read: {error}", remedy))
        else:
            remedy = "Run `duckicelake check --repair`."
            found += [LakeFinding("error", name, f"the published object {uri} is missing", remedy) for uri in lost]
            problem = "{} shows another state than the lake has had, as after a restore of Postgres"
            found += [
                LakeFinding("error", name, problem.format(uri), remedy) for uri in _list_stale(conn, objects, location, newest_only=True)
            ]
            gone = list_lost_versions(objects, location, inspect.read_published_log(conn, location))
            problem = "the metadata log names {}, which is gone"
            found += [LakeFinding("warning", name, problem.format(metadata_uri(location, row.metadata_version)), remedy) for row in gone]
    return found


def _is_outdated(conn: psycopg.Connection, read_only_objects: ReadOnlyObjects, schema_name: str, table_name: str) -> bool:
    """True if a load would publish a new metadata version of the table now."""
    memory = TableCache()
    with conn.transaction():
        conn.execute(READ_ONLY_SNAPSHOT)
        table = find_table(conn, schema_name, table_name)
        if table is None:
            return True
        try:
            known = read_changes(conn, read_only_objects, table, memory)
            draft = build_draft(conn, read_only_objects, known, memory)
        except (Unsupported, TableVanished, NotFound):
            # `_list_table_findings` and `_list_missing_files` report these.
            return False
    noted = known.state.notes.table
    return noted is None or noted.token != draft.wanted.token


def _list_stale(conn: psycopg.Connection, objects: Objects, location: str, *, newest_only: bool = False) -> list[str]:
    return list_stale_metadata(objects, location, lambda: inspect.read_published_log(conn, location), newest_only=newest_only)


def list_branch_names(lake: LakeSettings) -> list[str]:
    """Return the names of a lake's branches."""
    with connect_postgres(lake) as conn, mapped_errors(lake.name):
        conn.execute(format_search_path(lake.metadata_schema))
        return [branch.name for branch in list_branches(conn)]


def remove_orphans(lake: LakeSettings, before: datetime, spared: Container[tuple[str, str]] = ()) -> list[str]:
    """Remove unreferenced objects in the locations of live tables that were last written before that time, and return their URIs.

    It also removes what interrupted purges of dropped tables left, and the locations of tables that were staged before that time and never
    created, if no object there is newer. Multipart uploads there and below DATA_PATH are aborted if they got no part since that time.

    Tables that cannot be published keep all objects, and so do those in `spared`, by schema and name. After each table, servers drop what
    they have cached of the store. A server that publishes meanwhile may reference a removed object, so call `repair_lake` afterwards.
    Nothing is removed while the lake has branches, nor on a branch: other members may reference objects that this one does not.
    """
    with connect_postgres(lake) as conn, mapped_errors(lake.name):
        conn.execute(format_search_path(lake.metadata_schema))
        if is_shared(conn):
            return []
    store = read_store_settings(lake)
    warehouse = open_warehouse(lake.name, lake.postgres_dsn.get_secret_value(), lake.metadata_schema, store)
    uploads, removed = Uploads(store), list[str]()
    try:
        with connect_postgres(lake) as conn, mapped_errors(lake.name):
            data_path = read_paths(conn, lake).data_path
            published = inspect.read_published(conn)
            purges = [noted for noted in list_purges(conn) if noted.begun_at < before]
        for noted in purges:
            # An error of one table's store must not keep the others from being cleaned up.
            with contextlib.suppress(CatalogError):
                removed += finish_purge(warehouse, noted)
        for staged in list_abandoned_locations(warehouse, before):
            with contextlib.suppress(CatalogError):
                removed += _sweep_staged(warehouse, staged, before)
                removed += uploads.abort_stale(staged.location, before)
        removed += uploads.abort_stale(data_path, before) if data_path else []
        for schema_name, table_name, location, _ in published:
            if (schema_name, table_name) in spared:
                continue
            with contextlib.suppress(BadRequest, Unsupported, NotFound, NoSuchTable):
                found = list_orphans(warehouse, Ident(to_levels(schema_name), table_name), before)
                _remove_objects(warehouse, found)
                removed += [*found, *uploads.abort_stale(location, before)]
    finally:
        close_warehouse(warehouse)
    return removed


def _sweep_staged(warehouse: Warehouse, staged: StagedLocation, before: datetime) -> Sequence[str]:
    left = list_leftovers(warehouse, staged, before)
    if left is None:
        return []
    _remove_objects(warehouse, left)
    forget_staged_location(warehouse, staged)
    return left


def _remove_objects(warehouse: Warehouse, uris: Sequence[str]) -> None:
    """Remove objects, and make servers drop what they have cached of the store, even if only some could be removed."""
    if not uris:
        return
    try:
        warehouse.objects.delete_many(uris)
    finally:
        with writing(warehouse.lake) as conn:
            write_repair(conn)


def repair_lake(lake: LakeSettings, *, is_corrected: bool = False) -> list[str]:
    """Make servers drop their caches, publish tables with missing objects again, and return the names of these tables.

    `is_corrected`: rows may have been corrected or Postgres restored, so the records of adopted manifests are deleted, and metadata files
    that show a state the lake never had are removed. Tables that cannot be published remain findings of the check.
    """
    limits, dsn = WarehouseLimits(), lake.postgres_dsn.get_secret_value()
    warehouse = open_warehouse(lake.name, dsn, lake.metadata_schema, read_store_settings(lake), limits)
    restored: list[str] = []
    try:
        with connect_postgres(lake) as conn, mapped_errors(lake.name):
            read_paths(conn, lake)
            if is_corrected:
                delete_imported_manifests(conn)
                for _, _, location, _ in inspect.read_published(conn):
                    warehouse.objects.delete_many(_list_stale(conn, warehouse.objects, location))
            write_repair(conn)
            with conn.transaction():
                drop_expired_roles(conn, lake.metadata_schema)
            published = inspect.read_published(conn)
            lost = {finding.subject for finding in list_lost_objects(conn, warehouse.objects)}
        for schema_name, table_name, *_ in published:
            name = f"{schema_name}.{table_name}"
            if name in lost:
                with contextlib.suppress(Unsupported, NotFound, NoSuchTable):
                    load_table(warehouse, Ident(to_levels(schema_name), table_name))
                    restored.append(name)
        if is_corrected:
            restored += _shorten_logs(lake, warehouse)
    finally:
        close_warehouse(warehouse)
    return restored


def _shorten_logs(lake: LakeSettings, warehouse: Warehouse) -> list[str]:
    """Remove missing metadata files from the metadata logs, publish these tables again, and return their names."""
    shortened: list[str] = []
    with connect_postgres(lake) as conn, mapped_errors(lake.name):
        read_paths(conn, lake)
        for schema_name, table_name, location, metadata_version in inspect.read_published(conn):
            gone = list_lost_versions(warehouse.objects, location, inspect.read_published_log(conn, location))
            if not gone:
                continue
            delete_versions(conn, location, [row.metadata_version for row in gone])
            warehouse.objects.delete(metadata_uri(location, metadata_version))
            write_repair(conn)
            with contextlib.suppress(Unsupported, NotFound, NoSuchTable):
                load_table(warehouse, Ident(to_levels(schema_name), table_name))
                shortened.append(f"{schema_name}.{table_name}")
    return shortened


def _list_missing_files(conn: psycopg.Connection, objects: Objects, data_uri: str) -> list[LakeFinding]:
    paths = [(table, to_uri(path)) for table, path in inspect.read_file_paths(conn)]
    present = {uri for uri, _ in objects.list_under(data_uri)}
    elsewhere = [uri for _, uri in paths if uri not in present]
    with ThreadPoolExecutor(LOOK_UP_THREADS) as pool:
        present |= {uri for uri, exists in zip(elsewhere, pool.map(objects.exists, elsewhere), strict=True) if exists}
    return inspect.list_missing_files(paths, present)


def check_routes(settings: Settings, console: Console) -> bool:
    """Request the configuration of the catalog behind each route, and print the result. True if all answer."""
    gateway = build_gateway(settings)
    if gateway is None:
        return True
    reasons = asyncio.run(try_routes(gateway))
    for name, reason in reasons.items():
        console.print(f"[bold]{name}[/]: " + ("the catalog answers" if reason is None else "[red]error[/]"))
        if reason is not None:
            console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
    return not any(reasons.values())


async def try_routes(gateway: Gateway) -> dict[str, str | None]:
    """Return for each route the reason why its catalog cannot be used, or None."""
    gateway.open()
    try:
        found = await asyncio.gather(*(upstream.find_reason() for upstream in gateway.upstreams.values()))
        return dict(zip(gateway.upstreams, found, strict=True))
    finally:
        await gateway.close()


STYLES = {CheckVerdict.ok: "green", CheckVerdict.failed: "red", CheckVerdict.noted: "yellow"}


def check_storage(settings: Settings, console: Console) -> bool:
    """Print a line for each check of each lake's store, and return True if none failed."""
    proven = True
    for lake in settings.lakes():
        lines = list(_print_lines(lake, console))
        failed = sum(line.verdict is CheckVerdict.failed for line in lines)
        proven = proven and failed == 0
        console.print(
            f"[bold]{lake.name}[/]: {len(lines)} checks of the store, " + (f"{failed} failed" if failed else "all as they must be")
        )
    return proven


def _print_lines(lake: LakeSettings, console: Console) -> Iterator[CheckOutcome]:
    for line in check_lake_storage(lake):
        console.print(f"[{STYLES[line.verdict]}]{line.verdict:<6}[/] ", end="")
        console.print(f"{line.name}: {line.detail}".removesuffix(": "), markup=False, highlight=False, soft_wrap=True)
        yield line


def check_lake_storage(lake: LakeSettings) -> Iterator[CheckOutcome]:
    """Yield the outcomes for a lake's store: the catalog's own keys first, then vended credentials. An error ends the checks."""
    try:
        with connect_postgres(lake) as conn:
            lake = read_paths(conn, lake)
        scratch = f"{with_slash(lake.iceberg_path or '')}check-storage-{secrets.token_hex(8)}/"
        address = parse_uri(scratch)
        if not address.bucket:
            raise Unsupported(f"ICEBERG_PATH {lake.iceberg_path!r} is no S3: there are no keys to prove.")
        yield from _check_own_keys(open_objects(read_store_settings(lake)), scratch)
        store = read_store_settings(lake)
        root = open_client(store, ClientCredentials(store.access_key_id, store.secret_access_key))
        yield from _check_vended_keys(lake, ScratchFolder(address.bucket, f"{address.key}/", root))
    except CatalogError as error:
        yield CheckOutcome("the store can be proven", CheckVerdict.failed, error.message)


def _check_own_keys(objects: Objects, scratch: str) -> Iterator[CheckOutcome]:
    """Yield the outcomes for the catalog's own keys: conditional writes by absence and by ETag, LIST, DELETE."""
    uri = f"{scratch}own"
    try:
        yield _build_outcome("catalog's own keys: an object is written once", [objects.put_new(uri, b"1"), not objects.put_new(uri, b"2")])
        tag = objects.find_etag(uri)
        exchanged = [objects.replace(uri, b"3", tag) is not None, objects.replace(uri, b"4", tag) is None, objects.read(uri) == b"3"]
        yield _build_outcome("catalog's own keys: an object is exchanged by its tag alone", exchanged)
        yield _build_outcome("catalog's own keys: LIST finds it", [[found for found, _ in objects.list_under(scratch)] == [uri]])
    finally:
        objects.delete(uri)
    yield _build_outcome("catalog's own keys: DELETE removes it", [not objects.exists(uri)])


def _build_outcome(name: str, steps: list[bool]) -> CheckOutcome:
    wrong = [str(number) for number, went_well in enumerate(steps, 1) if not went_well]
    return CheckOutcome(name, CheckVerdict.failed if wrong else CheckVerdict.ok, f"step {', '.join(wrong)} went otherwise" if wrong else "")


def _check_vended_keys(lake: LakeSettings, field: ScratchFolder) -> Iterator[CheckOutcome]:
    store = read_store_settings(lake)
    if lake.sts_role_arn is None:
        raise Unsupported("No keys are vended: sts_role_arn is not set. Set it, or let clients have their requests signed.")
    sts = read_sts_settings(lake, lake.sts_role_arn)
    sessions = create_sessions(Vendor(store, sts), field)
    left: list[str] = []
    try:
        field.write_objects()
        yield from check_isolation(store, sts.lifetime_s, field, sessions)
    finally:
        call_with_own_keys("remove what the proof has written", lambda: left.extend(field.clear()))
        # The catalog needs no right to list multipart uploads otherwise, and each check has aborted its own.
        with suppress(ServiceUnavailable):
            call_with_own_keys("list uploads in parts", field.end_uploads)
    yield CheckOutcome("what the proof has written is removed", CheckVerdict.failed if left else CheckVerdict.ok, ", ".join(left))
    yield check_signing(store, field)
