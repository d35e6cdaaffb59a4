"""Tables: listed, loaded, looked for."""

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.types import Receive, Scope, Send

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.catalog import tables
from duckicelake.catalog.keys.vending import VendedKeys, get_keys
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.errors import NotServed
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.encoding.json_reader import as_object, get_text
from duckicelake.rest.auth.credentials import (
    add_signing_config,
    build_wanted,
    encode_credentials,
    encode_refreshed_credentials,
    find_credentials,
)
from duckicelake.rest.auth.target import Target
from duckicelake.rest.cache import CachedLoad, TableKey
from duckicelake.rest.cached_response import CachedResponse, Headers, build_cached_response, list_headers, read_conditional_headers
from duckicelake.rest.context import ServerContext
from duckicelake.rest.etag import build_etag
from duckicelake.rest.openapi.changes import REPORT
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.params import Levels, Page, Prefix, SnapshotSelection, TableName, cut_page
from duckicelake.rest.request_bodies import Body, describe_body
from duckicelake.rest.response_bodies import ListTablesResponse, LoadCredentialsResponse, LoadTableResult

MAX_JOINED_BYTES = 64 * 1024
"""Shorter answers are sent in one piece: that is fewer calls."""
COMMIT_REPORT = "commit-report"
REPORT_TYPES = frozenset({"scan-report", COMMIT_REPORT})
LOADED: dict[int | str, dict[str, Any]] = {
    200: {"model": LoadTableResult, "description": "The table's metadata, with an ETag."},
    304: {"description": "The client's copy, named by If-None-Match, is the current one."},
}
CREDENTIALS: dict[int | str, dict[str, Any]] = {200: {"model": LoadCredentialsResponse, "description": "Keys for the table's files."}}
CONDITIONAL: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-None-Match",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": "ETags of the copies that the client has.",
        }
    ]
}


class TableRoutes:
    """Answers the operations on tables."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {
            "listTables": OperationHandler(self.list_tables),
            "loadTable": OperationHandler(self.load_table, responses=LOADED, body=CONDITIONAL),
            "loadCredentials": OperationHandler(self.load_credentials, responses=CREDENTIALS),
            "tableExists": OperationHandler(self.check_table, status=204),
            "reportMetrics": OperationHandler(self.report_metrics, status=204, body=describe_body(REPORT)),
        }

    def list_tables(self, target: Target, levels: Levels, page: Page) -> ListTablesResponse:
        """List the tables of a namespace."""
        listed = tables.list_tables(self._context.get_lake(target.prefix).warehouse, levels)
        found = [ident for ident in listed if target.session.rights_at(TABLE, levels, ident.name) is not Rights.NONE]
        cut, token = cut_page(found, lambda ident: (*ident.namespace, ident.name), page)
        return {"identifiers": [{"namespace": list(ident.namespace), "name": ident.name} for ident in cut], "next-page-token": token}

    def load_table(
        self,
        request: Request,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        snapshots: Annotated[SnapshotSelection, Query(description="All snapshots, or those that refs name.")] = "all",
    ) -> Response:
        """Load a table's metadata."""
        lake = self._context.get_lake(prefix)
        loaded = tables.load_table(lake.warehouse, Ident(levels, name), snapshots)
        keys = find_credentials(request.scope, lake.warehouse, Ident(levels, name), loaded)
        if keys is None:
            loaded = add_signing_config(request.scope, lake.warehouse, Ident(levels, name), loaded)
        answer = build_cached_response(encode_load_result(loaded, keys), tagged=list_etag_parts(loaded, keys))
        key: TableKey | None = request.scope.get("table_key")
        # keys that open less than was asked for are made anew with each load: nothing tells when the location is free
        if key is not None and not (keys is not None and keys.is_narrower):
            fresh_until_s = None if keys is None else keys.fresh_until_s
            ready = CachedLoad(lake.prefix, loaded.table_id, loaded.position, answer, loaded.local_file, fresh_until_s)
            self._context.cache.put(key, ready)
        return build_response(answer, request.scope["headers"])

    def load_credentials(self, target: Target, levels: Levels, name: TableName) -> Response:
        """Load new storage credentials for a table."""
        warehouse, ident = self._context.get_lake(target.prefix).warehouse, Ident(levels, name)
        if warehouse.vendor is None:
            raise NotServed("No keys are vended for this warehouse (require_auth and sts_role_arn); use keys of your own.")
        loaded = tables.load_table(warehouse, ident, "refs")
        wanted = build_wanted(warehouse, ident, target.session.rights_at(TABLE, levels, name))
        newer = get_keys(warehouse, ident, loaded, wanted, time.time())
        return Response(encode_refreshed_credentials(newer), headers={"Cache-Control": "no-store"}, media_type="application/json")

    def check_table(self, prefix: Prefix, levels: Levels, name: TableName) -> Response:
        """Check that a table exists."""
        tables.check_table_exists(self._context.get_lake(prefix).warehouse, Ident(levels, name))
        return Response(status_code=204)

    def report_metrics(self, prefix: Prefix, levels: Levels, name: TableName, body: Body) -> Response:
        """Take a client's report of a scan or a commit: it is counted by its type."""
        kind = get_text(as_object(decode_json(body), "metrics report"), "report-type", "metrics report")
        # Java reports the append of CREATE TABLE … AS before it asks for the table to be made
        tables.check_table_exists(self._context.get_lake(prefix).warehouse, Ident(levels, name), or_its_namespace=kind == COMMIT_REPORT)
        self._context.metrics.count_report(kind if kind in REPORT_TYPES else "other")
        return Response(status_code=204)


def encode_load_result(loaded: LoadedTable, keys: VendedKeys | None = None) -> bytes:
    """Return the body of a load; the metadata is JSON already and is put in as it is."""
    return b"".join(list_load_result(loaded, keys))


def list_load_result(loaded: LoadedTable, keys: VendedKeys | None = None) -> tuple[bytes, bytes, bytes]:
    """Return the body of a load in parts, the metadata between what comes before and after it."""
    client_config = loaded.config if keys is None else {**loaded.config, **keys.config}
    config = json.dumps(client_config, ensure_ascii=False, separators=(",", ":")).encode()
    more = b"" if keys is None else encode_credentials(keys)
    return b'{%b"metadata":' % _encode_location(loaded), loaded.metadata, b',"config":%b%b}' % (config, more)


def list_etag_parts(loaded: LoadedTable, keys: VendedKeys | None = None) -> Sequence[bytes]:
    """Return what the tag of a load is of: a digest stands for the metadata, because a long history takes milliseconds to hash."""
    before, metadata, after = list_load_result(loaded, keys)
    return before, loaded.digest or metadata, after


def encode_commit_result(loaded: LoadedTable) -> bytes:
    """Return the body of a commit's answer."""
    return b"".join(list_commit_result(loaded))


def list_commit_result(loaded: LoadedTable) -> Sequence[bytes]:
    """Return the body of a commit's answer in parts."""
    return b'{%b"metadata":' % _encode_location(loaded), loaded.metadata, b"}"


def _encode_location(loaded: LoadedTable) -> bytes:
    """Return the member that says where the metadata file is; a staged table has none."""
    if loaded.metadata_location is None:
        return b""
    return b'"metadata-location":%b,' % json.dumps(loaded.metadata_location, ensure_ascii=False).encode()


class MultipartBodyResponse(Response):
    """A JSON answer that is sent once, in the parts that it has: joining those of a long history takes milliseconds."""

    def __init__(self, parts: Sequence[bytes], tagged: Sequence[bytes]) -> None:
        length_bytes = sum(map(len, parts))
        super().__init__()
        self.parts = parts if length_bytes > MAX_JOINED_BYTES else [b"".join(parts)]
        self.raw_headers = list_headers(build_etag(*tagged), length_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        *first, last = self.parts
        for part in first:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": last})


def build_response(answer: CachedResponse, request_headers: Headers) -> Response:
    """Return the ready answer as FastAPI wants it."""
    status, headers, body = answer.choose(*read_conditional_headers(request_headers))
    response = Response(body, status)
    response.raw_headers = headers
    return response
