"""PyIceberg's own signer: a client without keys that has each request to the store signed by the catalog."""

from collections.abc import Generator
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.exceptions import SignError
from pyiceberg.io.fsspec import SIGNERS
from pyiceberg.table import Table

from tests.interop.keys.test_pyiceberg import ROWS, open_catalog
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.vended import split
from tests.support.lakes import FreshLake

SIGNING = {"header.X-Iceberg-Access-Delegation": "remote-signing"}


@pytest.fixture
def signing(lake: FreshLake) -> Generator[Guarded]:
    """A guarded server that vends no keys."""
    with guard(lake) as running:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.rows AS SELECT range AS i FROM range(50000)")
        conn.execute("CREATE TABLE b.rows AS SELECT range AS i FROM range(50000)")
        yield running


def load(guarded: Guarded, principal: str, ident: tuple[str, str] = ROWS) -> Table:
    """A table of a client that has no keys, and takes signatures."""
    return open_catalog(guarded, principal, **SIGNING).load_table(ident)


def open_signed(table: Table) -> Any:
    """An S3 client without keys whose requests PyIceberg's signer signs, as PyIceberg makes one."""
    properties = table.io.properties
    client = boto3.client(
        "s3",
        endpoint_url=properties["s3.endpoint"],
        region_name=properties["s3.region"],
        config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    signer = SIGNERS[properties["s3.signer"]](properties)
    client.meta.events.register_last("before-sign.s3", signer)
    return client


def test_a_reader_reads_by_signatures_alone(signing: Guarded) -> None:
    """Objects, ranges, heads and lists; it writes nothing, and reads nothing of other tables."""
    table = load(signing, "reader")
    s3, (bucket, key) = open_signed(table), split(table.metadata_location)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read(1) == b"{"
    assert s3.get_object(Bucket=bucket, Key=key, Range="bytes=0-3")["ContentLength"] == 4
    assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] > 0
    folder = key.rpartition("/")[0] + "/"
    assert key in [found["Key"] for found in s3.list_objects_v2(Bucket=bucket, Prefix=folder)["Contents"]]
    other = split(load(signing, "admin", ("b", "rows")).metadata_location)[1]
    for refused in (
        lambda: s3.put_object(Bucket=bucket, Key=f"{folder}x", Body=b"x"),
        lambda: s3.delete_object(Bucket=bucket, Key=key),
        lambda: s3.get_object(Bucket=bucket, Key=other),
        lambda: s3.list_objects_v2(Bucket=bucket, Prefix=other.rpartition("/")[0] + "/"),
    ):
        with pytest.raises(SignError, match="403"):
            refused()


def test_nobody_has_to_say_where_to_sign(signing: Guarded) -> None:
    """With its signer in its own settings alone, PyIceberg asks where it always did: there an object's place says which table it is."""
    table = open_catalog(signing, "reader", **{"s3.signer": "S3V4RestSigner"}).load_table(ROWS)
    assert not {"s3.signer.endpoint", "signer.endpoint"} & set(table.io.properties)
    s3, (bucket, key) = open_signed(table), split(table.metadata_location)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read(1) == b"{"
    other = split(load(signing, "admin", ("b", "rows")).metadata_location)[1]
    for refused in (lambda: s3.get_object(Bucket=bucket, Key=other), lambda: s3.delete_object(Bucket=bucket, Key=key)):
        with pytest.raises(SignError, match="403"):
            refused()


def test_a_writer_writes_by_signatures_alone(signing: Guarded) -> None:
    """Objects, copies, uploads in parts, with the checksums that botocore adds; and removes them one by one, not in bulk."""
    table = load(signing, "writer")
    s3, (bucket, location) = open_signed(table), split(table.location())
    key = f"{location}/data/a b=ü.parquet"
    s3.put_object(Bucket=bucket, Key=key, Body=b"x" * 1000)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"x" * 1000
    s3.copy_object(Bucket=bucket, Key=f"{key}.copy", CopySource={"Bucket": bucket, "Key": key})
    upload = s3.create_multipart_upload(Bucket=bucket, Key=f"{key}.parts")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key=f"{key}.parts", UploadId=upload, PartNumber=1, Body=b"y" * 100)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key=f"{key}.parts", UploadId=upload, MultipartUpload=parts)
    assert s3.get_object(Bucket=bucket, Key=f"{key}.parts")["Body"].read() == b"y" * 100
    with pytest.raises(SignError, match="403"):
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}]})
    for made in (key, f"{key}.copy", f"{key}.parts"):
        s3.delete_object(Bucket=bucket, Key=made)
    with pytest.raises(ClientError):
        s3.head_object(Bucket=bucket, Key=key)
