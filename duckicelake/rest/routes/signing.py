"""Requests to the store, signed for clients that have no keys."""

import json
import time
from typing import Any

from fastapi import Response

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.catalog.keys.signing import May, sign_request
from duckicelake.catalog.tables import Ident
from duckicelake.rest.auth.at import AtParam
from duckicelake.rest.bodies import RemoteSignResult
from duckicelake.rest.door import Door
from duckicelake.rest.page.changes import SIGN_REQUEST
from duckicelake.rest.params import Levels, TableName
from duckicelake.rest.requests import Body, decode_sign, describe_body
from duckicelake.rest.served import Served

SIGNED: dict[int | str, dict[str, Any]] = {200: {"model": RemoteSignResult, "description": "The request with its signature."}}


class SignRoutes:
    """Answers the operation that signs."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def operations(self) -> dict[str, Served]:
        """Return what this module serves."""
        return {"signRequest": Served(self.sign_request, responses=SIGNED, body=describe_body(SIGN_REQUEST))}

    def sign_request(self, at: AtParam, levels: Levels, name: TableName, body: Body) -> Response:
        """Sign a request to the object store, for a table's files alone."""
        told = decode_sign(body)
        rights = at.session.rights_at(TABLE, levels, name)
        may = May(Rights.READ in rights, Rights.WRITE in rights)
        signed = sign_request(self._door.get_lake(at.prefix).warehouse, Ident(levels, name), told, may, time.time())
        answer: RemoteSignResult = {"uri": signed.uri, "headers": {name: [value] for name, value in signed.headers.items()}}
        kept = "private" if signed.is_kept else "no-cache"
        return Response(json.dumps(answer).encode(), headers={"Cache-Control": kept}, media_type="application/json")
