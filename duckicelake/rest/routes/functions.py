"""Handlers of the operations on functions, which only DuckDB changes."""

from typing import Any

from duckicelake.catalog import functions
from duckicelake.catalog.tables import Ident
from duckicelake.rest.context import ServerContext
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import FunctionName, Levels, Page, Prefix, cut_page
from duckicelake.rest.response_bodies import ListFunctionsResponse, LoadFunctionResult

LOADED: dict[int | str, dict[str, Any]] = {200: {"model": LoadFunctionResult, "description": "The function's metadata."}}


class FunctionRoutes:
    """Handlers of the operations that read functions."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listFunctions": OperationHandler(self.list_functions),
            "loadFunction": OperationHandler(self.load_function, responses=LOADED),
        }

    def list_functions(self, prefix: Prefix, levels: Levels, page: Page) -> ListFunctionsResponse:
        """List the functions of a namespace."""
        listed = functions.list_functions(self._context.get_lake(prefix).warehouse, levels)
        cut, token = cut_page(listed, lambda ident: (*ident.namespace, ident.name), page)
        return {"identifiers": [[*ident.namespace, ident.name] for ident in cut], "next-page-token": token}

    def load_function(self, prefix: Prefix, levels: Levels, name: FunctionName) -> LoadFunctionResult:
        """Load a function's metadata, with all its definitions."""
        return {"metadata": functions.load_function(self._context.get_lake(prefix).warehouse, Ident(levels, name))}
