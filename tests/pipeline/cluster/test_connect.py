"""Jobs over Spark Connect: a server that is somebody else's process, and no Java in ours."""

import json
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from duckicelake.pipeline.common.spark_connect import get_host_port
from duckicelake.translate.namespaces import to_schema_name
from tests.catalog.test_many_files import make_copies
from tests.cli.test_commands import settings_for
from tests.pipeline.cluster.connect import ConnectServer, start_connect
from tests.pipeline.cluster.standalone import CALM_JAVA
from tests.pipeline.maintain.overtaking import opening_way
from tests.rest.serving import Answer
from tests.support.commands import COMMAND, Done, environment, run
from tests.support.readers import Served
from tests.support.tiers import long_after

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConnectServer]:
    """A server that has all that the jobs need."""
    with start_connect(tmp_path_factory.mktemp("connect") / "server") as server:
        yield server


def find_settings(served: Served, url: str) -> dict[str, str]:
    """The environment of a job that is given to a server, where there is no Java."""
    return settings_for(served.lake, port=str(served.server.port)) | {"SPARK_REMOTE": url, "PATH": "/nowhere", "JAVA_HOME": ""}


def call(served: Served, server: ConnectServer, folder: Path, *arguments: str) -> Done:
    """Run a job by the server."""
    return run(folder, "pipeline", *arguments, settings=find_settings(served, server.url))


def name_runs(served: Served, table: str) -> list[tuple[str | None, str | None]]:
    """Which job and run every snapshot with rows of a table names, the oldest first; the first branch of a table makes one without."""
    snapshots = served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]["snapshots"]
    return [
        (one["summary"].get("duckicelake.job"), one["summary"].get("duckicelake.run-id"))
        for one in snapshots
        if "added-records" in one["summary"]
    ]


@pytest.mark.long
def test_rows_come_in_over_spark_connect(served: Served, connect: ConnectServer, tmp_path: Path) -> None:
    """Appended and merged, bad ones in quarantine, as on one machine; every snapshot with rows names its run."""
    (tmp_path / "in").mkdir()
    lines = ["id,seen,fare,${env:HOME}", "1,2026-03-08 02:30:00,2.50,a", "2,2026-03-08 02:31:00,oops,b", "3,2026-03-08 02:32:00,7.25,c", ""]
    (tmp_path / "in" / "1.csv").write_text("\n".join(lines))
    options = ["--schema", "id BIGINT NOT NULL, seen TIMESTAMP, fare DECIMAL(9,2), `${env:HOME}` STRING", "--report", "r.json"]
    took = call(served, connect, tmp_path, "ingest", "in", "raw.trips", *options)
    assert took.status == 0, took.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["rows_in"], report["rows_out"], report["rows_quarantined"]) == (3, 2, 1)
    (tmp_path / "in" / "2.csv").write_text("id,seen,fare,${env:HOME}\n3,2026-03-08 02:33:00,8.00,d\n4,2026-03-08 02:34:00,9.00,e\n")
    merged = call(served, connect, tmp_path, "ingest", "in", "raw.trips", *options, "--mode", "upsert", "--key", "id")
    assert merged.status == 0, merged.err
    duck = served.lake.duckdb()
    rows = duck.execute('SELECT id, seen::VARCHAR, fare::VARCHAR, "${env:HOME}" FROM raw.trips ORDER BY 1').fetchall()
    assert rows == [
        (1, "2026-03-08 02:30:00+00", "2.50", "a"),
        (3, "2026-03-08 02:33:00+00", "8.00", "d"),
        (4, "2026-03-08 02:34:00+00", "9.00", "e"),
    ]
    bad = duck.execute("SELECT raw, row_index, line FROM raw.trips__quarantine").fetchall()
    assert bad == [("2,2026-03-08 02:31:00,oops,b", 1, 3)]
    first, second = ("ingest", report["run_id"]), ("ingest", json.loads((tmp_path / "r.json").read_text())["run_id"])
    assert {table: name_runs(served, table) for table in ("trips", "trips__ingested", "trips__quarantine")} == {
        "trips": [first, second],
        "trips__ingested": [first, second],
        "trips__quarantine": [first],
    }


@pytest.mark.parametrize(
    ("url", "place"),
    long_after(
        1,
        [
            pytest.param("sc://spark", "spark:15002", id="host"),
            pytest.param("sc://spark:1/;token=a:2;use_ssl=true", "spark:1", id="token"),
            pytest.param("sc://me:pw@spark;token=x", "spark:15002", id="user"),
            pytest.param("sc://[::1]:7/;x=[y]", "[::1]:7", id="ipv6"),
            pytest.param("sc://[::1]", "[::1]:15002", id="ipv6-alone"),
        ],
    ),
)
def test_a_place_is_told_without_secrets(url: str, place: str) -> None:
    """Host and port, and nothing else of the connection string."""
    assert get_host_port(url) == place


@pytest.mark.long
@pytest.mark.parametrize(
    ("url", "message"),
    long_after(
        1,
        [
            pytest.param("sc://127.0.0.1:1/;token=hidden", "no Spark Connect server answers at 127.0.0.1:1", id="nobody"),
            pytest.param("sc://127.0.0.1:1/;token=hidden==", "the connection string for 127.0.0.1:1 cannot be read", id="string"),
        ],
    ),
)
def test_what_cannot_be_reached_is_told_without_its_token(served: Served, tmp_path: Path, url: str, message: str) -> None:
    """At once, and the report has it too."""
    (tmp_path / "1.csv").write_text("id\n1\n")
    done = run(tmp_path, "pipeline", "ingest", "1.csv", "raw.t", "--report", "r.json", settings=find_settings(served, url))
    assert (done.status, message in done.err) == (1, True), done.err
    assert "hidden" not in done.err + done.out + (tmp_path / "r.json").read_text()


@pytest.mark.long
def test_the_other_jobs_run_over_spark_connect(served: Served, connect: ConnectServer, tmp_path: Path) -> None:
    """As on one machine."""
    make_copies(served.lake, 300)
    duck = served.lake.duckdb()
    duck.execute("CREATE SCHEMA raw; CREATE TABLE raw.few AS SELECT range AS id, 'n' || range % 10 AS name FROM range(1000)")
    for start in range(3):
        duck.execute(f"INSERT INTO raw.few SELECT range, 'late' FROM range({start}, {start + 50})")
    published = call(served, connect, tmp_path, "publish", "main.t")
    assert (published.status, "main.t: done: 1 manifests of 301 files" in published.out) == (0, True), published.err
    again = call(served, connect, tmp_path, "publish", "main.t")
    assert "no large manifest to make, 1 were there" in again.out
    compared = call(served, connect, tmp_path, "verify", "raw.few")
    assert (compared.status, "raw.few now: 1150 rows, the same" in compared.out) == (0, True), compared.err + compared.out
    looked = call(served, connect, tmp_path, "verify", "raw.few", "--files")
    assert (looked.status, "files now: 4, all as they are said to be" in looked.out) == (0, True), looked.err + looked.out
    measured = call(served, connect, tmp_path, "profile", "raw.few", "--report", "p.json")
    assert measured.status == 0, measured.err
    columns = json.loads((tmp_path / "p.json").read_text())["tables"][0]["columns"]
    assert [(one["name"], one["distinct"], one["maximum"]) for one in columns] == [("id", 1000, "999"), ("name", 11, "n9")]
    (tmp_path / "policy.toml").write_text("[default]\nmin-files = 2\n")
    duck.execute("INSERT INTO raw.few VALUES (1, 'inlined')")
    kept = call(served, connect, tmp_path, "maintain", "raw.few", "--policy", "policy.toml", "--report", "m.json")
    assert kept.status == 0, kept.err
    report = json.loads((tmp_path / "m.json").read_text())
    assert [(step["kind"], step["verdict"], step["removed"]) for step in report["steps"]] == [("flush", "done", 0), ("compact", "done", 5)]
    assert name_runs(served, "few")[-1] == ("maintain", report["run_id"])
    assert duck.execute("SELECT count(*) FROM raw.few").fetchone() == (1151,)


@pytest.mark.long
def test_a_compaction_that_others_overtake_is_made_again_over_spark_connect(served: Served, connect: ConnectServer, tmp_path: Path) -> None:
    """The conflict is known by what the server says of it, and rows that DuckDB deletes meanwhile stay deleted."""
    duck = served.lake.duckdb()
    duck.execute("CREATE TABLE few (id BIGINT)")
    for start in range(0, 200, 40):
        duck.execute(f"INSERT INTO few SELECT range FROM range({start}, {start + 40})")

    def meet(send: Callable[[], Answer]) -> Answer:
        duck.execute("DELETE FROM few WHERE id % 40 = 7")
        return send()

    with opening_way(served.server, "few", meet) as way:
        settings = find_settings(Served(served.lake, way), connect.url)
        kept = run(tmp_path, "pipeline", "maintain", "main.few", "--report", "m.json", settings=settings)
    assert kept.status == 0, kept.err
    steps = json.loads((tmp_path / "m.json").read_text())["steps"]
    assert [(step["kind"], step["verdict"], step["attempts"]) for step in steps][-1] == ("compact", "done", 2), steps
    assert duck.execute("SELECT count(*), count(*) FILTER (id % 40 = 7) FROM few").fetchone() == (195, 0)


@pytest.mark.long
def test_tables_are_copied_over_spark_connect(served: Served, connect: ConnectServer, tmp_path: Path) -> None:
    """Out to a Hadoop warehouse and back in again, compared both times."""
    duck = served.lake.duckdb()
    duck.execute("CREATE SCHEMA raw; CREATE TABLE raw.few AS SELECT range AS id, now() AS seen, range / 4 AS part FROM range(1000)")
    out = call(served, connect, tmp_path, "export", str(tmp_path / "warehouse"), "raw.few", "--report", "e.json")
    assert (out.status, "raw.few: copy: done, 1000 rows" in out.out) == (0, True), out.err + out.out
    back = call(served, connect, tmp_path, "import", str(tmp_path / "warehouse"), "--mode", "copy", "--into", "back")
    assert (back.status, "back.raw.few: copy: done, 1000 rows" in back.out) == (0, True), back.err + back.out
    there = to_schema_name(("back", "raw"))
    assert duck.execute(f'SELECT count(*) FROM (FROM raw.few INTERSECT FROM "{there}".few)').fetchone() == (1000,)


@pytest.mark.long
def test_databases_and_buckets_are_sources_over_spark_connect(served: Served, connect: ConnectServer, tmp_path: Path) -> None:
    """Rows are read once and held by the server; keys to the bucket go with each read."""
    lake = served.lake
    conn = lake.psycopg()
    conn.execute("CREATE TABLE public.orders AS SELECT i AS id, 'x' || i AS name, now() AS at FROM generate_series(1, 100) i")
    url = f"jdbc:postgresql://{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
    keys = {"JDBC_USER": conn.info.user, "JDBC_PASSWORD": conn.info.password or ""}
    options = ["--option", "dbtable=public.orders", "--incremental-by", "id"]
    settings = find_settings(served, connect.url) | keys
    took = run(tmp_path, "pipeline", "ingest", url, "raw.orders", *options, settings=settings)
    assert (took.status, "100 rows = 100 in" in took.out) == (0, True), took.err
    duck = lake.duckdb()
    bucket = lake.data_path.removeprefix("s3://").partition("/")[0]
    duck.execute(f"COPY (SELECT range AS id FROM range(50)) TO 's3://{bucket}/incoming/a.parquet'")
    store = {
        "AWS_ACCESS_KEY_ID": lake.store.access_key_id,
        "AWS_SECRET_ACCESS_KEY": lake.store.secret_access_key,
        "AWS_ENDPOINT_URL": lake.store.endpoint,
    }
    settings = find_settings(served, connect.url) | store
    took = run(tmp_path, "pipeline", "ingest", f"s3://{bucket}/incoming/", "raw.objects", settings=settings)
    assert (took.status, "50 rows = 50 in" in took.out) == (0, True), took.err
    assert duck.execute("SELECT (SELECT count(*) FROM raw.orders), (SELECT sum(id) FROM raw.objects)").fetchone() == (100, 1225)


@pytest.mark.long
def test_a_server_that_lacks_something_is_told_how_to_start(served: Served, tmp_path: Path) -> None:
    """Before anything is read or written."""
    (tmp_path / "1.csv").write_text("id\n1\n")
    bare = {"spark.jars": "", "spark.sql.extensions": "", "spark.driver.extraJavaOptions": CALM_JAVA}
    with start_connect(tmp_path / "server", conf=bare) as server:
        done = call(served, server, tmp_path, "ingest", "1.csv", "raw.t")
        assert done.status == 1
        for what in (
            "iceberg-spark-runtime-4.1",
            "iceberg-aws-bundle",
            "Iceberg's extensions",
            "it has America/New_York",
            "--packages org.",
        ):
            assert what in done.err, done.err
        settled = call(served, server, tmp_path, "ingest", "1.csv", "raw.t", "--conf", "spark.executor.memory=2g")
        assert settled.status == 1
    assert served.server.get("namespaces/raw").status == 404


@pytest.mark.long
def test_a_server_that_ends_meanwhile_leaves_nothing_half_done(served: Served, tmp_path: Path) -> None:
    """The run says so within a minute and takes its branches along; on the next server everything is taken, once."""
    theirs = tmp_path / "theirs" / "duckicelake-0.0.1.dist-info"
    theirs.mkdir(parents=True)
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: duckicelake\nVersion: 0.0.1\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("\n".join(["id", *map(str, range(1000)), ""]))
    with start_connect(tmp_path / "one", environ={"PYTHONPATH": str(theirs.parent)}) as server:
        served.lake.duckdb().execute("CREATE TABLE seen AS SELECT range AS id FROM range(10)")
        looked = call(served, server, tmp_path, "verify", "main.seen", "--files")
        assert (looked.status, "have duckicelake 0.0.1 in their Python" in looked.out) == (3, True), looked.err + looked.out
        refused = call(served, server, tmp_path, "ingest", "in", "raw.t", "--conf", "spark.executor.memory=2g")
        assert (refused.status, "--conf spark.executor.memory is the server's to set" in refused.err) == (1, True), refused.err
        argv = [*COMMAND, "pipeline", "ingest", "in", "raw.t", "--report", "r.json"]
        known = environment(find_settings(served, server.url))
        with subprocess.Popen(argv, cwd=tmp_path, env=known, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
            assert running.stderr is not None
            said = ""
            for line in running.stderr:
                said += line
                if line.startswith("write raw.t"):
                    server.kill()
            assert running.wait(120) == 1
    assert "the Spark Connect server is gone" in said
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "failed"
    assert served.server.get("namespaces/raw/tables").json["identifiers"] == [], "what it made goes with it"
    with start_connect(tmp_path / "two") as server:
        took = call(served, server, tmp_path, "ingest", "in", "raw.t")
    assert (took.status, "1000 rows = 1000 in" in took.out) == (0, True), took.err
    assert served.lake.duckdb().execute("SELECT count(*), count(DISTINCT id) FROM raw.t").fetchone() == (1000, 1000)
