"""`publish` on real Spark: the bytes that the server alone would have written."""

import json

import pytest
from pyspark.sql import SparkSession

from duckicelake.pipeline import publish
from duckicelake.pipeline.common.reports import Verdict
from tests.catalog.conftest import Opener
from tests.catalog.reading import load
from tests.pipeline.publish.press import FILES, MANIFESTS, Press

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


def test_executors_make_what_the_server_would(press: Press, open_server: Opener) -> None:
    """A table that nobody has loaded: planned, made, taken over, published; a server without any of it writes the same, and Spark
    reads the table. Again: nothing to do, without Spark.
    """
    press.fill()
    planned = press.publish(dry_run=True, spark=False)
    assert (planned.verdict, planned.manifests, planned.files) == (Verdict.planned, MANIFESTS, FILES)
    done = press.publish()
    assert (done.verdict, done.manifests, done.files, done.attempts, done.message) == (Verdict.done, MANIFESTS, FILES, 1, "")
    again = press.run(spark=False)
    assert [(one.verdict, one.there) for one in again.tables] == [(Verdict.nothing, MANIFESTS)]
    assert again.status == 0
    conn = press.served.lake.psycopg()
    noted = conn.execute("SELECT name FROM iceberg_manifest").fetchall()
    published = press.load()
    conn.execute("DELETE FROM iceberg_manifest")
    alone = load(open_server(press.served.lake))
    assert (alone.metadata_location, json.loads(alone.metadata)) == (published["metadata-location"], published["metadata"])
    catalog = press.spark.add(press.served.rest_catalog())
    found = press.spark.arrow(f"SELECT path, added_data_files_count AS files FROM {catalog}.main.t.manifests").to_pylist()
    assert {row["path"].rpartition("/")[2] for row in found} == {f"{name}-m0.avro" for (name,) in noted}
    assert sum(row["files"] for row in found) == FILES


@pytest.mark.long
def test_executors_get_ready_while_the_catalog_plans(press: Press, monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is surely much to make; without Spark the run says so when it comes to that, and once all is made it is not asked for."""
    press.fill()
    monkeypatch.setattr(publish, "LARGE", FILES)
    ready, get_ready = list[list[str]](), publish.get_ready

    def note(spark: SparkSession) -> None:
        ready.append([*press.told])
        get_ready(spark)

    monkeypatch.setattr(publish, "get_ready", note)
    failed = press.publish(spark=False)
    assert (failed.verdict, failed.message) == (Verdict.failed, "there is no Spark here")
    press.told.clear()
    assert press.publish().verdict is Verdict.done
    assert ready == [["look at the catalog", "plan main.t"]]
    assert press.publish(spark=False).verdict is Verdict.nothing


@pytest.mark.long
def test_what_changes_meanwhile_is_planned_again(press: Press) -> None:
    """The first hand-over is refused with 409; what was made before is not made again."""
    press.fill()
    duck = press.served.lake.duckdb()

    def tell(step: str) -> None:
        press.told.append(step)
        if step.startswith("hand") and sum(one.startswith("hand") for one in press.told) == 1:
            duck.execute("INSERT INTO t SELECT range FROM range(100)")

    done = press.publish(tell=tell)
    assert (done.verdict, done.attempts) == (Verdict.done, 2)
    made = [step for step in press.told if step.startswith("make")]
    assert made == [f"make {MANIFESTS} manifests of {FILES} files of main.t"]


@pytest.mark.long
def test_what_cannot_be_made_is_told_and_the_rest_goes_on(press: Press) -> None:
    """A file that no Iceberg reader can open, and files added by their names: the server's affair, by name of the table."""
    press.fill()
    duck = press.served.lake.duckdb()
    path = f"{press.served.lake.data_path.rstrip('/')}-added.parquet"
    duck.execute(f"CREATE TABLE added (id BIGINT); COPY (SELECT 5::BIGINT AS id) TO '{path}'")
    duck.execute(f"CALL ducklake_add_data_files('lake', 'added', '{path}')")
    duck.execute("CREATE TABLE fine AS SELECT range AS id FROM range(100)")
    with press.served.lake.psycopg() as conn:
        conn.execute("UPDATE ducklake_data_file SET encryption_key = 'k' WHERE data_file_id = 1001")
    report = press.run()
    assert [(one.table, one.verdict) for one in report.tables] == [
        ("main.added", Verdict.skipped),
        ("main.fine", Verdict.nothing),
        ("main.t", Verdict.skipped),
    ]
    assert "left to the server" in report.tables[0].message
    assert "is encrypted" in report.tables[2].message
    with press.served.lake.psycopg() as conn:
        assert conn.execute("SELECT count(*) FROM iceberg_manifest").fetchone() == (0,)


@pytest.mark.long
def test_a_postgres_that_comes_back_is_asked_again(press: Press) -> None:
    """Executors may work for hours between two tables: no connection is kept for that."""
    for name in "ab":
        press.served.lake.duckdb().execute(f"CREATE TABLE {name} AS SELECT 1 AS id")
    others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    def tell(step: str) -> None:
        if step == "plan main.b":
            press.served.lake.psycopg().execute(others)

    assert [(one.table, one.verdict) for one in press.run(spark=False, tell=tell).tables] == [
        ("main.a", "nothing-to-do"),
        ("main.b", "nothing-to-do"),
    ]
