"""Paths, headers, configurations and answers on their way through a route."""

import gzip
import json
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRouteAnswer
from duckicelake.gateway.answers import (
    AnswerRules,
    UpstreamConfig,
    filter_identifiers,
    filter_namespaces,
    is_iceberg_error,
    parse_config,
    rewrite_answer,
    rewrite_config,
)
from duckicelake.gateway.forwarding import (
    MOST_HOPS,
    build_answer_headers,
    build_request_headers,
    build_url,
    get_base,
    is_loop,
    join_path,
    rewrite_endpoint,
    split_path,
)
from duckicelake.gateway.route import Route
from duckicelake.gateway.upstream import OPEN_AFTER, OPEN_S, Breaker, decompress
from tests.gateway.fake import Reply, fake, routes

SEGMENT = (
    st.text("abcXYZ019-._~%+:@!$&'()*,;= ", min_size=1)
    .map(lambda text: text.replace(" ", "%1F").replace("%", "%25"))
    .filter(lambda text: text not in (".", ".."))
)
REST = st.lists(SEGMENT, min_size=1, max_size=6).map("/".join)
PREFIX = st.sampled_from(["", "lake", "main%7Cwarehouse", "catalogs/123", "a%2Fb"])
BASE = st.sampled_from(["", "/iceberg", "/a/b"])
NAME = st.binary(min_size=1, max_size=12).map(lambda text: text.hex().encode())
HEADERS = st.lists(st.tuples(NAME, NAME), max_size=8)
RULES = AnswerRules("https://up.example.com/iceberg", "main%7Cw", "mine", has_keys=True, has_accounts=False)


@given(prefix=SEGMENT, rest=REST, theirs=PREFIX, base=BASE)
def test_what_follows_the_prefix_stays_byte_for_byte(prefix: str, rest: str, theirs: str, base: str) -> None:
    """Only the prefix is replaced, by the upstream's own, verbatim."""
    parts = split_path(f"/v1/{prefix}/{rest}")
    assert parts is not None
    assert (parts.prefix, parts.rest) == (prefix, rest)
    path = join_path(base, theirs, parts.rest)
    assert path == f"{base}/v1/{theirs + '/' if theirs else ''}{rest}"
    assert urlsplit(build_url(f"http://h:1{base}", path, "a=%1F&b=+")).path == path
    assert build_url(f"http://h:1{base}", path, "a=%1F&b=+").endswith("?a=%1F&b=+")


@given(rest=REST, theirs=PREFIX, base=BASE, absolute=st.booleans())
def test_an_endpoint_of_the_upstream_leads_back_through_the_route(rest: str, theirs: str, base: str, absolute: bool) -> None:
    """What a client then requests from us reaches the endpoint that the upstream named."""
    uri = f"https://up.example.com{base}"
    path = join_path(base, theirs, rest)
    named = f"https://up.example.com{path}" if absolute else path[len(get_base(uri)) + 1 :]
    ours = rewrite_endpoint(named, uri, theirs, "mine")
    assert ours == f"v1/mine/{rest}"
    parts = split_path(f"/{ours}")
    assert parts is not None
    assert join_path(base, theirs, parts.rest) == path


@pytest.mark.parametrize(
    "value",
    [
        "https://evil.example.com/v1/x",
        "//evil.example.com/iceberg/v1/x",
        "http://up.example.com/iceberg/v1/lake/x",
        "https://up.example.com/other/x",
    ]
    + ["v1/elsewhere/x", "v1/lake/../secret", "javascript:alert(1)"],
)
def test_a_foreign_endpoint_is_left_out(value: str) -> None:
    """A client would send its token there."""
    assert rewrite_endpoint(value, "https://up.example.com/iceberg", "lake", "mine") is None


def test_the_default_path_of_signers_has_no_prefix_upstream() -> None:
    """Older clients request signatures at v1/aws/s3/sign; over a route it is below the route's name."""
    assert rewrite_endpoint("v1/aws/s3/sign", "http://h", "lake", "mine") == "v1/mine/aws/s3/sign"
    assert join_path("", "lake", "aws/s3/sign") == "/v1/aws/s3/sign"


@given(headers=HEADERS)
def test_other_headers_pass_in_both_directions(headers: list[tuple[bytes, bytes]]) -> None:
    """In order, with duplicates; ours come behind them."""
    assert build_request_headers(headers, {}, b"duckicelake-1", "id")[: len(headers)] == headers
    assert build_answer_headers(headers) == headers


@pytest.mark.parametrize(
    "name",
    ["host", "cookie", "forwarded", "x-forwarded-for", "authorization", "connection", "te", "x-own", "content-length"]
    + ["x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url", "remote-user", "x-remote-user"],
)
def test_headers_of_this_hop_are_not_sent(name: str) -> None:
    """Those of the connection, the caller's account, what the Connection header names, and what would make the request another one."""
    sent = [(name.encode(), b"1"), (b"connection", b"keep-alive, X-Own")]
    assert {found for found, _ in build_request_headers(sent, {}, b"v", "id")} == {b"via", b"x-request-id"}


@pytest.mark.parametrize(
    "name", ["if-none-match", "idempotency-key", "x-iceberg-access-delegation", "x-client-version", "traceparent", "user-agent"]
)
def test_headers_of_iceberg_are_sent(name: str) -> None:
    """They mean the same to the upstream."""
    assert (name.encode(), b"1") in build_request_headers([(name.encode(), b"1")], {}, b"v", "id")


def test_headers_of_settings_replace_the_clients() -> None:
    """A client cannot choose its realm."""
    found = build_request_headers([(b"polaris-realm", b"mine")], {"Polaris-Realm": "theirs"}, b"v", "id")
    assert [value for name, value in found if name == b"polaris-realm"] == [b"theirs"]


def test_a_loop_is_known_by_via() -> None:
    """The own name, wherever it stands, or too many servers of this kind."""
    via = [value for name, value in build_request_headers([(b"via", b"1.1 proxy")], {}, b"duckicelake-1", "id") if name == b"via"]
    assert via == [b"1.1 proxy, 1.1 duckicelake-1"]
    assert is_loop([(b"via", via[0])], b"duckicelake-1")
    assert not is_loop([(b"via", via[0])], b"duckicelake-2")
    assert is_loop([(b"via", b"1.1 duckicelake-x")] * MOST_HOPS, b"duckicelake-2")


CONFIG = {
    "defaults": {
        "prefix": "main%7Cw",
        "warehouse": "w",
        "client.region": "eu",
        "rest.sigv4-enabled": "true",
        "s3.secret-access-key": "k",
        "odd": 1,
    },
    "overrides": {
        "uri": "http://up",
        "token": "t",
        "header.X": "y",
        "namespace-separator": "%2E",
        "s3.endpoint": "e",
        "rest-page-size": "9",
        "nessie.core-base-uri": "http://up/api/",
        "nessie.iceberg-base-uri": "http://up/iceberg/",
    },
    "endpoints": ["GET /v1/{prefix}/namespaces", "GET /v1/{prefix}/ducklake-credentials", 7],
    "idempotency-key-lifetime": "PT30M",
    "more": 1,
}


def test_the_configuration_keeps_what_leads_no_client_around_this_server() -> None:
    """Nessie's prefix stands in the defaults and is escaped already."""
    config = parse_config(json.dumps(CONFIG).encode())
    assert config.prefix == "main%7Cw"
    assert rewrite_config(config, "mine", has_keys=False) == {
        "defaults": {"client.region": "eu"},
        "overrides": {"namespace-separator": "%2E", "s3.endpoint": "e", "rest-page-size": "9", "prefix": "mine"},
        "endpoints": ["GET /v1/{prefix}/namespaces"],
        "idempotency-key-lifetime": "PT30M",
    }
    assert rewrite_config(config, None, has_keys=True)["overrides"]["prefix"] == "main%7Cw"
    assert rewrite_config(config, None, has_keys=True)["defaults"]["s3.secret-access-key"] == "k"
    assert "prefix" not in rewrite_config(UpstreamConfig(""), None, has_keys=True)["overrides"]


def load(config: dict[str, str], **more: object) -> bytes:
    """An answer to a load with that configuration."""
    return json.dumps({"metadata": {"x": [1]}, "config": config, **more}).encode()


def test_the_common_answer_is_the_same_object() -> None:
    """It is neither parsed nor copied, so it need not even be JSON."""
    for body in (load({"s3.endpoint": "e"}), b"no json"):
        assert rewrite_answer(body, RULES) is body


def test_endpoints_in_answers_lead_through_the_route() -> None:
    """Of the table and of each key; the base of the signer goes, so that clients use the catalog's."""
    body = load(
        {
            "s3.signer.uri": "https://up.example.com/iceberg",
            "s3.signer.endpoint": "v1/main%7Cw/namespaces/a/tables/t/sign",
            "signer.uri": "https://evil.example.com",
            "signer.endpoint": "v1/main%7Cw/namespaces/a/tables/t/sign",
            "token": "secret",
        },
        **{
            "storage-credentials": [
                {"prefix": "s3://b", "config": {"client.refresh-credentials-endpoint": "/v1/main%7Cw/c", "s3.session-token": "t"}}
            ]
        },
    )
    found = json.loads(rewrite_answer(body, RULES))
    assert found["config"] == {"s3.signer.endpoint": "v1/mine/namespaces/a/tables/t/sign"}
    assert found["storage-credentials"][0]["config"] == {"client.refresh-credentials-endpoint": "v1/mine/c", "s3.session-token": "t"}
    assert found["metadata"] == {"x": [1]}


def test_keys_do_not_reach_those_who_may_not_have_them() -> None:
    """Neither in the table's configuration nor beside it, however the name is spelled."""
    rules = AnswerRules(RULES.uri, RULES.upstream_prefix, RULES.prefix, has_keys=False, has_accounts=False)
    body = load({"s3.access-key-id": "k", "s3.endpoint": "e"}, **{"storage-credentials": [{"prefix": "s3://b", "config": {}}]})
    assert json.loads(rewrite_answer(body, rules)) == {"metadata": {"x": [1]}, "config": {"s3.endpoint": "e"}}
    escaped = load({"s3.access-key-id": "k"}).replace(b"s3.access", b"\\u0073\\u0033.access")
    assert json.loads(rewrite_answer(escaped, rules))["config"] == {}


def test_lists_show_what_the_caller_may_see() -> None:
    """Page tokens stay."""
    spaces = json.dumps({"namespaces": [["a"], ["b", "c"]], "next-page-token": "n"}).encode()
    assert json.loads(filter_namespaces(spaces, lambda levels: levels[0] == "b")) == {"namespaces": [["b", "c"]], "next-page-token": "n"}
    tables = json.dumps({"identifiers": [{"namespace": ["a"], "name": "t"}, {"namespace": ["a"], "name": "u"}]}).encode()
    assert json.loads(filter_identifiers(tables, lambda _, name: name == "u"))["identifiers"] == [{"namespace": ["a"], "name": "u"}]
    for broken in (b"[]", b"x", b'{"namespaces":["a"]}'):
        with pytest.raises(BadRouteAnswer):
            filter_namespaces(broken, lambda _: True)


def test_compressed_answers_have_a_limit() -> None:
    """A small answer may be large when decompressed."""
    bomb = gzip.compress(b"0" * 1_000_000)
    assert len(decompress(bomb, b"gzip", 1_000_000)) == 1_000_000
    for body, coding in ((bomb, b"gzip"), (b"broken", b"gzip"), (bomb[:-9], b"gzip"), (b"x", b"br")):
        with pytest.raises(BadRouteAnswer):
            decompress(body, coding, 999_999 if body is bomb else 1_000_000)


def test_only_icebergs_and_oauths_errors_pass() -> None:
    """All others are wrapped."""
    assert is_iceberg_error(b'{"error":{"message":"m","type":"t","code":404}}')
    assert is_iceberg_error(b'{"error":"invalid_client"}')
    for body in (b"", b"<html>", b'{"message":"m"}', b'{"error":{}}', b"[]", b"[" * 100_000):
        assert not is_iceberg_error(body)


def test_the_breaker_opens_and_lets_one_request_probe() -> None:
    """After the pause one request decides for all."""
    breaker = Breaker()
    for _ in range(OPEN_AFTER):
        assert breaker.get_state(0) == "closed"
        breaker.count_failure(0)
    assert breaker.get_state(OPEN_S - 1) == "open"
    assert breaker.get_state(OPEN_S) == "probing"
    breaker.begin_probe()
    assert breaker.get_state(OPEN_S) == "open"
    breaker.count_failure(OPEN_S)
    assert breaker.get_state(OPEN_S + 1) == "open"
    breaker.begin_probe()
    breaker.count_success()
    assert breaker.get_state(OPEN_S + 1) == "closed"


@pytest.mark.parametrize(
    "path", ["/v1/repo/namespaces/main%1Fa.b/tables/t%2F+%20x?snapshots=all&x=%1F+", "/v1/namespaces?parent=a%1Fb", "/v1/a%7Cb"]
)
def test_what_has_no_meaning_here_passes_byte_for_byte_by_catch_all(path: str) -> None:
    """With its prefix, its body and its answer; a route of that name goes first."""
    body, answered = b'{ "odd" :\t"\\u00e9" }', b'{"config" : { "a":"\xc3\xa9"}}'
    with fake(lambda _: Reply(body=answered)) as catalog, fake() as other:
        with routes(Route("all", catalog.uri), Route("other", other.uri), catch_all="all") as server:
            answer = server.ask("POST", path, {"Content-Type": "application/json", "X-Own": "1"}, body)
            assert (answer.status, answer.body) == (200, answered)
            [seen] = catalog.seen
            assert (seen.method, seen.path, seen.body, seen.headers["x-own"]) == ("POST", path, body, "1")
            assert server.get("/v1/other/namespaces").status == 200
            assert server.get("/healthz").json == {"status": "alive"}
            assert len(catalog.seen) == 1
            assert [seen.path for seen in other.asked] == ["/v1/namespaces"]


@pytest.mark.parametrize("prefix", ["repo", None])
def test_a_warehouse_without_a_meaning_here_is_that_of_catch_all(prefix: str | None) -> None:
    """As lakeFS names its own: the query passes as it is, and clients use the prefix of the catalog itself."""
    config = {"overrides": {} if prefix is None else {"prefix": prefix}, "defaults": {"uri": "http://elsewhere", "a": "b"}}
    with fake(config=config) as catalog, routes(Route("all", catalog.uri, warehouse="mine"), catch_all="all") as server:
        found = server.get("/v1/config?warehouse=lakefs%3A%2F%2Frepo&x=1").json
        assert found == {"defaults": {"a": "b"}, "overrides": config["overrides"]}
        assert [seen.path for seen in catalog.seen] == ["/v1/config?warehouse=lakefs%3A%2F%2Frepo&x=1"]
        assert server.get("/v1/config?warehouse=all").json["overrides"] == {"prefix": "all"}
        assert catalog.seen[-1].path == "/v1/config?warehouse=mine"
