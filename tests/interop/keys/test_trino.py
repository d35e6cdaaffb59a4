"""Trino with an id and a secret and no other keys, set up as `connect` prints it."""

import re
from collections.abc import Generator

import pytest

from tests.interop.keys.accounts import add_trino, check_going_on_without_account, guard_with_dead_keys
from tests.rest.auth.principals import Guarded
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack
from tests.support.trino.server import Trino, TrinoRefused

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

DENIED = re.compile(r"has no right|Access ?Denied|Status Code: 403")
WRITES = (
    "INSERT INTO {c}.a.rows VALUES (1, 'mine')",
    "DELETE FROM {c}.a.rows WHERE i = 20",
    "UPDATE {c}.a.rows SET s = 'mine' WHERE i = 20",
    "MERGE INTO {c}.a.rows t USING (SELECT 20 AS i) s ON t.i = s.i WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE {c}.a.rows",
    "ALTER TABLE {c}.a.rows ADD COLUMN more integer",
    "ALTER TABLE {c}.a.rows RENAME TO {c}.a.mine",
    "CREATE TABLE {c}.a.mine (i bigint)",
    "CREATE TABLE {c}.a.mine AS SELECT 1 AS i",
    "CREATE VIEW {c}.a.mine AS SELECT 1 AS i",
    "DROP TABLE {c}.a.rows",
    "CREATE SCHEMA {c}.mine",
)


@pytest.fixture
def reader(guarded: Guarded, trino: Trino) -> Generator[str]:
    """The catalog as who may only read."""
    name = add_trino(trino, guarded, "reader")
    yield name
    trino.arrow(f"DROP CATALOG {name}")


@pytest.fixture
def writer(guarded: Guarded, trino: Trino) -> Generator[str]:
    """The catalog as who may write."""
    name = add_trino(trino, guarded, "writer")
    yield name
    trino.arrow(f"DROP CATALOG {name}")


@pytest.mark.long
def test_a_reader_reads_and_is_refused_each_write(guarded: Guarded, trino: Trino, reader: str) -> None:
    """With what the catalog hands out alone; each refusal says why among its causes, and nothing is changed."""
    truth = guarded.lake.duckdb()
    before = truth.execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone()
    [row] = trino.arrow(f"SELECT count(*) AS c, sum(i) AS s FROM {reader}.a.rows").to_pylist()
    assert (row["c"], row["s"]) == before
    for write in WRITES:
        with pytest.raises(TrinoRefused) as refused:
            trino.arrow(write.format(c=reader))
        assert any(DENIED.search(cause) for cause in refused.value.causes), (write, refused.value.causes)
    assert truth.execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone() == before
    assert truth.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'mine'").fetchone() == (0,)
    with pytest.raises(TrinoRefused, match="Namespace does not exist: b"):
        trino.arrow(f"SELECT * FROM {reader}.b.t")


def test_a_writer_writes(guarded: Guarded, trino: Trino, writer: str) -> None:
    """Into a table of DuckDB's and into tables of its own, each kind of change, and DuckDB sees the rows."""
    truth = guarded.lake.duckdb()
    for statement in (
        "INSERT INTO {c}.a.rows VALUES (-7, 'seven'), (-8, 'eight')",
        "DELETE FROM {c}.a.rows WHERE i = -8",
        "UPDATE {c}.a.rows SET s = 'seventh' WHERE i = -7",
        "CREATE TABLE {c}.a.made AS SELECT i, s FROM {c}.a.rows WHERE i BETWEEN 10 AND 19",
        "MERGE INTO {c}.a.made t USING (VALUES 10, 99) s (i) ON t.i = s.i "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (i, s) VALUES (s.i, 'new')",
        "ALTER TABLE {c}.a.made EXECUTE optimize",
    ):
        trino.arrow(statement.format(c=writer))
    assert truth.execute("SELECT i, s FROM lake.a.rows WHERE i < -1").fetchall() == [(-7, "seventh")]
    assert truth.execute("SELECT count(*), sum(i) FROM lake.a.made").fetchone() == (10, sum(range(11, 20)) + 99)
    check_going_on_without_account(guarded, "made")
    trino.arrow(f"DROP TABLE {writer}.a.made")


@pytest.mark.long
def test_keys_that_are_over_are_refreshed(stack: SharedStack, lake: FreshLake, trino: Trino) -> None:
    """By `client.refresh-credentials-endpoint`, to read and to write: a query outlives the keys that it began with."""
    with guard_with_dead_keys(stack, lake) as (guarded, given):
        name = add_trino(trino, guarded, "writer")
        assert trino.arrow(f"SELECT count(*) AS c FROM {name}.a.rows").to_pylist() == [{"c": 50_000}]
        assert given.dead >= 1
        assert given.living >= 1
        trino.arrow(f"INSERT INTO {name}.a.rows VALUES (-1)")
        assert lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50_001,)
        trino.arrow(f"DROP CATALOG {name}")
