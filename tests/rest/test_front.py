"""Every request gets an id, a log line, its numbers, and an answer whatever happens."""

import asyncio
import gzip
import json
import logging
import random
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from duckicelake.lake.watch import Watch
from duckicelake.rest.application import build_web
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import OpenLake, ServerContext
from duckicelake.rest.layers.body_limit import (
    LARGE_BYTES,
    MAX_CONCURRENT_LARGE,
    MAX_UNANSWERED_LARGE,
    BodyLimit,
    get_content_length,
    unpack,
)
from duckicelake.rest.metrics import Metrics
from tests.rest.serving import Server, open_nothing, serve_app
from tests.support.waiting import wait_for


def test_an_id_that_the_client_sent_comes_back(standing: Server) -> None:
    """So that two logs can be read together."""
    assert standing.get("/healthz", {"X-Request-ID": "spark-17:a.b_c"}).headers["x-request-id"] == "spark-17:a.b_c"


@pytest.mark.parametrize("sent", ["", "two words", "x" * 129, 'a"b', "é"])
def test_an_id_that_no_log_can_hold_is_replaced(standing: Server, sent: str) -> None:
    """Only short ids of plain characters go into the log."""
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", standing.get("/healthz", {"X-Request-ID": sent}).headers["x-request-id"])


def test_every_request_has_an_id_of_its_own(standing: Server) -> None:
    """Refusals too."""
    ids = [standing.get(path).headers["x-request-id"] for path in ("/healthz", "/nope", "namespaces/nope", "namespaces/%FF")]
    assert len(set(ids)) == 4


def test_every_request_has_a_log_line(standing: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Method, path as sent, status, time, operation, id; never the query, which may carry a secret."""
    caplog.set_level(logging.INFO, "duckicelake.access")
    answer = standing.get("/v1/lake/namespaces/a%2Fb?pageToken=secret")
    lines = [record.getMessage() for record in caplog.records if record.name == "duckicelake.access"]
    assert len(lines) == 1
    pattern = rf"GET /v1/lake/namespaces/a%2Fb 404 \d+\.\d ms loadNamespaceMetadata {answer.headers['x-request-id']}"
    assert re.fullmatch(pattern, lines[0])


def test_a_log_line_has_fields(standing: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Machines need not take the message apart; who asks is not known where nobody has to say it."""
    caplog.set_level(logging.INFO, "duckicelake.access")
    request_id = standing.get("namespaces/nope?pageToken=secret").headers["x-request-id"]
    (fields,) = (vars(record)["fields"] for record in caplog.records if record.name == "duckicelake.access")
    assert fields.pop("ms") > 0
    assert fields == {
        "method": "GET",
        "path": "/v1/lake/namespaces/nope",
        "status": 404,
        "operation": "loadNamespaceMetadata",
        "request_id": request_id,
        "principal": None,
        "client": "127.0.0.1",
    }


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_are_logged_at_level_debug(standing: Server, caplog: pytest.LogCaptureFixture, path: str) -> None:
    """They come every few seconds."""
    caplog.set_level(logging.DEBUG, "duckicelake.access")
    assert standing.get(path).status == 200
    assert [record.levelname for record in caplog.records if record.name == "duckicelake.access"] == ["DEBUG"]


def test_a_probe_that_finds_an_error_is_logged_as_others_are(caplog: pytest.LogCaptureFixture) -> None:
    """A server without lakes is not ready."""
    caplog.set_level(logging.DEBUG, "duckicelake.access")
    with serve_app(build_web(ServerContext(ResponseCache(0), Metrics()), open_nothing)) as server:
        assert server.get("/readyz").status == 503
    assert [record.levelname for record in caplog.records if record.name == "duckicelake.access"] == ["INFO"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_what_operators_ask_is_answered_to_head_too(standing: Server, path: str) -> None:
    """Load balancers ask so: the same status and length, and no body."""
    head, got = standing.ask("HEAD", path), standing.get(path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_the_root_says_what_is_served_here(standing: Server) -> None:
    """Each address that it names is there."""
    shown = standing.get("/").json
    paths = [value for value in shown.values() if value.startswith("/")]
    assert shown["name"] == "DuckIceLake"
    assert len(paths) == 5
    assert [standing.get(path).status for path in paths] == [200] * 5
    assert standing.get("/openapi.json").json["paths"].keys() >= {"/healthz"}


def test_a_method_that_fits_no_operation_is_counted_as_none(server: Server) -> None:
    """A 405 is nobody's: not of the operation that has the same path under another method."""
    answer = server.ask("PATCH", "namespaces/main/tables/t")
    assert answer.error == (405, "UnsupportedOperationException")
    assert server.count("duckicelake_requests_total", operation="unrouted", status="405") == 1


def test_requests_are_counted_by_operation_and_status(server: Server) -> None:
    """What has no route is counted as such, so that paths never become labels."""
    for path in ("namespaces", "namespaces", "namespaces/nope", "/a", "/b"):
        server.get(path)
    server.get("namespaces/main/tables/t/credentials")
    assert server.count("duckicelake_requests_total", operation="listNamespaces", status="200") == 2
    assert server.count("duckicelake_requests_total", operation="loadNamespaceMetadata", status="404") == 1
    assert server.count("duckicelake_requests_total", operation="loadCredentials", status="501") == 1
    assert server.count("duckicelake_requests_total", operation="unrouted", status="404") == 2
    assert server.count("duckicelake_request_seconds_count", operation="listNamespaces") == 2


def test_each_application_counts_for_itself(standing: Server) -> None:
    """Two applications in one process share no number."""
    standing.get("namespaces")
    with serve_app(build_web(ServerContext(ResponseCache(0), Metrics()), open_nothing)) as other:
        assert other.count("duckicelake_requests_total", operation="listNamespaces") == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_nobody_foresaw_is_a_500_without_a_trace(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets the request's id; the log has the trace under it."""
    context = ServerContext(ResponseCache(0), Metrics())
    context.lakes["lake"] = OpenLake("lake", cast(Any, None), Watch("", ""))
    with serve_app(build_web(context, open_nothing)) as server:
        answer = server.ask(method, "namespaces/main")
        assert server.count("duckicelake_requests_total", status="500") == 1
    assert answer.status == 500
    request_id = answer.headers["x-request-id"]
    if method == "GET":
        assert answer.error == (500, "InternalServerError")
        assert request_id in answer.json["error"]["message"]
        assert "NoneType" not in answer.body.decode()
    failed = [record for record in caplog.records if record.name == "duckicelake.errors"]
    assert [request_id in record.getMessage() and record.exc_info is not None for record in failed] == [True]


def test_unknown_paths_and_methods_are_refused_in_icebergs_shape(standing: Server) -> None:
    """404 and 405, the latter with every method that the path takes."""
    for path in ("/v1", "/v2/config", "/docs", "/v1/config/"):
        assert standing.get(path).error == (404, "NotFoundException")
    answer = standing.ask("PATCH", "namespaces/main/tables/t")
    assert answer.error == (405, "UnsupportedOperationException")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, POST"


def test_what_is_not_served_is_refused_by_name(standing: Server) -> None:
    """501 with the operation's name, and the setting that it needs."""
    answer = standing.get("namespaces/main/tables/t/credentials")
    assert answer.error == (501, "UnsupportedOperationException")
    assert "loadCredentials" in answer.json["error"]["message"]
    assert "require_auth" in answer.json["error"]["message"]


def test_a_body_that_is_too_large_is_refused(standing: Server) -> None:
    """413 instead of memory."""
    answer = standing.ask("POST", "namespaces/main/tables/t/metrics", {"Content-Type": "application/json"}, b" " * (33 * 1024 * 1024))
    assert answer.error == (413, "BadRequestException")


PACKED_HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


def test_a_packed_body_is_what_it_holds(standing: Server) -> None:
    """The `gzip` that HTTP clients may send, with or without a length beforehand; it is counted unpacked."""
    large = json.dumps({"namespace": ["packed_large"], "properties": {"k": "v" * (2 * LARGE_BYTES)}}).encode()
    for body in (b'{"namespace": ["packed"]}', large):
        made = standing.ask("POST", "namespaces", PACKED_HEADERS, gzip.compress(body))
        assert made.status == 200, made.body
    assert standing.get("namespaces/packed_large").json["properties"]["k"] == "v" * (2 * LARGE_BYTES)
    assert standing.ask("POST", "namespaces", PACKED_HEADERS | {"Content-Encoding": "identity"}, b'{"namespace": ["plain"]}').status == 200


@pytest.mark.parametrize(
    ("coding", "body", "status", "reason"),
    [
        pytest.param("gzip", b'{"namespace": ["n"]}', 400, "is not gzip", id="not packed"),
        pytest.param("gzip", gzip.compress(b'{"namespace": ["n"]}')[:-9], 400, "whole", id="cut"),
        pytest.param("gzip", gzip.compress(b"{}") * 2, 400, "one member", id="two members"),
        pytest.param("x-gzip", gzip.compress(bytes(64 * 1024 * 1024)), 413, "larger than", id="bomb"),
        pytest.param("gzip", gzip.compress(b"[" * 2_000_000), 413, "arrays", id="nested"),
        pytest.param("gzip", gzip.compress(random.Random(1).randbytes(2_000_000))[:-1000], 400, "whole", id="large and cut"),
        pytest.param("br", b"{}", 415, "send gzip", id="another coding"),
        pytest.param("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415, "send gzip", id="packed twice"),
    ],
)
def test_a_body_that_is_packed_otherwise_is_refused(standing: Server, coding: str, body: bytes, status: int, reason: str) -> None:
    """By a true reason, in Iceberg's shape, and never unpacked beyond what may be sent at all."""
    answer = standing.ask("POST", "namespaces", PACKED_HEADERS | {"Content-Encoding": coding}, body)
    assert answer.error == (status, "BadRequestException")
    assert reason in answer.json["error"]["message"]


def test_a_large_packed_body_of_little_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of nothing take seconds to be unpacked, and the loop that serves everybody else goes on."""
    loops: list[bool] = []

    def watched(body: bytes, most_bytes: int) -> bytes | None:
        loops.append(asyncio._get_running_loop() is not None)
        return unpack(body, most_bytes)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await PlainTextResponse((await receive())["body"])(scope, receive, send)

    packed = gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * (LARGE_BYTES // 5) + gzip.compress(b"x")[10:]
    monkeypatch.setattr("duckicelake.rest.layers.body_limit.unpack", watched)
    with serve_app(BodyLimit(answer, 5)) as server:
        assert server.ask("POST", "/x", PACKED_HEADERS, packed).body == b"x"
        assert loops == [False]
        assert server.ask("POST", "/x", PACKED_HEADERS, gzip.compress(b"small")).body == b"small"
    assert loops == [False, True]


def test_the_openapi_page_is_there(standing: Server) -> None:
    """And it needs no script from elsewhere."""
    page = standing.get("/openapi.json").json
    assert page["paths"]["/v1/{prefix}/namespaces/{namespace}/tables/{table}"]["get"]["operationId"] == "loadTable"


def test_large_bodies_wait_for_each_other_only_so_long() -> None:
    """A few are passed at a time; one more is told to come back, small ones do not wait."""
    entered: list[Scope] = []
    leave = Event()

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and get_content_length(scope) > LARGE_BYTES:
            entered.append(scope)
            await asyncio.to_thread(leave.wait)
        if scope["type"] == "http":
            await PlainTextResponse("done")(scope, receive, send)

    large = bytes(LARGE_BYTES + 1)
    with serve_app(BodyLimit(hold, 0.2)) as server, ThreadPoolExecutor(MAX_CONCURRENT_LARGE) as pool:
        held = [pool.submit(server.ask, "POST", "/x", {}, large) for _ in range(MAX_CONCURRENT_LARGE)]
        wait_for(lambda: len(entered) == MAX_CONCURRENT_LARGE, "the large bodies to be passed")
        late = server.ask("POST", "/x", {}, large)
        small = server.ask("POST", "/x", {}, b"1")
        leave.set()
        assert (late.error, late.headers["retry-after"]) == ((503, "ServiceUnavailableException"), "1")
        assert small.status == 200
        assert [answer.result().status for answer in held] == [200] * MAX_CONCURRENT_LARGE
        assert server.ask("POST", "/x", {}, large).status == 200


def test_an_answer_that_nobody_reads_holds_no_large_body_up() -> None:
    """What was asked has been read and done by then: the next is passed on while those answers are still on their way."""
    answering: list[Scope] = []
    leave = Event()

    async def answer_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/slow":
                answering.append(scope)
                await asyncio.to_thread(leave.wait)
            await send({"type": "http.response.body", "body": b"done"})

    large = bytes(LARGE_BYTES + 1)
    with serve_app(BodyLimit(answer_slowly, 5)) as server, ThreadPoolExecutor(MAX_CONCURRENT_LARGE) as pool:
        slow = [pool.submit(server.ask, "POST", "/slow", {}, large) for _ in range(MAX_CONCURRENT_LARGE)]
        wait_for(lambda: len(answering) == MAX_CONCURRENT_LARGE, "the answers to begin")
        other = server.ask("POST", "/x", {}, large)
        leave.set()
        assert other.status == 200
        assert [answer.result().status for answer in slow] == [200] * MAX_CONCURRENT_LARGE
        assert server.ask("POST", "/x", {}, large).status == 200


def test_only_so_many_large_bodies_wait_for_their_answers_to_be_read() -> None:
    """Each is kept until then: one more is refused, and taken when they are gone."""
    answering: list[Scope] = []
    leave = Event()

    async def answer_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            answering.append(scope)
            await asyncio.to_thread(leave.wait)
            await send({"type": "http.response.body", "body": b"done"})

    large = bytes(LARGE_BYTES + 1)
    with serve_app(BodyLimit(answer_slowly, 5)) as server, ThreadPoolExecutor(MAX_UNANSWERED_LARGE) as pool:
        slow = [pool.submit(server.ask, "POST", "/slow", {}, large) for _ in range(MAX_UNANSWERED_LARGE)]
        try:
            wait_for(lambda: len(answering) == MAX_UNANSWERED_LARGE, "the answers to begin")
            late = server.ask("POST", "/x", {}, large)
        finally:
            leave.set()
        assert (late.error, late.headers["retry-after"]) == ((503, "ServiceUnavailableException"), "1")
        assert [answer.result().status for answer in slow] == [200] * MAX_UNANSWERED_LARGE
        assert server.ask("POST", "/x", {}, large).status == 200
