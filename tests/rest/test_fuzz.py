"""Whatever a client sends, it is never the server that fails."""

import json
import socket

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
        "x" * 2000,
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
QUERY = st.lists(st.tuples(PARAMETERS, VALUES), max_size=3).map(lambda pairs: "&".join(f"{name}={value}" for name, value in pairs))
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


def check_answer(method: str, status: int, body: bytes) -> None:
    """No failure of the server, and every refusal in Iceberg's shape."""
    assert status < 500 or status == 501
    if method == "HEAD" or status in (204, 304):
        assert body == b""
    elif status >= 400:
        assert json.loads(body)["error"]["code"] == status


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
