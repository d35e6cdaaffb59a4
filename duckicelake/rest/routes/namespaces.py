"""Namespaces: listed, loaded, looked for."""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Query, Response

from duckicelake.access.sessions import Session
from duckicelake.catalog import namespaces
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchNamespace
from duckicelake.rest.auth.permissions import deny
from duckicelake.rest.auth.target import Target
from duckicelake.rest.context import ServerContext
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.params import Levels, Page, Prefix, cut_page, split_levels
from duckicelake.rest.response_bodies import GetNamespaceResponse, ListNamespacesResponse


class NamespaceRoutes:
    """Answers the operations on namespaces."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {
            "listNamespaces": OperationHandler(self.list_namespaces),
            "loadNamespaceMetadata": OperationHandler(self.load_namespace),
            "namespaceExists": OperationHandler(self.check_namespace, status=204),
        }

    def list_namespaces(
        self,
        target: Target,
        page: Page,
        parent: Annotated[str, Query(description="List the direct children of this namespace; empty: the top level.")] = "",
    ) -> ListNamespacesResponse:
        """List namespaces, optionally those right below a parent."""
        listed = list_children(self._context.get_lake(target.prefix).warehouse, parent)
        found = [levels for levels in listed if target.session.shows(levels)]
        if parent and not found:
            check_shown(target.session, parent)
        cut, token = cut_page(found, tuple[str, ...], page)
        return {"namespaces": [list(levels) for levels in cut], "next-page-token": token}

    def load_namespace(self, prefix: Prefix, levels: Levels) -> GetNamespaceResponse:
        """Load the properties of a namespace."""
        found = namespaces.load_namespace(self._context.get_lake(prefix).warehouse, levels)
        return {"namespace": list(found.levels), "properties": dict(found.properties)}

    def check_namespace(self, prefix: Prefix, levels: Levels) -> Response:
        """Check that a namespace exists."""
        namespaces.check_namespace_exists(self._context.get_lake(prefix).warehouse, levels)
        return Response(status_code=204)


def check_shown(session: Session, parent: str) -> None:
    """Raise NoSuchNamespace when a parent without children to show may not be known, in either of its spellings."""
    if not any(session.shows(split_levels(spelled)) for spelled in (parent, unquote(parent))):
        levels = split_levels(parent)
        raise deny(NoSuchNamespace(f"Namespace does not exist: {'.'.join(levels)}"), levels)


def list_children(warehouse: Warehouse, parent: str) -> list[tuple[str, ...]]:
    """Return the namespaces right below a parent.

    PyIceberg encodes the parent twice, so a parent that does not exist is decoded once more.
    Raises: BadRequest, NoSuchNamespace
    """
    levels = split_levels(parent) if parent else ()
    try:
        return namespaces.list_namespaces(warehouse, levels)
    except NoSuchNamespace:
        again = unquote(parent)
        if again == parent:
            raise
        return namespaces.list_namespaces(warehouse, split_levels(again))
