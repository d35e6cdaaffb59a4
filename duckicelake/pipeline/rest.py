"""The few REST calls that a job makes itself: what a table's refs are, and one commit over several tables."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duckicelake.errors import (
    BadRequest,
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    Forbidden,
    NoSuchTable,
    NotAuthorized,
    ServiceUnavailable,
    Unsupported,
)
from duckicelake.pipeline.spark import RestCatalog

_TIMEOUT_SECONDS = 120.0
_LEVEL = "\x1f"
_FIRST_SERVER_ERROR, _NOT_SERVED = 500, 501
_REFUSALS: Mapping[int, type[CatalogError]] = {401: NotAuthorized, 403: Forbidden, 404: NoSuchTable, 405: Unsupported, 409: CommitFailed}


@dataclass(frozen=True, slots=True)
class Ident:
    """A table's namespace, level by level, and its name."""

    namespace: tuple[str, ...]
    name: str

    def beside(self, suffix: str) -> "Ident":
        """The table of that suffix in the same namespace."""
        return replace(self, name=self.name + suffix)

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


def parse_ident(text: str) -> Ident:
    """Read `namespace.table`. Raises: BadRequest: there are not at least two names."""
    *namespace, name = text.split(".")
    if not namespace or not all((*namespace, name)):
        raise BadRequest(f"{text!r} is no table: write namespace.table")
    return Ident(tuple(namespace), name)


@dataclass(frozen=True, slots=True)
class TableHead:
    """What a commit has to know of a table: which one it is, where its refs are, and what their snapshots say of themselves.

    `partitions` are like `bucket[16](id)`, `order` like `identity(id) desc`, in lower case; a column inside another one is `?`.
    `defaults` are what columns have in new rows that do not say it, as JSON has single values in Iceberg's specification. `uuids` are the
    columns of this type.
    """

    uuid: str
    refs: Mapping[str, int]
    summaries: Mapping[int, Mapping[str, str]]
    schema_id: int = 0
    partitions: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    spec_id: int = 0
    has_uuid_partitions: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    uuids: tuple[str, ...] = ()

    @property
    def main(self) -> int | None:
        return self.refs.get("main")


@dataclass(frozen=True, slots=True)
class Rest:
    """An open REST catalog: its prefix is known, and so is the token if there has to be one."""

    base: str
    catalog: RestCatalog
    token: str | None = None

    def load(self, ident: Ident) -> TableHead | None:
        """The table as it is now, None when there is none."""
        try:
            metadata = self.load_whole(ident)["metadata"]
        except NoSuchTable:
            return None
        refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
        summaries = {snapshot["snapshot-id"]: snapshot["summary"] for snapshot in metadata.get("snapshots", ())}
        shape = (
            _read_partitions(metadata),
            _read_order(metadata),
            metadata["default-spec-id"],
            _has_uuid_partitions(metadata),
            _read_defaults(metadata),
            tuple(column["name"] for column in _list_columns(metadata) if column["type"] == "uuid"),
        )
        return TableHead(metadata["table-uuid"], refs, summaries, metadata["current-schema-id"], *shape)

    def load_whole(self, ident: Ident) -> Any:
        """The answer that describes the table, with the snapshots that refs name. Raises: NoSuchTable."""
        return self.ask("GET", f"namespaces/{_quote(_LEVEL.join(ident.namespace))}/tables/{_quote(ident.name)}?snapshots=refs")

    def load_every(self, ident: Ident) -> Any:
        """The table's metadata with all its snapshots. Raises: NoSuchTable."""
        return self.load_answer(ident)["metadata"]

    def load_answer(self, ident: Ident) -> Any:
        """The answer that describes the table, with all its snapshots. Raises: NoSuchTable."""
        return self.ask("GET", f"namespaces/{_quote(_LEVEL.join(ident.namespace))}/tables/{_quote(ident.name)}")

    def drop_unchanged(self, ident: Ident, metadata_location: str) -> None:
        """Drop a table that is still as that metadata file shows it; other catalogs than ours do not know how.

        Raises: CommitFailed: something concerned it since. CatalogError: the catalog does no such thing
        """
        query = urllib.parse.urlencode({"metadata-location": metadata_location})
        path = f"namespaces/{_quote(_LEVEL.join(ident.namespace))}/tables/{_quote(ident.name)}"
        self.manage("DELETE", f"{path}?{query}", None, _TIMEOUT_SECONDS)

    def find_snapshot(self, ident: Ident, name: str, text: str) -> int:
        """The newest snapshot of main that says so in its summary. Raises: NoSuchTable: there is no such table, or none such."""
        metadata = self.load_every(ident)
        told = {one["snapshot-id"] for one in metadata.get("snapshots", ()) if one["summary"].get(name) == text}
        found = [entry["snapshot-id"] for entry in metadata.get("snapshot-log", ()) if entry["snapshot-id"] in told]
        if not found:
            raise NoSuchTable(f"{ident} has no snapshot of {text} any more")
        return found[-1]

    def commit(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Commit to all the tables at once.

        Raises: CommitFailed: a table is no more as it was required to be, and nothing was done; CommitStateUnknown: nobody answered
        """
        try:
            self.ask("POST", "transactions/commit", {"table-changes": list(changes)})
        except ServiceUnavailable as error:
            raise CommitStateUnknown(f"nobody knows whether the commit landed: {error.message}") from error

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request and return the JSON of its answer; a refusal is one of our errors."""
        return self._ask(method, f"{self.base}/{path}", body, _TIMEOUT_SECONDS)

    def manage(self, method: str, path: str, body: Any, timeout_seconds: float) -> Any:
        """The same of what is below `/management`, and no part of Iceberg's specification."""
        uri = self.catalog.uri.rstrip("/")
        url = f"{uri}/management{self.base.removeprefix(uri)}/{path}"
        return self._ask(method, url, body, timeout_seconds)

    def _ask(self, method: str, url: str, body: Any, timeout_seconds: float) -> Any:
        headers = {"content-type": "application/json"}
        if self.token is not None:
            headers |= {"authorization": f"Bearer {self.token}", "x-iceberg-access-delegation": "vended-credentials"}
        return _send(urllib.request.Request(url, _encode(body), headers, method=method), timeout_seconds)


def _list_partition_fields(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == metadata["default-spec-id"])
    return [field for field in spec["fields"] if field["transform"] != "void"]


def _find_column(metadata: Mapping[str, Any], field: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The column of a partition or sort field; None when it is inside another one."""
    return next((column for column in _list_columns(metadata) if column["id"] == field.get("source-id")), None)


def _list_columns(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return next(schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])["fields"]


def _read_partitions(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_name_term(metadata, field) for field in _list_partition_fields(metadata))


def _read_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {column["name"]: column["write-default"] for column in _list_columns(metadata) if "write-default" in column}


def _has_uuid_partitions(metadata: Mapping[str, Any]) -> bool:
    columns = (_find_column(metadata, field) for field in _list_partition_fields(metadata))
    return any(column is not None and column["type"] == "uuid" for column in columns)


def _read_order(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    order = next(order for order in metadata["sort-orders"] if order["order-id"] == metadata["default-sort-order-id"])
    return tuple(f"{_name_term(metadata, field)} {field['direction']}" for field in order["fields"])


def _name_term(metadata: Mapping[str, Any], field: Mapping[str, Any]) -> str:
    column = _find_column(metadata, field)
    return f"{field['transform']}({'?' if column is None else column['name']})".lower()


def open_rest(catalog: RestCatalog) -> Rest:
    """The catalog, asked once for the prefix of the warehouse.

    Raises: ServiceUnavailable: nobody is there
    """
    base = f"{catalog.uri.rstrip('/')}/v1"
    token = None if catalog.credential is None else _fetch_token(base, catalog.credential)
    query = f"?{urllib.parse.urlencode({'warehouse': catalog.warehouse})}" if catalog.warehouse else ""
    config = Rest(base, catalog, token).ask("GET", f"config{query}")
    prefix = {**config.get("defaults", {}), **config.get("overrides", {})}.get("prefix")
    return Rest(f"{base}/{_quote(prefix)}" if prefix else base, catalog, token)


def _fetch_token(base: str, credential: str) -> str:
    client_id, _, secret = credential.partition(":")
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret, "scope": "catalog"}
    request = urllib.request.Request(f"{base}/oauth/tokens", urllib.parse.urlencode(form).encode(), method="POST")
    return _send(request)["access_token"]


def _send(request: urllib.request.Request, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _refuse(error.code, error.read()) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnavailable(f"no catalog answers at {request.host}: {error}. Is the server running?") from error
    try:
        return json.loads(content) if content else None
    except ValueError as error:
        # What was asked for may have been done.
        raise ServiceUnavailable(f"what answers at {request.host} sends no JSON: is it an Iceberg REST catalog?") from error


def _refuse(status: int, body: bytes) -> CatalogError:
    try:
        said = json.loads(body)
        message = said["error"]["message"] if isinstance(said.get("error"), dict) else str(said.get("error_description", said))
    except (ValueError, KeyError, AttributeError):
        message = f"the catalog answered {status}"
    if status == _NOT_SERVED:
        return Unsupported(message)
    if status >= _FIRST_SERVER_ERROR:
        return ServiceUnavailable(message)
    return _REFUSALS.get(status, BadRequest)(message)


def _encode(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body).encode()


def _quote(part: str) -> str:
    return urllib.parse.quote(part, safe="")
