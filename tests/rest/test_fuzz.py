"""Whatever a client sends, it is never the server that fails."""

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rest.serving import Server

ODD_TEXT = st.sampled_from(
    [
        "%00",
        "%1F",
        "%2F",
        "%FF",
        "%",
        "%zz",
        "+",
        "..",
        ".",
        "%E2%90%9F",
        "%C3%BC",
        "%ED%A0%80",
        "main",
        "t",
        "'",
        '"',
        "\\",
        ";",
        "%25",
        "%0D%0AX-Injected:%20yes",
        "%E2%80%AE",
        "%F0%9F%A6%86",
        "%F4%90%80%80",
        "%u0041",
        "..%2F..%2F",
        "x" * 2000,
        "%C3%BC" * 600,
    ]
)
SEGMENT = st.lists(
    ODD_TEXT | st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#?/"), max_size=8), max_size=4
).map("".join)
WORDS = st.sampled_from(
    [
        "v1",
        "config",
        "lake",
        "namespaces",
        "tables",
        "views",
        "plan",
        "metrics",
        "register",
        "rename",
        "transactions",
        "commit",
        "properties",
    ]
)
FREE_PATH = st.lists(WORDS | SEGMENT, max_size=9).map(lambda parts: "/" + "/".join(parts))
TABLE_PATH = st.tuples(SEGMENT, SEGMENT).map(lambda names: f"/v1/lake/namespaces/{names[0] or 'main'}/tables/{names[1] or 't'}")
NAMESPACE_PATH = SEGMENT.map(lambda name: f"/v1/lake/namespaces/{name}")
PARAMETERS = st.sampled_from(["pageToken", "pageSize", "parent", "snapshots", "warehouse", "referenced-by", "other"])
VALUES = SEGMENT | st.integers().map(str) | st.sampled_from(["all", "refs", "", "9" * 5000, "1e3", "NaN"])
PAIRS = st.lists(st.tuples(PARAMETERS, VALUES), max_size=3)
QUERY = st.tuples(PAIRS, st.sampled_from([1, 1, 1, 2, 20])).map(
    lambda drawn: "&".join(f"{name}={value[:200]}" for name, value in drawn[0] * drawn[1])
)
METHODS = st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS", "PATCH"])
HEADER_VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
BODIES = st.sampled_from([b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"report-type":[]}', b'{"report-type":"scan-report"}', b"[" * 5000])


def send(server: Server, request: bytes) -> tuple[int, bytes]:
    """Send bytes as they are and return status and body of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


ABSURD = [
    pytest.param("&".join(f"p{number}={number}" for number in range(5000)), 200, id="thousands of parameters"),
    pytest.param("&".join(["snapshots=all"] * 3000), 200, id="thousands of times the same"),
    pytest.param("snapshots=refs&snapshots=xyz", 400, id="contradictory"),
    pytest.param("snapshots=xyz", 400, id="unknown"),
    pytest.param("pageSize=" + "9" * 30, 200, id="a number of thirty digits"),
    pytest.param("&" * 50_000, 200, id="nothing, often"),
    pytest.param("snapshots=" + "x" * 60_000, 400, id="long"),
    pytest.param("=&=&==", 200, id="no names"),
    pytest.param("snapshots[]=all&snapshots[0]=all", 200, id="brackets"),
]


@pytest.mark.parametrize(("query", "expected"), ABSURD)
def test_absurd_queries_are_refused_or_passed_over(standing: Server, query: str, expected: int) -> None:
    """What nobody knows is ignored, what is known must make sense."""
    answer = standing.get(f"namespaces/main/tables/t?{query}")
    assert answer.status == expected
    assert len(answer.body) < 100_000
    assert standing.get("namespaces/main/tables?" + query).status in (200, 400)


def check_answer(method: str, status: int, body: bytes) -> None:
    """No failure of the server, and every refusal in Iceberg's shape."""
    assert status < 500 or status == 501
    assert b"Traceback" not in body
    if method == "HEAD" or status in (204, 304):
        assert body == b""
    elif status >= 400:
        assert json.loads(body)["error"]["code"] == status


# the server runs in this process, and its connection pool draws random numbers of its own meanwhile
@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(method=METHODS, path=FREE_PATH | TABLE_PATH | NAMESPACE_PATH, query=QUERY, tag=HEADER_VALUES, encoding=HEADER_VALUES, body=BODIES)
def test_no_request_makes_the_server_fail(
    standing: Server, method: str, path: str, query: str, tag: str, encoding: str, body: bytes
) -> None:
    """Any path, query, header and body: below 500 or 501, in Iceberg's shape."""
    lines = [f"{method} {path}?{query} HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", f"If-None-Match: {tag}", f"Accept-Encoding: {encoding}", "", ""]
    status, answer = send(standing, "\r\n".join(lines).encode() + body)
    check_answer(method, status, answer)
