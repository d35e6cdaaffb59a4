"""The guard: no request gets further without a token, but for the few paths that are everybody's."""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.access.issuing import Accounts
from duckicelake.access.sessions import Session
from duckicelake.errors import NotAuthorized
from duckicelake.rest.auth.permissions import PUBLIC_PATHS
from duckicelake.rest.auth.record import note_error
from duckicelake.rest.door import Door
from duckicelake.rest.errors import build_catalog_error

CHALLENGE = 'Bearer realm="duckicelake"'
BEARER = b"bearer "


class Guard:
    """Stands before the hot lane and says who asks."""

    def __init__(self, app: ASGIApp, accounts: Accounts, door: Door) -> None:
        self._app = app
        self._accounts = accounts
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its session, or refuse it."""
        if scope["type"] == "http" and scope.get("raw_path") not in PUBLIC_PATHS:
            try:
                scope["session"] = self._find_session(scope)
            except NotAuthorized as error:
                note_error(self._door, scope, error)
                answer = build_catalog_error(scope, error)
                answer.headers["WWW-Authenticate"] = CHALLENGE
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _find_session(self, scope: Scope) -> Session:
        told = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(told) != 1 or told[0][: len(BEARER)].lower() != BEARER:
            raise NotAuthorized("The request has no token, or more than one; ask POST /v1/oauth/tokens for one.")
        return self._accounts.find_session(told[0][len(BEARER) :].strip(), time.time())
