"""Handlers of the table operations: reads in `TableRoutes`, writes in `TableChangeRoutes`, and the encoding of their responses.

Reads run on worker threads. Writes wait on the event loop for the turns of their tables, and are then done on a worker thread. A load
publishes a state that is not published yet, so a read may write to Postgres and the object store. Loads and creates may get keys of STS. A
report of metrics is queued in memory, for the audit log's thread. A purge deletes objects, also when the same drop is asked for again.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from duckicelake.access.grants import Levels as Path
from duckicelake.access.grants import Rights, format_object
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import ANONYMOUS
from duckicelake.catalog import registration
from duckicelake.catalog.cleanup import finish_noted_purges
from duckicelake.catalog.credentials.table_access import VendedCredentials, get_credentials
from duckicelake.catalog.idempotency import RequestContext
from duckicelake.catalog.records.client_reports import find_reported_table
from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.catalog.table_changes import create_table, drop_table, load_committed_table, rename_table
from duckicelake.catalog.tables import Ident, LoadedTable, check_table_exists, list_tables, load_table, may_be_looked_for, with_client_ids
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchTable, NotServed
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.requests.bodies import Identifier, check_name, parse_create_table
from duckicelake.iceberg.requests.reports import COMMIT, SCAN, build_kept_report, read_report_type
from duckicelake.rest.auth.audit import note_answer
from duckicelake.rest.auth.delegation import (
    REMOTE_SIGNING,
    add_signing_config,
    build_wanted,
    describe_read,
    encode_credentials,
    encode_refreshed_credentials,
    find_credentials,
    find_credentials_of_new_table,
    format_keys,
    wants_credentials,
)
from duckicelake.rest.auth.permissions import check_moved, check_rename
from duckicelake.rest.cached_response import (
    CachedLoad,
    CachedResponse,
    Headers,
    ResponseCache,
    TableKey,
    build_cached_response,
    build_etag,
    list_headers,
    read_conditional_headers,
)
from duckicelake.rest.changes_in_turn import RequestedChange, change_in_turn, parse_body
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import CREATE_TABLE, REGISTER_TABLE, RENAME, REPORT
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, Page, Prefix, SnapshotSelection, TableName, cut_page
from duckicelake.rest.request_bodies import (
    Body,
    Key,
    decode_register,
    decode_rename,
    describe_body,
    refreshes_java_table,
)
from duckicelake.rest.response_bodies import CommitTableResponse, ListTablesResponse, LoadCredentialsResponse, LoadTableResult

MAX_JOINED_BYTES = 64 * 1024
"""Bodies up to this size are joined and sent at once, which saves calls."""
REPORT_TYPES = frozenset({SCAN, COMMIT})
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
    """Handlers of the operations that read tables."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listTables": OperationHandler(self.list_tables),
            "loadTable": OperationHandler(self.load_table, responses=LOADED, body=CONDITIONAL),
            "loadCredentials": OperationHandler(self.load_credentials, responses=CREDENTIALS),
            "tableExists": OperationHandler(self.check_table, status=204),
            "reportMetrics": OperationHandler(self.report_metrics, status=204, body=describe_body(REPORT)),
        }

    def list_tables(self, target: Target, levels: Levels, page: Page) -> ListTablesResponse:
        """List the tables of a namespace."""
        listed = list_tables(self._context.get_lake(target.prefix).warehouse, levels)
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
        loaded = load_table(lake.warehouse, Ident(levels, name), snapshots)
        is_unanswered = may_be_looked_for(loaded, time.time_ns() // 1_000_000)
        if is_unanswered and refreshes_java_table(request.scope):
            loaded = with_client_ids(lake.warehouse.objects, loaded)
        keys = find_credentials(request.scope, lake.warehouse, Ident(levels, name), loaded)
        if keys is None:
            loaded = add_signing_config(request.scope, lake.warehouse, Ident(levels, name), loaded)
        answer = build_cached_response(encode_load_result(loaded, keys), tagged=list_etag_parts(loaded, keys))
        read = describe_read(request.scope, Ident(levels, name), loaded, keys)._replace(lake_name=lake.prefix)
        note_answer(request.scope, read)
        key: TableKey | None = request.scope.get("table_key")
        # Credentials that cover less than requested are not cached: no event says when the rest of the location becomes free.
        if key is not None and not (keys is not None and keys.is_narrower) and not is_unanswered:
            fresh_until_s = None if keys is None else keys.fresh_until_s
            ready = CachedLoad(lake.prefix, loaded.table_id, loaded.position, answer, read, loaded.local_file, fresh_until_s)
            self._context.cache.put(key, ready)
        return build_response(answer, request.scope["headers"])

    def load_credentials(self, request: Request, target: Target, levels: Levels, name: TableName) -> Response:
        """Load new storage credentials for a table."""
        warehouse, ident = self._context.get_lake(target.prefix).warehouse, Ident(levels, name)
        if warehouse.vendor is None:
            raise NotServed("No credentials are vended here (that needs require_auth and sts_role_arn); use your own credentials.")
        loaded = load_table(warehouse, ident, "refs")
        wanted = build_wanted(warehouse, ident, target.session.rights_at(TABLE, levels, name))
        newer = get_credentials(warehouse, ident, loaded, wanted, time.time())
        rights = target.session.rights_at(TABLE, levels, name)
        note_answer(request.scope, ReadAnswer(loaded.snapshot_id, format_keys(rights, newer)))
        return Response(encode_refreshed_credentials(newer), headers={"Cache-Control": "no-store"}, media_type="application/json")

    def check_table(self, prefix: Prefix, levels: Levels, name: TableName) -> Response:
        """Check that a table exists."""
        check_table_exists(self._context.get_lake(prefix).warehouse, Ident(levels, name))
        return Response(status_code=204)

    def report_metrics(self, target: Target, levels: Levels, name: TableName, body: Body) -> Response:
        """Count a client's report of a scan or a commit by its type, and queue it to be kept."""
        node, lake = decode_json(body), self._context.get_lake(target.prefix)
        kind = read_report_type(node)
        # Java's client reports the append of CREATE TABLE … AS before it sends the commit that creates the table.
        table_id = find_reported_table(lake.warehouse, Ident(levels, name), may_be_new=kind == COMMIT)
        self._context.metrics.count_report(kind if kind in REPORT_TYPES else "other")
        if kind in REPORT_TYPES and table_id is not None and lake.audit_log is not None:
            principal = None if target.session is ANONYMOUS else target.session.client_id
            lake.audit_log.reports.add(table_id, principal, build_kept_report(node))
        return Response(status_code=204)


def encode_load_result(loaded: LoadedTable, keys: VendedCredentials | None = None) -> bytes:
    """Return the body of a load. The metadata is JSON already and is inserted unchanged."""
    return b"".join(list_load_result(loaded, keys))


def list_load_result(loaded: LoadedTable, keys: VendedCredentials | None = None) -> tuple[bytes, bytes, bytes]:
    """Return the body of a load in three parts, the second of which is the metadata."""
    client_config = loaded.config if keys is None else {**loaded.config, **keys.config}
    config = json.dumps(client_config, ensure_ascii=False, separators=(",", ":")).encode()
    more = (REMOTE_SIGNING if loaded.is_signed_for else b"") if keys is None else encode_credentials(keys)
    return b'{%b"metadata":' % _encode_location(loaded), loaded.metadata, b',"config":%b%b}' % (config, more)


def list_etag_parts(loaded: LoadedTable, keys: VendedCredentials | None = None) -> Sequence[bytes]:
    """Return the bytes that are hashed for a load's ETag. A digest replaces the metadata, because hashing a long one takes milliseconds."""
    before, metadata, after = list_load_result(loaded, keys)
    return before, loaded.digest or metadata, after


def renew_cached_load(cache: ResponseCache, raw_path: bytes, loaded: LoadedTable) -> None:
    """Replace the cached load of a table by the state that a commit has made, so that the next load need not read the table again.

    Only a load that is cached already, without credentials, is replaced, and only by a short body: a long one would have to be compressed.
    `raw_path`: that of the commit, which is also that of the table's load. `loaded`: without client ids.
    """
    key, published = (raw_path, "all"), loaded.published
    entry = cache.find(key)
    if entry is None or published is None or published.is_unanswered or loaded.moved_to is not None:
        return
    if (entry.table_id, entry.fresh_until_s) != (loaded.table_id, None) or entry.position == loaded.position:
        return
    if len(loaded.metadata) > MAX_JOINED_BYTES:
        return
    answer = build_cached_response(encode_load_result(loaded), tagged=list_etag_parts(loaded))
    read = entry.read._replace(snapshot_id=published.metadata.current_snapshot_id)
    cache.put(key, replace(entry, position=loaded.position, answer=answer, read=read, local_file=loaded.local_file))


def encode_commit_result(loaded: LoadedTable) -> bytes:
    """Return the body of a commit's response."""
    return b"".join(list_commit_result(loaded))


def list_commit_result(loaded: LoadedTable) -> Sequence[bytes]:
    """Return the body of a commit's response in parts."""
    return b'{%b"metadata":' % _encode_location(loaded), loaded.metadata, b"}"


def _encode_location(loaded: LoadedTable) -> bytes:
    """Return the member `metadata-location`, empty for a staged table."""
    if loaded.metadata_location is None:
        return b""
    return b'"metadata-location":%b,' % json.dumps(loaded.metadata_location, ensure_ascii=False).encode()


class MultipartBodyResponse(Response):
    """A JSON response that is sent in parts, because joining the parts of long metadata takes milliseconds."""

    def __init__(self, parts: Sequence[bytes], tagged: Sequence[bytes]) -> None:
        length_bytes = sum(map(len, parts))
        super().__init__()
        self.parts = parts if length_bytes > MAX_JOINED_BYTES else [b"".join(parts)]
        self.raw_headers = list_headers(build_etag(*tagged), length_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        *first, last = self.parts
        for part in first:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": last})


def build_response(answer: CachedResponse, request_headers: Headers) -> Response:
    """Return the cached response as a Starlette response for one request's headers."""
    status, headers, body = answer.choose(*read_conditional_headers(request_headers))
    response = Response(body, status)
    response.raw_headers = headers
    return response


CREATED: dict[int | str, dict[str, Any]] = {200: {"model": LoadTableResult, "description": "The table's metadata, with an ETag."}}
COMMITTED: dict[int | str, dict[str, Any]] = {200: {"model": CommitTableResponse, "description": "The metadata after the commit."}}


class TableChangeRoutes:
    """Handlers of the operations that change tables."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "createTable": OperationHandler(self.create_table, responses=CREATED, body=describe_body(CREATE_TABLE)),
            "registerTable": OperationHandler(self.register_table, responses=CREATED, body=describe_body(REGISTER_TABLE)),
            "unregisterTable": OperationHandler(self.unregister_table, responses=COMMITTED),
            "dropTable": OperationHandler(self.drop_table, status=204),
            "dropUnchangedTable": OperationHandler(self.drop_unchanged_table, status=204),
            "renameTable": OperationHandler(self.rename_table, status=204, body=describe_body(RENAME)),
        }

    async def create_table(self, request: Request, target: Target, levels: Levels, body: Body, key: Key) -> Response:
        """Create a table in a namespace, or stage it for a commit that creates it."""
        asked = await parse_body(body, lambda content: parse_create_table(decode_json(content)))
        ident = Ident(levels, check_name(asked.name, "table"))
        warehouse = self._context.get_warehouse(target)
        keyed = wants_credentials(request.scope, warehouse)
        change = RequestedChange(
            warehouse,
            add_objects(key, ident),
            lambda w: create_table(w, ident, asked, needs_keys=keyed),
            lambda w, uuid: load_committed_table(w, ident, uuid),
        )
        made = await change_in_turn(self._context, [ident], change)
        check_moved(target.session, TABLE, to_levels(made.moved_to))
        return await run_in_threadpool(build_created_response, request.scope, warehouse, ident, made)

    async def register_table(self, request: Request, target: Target, levels: Levels, body: Body, key: Key) -> Response:
        """Register a table by its metadata file; with `overwrite`, in place of a table of that name."""
        asked = decode_register(body)
        warehouse, ident = self._context.get_warehouse(target), Ident(levels, asked.name)
        change = RequestedChange(
            warehouse,
            add_objects(key, ident),
            lambda w: registration.register_table(w, ident, asked.metadata_location, overwrite=asked.overwrite),
            lambda w, uuid: load_committed_table(w, ident, uuid),
        )
        made = await change_in_turn(self._context, [ident], change)
        check_moved(target.session, TABLE, to_levels(made.moved_to))
        if key.needs_client_ids:
            # Java compares the table with what it had of it before it dropped it.
            made = await run_in_threadpool(with_client_ids, warehouse.objects, made)
        return await run_in_threadpool(build_created_response, request.scope, warehouse, ident, made)

    async def unregister_table(self, prefix: Prefix, levels: Levels, name: TableName, key: Key) -> Response:
        """Unregister a table from the catalog; all of its files stay."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        verb = registration
        change = RequestedChange(
            warehouse, key, lambda w: verb.unregister_table(w, ident), lambda w, uuid: verb.get_unregistered(w, ident, uuid)
        )
        gone = await change_in_turn(self._context, [ident], change)
        return build_response(build_cached_response(encode_commit_result(gone)), [])

    async def drop_table(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        key: Key,
        purge: Annotated[bool, Query(alias="purgeRequested", description="Also delete the table's files.")] = False,
    ) -> Response:
        """Drop a table from the catalog."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        change = RequestedChange(warehouse, key, lambda w: drop_table(w, ident, purged=purge), finish_noted_purges)
        await change_in_turn(self._context, [ident], change)
        return Response(status_code=204)

    async def drop_unchanged_table(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        key: Key,
        shown: Annotated[str, Query(alias="metadata-location", description="The metadata file of the client's last load.")],
    ) -> Response:
        """Drop a table and its Iceberg files if its state is still that of the given metadata file; else 409."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        change = RequestedChange(warehouse, key, lambda w: drop_table(w, ident, purged=True, shown=shown), finish_noted_purges)
        await change_in_turn(self._context, [ident], change)
        return Response(status_code=204)

    async def rename_table(self, target: Target, body: Body, key: Key) -> Response:
        """Rename a table, within its namespace or into another."""
        asked = decode_rename(body)
        source, destination = to_ident(asked.source), to_ident(asked.destination)
        check_rename(target.session, (*source.namespace, source.name), (*destination.namespace, destination.name), NoSuchTable)
        once = add_objects(key, source, destination)
        warehouse = self._context.get_lake(target.prefix).warehouse
        change = RequestedChange(warehouse, once, lambda w: rename_table(w, source, destination), lambda _, __: None)
        await change_in_turn(self._context, [source, destination], change)
        return Response(status_code=204)


def build_created_response(scope: Scope, warehouse: Warehouse, ident: Ident, made: LoadedTable) -> Response:
    """Return the response for a created table, with the credentials or the signing configuration that the client accepts."""
    ident = made.moved_to or ident
    keys = find_credentials_of_new_table(scope, warehouse, ident, made)
    answered = made if keys is not None else add_signing_config(scope, warehouse, ident, made)
    body, etag_parts = encode_load_result(answered, keys), list_etag_parts(answered, keys)
    return build_response(build_cached_response(body, is_kept=False, tagged=etag_parts), [])


def add_objects(asked: RequestContext, *idents: Ident) -> RequestContext:
    """Return a request context with the tables or views that the body names, for the audit log."""
    return asked.about(*(format_object((*ident.namespace, ident.name)) for ident in idents))


def to_levels(ident: Ident | None) -> Path | None:
    """Return an identifier as the levels that permission checks take; None for None."""
    return None if ident is None else (*ident.namespace, ident.name)


def to_ident(identifier: Identifier) -> Ident:
    """Return a body's identifier as the catalog's operations take it."""
    return Ident(identifier.namespace, identifier.name)
