"""What `connect` prints, run as it is printed, against a running server."""

from collections.abc import Iterator

import duckdb
import pytest

from duckicelake.commands.facts import Facts, format_facts
from duckicelake.commands.snippets import format_duckdb, format_ducklake, format_pyiceberg
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake


@pytest.fixture
def facts(lake: FreshLake) -> Iterator[Facts]:
    """How to reach a server whose lake has the table `main.t` of a hundred rows."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    settings = make_settings(lake)
    with serve(settings) as server:
        (served,) = settings.lakes()
        yield format_facts(served.model_copy(update={"data_path": lake.data_path, "iceberg_path": lake.iceberg_path}), server.uri)


def run_sql(conn: duckdb.DuckDBPyConnection, snippet: str) -> None:
    """Run all of it but what fetches extensions, which are loaded here from their wheels."""
    for statement in snippet.replace("\n", " ").split(";"):
        if statement.strip() and not statement.strip().startswith(("INSTALL", "LOAD")):
            conn.execute(statement)


def test_the_pyiceberg_snippet_reads(facts: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the namespaces, and its catalog reads a table."""
    names: dict[str, object] = {}
    exec(format_pyiceberg(facts), names)
    assert capsys.readouterr().out.strip() == "[('main',)]"
    exec("rows = catalog.load_table('main.t').scan().to_arrow().num_rows; catalog.close()", names)
    assert names["rows"] == 100


def test_the_duckdb_snippet_reads(facts: Facts, lake: FreshLake) -> None:
    """With the namespace and without: `main` is the default."""
    conn = lake.bare_duckdb()
    run_sql(conn, format_duckdb(facts))
    assert conn.execute("SELECT count(*) FROM iceberg_lake.main.t").fetchone() == (100,)
    assert conn.execute("SELECT count(*) FROM iceberg_lake.t").fetchone() == (100,)


def test_the_ducklake_snippet_reads_and_writes(facts: Facts, lake: FreshLake) -> None:
    """The lake itself, in use."""
    conn = lake.bare_duckdb()
    run_sql(conn, format_ducklake(facts))
    conn.execute("INSERT INTO t VALUES (7)")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (101,)
