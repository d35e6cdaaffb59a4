"""Everything that PyIceberg writes to version 2 tables: both sides have the rows, and plain DuckDB goes on with the table."""

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, In, IsNull, LessThan, Not, StartsWith
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, NestedField, StringType, StructType, TimestampType

from duckicelake.commands.check import list_findings
from duckicelake.embedded.home import open_home
from tests.rest.serving import make_settings
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.tiers import long_but, whole_but

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "score", DoubleType()),
    NestedField(4, "day", DateType()),
    identifier_field_ids=[1],
)
BY_NAME = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
BY_DAY = PartitionSpec(PartitionField(4, 1000, DayTransform(), "day_day"), PartitionField(1, 1001, BucketTransform(3), "id_bucket"))

Ids = list[int]


class Story:
    """The table ns.t, and what both sides say of it."""

    def __init__(self, served: Served, spec: PartitionSpec, **properties: str) -> None:
        self.served = served
        self.catalog: RestCatalog = served.pyiceberg().catalog
        self.catalog.create_namespace("ns")
        self.table: Table = self.catalog.create_table("ns.t", SCHEMA, partition_spec=spec, properties=properties)
        self.duck: DuckDBPyConnection = served.lake.duckdb()

    def rows(self, *ids: int, name: str | None = None, score: float = 0.5) -> pa.Table:
        """Rows with these ids; their names go a, b, c, a …, every seventh is NULL."""
        names = [name or (None if i % 7 == 6 else "abc"[i % 3]) for i in ids]
        days = [date(2019, 12, 30) + timedelta(days=i) for i in ids]
        return pa.table({"id": ids, "name": names, "score": [i + score for i in ids], "day": days}, schema=SCHEMA.as_arrow())

    def check(self, ids: Ids) -> None:
        """Both sides have rows with these ids, alike in every column."""
        arrow = self.table.refresh().scan().to_arrow()
        assert sorted(arrow["id"].to_pylist()) == sorted(ids)
        names = ", ".join(arrow.column_names)
        assert len(arrow.column_names) == len(self.duck.execute("DESCRIBE lake.ns.t").fetchall())
        mine = self.duck.execute(f"SELECT {names} FROM arrow ORDER BY ALL").fetchall()
        assert mine == self.duck.execute(f"SELECT {names} FROM lake.ns.t ORDER BY ALL").fetchall()

    def finish(self) -> None:
        """Plain DuckDB goes on."""
        check_going_on(self.served, ("ns", "t"))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("spec", "properties"),
    whole_but(
        [
            pytest.param(PartitionSpec(), {}, id="unpartitioned", marks=pytest.mark.long),
            pytest.param(
                BY_NAME, {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}, id="by name, merging"
            ),
            pytest.param(BY_DAY, {"write.object-storage.enabled": "true"}, id="by day and bucket", marks=pytest.mark.long),
        ],
        "by name, merging",
    ),
)
def test_rows_are_appended_overwritten_and_deleted(served: Served, spec: PartitionSpec, properties: dict[str, str]) -> None:
    """Filters of every kind, over files of both sides, partly and whole; an overwrite of everything at last."""
    story = Story(served, spec, **properties)
    story.table.append(story.rows(*range(12)))
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'duck', range, DATE '2020-03-01' FROM range(100, 120)")
    story.duck.execute("INSERT INTO lake.ns.t VALUES (200, 'inlined', 1, NULL), (201, NULL, NULL, NULL)")
    story.table.refresh().delete(In("id", [3, 105, 200]))
    left = [i for i in [*range(12), *range(100, 120), 201] if i not in (3, 105)]
    story.check(left)
    story.table.overwrite(story.rows(50, 51), And(GreaterThanOrEqual("id", 8), LessThan("id", 102)))
    left = [i for i in left if not 8 <= i < 102] + [50, 51]
    story.check(left)
    story.table.delete(IsNull("name"))
    left = [i for i in left if i not in (201, 6)]
    story.check(left)
    story.table.delete(Not(StartsWith("name", "d")))
    left = [i for i in left if i >= 102]
    story.check(left)
    story.table.append(story.rows(1, 2), snapshot_properties={"mine": "yes"})
    newest = story.table.current_snapshot()
    assert newest is not None and newest.summary is not None
    assert newest.summary.additional_properties["mine"] == "yes"
    story.check([*left, 1, 2])
    story.finish()
    story.table.refresh().overwrite(story.rows(7, 8))
    story.check([7, 8])


@pytest.mark.long
def test_partitions_are_replaced_dynamically(served: Served) -> None:
    """The partitions that rows come for lose theirs, those of DuckDB's files too; others stay."""
    story = Story(served, BY_NAME)
    story.table.append(story.rows(*range(12)))
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, CASE WHEN range < 105 THEN 'a' ELSE 'z' END, 1, NULL FROM range(100, 120)")
    story.table.refresh().dynamic_partition_overwrite(story.rows(60, 61, name="a"))
    gone = [i for i in range(12) if i % 3 == 0 and i % 7 != 6] + list(range(100, 105))
    story.check([i for i in [*range(12), *range(100, 120), 60, 61] if i not in gone])
    story.finish()


@pytest.mark.long
def test_partitions_by_numbers_that_no_float_has_are_replaced_dynamically(served: Served, tmp_path: Path) -> None:
    """PyIceberg reads such a value of a partition rounded to a float, and finds the files by their bounds alone. `check` warns of it."""
    story = Story(served, PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "score")))
    story.table.append(story.rows(1, 2, 3, score=0.9))
    story.table.append(story.rows(1, 2, score=0.9))
    story.table.dynamic_partition_overwrite(story.rows(2, 3, score=0.9))
    story.check([1, 1, 2, 3])
    (settings,) = make_settings(served.lake).lakes()
    assert [finding.subject for finding in list_findings(settings, open_home(tmp_path / "home"))] == ["PyIceberg 0.12"]
    story.finish()


@pytest.mark.whole
def test_rows_are_upserted(served: Served) -> None:
    """By the identifier and by columns named: changed rows are replaced, new ones come, the same ones stay."""
    story = Story(served, PartitionSpec())
    story.table.append(story.rows(*range(6)))
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'duck', range, NULL FROM range(100, 120)")
    done = story.table.refresh().upsert(pa.concat_tables([story.rows(1, 2, name="new"), story.rows(3), story.rows(8, 105)]))
    assert (done.rows_updated, done.rows_inserted) == (3, 1)
    story.check([*range(6), *range(100, 120), 8])
    done = story.table.upsert(story.rows(2, 9, score=7), join_cols=["id"], when_not_matched_insert_all=False)
    assert (done.rows_updated, done.rows_inserted) == (1, 0)
    story.check([*range(6), *range(100, 120), 8])
    assert story.duck.execute("SELECT score FROM lake.ns.t WHERE id IN (2, 105) ORDER BY id").fetchall() == [(9.0,), (105.5,)]
    story.finish()


@pytest.mark.whole
def test_files_are_added(served: Served) -> None:
    """Parquet files without field ids, written elsewhere into the table's location; DuckDB reads them by name."""
    story = Story(served, PartitionSpec())
    story.table.append(story.rows(1))
    path = f"{story.table.location()}/data/mine.parquet"
    fields = [field.remove_metadata() for field in SCHEMA.as_arrow()]
    plain = story.rows(*range(20, 40)).cast(pa.schema(fields))
    with story.table.io.new_output(path).create() as sink:
        pq.write_table(plain, sink)
    story.table.add_files([path])
    story.check([1, *range(20, 40)])
    story.table.delete(EqualTo("id", 25))
    story.check([1, *(i for i in range(20, 40) if i != 25)])
    story.finish()


def change_schema(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("place", StructType(NestedField(10, "x", IntegerType(), doc="deep"))).add_column("late", IntegerType())
        update.rename_column("name", "title").update_column("score", doc="of ten")
        update.move_before("late", "id")
    with table.update_schema() as update:
        update.set_identifier_fields()
    with table.update_schema() as update:
        update.make_column_optional("id")
    with table.update_schema() as update:
        update.update_column("late", LongType()).delete_column("day").add_column(("place", "y"), TimestampType())
        update.union_by_name(Schema(NestedField(1, "id", LongType()), NestedField(2, "more", StringType())))


def change_shape(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "bucket").add_identity("name")
    with table.update_spec() as update:
        update.rename_field("bucket", "part").remove_field("name")
    with table.update_sort_order() as update:
        update.asc("name", IdentityTransform(), NullOrder.NULLS_LAST).desc("id", BucketTransform(4))


def change_properties(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"a": "1", "b": "2", "comment": "hello"})
        transaction.remove_properties("a")


@pytest.mark.whole
@pytest.mark.parametrize("change", long_but([change_schema, change_shape, change_properties], change_schema))
def test_everything_else_of_a_table_changes(served: Served, change: Callable[[Table], None]) -> None:
    """With rows of both sides before and after."""
    story = Story(served, PartitionSpec())
    story.table.append(story.rows(1, 2))
    story.duck.execute("INSERT INTO lake.ns.t (id) SELECT range FROM range(100, 120)")
    change(story.table.refresh())
    names = story.table.refresh().schema().column_names
    row: dict[str, Any] = {name: [7] if name in ("id", "late") else [None] for name in names if "." not in name}
    story.table.append(pa.table(row, schema=story.table.schema().as_arrow()))
    story.duck.execute("INSERT INTO lake.ns.t (id) VALUES (8)")
    story.check([1, 2, 7, 8, *range(100, 120)])
    if change is change_shape:
        fields = [(field.source_id, field.direction) for field in story.table.sort_order().fields]
        assert fields == [(2, SortDirection.ASC), (1, SortDirection.DESC)]
        assert [field.name for field in story.table.spec().fields] == ["part"]
    if change is change_schema:
        assert story.table.schema().find_field("place.x").doc == "deep"
    story.finish()


@pytest.mark.whole
def test_transactions_over_everything(served: Served) -> None:
    """Columns, properties, rows and deletes in one commit, also in the one that makes the table; a stale one changes nothing."""
    story = Story(served, PartitionSpec())
    with story.table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.add_column("extra", StringType())
        transaction.set_properties(stage="done")
        more = story.rows(1, 2, 3).append_column("extra", pa.array(["x", "y", "z"]))
        transaction.append(more)
        transaction.delete(EqualTo("id", 2))
        transaction.overwrite(more.slice(0, 1), EqualTo("id", 3))
    story.check([1, 1])
    assert story.table.properties["stage"] == "done"
    with story.catalog.create_table_transaction("ns.u", SCHEMA, partition_spec=BY_NAME) as transaction:
        transaction.append(story.rows(1, 2))
        transaction.append(story.rows(3, 4))
    assert story.duck.execute("SELECT count(*), min(id), max(id) FROM lake.ns.u").fetchone() == (4, 1, 4)
    stale = story.catalog.load_table("ns.t").transaction()
    stale.delete(EqualTo("id", 1))
    story.duck.execute("UPDATE lake.ns.t SET score = 9 WHERE id = 1")
    with pytest.raises((CommitFailedException, ValidationException)):
        stale.commit_transaction()
    story.check([1, 1])
    story.finish()


@pytest.mark.long
def test_snapshots_are_managed(served: Served) -> None:
    """Tags, branches, rollback, expiry and statistics; DuckDB has main's rows."""
    story = Story(served, PartitionSpec())
    for i in range(4):
        story.table.append(story.rows(i))
    ids = [log.snapshot_id for log in story.table.refresh().history()]
    story.table.manage_snapshots().create_tag(ids[1], "v1").create_branch(ids[3], "dev").commit()
    story.table.refresh().append(story.rows(50), branch="dev")
    story.check([0, 1, 2, 3])
    story.table.manage_snapshots().rollback_to_snapshot(ids[2]).commit()
    story.check([0, 1, 2])
    story.table.manage_snapshots().set_current_snapshot(ref_name="dev").commit()
    story.check([0, 1, 2, 3, 50])
    blob = BlobMetadata(type="apache-datasketches-theta-v1", snapshot_id=ids[1], sequence_number=2, fields=[1], properties={"ndv": "2"})
    file = StatisticsFile(
        snapshot_id=ids[1],
        statistics_path=f"{story.table.location()}/s.puffin",
        file_size_in_bytes=9,
        file_footer_size_in_bytes=4,
        blob_metadata=[blob],
    )
    with story.table.update_statistics() as update:
        update.set_statistics(file)
    assert [found.snapshot_id for found in story.table.refresh().metadata.statistics] == [ids[1]]
    with story.table.update_statistics() as update:
        update.remove_statistics(ids[1])
    assert story.table.refresh().metadata.statistics == []
    story.table.maintenance.expire_snapshots().by_id(ids[0]).commit()
    assert ids[0] not in [snapshot.snapshot_id for snapshot in story.table.refresh().snapshots()]
    story.table.manage_snapshots().remove_tag("v1").remove_branch("dev").commit()
    assert list(story.table.refresh().refs()) == ["main"]
    story.check([0, 1, 2, 3, 50])
    story.finish()
