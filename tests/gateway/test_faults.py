"""What clients get when the catalog behind a route fails: nothing that lets them delete the files of a commit that landed."""

import gzip
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, IncompleteRead

import pytest

from duckicelake.gateway.route import Limits, Route, RouteSecrets
from tests.gateway.fake import LOADED, RESET, SILENCE, Answering, FakeCatalog, Reply, Seen, fake, routes
from tests.rest.proxy import Wire
from tests.rest.serving import Server

TABLE = "/v1/other/namespaces/a/tables/t"
JSON = {"Content-Type": "application/json"}
COMMIT = json.dumps({"requirements": [], "updates": []}).encode()
KEYED = {**JSON, "Idempotency-Key": "0198f1b2-0000-7000-8000-000000000000"}
HTML = {"Content-Type": "text/html"}
UNKNOWN = "CommitStateUnknownException"
NO_SUCH_TABLE = json.dumps({"error": {"message": "Table does not exist: a.t", "type": "NoSuchTableException", "code": 404}}).encode()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[FakeCatalog, Server]]:
    """A fake catalog whose answers a test sets, and a server with a route to it."""
    with fake() as catalog, routes(Route("other", catalog.uri, limits=Limits(timeout_s=1))) as server:
        yield catalog, server


@pytest.fixture
def stand(shared: tuple[FakeCatalog, Server]) -> Iterator[tuple[FakeCatalog, Server]]:
    """The shared ones, after an answer that closes the breaker."""
    catalog, server = shared
    catalog.answer = lambda _: Reply()
    assert server.get("/v1/other/namespaces").status == 200
    catalog.seen.clear()
    yield shared


def in_turn(*replies: Reply) -> Answering:
    """Answer the first request with the first reply, and so on; the last one again and again."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def test_an_upstream_that_refuses_connections_is_503_for_reads_and_commits() -> None:
    """Nothing was sent, so Java's client may repeat even a commit."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with routes(Route("other", uri)) as server:
        for method, body in (("GET", None), ("POST", COMMIT), ("DELETE", None)):
            answer = server.ask(method, TABLE, JSON, body)
            assert answer.error == (503, "SlowDownException")
            assert answer.headers["retry-after"] == "1"
            assert "'other'" in answer.json["error"]["message"]


def test_a_name_that_does_not_resolve_is_503() -> None:
    """As a port that refuses."""
    with routes(Route("other", "http://nowhere.invalid")) as server:
        assert server.get(TABLE).error == (503, "SlowDownException")


@pytest.mark.parametrize(
    ("method", "headers", "times"),
    [
        pytest.param("GET", {}, 2, id="read"),
        pytest.param("HEAD", {}, 2, id="head"),
        pytest.param("POST", JSON, 1, id="commit"),
        pytest.param("POST", KEYED, 2, id="commit-with-key"),
        pytest.param("DELETE", {}, 1, id="drop"),
    ],
)
@pytest.mark.parametrize("first", [pytest.param(RESET, id="reset"), pytest.param(Reply(503, NO_SUCH_TABLE), id="503")])
def test_only_what_may_be_repeated_is_sent_twice(
    stand: tuple[FakeCatalog, Server], method: str, headers: dict[str, str], times: int, first: Reply
) -> None:
    """Reads, and changes with an Idempotency-Key."""
    catalog, server = stand
    catalog.answer = in_turn(first, Reply(body=LOADED))
    answer = server.ask(method, TABLE, headers, COMMIT if method == "POST" else None)
    assert len(catalog.asked) == times
    assert answer.status == (200 if times == 2 else 503 if first.status else 504)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        pytest.param("GET", "InternalServerError", id="read"),
        pytest.param("POST", UNKNOWN, id="commit"),
        pytest.param("DELETE", UNKNOWN, id="drop"),
    ],
)
@pytest.mark.parametrize("reply", [pytest.param(RESET, id="reset"), pytest.param(SILENCE, id="silence")])
def test_a_request_without_an_answer_is_504(stand: tuple[FakeCatalog, Server], method: str, expected: str, reply: Reply) -> None:
    """A commit may have landed, so its state is unknown."""
    catalog, server = stand
    catalog.answer = lambda _: reply
    answer = server.ask(method, TABLE, JSON, COMMIT if method == "POST" else None)
    assert answer.error == (504, expected)
    assert "retry-after" not in answer.headers


def test_an_answer_that_breaks_off_never_looks_whole(stand: tuple[FakeCatalog, Server]) -> None:
    """A streamed one ends the client's connection; one that is searched is 504."""
    catalog, server = stand
    catalog.answer = lambda _: Reply(body=b"x" * 500_000, cut_after=100_000)
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/v1/other/namespaces/a")
    with pytest.raises((IncompleteRead, ConnectionError)):
        connection.getresponse().read()
    connection.close()
    assert server.get(TABLE).error == (504, "InternalServerError")
    assert server.ask("POST", "/v1/other/namespaces/a/tables", JSON, COMMIT).error == (504, UNKNOWN)


def test_a_large_answer_streams_and_one_that_must_be_searched_has_a_limit() -> None:
    """32 MB of a list pass; a load above the limit is refused."""
    large = Reply(body=b'{"x":"' + b"y" * 32_000_000 + b'"}')
    with fake(lambda _: large) as catalog:
        with routes(Route("other", catalog.uri, limits=Limits(max_parsed_bytes=1_000_000))) as server:
            assert server.get("/v1/other/namespaces").body == large.body
            assert server.get(TABLE).error == (502, "InternalServerError")


@pytest.mark.parametrize("status", [400, 403, 404, 409, 418, 429, 500, 502, 504])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_error_without_icebergs_body_gets_one(stand: tuple[FakeCatalog, Server], method: str, status: int) -> None:
    """The status stays; a commit that failed with 5xx is in an unknown state."""
    catalog, server = stand
    catalog.answer = lambda _: Reply(status, b"<html><title>Bad\n  Gateway</title></html>", HTML)
    answer = server.ask(method, TABLE, JSON, COMMIT if method == "POST" else None)
    assert answer.error[0] == status
    assert answer.json["error"]["message"].endswith(f"answers {status}: Bad Gateway")
    assert (answer.error[1] == UNKNOWN) == (method == "POST" and status >= 500)


def test_icebergs_own_errors_pass_as_they_are(stand: tuple[FakeCatalog, Server]) -> None:
    """Byte for byte, also compressed ones and those of HEAD."""
    catalog, server = stand
    catalog.answer = lambda _: Reply(404, NO_SUCH_TABLE)
    assert server.get(TABLE).body == NO_SUCH_TABLE
    assert server.ask("HEAD", TABLE).status == 404
    packed = gzip.compress(NO_SUCH_TABLE)
    catalog.answer = lambda _: Reply(404, packed, {"Content-Type": "application/json", "Content-Encoding": "gzip"})
    answer = server.get(TABLE, {"Accept-Encoding": "gzip"})
    assert (answer.body, answer.headers["content-encoding"]) == (packed, "gzip")


def test_an_error_in_a_coding_that_only_the_client_reads_passes(stand: tuple[FakeCatalog, Server]) -> None:
    """The client asked for it, and its type says what is missing."""
    catalog, server = stand
    catalog.answer = lambda _: Reply(404, b"in brotli", {"Content-Type": "application/json", "Content-Encoding": "br"})
    answer = server.ask("DELETE", TABLE, {"Accept-Encoding": "br"})
    assert (answer.status, answer.body, answer.headers["content-encoding"]) == (404, b"in brotli", "br")
    catalog.answer = lambda _: Reply(502, b"a page in brotli", {**HTML, "Content-Encoding": "br"})
    assert server.ask("POST", TABLE, {**JSON, "Accept-Encoding": "br"}, COMMIT).error == (502, UNKNOWN)


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
def test_methods_that_echo_the_routes_account_are_not_sent(stand: tuple[FakeCatalog, Server], method: str) -> None:
    """A server that answers TRACE sends all headers of the request back."""
    catalog, server = stand
    assert server.ask(method, TABLE).error == (501, "UnsupportedOperationException")
    assert catalog.seen == []


def test_a_web_page_is_no_answer(stand: tuple[FakeCatalog, Server]) -> None:
    """A login page with status 200 is 502, after a change with an unknown state."""
    catalog, server = stand
    catalog.answer = lambda _: Reply(200, b"<html>log in</html>", HTML)
    assert server.get(TABLE).error == (502, "InternalServerError")
    assert server.get("/v1/other/namespaces").error == (502, "InternalServerError")
    assert server.ask("POST", TABLE, JSON, COMMIT).error == (504, UNKNOWN)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        pytest.param(Reply(200, LOADED), "done", id="done"),
        pytest.param(Reply(409, NO_SUCH_TABLE), None, id="refused"),
        pytest.param(Reply(500, NO_SUCH_TABLE), "unknown (500)", id="500"),
        pytest.param(Reply(307, b""), "unknown (307)", id="redirect"),
        pytest.param(Reply(200, b"<html>log in</html>", HTML), "unknown (200)", id="web-page"),
        pytest.param(RESET, "unknown (RouteStateUnknown)", id="reset"),
    ],
)
def test_the_log_of_changes_says_what_became_of_a_change(
    stand: tuple[FakeCatalog, Server], caplog: pytest.LogCaptureFixture, reply: Reply, outcome: str | None
) -> None:
    """Done only if the catalog says so; nothing of what it refused."""
    catalog, server = stand
    catalog.answer = lambda _: reply
    with caplog.at_level("INFO", "duckicelake.audit"):
        server.ask("POST", TABLE, JSON, COMMIT)
    lines = [record.getMessage() for record in caplog.records if record.name == "duckicelake.audit"]
    assert [line.partition(":")[0] for line in lines] == ([] if outcome is None else [f"updateTable {outcome}"])


@pytest.mark.parametrize(
    "config", [pytest.param(Reply(401), id="refused"), pytest.param(Reply(508), id="loop"), pytest.param(SILENCE, id="silence")]
)
def test_no_configuration_stands_between_a_commit_that_landed_and_its_answer(monkeypatch: pytest.MonkeyPatch, config: Reply) -> None:
    """Also if the known one is outdated when the answer comes: its error would let the client repeat or clean up the commit."""
    monkeypatch.setattr("duckicelake.gateway.upstream.CONFIG_FRESH_S", 0.0)
    with fake() as catalog, routes(Route("other", catalog.uri, limits=Limits(timeout_s=1))) as server:

        def land(_: Seen) -> Reply:
            catalog.config = config
            catalog.seen.clear()
            return Reply(body=LOADED)

        catalog.answer = land
        assert server.ask("POST", TABLE, JSON, COMMIT).status == 200
        assert catalog.seen == []


@pytest.mark.parametrize("second", [pytest.param(Reply(401), id="refused"), pytest.param(SILENCE, id="silence")])
def test_a_repeated_commit_that_fails_is_in_an_unknown_state(stand: tuple[FakeCatalog, Server], second: Reply) -> None:
    """The first attempt, that has no answer, may have landed."""
    catalog, server = stand
    catalog.answer = in_turn(RESET, second)
    assert server.ask("POST", TABLE, KEYED, COMMIT).error == (504, UNKNOWN)


def test_a_commit_that_breaks_off_after_a_failed_token_request_is_in_an_unknown_state() -> None:
    """The token is requested again, so the commit is sent once."""
    token = Reply(body=b'{"access_token":"t","expires_in":0.000001}')
    replies = in_turn(token, RESET, token, RESET)
    secrets = RouteSecrets(credential="id:secret")
    with fake(replies) as catalog, routes(Route("other", catalog.uri, auth="oauth2", secrets=secrets)) as server:
        assert server.ask("POST", TABLE, JSON, COMMIT).error == (504, UNKNOWN)
        assert [seen.path for seen in catalog.asked] == ["/v1/oauth/tokens"] * 3 + [TABLE.replace("/other", "")]


def test_redirects_are_not_followed(stand: tuple[FakeCatalog, Server]) -> None:
    """They could lead anywhere, with the account of the route."""
    catalog, server = stand
    with fake() as elsewhere:
        moved = Reply(307, b"", {"Location": f"{elsewhere.uri}/v1/namespaces"})
        catalog.answer = lambda _: moved
        assert server.get(TABLE).error == (502, "InternalServerError")
        assert elsewhere.seen == []


@pytest.mark.parametrize(
    "config", [pytest.param(["no", "object"], id="array"), pytest.param({"overrides": {"prefix": "a/../b"}}, id="prefix")]
)
def test_a_configuration_that_cannot_be_used_is_502(config: object) -> None:
    """Nothing is sent below a prefix that leads out of it."""
    with fake(config=config) as catalog, routes(Route("other", catalog.uri)) as server:  # pyright: ignore[reportArgumentType]
        assert server.get("/v1/config?warehouse=other").error == (502, "InternalServerError")
        assert server.get(TABLE).error == (502, "InternalServerError")
        assert catalog.asked == []


def test_a_loop_is_found() -> None:
    """A route to the server itself is refused when the request comes back, and so is a circle of two servers."""
    hops: list[str] = []

    def forward(seen: Seen) -> Reply:
        hops.append(seen.headers["via"])
        answer = server.ask(seen.method, seen.path.replace("/v1/", "/v1/other/", 1), {"Via": seen.headers["via"]})
        return Reply(answer.status, answer.body)

    with fake(forward) as catalog, routes(Route("other", catalog.uri)) as server:
        assert server.get("/v1/other/namespaces").error == (508, "BadRequestException")
        assert len(hops) == 1


@pytest.mark.whole
def test_after_five_failures_nothing_is_sent_for_a_while() -> None:
    """The breaker opens, and requests fail at once."""
    with fake(lambda _: SILENCE) as catalog, routes(Route("other", catalog.uri, limits=Limits(timeout_s=1))) as server:
        for _ in range(5):
            assert server.get(TABLE).status == 504
        assert server.get(TABLE).error == (503, "SlowDownException")
        assert server.ask("POST", TABLE, JSON, COMMIT).headers["retry-after"] == "1"
        assert len(catalog.asked) == 5


def test_a_catalog_that_is_back_is_found_by_a_request_for_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the pause; while that fails, nothing else is sent."""
    monkeypatch.setattr("duckicelake.gateway.upstream.OPEN_S", 0.0)
    replies = [RESET]
    with fake(lambda _: replies[0], config={"overrides": {"prefix": "up"}}) as catalog, routes(Route("other", catalog.uri)) as server:
        for _ in range(5):
            assert server.ask("POST", TABLE, JSON, COMMIT).status == 504
        working, broken = catalog.config, RESET
        catalog.config = broken
        catalog.seen.clear()
        assert server.ask("POST", TABLE, JSON, COMMIT).error == (503, "SlowDownException")
        assert catalog.asked == [] and catalog.seen
        catalog.config, replies[0] = working, Reply(body=LOADED)
        catalog.seen.clear()
        assert [server.ask("POST", TABLE, JSON, COMMIT).status for _ in range(2)] == [200, 200]
        assert [seen.path for seen in catalog.seen] == ["/v1/config", *["/v1/up/namespaces/a/tables/t"] * 2]


def test_a_configuration_is_kept_for_a_minute_and_longer_while_the_catalog_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go on under the prefix that was known last."""
    with fake(config={"overrides": {"prefix": "up"}}) as catalog, routes(Route("other", catalog.uri)) as server:
        path = "/v1/other/namespaces"
        assert [server.get(path).status for _ in range(3)] == [200] * 3
        assert [seen.path for seen in catalog.seen] == ["/v1/config", *["/v1/up/namespaces"] * 3]
    monkeypatch.setattr("duckicelake.gateway.upstream.CONFIG_FRESH_S", 0.0)
    with fake(config={"overrides": {"prefix": "up"}}) as catalog, routes(Route("other", catalog.uri)) as server:
        assert server.get(path).status == 200
        catalog.config = Reply(500)
        assert server.get(path).status == 200
        assert catalog.asked[-1].path == "/v1/up/namespaces"
        assert len(catalog.seen) == 4


def test_two_servers_that_forward_to_each_other_are_a_loop() -> None:
    """Already the request for the configuration comes back."""
    ports: list[int] = []
    wire = Wire(lambda: socket.create_connection(("127.0.0.1", ports[0])))
    with routes(Route("other", f"http://127.0.0.1:{wire.port}", warehouse="other")) as one:
        with routes(Route("other", one.uri, warehouse="other")) as two:
            ports.append(two.port)
            assert two.get("/v1/other/namespaces").error == (508, "BadRequestException")
            assert one.get("/v1/config?warehouse=other").error == (508, "BadRequestException")
    wire.close()
