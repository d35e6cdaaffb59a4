"""The layer that authenticates requests. Only the few public paths pass without a token.

It runs on the event loop. It receives the body, opens the branch that the path names, and gets the policy of the lake; branch and policy
are read from Postgres on worker threads. To open a snapshot without a tag writes to Postgres (`rest.branch_lakes`), and an issuer's keys
may be fetched (`auth.oidc`).
"""

import math
import time
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.access.policy import LakePolicy
from duckicelake.access.sessions import Bearer, Session
from duckicelake.access.tokens import UNKNOWN_CLIENT, Accounts
from duckicelake.catalog.warehouse import is_snapshot_id
from duckicelake.errors import CatalogError, Forbidden, NotAuthorized, TooManyRequests
from duckicelake.rest.auth.audit import audit_error, find_operation, parse_prefix
from duckicelake.rest.auth.permissions import PUBLIC_PATHS
from duckicelake.rest.context import ServerContext, may_read_untagged
from duckicelake.rest.errors import UNROUTED, build_catalog_error
from duckicelake.rest.layers.addresses import BranchNameLayer
from duckicelake.rest.layers.body_limit import BodyLimit

BEARER = b"bearer "


class AuthenticationLayer:
    """ASGI layer that verifies the token and puts the principal's session for the requested lake into the scope."""

    def __init__(self, app: ASGIApp, accounts: Accounts, context: ServerContext) -> None:
        self._app = app
        # Rights are decided on the branch that a request means, so names of branches are read before.
        self._bodies = BodyLimit(BranchNameLayer(self._authorize, context), context.body_timeout_s)
        self._accounts = accounts
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its session, or refuse it. A request without a valid token is refused before its body is received.

        Law: permissions are decided when the whole body has arrived, so a client that delays its body cannot outlive a revoked grant.
        """
        if scope["type"] != "http" or scope.get("raw_path") in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            scope["bearer"] = bearer = await self._authenticate(scope)
            self._check_rate(bearer)
        except CatalogError as error:
            await self._refuse(error, scope, receive, send)
            return
        await self._bodies(scope, receive, send)

    async def _authorize(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["session"] = await self._build_session(scope)
        except CatalogError as error:
            await self._refuse(error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _build_session(self, scope: Scope) -> Session:
        bearer: Bearer = scope["bearer"]
        if time.time() >= bearer.session.expires_at_s:
            scope["bearer"] = bearer = await self._authenticate(scope)
        prefix = parse_prefix(scope["raw_path"])
        may_read_untagged = "@" not in prefix or await self._may_read_untagged(bearer, prefix)
        lake = await self._context.find_member(prefix, opens_snapshots=may_read_untagged)
        if lake is not None and lake.is_untagged and not may_read_untagged:
            raise Forbidden(f"Snapshots without a tag are read with `manage` on the warehouse: have a tag made for {prefix[:64]!r}.")
        # `find_member` looked for the branch in Postgres, so `BranchLayer` need not look again.
        scope["has_branch"] = lake is not None and bool(lake.repository)
        policy = None if lake is None or lake.policies is None else await lake.policies.get()
        if bearer.origin:
            issuing_policy = policy if bearer.lake_name == prefix else await self._find_policy(bearer.lake_name)
            if issuing_policy is None or not bearer.is_known(issuing_policy):
                raise NotAuthorized(UNKNOWN_CLIENT)
        if policy is None:
            # The path names no lake, so no lake's grants apply.
            return bearer.session
        # This request has already checked the lake for changes, so `LoadFastPath` need not check again.
        scope["looked"] = True
        assert lake is not None
        session = bearer.within(prefix, policy, lake.repository)
        return replace(session, read_only=lake.read_only, decided={}) if lake.read_only else session

    async def _may_read_untagged(self, bearer: Bearer, prefix: str) -> bool:
        return not is_snapshot_id(prefix.partition("@")[2]) or await may_read_untagged(self._context, bearer, prefix)

    async def _find_policy(self, lake_name: str) -> LakePolicy | None:
        """Return the current policy of a lake, None if no lake of that name is served."""
        lake = self._context.lakes.get(lake_name)
        return None if lake is None or lake.policies is None else await lake.policies.get()

    async def _authenticate(self, scope: Scope) -> Bearer:
        authorizations = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(authorizations) != 1 or authorizations[0][: len(BEARER)].lower() != BEARER:
            raise NotAuthorized("The request has no token, or more than one; ask POST /v1/oauth/tokens for one.")
        token, now_s, issuers = authorizations[0][len(BEARER) :].strip(), time.time(), self._context.issuers
        if issuers is None:
            return self._accounts.get_bearer(token, now_s)
        known = self._accounts.tokens.find(token, now_s)
        return known or await issuers.find_bearer(token, now_s) or self._accounts.get_bearer(token, now_s)

    def _check_rate(self, bearer: Bearer) -> None:
        rate_limit, name = self._context.rate_limit, bearer.session.client_id
        wait_s = 0.0 if rate_limit is None else rate_limit.take((bearer.origin, name), time.monotonic())
        if wait_s:
            raise TooManyRequests(f"The principal {name!r} asks too often; nothing was done. Come again later.", math.ceil(wait_s))

    async def _refuse(self, error: CatalogError, scope: Scope, receive: Receive, send: Send) -> None:
        audit_error(self._context, scope, error)
        answer = build_catalog_error(scope, error)
        if not isinstance(error, NotAuthorized):
            operation = find_operation(scope)
            scope["operation"] = UNROUTED if operation is None else operation.name
        await answer(scope, receive, send)
