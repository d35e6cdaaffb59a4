"""What else Spark does over REST: procedures, streams, changelogs, statistics; plain DuckDB goes on with each table."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.writing.spark.story import MERGE_ON_READ, OWN, Rows, Story, fill
from tests.rest.serving import make_settings, serve
from tests.support.going_on import check_going_on
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.spark import Spark, SparkRefused

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def served(lake: FreshLake) -> Iterator[Served]:
    """A server that does not look after its objects meanwhile."""
    with serve(make_settings(lake, object_check_s=0)) as server:
        yield Served(lake, server)


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_procedures(served: Served, spark: Spark, format_version: int) -> None:
    """Rewriting of every kind changes no row; main goes back and forth; what needs garbage collection says so, or does it when told."""
    story = Story(served, spark, "PARTITIONED BY (bucket(2, id))", f"'format-version' = '{format_version}', {MERGE_ON_READ}")
    ids = fill(story)
    story.call("rewrite_position_delete_files(table => 'ns.t', options => map('rewrite-all', 'true'))")
    story.check(36)
    story.call(
        "rewrite_data_files(table => 'ns.t', strategy => 'sort', sort_order => 'zorder(id, name)', options => map('rewrite-all', 'true'))"
    )
    story.call("rewrite_manifests('ns.t')")
    story.check(36)
    for procedure in ("compute_table_stats('ns.t')", "compute_partition_stats('ns.t')"):
        assert len(story.call(procedure)) == 1
    metadata = served.server.get("namespaces/ns/tables/t").json["metadata"]
    assert [len(metadata[key]) for key in ("statistics", "partition-statistics")] == [1, 1]
    assert [row[0] for row in story.call("ancestors_of('ns.t')")][-len(ids) :] == ids[::-1]
    story.call(f"rollback_to_snapshot('ns.t', {ids[0]})")
    story.check(10)
    story.call(f"set_current_snapshot('ns.t', {ids[-1]})")
    story.check(36)
    ((at,),) = story.run(f"SELECT cast(committed_at AS string) FROM {{t}}.snapshots WHERE snapshot_id = {ids[1]}")
    story.call(f"rollback_to_timestamp('ns.t', TIMESTAMP '{at}' + INTERVAL 1 MILLISECOND)")
    story.check(20)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)
    collect_garbage(story)


def collect_garbage(story: Story) -> None:
    """Spark refuses it until `gc.enabled` says otherwise; then dropped and registered, the table has its rows."""
    expire = "expire_snapshots(table => 'ns.t', older_than => TIMESTAMP '2099-01-01 00:00:00', retain_last => 1)"
    orphans = "remove_orphan_files(table => 'ns.t', dry_run => true, prefix_listing => true)"
    for procedure in (expire, orphans):
        with pytest.raises(SparkRefused, match="GC is disabled"):
            story.call(procedure)
    count = len(story.duck.execute("FROM lake.ns.t").fetchall())
    story.run("ALTER TABLE {t} SET TBLPROPERTIES ('gc.enabled' = 'true')")
    assert story.call(orphans) == []
    story.call(expire)
    story.check(count)
    assert len(story.run(f"SELECT * FROM {{t}}.snapshots WHERE {OWN}")) == 1
    location = story.served.server.get("namespaces/ns/tables/t").json["metadata-location"]
    story.run("DROP TABLE {t}")
    story.call(f"register_table(table => 'ns.again', metadata_file => '{location}')")
    story.check(count, "again")


@pytest.mark.parametrize(
    ("format_version", "mode"),
    [pytest.param(2, "", id="copy-on-write", marks=pytest.mark.long), pytest.param(3, f", {MERGE_ON_READ}", id="deletion vectors")],
)
def test_rows_are_merged(served: Served, spark: Spark, format_version: int, mode: str) -> None:
    """MERGE with all its clauses over rows of both sides, deletes by subquery, overwritten partitions, a branch written and published."""
    story = Story(served, spark, "PARTITIONED BY (truncate(1, name))", f"'format-version' = '{format_version}'{mode}")
    fill(story)
    story.run(
        "MERGE INTO {t} t USING (SELECT id, concat('m', id) AS name FROM range(5, 25)) s ON t.id = s.id"
        " WHEN MATCHED AND t.id < 8 THEN DELETE WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
        " WHEN NOT MATCHED BY SOURCE AND t.id = 119 THEN DELETE"
    )
    story.check(38)
    story.run("DELETE FROM {t} WHERE id IN (SELECT max(id) FROM {t})")
    story.check(37)
    overwrite_partition(story, [] if mode == "" else story.run("SELECT id FROM {t} WHERE name LIKE 'd%'"))
    story.run("ALTER TABLE {t} CREATE BRANCH audit")
    story.run("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    story.run("SET spark.wap.branch = audit")
    story.run("INSERT INTO {t} VALUES (501, 'audited')")
    story.run("RESET spark.wap.branch")
    assert story.duck.execute("SELECT count(*) FROM lake.ns.t WHERE id = 501").fetchone() == (0,)
    story.call("fast_forward('ns.t', 'main', 'audit')")
    assert story.duck.execute("SELECT count(*) FROM lake.ns.t WHERE id = 501").fetchone() == (1,)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)


def overwrite_partition(story: Story, left: Rows) -> None:
    """Spark drops the files of a partition; rows of `left`, which DuckDB put into a file of none, stay."""
    story.spark.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        story.run("INSERT OVERWRITE {t} SELECT 500, 'dynamic'")
    finally:
        story.spark.session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sorted(story.run("SELECT id FROM {t} WHERE name LIKE 'd%'")) == sorted([*left, (500,)])


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_streams_in_and_out(served: Served, spark: Spark, tmp_path: Path, format_version: int) -> None:
    """From one table into another, a batch at a time: DuckDB's inserts flow too, each row once; deletes are passed over when told so."""
    properties = f"'format-version' = '{format_version}', {MERGE_ON_READ}"
    story = Story(served, spark, "", properties)
    story.run(f"CREATE TABLE {{c}}.ns.out (id bigint, name string) USING iceberg TBLPROPERTIES ({properties})")
    flow = make_flow(story, tmp_path)
    story.run("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    flow()
    story.check(2, "out")
    story.duck.execute("INSERT INTO lake.ns.t VALUES (3, 'inlined')")
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'file' FROM range(100, 120)")
    flow()
    flow()
    story.check(23, "out")
    story.run("DELETE FROM {t} WHERE id IN (1, 101)")
    story.duck.execute("DELETE FROM lake.ns.t WHERE id = 102")
    story.run("DELETE FROM {c}.ns.out WHERE id = 103")
    story.run("INSERT INTO {t} VALUES (4, 'after')")
    flow(**{"streaming-skip-delete-snapshots": "true", "streaming-skip-overwrite-snapshots": "true"})
    story.check(23, "out")
    check_going_on(served, ("ns", "out"))


def make_flow(story: Story, tmp_path: Path) -> Callable[..., None]:
    """What moves all rows that are new in ns.t to ns.out, with options for the reader."""

    def flow(**options: str) -> None:
        rows = story.spark.session.readStream.format("iceberg").options(**options).load(f"{story.catalog}.ns.t")
        writing = rows.writeStream.format("iceberg").outputMode("append").trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(tmp_path)).toTable(f"{story.catalog}.ns.out")
        query.awaitTermination()

    return flow


@pytest.mark.long
@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_changelogs(served: Served, spark: Spark, format_version: int) -> None:
    """What came, went and changed between snapshots, DuckDB's inserts too; delete files are more than Spark's changelog takes."""
    story = Story(served, spark, "", f"'format-version' = '{format_version}'")
    story.run("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    story.duck.execute("INSERT INTO lake.ns.t VALUES (4, 'duck')")
    story.run("UPDATE {t} SET name = 'x' WHERE id = 2")
    story.run("DELETE FROM {t} WHERE id = 3")
    story.call("create_changelog_view(table => 'ns.t', changelog_view => 'changes', identifier_columns => array('id'))")
    found = story.run("SELECT _change_ordinal, _change_type, id, name FROM changes ORDER BY 1, 2, 3")
    story.spark.session.catalog.dropTempView("changes")
    assert found == [
        *((0, "INSERT", i, name) for i, name in enumerate("abc", 1)),
        (1, "INSERT", 4, "duck"),
        (2, "UPDATE_AFTER", 2, "x"),
        (2, "UPDATE_BEFORE", 2, "b"),
        (3, "DELETE", 3, "c"),
    ]
    story.duck.execute("DELETE FROM lake.ns.t WHERE id = 1")
    story.call("create_changelog_view(table => 'ns.t', changelog_view => 'changes')")
    with pytest.raises(SparkRefused, match="Delete files are currently not supported"):
        story.run("SELECT * FROM changes")
    story.spark.session.catalog.dropTempView("changes")
    story.check(2)
    check_going_on(served, ("ns", "t"))
