"""S3 as others see it: odd keys, dead stores, wrong keys, foreign environments."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import boto3
import pytest

from duckicelake.errors import ServiceUnavailable
from duckicelake.store.objects import Objects, StoreSettings, open_objects
from duckicelake.store.s3 import is_guarded
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack

ODD_KEYS = [
    "plain/a.parquet",
    "sp ace/x y.parquet",
    "lead/ x .parquet",
    "pct/100%/a%20b%2Fc%.parquet",
    "uml/ü/日本😀.parquet",
    "nfd/u\u0308.parquet",
    "hash/a#b.parquet",
    "plus/a+b.parquet",
    "hive/k=v%2Fw/l=a b/x.parquet",
    "star/a*b.parquet",
    "quote/a'b\"c.parquet",
    "brackets/a[1]{2}(3).parquet",
    "signs/~&;,=@:$!|<>^`.parquet",
    "dots/..x/...y.parquet",
]


@pytest.fixture
def settings(stack: SharedStack) -> StoreSettings:
    """How to reach the shared S3."""
    return StoreSettings(stack.store.endpoint, stack.store.region, stack.store.access_key_id, stack.store.secret_access_key)


@pytest.fixture
def objects(settings: StoreSettings) -> Objects:
    """The objects of the shared S3."""
    return open_objects(settings)


def test_duckdb_and_we_mean_the_same_object(lake: FreshLake, objects: Objects) -> None:
    """What DuckDB writes under a key we read under it, and the other way round, literally."""
    root, conn = lake.data_path.removesuffix("/"), lake.bare_duckdb()
    for key in ODD_KEYS:
        duck, ours = f"{root}/duck/{key}", f"{root}/ours/{key}"
        conn.execute(f"COPY (SELECT 42 AS answer) TO '{duck.replace(chr(39), chr(39) * 2)}' (FORMAT parquet)")
        objects.put_new(ours, objects.read(duck))
        if not set(key) & set("*[{"):  # DuckDB takes these for a pattern when it reads
            assert conn.execute("SELECT answer FROM read_parquet(?)", [ours]).fetchall() == [(42,)]
    written = {f"{side}/{key}" for side in ("duck", "ours") for key in ODD_KEYS}
    assert set(list_keys(lake, root)) == written
    assert {uri for uri, _ in objects.list_under(root)} == {f"{root}/{key}" for key in written}


def list_keys(lake: FreshLake, root: str) -> Iterator[str]:
    """The literal keys below a folder as boto3 sees them."""
    client = boto3.client(
        "s3",
        endpoint_url=lake.store.endpoint,
        region_name=lake.store.region,
        aws_access_key_id=lake.store.access_key_id,
        aws_secret_access_key=lake.store.secret_access_key,
    )
    prefix = root.removeprefix(f"s3://{lake.store.bucket}/") + "/"
    for found in client.list_objects_v2(Bucket=lake.store.bucket, Prefix=prefix).get("Contents", []):
        yield found["Key"].removeprefix(prefix)


@pytest.fixture
def dead_endpoint() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_dead_store_is_reported_soon_and_by_name(dead_endpoint: str) -> None:
    """Every act on a dead store ends within three seconds, names the endpoint, and shows no key."""
    objects = open_objects(StoreSettings(dead_endpoint, "us-east-1", "AKIDEXAMPLE", "s3cr3t"))
    acts = [
        lambda: objects.read("s3://lake/a"),
        lambda: objects.read_ranges("s3://lake/a", [(0, 1)]),
        lambda: objects.exists("s3://lake/a"),
        lambda: objects.put_new("s3://lake/a", b""),
        lambda: objects.put_many_new([(f"s3://lake/{number}", b"") for number in range(40)]),
        lambda: objects.find_etag("s3://lake/a"),
        lambda: objects.replace("s3://lake/a", b"", "tag"),
        lambda: list(objects.list_under("s3://lake/a")),
        lambda: objects.delete("s3://lake/a"),
        lambda: objects.check("s3://lake/a"),
    ]
    for act in acts:
        started = time.monotonic()
        with pytest.raises(ServiceUnavailable, match=dead_endpoint) as caught:
            act()
        assert time.monotonic() - started < 3.5
        assert "AKID" not in caught.value.message
        assert "s3cr3t" not in caught.value.message


def test_a_store_that_never_answers_is_found_by_the_check(silent_endpoint: str) -> None:
    """The check does not wait for a hung store."""
    started = time.monotonic()
    with pytest.raises(ServiceUnavailable, match=silent_endpoint):
        open_objects(StoreSettings(silent_endpoint, "us-east-1", "k", "s")).check("s3://lake/a")
    assert time.monotonic() - started < 3.5


@pytest.mark.parametrize(
    ("key_id", "bucket", "reason"),
    [
        pytest.param("AKIDWRONG", "lake", "InvalidAccessKeyId", id="wrong-keys"),
        pytest.param(None, "no-such-bucket", "NoSuchBucket", id="missing-bucket"),
    ],
)
def test_a_store_that_refuses_us_is_unavailable(settings: StoreSettings, key_id: str | None, bucket: str, reason: str) -> None:
    """The store's reason is repeated, our keys are not, and nothing is taken for a missing object."""
    objects = open_objects(replace(settings, access_key_id=key_id or settings.access_key_id))
    acts: list[Callable[[str], object]] = [lambda uri: objects.put_new(uri, b"x"), objects.check, lambda uri: list(objects.list_under(uri))]
    for act in acts:
        with pytest.raises(ServiceUnavailable, match=reason) as caught:
            act(f"s3://{bucket}/a")
        assert "AKIDWRONG" not in caught.value.message


def test_a_good_store_passes_the_check(objects: Objects, stack: SharedStack) -> None:
    """The check asks the bucket of the URI, whether or not the object exists."""
    objects.check(f"s3://{stack.store.bucket}/nothing/here")


def test_the_environment_does_not_steer_a_configured_store(
    settings: StoreSettings, stack: SharedStack, dead_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS variables of a shell belong to other keys and other stores."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": dead_endpoint,
        "AWS_ENDPOINT_URL": dead_endpoint,
        "AWS_SESSION_TOKEN": "of other keys",
        "AWS_ACCESS_KEY_ID": "other",
        "AWS_REGION": "eu-west-1",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{stack.store.bucket}/environment"
    objects = open_objects(settings)
    objects.put_new(uri, b"x")
    assert objects.read(uri) == b"x"


def test_settings_do_not_show_their_secret() -> None:
    """The secret stays out of logs."""
    assert "s3cr3t" not in repr(StoreSettings("http://e", "us-east-1", "AKID", "s3cr3t"))


def test_s3a_is_another_spelling_of_s3(objects: Objects, stack: SharedStack) -> None:
    """Hadoop's scheme reaches the same object, and listings keep the spelling."""
    objects.put_new(f"s3a://{stack.store.bucket}/spelling/a", b"x")
    assert objects.read(f"s3://{stack.store.bucket}/spelling/a") == b"x"
    assert list(objects.list_under(f"s3a://{stack.store.bucket}/spelling")) == [(f"s3a://{stack.store.bucket}/spelling/a", 1)]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        pytest.param(None, True, id="AWS"),
        pytest.param("https://minio.example.org", True, id="TLS"),
        pytest.param("http://127.0.0.1:9000", True, id="loopback"),
        pytest.param("http://[::1]:9000", True, id="loopback of IPv6"),
        pytest.param("http://localhost:9000", True, id="localhost"),
        pytest.param("http://minio:9000", False, id="another machine"),
        pytest.param("http://10.0.0.7:9000", False, id="another address"),
        pytest.param("http://127.0.0.1.example.org", False, id="a name that looks like loopback"),
    ],
)
def test_a_connection_guards_what_is_written_by_tls_or_by_staying_here(endpoint: str | None, expected: bool) -> None:
    """Nowhere else does a payload go without a hash of it in the signature."""
    assert is_guarded(endpoint) is expected


@pytest.fixture
def told_hashes() -> Iterator[tuple[str, list[str]]]:
    """A store that takes everything, by its endpoint, and what requests say their payloads hash to."""
    told: list[str] = []

    class Taking(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            told.append(self.headers["x-amz-content-sha256"])
            self.send_response(200)
            self.send_header("etag", '"1"')
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", told
        running.shutdown()
        thread.join()


def test_a_payload_is_hashed_where_that_is_asked_for_or_nothing_else_guards_it(told_hashes: tuple[str, list[str]]) -> None:
    """The server's own setting says which; whoever says nothing signs."""
    endpoint, told = told_hashes
    signing = StoreSettings(endpoint, "us-east-1", "id", "secret")
    for settings in (signing, replace(signing, signs_payloads=False)):
        objects = open_objects(settings)
        objects.put_new("s3://lake/a", b"metadata")
        objects.replace("s3://lake/a", b"metadata", '"1"')
    assert told == [sha256(b"metadata").hexdigest()] * 2 + ["UNSIGNED-PAYLOAD"] * 2


def test_what_is_written_unsigned_is_there(each_stack: SharedStack) -> None:
    """Writing once, comparing and swapping, and writing in parts do what they do with signed payloads."""
    store = each_stack.store
    unsigned = StoreSettings(store.endpoint, store.region, store.access_key_id, store.secret_access_key, signs_payloads=False)
    objects, root = open_objects(unsigned), f"s3://{store.bucket}/unsigned"
    content = bytes(range(256)) * 40_000
    assert [objects.put_new(f"{root}/once", each) for each in (content, b"another")] == [True, False]
    etag = objects.replace(f"{root}/hint", b"1", None)
    assert objects.replace(f"{root}/hint", b"2", etag) is not None
    assert objects.replace(f"{root}/hint", b"3", etag) is None
    objects.put_parts(f"{root}/parts", iter([content, b"end"]))
    written = {f"{root}/once": content, f"{root}/hint": b"2", f"{root}/parts": content + b"end"}
    assert objects.read_many(written) == written
