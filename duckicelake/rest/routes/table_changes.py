"""Tables: made, changed, dropped, renamed."""

from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.types import Scope

from duckicelake.access.grants import Levels as Path
from duckicelake.access.grants import format_object
from duckicelake.access.policy import TABLE
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing import commit, tables
from duckicelake.catalog.writing.bases import Ask
from duckicelake.catalog.writing.lifecycle import registration, unregistration
from duckicelake.catalog.writing.lifecycle.purging import finish_noted
from duckicelake.catalog.writing.once import Asked, run_once
from duckicelake.catalog.writing.tables import load_committed
from duckicelake.errors import BadRequest, NoSuchTable
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.names import check_name
from duckicelake.iceberg.requests.attribution import attribute_snapshots
from duckicelake.iceberg.requests.bodies import Identifier, parse_commit_table, parse_create_table, parse_transaction
from duckicelake.iceberg.requests.requirements import asks_to_create
from duckicelake.rest.auth.credentials import add_signing_config, find_credentials_of_new_table, wants_credentials
from duckicelake.rest.auth.permissions import check_commit, check_moved, check_rename
from duckicelake.rest.auth.target import Target
from duckicelake.rest.cached_response import build_cached_response
from duckicelake.rest.context import ServerContext
from duckicelake.rest.openapi.changes import CREATE_TABLE, REGISTER_TABLE, RENAME, TABLE_COMMIT, TRANSACTION
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.params import Levels, Prefix, TableName
from duckicelake.rest.request_bodies import (
    Body,
    Key,
    check_identifier,
    decode_register,
    decode_rename,
    describe_body,
)
from duckicelake.rest.response_bodies import CommitTableResponse, LoadTableResult
from duckicelake.rest.routes.tables import (
    MultipartBodyResponse,
    build_response,
    encode_commit_result,
    encode_load_result,
    list_commit_result,
    list_etag_parts,
)

CREATED: dict[int | str, dict[str, Any]] = {200: {"model": LoadTableResult, "description": "The table's metadata, with an ETag."}}
COMMITTED: dict[int | str, dict[str, Any]] = {200: {"model": CommitTableResponse, "description": "The metadata after the commit."}}


class TableChangeRoutes:
    """Answers the operations that change tables."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {
            "createTable": OperationHandler(self.create_table, responses=CREATED, body=describe_body(CREATE_TABLE)),
            "registerTable": OperationHandler(self.register_table, responses=CREATED, body=describe_body(REGISTER_TABLE)),
            "unregisterTable": OperationHandler(self.unregister_table, responses=COMMITTED),
            "updateTable": OperationHandler(self.update_table, responses=COMMITTED, body=describe_body(TABLE_COMMIT)),
            "dropTable": OperationHandler(self.drop_table, status=204),
            "dropUnchangedTable": OperationHandler(self.drop_unchanged_table, status=204),
            "renameTable": OperationHandler(self.rename_table, status=204, body=describe_body(RENAME)),
            "commitTransaction": OperationHandler(self.commit_transaction, status=204, body=describe_body(TRANSACTION)),
        }

    def create_table(self, request: Request, target: Target, levels: Levels, body: Body, key: Key) -> Response:
        """Create a table in a namespace, or stage it for a commit that creates it."""
        asked = parse_create_table(decode_json(body))
        ident = Ident(levels, check_name(asked.name, "table"))
        warehouse = self._context.get_warehouse(target)
        once = add_objects(key, ident)
        keyed = wants_credentials(request.scope, warehouse)
        made = run_once(
            warehouse,
            once,
            lambda w: tables.create_table(w, ident, asked, needs_keys=keyed),
            lambda w, uuid: load_committed(w, ident, uuid),
        )
        check_moved(target.session, TABLE, to_levels(made.moved_to))
        return build_created_response(request.scope, warehouse, ident, made)

    def register_table(self, request: Request, target: Target, levels: Levels, body: Body, key: Key) -> Response:
        """Make the table of a metadata file known, in place of another where the request says so."""
        asked = decode_register(body)
        warehouse, ident = self._context.get_warehouse(target), Ident(levels, asked.name)
        made = run_once(
            warehouse,
            add_objects(key, ident),
            lambda w: registration.register_table(w, ident, asked.metadata_location, overwrite=asked.overwrite),
            lambda w, uuid: load_committed(w, ident, uuid),
        )
        check_moved(target.session, TABLE, to_levels(made.moved_to))
        return build_created_response(request.scope, warehouse, ident, made)

    def unregister_table(self, prefix: Prefix, levels: Levels, name: TableName, key: Key) -> Response:
        """Take a table out of the catalog; all of its files stay."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        verb = unregistration
        gone = run_once(warehouse, key, lambda w: verb.unregister_table(w, ident), lambda w, uuid: verb.find_unregistered(w, ident, uuid))
        return build_response(build_cached_response(encode_commit_result(gone)), [])

    def update_table(self, target: Target, levels: Levels, name: TableName, body: Body, key: Key) -> Response:
        """Commit updates to a table."""
        asked = attribute_snapshots(parse_commit_table(decode_json(body)), key.summary)
        ident = Ident(levels, name)
        if asked.identifier is not None and to_ident(asked.identifier) != ident:
            raise BadRequest(f"The body names the table {to_ident(asked.identifier)}, and the path {ident}; send one of them.")
        check_commit(target.session, levels, name, creates=asks_to_create(asked.requirements))
        warehouse = self._context.get_warehouse(target)
        done = run_once(warehouse, key, lambda w: commit.commit_table(w, ident, asked), lambda w, uuid: load_committed(w, ident, uuid))
        check_moved(target.session, TABLE, to_levels(done.moved_to))
        # who has this answer has what the next load shows
        return MultipartBodyResponse(list_commit_result(done), list_etag_parts(done))

    def drop_table(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        key: Key,
        purge: Annotated[bool, Query(alias="purgeRequested", description="The client wants the files gone too.")] = False,
    ) -> Response:
        """Drop a table from the catalog."""
        warehouse = self._context.get_lake(prefix).warehouse
        run_once(warehouse, key, lambda w: tables.drop_table(w, Ident(levels, name), purged=purge), finish_noted)
        return Response(status_code=204)

    def drop_unchanged_table(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        key: Key,
        shown: Annotated[str, Query(alias="metadata-location", description="The metadata file that a load of the table named.")],
    ) -> Response:
        """Drop a table, with what only Iceberg readers need of it, while it is as that metadata file shows it; else 409."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        run_once(warehouse, key, lambda w: tables.drop_table(w, ident, purged=True, shown=shown), finish_noted)
        return Response(status_code=204)

    def rename_table(self, target: Target, body: Body, key: Key) -> Response:
        """Rename a table, within its namespace or into another."""
        asked = decode_rename(body)
        source, destination = to_ident(asked.source), to_ident(asked.destination)
        check_rename(target.session, (*source.namespace, source.name), (*destination.namespace, destination.name), NoSuchTable)
        once = add_objects(key, source, destination)
        warehouse = self._context.get_lake(target.prefix).warehouse
        run_once(warehouse, once, lambda w: tables.rename_table(w, source, destination), lambda _, __: None)
        return Response(status_code=204)

    def commit_transaction(self, target: Target, body: Body, key: Key) -> Response:
        """Commit updates to several tables, all or none."""
        asks: list[Ask] = []
        for asked in parse_transaction(decode_json(body)):
            assert asked.identifier is not None
            ident = to_ident(check_identifier(asked.identifier))
            check_commit(target.session, ident.namespace, ident.name, creates=asks_to_create(asked.requirements))
            asks.append(Ask(ident, attribute_snapshots(asked, key.summary)))
        once = add_objects(key, *(ask.ident for ask in asks))
        run_once(self._context.get_warehouse(target), once, lambda w: commit.commit_tables(w, asks), lambda _, __: None)
        return Response(status_code=204)


def build_created_response(scope: Scope, warehouse: Warehouse, ident: Ident, made: LoadedTable) -> Response:
    """Return the answer to a new table, with the keys or the signing that the client takes."""
    ident = made.moved_to or ident
    keys = find_credentials_of_new_table(scope, warehouse, ident, made)
    answered = made if keys is not None else add_signing_config(scope, warehouse, ident, made)
    body, etag_parts = encode_load_result(answered, keys), list_etag_parts(answered, keys)
    return build_response(build_cached_response(body, is_kept=False, tagged=etag_parts), [])


def add_objects(asked: Asked, *idents: Ident) -> Asked:
    """Return a request with the tables or views that its body names."""
    return asked.about(*(format_object((*ident.namespace, ident.name)) for ident in idents))


def to_levels(ident: Ident | None) -> Path | None:
    """Return a name as rights know it."""
    return None if ident is None else (*ident.namespace, ident.name)


def to_ident(identifier: Identifier) -> Ident:
    """Return a body's identifier as the verbs take it."""
    return Ident(identifier.namespace, identifier.name)
