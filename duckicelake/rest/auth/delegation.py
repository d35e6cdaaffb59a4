"""Vended credentials and remote signing that clients request with X-Iceberg-Access-Delegation.

`find_permitted_key` runs on the event loop, for the cache of table loads, and so does `wants_credentials`; neither does I/O. The other
functions run in the thread of the operation: `find_credentials` may read Postgres, publish the table and ask STS for keys, by
`catalog.credentials`. A session's rights on a path are computed once and cached in the session.
"""

import json
import time
from dataclasses import replace
from urllib.parse import quote

from starlette.types import Scope

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import Session
from duckicelake.catalog.credentials.table_access import (
    CredentialRequest,
    VendedCredentials,
    build_signing_config,
    find_vended_credentials,
    has_signer,
    is_signed,
)
from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CatalogError, Unsupported
from duckicelake.rest.cached_response import TableKey, find_table_key
from duckicelake.rest.params import ADVERTISED_SEPARATOR, decode_segment, split_levels
from duckicelake.rest.request_bodies import is_clickhouse

NAMESPACE_PART, TABLE_PART = 4, 6
DELEGATION, VENDED, SIGNING = b"x-iceberg-access-delegation", b"vended-credentials", b"remote-signing"

KEYED = Rights.READ | Rights.WRITE


def find_permitted_key(scope: Scope) -> TableKey | None:
    """Return the cache key of a request, or None. It is None also if the principal lacks the right: the routes then build the error."""
    key = find_table_key(scope)
    session: Session | None = scope.get("session")
    if key is None or session is None:
        return None
    rights = get_rights(session, key[0])
    is_allowed = Rights.READ in rights if scope["method"] == "GET" else rights is not Rights.NONE
    if not is_allowed:
        return None
    asked = b"" if scope["method"] == "HEAD" else read_delegation(scope)
    wanted, signing = rights & KEYED if includes_delegation(asked, VENDED) else Rights.NONE, includes_delegation(asked, SIGNING)
    if wanted is Rights.NONE and not signing:
        return key
    return key[0], f"{key[1]} {wanted.value}{' signing' * signing}{' no endpoint' * doubles_endpoint(scope)}"


def get_delegated_rights(scope: Scope, rights: Rights) -> Rights:
    """Return the rights that the vended credentials must have, NONE if the client requests no credentials."""
    return rights & KEYED if includes_delegation(read_delegation(scope), VENDED) else Rights.NONE


def accepts_signing(scope: Scope) -> bool:
    """True if the client accepts remote signing."""
    return includes_delegation(read_delegation(scope), SIGNING)


def read_delegation(scope: Scope) -> bytes:
    """Return the client's X-Iceberg-Access-Delegation headers joined, or an empty string."""
    return b",".join([value for name, value in scope["headers"] if name == DELEGATION])


def includes_delegation(asked: bytes, kind: bytes) -> bool:
    """True if the header's list contains this kind of delegation."""
    return asked == kind or (kind in asked and any(part.strip() == kind for part in asked.split(b",")))


def doubles_endpoint(scope: Scope) -> bool:
    """True if ClickHouse has sent a request: it appends the path of a table once more to an endpoint that comes with vended keys.

    Source: ClickHouse/ClickHouse#93283
    """
    return is_clickhouse(scope)


def get_rights(session: Session, raw_path: bytes) -> Rights:
    """Return a session's rights on the table of a path, cached in the session."""
    known = session.decided.get(raw_path)
    return session.remember(raw_path, compute_rights(session, raw_path)) if known is None else known


def compute_rights(session: Session, raw_path: bytes) -> Rights:
    """Return the rights on the table that a path names, NONE if it names no table."""
    parts = raw_path.decode("latin-1").split("/")
    try:
        levels = split_levels(decode_segment(parts[NAMESPACE_PART], "namespace"))
        return session.rights_at(TABLE, levels, decode_segment(parts[TABLE_PART], "table"))
    except BadRequest:
        return Rights.NONE


def find_credentials(scope: Scope, warehouse: Warehouse, ident: Ident, loaded: LoadedTable) -> VendedCredentials | None:
    """Return the credentials for the response; None if the client requests none, none are vended, or only remote signing works.

    Raises: Unsupported: no policy can cover all of the table's files, and the client cannot use remote signing either
            ServiceUnavailable: the store's STS fails
    """
    session: Session | None = scope.get("session")
    if session is None or warehouse.vendor is None:
        return None
    rights = get_delegated_rights(scope, session.rights_at(TABLE, ident.namespace, ident.name))
    try:
        keys = find_vended_credentials(warehouse, ident, loaded, build_wanted(warehouse, ident, rights), time.time())
        return keys if keys is None or not doubles_endpoint(scope) else without_endpoint(keys)
    except Unsupported:
        if not (accepts_signing(scope) and is_signed(warehouse, ident, loaded)):
            raise
        return None


def describe_read(scope: Scope, ident: Ident, loaded: LoadedTable, keys: VendedCredentials | None) -> ReadAnswer:
    """Return what the audit of reads says of a response: the snapshot, and the access to the store that it gives."""
    session: Session | None = scope.get("session")
    if keys is None or session is None:
        signs = session is not None and accepts_signing(scope) and loaded.is_signed_for
        return ReadAnswer(loaded.snapshot_id, "sign" if signs else None)
    return ReadAnswer(loaded.snapshot_id, format_keys(session.rights_at(TABLE, ident.namespace, ident.name), keys))


def format_keys(rights: Rights, keys: VendedCredentials) -> str:
    """Return the rights that keys have, as the audit of reads names them."""
    given = [name for right, name in ((Rights.READ, "read"), (Rights.WRITE, "write")) if right in rights]
    return "read" if keys.is_narrower else ",".join(given)


def without_endpoint(keys: VendedCredentials) -> VendedCredentials:
    """Return the credentials without the store's endpoint, which the client then takes from its own settings."""
    return replace(keys, config={name: text for name, text in keys.config.items() if name != "s3.endpoint"})


def find_credentials_of_new_table(scope: Scope, warehouse: Warehouse, ident: Ident, made: LoadedTable) -> VendedCredentials | None:
    """Return the credentials for the response to a created table. None if vending fails, because the table exists already.

    Raises: what `find_credentials` raises, for a staged table
    """
    try:
        return find_credentials(scope, warehouse, ident, made)
    except CatalogError:
        if made.metadata_location is None:
            raise
        return None


def wants_credentials(scope: Scope, warehouse: Warehouse) -> bool:
    """True if a client requests credentials or remote signing for a new table, and the warehouse offers them."""
    if scope.get("session") is None:
        return False
    asked = read_delegation(scope)
    is_vended = warehouse.vendor is not None and includes_delegation(asked, VENDED)
    return is_vended or (warehouse.signer is not None and includes_delegation(asked, SIGNING))


def build_wanted(warehouse: Warehouse, ident: Ident, rights: Rights) -> CredentialRequest:
    """Return the access that credentials need for these rights, and the path at which a client refreshes them."""
    return CredentialRequest(Rights.READ in rights, Rights.WRITE in rights, f"{format_path(warehouse, ident)}/credentials")


def add_signing_config(scope: Scope, warehouse: Warehouse, ident: Ident, loaded: LoadedTable) -> LoadedTable:
    """Return the table with the configuration for remote signing if the client accepts it, else with the note that requests are signed."""
    loaded = note_signing(warehouse, loaded)
    if scope.get("session") is None or not accepts_signing(scope):
        return loaded
    return replace(loaded, config={**loaded.config, **build_signing_config(warehouse, loaded, f"{format_path(warehouse, ident)}/sign")})


def note_signing(warehouse: Warehouse, loaded: LoadedTable) -> LoadedTable:
    """Return the table with the note whether clients may have their requests to its store signed."""
    return replace(loaded, is_signed_for=has_signer(warehouse, loaded))


def format_path(warehouse: Warehouse, ident: Ident) -> str:
    """Return a table's path relative to the catalog's URI."""
    namespace = ADVERTISED_SEPARATOR.join(quote(level, safe="") for level in ident.namespace)
    return f"v1/{quote(warehouse.name, safe='')}/namespaces/{namespace}/tables/{quote(ident.name, safe='')}"


REMOTE_SIGNING = b',"remote-signing-config":{"properties":{"signer":"duckicelake"}}'
"""The member of a load that says that requests to the store may be signed.

Iceberg's Java library has a file client for each table only if the load configures one. From 1.12 on, such a client computes the path at
which it has requests signed, and the client of the whole catalog fails with "Remote signing endpoint is required". Clients send these
properties back with each request; the library takes an empty object for none.
Source: Iceberg 1.12, RESTSessionCatalog.tableFileIO
"""


def encode_credentials(keys: VendedCredentials) -> bytes:
    """Return the credentials member of a load: one entry per folder, because DuckDB applies a single entry to the location only."""
    credentials = [{"prefix": prefix, "config": dict(keys.config)} for prefix in keys.prefixes]
    return b',"storage-credentials":%b' % json.dumps(credentials, separators=(",", ":")).encode()


def encode_refreshed_credentials(keys: VendedCredentials) -> bytes:
    """Return the body of loadCredentials. It has a single entry, which Java's client and Trino require."""
    return json.dumps({"storage-credentials": [{"prefix": keys.whole_prefix, "config": dict(keys.config)}]}).encode()
