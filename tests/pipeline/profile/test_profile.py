"""`profile` on real Spark, against the real server: DuckDB counts the same, and planners find the sketches."""

from functools import partial
from typing import Any

import pytest

from duckicelake.iceberg.puffin import decode_puffin
from duckicelake.pipeline import profile
from duckicelake.pipeline.common.reports import Interrupted, Verdict
from tests.pipeline.profile.measurer import Measurer, by_name

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

ODD = "we'ird `x` <script>alert(1)</script>"


def fill(measurer: Measurer) -> None:
    """A table with values of many types, NULLs, deletes of both kinds and inlined rows."""
    measurer.checker.run(
        "CREATE TABLE t (id BIGINT, code VARCHAR, day DATE, amount DECIMAL(9, 2), ratio DOUBLE, seen TIMESTAMPTZ, raw BLOB, ok BOOLEAN, "
        "point STRUCT(x INTEGER))",
        "INSERT INTO t SELECT i, 'c' || i % 1000, DATE '2024-01-01' + (i % 366)::INT, i / 7, CASE WHEN i % 5 > 0 THEN i / 3 END, "
        "TIMESTAMPTZ '2024-01-01 00:00:00+00' + i * INTERVAL 1 SECOND, encode('b' || i % 11), i % 2 = 0, {'x': i} "
        "FROM range(20000) r(i)",
        "DELETE FROM t WHERE id % 4 = 1 AND id > 100",
        "INSERT INTO t VALUES (-5, 'inlined', NULL, -1.5, 'nan', NULL, NULL, NULL, NULL)",
        "DELETE FROM t WHERE id = 2",
    )


def test_columns_are_as_duckdb_counts_them(measurer: Measurer) -> None:
    """Rows, nulls, least and greatest value are exact; distinct values are, below 4096, and nearly above."""
    fill(measurer)
    found = measurer.measure("t")
    columns = by_name(found)
    assert (found.verdict, found.total is not None and found.total.rows) == (Verdict.done, measurer.ask("SELECT count(*) FROM t")[0][0])
    for name in ("id", "code", "day", "amount", "seen", "ok"):
        shown = "strftime(seen, '%Y-%m-%d %H:%M:%S')" if name == "seen" else f"{name}::VARCHAR"
        [(distinct, nulls, low, high)] = measurer.ask(
            f"SELECT count(DISTINCT {name}), count(*) - count({name}), (SELECT {shown} FROM t ORDER BY {name} ASC NULLS LAST LIMIT 1), "
            f"(SELECT {shown} FROM t ORDER BY {name} DESC NULLS LAST LIMIT 1) FROM t"
        )
        column = columns[name]
        assert (column.nulls, column.minimum, column.maximum) == (nulls, low, high), name
        assert column.distinct == (distinct if distinct < 4096 else pytest.approx(distinct, rel=0.05)), name
    assert (columns["ratio"].maximum, columns["ratio"].minimum) == ("NaN", "0.3333333333333333")
    assert (columns["raw"].minimum, columns["raw"].distinct, columns["raw"].nulls) == ("6230", 11, 1)
    assert (columns["point"].distinct, columns["point"].minimum) == (None, None)
    assert all(column.bytes for column in found.columns)


@pytest.mark.long
def test_sketches_pass_over_what_is_empty(measurer: Measurer) -> None:
    """A text and a binary value without a byte in it is no value to Iceberg's sketches."""
    measurer.checker.run("CREATE TABLE t AS SELECT v AS code, v::BLOB AS raw FROM (VALUES (''), ('a'), ('b')) r(v)")
    columns = by_name(measurer.measure("t"))
    assert [(columns[name].distinct, columns[name].minimum, columns[name].nulls) for name in ("code", "raw")] == [(2, "", 0)] * 2


def test_planners_find_the_sketches(measurer: Measurer) -> None:
    """As the Puffin specification has them; in Spark's estimate; and a second run has nothing to do, without Spark."""
    fill(measurer)
    first = measurer.measure("t")
    [told] = measurer.load("t")["statistics"]
    assert (told["snapshot-id"], told["statistics-path"]) == (measurer.load("t")["current-snapshot-id"], first.statistics_path)
    [(content,)] = measurer.ask(f"SELECT content FROM read_blob('{first.statistics_path}')")
    blobs = decode_puffin(content)
    assert {(blob.type, blob.snapshot_id) for blob in blobs} == {("apache-datasketches-theta-v1", told["snapshot-id"])}
    assert [dict(blob.properties) for blob in blobs] == [blob["properties"] for blob in told["blob-metadata"]]
    ndv = {blob["fields"][0]: int(blob["properties"]["ndv"]) for blob in told["blob-metadata"]}
    assert ndv == {column.field_id: column.distinct for column in first.columns if column.name != "point"}
    loaded = measurer.checker.served.pyiceberg().catalog.load_table("main.t").metadata.statistics
    assert [(one.snapshot_id, len(one.blob_metadata)) for one in loaded] == [(first.snapshot_id, 8)]
    assert estimate_distinct(measurer, "t", "code") == by_name(first)["code"].distinct
    spark_was = len(measurer.told)
    again = measurer.measure("t", dry_run=True)
    assert (again.verdict, again.reason) == (Verdict.nothing, "its current snapshot has statistics")
    assert not any(step.startswith("compute") for step in measurer.told[spark_was:])
    assert [column.distinct for column in again.columns] == [column.distinct for column in first.columns]
    assert measurer.measure("t", again=True).statistics_path != first.statistics_path
    assert len(measurer.load("t")["statistics"]) == 1


def estimate_distinct(measurer: Measurer, table: str, column: str) -> int:
    """How many values of a column Spark's planner reckons with."""
    session = measurer.checker.spark.session
    session.conf.set("spark.sql.cbo.enabled", "true")
    try:
        frame = session.sql(f"SELECT {column} FROM {measurer.checker.catalog}.main.{table}")
        java: Any = frame._jdf
        plan = java.queryExecution().optimizedPlan()
        found = plan.stats().attributeStats().get(plan.output().head())
        return int(str(found.get().distinctCount().get()))
    finally:
        session.conf.unset("spark.sql.cbo.enabled")


@pytest.mark.long
def test_a_new_snapshot_is_measured_anew(measurer: Measurer) -> None:
    """Statistics are those of a snapshot: each keeps its own, and what is planned is what is done."""
    measurer.checker.run("CREATE TABLE t (id BIGINT)", "INSERT INTO t FROM range(100)")
    measurer.run()
    measurer.checker.run("INSERT INTO t FROM range(50, 200)")
    assert [table.verdict for table in measurer.run(dry_run=True).tables] == [Verdict.planned]
    found = measurer.run()
    assert [column.distinct for column in found.tables[0].columns] == [200]
    assert found.run_id.startswith("2")
    assert [one["blob-metadata"][0]["properties"]["ndv"] for one in measurer.load("t")["statistics"]] == ["100", "200"]
    assert [point.rows for point in found.tables[0].growth] == [100, 250]
    assert sum(one.files for one in found.tables[0].sizes) == 2


@pytest.mark.long
def test_the_files_tell_nulls_where_they_are_exact(measurer: Measurer) -> None:
    """Without deletes and inlined rows no scan is needed for them; with either, nothing is said that may be wrong."""
    measurer.checker.run("CREATE TABLE t (id BIGINT, name VARCHAR)", "INSERT INTO t SELECT i, NULL FROM range(50) r(i)")
    assert by_name(measurer.measure("t", dry_run=True))["name"].nulls == 50
    measurer.checker.run("INSERT INTO t VALUES (1, NULL)")
    assert by_name(measurer.measure("t", dry_run=True))["name"].nulls is None
    measurer.checker.run("CALL ducklake_flush_inlined_data('lake')")
    assert by_name(measurer.measure("t", dry_run=True))["name"].nulls == 51
    measurer.checker.run("DELETE FROM t WHERE id < 20")
    assert by_name(measurer.measure("t", dry_run=True))["name"].nulls is None
    found = measurer.measure("t")
    assert (by_name(found)["name"].nulls, found.total is not None and found.total.rows) == (30, 30)


@pytest.mark.long
def test_sizes_that_some_files_do_not_tell_are_not_told(measurer: Measurer) -> None:
    """A sum over some of the files is the size of no column; nor are files without any size 0 bytes."""
    checker = measurer.checker
    checker.run("CREATE TABLE t (id BIGINT, point STRUCT(x INTEGER, y VARCHAR), list INTEGER[], map MAP(VARCHAR, INTEGER))")
    checker.run("INSERT INTO t SELECT i, {'x': i, 'y': 'a' || i}, [i], MAP {'k': i} FROM range(2000) r(i)")
    checker.ask_spark("INSERT INTO {c}.main.t SELECT id + 1, point, list, map FROM {c}.main.t")

    def told() -> dict[str, int | None]:
        return {column.name: column.bytes for column in measurer.measure("t", dry_run=True).columns}

    leaves = "id", "x", "y", "element", "key", "value"
    sizes = dict.fromkeys(("id", "point", "list", "map"), 0)
    for name, size in zip(("id", "point", "point", "list", "map", "map"), map(partial(sum_sizes, measurer), leaves), strict=True):
        sizes[name] += size
    assert told() == sizes
    with_y = "column_id = (SELECT column_id FROM ducklake_column WHERE column_name = 'y')"
    checker.corrupt(f"UPDATE ducklake_file_column_stats SET column_size_bytes = NULL WHERE {with_y}")
    assert told() == sizes | {"point": None}
    checker.ask_spark("ALTER TABLE {c}.main.t SET TBLPROPERTIES ('write.metadata.metrics.default' = 'none')")
    checker.ask_spark("INSERT INTO {c}.main.t SELECT * FROM {c}.main.t")
    assert told() == dict.fromkeys(sizes)
    checker.run("CREATE TABLE u AS SELECT 1 AS id FROM range(2000)")
    checker.corrupt("UPDATE ducklake_file_column_stats SET column_size_bytes = NULL")
    assert [(column.bytes, column.nulls) for column in measurer.measure("u", dry_run=True).columns] == [(None, 0)]


def sum_sizes(measurer: Measurer, column: str) -> int:
    """What files in the lake tell of columns and fields of a name, added up."""
    with measurer.checker.served.lake.psycopg() as conn:
        found = conn.execute(
            "SELECT sum(column_size_bytes)::bigint FROM ducklake_file_column_stats JOIN ducklake_column USING (table_id, column_id) "
            "WHERE column_name = %s",
            (column,),
        ).fetchone()
    assert found is not None
    return found[0]


@pytest.mark.long
def test_empty_tables_have_nothing_to_count(measurer: Measurer) -> None:
    """One that was never written to is passed over; one that lost all its rows has no distinct value."""
    measurer.checker.run("CREATE TABLE never (id BIGINT)", "CREATE TABLE gone AS SELECT 1 AS id", "DELETE FROM gone")
    gone, never = measurer.run().tables
    assert (never.table, never.verdict, never.reason) == ("main.never", Verdict.nothing, "nothing was ever written to it")
    assert (gone.verdict, gone.columns[0].distinct, gone.columns[0].minimum) == (Verdict.done, 0, None)
    assert measurer.run(dry_run=True).verdict is Verdict.nothing


@pytest.mark.long
def test_odd_names_are_names(measurer: Measurer) -> None:
    """Quotes and markup in a table's and a column's name; a column whose name the procedure takes for SQL goes without a sketch."""
    name = ODD.replace('"', '""')
    measurer.checker.run(f"""CREATE TABLE "{name}" ("x'<b>" INTEGER, "q`c" INTEGER, "a.b" INTEGER)""")
    measurer.checker.run(f'INSERT INTO "{name}" VALUES (1, 2, 3), (4, 2, NULL)')
    measurer.checker.run('CREATE TABLE none ("a.b" INTEGER)', "INSERT INTO none VALUES (1)")
    none, odd = sorted(measurer.run().tables, key=lambda table: table.table)
    assert (odd.table, odd.verdict) == (f"main.{ODD}", Verdict.done)
    assert [(c.name, c.distinct, c.nulls, c.maximum) for c in odd.columns] == [
        ("x'<b>", 2, 0, "4"),
        ("q`c", None, 0, "2"),
        ("a.b", None, 1, "3"),
    ]
    assert (none.verdict, none.reason) == (Verdict.nothing, "no column can have a sketch")


@pytest.mark.long
def test_what_spark_does_not_read_is_passed_over(measurer: Measurer) -> None:
    """Told with the column, and so is what the catalog does not publish; the other tables are measured."""
    measurer.checker.run(
        "CREATE TABLE a AS SELECT TIME '10:00' AS hour", "CREATE TABLE b AS SELECT 1 AS id", "CREATE TABLE c AS SELECT 1::UBIGINT AS big"
    )
    a, b, c = measurer.run().tables
    assert (a.verdict, "column hour is time" in a.message, b.verdict) == (Verdict.skipped, True, Verdict.done)
    assert (c.verdict, "big" in c.message) == (Verdict.skipped, True), c.message


@pytest.mark.long
def test_partitions_are_counted_when_asked(measurer: Measurer) -> None:
    """In a file of their own; tables without partitions have none."""
    measurer.checker.run(
        "CREATE TABLE p (id BIGINT, city VARCHAR)", "ALTER TABLE p SET PARTITIONED BY (city)", "CREATE TABLE u AS SELECT 1 AS id"
    )
    measurer.checker.run("INSERT INTO p SELECT i, 'c' || i % 3 FROM range(60) r(i)")
    assert measurer.run(partitions=True).verdict is Verdict.done
    [told] = measurer.load("p")["partition-statistics"]
    assert told["snapshot-id"] == measurer.load("p")["current-snapshot-id"]
    rows = measurer.ask(f"""SELECT partition.city, data_record_count FROM read_parquet('{told["statistics-path"]}') ORDER BY ALL""")
    assert rows == [("c0", 20), ("c1", 20), ("c2", 20)]
    assert not measurer.load("u").get("partition-statistics")
    assert measurer.run(partitions=True, dry_run=True).verdict is Verdict.nothing


@pytest.mark.long
def test_a_snapshot_that_vanishes_is_followed(measurer: Measurer) -> None:
    """Expired between plan and work: the newest one is measured."""
    measurer.checker.run("CREATE TABLE t (id BIGINT)", "INSERT INTO t FROM range(100)")
    pending = [
        "INSERT INTO t FROM range(100, 130)",
        "CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP + INTERVAL 1 DAY)",
    ]

    def tell(step: str) -> None:
        while step == "compute main.t" and pending:
            measurer.checker.run(pending.pop(0))

    [found] = measurer.run(tell=tell).tables
    assert (found.verdict, [column.distinct for column in found.columns]) == (Verdict.done, [130]), found.message
    assert found.snapshot_id == measurer.load("t")["current-snapshot-id"]


@pytest.mark.long
def test_statistics_that_were_registered_are_told(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop before the scan, and a scan that fails: the catalog has them, which the table's line says; without any it fails."""
    measurer.checker.run("CREATE TABLE t AS SELECT range AS id FROM range(1000)")

    def stop(at: str, step: str) -> None:
        if step.startswith(at):
            raise Interrupted(f"stopped by Ctrl-C before: {step}")

    [none] = measurer.run("main.t", tell=partial(stop, "compute")).tables
    assert (none.verdict, none.message) == (Verdict.failed, "stopped by Ctrl-C before: compute main.t")
    [found] = measurer.run("main.t", tell=partial(stop, "scan")).tables
    assert (found.verdict, by_name(found)["id"].distinct) == (Verdict.done, 1000)
    assert found.message == "its statistics are in the catalog: stopped by Ctrl-C before: scan main.t"
    assert found.describe().endswith(found.message)

    def lose(*_: Any) -> Any:
        raise OSError("lost")

    monkeypatch.setattr(profile, "read_extremes", lose)
    [lost] = measurer.run("main.t", again=True).tables
    assert (lost.verdict, lost.message.startswith("its statistics are in the catalog: ")) == (Verdict.failed, True), lost
