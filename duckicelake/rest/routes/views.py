"""Views: listed, loaded, looked for."""

import json
from typing import Any

from fastapi import Response

from duckicelake.access.grants import Rights
from duckicelake.access.policy import VIEW
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.views import loading
from duckicelake.catalog.views.loading import LoadedView
from duckicelake.rest.auth.target import Target
from duckicelake.rest.context import ServerContext
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.params import Levels, Page, Prefix, ViewName, cut_page
from duckicelake.rest.response_bodies import ListTablesResponse, LoadViewResult

LOADED: dict[int | str, dict[str, Any]] = {200: {"model": LoadViewResult, "description": "The view's metadata."}}


class ViewRoutes:
    """Answers the operations on views."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {
            "listViews": OperationHandler(self.list_views),
            "loadView": OperationHandler(self.load_view, responses=LOADED),
            "viewExists": OperationHandler(self.check_view, status=204),
        }

    def list_views(self, target: Target, levels: Levels, page: Page) -> ListTablesResponse:
        """List the views of a namespace."""
        listed = loading.list_views(self._context.get_lake(target.prefix).warehouse, levels)
        found = [ident for ident in listed if target.session.rights_at(VIEW, levels, ident.name) is not Rights.NONE]
        cut, token = cut_page(found, lambda ident: (*ident.namespace, ident.name), page)
        return {"identifiers": [{"namespace": list(ident.namespace), "name": ident.name} for ident in cut], "next-page-token": token}

    def load_view(self, prefix: Prefix, levels: Levels, name: ViewName) -> Response:
        """Load a view's metadata."""
        return build_view_response(loading.load_view(self._context.get_lake(prefix).warehouse, Ident(levels, name)))

    def check_view(self, prefix: Prefix, levels: Levels, name: ViewName) -> Response:
        """Check that a view exists."""
        loading.check_view_exists(self._context.get_lake(prefix).warehouse, Ident(levels, name))
        return Response(status_code=204)


def build_view_response(loaded: LoadedView) -> Response:
    """Return the answer that shows a view; its metadata is JSON already."""
    location = json.dumps(loaded.metadata_location, ensure_ascii=False).encode()
    body = b'{"metadata-location":%b,"metadata":%b,"config":{}}' % (location, loaded.metadata)
    return Response(body, media_type="application/json")
