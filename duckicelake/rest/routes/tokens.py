"""Handlers for tokens: issued for a client id and secret, or in exchange for another token; and the public keys.

They run on the event loop. Verifying a secret with argon2 is slow on purpose, so `SecretVerification` does it in its own threads.
"""

import asyncio
import base64
import binascii
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request, Response
from starlette.types import Scope

from duckicelake.access.tokens import ACCESS_TOKEN, NO_POLICIES, Accounts, IssuedToken, OAuthRefusal, Policies, TokenRequest
from duckicelake.catalog.audit_log import DENIED, UNPROVEN, AuditLine
from duckicelake.errors import NotServed, ServiceUnavailable, TooManyRequests
from duckicelake.rest.auth.audit import audit_denial, describe_request
from duckicelake.rest.context import ServerContext, get_policies
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.response_bodies import JsonWebKeys, OAuthError, OAuthToken

KEYS_MAX_AGE_S = 300
MAX_FORM_BYTES = 64 * 1024
NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}
FORM_FIELDS = ("grant_type", "scope", "client_id", "client_secret", "subject_token", "subject_token_type", "requested_token_type")
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-www-form-urlencoded": {
                "schema": {
                    "type": "object",
                    "required": ["grant_type"],
                    "properties": {name: {"type": "string"} for name in FORM_FIELDS},
                }
            }
        },
    }
}
TOKEN_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": OAuthToken, "description": "A token."},
    400: {"model": OAuthError, "description": "The request is refused, in RFC 6749's words."},
    401: {"model": OAuthError, "description": "The client did not prove who it is."},
}


class TokenRoutes:
    """Handlers of the token operations."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._verification = SecretVerification()

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {
            "getToken": OperationHandler(self.get_token, responses=TOKEN_RESPONSES, body=FORM),
            "getKeys": OperationHandler(self.get_keys),
        }

    async def get_keys(self, response: Response) -> JsonWebKeys:
        """Get the public keys with which clients can verify tokens. The list is empty if tokens are signed with a shared secret."""
        accounts = self._context.accounts
        if accounts is None:
            raise NotServed("This server runs without authentication (require_auth is false), so it signs no tokens.")
        response.headers["Cache-Control"] = f"public, max-age={KEYS_MAX_AGE_S}"
        return {"keys": [dict(key) for key in accounts.list_public_keys()]}

    async def get_token(self, request: Request) -> Response:
        """Get a token, by a client's id and secret or in exchange for another token."""
        accounts = self._context.accounts
        if accounts is None:
            raise NotServed("This server runs without authentication (require_auth is false), so it issues no tokens.")
        try:
            asked = await read_request(request)
            now_s = time.time()
            policies = await self._get_policies(accounts, asked)
            issue = partial(accounts.issue, asked, now_s, policies)
            issued = issue() if accounts.is_quick(asked, now_s, policies) else await self._verification.run(asked.peer, issue)
        except OAuthRefusal as refusal:
            self._audit(request.scope, refusal)
            return build_oauth_error(refusal)
        return Response(encode_token(issued), headers=NO_STORE, media_type="application/json")

    async def _get_policies(self, accounts: Accounts, asked: TokenRequest) -> Policies:
        """Return the lakes' policies. If Postgres is unavailable, clients of the settings still get tokens, by the settings alone."""
        try:
            return await get_policies(self._context)
        except ServiceUnavailable:
            if not accounts.is_in_settings(asked):
                raise
            return NO_POLICIES

    def _audit(self, scope: Scope, refusal: OAuthRefusal) -> None:
        """Write an audit entry with the error code only: other text of the client may hold a secret in the wrong field."""
        audit_context = replace(describe_request(scope), principal=refusal.client_id)
        outcome = DENIED if refusal.code == "invalid_scope" else UNPROVEN
        audit_denial(self._context, scope, AuditLine(audit_context, outcome, reason=refusal.code))


async def read_request(request: Request) -> TokenRequest:
    """Return the parsed token request. Raises: OAuthRefusal: it is malformed."""
    body = await request.body()
    if len(body) > MAX_FORM_BYTES:
        raise OAuthRefusal("invalid_request", "The form is too long.")
    peer = request.client.host if request.client else ""
    return TokenRequest(parse_form(body), parse_basic(request.headers.getlist("authorization")), peer)


def parse_form(body: bytes) -> Mapping[str, str]:
    """Return a form's parameters without empty ones. Raises: OAuthRefusal: it is no form, or a parameter is repeated."""
    try:
        pairs = parse_qsl(body.decode(), strict_parsing=bool(body), errors="strict", max_num_fields=50)
    except ValueError as error:
        raise OAuthRefusal("invalid_request", "The body is no form (application/x-www-form-urlencoded).") from error
    if len({name for name, _ in pairs}) < len(pairs):
        raise OAuthRefusal("invalid_request", "A parameter comes twice.")
    return dict(pairs)


def parse_basic(headers: list[str]) -> tuple[str, str] | None:
    """Return the id and secret of Basic authentication, or None. Raises: OAuthRefusal: the header is malformed."""
    answer = [header[6:].strip() for header in headers if header[:6].lower() == "basic "]
    if not answer:
        return None
    try:
        [encoded] = answer
        client_id, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (ValueError, binascii.Error) as error:
        raise OAuthRefusal("invalid_request", "The Basic authentication is malformed.") from error
    if not colon:
        raise OAuthRefusal("invalid_request", "The Basic authentication has no colon between id and secret.")
    return client_id, secret


def encode_token(issued: IssuedToken) -> bytes:
    """Return the body of a token response."""
    answer: OAuthToken = {
        "access_token": issued.token,
        "token_type": "bearer",
        "expires_in": issued.lifetime_s,
        "issued_token_type": ACCESS_TOKEN,
        "scope": issued.scope,
    }
    return json.dumps(answer).encode()


def build_oauth_error(refusal: OAuthRefusal) -> Response:
    """Return the error response. A 401 names the authentication scheme."""
    answer: OAuthError = {"error": refusal.code, "error_description": refusal.description}
    headers, status = dict(NO_STORE), 400
    if refusal.retry_after_s is not None:
        headers["Retry-After"], status = str(refusal.retry_after_s), 429
    elif refusal.code == "invalid_client":
        headers["WWW-Authenticate"], status = 'Basic realm="duckicelake"', 401
    return Response(json.dumps(answer).encode(), status, headers, "application/json")


Answer = TypeVar("Answer")

MAX_CONCURRENT = 2
MAX_QUEUED, MAX_QUEUED_PER_ADDRESS = 256, 64
"""Limits of verifications that wait, in total and for one client address."""


class SecretVerification:
    """Verifies secrets in its own threads, a few at a time, so that wrong secrets do not delay other requests.

    Law: clients that send wrong secrets delay only clients whose secret was not verified recently. Used on the event loop only.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, "proving")
        self._waiting: Counter[str] = Counter()

    async def run(self, peer: str, verify: Callable[[], Answer]) -> Answer:
        """Run `verify` in a thread and return its result. Raises: TooManyRequests: too many wait already; and what `verify` raises."""
        if self._waiting.total() >= MAX_QUEUED or self._waiting[peer] >= MAX_QUEUED_PER_ADDRESS:
            raise TooManyRequests("Too many secrets are being verified; nothing was done. Try again later.")
        self._waiting[peer] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, verify)
        finally:
            self._waiting -= Counter({peer: 1})
