"""Handlers for manifests that a Spark job writes: the plan of a table's manifests, and their adoption. Called by `pipeline publish`.

They run on worker threads. `catalog.manifest_import` begins the transactions, and reads the object store; an adoption publishes the table.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from fastapi import Request

from duckicelake.catalog.access_rules import with_asker
from duckicelake.catalog.manifest_import.operations import (
    Position,
    SubmittedManifest,
    encode_plan,
    import_manifests,
    plan_manifests,
    verify_manifests,
)
from duckicelake.catalog.tables import Ident
from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object, decode_json, get_flag, get_list, get_long, get_text
from duckicelake.rest.auth.audit import describe_request
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import MANIFEST_SUBMISSION
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, TableName
from duckicelake.rest.request_bodies import Body, describe_body
from duckicelake.rest.response_bodies import AdoptedManifests, PlannedManifests

WHAT = "offer of manifests"
DIGEST = re.compile(r"[0-9a-f]{1,64}")
MANIFEST_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ManifestRoutes:
    """Handlers of the operations on manifests that a job writes in place of the server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {
            "planManifests": OperationHandler(self.plan_manifests),
            "adoptManifests": OperationHandler(self.adopt_manifests, body=describe_body(MANIFEST_SUBMISSION)),
        }

    def plan_manifests(self, target: Target, levels: Levels, name: TableName) -> PlannedManifests:
        """Plan the large manifests of a table that do not exist yet, for its present state. Nothing is changed."""
        return encode_plan(plan_manifests(self._context.get_lake(target.prefix).warehouse, Ident(levels, name)))

    def adopt_manifests(self, request: Request, target: Target, levels: Levels, name: TableName, body: Body) -> AdoptedManifests:
        """Publish a table with manifests written by such a plan, all or none. If more are to come, the manifests are only verified."""
        node = as_object(decode_json(body), WHAT)
        planned = Position(get_long(node, "lake-snapshot-id", WHAT), get_long(node, "change-id", WHAT))
        audit_context, warehouse = describe_request(request.scope), self._context.get_lake(target.prefix).warehouse
        warehouse = replace(warehouse, lake=with_asker(warehouse.lake, audit_context, audit_context.objects))
        offered = dict(map(parse_offered, get_list(node, "manifests", WHAT)))
        ident, made_by = Ident(levels, name), get_text(node, "version", WHAT)
        if node.get("more-to-come") is not None and get_flag(node, "more-to-come", WHAT):
            return {"adopted": 0, "looked-at": verify_manifests(warehouse, ident, planned, made_by, offered)}
        return {"adopted": import_manifests(warehouse, ident, planned, made_by, offered), "looked-at": len(offered)}


def parse_offered(value: object) -> tuple[str, SubmittedManifest]:
    """Return a submitted manifest with the digest of its contents. Raises: BadRequest: it is malformed."""
    node: Mapping[str, object] = as_object(value, WHAT)
    digest, name = get_text(node, "digest", WHAT), get_text(node, "name", WHAT)
    if not DIGEST.fullmatch(digest):
        raise BadRequest(f"Cannot read {WHAT}: a manifest's 'digest' is not in lower-case hexadecimal digits.")
    if not MANIFEST_NAME.fullmatch(name):
        raise BadRequest(f"Cannot read {WHAT}: a manifest's 'name' is not a UUID in lower case.")
    return digest, SubmittedManifest(name, node.get("told"))
