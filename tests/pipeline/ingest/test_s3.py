"""Objects of S3 as files: found by URI, folder or pattern, with the usual keys, each once, and not again when its bytes are the same."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from duckicelake.errors import BadRequest, Forbidden, ServiceUnavailable
from duckicelake.pipeline.common.storage import NoSource, encode_path, is_hidden, open_store, translate_pattern
from duckicelake.pipeline.ingest.options import Changed, Status
from duckicelake.pipeline.ingest.source import SourceMoved
from tests.cli.test_commands import settings_for
from tests.pipeline.ingest.mill import Mill
from tests.pipeline.ingest.test_avro import write_ids
from tests.support.commands import run
from tests.support.lakes import FreshLake
from tests.support.spark import CALM_OPTIONS
from tests.support.tiers import whole_after


class Bucket:
    """A folder of the tests' own store."""

    def __init__(self, lake: FreshLake) -> None:
        make_client: Any = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
        keys = {"aws_access_key_id": lake.store.access_key_id, "aws_secret_access_key": lake.store.secret_access_key}
        self.client = make_client("s3", endpoint_url=lake.store.endpoint, region_name=lake.store.region, **keys)
        self.lake = lake
        self.uri = f"s3://{lake.store.bucket}/{lake.name}/drop"

    def put(self, name: str, content: str | bytes) -> None:
        """Put an object."""
        body = content.encode() if isinstance(content, str) else content
        self.client.put_object(Bucket=self.lake.store.bucket, Key=f"{self.lake.name}/drop/{name}", Body=body)

    def delete(self, name: str) -> None:
        """Remove an object."""
        self.client.delete_object(Bucket=self.lake.store.bucket, Key=f"{self.lake.name}/drop/{name}")

    @property
    def variables(self) -> Mapping[str, str]:
        """What AWS's own tools read."""
        store = self.lake.store
        keys = {"AWS_ACCESS_KEY_ID": store.access_key_id, "AWS_SECRET_ACCESS_KEY": store.secret_access_key}
        return keys | {"AWS_ENDPOINT_URL": store.endpoint, "AWS_REGION": store.region}

    @property
    def properties(self) -> Mapping[str, str]:
        """The same as options of the job."""
        store = self.lake.store
        keys = {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
        return keys | {"s3.endpoint": store.endpoint, "client.region": store.region}


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_objects_are_taken_once(mill: Mill, tmp_path: Path) -> None:
    """Odd names, columns of paths, hidden ones; the same bytes again are the same, others are not; what is cut or vanishes is named."""
    bucket = Bucket(mill.served.lake)
    how = {"reading": bucket.properties, "source": bucket.uri}
    bucket.put("day=1/a b%é.csv", "id,name\n1,a\n2,b\nbad,c\n")
    bucket.put("day=2/[b].csv", "id,name\n3,c\n")
    bucket.put("day=2/_hidden.csv", "id,name\n9,c\n")
    done = mill.run(**how, schema="id INT, name STRING, day INT")
    assert (done.files, done.rows_in, done.rows_out, done.rows_quarantined) == (2, 4, 3, 1)
    assert mill.rows() == [(1, "a", 1), (2, "b", 1), (3, "c", 2)]
    ledger = mill.rows("trips__ingested", "uri, rows, quarantined, length(etag)")
    assert ledger == [(f"{bucket.uri}/day=1/a%20b%25é.csv", 3, 1, 32), (f"{bucket.uri}/day=2/%5Bb%5D.csv", 1, 0, 32)]
    assert mill.rows("trips__quarantine", "source_file, row_index, line") == [(ledger[0][0], 2, 4)]
    bucket.put("day=2/[b].csv", "id,name\n3,c\n")
    assert mill.run(source=bucket.uri.replace("s3:", "s3a:"), reading=bucket.properties).status == Status.nothing_new
    bucket.put("day=2/[b].csv", "id,name\n4,c\n")
    with pytest.raises(BadRequest, match="is another file now"):
        mill.run(**how)
    assert mill.run(**how, changed=Changed.skip).status == Status.nothing_new
    content = write_ids(tmp_path / "c.avro", 5, 6).read_bytes()
    bucket.put("day=3/c.avro", content[:-5])
    pattern = {"source": f"{bucket.uri}/day={{3,4}}/*.avro", "reading": bucket.properties}
    with pytest.raises(BadRequest, match=r"c\.avro cannot be read as Avro.*cut"):
        mill.run(**pattern)
    bucket.put("day=3/c.avro", content)

    def tell(step: str) -> None:
        if step == "write raw.trips__ingested":
            bucket.delete("day=3/c.avro")

    with pytest.raises((NoSource, SourceMoved)):
        mill.run(**pattern, tell=tell)
    bucket.put("day=3/c.avro", content)
    assert mill.run(**pattern).rows_out == 2
    assert mill.rows(columns="id") == [(1,), (2,), (3,), (5,), (6,)]


def test_a_delta_table_is_no_folder_of_objects(lake: FreshLake) -> None:
    """Whether its log comes before its files in the list, or after them."""
    bucket = Bucket(lake)
    for name in ("t/0.parquet", "t/_delta_log/0.json", "u/_delta_log/0.json", "u/part-0.parquet", "v/0.parquet", "w/_delta_log/0.json"):
        bucket.put(name, "x")
    store = open_store(bucket.properties)
    for source in ("", "/t", "/u", "/u/*.parquet"):
        with pytest.raises(BadRequest, match=r"[tu] is a Delta table.*--format delta"):
            list(store.list_objects(bucket.uri + source))
    assert [uri for uri, *_ in store.list_objects(f"{bucket.uri}/[vw]")] == [f"{bucket.uri}/v/0.parquet"]


@pytest.mark.parametrize(
    ("change", "uri", "error", "message"),
    whole_after(
        1,
        [
            pytest.param({}, "/none", NoSource, "there is no s3://", id="nothing there"),
            pytest.param({}, "s3://no-such-bucket-here/x", NoSource, "no such bucket", id="no bucket"),
            pytest.param({}, "s3:///x", BadRequest, "names no bucket", id="no name"),
            pytest.param({"s3.secret-access-key": "wrong-key-0123"}, "", Forbidden, "cannot be listed with these keys", id="secret"),
            pytest.param({"s3.access-key-id": "NOBODY"}, "", Forbidden, "cannot be listed with these keys", id="id"),
            pytest.param({"s3.endpoint": "http://127.0.0.1:1"}, "", ServiceUnavailable, "Could not connect", id="nobody answers"),
        ],
    ),
)
def test_what_the_store_refuses_is_said(lake: FreshLake, change: dict[str, str], uri: str, error: type[Exception], message: str) -> None:
    """Without the keys."""
    bucket = Bucket(lake)
    source = uri if uri.startswith("s3:") else bucket.uri + uri
    with pytest.raises(error, match=message) as raised:
        list(open_store(dict(bucket.properties) | change).list_objects(source))
    assert not [value for name, value in (dict(bucket.properties) | change).items() if "secret" in name and value in str(raised.value)]


def test_without_keys_there_is_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is asked; with a profile of AWS's files there are keys, and a region and an endpoint if it says so."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with pytest.raises(BadRequest, match="no keys to S3: set AWS_PROFILE"):
        open_store({})
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text("[me]\naws_access_key_id = ID\naws_secret_access_key = hidden-text\n")
    (tmp_path / "AWS_CONFIG_FILE").write_text("[profile me]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_PROFILE", "me")
    store = open_store({})
    assert (store.keys.key_id, store.region, store.endpoint) == ("ID", "eu-west-1", None)
    assert "fs.s3a.endpoint" not in store.format_settings()
    assert "hidden-text" not in repr(store)
    assert open_store({"s3.endpoint": "http://127.0.0.1:9"}).format_settings()["fs.s3a.endpoint"] == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        pytest.param("a/*.csv", "a/b.csv", True, id="star"),
        pytest.param("a/*.csv", "a/b/c.csv", False, id="star stops at folders"),
        pytest.param("a/{b,c}/?.csv", "a/c/x.csv", True, id="either"),
        pytest.param("a/{b,c}", "a/d", False, id="neither"),
        pytest.param("a[0-3^]", "a^", True, id="one of"),
        pytest.param("a[^0-3]", "a2", False, id="none of"),
        pytest.param(r"a\*", "a*", True, id="by the letter"),
        pytest.param("a.b,c", "aXb,c", False, id="no pattern"),
    ],
)
def test_patterns_are_spark_s(pattern: str, name: str, fits: bool) -> None:
    """As Hadoop's file systems match them."""
    assert (re.fullmatch(translate_pattern(pattern), name) is not None) is fits


def test_names_that_spark_passes_over() -> None:
    """Below the folder, or the file's own; a column may begin so; folders are no files."""
    assert [is_hidden(*one) for one in (("a/_b/c", "/_b/c"), ("_a/c", "/c"), ("a/.c", "/.c"), ("a/_d=1/c", "/_d=1/c"), ("a/", "/"))] == [
        *(True, False, True, False, True)
    ]
    assert encode_path('a b%é"/x=1[]') == "a%20b%25é%22/x=1%5B%5D"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_the_command_takes_the_usual_keys(mill: Mill, tmp_path: Path) -> None:
    """From the environment, with nothing said of Spark; Parquet, ORC and JSON too, and followed."""
    bucket = Bucket(mill.served.lake)
    for number, name in enumerate(("a.jsonl", "b.jsonl")):
        bucket.put(name, json.dumps({"id": number}) + "\n")
    bucket.put("c.parquet", mill.write_parquet("c.parquet", id=[2, 3]).read_bytes())
    settings = {**settings_for(mill.served.lake, port=str(mill.served.server.port)), **bucket.variables}
    follow = ["--follow", "--max-batches", "1", "--settle", "0", *CALM_OPTIONS]
    done = run(tmp_path, "pipeline", "ingest", f"{bucket.uri}/*.jsonl", "raw.trips", *follow, "--report", "r.json", settings=settings)
    assert done.status == 0, done.err
    done = run(tmp_path, "pipeline", "ingest", f"{bucket.uri}/c.parquet", "raw.trips", *CALM_OPTIONS, settings=settings)
    assert done.status == 0, done.err
    assert mill.rows(columns="id") == [(0,), (1,), (2,), (3,)]
    assert bucket.lake.store.secret_access_key not in (tmp_path / "r.json").read_text() + done.err + done.out
