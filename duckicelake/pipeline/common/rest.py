"""The REST calls that jobs make themselves: a table's metadata, commits over several tables, and listings.

Spark makes its own requests through Iceberg's client. Jobs call this in the driver; `http_client` sends the requests. A commit over several
tables is one request, so one transaction of the server.
"""

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from duckicelake.errors import BadRequest, CommitStateUnknown, NoSuchTable, NotAuthorized, ServiceUnavailable, Unsupported
from duckicelake.iceberg.json_reader import as_object, find_list, find_text, get_list
from duckicelake.iceberg.schema import parse_schema
from duckicelake.iceberg.types import walk_fields
from duckicelake.pipeline.common.http_client import (
    ANONYMOUS,
    CREDENTIAL,
    TIMEOUT_SECONDS,
    Authenticator,
    Request,
    build_authenticator,
    list_headers,
    send_request,
)

_SEPARATOR = "%1F"
_CONFIG = "the catalog's config"
_DELEGATION = {"x-iceberg-access-delegation": "vended-credentials"}
UNKNOWN = "it is unknown whether the commit landed: "
_LEGAL = "/%~!$&'()*+,;=:@"
"""The characters of a prefix: it is put into a URL as it is."""
_NAME = re.compile(r'(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".][^.]*))(?P<dot>[.]|\Z)')
_NO_TABLE = 'is no table: write namespace.table, and a name with a dot in it as in SQL: "a.b"'
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


@dataclass(frozen=True, slots=True)
class TableIdent:
    """A table's namespace, level by level, and its name."""

    namespace: tuple[str, ...]
    name: str

    def with_suffix(self, suffix: str) -> "TableIdent":
        """Return the table of that suffix in the same namespace."""
        return replace(self, name=self.name + suffix)

    def __str__(self) -> str:
        return ".".join(map(_quote_name, (*self.namespace, self.name)))

    @property
    def folded(self) -> "TableIdent":
        """The name as DuckDB compares it."""
        return TableIdent(tuple(map(fold, self.namespace)), fold(self.name))


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if "." in name or '"' in name else name


def fold(name: str) -> str:
    """Return a name as DuckDB compares it: ASCII letters in lower case."""
    return name.translate(_LOWER)


def parse_ident(text: str) -> TableIdent:
    """Read `namespace.table`, where names may be quoted as in SQL. Raises: BadRequest: there are not at least two names."""
    *namespace, name = split_names(text)
    if not namespace:
        raise BadRequest(f"{text!r} {_NO_TABLE}")
    return TableIdent(tuple(namespace), name)


def split_names(text: str) -> list[str]:
    """Return the names between dots. Raises: BadRequest: one is empty, or its quotes do not end"""
    names, place = list[str](), 0
    while found := _NAME.match(text, place):
        names.append(found["plain"] or found["quoted"].replace('""', '"'))
        place = found.end()
        if not found["dot"]:
            return names
    raise BadRequest(f"{text!r} {_NO_TABLE}")


@dataclass(frozen=True, slots=True)
class TableHead:
    """The parts of a table's metadata that a commit needs: which one it is, where its refs are, and what their snapshots say of themselves.

    `partitions` are like `bucket[16](id)`, `order` like `identity(id) desc`, in lower case; a column inside another one is `?`.
    `defaults` are what columns have in new rows that do not say it, as JSON has single values in Iceberg's specification. `uuids` are the
    columns of this type. `reads_otherwise`: the rows of main have other names or values under the columns of now than under those that its
    snapshot was written with, since columns were renamed, or come with a default, after it.
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
    reads_otherwise: bool = False

    @property
    def main(self) -> int | None:
        return self.refs.get("main")


@dataclass(frozen=True, slots=True)
class RestCatalog:
    """Settings by which Spark reaches one Iceberg REST catalog and the store behind it; None leaves a setting out.

    With a `credential` (`id:secret`) the catalog gives the keys to the store. `properties` are further settings of Iceberg's own client for
    a catalog that is not the lake's.
    """

    uri: str
    warehouse: str
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: str | None = field(default=None, repr=False)
    credential: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class Rest:
    """An open REST catalog, asked by a caller. `separator`: what is between a namespace's levels in a URL, as it is written there.

    `endpoints`: what the catalog says that it serves, None when it does not say. `headers` go with every request.
    """

    base: str
    catalog: RestCatalog
    caller: Authenticator = ANONYMOUS
    separator: str = _SEPARATOR
    endpoints: frozenset[str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def load(self, ident: TableIdent) -> TableHead | None:
        """Return the table as it is now, None when there is none."""
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
            _reads_otherwise(metadata, refs.get("main")),
        )
        return TableHead(metadata["table-uuid"], refs, summaries, metadata["current-schema-id"], *shape)

    def load_whole(self, ident: TableIdent) -> Any:
        """Return the answer that describes the table, with the snapshots that refs name. Raises: NoSuchTable."""
        return self.ask("GET", f"{self.locate(ident)}?snapshots=refs")

    def load_every(self, ident: TableIdent) -> Any:
        """Return the table's metadata with all its snapshots. Raises: NoSuchTable."""
        return self.load_answer(ident)["metadata"]

    def load_answer(self, ident: TableIdent) -> Any:
        """Return the answer that describes the table, with all its snapshots. Raises: NoSuchTable."""
        return self.ask("GET", self.locate(ident))

    def drop_unchanged(self, ident: TableIdent, metadata_location: str) -> None:
        """Drop a table that is still as that metadata file shows it; other catalogs than ours do not know how.

        Raises: CommitFailed: something concerned it since. CatalogError: the catalog does no such thing
        """
        query = urllib.parse.urlencode({"metadata-location": metadata_location})
        self.manage("DELETE", f"{self.locate(ident)}?{query}", None, TIMEOUT_SECONDS)

    def read_snapshot_id(self, ident: TableIdent, name: str, text: str) -> int:
        """Return the newest snapshot of main that says so in its summary. Raises: NoSuchTable: there is no such table, or none such."""
        metadata = self.load_every(ident)
        told = {one["snapshot-id"] for one in metadata.get("snapshots", ()) if one["summary"].get(name) == text}
        found = [entry["snapshot-id"] for entry in metadata.get("snapshot-log", ()) if entry["snapshot-id"] in told]
        if not found:
            raise NoSuchTable(f"{ident} has no snapshot of {text} any more")
        return found[-1]

    def commit(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Commit to all the tables at once.

        Raises: CommitFailed: a table is not as required any more, and nothing was done; CommitStateUnknown: no answer
        """
        try:
            self.change(changes)
        except ServiceUnavailable as error:
            raise CommitStateUnknown(f"{UNKNOWN}{error.message}") from error

    def change(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """The same of what may be asked for again, whether it was done or not.

        Raises: CommitFailed: as `commit`; ServiceUnavailable: no answer
        """
        self.ask("POST", "transactions/commit", {"table-changes": list(changes)})

    def locate(self, ident: TableIdent, kind: str = "table") -> str:
        """Return the path of a table, or of a view."""
        return f"namespaces/{self.format_namespace(ident.namespace)}/{kind}s/{_quote(ident.name)}"

    def format_namespace(self, levels: Sequence[str]) -> str:
        """Return a namespace in a path."""
        return self.separator.join(map(_quote, levels))

    def serves(self, endpoint: str) -> bool | None:
        """Return True if the catalog says that it serves this, in the specification's words; None: it says nothing of what it serves."""
        return None if self.endpoints is None else endpoint in self.endpoints

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request and return the JSON of its answer; a refusal is one of our errors.

        What cannot be answered with keys is asked for without them: most of it is about no file.
        """
        url = f"{self.base}/{path}"
        try:
            return self._ask(method, url, body, TIMEOUT_SECONDS)
        except Unsupported:
            if method != "GET" or not _DELEGATION.items() <= self.headers.items():
                raise
        headers = {name: text for name, text in self.headers.items() if name not in _DELEGATION}
        return replace(self, headers=headers)._ask(method, url, body, TIMEOUT_SECONDS)

    def manage(self, method: str, path: str, body: Any, timeout_seconds: float) -> Any:
        """Return the same of what is below `/management`, and no part of Iceberg's specification."""
        uri = self.catalog.uri.rstrip("/")
        url = f"{uri}/management{self.base.removeprefix(uri)}/{path}"
        return self._ask(method, url, body, timeout_seconds)

    def ask_repository(self, method: str, path: str, body: Any = None) -> Any:
        """Return the same of what is about the lake's branches: `branches`, `merges`."""
        uri = self.catalog.uri.rstrip("/")
        prefix = self.base.removeprefix(f"{uri}/v1/")
        return self._ask(method, f"{uri}/management/v1/repositories/{prefix}/{path}", body, TIMEOUT_SECONDS)

    def _ask(self, method: str, url: str, body: Any, timeout_seconds: float) -> Any:
        encoded = None if body is None else json.dumps(body).encode()
        request = Request(method, url, {"content-type": "application/json", **self.headers}, encoded)
        try:
            return send_request(self._sign(request), timeout_seconds)
        except NotAuthorized:
            if not self.caller.renew():
                raise
        return send_request(self._sign(request), timeout_seconds)

    def _sign(self, request: Request) -> Request:
        return replace(request, headers=self.caller.authorize(request))


def _list_partition_fields(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == metadata["default-spec-id"])
    return [field for field in spec["fields"] if field["transform"] != "void"]


def _find_column(metadata: Mapping[str, Any], field: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the column of a partition or sort field; None when it is inside another one."""
    return next((column for column in _list_columns(metadata) if column["id"] == field.get("source-id")), None)


def _reads_otherwise(metadata: Mapping[str, Any], main: int | None) -> bool:
    schemas: dict[Any, Any] = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    written = [snapshot.get("schema-id") for snapshot in metadata.get("snapshots", ()) if snapshot["snapshot-id"] == main]
    then, now = schemas.get(written[0]) if written else None, schemas.get(metadata["current-schema-id"])
    if then is None or now is None or then is now:
        return False
    names = {column.field_id: name for name, column in walk_fields(parse_schema(then).fields)}
    columns = list(walk_fields(parse_schema(now).fields))
    is_renamed = any(names.get(column.field_id, name) != name for name, column in columns)
    new = [(name, column) for name, column in columns if column.field_id not in names]
    return is_renamed or any(column.initial_default is not None or name in names.values() for name, column in new)


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
    """Return the catalog, asked once for the prefix of the warehouse.

    Raises: ServiceUnavailable: no server answers; NotAuthorized: it refuses the credentials
    """
    uri = catalog.uri.rstrip("/")
    own = {**({} if catalog.credential is None else {CREDENTIAL: catalog.credential}), **catalog.properties}
    caller = build_authenticator(own, uri)
    lent = {} if caller is ANONYMOUS else _DELEGATION
    query = f"?{urllib.parse.urlencode({'warehouse': catalog.warehouse}, quote_via=urllib.parse.quote)}" if catalog.warehouse else ""
    first = Rest(f"{uri}/v1", catalog, caller, headers={**lent, **list_headers(own)})
    config = as_object(first.ask("GET", f"config{query}"), _CONFIG)
    defaults, overrides = (_read_settings(config, name) for name in ("defaults", "overrides"))
    given = {**defaults, **own, **overrides}
    base = f"{overrides.get('uri', uri).rstrip('/')}/v1"
    prefix = given.get("prefix", "").strip("/")
    endpoints = find_list(config, "endpoints", _CONFIG)
    return Rest(
        f"{base}/{urllib.parse.quote(prefix, safe=_LEGAL)}" if prefix else base,
        catalog,
        caller,
        given.get("namespace-separator") or _SEPARATOR,
        None if endpoints is None else frozenset(map(str, endpoints)),
        {**lent, **list_headers(given)},
    )


def _read_settings(config: Mapping[str, object], name: str) -> dict[str, str]:
    told = as_object(config.get(name) or {}, f"the {name} of {_CONFIG}")
    return {key: str(text) for key, text in told.items() if text is not None}


def _quote(part: str) -> str:
    return urllib.parse.quote(part, safe="")


def list_namespaces(rest: Rest, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every namespace below one, each before what is below it."""
    separator = urllib.parse.unquote(rest.separator)
    for levels in list_pages(rest, "namespaces", "namespaces", {"parent": separator.join(parent)} if parent else {}):
        found = tuple(levels)
        # Catalogs whose namespaces have one level may take no notice of `parent`.
        if found[:-1] == parent:
            yield found
            yield from list_namespaces(rest, found)


def list_pages(rest: Rest, path: str, key: str, query: Mapping[str, str]) -> Iterator[Any]:
    """Yield what a listing has under a key, page by page. Raises: BadRequest: it is no listing"""
    size = rest.catalog.properties.get("rest-page-size")
    asked = {**query, **({} if size is None else {"pageSize": size})}
    token: str | None = ""
    while token is not None:
        told = urllib.parse.urlencode({**asked, "pageToken": token}, quote_via=urllib.parse.quote)
        answer = as_object(rest.ask("GET", f"{path}?{told}"), f"the list of {key}")
        yield from get_list(answer, key, f"the list of {key}")
        token = find_text(answer, "next-page-token", f"the list of {key}") or None
