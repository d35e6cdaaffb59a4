"""DuckDB's iceberg extension with an id and a secret and no other keys."""

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from tests.interop.keys.accounts import check_going_on_without_account
from tests.rest.auth.principals import Guarded, secret_of
from tests.rest.serving import WAREHOUSE
from tests.support.lakes import open_duckdb


def attach(guarded: Guarded, principal: str) -> DuckDBPyConnection:
    """A session of DuckDB with the catalog as `ice`, and no S3 keys."""
    conn = open_duckdb()
    guarded.lake.opened.callback(conn.close)
    conn.execute(
        f"CREATE SECRET ice_secret (TYPE iceberg, CLIENT_ID '{principal}', CLIENT_SECRET '{secret_of(principal)}', "
        f"OAUTH2_SERVER_URI '{guarded.server.uri}/v1/oauth/tokens')"
    )
    conn.execute(f"ATTACH '{WAREHOUSE}' AS ice (TYPE iceberg, ENDPOINT '{guarded.server.uri}', SECRET ice_secret, DEFAULT_SCHEMA 'a')")
    return conn


def test_a_reader_reads_and_is_refused_each_write(guarded: Guarded) -> None:
    """With what the catalog hands out alone; nothing is changed."""
    conn, truth = attach(guarded, "reader"), guarded.lake.duckdb()
    counted = truth.execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone()
    assert conn.execute("SELECT count(*), sum(i) FROM ice.a.rows").fetchone() == counted
    for statement in (
        "INSERT INTO ice.a.rows VALUES (1, 'mine')",
        "DELETE FROM ice.a.rows WHERE i = 20",
        "UPDATE ice.a.rows SET s = 'mine' WHERE i = 20",
        "MERGE INTO ice.a.rows t USING (SELECT 20 AS i) s ON t.i = s.i WHEN MATCHED THEN DELETE",
        "ALTER TABLE ice.a.rows ADD COLUMN more INTEGER",
        "ALTER TABLE ice.a.rows RENAME TO mine",
        "CREATE TABLE ice.a.mine (i BIGINT)",
        "CREATE TABLE ice.a.mine AS SELECT 1 AS i",
        "DROP TABLE ice.a.rows",
        "CREATE SCHEMA ice.mine",
    ):
        with pytest.raises(duckdb.Error, match=r"403|Forbidden|no right|denied|AccessDenied"):
            conn.execute(statement)
    assert truth.execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone() == counted


def test_what_is_not_its_own_is_not_there(guarded: Guarded) -> None:
    """DuckDB says that there is no such table."""
    with pytest.raises(duckdb.CatalogException):
        attach(guarded, "reader").execute("FROM ice.b.t")


@pytest.mark.whole
def test_a_writer_writes(guarded: Guarded) -> None:
    """Into a table of the lake and into one of its own, and DuckLake's users see the rows."""
    conn, truth = attach(guarded, "writer"), guarded.lake.duckdb()
    conn.execute("INSERT INTO ice.a.rows VALUES (7, 'seven')")
    conn.execute("CREATE TABLE ice.a.made AS SELECT range AS i FROM range(1000)")
    conn.execute("DELETE FROM ice.a.made WHERE i >= 10")
    assert truth.execute("SELECT s FROM lake.a.rows WHERE i = 7").fetchall() == [("seven",)]
    assert truth.execute("SELECT count(*), sum(i) FROM lake.a.made").fetchone() == (10, 45)
    assert conn.execute("SELECT count(*), sum(i) FROM ice.a.made").fetchone() == (10, 45)
    assert conn.execute("SELECT count(*) FROM ice.a.rows WHERE i = 7").fetchone() == (1,)
    check_going_on_without_account(guarded, "made")


@pytest.mark.whole
def test_two_tables_have_keys_of_their_own(guarded: Guarded) -> None:
    """In one query, each is read with its own."""
    truth = guarded.lake.duckdb()
    truth.execute("CREATE TABLE a.more AS SELECT range AS i FROM range(50000)")
    conn = attach(guarded, "reader")
    expected = truth.execute("SELECT count(*) FROM lake.a.rows JOIN lake.a.more USING (i)").fetchone()
    assert conn.execute("SELECT count(*) FROM ice.a.rows JOIN ice.a.more USING (i)").fetchone() == expected


def test_a_wrong_secret_opens_nothing(guarded: Guarded) -> None:
    """The catalog is not attached."""
    conn = open_duckdb()
    guarded.lake.opened.callback(conn.close)
    with pytest.raises(duckdb.Error):
        conn.execute(
            f"ATTACH '{WAREHOUSE}' AS ice (TYPE iceberg, ENDPOINT '{guarded.server.uri}', CLIENT_ID 'reader', CLIENT_SECRET 'wrong', "
            f"OAUTH2_SERVER_URI '{guarded.server.uri}/v1/oauth/tokens')"
        )
