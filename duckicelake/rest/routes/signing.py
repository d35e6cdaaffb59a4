"""Requests to the store, signed for clients that have no keys."""

import json
import time
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import Session
from duckicelake.catalog.keys.signing import May, Told, find_signed_table, sign_request
from duckicelake.catalog.tables import Ident
from duckicelake.errors import Forbidden
from duckicelake.rest.auth.at import AtParam
from duckicelake.rest.bodies import RemoteSignResult
from duckicelake.rest.door import Door
from duckicelake.rest.page.changes import SIGN_REQUEST
from duckicelake.rest.params import Levels, TableName
from duckicelake.rest.requests import Body, decode_sign, describe_body
from duckicelake.rest.served import Served

SIGNED: dict[int | str, dict[str, Any]] = {200: {"model": RemoteSignResult, "description": "The request with its signature."}}
NOBODYS = (
    "This is in the place of no table that the principal may use, or of several. Ask at the table's own path (`…/tables/{table}/sign`)."
)


class SignRoutes:
    """Answers the operations that sign."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def operations(self) -> dict[str, Served]:
        """Return what this module serves."""
        told = describe_body(SIGN_REQUEST)
        return {
            "signRequest": Served(self.sign_request, responses=SIGNED, body=told),
            "signAnywhere": Served(self.sign_anywhere, responses=SIGNED, body=told),
        }

    def sign_request(self, at: AtParam, levels: Levels, name: TableName, body: Body) -> Response:
        """Sign a request to the object store, for a table's files alone."""
        return self._sign(at.prefix, at.session, Ident(levels, name), decode_sign(body))

    async def sign_anywhere(self, request: Request, body: Body) -> Response:
        """Sign a request to the object store for clients that were not told where, when its URI lies in the place of one table."""
        told, bearer = decode_sign(body), request.scope["bearer"]
        for lake in list(self._door.lakes.values()):
            ident = await run_in_threadpool(find_signed_table, lake.warehouse, told, time.time())
            if ident is None or lake.rules is None:
                continue
            # the path names no warehouse, so the guard has not asked what is granted in this one
            session: Session = bearer.within(lake.prefix, await lake.rules.find())
            if session.rights_at(TABLE, ident.namespace, ident.name) is not Rights.NONE:
                return await run_in_threadpool(self._sign, lake.prefix, session, ident, told)
        raise Forbidden(NOBODYS)

    def _sign(self, prefix: str, session: Session, ident: Ident, told: Told) -> Response:
        rights = session.rights_at(TABLE, ident.namespace, ident.name)
        may = May(Rights.READ in rights, Rights.WRITE in rights)
        signed = sign_request(self._door.get_lake(prefix).warehouse, ident, told, may, time.time())
        answer: RemoteSignResult = {"uri": signed.uri, "headers": {name: [value] for name, value in signed.headers.items()}}
        kept = "private" if signed.is_kept else "no-cache"
        return Response(json.dumps(answer).encode(), headers={"Cache-Control": kept}, media_type="application/json")
