"""Request bodies of namespace, rename, register and sign operations, and the idempotency key. Others are parsed elsewhere.

`iceberg.requests` parses those of tables, views, commits and scans, and the routes of branches, management, manifests and undrop their own.
FastAPI calls `read_body` and `read_key` on the event loop; `layers.fast_paths` calls them by hand, with the headers by position. Handlers
call the `decode_` functions, which are pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Header, Request
from starlette.types import Scope

from duckicelake.catalog.credentials.table_access import UnsignedRequest
from duckicelake.catalog.idempotency import RequestContext, RequestKey
from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import (
    as_list,
    as_object,
    decode_json,
    find_list,
    find_text,
    find_text_map,
    get_list,
    get_text,
    is_text,
)
from duckicelake.iceberg.requests.bodies import SUMMARY_HEADER, Identifier, check_name, parse_identifier, parse_summary_header
from duckicelake.rest.auth.audit import describe_request
from duckicelake.rest.openapi import JsonSchema

KEY_HEADER = b"idempotency-key"
CLIENT_VERSION_HEADER, JAVA_LIBRARY = b"x-client-version", b"Apache Iceberg"
USER_AGENT, CLICKHOUSE = b"user-agent", b"ClickHouse/"


def is_java_library(scope: Scope) -> bool:
    """Return True if Iceberg's Java library has sent a request, which says so in all of its versions that speak REST."""
    return any(name == CLIENT_VERSION_HEADER and value.startswith(JAVA_LIBRARY) for name, value in scope["headers"])


def is_clickhouse(scope: Scope) -> bool:
    """Return True if ClickHouse has sent a request, which every request of its HTTP client says."""
    return any(name == USER_AGENT and value.startswith(CLICKHOUSE) for name, value in scope["headers"])


def refreshes_java_table(scope: Scope) -> bool:
    """Return True if Iceberg's Java library loads a table that it knows already; a first load says which snapshots it wants."""
    return not scope["query_string"] and is_java_library(scope)


async def read_body(request: Request) -> bytes:
    """Return the request's body. It is decoded later, in the thread that runs the operation."""
    return await request.body()


Body = Annotated[bytes, Depends(read_body)]


async def read_key(
    request: Request,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="A UUID: the request may be repeated.",
            json_schema_extra={"type": "string", "format": "uuid"},
        ),
    ] = None,
    summary: Annotated[
        str | None,
        Header(
            alias=SUMMARY_HEADER,
            description="A JSON object of strings whose names begin with `duckicelake.`; they are added to the snapshots' summaries.",
        ),
    ] = None,
) -> RequestContext:
    """Return the request's audit data, its snapshot summary and its idempotency key with a digest of the whole request."""
    audit_context, snapshot_summary = describe_request(request.scope), {} if summary is None else parse_summary_header(summary)
    context = RequestContext(audit_context, None, snapshot_summary, is_java_library(request.scope), is_clickhouse(request.scope))
    if key is None:
        return context
    try:
        uuid = UUID(key)
    except ValueError as error:
        raise BadRequest("The header Idempotency-Key is no UUID.") from error
    fingerprinted = [request.method.encode(), request.scope.get("raw_path") or b"", request.scope["query_string"], await request.body()]
    fingerprinted += [] if summary is None else [summary.encode()]
    request_key = RequestKey(uuid, sha256(b"\0".join(fingerprinted)).hexdigest())
    return replace(context, key=request_key)


Key = Annotated[RequestContext, Depends(read_key)]


def describe_body(shape: JsonSchema) -> dict[str, Any]:
    """Return the OpenAPI description of a request body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": shape}}}}


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """The body of createNamespace."""

    levels: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UpdateProperties:
    """The body of updateProperties."""

    removals: Sequence[str]
    updates: Mapping[str, str]


def decode_create_namespace(body: bytes) -> CreateNamespace:
    """Return the parsed body. Raises: BadRequest: it is malformed."""
    what = "request to create a namespace"
    node = as_object(decode_json(body), what)
    return CreateNamespace(parse_levels(get_list(node, "namespace", what)), find_text_map(node, "properties", what) or {})


def decode_update_properties(body: bytes) -> UpdateProperties:
    """Return the parsed body. Raises: BadRequest: it is malformed."""
    what = "request to change properties"
    node = as_object(decode_json(body), what)
    removals = find_list(node, "removals", what) or []
    if not all(is_text(key) for key in removals):
        raise BadRequest("Cannot read request to change properties: 'removals' holds something other than strings; send names")
    return UpdateProperties([str(key) for key in removals], find_text_map(node, "updates", what) or {})


def parse_levels(levels: Sequence[object]) -> tuple[str, ...]:
    """Return a namespace's levels. Raises: BadRequest: one is not a valid name."""
    if not levels or not all(is_text(level) for level in levels):
        raise BadRequest("Cannot read namespace: send an array of at least one string")
    return tuple(check_name(str(level), "namespace") for level in levels)


@dataclass(frozen=True, slots=True)
class RenameTable:
    """The body of renameTable and renameView."""

    source: Identifier
    destination: Identifier


def decode_rename(body: bytes) -> RenameTable:
    """Return the parsed body. Raises: BadRequest: it is malformed."""
    node = as_object(decode_json(body), "request to rename")
    return RenameTable(*(check_identifier(parse_identifier(node.get(key), key)) for key in ("source", "destination")))


@dataclass(frozen=True, slots=True)
class RegisterTable:
    """The body of registerTable; `overwrite`: replace a table of that name."""

    name: str
    metadata_location: str
    overwrite: bool


def decode_register(body: bytes) -> RegisterTable:
    """Return the parsed body. Raises: BadRequest: it is malformed."""
    what = "request to register a table"
    node = as_object(decode_json(body), what)
    overwrite = node.get("overwrite", False)
    if not isinstance(overwrite, bool):
        raise BadRequest(f"Cannot read {what}: 'overwrite' is neither true nor false")
    return RegisterTable(check_name(get_text(node, "name", what), "table"), get_text(node, "metadata-location", what), overwrite)


def check_identifier(identifier: Identifier) -> Identifier:
    """Return the identifier unchanged. Raises: BadRequest: one of its parts is not a valid name."""
    for level in identifier.namespace:
        check_name(level, "namespace")
    check_name(identifier.name, "table")
    return identifier


def decode_sign(body: bytes) -> UnsignedRequest:
    """Return the request to sign. Raises: BadRequest: the body is malformed, or names another kind of store than S3."""
    what = "request to sign"
    node = as_object(decode_json(body), what)
    if (find_text(node, "provider", what) or "s3").lower() != "s3":
        raise BadRequest("Only requests to S3 are signed; leave out 'provider', or send \"s3\"")
    headers = as_object(node.get("headers"), f"'headers' of {what}")
    values = {name: as_list(snapshot_summary, f"the header {name[:64]!r} of {what}") for name, snapshot_summary in headers.items()}
    if not all(is_text(value) for found in values.values() for value in found):
        raise BadRequest("Cannot read request to sign: a header has a value that is no string")
    snapshot_summary = {name: [str(value) for value in found] for name, found in values.items()}
    return UnsignedRequest(get_text(node, "method", what), get_text(node, "uri", what), get_text(node, "region", what), snapshot_summary)
