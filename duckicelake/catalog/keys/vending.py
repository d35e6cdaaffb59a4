"""Keys that are vended with a table, in the words of every client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from duckicelake.catalog.keys.scopes import format_not_alone, read_scope
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse, to_client_properties
from duckicelake.errors import NotServed, Unsupported
from duckicelake.store.keys.policy import KeyScope, format_policy, is_on_s3
from duckicelake.store.keys.sessions import SessionKeys, Vendor
from duckicelake.store.place import parse_uri
from duckicelake.translate.locations import to_folder_uri


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which keys somebody may have: to read, to write, or both; and where newer ones will be found."""

    reads: bool
    writes: bool
    refresh_path: str


@dataclass(frozen=True, slots=True)
class VendedKeys:
    """Keys as clients take them: what is for the whole table, and per folder. Good to hand out until `fresh_until_s`.

    `is_narrower`: they read alone, though keys to write were wanted, because the table's location is not its alone.
    """

    config: Mapping[str, str] = field(repr=False)
    prefixes: tuple[str, ...]
    fresh_until_s: float
    is_narrower: bool = False

    @property
    def whole_prefix(self) -> str:
        """What all the folders have in common: their bucket, when it is one."""
        buckets = {parse_uri(prefix).bucket for prefix in self.prefixes}
        return f"s3://{next(iter(buckets))}/" if len(buckets) == 1 else "s3://"


def vend(warehouse: Warehouse, ident: Ident, loaded: LoadedTable, wanted: Wanted, now_s: float) -> VendedKeys | None:
    """Return keys for a table that was just loaded or staged; None where no keys are vended.

    Where the table's location is not its alone, keys to read and write become keys to read.
    Raises: NoSuchTable: it has gone. Unsupported: no key can be cut for it alone. ServiceUnavailable: nobody gives keys now
    """
    vendor = warehouse.vendor
    if vendor is None or not (wanted.reads or wanted.writes):
        return None
    place = to_folder_uri(loaded.location)
    is_staged = loaded.metadata_location is None
    scope = KeyScope((place,), (), (place,)) if is_staged else read_scope(warehouse, ident, loaded.location)
    if not is_on_s3(scope):
        return None
    if wanted.writes and not scope.writable and not wanted.reads:
        raise Unsupported(format_not_alone(loaded.location))
    keys = _cut(vendor, _narrow(scope, wanted), scope, wanted, now_s)
    return replace(keys, is_narrower=wanted.writes and not scope.writable)


def get_keys(warehouse: Warehouse, ident: Ident, loaded: LoadedTable, wanted: Wanted, now_s: float) -> VendedKeys:
    """Return keys for a table. Raises: NotServed: none are vended here; and what `vend` raises."""
    found = vend(warehouse, ident, loaded, wanted, now_s)
    if found is None:
        raise NotServed("No keys are vended for this warehouse; use keys of your own.")
    return found


def _narrow(scope: KeyScope, wanted: Wanted) -> KeyScope:
    if not wanted.reads:
        return KeyScope(writable=scope.writable)
    return scope if wanted.writes else replace(scope, writable=())


def _cut(vendor: Vendor, narrow: KeyScope, whole: KeyScope, wanted: Wanted, now_s: float) -> VendedKeys:
    keys = vendor.get_keys(format_policy(narrow, vendor.partition), now_s)
    folders = [*whole.folders, *(uri.rpartition("/")[0] + "/" for uri in whole.files)]
    return VendedKeys(_format_config(vendor, keys, wanted), tuple(dict.fromkeys(folders)), keys.fresh_until_s)


def _format_config(vendor: Vendor, keys: SessionKeys, wanted: Wanted) -> Mapping[str, str]:
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
