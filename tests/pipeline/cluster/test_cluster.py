"""Jobs on a cluster whose executors are processes of their own: nothing may rely on what one process knows."""

import json
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection

from tests.catalog.test_many_files import make_copies
from tests.cli.test_commands import settings_for
from tests.pipeline.cluster import modes
from tests.pipeline.cluster.standalone import CALM_JAVA, WORKERS, Cluster, start_cluster
from tests.rest.serving import make_settings, serve
from tests.support.commands import environment
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

FILES, ROWS, BUCKETS = 6, 500, 5
"""Each insert makes a file in each bucket, and so does a copy: more than one task reads at once."""
COPIES = 4300
POLICY = '[default]\nmin-files = 3\ntarget-size = "3k"\n'
"""A target of two or three of the table's files, so that the rows of a partition are put together in several tasks at once."""
DAYS = 4
TAKEN = ("raw.orders", "raw.later", "raw.days")
PARTS = {"partitionColumn": "id", "lowerBound": "0", "upperBound": str(ROWS), "numPartitions": "4"}
SELECT_TRIPS = "SELECT i AS id, TIMESTAMPTZ '2026-03-08 02:00:00+00' + i * INTERVAL '1 minute' AS seen FROM range($1, $1 + $2) AS r(i)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """Two workers."""
    with start_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def read_events(log: Path) -> list[Any]:
    """What Spark itself has noted in a folder."""
    return [json.loads(line) for path in log.rglob("events_*") for line in path.read_text().splitlines()]


def ask_for(cluster: Cluster, folder: Path) -> list[str]:
    """The options of a job that runs on the cluster, and notes its events in a folder."""
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.defaultJavaOptions": CALM_JAVA,
        "spark.driver.defaultJavaOptions": CALM_JAVA,
        "spark.sql.files.maxPartitionBytes": str(modes.BLOCK_BYTES),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
    }
    folder.mkdir()
    return ["--master", cluster.master, *(word for name, text in conf.items() for word in ("--conf", f"{name}={text}"))]


def call_each(cluster: Cluster, served: Served, folder: Path, *commands: Sequence[str]) -> list[str]:
    """Run jobs with one session on the cluster, whose executors both have to do the work of each; return what each printed."""
    settings = environment(settings_for(served.lake, port=str(served.server.port)) | {"SPARK_LOCAL_IP": "127.0.0.1"})
    # Each task has a process of its own: none finds there what a job before it has left.
    where = [*ask_for(cluster, folder / "events"), "--conf", "spark.python.worker.reuse=false"]
    asked = json.dumps([["pipeline", *words, *where] for words in commands])
    argv = (sys.executable, "-m", "tests.pipeline.cluster.several")
    before = len(cluster.list_executors())
    done = subprocess.run(argv, cwd=folder, env=settings, input=asked, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(cluster.list_executors()) == before + WORKERS
    found = json.loads(done.stdout)
    for words, one in zip(commands, found, strict=True):
        assert one["status"] == 0, one["out"]
        busy = [executor for executor in ("0", "1") if one["tasks"].get(executor)]
        assert len(busy) == WORKERS, (words, one["tasks"])
    [told] = [event["Spark Properties"] for event in read_events(folder / "events") if event["Event"] == "SparkListenerEnvironmentUpdate"]
    assert told["spark.master"] == cluster.master
    assert "spark.sql.shuffle.partitions" not in told, "as many parts as one machine has cores"
    return [one["out"] for one in found]


def fill_trips(duck: DuckDBPyConnection) -> None:
    """A table of so many files that several tasks read it."""
    duck.execute(f"CREATE TABLE trips (id BIGINT, seen TIMESTAMPTZ); ALTER TABLE trips SET PARTITIONED BY (bucket({BUCKETS}, id))")
    for number in range(FILES):
        duck.execute(f"INSERT INTO trips {SELECT_TRIPS}", [number * ROWS, ROWS])


def count_parts(log: Path) -> set[int]:
    """How many tasks read from a database, by the events of each such stage."""
    stages = [event["Stage Info"] for event in read_events(log) if event["Event"] == "SparkListenerStageCompleted"]
    return {stage["Number of Tasks"] for stage in stages if any("JDBC" in rdd["Name"] for rdd in stage["RDD Info"])}


def find_head(served: Served, table: str) -> dict[str, str]:
    """What the newest snapshot of a table says of itself."""
    metadata = served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]
    return next(one["summary"] for one in metadata["snapshots"] if one["snapshot-id"] == metadata["current-snapshot-id"])


@pytest.mark.long
def test_jobs_run_on_executors_that_share_nothing(served: Served, cluster: Cluster, tmp_path: Path) -> None:
    """What they take in and how they compare it is as on one machine; executors do the work, in a time zone that is not ours."""
    duck = served.lake.duckdb()
    (tmp_path / "policy.toml").write_text(POLICY)
    make_copies(served.lake, COPIES)
    expected = modes.fill(duck, tmp_path)
    fill_trips(duck)
    *_, compared, published, _, verified, exported, imported, _ = call_each(
        cluster,
        served,
        tmp_path,
        *modes.list_commands(),
        # The last one's files are more than one task reads.
        ("verify", *modes.TABLES, "main.trips"),
        ("publish", "main.t"),
        ("profile", "main.trips", "--report", "p.json"),
        ("verify", "main.trips", "--files"),
        ("export", "warehouse", "main.trips"),
        ("import", "warehouse", "--mode", "copy", "--into", "back"),
        ("maintain", "main.trips", "--policy", "policy.toml", "--report", "m.json"),
    )
    modes.check_taken(duck, tmp_path, expected)
    assert all(re.search(rf"{table} now: [0-9]+ rows, the same", compared) for table in modes.TABLES), compared
    for name in expected:
        wanted = ("ingest", json.loads((tmp_path / f"{name}.json").read_text())["run_id"])
        for table in (name, f"{name}__ingested", f"{name}__quarantine"):
            summary = find_head(served, table)
            assert (summary["duckicelake.job"], summary["duckicelake.run-id"]) == wanted, table
    assert f"main.t: done: 2 manifests of {COPIES + 1} files" in published
    assert len(served.server.get("namespaces/main/tables/t").json["metadata"]["snapshots"]) == 1
    measured = json.loads((tmp_path / "p.json").read_text())["tables"][0]["columns"]
    assert [(one["name"], one["distinct"], one["maximum"]) for one in measured][:1] == [("id", FILES * ROWS, str(FILES * ROWS - 1))]
    assert f"main.trips files now: {BUCKETS * FILES}, all as they are said to be" in verified
    assert f"main.trips: copy: done, {FILES * ROWS} rows" in exported
    assert f"{FILES * ROWS} rows" in imported
    steps = json.loads((tmp_path / "m.json").read_text())["steps"]
    assert [(step["verdict"], step["removed"]) for step in steps if step["kind"] == "compact"] == [("done", BUCKETS * FILES)]
    for one, other in (("main", "back\u241fmain"), ("back\u241fmain", "main")):
        left = f'SELECT count(*) FROM (FROM "{one}".trips EXCEPT ALL FROM "{other}".trips)'
        assert duck.execute(left).fetchone() == (0,)


def write_orders(lake: FreshLake, folder: Path) -> Sequence[str]:
    """A table of Postgres' own, and the words by which `ingest` reads it in parts."""
    conn = lake.psycopg()
    conn.execute(f"CREATE TABLE public.orders AS SELECT i AS id, 'x' || i AS name FROM generate_series(0, {ROWS - 1}) i".encode())
    (folder / "login.toml").write_text(f"user = {json.dumps(conn.info.user)}\npassword = {json.dumps(conn.info.password)}\n")
    options = [word for name, text in ({"dbtable": "public.orders"} | PARTS).items() for word in ("--option", f"{name}={text}")]
    uri = f"jdbc:postgresql://{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
    return ("ingest", uri, "raw.orders", "--incremental-by", "id", "--properties", "login.toml", *options)


def write_days(folder: Path) -> None:
    """A folder for each of four days, with two files in it."""
    for number in range(2 * DAYS):
        place = folder / f"day=2026-03-0{1 + number // 2}"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}), place / f"{number}.parquet")


@pytest.mark.long
def test_databases_and_folders_come_in_by_executors(stack: SharedStack, cluster: Cluster, tmp_path: Path) -> None:
    """Rows of a database in parts, files that are followed, a folder and a warehouse that stay where they are: all of them, once."""
    place = tmp_path / "kept"
    write_days(place / "hive" / "raw.db" / "days")
    (tmp_path / "later").mkdir()
    for number in range(FILES):
        lines = "".join(f"{row},2026-03-08 02:30:00\n" for row in range(number * ROWS, (number + 1) * ROWS))
        (tmp_path / "later" / f"{number}.csv").write_text(f"id,seen\n{lines}")
    following = ("--follow", "--settle", "0", "--poll", "0.1", "--batch-files", str(FILES // 2), "--max-batches", "2")
    with make_lake(stack) as lake, serve(make_settings(lake, allowed_locations=(str(place),))) as server:
        duck = lake.duckdb()
        fill_trips(duck)
        printed = call_each(
            cluster,
            Served(lake, server),
            tmp_path,
            write_orders(lake, tmp_path),
            ("ingest", "later", "raw.later", *following, "--report", "f.json"),
            ("import", "kept/hive", "--format", "hive"),
            ("export", "kept/warehouse", "main.trips"),
            ("import", "kept/warehouse", "--into", "back"),
        )
        counts = [duck.execute(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {name}").fetchone() for name in TAKEN]
        days = duck.execute("SELECT day::VARCHAR, count(*) FROM raw.days GROUP BY 1 ORDER BY 1").fetchall()
        [alike] = duck.execute('SELECT count(*) FROM (FROM main.trips INTERSECT ALL FROM "back\u241fmain".trips)').fetchall()
    report = json.loads((tmp_path / "f.json").read_text())
    assert [report[name] for name in ("batches", "files", "rows_in", "rows_out")] == [2, FILES, FILES * ROWS, FILES * ROWS]
    assert counts == [(rows, rows, rows * (rows - 1) // 2) for rows in (ROWS, FILES * ROWS, 2 * DAYS * ROWS)], printed
    assert days == [(f"2026-03-0{1 + day}", 2 * ROWS) for day in range(DAYS)]
    assert alike == (FILES * ROWS,)
    assert int(PARTS["numPartitions"]) in count_parts(tmp_path / "events")
    assert f"raw.days: register: done, {2 * DAYS * ROWS} rows" in printed[2]
    assert f"back.main.trips: register: done, {FILES * ROWS} rows" in printed[4]
