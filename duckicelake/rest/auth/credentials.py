"""Keys asked for with a table: who gets which, and how the answers hold them."""

import json
import time
from dataclasses import replace
from urllib.parse import quote

from starlette.types import Scope

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import Session
from duckicelake.catalog.keys.signing import find_signing_config, is_signed
from duckicelake.catalog.keys.vending import VendedKeys, Wanted, vend
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError, Unsupported
from duckicelake.rest.auth.delegation import SIGNING, VENDED, accepts_signing, get_delegated_rights, includes_delegation, read_delegation
from duckicelake.rest.params import ADVERTISED_SEPARATOR


def find_credentials(scope: Scope, warehouse: Warehouse, ident: Ident, loaded: LoadedTable) -> VendedKeys | None:
    """Return the keys that a request asks for with its answer; None when it wants none, none are vended, or signatures serve it alone.

    Raises: Unsupported: no key opens all of the table's files, and the client takes no signatures, or they do not either. What the
    store's STS raises
    """
    session: Session | None = scope.get("session")
    if session is None or warehouse.vendor is None:
        return None
    rights = get_delegated_rights(scope, session.rights_at(TABLE, ident.namespace, ident.name))
    try:
        return vend(warehouse, ident, loaded, build_wanted(warehouse, ident, rights), time.time())
    except Unsupported:
        if not (accepts_signing(scope) and is_signed(warehouse, ident, loaded)):
            raise
        return None


def find_credentials_of_new_table(scope: Scope, warehouse: Warehouse, ident: Ident, made: LoadedTable) -> VendedKeys | None:
    """Return the keys that the answer to a new table holds; none when they cannot be had now, because the table is there.

    Raises: what `find_credentials` raises, for a table that is only staged
    """
    try:
        return find_credentials(scope, warehouse, ident, made)
    except CatalogError:
        if made.metadata_location is None:
            raise
        return None


def wants_credentials(scope: Scope, warehouse: Warehouse) -> bool:
    """Tell whether a client that makes a table wants vended keys or signatures for it, and the warehouse gives them."""
    if scope.get("session") is None:
        return False
    asked = read_delegation(scope)
    is_vended = warehouse.vendor is not None and includes_delegation(asked, VENDED)
    return is_vended or (warehouse.signer is not None and includes_delegation(asked, SIGNING))


def build_wanted(warehouse: Warehouse, ident: Ident, rights: Rights) -> Wanted:
    """Return which keys rights are good for, and where newer ones are found."""
    return Wanted(Rights.READ in rights, Rights.WRITE in rights, f"{format_path(warehouse, ident)}/credentials")


def add_signing_config(scope: Scope, warehouse: Warehouse, ident: Ident, loaded: LoadedTable) -> LoadedTable:
    """Return a table with what clients are told that take signatures in the place of keys; as it is for others."""
    if scope.get("session") is None or not accepts_signing(scope):
        return loaded
    return replace(loaded, config={**loaded.config, **find_signing_config(warehouse, loaded, f"{format_path(warehouse, ident)}/sign")})


def format_path(warehouse: Warehouse, ident: Ident) -> str:
    """Return a table's path below the catalog's URI."""
    namespace = ADVERTISED_SEPARATOR.join(quote(level, safe="") for level in ident.namespace)
    return f"v1/{quote(warehouse.name, safe='')}/namespaces/{namespace}/tables/{quote(ident.name, safe='')}"


def encode_credentials(keys: VendedKeys) -> bytes:
    """Return keys as a load holds them: for each of the table's folders, because DuckDB takes a single one for the location alone."""
    credentials = [{"prefix": prefix, "config": dict(keys.config)} for prefix in keys.prefixes]
    return b',"storage-credentials":%b' % json.dumps(credentials, separators=(",", ":")).encode()


def encode_refreshed_credentials(keys: VendedKeys) -> bytes:
    """Return newer keys: one of them, as Java and Trino insist on."""
    return json.dumps({"storage-credentials": [{"prefix": keys.whole_prefix, "config": dict(keys.config)}]}).encode()
