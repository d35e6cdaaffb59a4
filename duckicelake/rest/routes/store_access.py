"""Handlers that give access to the store: remote signing, and read-only credentials for DuckDB users of the DuckLake itself.

They run on worker threads; `catalog.credentials` reads Postgres, that of the server's other lakes too, publishes a table whose requests are
signed, sends requests to STS, and creates the Postgres role of a DuckDB user.
Only `sign_anywhere` runs on the event loop: it looks its table up in a thread, then awaits the policy, then signs in a thread.
"""

import json
import time
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from duckicelake.access.grants import Rights, format_object
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import Bearer, Session
from duckicelake.catalog.credentials.ducklake import DucklakeCredentials, DucklakeRequest, get_ducklake_credentials
from duckicelake.catalog.credentials.table_access import FileRights, UnsignedRequest, find_signed_table, sign_request
from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.catalog.tables import Ident
from duckicelake.errors import Forbidden, NotServed
from duckicelake.rest.auth.audit import describe_request, note_answer
from duckicelake.rest.auth.permissions import check_reads_anything
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import SIGN_REQUEST
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, TableName
from duckicelake.rest.request_bodies import Body, decode_sign, describe_body
from duckicelake.rest.response_bodies import DucklakeCredentialsResponse, RemoteSignResult

SIGNED: dict[int | str, dict[str, Any]] = {200: {"model": RemoteSignResult, "description": "The request with its signature."}}
NO_SINGLE_TABLE = (
    "The object belongs to no table that the principal may use, or to several. Use the table's own path (`…/tables/{table}/sign`)."
)


class SignRoutes:
    """Handlers of the signing operations."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        unsigned = describe_body(SIGN_REQUEST)
        return {
            "signRequest": OperationHandler(self.sign_request, responses=SIGNED, body=unsigned),
            "signAnywhere": OperationHandler(self.sign_anywhere, responses=SIGNED, body=unsigned),
        }

    def sign_request(self, request: Request, target: Target, levels: Levels, name: TableName, body: Body) -> Response:
        """Sign a request to the object store for a table's files."""
        note_answer(request.scope, ReadAnswer(keys="sign"))
        return self._sign(target.prefix, target.session, Ident(levels, name), decode_sign(body))

    async def sign_anywhere(self, request: Request, body: Body) -> Response:
        """Sign a request to the object store for clients that use the default path, if its URI lies in the location of one table."""
        unsigned, bearer = decode_sign(body), request.scope["bearer"]
        for lake in list(self._context.lakes.values()):
            ident = await run_in_threadpool(find_signed_table, lake.warehouse, unsigned, time.time())
            if ident is None or lake.policies is None:
                continue
            # The path names no warehouse, so the authentication layer has not applied this lake's grants.
            session: Session = bearer.within(lake.prefix, await lake.policies.get())
            if session.rights_at(TABLE, ident.namespace, ident.name) is not Rights.NONE:
                named = format_object((*ident.namespace, ident.name))
                note_answer(request.scope, ReadAnswer(None, "sign", lake.prefix, named))
                return await run_in_threadpool(self._sign, lake.prefix, session, ident, unsigned)
        raise Forbidden(NO_SINGLE_TABLE)

    def _sign(self, prefix: str, session: Session, ident: Ident, unsigned: UnsignedRequest) -> Response:
        rights = session.rights_at(TABLE, ident.namespace, ident.name)
        may = FileRights(Rights.READ in rights, Rights.WRITE in rights)
        signed = sign_request(self._context.get_lake(prefix).warehouse, ident, unsigned, may, time.time())
        answer: RemoteSignResult = {"uri": signed.uri, "headers": {name: [value] for name, value in signed.headers.items()}}
        kept = "private" if signed.is_kept else "no-cache"
        return Response(json.dumps(answer).encode(), headers={"Cache-Control": kept}, media_type="application/json")


NO_STORE = {"Cache-Control": "no-store"}
DUCKLAKE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": DucklakeCredentialsResponse, "description": "What DuckDB reads the lake with."}
}


class DucklakeRoutes:
    """Handler of loadDucklakeCredentials."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {"loadDucklakeCredentials": OperationHandler(self.load_ducklake_credentials, responses=DUCKLAKE_RESPONSES)}

    def load_ducklake_credentials(self, request: Request, target: Target) -> Response:
        """Get credentials to attach the lake read-only in DuckDB: a Postgres role that sees readable tables, and keys for their files."""
        check_reads_anything(target.session)
        lake, session = self._context.get_lake(target.prefix), target.session
        if lake.is_untagged:
            # The schema would be open to other readers, who may not see what is shown by the grants of today.
            raise NotServed(f"DuckLake accounts do not reach snapshots without a tag. Make a tag, or ask on the lake {lake.repository!r}.")
        bearer: Bearer = request.scope["bearer"]

        def may_read(levels: tuple[str, ...], name: str) -> bool:
            return Rights.READ in session.rights_at(TABLE, levels, name)

        account, ends_at_s = parse_account(bearer.origin), bearer.ends_at_s
        asking = DucklakeRequest(
            describe_request(request.scope), account, bearer.session.grants, bearer.scope, may_read, bearer.roles, ends_at_s
        )
        roles = self._context.lakes[lake.repository].roles if lake.repository else lake.roles
        found = get_ducklake_credentials(lake.warehouse, roles, asking, time.time())
        note_answer(request.scope, ReadAnswer(keys="read"))
        return Response(json.dumps(encode_ducklake_credentials(found)).encode(), headers=NO_STORE, media_type="application/json")


def parse_account(origin: str) -> tuple[int, int] | None:
    """Return the principal's id and the number of its secret; None for principals of the settings."""
    if not origin:
        return None
    principal_id, _, secret_number = origin.rpartition("/")[2].partition(".")
    return int(principal_id), int(secret_number)


def encode_ducklake_credentials(found: DucklakeCredentials) -> DucklakeCredentialsResponse:
    """Return the response body."""
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
