"""Jobs over Spark Connect: a server that is somebody else's process, and no Java in ours."""

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import settings_for
from tests.pipeline.cluster.connect import ConnectServer, start_connect
from tests.support.commands import Done, run
from tests.support.readers import Served

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConnectServer]:
    """A server that has all that the jobs need."""
    with start_connect(tmp_path_factory.mktemp("connect") / "server") as server:
        yield server


def call(served: Served, server: ConnectServer, folder: Path, *arguments: str) -> Done:
    """Run a job by the server, without a Java to be found."""
    settings = settings_for(served.lake, port=str(served.server.port)) | {"SPARK_REMOTE": server.url, "PATH": "/nowhere", "JAVA_HOME": ""}
    return run(folder, "pipeline", *arguments, settings=settings)


def summaries(served: Served, table: str) -> list[Mapping[str, Any]]:
    """What every snapshot of a table says of itself, the oldest first."""
    return [one["summary"] for one in served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]["snapshots"]]


def test_rows_come_in_over_spark_connect(served: Served, connect: ConnectServer, tmp_path: Path) -> None:
    """Appended and merged, bad ones in quarantine, as on one machine; every snapshot names its run."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text(
        "id,seen,fare\n1,2026-03-08 02:30:00,2.50\n2,2026-03-08 02:31:00,${env:HOME}\n3,2026-03-08 02:32:00,7.25\n"
    )
    options = ["--schema", "id BIGINT NOT NULL, seen TIMESTAMP, fare DECIMAL(9,2)", "--report", "r.json"]
    took = call(served, connect, tmp_path, "ingest", "in", "raw.trips", *options)
    assert took.status == 0, took.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["rows_in"], report["rows_out"], report["rows_quarantined"]) == (3, 2, 1)
    (tmp_path / "in" / "2.csv").write_text("id,seen,fare\n3,2026-03-08 02:33:00,8.00\n4,2026-03-08 02:34:00,9.00\n")
    merged = call(served, connect, tmp_path, "ingest", "in", "raw.trips", *options, "--mode", "upsert", "--key", "id")
    assert merged.status == 0, merged.err
    second = json.loads((tmp_path / "r.json").read_text())
    duck = served.lake.duckdb()
    rows = duck.execute("SELECT id, seen::VARCHAR, fare::VARCHAR FROM raw.trips ORDER BY 1").fetchall()
    assert rows == [
        (1, "2026-03-08 02:30:00+00", "2.50"),
        (3, "2026-03-08 02:33:00+00", "8.00"),
        (4, "2026-03-08 02:34:00+00", "9.00"),
    ]
    assert duck.execute("SELECT raw FROM raw.trips__quarantine").fetchall() == [("2,2026-03-08 02:31:00,${env:HOME}",)]
    runs = [(one.get("duckicelake.job"), one.get("duckicelake.run-id")) for one in summaries(served, "trips")]
    assert runs == [("ingest", report["run_id"]), ("ingest", second["run_id"])]
    assert call(served, connect, tmp_path, "ingest", "in", "raw.trips", *options).out.startswith("in: nothing new")
