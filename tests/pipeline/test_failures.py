"""What is said when something is gone: in a line, and without any password."""

import socket
from collections.abc import Callable
from threading import Thread

import duckdb
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, NotAuthorized, ServiceUnavailable
from duckicelake.pipeline.common.failures import (
    explain_missing,
    explain_outage,
    explain_store,
)
from duckicelake.pipeline.common.http_client import Request, send_request
from duckicelake.pipeline.common.lake_tables import check_may_write
from duckicelake.pipeline.common.reports import explain_duckdb, explain_postgres, hide_passwords
from duckicelake.pipeline.common.rest import Rest, RestCatalog, TableIdent, open_rest
from duckicelake.pipeline.common.staging import discard
from tests.support.reference.front import Answer, Came, format_answer, listening, refuse

SAID = 'IO Error: Unable to connect to Postgres at "{}": connection to server at "db", port 5432 failed'


@pytest.mark.parametrize("password", ["hunter2", "two words", "it's", "back\\slash", "a=b&c", 'a"b', "ümläut", "\\", "'", '"quoted" one'])
@pytest.mark.parametrize("after", [{}, {"host": "db", "port": 5432}], ids=["last", "not last"])
def test_a_password_of_a_connection_string_is_hidden(password: str, after: dict[str, str]) -> None:
    """However it is written, and nothing else of the message."""
    dsn = make_conninfo(user="me", password=password, **after)
    rest = make_conninfo(**after)
    assert hide_passwords(SAID.format(dsn)) == SAID.format(f"user=me password=…{' ' * bool(rest)}{rest}")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:hunter2@db:5432/lake", "postgresql://me:…@db:5432/lake"),
        ("postgresql://me:h%40nter@/lake?host=/run&password=other&x=1", "postgresql://me:…@/lake?host=/run&password=…&x=1"),
        ("postgresql://me@db/lake", "postgresql://me@db/lake"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
    ],
)
def test_a_password_of_a_uri_is_hidden(uri: str, shown: str) -> None:
    """And nothing else of it."""
    assert explain_duckdb(duckdb.IOException(SAID.format(uri))) == f"DuckDB: {SAID.format(shown)}"


def test_a_postgres_that_is_gone_is_told_from_one_that_refuses() -> None:
    """By its SQLSTATE, in the first line of what it says."""
    gone = psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means …")
    assert explain_postgres(gone) == "the lake's Postgres does not answer: server closed the connection unexpectedly"
    assert explain_postgres(psycopg.errors.AdminShutdown("terminating connection")).startswith("the lake's Postgres does not answer: ")
    assert explain_postgres(psycopg.errors.QueryCanceled("canceling statement")) == "Postgres: canceling statement"
    assert explain_postgres(psycopg.errors.UndefinedTable("no table")) == "Postgres: no table"


SDK = "software.amazon.awssdk.core.exception.SdkClientException"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        pytest.param(
            f"Caused by: {SDK}: Unable to execute HTTP request: Connection reset (SDK Attempt Count: 6)\n\tat a.b.C(D.java:1)",
            "the store (S3) does not answer: Connection reset",
            id="reset",
        ),
        pytest.param(
            f"{SDK}: Unable to execute HTTP request: Connect to a:1 [a/10.0.0.1] failed: Connection refused",
            "the store (S3) does not answer: Connect to a:1 [a/10.0.0.1] failed: Connection refused",
            id="refused",
        ),
        pytest.param(f"{SDK}: Unable to load credentials from any of the providers in the chain", "", id="no keys"),
        pytest.param("software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Status Code: 403)", "", id="an answer"),
    ],
)
def test_a_store_that_is_gone_is_told_from_one_that_refuses(said: str, told: str) -> None:
    """By the class of what Java's client raises, wherever in the trace."""
    assert explain_store(f"An error occurred while calling o1.sql.\n{said}\n") == told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Location does not exist: s3://b/a c.parquet", "s3://b/a c.parquet is missing"),
        ("Failed to open input stream for file: file:/a/b.parquet", "file:/a/b.parquet is missing"),
        ("Table does not exist", ""),
    ],
)
def test_a_file_that_is_missing_is_named(said: str, told: str) -> None:
    """As Iceberg says it, on S3 and elsewhere, within a trace."""
    trace = f"Lost task 0.0 (executor): org.apache.iceberg.exceptions.NotFoundException: {said}\n\tat a.b.C\n"
    assert explain_missing(trace) == told


@pytest.mark.parametrize(
    ("error", "told"), [(ServiceUnavailable("nobody"), "nobody"), (CommitFailed("else"), ""), (OSError("broken"), ""), (None, "")]
)
def test_a_catalog_that_answers_is_not_gone(error: Exception | None, told: str) -> None:
    """Whatever it answers."""

    def connect() -> None:
        if error is not None:
            raise error

    assert explain_outage(connect) == told


def test_a_refusal_that_breaks_off_is_one() -> None:
    """The status says what is wrong; nobody is left to think that nothing was done."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            conn, _ = listener.accept()
            with conn:
                conn.recv(1 << 16)
                conn.sendall(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 100\r\n\r\nhalf")

        answering = Thread(target=answer)
        answering.start()
        with pytest.raises(ServiceUnavailable, match="the catalog answered 502"):
            send_request(Request("POST", f"http://127.0.0.1:{listener.getsockname()[1]}/v1/transactions/commit", {}, b"{}"))
        answering.join()


@pytest.mark.parametrize(
    ("url", "headers", "told"),
    [
        pytest.param("http://me:hidden@127.0.0.1/v1/config", {}, "the URL of 127.0.0.1 holds credentials", id="a password in the URL"),
        pytest.param("http://me:hidden@127.0.0.1:1/v1/config", {}, "the URL of 127.0.0.1:1 holds credentials", id="and a port"),
        pytest.param("http://127.0.0.1:1/v1?key=hidden more", {}, "cannot be read", id="a space in the URL"),
        pytest.param("http://127.0.0.1:hidden/v1", {}, "cannot be read", id="no port"),
        pytest.param("http://[::1/hidden", {}, "cannot be read", id="half an address"),
        pytest.param("http://127.0.0.1:1/hidden/ä", {}, "cannot be read", id="a letter that no URL has"),
        pytest.param("127.0.0.1:8181/hidden", {}, "cannot be read", id="no scheme"),
        pytest.param("file:///etc/hidden", {}, "cannot be read", id="a file"),
        pytest.param("http://127.0.0.1:1", {"authorization": "Bearer hidden\n"}, "the header 'authorization' has", id="the end of a line"),
        pytest.param("http://127.0.0.1:1", {"x-key": "hidden…"}, "the header 'x-key' has", id="a letter that no header has"),
        pytest.param("http://127.0.0.1:1", {"x key": "hidden"}, "the header 'x key' has", id="a name that none has"),
    ],
)
def test_what_cannot_be_sent_is_told_without_secrets(url: str, headers: dict[str, str], told: str) -> None:
    """By a message of ours: Python's shows what it could not send."""
    with pytest.raises(BadRequest, match=told) as caught:
        send_request(Request("GET", url, headers))
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize("answer", [["no object"], {"no": "token"}], ids=["a list", "no token"])
def test_a_server_of_tokens_is_told_without_secrets(answer: object) -> None:
    """By its place alone: its URL may have a key in it."""
    with listening(lambda came: format_answer(200, answer)) as uri:
        properties = {"credential": "me:hidden", "oauth2-server-uri": f"{uri}/hidden?key=hidden"}
        with pytest.raises(CatalogError) as caught:
            open_rest(RestCatalog(uri, "", properties=properties))
    assert isinstance(caught.value, BadRequest | NotAuthorized)
    assert uri.removeprefix("http://") in caught.value.message
    assert "hidden" not in caught.value.message


TABLE = TableIdent(("ns",), "t")
METADATA = {
    "table-uuid": "7",
    "refs": {"ingest_1": {"snapshot-id": 1, "type": "branch"}},
    "snapshots": [{"snapshot-id": 1, "summary": {}}],
    "default-spec-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "default-sort-order-id": 0,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "current-schema-id": 0,
    "schemas": [{"schema-id": 0, "fields": []}],
}


@pytest.mark.parametrize(
    "ask", [lambda rest: check_may_write(rest, TABLE), lambda rest: discard(rest, TABLE, ["ingest_1"])], ids=["a look", "a branch"]
)
def test_what_may_be_asked_again_is_not_unknown(ask: Callable[[Rest], None]) -> None:
    """A catalog that goes then is what is told, and not that rows may have come."""

    def answer(came: Came) -> Answer:
        if came.target.endswith("/commit"):
            return refuse(503, "gone")
        return format_answer(200, {"metadata": METADATA} if came.method == "GET" and "/tables/" in came.target else {"access_token": "1"})

    with listening(answer) as uri, pytest.raises(ServiceUnavailable) as caught:
        ask(open_rest(RestCatalog(uri, "", credential="me:x")))
    assert caught.value.message == "gone"
