"""What others do in the middle of a run: the same job twice, a source that goes on, rows that are not what they were."""

import shutil
import struct
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from duckicelake.embedded.object_store import StoreAccess
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.pipeline.transfer.job import compare_rows
from duckicelake.pipeline.verify.row_hashes import hash_rows
from tests.pipeline.transfer.ferry import Ferry, describe, write_properties
from tests.rest.serving import WAREHOUSE
from tests.support.keys import open_s3
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark, letting_go
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


@pytest.mark.long
def test_two_imports_at_once_make_one_table(ferry: Ferry) -> None:
    """The one that comes second finds what it was about to make, and says that it is done."""
    ferry.run("CREATE TABLE {t}.ns.t USING iceberg AS SELECT id FROM range(5)")
    others: list[str] = []

    def overtake(step: str) -> None:
        if step == "publish ns.t":
            others.extend(str(one.verdict) for one in ferry.take().moved)

    assert describe(ferry.take(tell=overtake)) == [("ns.t", "done", 5)]
    assert others == ["done"]
    assert ferry.ask_duckdb("SELECT count(*) FROM lake.ns.t") == [(5,)]
    assert len(ferry.load_here("ns", "t")["snapshot-log"]) == 1


def format_keys(store: StoreAccess) -> dict[str, str]:
    """The keys of a store as Iceberg calls them."""
    keys = {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
    return {"s3.endpoint": store.endpoint, "client.region": store.region, **keys}


@pytest.mark.long
@pytest.mark.parametrize("is_on_s3", [pytest.param(False, id="disk"), pytest.param(True, id="s3")])
def test_two_exports_at_once_make_one_table(ferry: Ferry, stack: SharedStack, tmp_path: Path, is_on_s3: bool) -> None:
    """Version 1 is written by one of them alone, and what it names comes in again."""
    ferry.ask_duckdb("CREATE SCHEMA ns; CREATE TABLE ns.t AS SELECT range AS id FROM range(5)")
    bucket, folder = stack.store.bucket, f"{ferry.served.lake.name}/there"
    place = f"s3://{bucket}/{folder}" if is_on_s3 else str(ferry.folder)
    given = write_properties(tmp_path, format_keys(stack.store) if is_on_s3 else {})
    others: list[str] = []

    def read_version() -> str:
        if is_on_s3:
            found = open_s3(stack.store).get_object(Bucket=bucket, Key=f"{folder}/ns/t/metadata/v1.metadata.json")
            return found["Body"].read().decode()
        return (ferry.metadata_folder("ns", "t") / "v1.metadata.json").read_text()

    def overtake(step: str) -> None:
        if step == "publish ns.t":
            others.extend(str(one.verdict) for one in ferry.bring("export", place, **given).moved)
            others.append(read_version())

    report = ferry.bring("export", place, tell=overtake, **given)
    assert describe(report) == [("ns.t", "done", 5)], report.describe()
    assert others == ["done", read_version()]
    assert describe(ferry.bring("import", place, mode="copy", into="back", **given)) == [("back.ns.t", "done", 5)]


@pytest.mark.long
def test_a_table_that_is_written_to_meanwhile_is_copied_as_it_was(ferry: Ferry) -> None:
    """A lake exported by REST to itself: its snapshot is read, or nothing where no snapshot has the present columns."""
    ferry.ask_duckdb("CREATE SCHEMA ns; CREATE TABLE ns.t AS SELECT range AS id FROM range(5)")
    ferry.ask_duckdb("CREATE TABLE ns.u AS SELECT range AS id FROM range(5); ALTER TABLE ns.u ADD COLUMN more INT")

    def go_on(step: str) -> None:
        if step.startswith("copy back.ns."):
            ferry.ask_duckdb(f"INSERT INTO {step.removeprefix('copy back.')} (id) VALUES (5)")

    given = {"into": "back", "property": [f"warehouse={WAREHOUSE}"]}
    report = ferry.bring("export", ferry.served.server.uri, "ns.t", "ns.u", tell=go_on, **given)
    assert describe(report) == [("back.ns.t", "done", 5), ("back.ns.u", "failed", None)], report.describe()
    assert report.moved[1].message == "others wrote to ns.u meanwhile: run again"
    assert ferry.list_here("back%1Fns") == ["t"]
    assert describe(ferry.bring("export", ferry.served.server.uri, "ns.u", **given)) == [("back.ns.u", "done", 6)]


@pytest.mark.long
def test_rows_that_differ_are_told(ferry: Ferry) -> None:
    """A file of the source that has other rows than when it was copied."""
    for name, value in (("t", 1), ("u", 2)):
        ferry.run(f"CREATE TABLE {{t}}.ns.{name} (id int) USING iceberg", f"INSERT INTO {{t}}.ns.{name} VALUES ({value})")
    assert ferry.take("ns.t").status == 0
    mine, other = (find_file(ferry.folder / "ns" / name) for name in "tu")
    assert mine.stat().st_size == other.stat().st_size
    mine.with_name(f".{mine.name}.crc").unlink()
    shutil.copyfile(other, mine)
    report = ferry.take("ns.t")
    assert report.status == 1
    assert report.moved[0].message.startswith("it is there, and its rows are not the same: 1 rows there, 1 here, and 2 of")
    [told] = report.moved
    assert (told.rows, told.target_rows, told.checked) == (1, 1, ("rows", "checksums"))
    assert told.source_checksum != told.target_checksum
    [unchecked] = ferry.take("ns.t", no_verify=True).moved
    assert (unchecked.message, unchecked.checked, unchecked.source_checksum) == ("not compared", (), "")


def find_file(table: Path) -> Path:
    """The only data file of a table."""
    (found,) = (table / "data").glob("*.parquet")
    return found


@pytest.mark.parametrize(
    ("there", "difference"),
    long_but(
        [
            pytest.param("(2), (1), (1), (NULL)", "", id="order does not count"),
            pytest.param("(2), (1), (NULL)", "4 rows there, 3 here, and 1 of", id="one is missing"),
            pytest.param("(2), (1), (2), (NULL)", "4 rows there, 4 here, and 2 of", id="another one doubled"),
            pytest.param("(2), (1), (1), (0)", "4 rows there, 4 here, and 2 of", id="zero is not NULL"),
        ],
        "one is missing",
    ),
)
def test_rows_are_compared_as_a_bag(spark: Spark, there: str, difference: str) -> None:
    """How often a row is there counts, and nothing else; the checksums say the same."""
    schema = Schema(0, (NestedField(1, "a.b", PrimitiveType("int"), required=False),))
    with letting_go():
        found = compare_rows(spark.session, "VALUES (1), (2), (1), (NULL) AS one", f"VALUES {there} AS other", schema)
    assert (found.source_rows, found.target_rows) == (4, there.count("("))
    assert (found.difference[: len(difference)], bool(found.difference)) == (difference, bool(difference))
    assert (found.source_checksum != found.target_checksum) == bool(difference)
    assert found.source_checksum == sum_up(pa.record_batch({"a.b": pa.array([None, 1, 1, 2], pa.int32())}), schema)


def sum_up(rows: pa.RecordBatch, schema: Schema) -> str:
    """The checksum of rows, by their numbers one by one: those whose first twelve bits are the same are counted and added up."""
    counts, sums = [0] * 4096, [0] * 4096
    for number in hash_rows(rows, schema.fields).tolist():
        counts[number >> 52] += 1
        sums[number >> 52] = (sums[number >> 52] + number) % (1 << 64)
    return sha256(struct.pack("<4096q", *counts) + struct.pack("<4096Q", *sums)).hexdigest()
