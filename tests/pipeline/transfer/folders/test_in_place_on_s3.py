"""Folders on S3 become tables where they are, and keys that are lent with such a table open its files and no others."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.common.storage import open_store
from duckicelake.pipeline.transfer.delta import format_keys
from tests.interop.keys.test_pyiceberg import open_catalog
from tests.pipeline.ingest.test_s3 import Bucket
from tests.pipeline.transfer.ferry import Ferry, check_compared, describe, write_properties
from tests.rest.auth.principals import guard, secret_of
from tests.rest.auth.vended import is_refused, load_with_keys
from tests.rest.serving import WAREHOUSE, make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
GIVEN = {"form": "hive", "mode": "register"}
PLAIN = ("x", "y-1", None)
ODD = ("two words", "50%25", "a%2Fb", "12%3A30", "é")


@pytest.fixture
def ferry(stack: SharedStack, spark: Spark, tmp_path: Path) -> Iterator[Ferry]:
    """A lake on S3 that takes in what lies in the bucket's folder."""
    with make_lake(stack) as lake, serve(make_settings(lake, allowed_locations=(Bucket(lake).uri,))) as server:
        served = Served(lake, server)
        yield Ferry(served, spark, served.spark(spark).catalog, tmp_path, "")


def put(bucket: Bucket, folder: Path, name: str, number: int) -> None:
    """A file of one row."""
    pq.write_table(pa.table({"id": [number], "name": [f"n{number}"]}), folder / "one.parquet")
    bucket.put(name, (folder / "one.parquet").read_bytes())


@pytest.mark.long
def test_folders_on_s3_become_tables(ferry: Ferry, tmp_path: Path) -> None:
    """Whatever their names; DuckDB, Spark and PyIceberg show the same."""
    bucket = Bucket(ferry.served.lake)
    for number, text in enumerate(ODD):
        put(bucket, tmp_path, f"ns/t/text={text}/a b.parquet", number)
    put(bucket, tmp_path, "ns/t/text=__HIVE_DEFAULT_PARTITION__/a.parquet", len(ODD))
    report = ferry.bring("import", bucket.uri, **GIVEN, **write_properties(tmp_path, bucket.properties))
    assert describe(report) == [("ns.t", "done", 6)], report.describe()
    wanted = [(0, "two words"), (1, "50%"), (2, "a/b"), (3, "12:30"), (4, "é"), (5, None)]
    assert ferry.ask_duckdb("SELECT id, text FROM lake.ns.t ORDER BY id") == wanted
    assert [tuple(row.values()) for row in ferry.run("SELECT id, text FROM {h}.ns.t ORDER BY id")] == wanted
    rows = ferry.served.pyiceberg().catalog.load_table("ns.t").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["text"]) for row in rows) == wanted


def test_delta_tables_on_s3_become_tables(ferry: Ferry, tmp_path: Path) -> None:
    """With the keys that are given, by the files that their logs have."""
    bucket = Bucket(ferry.served.lake)
    keys = format_keys(open_store(bucket.properties))
    rows = pa.table({"id": range(4), "part": ["a b", "50%", None, "x/y"]})
    write_deltalake(f"{bucket.uri}/ns/t", rows, partition_by=["part"], storage_options=keys)
    write_deltalake(f"{bucket.uri}/ns/t", rows.slice(1), mode="overwrite", partition_by=["part"], storage_options=keys)
    report = ferry.bring("import", bucket.uri, form="delta", mode="register", **write_properties(tmp_path, bucket.properties))
    assert describe(report) == [("ns.t", "done", 3)], report.describe()
    wanted = [(1, "50%"), (2, None), (3, "x/y")]
    assert ferry.ask_duckdb("SELECT id, part FROM lake.ns.t ORDER BY id") == wanted
    assert [tuple(row.values()) for row in ferry.run("SELECT id, part FROM {h}.ns.t ORDER BY id")] == wanted


@dataclass(frozen=True, slots=True)
class Account(Served):
    """A guarded server, asked as an account that brings no keys."""

    credential: str = ""

    def rest_catalog(self) -> RestCatalog:
        """The catalog in Spark's words."""
        return RestCatalog(self.server.uri, WAREHOUSE, self.lake.store.endpoint, self.lake.store.region, credential=self.credential)


@pytest.mark.long
def test_an_account_registers_more_files_than_a_key_opens(ferry: Ferry, tmp_path: Path) -> None:
    """Spark has its requests signed then, and what asks for no file needs no keys: it is compared, found again and verified."""
    bucket, count = Bucket(ferry.served.lake), 40
    for number in range(count):
        put(bucket, tmp_path, f"a/many/text=k{number}/f.parquet", number)
    with guard(ferry.served.lake, sts_role_arn=ROLE_ARN, allowed_locations=(bucket.uri,)) as guarded:
        account = replace(ferry, served=Account(guarded.lake, guarded.server, f"admin:{secret_of('admin')}"))
        for verdict in ("done", "already-there"):
            report = account.bring("import", bucket.uri, **GIVEN, **write_properties(tmp_path, bucket.properties))
            assert describe(report) == [("a.many", verdict, count)], report.describe()
            check_compared(report, "rows", "checksums")
        assert account.ask_duckdb("SELECT count(*), count(DISTINCT text) FROM lake.a.many") == [(count, count)]


@pytest.mark.long
def test_lent_keys_open_the_files_of_such_a_table(ferry: Ferry, tmp_path: Path) -> None:
    """By name: what else lies in the folder, or comes there later, stays closed."""
    bucket = Bucket(ferry.served.lake)
    for number, text in enumerate(PLAIN):
        put(bucket, tmp_path, f"a.db/plain/text={text or '__HIVE_DEFAULT_PARTITION__'}/f.parquet", number)
    with guard(ferry.served.lake, sts_role_arn=ROLE_ARN) as guarded:
        report = ferry.bring("import", bucket.uri, **GIVEN, **write_properties(tmp_path, bucket.properties))
        assert describe(report) == [("a.plain", "done", 3)], report.describe()
        put(bucket, tmp_path, "a.db/plain/text=x/later.parquet", 9)
        lent, place = load_with_keys(guarded, "reader", "namespaces/a/tables/plain"), f"{ferry.served.lake.name}/drop/a.db/plain"
        where = {"Bucket": ferry.served.lake.store.bucket}
        assert not is_refused(lent.s3.get_object, **where, Key=f"{place}/text=x/f.parquet")
        assert is_refused(lent.s3.get_object, **where, Key=f"{place}/text=x/later.parquet")
        assert is_refused(lent.s3.delete_object, **where, Key=f"{place}/text=x/f.parquet")
        rows = open_catalog(guarded, "reader").load_table("a.plain").scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["text"]) for row in rows) == list(enumerate(PLAIN))
