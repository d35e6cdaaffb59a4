"""Handlers of the operations on views, and on functions, which only DuckDB changes.

Reads run on worker threads. Changes of views wait on the event loop for their turns, and are then done on a worker thread. A load of a view
that DuckDB changed writes a note to Postgres and a metadata file; a load of a function starts a process (`catalog.function_binder`).
"""

import json
from typing import Any

from fastapi import Response

from duckicelake.access.grants import Rights
from duckicelake.access.policy import VIEW
from duckicelake.catalog import functions, views
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.views import LoadedView, load_committed_view
from duckicelake.errors import BadRequest, NoSuchView
from duckicelake.iceberg.json_reader import as_object, decode_json, get_text
from duckicelake.iceberg.requests.bodies import check_name, parse_commit_view, parse_create_view
from duckicelake.rest.auth.permissions import check_moved, check_rename
from duckicelake.rest.changes_in_turn import RequestedChange, change_in_turn, parse_body
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import CREATE_VIEW, REGISTER_VIEW, RENAME, VIEW_COMMIT
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import FunctionName, Levels, Page, Prefix, ViewName, cut_page
from duckicelake.rest.request_bodies import Body, Key, decode_rename, describe_body
from duckicelake.rest.response_bodies import ListFunctionsResponse, ListTablesResponse, LoadFunctionResult, LoadViewResult
from duckicelake.rest.routes.tables import add_objects, to_ident, to_levels

LOADED: dict[int | str, dict[str, Any]] = {200: {"model": LoadViewResult, "description": "The view's metadata."}}


class ViewRoutes:
    """Handlers of the operations that read views."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listViews": OperationHandler(self.list_views),
            "loadView": OperationHandler(self.load_view, responses=LOADED),
            "viewExists": OperationHandler(self.check_view, status=204),
        }

    def list_views(self, target: Target, levels: Levels, page: Page) -> ListTablesResponse:
        """List the views of a namespace."""
        listed = views.list_views(self._context.get_lake(target.prefix).warehouse, levels)
        found = [ident for ident in listed if target.session.rights_at(VIEW, levels, ident.name) is not Rights.NONE]
        cut, token = cut_page(found, lambda ident: (*ident.namespace, ident.name), page)
        return {"identifiers": [{"namespace": list(ident.namespace), "name": ident.name} for ident in cut], "next-page-token": token}

    def load_view(self, prefix: Prefix, levels: Levels, name: ViewName) -> Response:
        """Load a view's metadata."""
        return build_view_response(views.load_view(self._context.get_lake(prefix).warehouse, Ident(levels, name)))

    def check_view(self, prefix: Prefix, levels: Levels, name: ViewName) -> Response:
        """Check that a view exists."""
        views.check_view_exists(self._context.get_lake(prefix).warehouse, Ident(levels, name))
        return Response(status_code=204)


def build_view_response(loaded: LoadedView) -> Response:
    """Return the response of a view load. The metadata is JSON already and is inserted unchanged."""
    location = json.dumps(loaded.metadata_location, ensure_ascii=False).encode()
    body = b'{"metadata-location":%b,"metadata":%b,"config":{}}' % (location, loaded.metadata)
    return Response(body, media_type="application/json")


REGISTER = "request to register a view"


class ViewChangeRoutes:
    """Handlers of the operations that change views."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "createView": OperationHandler(self.create_view, responses=LOADED, body=describe_body(CREATE_VIEW)),
            "registerView": OperationHandler(self.register_view, responses=LOADED, body=describe_body(REGISTER_VIEW)),
            "replaceView": OperationHandler(self.replace_view, responses=LOADED, body=describe_body(VIEW_COMMIT)),
            "dropView": OperationHandler(self.drop_view, status=204),
            "renameView": OperationHandler(self.rename_view, status=204, body=describe_body(RENAME)),
        }

    async def create_view(self, target: Target, levels: Levels, body: Body, key: Key) -> Response:
        """Create a view in a namespace."""
        asked = await parse_body(body, lambda content: parse_create_view(decode_json(content)))
        ident = Ident(levels, check_name(asked.name, "view"))
        warehouse = self._context.get_warehouse(target)
        once = add_objects(key, ident)
        change = RequestedChange(
            warehouse, once, lambda w: views.create_view(w, ident, asked), lambda w, uuid: load_committed_view(w, ident, uuid)
        )
        made = await change_in_turn(self._context, [ident], change)
        check_moved(target.session, VIEW, to_levels(made.moved_to))
        return build_view_response(made)

    async def register_view(self, target: Target, levels: Levels, body: Body, key: Key) -> Response:
        """Register a view by its metadata file."""
        node = as_object(decode_json(body), REGISTER)
        ident = Ident(levels, check_name(get_text(node, "name", REGISTER), "view"))
        location = get_text(node, "metadata-location", REGISTER)
        warehouse = self._context.get_lake(target.prefix).warehouse
        once = add_objects(key, ident)
        change = RequestedChange(
            warehouse, once, lambda w: views.register_view(w, ident, location), lambda w, uuid: load_committed_view(w, ident, uuid)
        )
        made = await change_in_turn(self._context, [ident], change)
        check_moved(target.session, VIEW, to_levels(made.moved_to))
        return build_view_response(made)

    async def replace_view(self, target: Target, levels: Levels, name: ViewName, body: Body, key: Key) -> Response:
        """Commit updates to a view."""
        asked = await parse_body(body, lambda content: parse_commit_view(decode_json(content)))
        ident = Ident(levels, name)
        if asked.identifier is not None and to_ident(asked.identifier) != ident:
            raise BadRequest(f"The body names the view {to_ident(asked.identifier)}, and the path {ident}; send one of them.")
        warehouse = self._context.get_warehouse(target)
        change = RequestedChange(
            warehouse,
            key,
            lambda w: views.replace_view(w, ident, asked),
            lambda w, uuid: load_committed_view(w, ident, uuid),
            is_commit=True,
        )
        done = await change_in_turn(self._context, [ident], change)
        check_moved(target.session, VIEW, to_levels(done.moved_to))
        return build_view_response(done)

    async def drop_view(self, prefix: Prefix, levels: Levels, name: ViewName, key: Key) -> Response:
        """Drop a view from the catalog."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        change = RequestedChange(warehouse, key, lambda w: views.drop_view(w, ident), lambda _, __: None)
        await change_in_turn(self._context, [ident], change)
        return Response(status_code=204)

    async def rename_view(self, target: Target, body: Body, key: Key) -> Response:
        """Rename a view, within its namespace or into another."""
        asked = decode_rename(body)
        source, destination = to_ident(asked.source), to_ident(asked.destination)
        check_rename(target.session, (*source.namespace, source.name), (*destination.namespace, destination.name), NoSuchView)
        once = add_objects(key, source, destination)
        warehouse = self._context.get_lake(target.prefix).warehouse
        change = RequestedChange(warehouse, once, lambda w: views.rename_view(w, source, destination), lambda _, __: None)
        await change_in_turn(self._context, [source, destination], change)
        return Response(status_code=204)


LOADED_FUNCTION: dict[int | str, dict[str, Any]] = {200: {"model": LoadFunctionResult, "description": "The function's metadata."}}


class FunctionRoutes:
    """Handlers of the operations that read functions."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listFunctions": OperationHandler(self.list_functions),
            "loadFunction": OperationHandler(self.load_function, responses=LOADED_FUNCTION),
        }

    def list_functions(self, prefix: Prefix, levels: Levels, page: Page) -> ListFunctionsResponse:
        """List the functions of a namespace."""
        listed = functions.list_functions(self._context.get_lake(prefix).warehouse, levels)
        cut, token = cut_page(listed, lambda ident: (*ident.namespace, ident.name), page)
        return {"identifiers": [[*ident.namespace, ident.name] for ident in cut], "next-page-token": token}

    def load_function(self, prefix: Prefix, levels: Levels, name: FunctionName) -> LoadFunctionResult:
        """Load a function's metadata, with all its definitions."""
        return {"metadata": functions.load_function(self._context.get_lake(prefix).warehouse, Ident(levels, name))}
