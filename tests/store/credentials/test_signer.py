"""Which stores get signed requests."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

from duckicelake.errors import BadRequest, Forbidden, NotServed, ServiceUnavailable
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.signing import RequestSigner, SignableRequest, UnsignedRequest, parse_unsigned_request
from tests.support.keys import open_s3
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack

AWS = StoreSettings(None, "eu-central-1", "id", "secret")


def ask(store: StoreSettings, uri: str, method: str = "GET") -> SignableRequest:
    """A request without headers."""
    return parse_unsigned_request(store, UnsignedRequest(method, uri, store.region, {}), time.time())


class Obeying(BaseHTTPRequestHandler):
    """A store that looks at no signature."""

    def do_GET(self) -> None:
        """Say yes."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def run_obeying() -> Generator[StoreSettings]:
    """That store, on a port of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Obeying) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield StoreSettings(f"http://127.0.0.1:{running.server_port}", "us-east-1", "id", "secret")
        finally:
            running.shutdown()
            thread.join()


def test_a_store_that_obeys_unsigned_headers_gets_no_signature() -> None:
    """A signed PUT would copy any object there; the refusal says what to do."""
    with run_obeying() as store, pytest.raises(NotServed, match="sts_role_arn"):
        RequestSigner(store).sign(ask(store, f"{store.endpoint}/lake/x"))


def test_the_embedded_store_holds_to_what_is_signed(lake: FreshLake) -> None:
    """SeaweedFS is asked once."""
    store = StoreSettings(lake.store.endpoint, lake.store.region, lake.store.access_key_id, lake.store.secret_access_key)
    uri, headers = RequestSigner(store).sign(ask(store, f"{store.endpoint}/lake/a%62"))
    assert uri == f"{store.endpoint}/lake/ab"
    assert set(headers) == {"authorization", "x-amz-date", "x-amz-content-sha256", "x-forwarded-host", "x-forwarded-prefix"}
    assert store.secret_access_key not in str(headers)


@pytest.mark.parametrize("said", ["day=1", "day%3D1"])
def test_a_signature_opens_what_it_says_and_not_its_escape(lake: FreshLake, said: str) -> None:
    """In names of partitions: two objects may have names of which one is the other's escape."""
    access, root = lake.store, f"/lake/{lake.name}"
    store = StoreSettings(access.endpoint, access.region, access.access_key_id, access.secret_access_key)
    for key, content in (("day=1", b"own"), ("day%3D1", b"another's")):
        open_s3(access).put_object(Bucket="lake", Key=f"{lake.name}/{key}", Body=content)
    _, headers = RequestSigner(store).sign(ask(store, f"{store.endpoint}{root}/{said}"))
    found = {name: get(access.endpoint, f"{root}/{name}", headers) for name in ("day=1", "day%3D1", "day%253D1", "day%25253D1")}
    assert found == {"day=1": (200, b"own"), "day%3D1": (200, b"own"), "day%253D1": (403, b""), "day%25253D1": (403, b"")}


def get(endpoint: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """What the store answers, of refusals the status alone."""
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read() if answer.status == 200 else b""
    finally:
        connection.close()


@pytest.mark.long
@pytest.mark.xdist_group("minio")
def test_minio_gets_no_signature(minio_stack: SharedStack) -> None:
    """It obeys headers outside the signature: asked itself, not believed."""
    access = minio_stack.store
    store = StoreSettings(access.endpoint, access.region, access.access_key_id, access.secret_access_key)
    with pytest.raises(NotServed, match="obeys headers that are not signed"):
        RequestSigner(store).sign(ask(store, f"{store.endpoint}/lake/x"))


def test_a_store_that_is_away_or_knows_no_such_keys_is_named(lake: FreshLake) -> None:
    """503, and no key in it."""
    away = StoreSettings("http://127.0.0.1:9", "us-east-1", "id", "a-secret")
    strange = StoreSettings(lake.store.endpoint, lake.store.region, "nobody", "a-secret")
    for store in (away, strange):
        with pytest.raises(ServiceUnavailable) as caught:
            RequestSigner(store).sign(ask(store, f"{store.endpoint}/lake/x"))
        assert str(store.endpoint) in caught.value.message
        assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://s3.eu-central-1.amazonaws.com/lake/a/b", "s3://lake/a/b"),
        ("https://lake.s3.eu-central-1.amazonaws.com/a/b", "s3://lake/a/b"),
        ("https://a.lake.s3.eu-central-1.amazonaws.com:443/b", None),
    ],
)
def test_aws_has_its_buckets_in_hosts_too(uri: str, expected: str | None) -> None:
    """By either spelling, one object; a bucket with a dot in a path alone."""
    if expected is None:
        with pytest.raises(Exception, match="not of this warehouse's store"):
            ask(AWS, uri)
    else:
        told = ask(AWS, uri)
        assert told.spellings == (expected,)
        assert RequestSigner(AWS).sign(told)[0] == uri


def test_every_spelling_is_told() -> None:
    """Of a key that somebody could decode once more; too many are refused."""
    told = ask(AWS, "https://s3.eu-central-1.amazonaws.com/lake/a%252525b")
    assert told.spellings == ("s3://lake/a%2525b", "s3://lake/a%25b", "s3://lake/a%b")
    with pytest.raises(Forbidden):
        ask(AWS, "https://s3.eu-central-1.amazonaws.com/lake/" + "a%2525252525252525b")


def test_requests_are_signed_for_the_endpoint_that_clients_reach() -> None:
    """They send them there, so its host is what the signature has to hold; another host is not of this store."""
    store = StoreSettings("http://s3.internal:9000", "us-east-1", "id", "secret", public_endpoint="https://s3.example.com")
    asked = ask(store, "https://s3.example.com/lake/x")
    assert (asked.wire.host, asked.scheme, asked.spellings) == ("s3.example.com", "https", ("s3://lake/x",))
    with pytest.raises(BadRequest, match="not of this warehouse's store"):
        ask(store, "http://s3.internal:9000/lake/x")
