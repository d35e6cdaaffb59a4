"""Handlers of the namespace operations.

They run on worker threads. `catalog` begins the transactions. If a namespace gets a `location` in another bucket than ICEBERG_PATH, a test
object is written there, read and deleted before.
"""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Query, Response

from duckicelake.access.grants import format_object
from duckicelake.access.sessions import Session
from duckicelake.catalog.idempotency import run_once
from duckicelake.catalog.namespace_changes import ChangedProperties, create_namespace, drop_namespace, update_properties
from duckicelake.catalog.namespaces import check_namespace_exists, list_namespaces, load_namespace
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchNamespace
from duckicelake.rest.auth.permissions import check_creates_namespace, deny
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import CREATE_NAMESPACE, UPDATE_PROPERTIES
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, Page, Prefix, cut_page, split_levels
from duckicelake.rest.request_bodies import (
    Body,
    Key,
    decode_create_namespace,
    decode_update_properties,
    describe_body,
)
from duckicelake.rest.response_bodies import GetNamespaceResponse, ListNamespacesResponse, UpdatePropertiesResponse


class NamespaceRoutes:
    """Handlers of the operations that read namespaces."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
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
        found = load_namespace(self._context.get_lake(prefix).warehouse, levels)
        return {"namespace": list(found.levels), "properties": dict(found.properties)}

    def check_namespace(self, prefix: Prefix, levels: Levels) -> Response:
        """Check that a namespace exists."""
        check_namespace_exists(self._context.get_lake(prefix).warehouse, levels)
        return Response(status_code=204)


def check_shown(session: Session, parent: str) -> None:
    """Raise NoSuchNamespace if the session has no right on a parent without visible children, in either of its spellings."""
    if not any(session.shows(split_levels(spelled)) for spelled in (parent, unquote(parent))):
        levels = split_levels(parent)
        raise deny(NoSuchNamespace(f"Namespace does not exist: {'.'.join(levels)}"), levels)


def list_children(warehouse: Warehouse, parent: str) -> list[tuple[str, ...]]:
    """Return the direct children of a namespace.

    PyIceberg percent-encodes the parent twice, so a parent that does not exist is decoded once more.
    Raises: BadRequest, NoSuchNamespace
    """
    levels = split_levels(parent) if parent else ()
    try:
        return list_namespaces(warehouse, levels)
    except NoSuchNamespace:
        again = unquote(parent)
        if again == parent:
            raise
        return list_namespaces(warehouse, split_levels(again))


class NamespaceChangeRoutes:
    """Handlers of the operations that change namespaces."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "createNamespace": OperationHandler(self.create_namespace, body=describe_body(CREATE_NAMESPACE)),
            "dropNamespace": OperationHandler(self.drop_namespace, status=204),
            "updateProperties": OperationHandler(self.update_properties, body=describe_body(UPDATE_PROPERTIES)),
        }

    def create_namespace(self, target: Target, body: Body, key: Key) -> GetNamespaceResponse:
        """Create a namespace, with an optional set of properties."""
        asked = decode_create_namespace(body)
        check_creates_namespace(target.session, asked.levels)
        made = run_once(
            self._context.get_warehouse(target),
            key.about(format_object(asked.levels)),
            lambda w: create_namespace(w, asked.levels, asked.properties),
            lambda w, _: load_namespace(w, asked.levels),
        )
        return {"namespace": list(made.levels), "properties": made.properties}

    def drop_namespace(self, prefix: Prefix, levels: Levels, key: Key) -> Response:
        """Drop a namespace, which must be empty."""
        run_once(self._context.get_lake(prefix).warehouse, key, lambda w: drop_namespace(w, levels), lambda _, __: None)
        return Response(status_code=204)

    def update_properties(self, target: Target, levels: Levels, body: Body, key: Key) -> UpdatePropertiesResponse:
        """Set and remove properties of a namespace."""
        asked = decode_update_properties(body)
        warehouse = self._context.get_warehouse(target)
        done = run_once(
            warehouse,
            key,
            lambda w: update_properties(w, levels, asked.removals, asked.updates),
            lambda _, __: ChangedProperties(sorted(asked.updates), list(asked.removals), []),
        )
        return {"updated": list(done.updated), "removed": list(done.removed), "missing": list(done.missing)}
