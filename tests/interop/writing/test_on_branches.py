"""Each client writes on a branch as `connect --branch dev` shows; plain DuckDB reads that on the branch, and the lake is unchanged."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from duckicelake.commands.facts import Facts, choose_member, format_facts, name_branch
from duckicelake.commands.snippets import format_ducklake, format_pyiceberg, format_spark, format_trino, list_duckdb
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from tests.lake.branches.repository import make_branch, read_rows
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.spark_snippet import read_spark_settings
from tests.support.trino.server import Trino

EXPECTED = [*range(10, 100), 900, 1000, 1001]
"""What each client leaves in main.t: it deletes ids below 10, and appends 1000 and 1001."""


@dataclass(frozen=True, slots=True)
class OnBranch:
    """The branch `dev` of a served lake, and the facts that `connect --branch dev` shows."""

    lake: FreshLake
    dev: FreshLake
    facts: Facts

    def check(self) -> None:
        """The branch has what the client wrote, also the table `made`; the lake has neither."""
        assert [row[0] for row in read_rows(self.dev, "main.t")] == EXPECTED
        assert [row[0] for row in read_rows(self.dev, "main.made")] == [7]
        assert [row[0] for row in read_rows(self.lake, "main.t")] == [*range(100), 900]
        with closing(self.lake.duckdb(read_only=True)) as session:
            assert session.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall() == [("t",)]


@pytest.fixture
def branch(served: Served) -> Iterator[OnBranch]:
    """A lake with rows in a file and an inlined row, and a branch of it."""
    with closing(served.lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS id, 'm' AS v FROM range(100)")
        session.execute("INSERT INTO t VALUES (900, 'i')")
    dev, settings = make_branch(served.lake, "dev"), make_settings(served.lake)
    member = choose_member(settings, name_branch(settings, None, "dev"))
    yield OnBranch(served.lake, dev, format_facts(member, served.server.uri))


def write_sql(run: Any, table: str, made: str) -> None:
    """Write by SQL that all engines understand."""
    run(f"DELETE FROM {table} WHERE id < 10")
    run(f"INSERT INTO {table} VALUES (1000, 'd'), (1001, 'd')")
    run(f"CREATE TABLE {made} AS SELECT 7 AS id")


def test_pyiceberg_writes_on_a_branch(branch: OnBranch) -> None:
    """As the text says that `connect` prints."""
    names: dict[str, Any] = {}
    exec(format_pyiceberg(branch.facts), names)
    catalog = names["catalog"]
    table = catalog.load_table(("main", "t"))
    table.delete("id < 10")
    table.append(pa.table({"id": pa.array([1000, 1001], pa.int64()), "v": ["d", "d"]}))
    rows = pa.table({"id": pa.array([7], pa.int64())})
    catalog.create_table(("main", "made"), rows.schema).append(rows)
    branch.check()
    catalog.close()


@pytest.mark.whole
def test_duckdbs_iceberg_extension_writes_on_a_branch(branch: OnBranch) -> None:
    """As the statements say that `connect` prints."""
    session = branch.lake.bare_duckdb()
    for statement in list_duckdb(branch.facts, "ice"):
        session.execute(statement)
    # The extension puts delete files next to the data files, which are the lake's.
    write_sql(session.execute, "ice.main.t", "ice.main.made")
    branch.check()
    merge_branch(branch.lake.psycopg(), branch.lake.metadata_schema, MergeRequest("dev"))
    session = branch.lake.bare_duckdb()
    for statement in list_duckdb(replace(branch.facts, warehouse="lake"), "ice"):
        session.execute(statement)
    # These rows lie in a file of the branch.
    session.execute("DELETE FROM ice.main.t WHERE id >= 1000")
    assert [row[0] for row in read_rows(branch.lake, "main.t")] == EXPECTED[:-2]


def test_duckdb_writes_on_a_branch_as_on_a_ducklake(branch: OnBranch) -> None:
    """As the statements say that `connect` prints; the extensions are there."""
    session = branch.lake.bare_duckdb()
    text = "\n".join(line for line in format_ducklake(branch.facts).splitlines() if not line.startswith(("--", "INSTALL")))
    session.execute(text)
    write_sql(session.execute, "t", "made")
    branch.check()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_writes_on_a_branch(branch: OnBranch, spark: Spark) -> None:
    """By the settings that `connect` prints: the catalog's name has the branch in it."""
    for name, value in read_spark_settings(format_spark(branch.facts)).items():
        if name != "spark.sql.extensions":
            spark.session.conf.set(name, value)
    write_sql(spark.arrow, "lake_dev.main.t", "lake_dev.main.made")
    branch.check()
    # `t@main` is the table of the lake.
    assert spark.arrow("SELECT count(*) AS n FROM lake_dev.main.`t@main`")["n"].to_pylist() == [101]


@pytest.mark.whole
@pytest.mark.xdist_group("trino")
def test_trino_writes_on_a_branch(branch: OnBranch, trino: Trino) -> None:
    """By the properties that `connect` prints; one catalog shows all branches if its warehouse is `lakefs://lake`."""
    properties = dict(line.partition("=")[::2] for line in format_trino(branch.facts).splitlines())
    del properties["connector.name"]
    catalog = trino.add(properties)
    write_sql(trino.arrow, f"{catalog}.main.t", f"{catalog}.main.made")
    branch.check()
    trino.arrow(f"DROP CATALOG {catalog}")
    # As lakeFS has it, the schema is the branch and the namespace.
    catalog = trino.add(properties | {"iceberg.rest-catalog.warehouse": "lakefs://lake"})
    assert trino.arrow(f'SHOW TABLES FROM {catalog}."dev.main"')["Table"].to_pylist() == ["made", "t"]
    trino.arrow(f'INSERT INTO {catalog}."dev.main".made VALUES (8)')
    both = trino.arrow(f'SELECT count(*) AS n FROM {catalog}."dev.main".t a JOIN {catalog}."main.main".t b ON a.id = b.id')
    assert both["n"].to_pylist() == [91]
    assert [row[0] for row in read_rows(branch.dev, "main.made")] == [7, 8]
    trino.arrow(f"DROP CATALOG {catalog}")
