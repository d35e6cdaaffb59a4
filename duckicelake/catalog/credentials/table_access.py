"""Vended credentials and signed requests for one table's files, and the folders and files that they may cover.

`rest` calls this on worker threads. For keys it has checked the rights that it passes; `sign_request` refuses by those that it is given,
and `find_signed_table` runs before any are known. Scopes are computed in a read transaction, and keys are requested from STS outside of
it. Finding out if requests are signed may publish the table, and probes the store once. `create_table` calls `check_exclusive` under the
lake's lock, or, for a staged table, in a transaction without it. The DATA_PATHs of the server's other lakes are read once, from their own
Postgres. Credentials cover folders that no other table has, and else single files: tables may share a folder,
because DuckDB uses names of folders again, and SeaweedFS ignores case.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import psycopg

from duckicelake.catalog.location_rules import (
    NO_TABLE,
    check_free,
    check_new_location,
    find_namespace_location,
    get_place,
    read_default_location,
)
from duckicelake.catalog.table_cache import PublishedTable
from duckicelake.catalog.tables import Ident, LoadedTable, get_table, publish_table
from duckicelake.catalog.warehouse import FIXED_LOCATIONS, Warehouse, to_client_properties
from duckicelake.errors import BadRequest, Forbidden, NoSuchTable, NotServed, Unsupported
from duckicelake.lake.branches.ancestors import in_schema, is_always_in, list_ancestors, list_used_folders
from duckicelake.lake.connect import reading
from duckicelake.lake.locations import (
    TableLocation,
    has_path,
    list_live_table_names,
    list_namespace_locations,
    list_outside_paths,
    list_table_locations,
)
from duckicelake.lake.read import read_data_path, read_iceberg_path
from duckicelake.lake.rows import TableRow
from duckicelake.store.signing import SignableRequest, UnsignedRequest, parse_unsigned_request
from duckicelake.store.uris import parse_uri
from duckicelake.store.vending import CredentialScope, SessionCredentials, Vendor, format_policy, is_on_s3
from duckicelake.translate.locations import PLAIN_NAME, S3_SCHEMES, file_uri, table_folder, to_canonical, to_folder_uri
from duckicelake.translate.namespaces import to_levels
from duckicelake.translate.to_ducklake.tables import TableTarget

ZERO_UUID = UUID(int=0)
STAGED = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/.")
NAMED = re.compile(r"([A-Za-z0-9_-]+)/([A-Za-z0-9_-]+)-" + STAGED.pattern)
MAX_FILES = 64
"""More objects than any policy has room for."""


def read_scope(warehouse: Warehouse, ident: Ident, location: str) -> CredentialScope:
    """Return the folders and files of a table that its credentials may read; its present location is writable.

    Raises: NoSuchTable: it has gone
    """
    neighbours = warehouse.neighbours.find()
    with reading(warehouse.lake) as conn:
        table = get_table(conn, ident)
        folder = table_folder(read_data_path(conn), table)
        scope = read_folders(conn, table, location, neighbours)
        unlisted = read_base_folders(conn, warehouse, table, neighbours)
        return replace(scope, files=_list_files(conn, table.table_id, folder, (*scope.folders, *unlisted)), unlisted=unlisted)


def read_folders(conn: psycopg.Connection, table: TableRow, location: str, neighbours: Sequence[str]) -> CredentialScope:
    """Return the folders that no other table has, without single files."""
    data_path = read_data_path(conn)
    places = list_table_locations(conn)
    own = [location, *(place.location for place in places if place.table_id == table.table_id and place.location)]
    others = _list_others(places, table.table_id, data_path) | {to_folder_uri(path).lower() for path in neighbours}
    wanted = list(dict.fromkeys(to_folder_uri(place) for place in (*own, table_folder(data_path, table))))
    alone = tuple(place for place in wanted if is_exclusive(place, others, (data_path, read_iceberg_path(conn))))
    return CredentialScope(alone, (), tuple(place for place in alone if place == to_folder_uri(location)))


def read_base_folders(conn: psycopg.Connection, warehouse: Warehouse, table: TableRow, neighbours: Sequence[str]) -> tuple[str, ...]:
    """Return the folders in which a branch reads files of the members that it was made from, as far as they are the table's alone there.

    They hold what was written to the table there since, too, so its rights must be the same there: it must have been in no other schema.
    """
    if warehouse.repository is None:
        return ()
    found: list[str] = []
    for schema in list_ancestors(conn, warehouse.repository, warehouse.lake.metadata_schema):
        with in_schema(conn, schema, warehouse.lake.metadata_schema):
            if is_always_in(conn, table.table_id, table.schema_name):
                found += _list_alone(conn, table.table_id, neighbours)
    return tuple(list_used_folders(conn, table.table_id, list(dict.fromkeys(found))))


def _list_alone(conn: psycopg.Connection, table_id: int, neighbours: Sequence[str]) -> list[str]:
    data_path, places = read_data_path(conn), list_table_locations(conn)
    own = [place.location if place.folder is None else place.resolve(data_path) for place in places if place.table_id == table_id]
    others = _list_others(places, table_id, data_path) | {to_folder_uri(path).lower() for path in neighbours}
    folders = [to_folder_uri(place) for place in own]
    return [folder for folder in folders if is_exclusive(folder, others, (data_path, read_iceberg_path(conn)))]


def read_staged_folder(conn: psycopg.Connection, ident: Ident, uri: str) -> CredentialScope:
    """Return the location that a URI lies in, if a table of that name, which is not there, may have been given it when it was staged.

    Raises: NoSuchTable: it may not. What `check_free` and `check_new_location` raise: it could not be made there any more
    """
    place = get_place(conn, ident)
    check_free(conn, ident, place)
    iceberg_path = read_iceberg_path(conn)
    start = to_canonical(read_default_location(conn, place, ZERO_UUID)).removesuffix(str(ZERO_UUID))
    found = STAGED.match(uri.removeprefix(start)) if uri.startswith(start) else None
    if found is None or not _has_names(conn, place):
        raise NoSuchTable(f"Table does not exist: {ident}")
    location = start + found[1]
    check_new_location(conn, location, location, FIXED_LOCATIONS)
    data_path = read_data_path(conn)
    if not is_exclusive(location + "/", _list_others(list_table_locations(conn), NO_TABLE, data_path), (data_path, iceberg_path)):
        raise NoSuchTable(f"Table does not exist: {ident}")
    return CredentialScope((location + "/",), (), (location + "/",))


def _has_names(conn: psycopg.Connection, place: TableTarget) -> bool:
    """Return True if the default locations of new tables of that name cannot be those of a staged table of another name or namespace."""
    home = find_namespace_location(conn, place.schema_id)
    if home is None:
        return all(PLAIN_NAME.fullmatch(name) for name in (place.table_name, place.schema_name))
    sharing = [found for found in list_namespace_locations(conn) if to_folder_uri(found) == to_folder_uri(home)]
    return PLAIN_NAME.fullmatch(place.table_name) is not None and len(sharing) == 1


def find_owner(conn: psycopg.Connection, uri: str) -> Ident | None:
    """Return the one live table that has a place which a URI (`s3://…`) lies in, else the one that may be staged there; None: not just one.

    The caller checks if the table may have the object.
    """
    data_path = read_data_path(conn)
    live = {name.table_id: Ident(to_levels(name.schema_name), name.table_name) for name in list_live_table_names(conn)}
    near = {
        place.table_id for place in list_table_locations(conn) if place.table_id in live and uri.startswith(_to_folder(place, data_path))
    }
    if near:
        return live[near.pop()] if len(near) == 1 else None
    staged = NAMED.match(uri.removeprefix(to_canonical(to_folder_uri(read_iceberg_path(conn)))))
    return Ident(to_levels(staged[1]), staged[2]) if staged else None


def _to_folder(place: TableLocation, data_path: str) -> str:
    return to_canonical(to_folder_uri(place.location if place.folder is None else place.resolve(data_path)))


def owns_file(conn: psycopg.Connection, table: TableRow, uri: str) -> bool:
    """Return True if one of the table's files, live or not, has that URI (`s3://…`)."""
    folder = to_canonical(table_folder(read_data_path(conn), table))
    relative = uri.removeprefix(folder) if uri.startswith(folder) else None
    return has_path(conn, table.table_id, relative, [scheme + uri.removeprefix("s3://") for scheme in ("s3://", *S3_SCHEMES)])


def _list_others(places: Sequence[TableLocation], table_id: int, data_path: str) -> frozenset[str]:
    """Return the folders and locations of all other tables that ever were, folded."""
    found: set[str] = set()
    for place in places:
        if place.table_id != table_id:
            found.add(to_folder_uri(place.location if place.folder is None else place.resolve(data_path)).lower())
    return frozenset(found)


def is_exclusive(folder: str, others: frozenset[str], lake_paths: Sequence[str]) -> bool:
    """Return True if no other table has a folder, lies in it or contains it, ignoring case.

    What holds all of the lake's data, or all of its locations, is for the tables to come too.
    """
    folded = folder.lower()
    if any(to_folder_uri(path).lower().startswith(folded) for path in lake_paths):
        return False
    return not any(other.startswith(folded) or folded.startswith(other) for other in others)


def check_exclusive(conn: psycopg.Connection, location: str, neighbours: Sequence[str]) -> None:
    """Raise Unsupported when a new table would share its location: no credentials to write there could be vended.

    No keys are needed for what is not on S3.
    """
    if not to_canonical(location).startswith("s3://"):
        return
    data_path = read_data_path(conn)
    others = _list_others(list_table_locations(conn), NO_TABLE, data_path) | {to_folder_uri(path).lower() for path in neighbours}
    if not is_exclusive(to_folder_uri(location), others, (data_path, read_iceberg_path(conn))):
        raise Unsupported(
            f"{format_not_exclusive(location)} Nothing was made: choose another location. "
            "That of a dropped table is free when DuckLake has expired and cleaned up the table."
        )


def format_not_exclusive(location: str) -> str:
    """Return the error message for a location that write credentials cannot be limited to."""
    return f"The location {location!r} is not this table's alone, so no key to write there is given."


def _list_files(conn: psycopg.Connection, table_id: int, folder: str, alone: Sequence[str]) -> tuple[str, ...]:
    """Return the files of the table that lie in none of the folders that are its alone."""
    outside = list_outside_paths(conn, table_id, folder, list(alone), MAX_FILES)
    return tuple(sorted(file_uri(folder, path, is_relative) for path, is_relative in outside))


@dataclass(frozen=True, slots=True)
class CredentialRequest:
    """The requested credentials: to read, to write, or both, and the path to refresh them at."""

    reads: bool
    writes: bool
    refresh_path: str


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Keys as clients take them: what is for the whole table, and per folder. Good to hand out until `fresh_until_s`.

    `is_narrower`: they read alone, though keys to write were wanted, because the table's location is not its alone.
    """

    config: Mapping[str, str] = field(repr=False)
    prefixes: tuple[str, ...]
    fresh_until_s: float
    is_narrower: bool = False

    @property
    def whole_prefix(self) -> str:
        """The common prefix of all folders: their bucket, if it is one."""
        buckets = {parse_uri(prefix).bucket for prefix in self.prefixes}
        return f"s3://{next(iter(buckets))}/" if len(buckets) == 1 else "s3://"


def find_vended_credentials(
    warehouse: Warehouse, ident: Ident, loaded: LoadedTable, wanted: CredentialRequest, now_s: float
) -> VendedCredentials | None:
    """Return keys for a table that was just loaded or staged; None where no keys are vended.

    Where the table's location is not its alone, keys to read and write become keys to read.
    Raises: NoSuchTable: it has gone. Unsupported: no key can be cut for it alone. ServiceUnavailable: STS does not answer
    """
    vendor = warehouse.vendor
    if vendor is None or not (wanted.reads or wanted.writes):
        return None
    place = to_folder_uri(loaded.location)
    is_staged = loaded.metadata_location is None
    scope = CredentialScope((place,), (), (place,)) if is_staged else read_scope(warehouse, ident, loaded.location)
    if not is_on_s3(scope):
        return None
    if wanted.writes and not scope.writable and not wanted.reads:
        raise Unsupported(format_not_exclusive(loaded.location))
    keys = _vend(vendor, _narrow(scope, wanted), scope, wanted, now_s)
    return replace(keys, is_narrower=wanted.writes and not scope.writable)


def get_credentials(warehouse: Warehouse, ident: Ident, loaded: LoadedTable, wanted: CredentialRequest, now_s: float) -> VendedCredentials:
    """Return keys for a table. Raises: NotServed: none are vended here; and what `find_vended_credentials` raises."""
    found = find_vended_credentials(warehouse, ident, loaded, wanted, now_s)
    if found is None:
        raise NotServed("No keys are vended for this warehouse; use keys of your own.")
    return found


def _narrow(scope: CredentialScope, wanted: CredentialRequest) -> CredentialScope:
    if not wanted.reads:
        return CredentialScope(writable=scope.writable)
    return scope if wanted.writes else replace(scope, writable=())


def _vend(vendor: Vendor, narrow: CredentialScope, whole: CredentialScope, wanted: CredentialRequest, now_s: float) -> VendedCredentials:
    keys = vendor.get_keys(format_policy(narrow, vendor.partition), now_s)
    folders = [*whole.folders, *whole.unlisted, *(uri.rpartition("/")[0] + "/" for uri in whole.files)]
    return VendedCredentials(_format_config(vendor, keys, wanted), tuple(dict.fromkeys(folders)), keys.fresh_until_s)


def _format_config(vendor: Vendor, keys: SessionCredentials, wanted: CredentialRequest) -> Mapping[str, str]:
    """Return the keys as Java's, PyIceberg's, DuckDB's and Trino's clients know them."""
    return {
        "s3.access-key-id": keys.access_key_id,
        "s3.secret-access-key": keys.secret_access_key,
        "s3.session-token": keys.session_token,
        "s3.session-token-expires-at-ms": str(keys.expires_at_ms),
        "client.refresh-credentials-enabled": "true",
        # relative and without a slash before it, as Java joins it to the catalog's URI
        "client.refresh-credentials-endpoint": wanted.refresh_path,
        **to_client_properties(vendor.store),
    }


UNESCAPED = re.compile(r"[A-Za-z0-9_.~/=-]+")
"""Keys that are spelled alike with and without escapes: of others, one signature could open two. `=` is in the names of partitions, and a
signature for it opens no key that has `%3D` in its name.
"""


@dataclass(frozen=True, slots=True)
class FileRights:
    """The rights of a principal on the files of a table."""

    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed request: its URI and headers. `is_kept`: equal requests may reuse them while they are valid."""

    uri: str
    headers: Mapping[str, str]
    is_kept: bool


def find_signed_table(warehouse: Warehouse, told: UnsignedRequest, now_s: float) -> Ident | None:
    """Return the table that a request to the store is about, where its URI alone decides it; None: it does not, or it is another's store.

    Raises: Forbidden: such requests are never signed
    """
    if warehouse.signer is None:
        return None
    try:
        ask = parse_unsigned_request(warehouse.signer.store, told, now_s)
    except BadRequest:
        return None
    with reading(warehouse.lake) as conn:
        return find_owner(conn, ask.spellings[0])


def sign_request(warehouse: Warehouse, ident: Ident, told: UnsignedRequest, may: FileRights, now_s: float) -> SignedRequest:
    """Return a request to the store, signed.

    Raises: NoSuchTable: there is none, nor was one staged there. NotServed: nothing is signed here. BadRequest, Forbidden: this is not
    """
    signer = warehouse.signer
    if signer is None:
        raise NotServed("Nothing is signed for this warehouse (require_auth, and a store that is S3); use keys of your own.")
    ask = parse_unsigned_request(signer.store, told, now_s)
    if not (may.writes if ask.purpose == "write" else may.reads) or (ask.sources and not may.reads):
        raise Forbidden(f"The principal has no right to {ask.purpose} files of the table {ident}.")
    try:
        _check_owned(warehouse, ident, ask)
    except NoSuchTable:
        if not may.writes:
            raise
        _check_staged(warehouse, ident, ask)
    uri, headers = signer.sign(ask)
    return SignedRequest(uri, headers, is_kept=ask.purpose != "write")


def is_signed(warehouse: Warehouse, ident: Ident, loaded: LoadedTable) -> bool:
    """Return True if requests for a table are signed: its store is signed for, and its location is exclusive.

    Raises: ServiceUnavailable: the store does not answer. What `publish_table` raises
    """
    bucket = parse_uri(loaded.location).bucket
    if warehouse.signer is None or not bucket or loaded.metadata_location is None:
        return False
    try:
        warehouse.signer.check_strict(bucket)
    except NotServed:
        return False
    return to_folder_uri(loaded.location) in _get_scope(warehouse, *publish_table(warehouse, ident)).folders


def has_signer(warehouse: Warehouse, loaded: LoadedTable) -> bool:
    """Return True if requests to the store of a table's location may be signed."""
    # The answer to a commit does not carry the location, in which its metadata file lies.
    uri = loaded.location or loaded.metadata_location
    return warehouse.signer is not None and uri is not None and bool(parse_uri(uri).bucket)


def build_signing_config(warehouse: Warehouse, loaded: LoadedTable, path: str) -> Mapping[str, str]:
    """Return the client configuration for remote signing at that path; empty if nothing is signed."""
    if warehouse.signer is None or not has_signer(warehouse, loaded):
        return {}
    return {
        "s3.remote-signing-enabled": "true",
        "s3.signer.endpoint": path,
        "signer.endpoint": path,
        # PyIceberg's own client of S3 is another, which signs nothing remotely
        "s3.signer": "S3V4RestSigner",
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        **to_client_properties(warehouse.signer.store),
    }


def _check_owned(warehouse: Warehouse, ident: Ident, ask: SignableRequest) -> None:
    """Raise Forbidden unless every spelling of what is asked for is the table's own."""
    table, published = publish_table(warehouse, ident)
    scope = _get_scope(warehouse, table, published)
    if ask.purpose == "write" and not scope.writable:
        raise Forbidden(
            f"Nothing is signed to write files of {ident}: its location {published.metadata.location} is not this table's alone, "
            "or has other characters than letters, digits and _.~=/-"
        )
    if ask.purpose == "write" and not _lies_in(ask.spellings, scope.writable):
        raise Forbidden(f"Files of {ident} are written below its location alone: {published.metadata.location}")
    if ask.purpose == "list" and not _lies_in(ask.spellings, scope.folders):
        raise Forbidden(f"What is to be listed is no folder that {ident} has alone.")
    wanted = (*(ask.spellings if ask.purpose == "read" else ()), *ask.sources)
    others = [uri for uri in wanted if not _lies_in((uri,), scope.folders)]
    if others and not _are_files(warehouse, table, others):
        raise Forbidden(f"What is to be read is no file of the table {ident}.")


def _check_staged(warehouse: Warehouse, ident: Ident, ask: SignableRequest) -> None:
    """Raise unless every spelling lies in one location that the table may have been given when it was staged.

    Raises: NoSuchTable, Forbidden
    """
    with reading(warehouse.lake) as conn:
        scope = read_staged_folder(conn, ident, ask.spellings[0])
    if not _lies_in((*ask.spellings, *ask.sources), _only_plain(scope.folders)):
        raise Forbidden(f"Nothing but files below the location of {ident}, which is not made yet, is signed for.")


def _get_scope(warehouse: Warehouse, table: TableRow, published: PublishedTable) -> CredentialScope:
    """Return the folders that are the table's alone, as of the lake's position that was just seen."""
    cache = warehouse.caches.of(table.table_id)
    kept = cache.scope
    if kept is not None and kept[0] == published.position:
        return kept[1]
    neighbours = warehouse.neighbours.find()
    with reading(warehouse.lake) as conn:
        found = read_folders(conn, table, published.metadata.location, neighbours)
    scope = CredentialScope(_only_plain(found.folders), (), _only_plain(found.writable))
    cache.scope = (published.position, scope)
    return scope


def _only_plain(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(folder for folder in folders if UNESCAPED.fullmatch(parse_uri(folder).key))


def _lies_in(spellings: Sequence[str], folders: Sequence[str]) -> bool:
    return all(any(each.startswith(folder) for folder in folders) for each in spellings)


def _are_files(warehouse: Warehouse, table: TableRow, uris: Sequence[str]) -> bool:
    if not all(UNESCAPED.fullmatch(parse_uri(uri).key) for uri in uris):
        return False
    with reading(warehouse.lake) as conn:
        return all(owns_file(conn, table, uri) for uri in uris)
