"""What `connect` prints, run as it is printed, against a running server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from duckicelake.commands.embedded import format_command
from duckicelake.commands.facts import Facts, format_facts
from duckicelake.commands.snippets import (
    format_duckdb,
    format_ducklake,
    format_environment,
    format_pyiceberg,
    format_spark,
    format_welcome,
    list_pyiceberg,
)
from duckicelake.embedded.ducklake import LakeAddress, format_attach
from tests.rest.hostile.test_injection import TEXTS
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.shared_stack import ROOT


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


ATTACH = format_attach(LakeAddress("host=x", "lake", "s3://d/"))
PLAIN = Facts("http://127.0.0.1:9", "lake", "lake", "id:secret", "s3://i/", ATTACH, "host=x", "s3://d/", "lake", "http://s", "r", "k", "s")


@pytest.mark.parametrize("text", [each for each in TEXTS if each.id not in ("nul", "long")])
def test_what_is_printed_is_taken_as_one_text(text: str, tmp_path: Path) -> None:
    """Whatever a secret, a name or a place is made of: a shell, Python and DuckDB run what is printed for plain ones, and nothing more."""
    attach = format_attach(LakeAddress(text, text, text))
    odd = replace(
        PLAIN, ducklake_attach=attach, credential=f"id:{text}", warehouse=text, iceberg_path=f"s3://{text}", s3_secret_access_key=text
    )
    assert run_shell(tmp_path, format_environment(odd) + 'printf %s "$LAKE_ICEBERG_PATH$LAKE_CREDENTIAL"') == f"s3://{text}id:{text}"
    words = run_shell(tmp_path, "spark-sql() { printf '%s\\0' \"$@\"; }\n" + format_spark(odd)).split("\0")
    assert len(words) == len(run_shell(tmp_path, "spark-sql() { printf '%s\\0' \"$@\"; }\n" + format_spark(PLAIN)).split("\0"))
    # A secret among the arguments would be seen by every user of the machine, so Iceberg reads it from the environment.
    assert [word.partition("=")[2] for word in words if ".credential=" in word] == ["env:LAKE_CREDENTIAL"]
    assert run_shell(tmp_path, 'spark-sql() { printf %s "$LAKE_CREDENTIAL"; }\n' + format_spark(odd)) == f"id:{text}"
    keyed = replace(odd, credential=None)
    assert run_shell(tmp_path, 'spark-sql() { printf %s "$LAKE_S3_SECRET_ACCESS_KEY"; }\n' + format_spark(keyed)) == text
    arguments = run_shell(
        tmp_path, "spark-sql() { printf '%s\\0' \"$@\"; }\n" + format_spark(replace(PLAIN, credential=None, s3_secret_access_key="geheim"))
    )
    assert "geheim" not in arguments
    printed = format_pyiceberg(odd).replace("load_catalog(", "dict(warehouse_name=")
    names: dict[str, dict[str, str]] = {}
    exec("\n".join(line for line in printed.splitlines() if not line.startswith(("from ", "print("))), names)
    assert names["catalog"] == {"warehouse_name": text, **list_pyiceberg(odd)}
    for make in (format_duckdb, format_ducklake):
        with duckdb.connect() as conn:
            kinds = [[each.type for each in conn.extract_statements(make(facts))] for facts in (PLAIN, odd)]
        assert kinds[0] == kinds[1]
    assert not list(tmp_path.iterdir())


def run_shell(folder: Path, script: str) -> str:
    """What a shell prints that runs a script in a folder."""
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, timeout=60, check=True)
    assert not done.stderr
    return done.stdout.decode()


def test_what_is_printed_names_the_duckdb_that_it_is_for() -> None:
    """`pip install duckdb` gives a newer one, with another DuckLake: banner and SQL name the version that works here."""
    for text in (format_ducklake(PLAIN), format_duckdb(PLAIN), format_welcome([PLAIN])):
        assert f"pip install duckdb=={duckdb.__version__}" in text


def test_the_welcome_names_ports_and_commands_that_can_be_called() -> None:
    """Where Postgres and S3 listen, and the wrapper of the checkout, which is there and needs no PATH."""
    facts = replace(PLAIN, ducklake_dsn="host=127.0.0.1 port=5433", s3_endpoint="http://127.0.0.1:9001")
    welcome = format_welcome([facts])
    assert "Postgres at 127.0.0.1:5433, S3 at http://127.0.0.1:9001" in welcome
    wrapper = format_command()
    assert (Path.cwd() / wrapper).samefile(ROOT / "scripts" / "duckicelake")
    assert f"{wrapper} connect --show-secrets" in welcome


@pytest.mark.whole
def test_the_wrapper_calls_the_command_from_any_folder(tmp_path: Path) -> None:
    """With a PATH that has no `duckicelake`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "PIXI_PROJECT_ROOT": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run([ROOT / "scripts" / "duckicelake", "--version"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout.startswith(b"duckicelake ")) == (0, True), done.stderr
