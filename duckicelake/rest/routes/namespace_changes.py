"""Namespaces: made, dropped, their properties changed."""

from fastapi import Response

from duckicelake.access.grants import format_object
from duckicelake.catalog.namespaces import load_namespace
from duckicelake.catalog.writing import namespaces
from duckicelake.catalog.writing.once import run_once
from duckicelake.rest.auth.permissions import check_creates_namespace
from duckicelake.rest.auth.target import Target
from duckicelake.rest.context import ServerContext
from duckicelake.rest.openapi.changes import CREATE_NAMESPACE, UPDATE_PROPERTIES
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.params import Levels, Prefix
from duckicelake.rest.request_bodies import (
    Body,
    Key,
    decode_create_namespace,
    decode_update_properties,
    describe_body,
)
from duckicelake.rest.response_bodies import GetNamespaceResponse, UpdatePropertiesResponse


class NamespaceChangeRoutes:
    """Answers the operations that change namespaces."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
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
            self._context.get_lake(target.prefix).warehouse,
            key.about(format_object(asked.levels)),
            lambda w: namespaces.create_namespace(w, asked.levels, asked.properties),
            lambda w, _: load_namespace(w, asked.levels),
        )
        return {"namespace": list(made.levels), "properties": made.properties}

    def drop_namespace(self, prefix: Prefix, levels: Levels, key: Key) -> Response:
        """Drop a namespace, which must be empty."""
        run_once(self._context.get_lake(prefix).warehouse, key, lambda w: namespaces.drop_namespace(w, levels), lambda _, __: None)
        return Response(status_code=204)

    def update_properties(self, prefix: Prefix, levels: Levels, body: Body, key: Key) -> UpdatePropertiesResponse:
        """Set and remove properties of a namespace."""
        asked = decode_update_properties(body)
        warehouse = self._context.get_lake(prefix).warehouse
        done = run_once(
            warehouse,
            key,
            lambda w: namespaces.update_properties(w, levels, asked.removals, asked.updates),
            lambda _, __: namespaces.ChangedProperties(sorted(asked.updates), list(asked.removals), []),
        )
        return {"updated": list(done.updated), "removed": list(done.removed), "missing": list(done.missing)}
