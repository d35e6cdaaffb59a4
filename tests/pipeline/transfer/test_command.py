"""`duckicelake pipeline import` and `export` as users run them, without Spark: plans, refusals, reports."""

import json
import sqlite3
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.cli.test_commands import settings_for
from tests.pipeline.transfer.test_jdbc import fill
from tests.support.commands import Done, run
from tests.support.readers import Served


def call(served: Served, folder: Path, *arguments: str) -> Done:
    """Run the command where there is no Java."""
    settings = settings_for(served.lake, port=str(served.server.port)) | {"JAVA_HOME": "/none", "PATH": ""}
    return run(folder, "pipeline", *arguments, settings=settings)


def test_a_plan_needs_no_spark(served: Served, tmp_path: Path) -> None:
    """Each table has a line, and the report says the same for machines; a table that cannot be read turns the status to 1."""
    catalog = SqlCatalog("one", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/files")
    for name in ("t", "broken"):
        table = fill(catalog, "ns", name)
    Path(table.metadata_location.removeprefix("file://")).write_text("{")
    catalog.close()
    done = call(served, tmp_path, "import", f"sqlite:///{tmp_path}/c.db", "--dry-run", "--report", "r.json")
    assert (done.status, done.err) == (1, f"list sqlite:///{tmp_path}/c.db\nplan ns.broken\nplan ns.t\n")
    lines = done.out.splitlines()
    assert lines[0].startswith("ns.broken: failed: Cannot read file://")
    assert lines[1] == "ns.t: would register, 3 rows, 2 snapshots"
    assert lines[2].startswith("import: 1 planned, 1 failed (run ")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["job"], report["status"]) == ("import", "failed")
    assert [one["verdict"] for one in report["moved"]] == ["failed", "planned"]
    assert served.server.get("namespaces/ns").status == 404


def test_an_export_plan_makes_nothing(served: Served, tmp_path: Path) -> None:
    """Not even the database's own tables; views are told as what cannot go there."""
    served.lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id; CREATE VIEW v AS SELECT id FROM t")
    done = call(served, tmp_path, "export", str(tmp_path / "warehouse"), "--dry-run")
    assert done.status == 0, done.err
    assert [line.partition(":")[::2] for line in done.out.splitlines()][:2] == [
        ("main.t", " would copy, 1 rows"),
        ("main.v", " skipped: views are brought to REST catalogs alone"),
    ]
    assert not (tmp_path / "warehouse").exists()
    sqlite3.connect(tmp_path / "c.db").close()
    into = ["export", f"sqlite:///{tmp_path}/c.db", "--dry-run", "--property", "warehouse=/w"]
    unnamed = call(served, tmp_path, *into)
    assert (unnamed.status, "catalog-name=NAME: it has no tables yet" in unnamed.err, unnamed.out) == (1, True, "")
    planned = call(served, tmp_path, *into, "--property", "catalog-name=one")
    assert (planned.status, "main.t: would copy" in planned.out) == (0, True), planned.err
    with sqlite3.connect(tmp_path / "c.db") as conn:
        assert conn.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    conn.close()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        pytest.param(["import", "/none/such"], 1, "/none/such is no folder", id="no folder"),
        pytest.param(
            ["import", "/tmp", "--mode", "copy", "--history"],
            2,
            "a copy has the present rows alone",
            marks=pytest.mark.long,
            id="history of copies",
        ),
        pytest.param(
            ["export", "/tmp", "--format", "hive"], 2, "--format hive is read and not written", marks=pytest.mark.long, id="export to hive"
        ),
        pytest.param(["import", "sqlite:////none.db"], 1, "unable to open database file", id="no database"),
        pytest.param(["import", "http://127.0.0.1:1"], 1, "no catalog answers", marks=pytest.mark.long, id="no catalog"),
        pytest.param(["import", "postgresql://[::1/db"], 2, "PLACE is no URL", id="no URL"),
    ],
)
def test_a_call_that_leads_nowhere(served: Served, tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    """Its message says why, and nothing else is on the terminal."""
    done = call(served, tmp_path, *arguments)
    assert (done.status, told in done.err, done.out) == (status, True, ""), done.err
