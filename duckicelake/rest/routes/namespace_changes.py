"""Namespaces: made, dropped, their properties changed."""

from fastapi import Response

from duckicelake.catalog.writing import namespaces
from duckicelake.rest.bodies import GetNamespaceResponse, UpdatePropertiesResponse
from duckicelake.rest.door import Door
from duckicelake.rest.params import Levels, Prefix
from duckicelake.rest.requests import (
    TEXT_MAP,
    TEXTS,
    Body,
    decode_create_namespace,
    decode_update_properties,
    describe_body,
)
from duckicelake.rest.served import Served

CREATE_BODY = describe_body(["namespace"], {"namespace": TEXTS, "properties": TEXT_MAP})


class NamespaceChangeRoutes:
    """Answers the operations that change namespaces."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def operations(self) -> dict[str, Served]:
        """Return what this module serves."""
        return {
            "createNamespace": Served(self.create_namespace, body=CREATE_BODY),
            "dropNamespace": Served(self.drop_namespace, status=204),
            "updateProperties": Served(self.update_properties, body=describe_body([], {"removals": TEXTS, "updates": TEXT_MAP})),
        }

    def create_namespace(self, prefix: Prefix, body: Body) -> GetNamespaceResponse:
        """Create a namespace, with an optional set of properties."""
        asked = decode_create_namespace(body)
        made = namespaces.create_namespace(self._door.get_lake(prefix).warehouse, asked.levels, asked.properties)
        return {"namespace": list(made.levels), "properties": made.properties}

    def drop_namespace(self, prefix: Prefix, levels: Levels) -> Response:
        """Drop a namespace, which must be empty."""
        namespaces.drop_namespace(self._door.get_lake(prefix).warehouse, levels)
        return Response(status_code=204)

    def update_properties(self, prefix: Prefix, levels: Levels, body: Body) -> UpdatePropertiesResponse:
        """Set and remove properties of a namespace."""
        asked = decode_update_properties(body)
        warehouse = self._door.get_lake(prefix).warehouse
        done = namespaces.update_properties(warehouse, levels, asked.removals, asked.updates)
        return {"updated": list(done.updated), "removed": list(done.removed), "missing": list(done.missing)}
