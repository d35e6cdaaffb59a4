"""Read-only DuckLake for DuckDB users: a role in Postgres that sees what its principal may read, and credentials for the files of that.

`rest/routes/store_access.py` calls this on a worker thread, and `rest/routes/server.py` asks `may_vend_ducklake`. The folders are listed in
a read transaction, after the DATA_PATHs of the server's other lakes are read from their Postgres. STS gives the credentials. The role is
created in a transaction of its own, with its audit line, and given out again in the first half of its time.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from urllib.parse import urlsplit

import psycopg

from duckicelake.access.grants import Grants, Levels, Rights, fold_levels
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NotAuthorized, NotServed, Unsupported
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.branches.ancestors import in_schema, is_always_in, list_ancestors, list_used_folders
from duckicelake.lake.connect import Lake, reading
from duckicelake.lake.locations import LiveTableName, TableLocation, list_live_table_names, list_outside_paths, list_table_locations
from duckicelake.lake.read import read_data_path, read_iceberg_path
from duckicelake.lake.reader_views import format_schema_name
from duckicelake.lake.readers import LakeReader, ReaderRole, can_issue, create_reader_role, is_live, prepare_branch
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.uris import parse_uri
from duckicelake.store.vending import SessionCredentials, Vendor, split_reads
from duckicelake.translate.locations import file_uri, to_folder_uri
from duckicelake.translate.namespaces import LEVEL_SEPARATOR, to_levels

MOST_KEYS, MOST_FOLDERS, MOST_FILES_EACH, MOST_REMEMBERED = 32, 1000, 256, 1024

MayRead = Callable[[Levels, str], bool]


@dataclass(frozen=True, slots=True)
class DucklakeRequest:
    """A principal's request: its `grants` by settings, within `scope` (None: unlimited), its `account` in the lake, and what it may read.

    Of another issuer's token: the `roles` that it names, as they are called here, and its end (`until_s`), the role's at the latest.
    """

    audit_context: AuditContext
    account: tuple[int, int] | None
    grants: Grants
    scope: Grants | None
    may_read: MayRead
    roles: tuple[str, ...] = ()
    until_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class ScopedCredentials:
    """Keys, and the folders and files that they open."""

    keys: SessionCredentials
    uris: Sequence[str]


@dataclass(frozen=True, slots=True)
class DucklakeCredentials:
    """All that DuckDB needs to read: a connection string, statements that are ready to run, and when both end."""

    dsn: str = field(repr=False)
    metadata_schema: str
    secrets: Sequence[str] = field(repr=False)
    attach: str = field(repr=False)
    keys: Sequence[ScopedCredentials] = field(repr=False)
    expires_at_ms: int


@dataclass(slots=True)
class RoleCache:
    """The roles that this server gave out and may give out again, by reader."""

    public: str | None = None
    _roles: dict[LakeReader, ReaderRole] = field(default_factory=dict[LakeReader, ReaderRole], repr=False)
    _lock: Lock = field(default_factory=Lock)

    def find(self, reader: LakeReader, now_s: float) -> ReaderRole | None:
        """Return a reader's role while it is fresh."""
        with self._lock:
            self._roles = {each: role for each, role in self._roles.items() if now_s < role.fresh_until_s}
            return self._roles.get(reader)

    def keep(self, reader: LakeReader, role: ReaderRole) -> None:
        """Remember a reader's role."""
        with self._lock:
            if len(self._roles) >= MOST_REMEMBERED:
                self._roles.clear()
            self._roles[reader] = role


def may_vend_ducklake(warehouse: Warehouse) -> bool:
    """Return True if read-only access can be issued: STS is configured, and our Postgres role may create roles."""
    return warehouse.vendor is not None and can_issue(warehouse.lake)


def get_ducklake_credentials(warehouse: Warehouse, roles: RoleCache, request: DucklakeRequest, now_s: float) -> DucklakeCredentials:
    """Return the connection string and credentials to read the lake in DuckDB.

    Raises: NotServed: it cannot be given here; says why. Unsupported: the files lie in too many places. ServiceUnavailable.
            NotAuthorized: the token of another issuer ended, within what its clock may differ by
    """
    vendor = warehouse.vendor
    if request.until_s <= now_s:
        raise NotAuthorized("The token has expired; ask its issuer for a new one.")
    if vendor is None:
        raise NotServed("No keys are vended for this warehouse (sts_role_arn), so DuckDB users get none either.")
    own = format_schema_name(warehouse.lake.metadata_schema)
    neighbours = warehouse.neighbours.find()
    with reading(warehouse.lake) as conn:
        uris = _list_readable_uris(conn, warehouse, request.may_read, neighbours)
    keys = _get_scoped_credentials(vendor, uris, now_s)
    # A branch has no roles of its own: grants, and so roles, are the lake's.
    role = _get_role(warehouse.repository_lake or warehouse.lake, roles, request, (vendor.lifetime_s, now_s))
    if warehouse.repository is not None:
        prepare_branch(warehouse.lake, warehouse.repository)
    expires_at_ms = min([int(role.expires_at_s * 1000), *(each.keys.expires_at_ms for each in keys)])
    secrets = [_format_secret(vendor.store, each, f"{warehouse.name}_s3_{number}") for number, each in enumerate(keys, 1)]
    return DucklakeCredentials(role.dsn, own, secrets, format_attach(role.dsn, own, warehouse.name), keys, expires_at_ms)


def _get_role(lake: Lake, roles: RoleCache, request: DucklakeRequest, lifetime: tuple[int, float]) -> ReaderRole:
    lifetime_s, now_s = lifetime
    reader = to_reader(request)
    kept = roles.find(reader, now_s)
    if kept is not None and kept.expires_at_s <= request.until_s and is_live(lake, kept):
        return kept
    left_s = min(lifetime_s, request.until_s - now_s)
    made = create_reader_role(
        replace(lake, audit_context=request.audit_context), reader, roles.public, (now_s + left_s, now_s + left_s / 2)
    )
    roles.keep(reader, made)
    return made


def to_reader(request: DucklakeRequest) -> LakeReader:
    """Return who asks, in the words of Postgres."""
    scope = None if request.scope is None else list_readable_schemas(request.scope)
    return LakeReader(
        request.audit_context.principal or "",
        request.account,
        list_readable_schemas(request.grants),
        scope,
        tuple(sorted(set(request.roles))),
    )


def list_readable_schemas(grants: Grants) -> tuple[str, ...]:
    """Return the schemas' names that may be read with what is nested in them; empty: all. What no schema can be called is left out."""
    readable = {LEVEL_SEPARATOR.join(each.levels): each.levels for each in grants.each if Rights.READ in each.rights}
    return tuple(sorted(name for name, levels in readable.items() if not levels or to_levels(name) == fold_levels(levels)))


def _list_readable_uris(conn: psycopg.Connection, warehouse: Warehouse, may_read: MayRead, neighbours: Sequence[str]) -> list[str]:
    """Return the folders that belong to tables that may be read and to no others, and those tables' files elsewhere.

    Raises: Unsupported: there are too many
    """
    data_path, iceberg_path = read_data_path(conn), read_iceberg_path(conn)
    mine = {live.table_id: live.schema_name for live in list_live_table_names(conn) if _is_readable(live, may_read)}
    places = list_table_locations(conn)
    own = [place for place in places if place.table_id in mine]
    wanted = dict.fromkeys(_resolve(place, data_path) for place in own)
    _check_few(len(wanted))
    theirs = [to_folder_uri(path) for path in neighbours]
    closed = ForbiddenFolders(
        [_resolve(place, data_path) for place in places if place.table_id not in mine] + theirs, (data_path, iceberg_path)
    )
    alone = [folder for folder in wanted if closed.allows(folder)]
    alone += _list_base_folders(conn, warehouse, mine, theirs)
    files = dict.fromkeys(uri for place in own if place.folder is not None for uri in _list_files(conn, place, data_path, alone))
    _check_few(len(alone) + len(files))
    return [uri for uri in sorted([*alone, *files]) if parse_uri(uri).bucket]


def _list_base_folders(conn: psycopg.Connection, warehouse: Warehouse, mine: Mapping[int, str], theirs: Sequence[str]) -> list[str]:
    """Return the folders in which a branch reads files of the members that it was made from, as far as they are of no other tables there.

    They hold what was written to the tables there since, too, so a table must have been in no other schema there.
    """
    if warehouse.repository is None:
        return []
    found: dict[int, list[str]] = {}
    for schema in list_ancestors(conn, warehouse.repository, warehouse.lake.metadata_schema):
        with in_schema(conn, schema, warehouse.lake.metadata_schema):
            data_path, places = read_data_path(conn), list_table_locations(conn)
            there = {table_id for table_id, name in mine.items() if is_always_in(conn, table_id, name)}
            others = [_resolve(place, data_path) for place in places if place.table_id not in there]
            closed = ForbiddenFolders([*others, *theirs], (data_path, read_iceberg_path(conn)))
            for place in places:
                if place.table_id in there and closed.allows(folder := _resolve(place, data_path)):
                    found.setdefault(place.table_id, []).append(folder)
    used = (list_used_folders(conn, table_id, list(dict.fromkeys(folders))) for table_id, folders in found.items())
    return list(dict.fromkeys(folder for folders in used for folder in folders))


def _is_readable(live: LiveTableName, may_read: MayRead) -> bool:
    return may_read(to_levels(live.schema_name), live.table_name)


def _resolve(place: TableLocation, data_path: str) -> str:
    return to_folder_uri(place.location if place.folder is None else place.resolve(data_path))


def _list_files(conn: psycopg.Connection, place: TableLocation, data_path: str, alone: list[str]) -> Iterable[str]:
    folder = place.resolve(data_path)
    outside = list_outside_paths(conn, place.table_id, folder, alone, MOST_FILES_EACH + 1)
    if len(outside) > MOST_FILES_EACH:
        raise _too_many()
    return (file_uri(folder, path, is_relative) for path, is_relative in outside)


def _check_few(count: int) -> None:
    if count > MOST_FOLDERS:
        raise _too_many()


def _too_many() -> Unsupported:
    return Unsupported(
        "The files that the principal may read lie in too many places for keys of one session of DuckDB. "
        "Ask with a token of a narrower scope (`ns:<name>:r`), namespace by namespace."
    )


class ForbiddenFolders:
    """The folders that the caller may not read, in lower case, because some stores ignore case."""

    def __init__(self, folders: Iterable[str], lake_paths: Iterable[str]) -> None:
        self._folders = sorted({folder.lower() for folder in folders})
        self._known = frozenset(self._folders)
        self._lake_paths = [to_folder_uri(path).lower() for path in lake_paths]

    def allows(self, folder: str) -> bool:
        """Return True if a folder overlaps none of them and is not the whole lake's."""
        folded = folder.lower()
        below = bisect_left(self._folders, folded)
        if below < len(self._folders) and self._folders[below].startswith(folded):
            return False
        if any(path.startswith(folded) for path in self._lake_paths):
            return False
        return not any(folded[: end + 1] in self._known for end, letter in enumerate(folded) if letter == "/")


def _get_scoped_credentials(vendor: Vendor, uris: Sequence[str], now_s: float) -> list[ScopedCredentials]:
    policies = split_reads(uris, vendor.partition)
    if len(policies) > MOST_KEYS:
        raise _too_many()
    return [ScopedCredentials(vendor.get_keys(policy, now_s), opened) for policy, opened in policies]


def _format_secret(store: StoreSettings, scoped: ScopedCredentials, name: str) -> str:
    keys = scoped.keys
    parts = ["TYPE s3", f"KEY_ID {quote(keys.access_key_id)}", f"SECRET {quote(keys.secret_access_key)}"]
    parts += [f"SESSION_TOKEN {quote(keys.session_token)}", f"REGION {quote(store.region)}"]
    if store.client_endpoint is not None:
        url = urlsplit(store.client_endpoint)
        parts += [f"ENDPOINT {quote(url.netloc)}", f"USE_SSL {str(url.scheme == 'https').lower()}", "URL_STYLE 'path'"]
    parts.append(f"SCOPE [{', '.join(quote(uri) for uri in scoped.uris)}]")
    return f"CREATE OR REPLACE SECRET {quote_name(name)} ({', '.join(parts)})"


def format_attach(dsn: str, metadata_schema: str, catalog: str) -> str:
    """Return the statement that attaches the lake, read-only."""
    return f"ATTACH {quote('ducklake:postgres:' + dsn)} AS {quote_name(catalog)} (READ_ONLY, METADATA_SCHEMA {quote(metadata_schema)})"


def quote(text: str) -> str:
    """Return a text as DuckDB's literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Return a name as DuckDB's identifier."""
    return '"' + name.replace('"', '""') + '"'
