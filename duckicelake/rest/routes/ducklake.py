"""Read-only DuckLake for DuckDB users."""

import json
import time
from typing import Any

from fastapi import Request, Response

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import Bearer
from duckicelake.catalog.keys.ducklake import Asking, DucklakeCredentials, get_ducklake_credentials
from duckicelake.rest.auth.audit import describe_request
from duckicelake.rest.auth.permissions import check_reads_anything
from duckicelake.rest.auth.target import Target
from duckicelake.rest.context import ServerContext
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.response_bodies import DucklakeCredentialsResponse

NO_STORE = {"Cache-Control": "no-store"}
DUCKLAKE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": DucklakeCredentialsResponse, "description": "What DuckDB reads the lake with."}
}


class DucklakeRoutes:
    """Answers the operation that gives DuckDB users read-only access."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {"loadDucklakeCredentials": OperationHandler(self.load_ducklake_credentials, responses=DUCKLAKE_RESPONSES)}

    def load_ducklake_credentials(self, request: Request, target: Target) -> Response:
        """Get what DuckDB needs to attach the lake read-only: a role of Postgres that sees what one may read, and keys to its files."""
        check_reads_anything(target.session)
        lake, session = self._context.get_lake(target.prefix), target.session
        bearer: Bearer = request.scope["bearer"]

        def may_read(levels: tuple[str, ...], name: str) -> bool:
            return Rights.READ in session.rights_at(TABLE, levels, name)

        account, ends_at_s = parse_account(bearer.origin), bearer.ends_at_s
        asking = Asking(describe_request(request.scope), account, bearer.session.grants, bearer.scope, may_read, bearer.roles, ends_at_s)
        found = get_ducklake_credentials(lake.warehouse, lake.roles, asking, time.time())
        return Response(json.dumps(encode_ducklake_credentials(found)).encode(), headers=NO_STORE, media_type="application/json")


def parse_account(origin: str) -> tuple[int, int] | None:
    """Return the principal's id and its secret's number, None for those of settings."""
    if not origin:
        return None
    principal_id, _, secret_number = origin.rpartition("/")[2].partition(".")
    return int(principal_id), int(secret_number)


def encode_ducklake_credentials(found: DucklakeCredentials) -> DucklakeCredentialsResponse:
    """Return the answer."""
    return {
        "expires-at-ms": found.expires_at_ms,
        "dsn": found.dsn,
        "metadata-schema": found.metadata_schema,
        "attach": found.attach,
        "statements": [*found.secrets, found.attach],
        "storage-credentials": [
            {
                "prefixes": list(each.uris),
                "config": {
                    "s3.access-key-id": each.keys.access_key_id,
                    "s3.secret-access-key": each.keys.secret_access_key,
                    "s3.session-token": each.keys.session_token,
                    "s3.session-token-expires-at-ms": str(each.keys.expires_at_ms),
                },
            }
            for each in found.keys
        ],
    }
