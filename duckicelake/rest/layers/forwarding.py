"""The layer that forwards requests to other catalogs, by the routes of the settings. Runs on the event loop.

A request whose prefix or warehouse is the name of a route never reaches the routes of the lakes. Permissions are decided here, before the
request is sent; the upstream's configuration may be requested before. `gateway` decides what is sent, and what clients get of the answer.
The grants of the route's lake may be read from Postgres, on a worker thread; changes go to the audit log of that lake.
"""

import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.access.grants import format_object
from duckicelake.access.sessions import Bearer, Session
from duckicelake.catalog.audit_log import DONE, UNKNOWN, AuditLine, log_line
from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.errors import (
    BadRequest,
    BadRouteAnswer,
    CatalogError,
    CommitStateUnknown,
    Forbidden,
    NotServed,
    RouteLoop,
    RouteStateUnknown,
)
from duckicelake.gateway.answers import (
    AnswerRules,
    describe_answer,
    filter_identifiers,
    filter_namespaces,
    is_iceberg_error,
    read_properties,
    rewrite_answer,
    rewrite_config,
)
from duckicelake.gateway.forwarding import (
    COLLECTIONS,
    CONFIG,
    DELEGATION,
    ROOT,
    Headers,
    build_answer_headers,
    find_header,
    split_path,
    without,
)
from duckicelake.gateway.route import Route
from duckicelake.gateway.upstream import BrokenOff, Caller, ForwardedRequest, Gateway, Upstream, UpstreamAnswer, read_whole
from duckicelake.rest.auth.audit import audit_error, describe_request, note_answer
from duckicelake.rest.auth.route_permissions import (
    LISTED_KINDS,
    ForwardedNames,
    build_route_session,
    build_unknown_warehouse,
    changes_something,
    check_forwarded,
    check_parent,
    check_read_only,
    find_forwarded_operation,
    is_shown_object,
    may_have_keys,
    read_names,
    sees_anything,
)
from duckicelake.rest.context import ServerContext
from duckicelake.rest.errors import build_catalog_error, build_error
from duckicelake.rest.layers.body_limit import BodyLimit, receive_body
from duckicelake.rest.operations import READS
from duckicelake.rest.params import ADVERTISED_SEPARATOR, decode_segment

OWN_PATHS = frozenset({"oauth", "aws"})
"""First segments below `/v1/` that are this server's own and no prefix."""
SEARCHED = frozenset(
    {
        *("loadTable", "createTable", "registerTable", "loadView", "createView", "replaceView", "registerView"),
        *("loadCredentials", "planTableScan", "fetchPlanningResult", "updateTable"),
    }
)
"""Operations whose answers may hold endpoints of the upstream, or storage keys; some catalogs answer a commit like a load."""
ECHOED = frozenset({"TRACE", "TRACK", "CONNECT"})
"""Methods whose answers may show the headers of a request, so the route's account."""
SLASH = re.compile(r"[/\\]")
MAX_ERROR_BYTES = 256 * 1024
ERROR_TYPES: Mapping[int, str] = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "NotAuthorizedException",
    404: "NotFoundException",
    406: "UnsupportedOperationException",
    409: "CommitFailedException",
    422: "UnprocessableEntityException",
    429: "SlowDownException",
    501: "UnsupportedOperationException",
    503: "SlowDownException",
}


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request and its route. `rest`: the path behind the prefix; behind `/v1/` if `is_whole`, that is passed on by `catch_all`."""

    upstream: Upstream
    rest: str
    is_whole: bool = False


class ForwardingLayer:
    """ASGI layer that answers the requests of routes, and passes all others on."""

    def __init__(self, app: ASGIApp, gateway: Gateway, context: ServerContext) -> None:
        self._app = app
        self._gateway = gateway
        self._context = context
        # With accounts, the authentication layer has received the body already.
        self._forward: ASGIApp = BodyLimit(self._answer, context.body_timeout_s) if context.accounts is None else self._answer
        self._log = logging.getLogger("duckicelake.routes")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request of a route, or pass the request on."""
        routed = self._find_route(scope) if scope["type"] == "http" else None
        if routed is None:
            await self._app(scope, receive, send)
            return
        scope["routed"] = routed
        await self._forward(scope, receive, send)

    def _find_route(self, scope: Scope) -> RoutedRequest | None:
        """Return the route of a request, None if it is for this server's own lakes."""
        path = (scope.get("raw_path") or b"").decode("latin-1")
        if path == CONFIG:
            return self._find_config_route(scope)
        parts = split_path(path)
        if parts is None or (parts.prefix in OWN_PATHS and parts.prefix not in self._gateway.upstreams):
            return None
        try:
            name = decode_segment(parts.prefix, "prefix")
        except BadRequest:
            return None
        if (upstream := self._gateway.upstreams.get(name)) is not None:
            return RoutedRequest(upstream, parts.rest)
        if self._gateway.catch_all is None or name.partition("@")[0] in self._context.lakes:
            return None
        return RoutedRequest(self._gateway.catch_all, path[len(ROOT) :], is_whole=True)

    def _find_config_route(self, scope: Scope) -> RoutedRequest | None:
        warehouse = read_query(scope, "warehouse")
        if (upstream := self._gateway.upstreams.get(warehouse)) is not None:
            return RoutedRequest(upstream, CONFIG[len(ROOT) :])
        if not warehouse or self._gateway.catch_all is None or warehouse.partition("@")[0] in self._context.lakes:
            return None
        return RoutedRequest(self._gateway.catch_all, CONFIG[len(ROOT) :], is_whole=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        routed: RoutedRequest = scope["routed"]
        began_s = time.perf_counter()
        name, status = "forwarded", 0

        async def send_counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._context.metrics.count_routed(routed.upstream.route.name, name, status, time.perf_counter() - began_s)
            await send(message)

        try:
            scope["session"] = session = await self._get_session(scope, routed.upstream)
            check_loop(routed.upstream, scope["headers"])
            caller = read_caller(scope)
            if scope["raw_path"] == CONFIG.encode():
                name = scope["operation"] = "getConfig"
                response = await self._answer_config(scope, routed, session, caller)
                await response(scope, receive, send_counted)
                return
            is_partial = not session.may_choose_locations
            separator = await self._get_separator(routed, caller) if is_partial else ADVERTISED_SEPARATOR
            names = read_path(scope["method"], get_rest(routed), separator, is_partial=is_partial)
            name = scope["operation"] = names.name
            call = ForwardedCall(routed, names, session, caller, separator, is_partial)
            await self._answer_operation(scope, receive, send_counted, call)
        except CatalogError as error:
            if error.denied is not None or isinstance(error, Forbidden):
                objects = (error.denied,) if error.denied is not None else describe_request(scope).objects
                error.denied = name_object(routed.upstream.route, *objects)
            audit_error(self._context, scope, error)
            await build_catalog_error(scope, error)(scope, receive, send_counted)

    async def _get_session(self, scope: Scope, upstream: Upstream) -> Session:
        """Return the caller's rights in the catalog behind a route. Raises: NoSuchWarehouse: it has none. ServiceUnavailable."""
        bearer: Bearer | None = scope.get("bearer")
        session = await build_route_session(self._context, bearer, upstream.route)
        if not sees_anything(session):
            raise await build_unknown_warehouse(self._context, bearer, upstream.route.name)
        return session

    async def _get_separator(self, routed: RoutedRequest, caller: Caller) -> str:
        """Return the upstream's separator of namespaces, percent-encoded."""
        if routed.is_whole:
            return ADVERTISED_SEPARATOR
        config = await routed.upstream.get_config(caller)
        found = {**read_properties(config.body, "defaults"), **read_properties(config.body, "overrides")}
        return found.get("namespace-separator", ADVERTISED_SEPARATOR)

    async def _answer_config(self, scope: Scope, routed: RoutedRequest, session: Session, caller: Caller) -> Response:
        upstream, route = routed.upstream, routed.upstream.route
        has_keys = route.vended_keys == "readers" or (session.may_choose_locations and not route.read_only)
        if not routed.is_whole:
            config = await upstream.get_config(caller)
            return json_response(rewrite_config(config, quote(route.name, safe=""), has_keys=has_keys))
        check_whole(session, route.name)
        config = await upstream.request_config(scope["query_string"].decode("latin-1"), caller)
        return json_response(rewrite_config(config, None, has_keys=has_keys))

    async def _answer_operation(self, scope: Scope, receive: Receive, send: Send, call: "ForwardedCall") -> None:
        body = b"" if scope["method"] in ("GET", "HEAD") else await receive_body(receive)
        if body is None:
            return
        request = self._permit(scope, call, body)
        upstream = call.routed.upstream
        # Requested before a change is sent: an error of the configuration would hide that the change has landed.
        prefix = "" if call.routed.is_whole else (await upstream.get_config(call.caller)).prefix
        try:
            answer = await upstream.send(request, prefix)
        except CommitStateUnknown:
            self._record(scope, call, AuditLine(describe_request(scope), UNKNOWN, reason="RouteStateUnknown"))
            raise
        if call.names.name in READS:
            note_answer(scope, ReadAnswer(None, None, upstream.route.lake_name, call.object_text))
        outcome = find_outcome(answer) if request.changes else None
        if outcome is not None:
            self._record(scope, call, AuditLine(describe_request(scope), outcome, reason=str(answer.status)))
        try:
            await self._pass_back(scope, receive, send, replace(call, upstream_prefix=prefix), answer)
        except BadRouteAnswer as error:
            if request.changes:
                raise RouteStateUnknown(f"{error.message} The change may be done or not; look before you repeat it.") from error
            raise

    def _permit(self, scope: Scope, call: "ForwardedCall", body: bytes) -> ForwardedRequest:
        """Return the request to send. Raises: a CatalogError: the caller lacks a right, or the request cannot be forwarded."""
        names, session, headers, route = call.names, call.session, scope["headers"], call.routed.upstream.route
        check_segments(call.routed.rest)
        if scope["method"] in ECHOED:
            raise NotServed(f"Routes forward no {scope['method']}.")
        if call.routed.is_whole:
            check_whole(session, route.name)
        elif call.is_partial:
            check_forwarded(session, names, body)
            check_parent(session, read_query(scope, "parent") if names.name == "listNamespaces" else "", call.separator)
        if route.read_only:
            check_read_only(route.name, scope["method"], names, body)
        if not call.has_keys:
            if names.name == "loadCredentials":
                raise Forbidden(f"The route {route.name!r} gives storage keys to those who may read and write a table.")
            headers = without_vended_keys(headers)
        if call.reads_answer:
            headers = with_searchable_coding(headers)
        query = scope["query_string"].decode("latin-1")
        changes = changes_something(scope["method"], names)
        return ForwardedRequest(scope["method"], call.routed.rest, query, headers, body, call.caller, changes)

    async def _pass_back(self, scope: Scope, receive: Receive, send: Send, call: "ForwardedCall", answer: UpstreamAnswer) -> None:
        upstream, status = call.routed.upstream, answer.status
        keeps_challenge = upstream.route.auth == "passthrough"
        headers = build_answer_headers(answer.headers, keeps_challenge=keeps_challenge)
        is_bodiless = scope["method"] == "HEAD" or status in (204, 304)
        if 300 <= status < 400 and status != 304:
            answer.close()
            raise BadRouteAnswer(f"The catalog behind the route {upstream.route.name!r} redirects ({status}); set its final uri.")
        if status >= 400 and not is_bodiless:
            await self._pass_error(scope, receive, send, call, answer)
        elif is_bodiless or not (is_html(headers) or call.reads_answer):
            await self._stream(send, answer, headers)
        elif is_html(headers):
            answer.close()
            raise BadRouteAnswer(f"The catalog behind the route {upstream.route.name!r} answers with a web page.")
        else:
            most_bytes = upstream.route.limits.max_parsed_bytes
            raw = await read_whole(answer, upstream.route, most_bytes, changes=changes_something(scope["method"], call.names))
            body = answer.unpack(raw, most_bytes)
            changed = call.rewrite(body)
            if changed is body:
                await send_whole(send, status, headers, raw)
            else:
                await send_whole(send, status, without(headers, b"content-encoding"), changed)

    async def _pass_error(self, scope: Scope, receive: Receive, send: Send, call: "ForwardedCall", answer: UpstreamAnswer) -> None:
        """Pass an error on; one without Iceberg's body gets one, with the same status."""
        headers = build_answer_headers(answer.headers, keeps_challenge=call.routed.upstream.route.auth == "passthrough")
        if not (answer.is_readable or is_html(headers)):
            await self._stream(send, answer, headers)
            return
        try:
            raw = await answer.read(MAX_ERROR_BYTES)
            body = answer.unpack(raw, MAX_ERROR_BYTES)
        except (BrokenOff, BadRouteAnswer):
            raw, body = b"", b""
        if is_iceberg_error(body):
            await send_whole(send, answer.status, headers, raw)
            return
        changes = changes_something(scope["method"], call.names)
        kind = ERROR_TYPES.get(answer.status, "InternalServerError" if answer.status >= 500 else "BadRequestException")
        if changes and answer.status >= 500 and answer.status != 501:
            kind = "CommitStateUnknownException"
        shown = describe_answer(body)
        message = (
            f"The catalog behind the route {call.routed.upstream.route.name!r} answers {answer.status}{': ' + shown if shown else '.'}"
        )
        kept = {name.decode(): value.decode("latin-1") for name, value in headers if name in (b"retry-after", b"www-authenticate")}
        await build_error(scope, answer.status, kind, message, kept)(scope, receive, send)

    async def _stream(self, send: Send, answer: UpstreamAnswer, headers: Headers) -> None:
        """Send an answer as it comes. If the upstream breaks off, the client's connection is closed, so that it does not look whole."""
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        is_more = True
        try:
            async for part, is_more in answer.stream():
                await send({"type": "http.response.body", "body": part, "more_body": is_more})
        except BrokenOff as error:
            self._log.warning("the upstream broke off an answer: %s", type(error.__cause__).__name__)
            return
        if is_more:
            await send({"type": "http.response.body", "body": b""})

    def _record(self, scope: Scope, call: "ForwardedCall", line: AuditLine) -> None:
        """Write a change, or one with an unknown outcome, to the log and to the audit log of the route's lake."""
        line = replace(line, audit_context=replace(line.audit_context, operation=call.names.name, objects=(call.object_text,)))
        log_line(line)
        lake = self._context.lakes.get(call.routed.upstream.route.lake_name)
        if lake is not None and lake.audit_log is not None:
            lake.audit_log.note(line)


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A request of a route with its names and the caller's rights. `is_partial`: the caller may not do everything.

    `upstream_prefix`: the prefix that the request was sent below.
    """

    routed: RoutedRequest
    names: ForwardedNames
    session: Session
    caller: Caller
    separator: str
    is_partial: bool
    upstream_prefix: str = ""

    @property
    def has_keys(self) -> bool:
        """True if the caller may get storage keys from the upstream."""
        route = self.routed.upstream.route
        if route.vended_keys == "readers":
            return True
        return not route.read_only and (not self.is_partial or may_have_keys(self.session, self.names))

    @property
    def object_text(self) -> str:
        """The object of the path, as the audit log names it."""
        names = self.names
        path = (*names.levels, *([] if names.object_name is None else [names.object_name]))
        return name_object(self.routed.upstream.route, *([format_object(path)] if path else []))

    @property
    def reads_answer(self) -> bool:
        """True if the answer has to be held in memory, to be searched or filtered."""
        return self.names.name in SEARCHED or (self.is_partial and self.names.name in ("listNamespaces", *LISTED_KINDS))

    def rewrite(self, body: bytes) -> bytes:
        """Return what the caller gets of an answer. Raises: BadRouteAnswer."""
        session, name = self.session, self.names.name
        if self.is_partial and name == "listNamespaces":
            return filter_namespaces(body, session.shows)
        if self.is_partial and name in LISTED_KINDS:
            return filter_identifiers(body, lambda levels, each: is_shown_object(session, LISTED_KINDS[name], levels, each))
        route = self.routed.upstream.route
        prefix = None if self.routed.is_whole else quote(route.name, safe="")
        return rewrite_answer(body, AnswerRules(route.uri, self.upstream_prefix, prefix, self.has_keys, route.auth == "passthrough"))


def find_outcome(answer: UpstreamAnswer) -> str | None:
    """Return what became of a change by its answer, for the audit log; None if it was refused."""
    if answer.status < 300 and not is_html(answer.headers):
        return DONE
    return None if 400 <= answer.status < 500 or answer.status == 501 else UNKNOWN


def name_object(route: Route, *objects: str) -> str:
    """Return an object of another catalog as the audit log names it: `route:NAME/a.b.t`."""
    return "/".join((f"route:{route.name}", *objects))


def read_caller(scope: Scope) -> Caller:
    """Return the sender of a request."""
    headers: Headers = scope["headers"]
    hops = [(name, value) for name, value in headers if name == b"via"]
    return Caller(find_header(headers, b"authorization"), scope["request_id"], hops)


def check_loop(upstream: Upstream, headers: Headers) -> None:
    """Raise RouteLoop if the request has passed this route before."""
    if upstream.is_loop(headers):
        raise RouteLoop(f"The request came back to the route {upstream.route.name!r}; correct the uri of one of the servers.")


def read_path(method: str, rest: str, separator: str, *, is_partial: bool) -> ForwardedNames:
    """Return the names in a path. A principal with every right may send paths that only the upstream can read. Raises: BadRequest."""
    try:
        return read_names(method, rest, separator)
    except BadRequest:
        if is_partial:
            raise
        return ForwardedNames(find_forwarded_operation(method, rest)[0])


def get_rest(routed: RoutedRequest) -> str:
    """Return the path behind the prefix; the upstream's own prefix may have several segments, or none."""
    if not routed.is_whole:
        return routed.rest
    parts = routed.rest.split("/")
    begin = next((index for index, part in enumerate(parts) if part in COLLECTIONS), 0)
    return "/".join(parts[begin:])


def check_whole(session: Session, route: str) -> None:
    """Raise Forbidden unless the session has every right on a route."""
    if not session.may_choose_locations:
        raise Forbidden(
            f"The principal {session.client_id!r} may not use the route {route!r} by other prefixes. It needs `all` on the route."
        )


def check_segments(path: str) -> None:
    """Raise BadRequest if a path has a segment `.` or `..`, by which servers leave the prefix or the namespace."""
    if "." in path or "%2" in path:
        # Servers in front of a catalog may decode slashes first. Java servers drop what follows a semicolon.
        if any(piece.partition(";")[0] in (".", "..") for piece in SLASH.split(unquote(path))):
            raise BadRequest("The path has a segment `.` or `..`, which no route forwards.")


def read_query(scope: Scope, name: str) -> str:
    """Return the first value of a query parameter, empty if it is missing."""
    query: bytes = scope["query_string"]
    if name.encode() not in query:
        return ""
    return parse_qs(query.decode("latin-1"), keep_blank_values=True).get(name, [""])[0]


def without_vended_keys(headers: Headers) -> Headers:
    """Return headers that ask for no storage keys; the client may still ask for signatures, which are permitted one by one."""
    asked = find_header(headers, DELEGATION)
    if asked is None:
        return headers
    others = without(headers, DELEGATION)
    return [*others, (DELEGATION, b"remote-signing")] if b"remote-signing" in asked else others


def with_searchable_coding(headers: Headers) -> Headers:
    """Return headers that accept no other content coding than gzip, which this server can read."""
    accepted = b",".join(value for name, value in headers if name == b"accept-encoding")
    return [*without(headers, b"accept-encoding"), (b"accept-encoding", b"gzip" if b"gzip" in accepted else b"identity")]


def is_html(headers: Headers) -> bool:
    """True if an answer is a web page, as proxies and login servers give them."""
    return (find_header(headers, b"content-type") or b"").lower().startswith(b"text/html")


def json_response(node: Mapping[str, Any]) -> Response:
    """Return a response of JSON."""
    return Response(json.dumps(node, separators=(",", ":")), 200, media_type="application/json")


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send an answer whose body is known."""
    sized = [*without(headers, b"content-length"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})
