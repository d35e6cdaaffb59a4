"""Everything that DuckDB's iceberg extension writes, and what it refuses by itself; plain DuckDB goes on with each table."""

import duckdb
import pytest

from tests.interop.writing.pair import Pair
from tests.support.going_on import check_going_on

TYPES = (
    "id BIGINT NOT NULL, name VARCHAR, d DECIMAL(9,2), day DATE, ts TIMESTAMP, tz TIMESTAMPTZ, b BLOB, u UUID, l INTEGER[],"
    " s STRUCT(a INTEGER, b VARCHAR), m MAP(VARCHAR, INTEGER), bo BOOLEAN, f FLOAT, db DOUBLE, ti TIME"
)
VALUES = (
    "SELECT i, 'n' || i, i * 1.5, DATE '2020-01-01' + i::INTEGER, TIMESTAMP '1969-12-31 23:00:00' + to_hours(i),"
    " TIMESTAMPTZ '2020-01-01 00:00:00+00' + to_hours(i), ('b' || i)::BLOB, ('00000000-0000-0000-0000-0000000000' || (10 + i))::UUID,"
    " [i, NULL], {'a': i, 'b': 'x'}, MAP {'k': i}, i % 2 = 0, i / 2, i / 3, TIME '01:02:03' FROM range(20) r(i)"
)
ROWS = [
    f"INSERT INTO {{t}} {VALUES}",
    "INSERT INTO {t} (id, name) VALUES (100, NULL)",
    "INSERT INTO {t} BY NAME SELECT 101 AS id, 'by' AS name",
    "UPDATE {t} SET name = 'u', l = [7] WHERE id < 3",
    "DELETE FROM {t} WHERE id = 4 OR d = 22.5",
    "MERGE INTO {t} t USING (SELECT 6::BIGINT AS id, 'm' AS name UNION ALL SELECT 200, 'new') s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)",
    "MERGE INTO {t} t USING (SELECT 7::BIGINT AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
]
COLUMNS = [
    "ALTER TABLE {t} ADD COLUMN extra INTEGER",
    "ALTER TABLE {t} RENAME COLUMN name TO title",
    "ALTER TABLE {t} ALTER COLUMN extra TYPE BIGINT",
    "ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL",
    "ALTER TABLE {t} DROP COLUMN b",
    "ALTER TABLE {t} ADD COLUMN s.c INTEGER",
    "ALTER TABLE {t} RENAME COLUMN s.c TO cc",
    "ALTER TABLE {t} DROP COLUMN s.a",
    "ALTER TABLE {t} SET PARTITIONED BY (bucket(4, id), day(ts))",
    "INSERT INTO {t} (id, title, extra) VALUES (400, 'later', 5000000000)",
    "ALTER TABLE {t} RESET PARTITIONED BY",
    "DELETE FROM {t} WHERE id = 101",
]
REFUSED = [
    ("INSERT INTO ice.ns.t (id) VALUES (NULL)", "NOT NULL constraint failed"),
    ("DELETE FROM ice.ns.t RETURNING id", "RETURNING clause not yet supported"),
    ("ALTER TABLE ice.ns.t ALTER COLUMN name SET NOT NULL", "Cannot change nullable column"),
    ("ALTER TABLE ice.ns.t SET SORTED BY (id)", "SET_SORTED_BY"),
    ("COMMENT ON TABLE ice.ns.t IS 'hello'", "Only ALTER TABLE is supported"),
    ("CREATE VIEW ice.ns.v AS SELECT 1", "Create View"),
    ("CREATE OR REPLACE TABLE ice.ns.t AS SELECT 1 AS i", "CREATE OR REPLACE not supported"),
    ("CREATE TABLE ice.ns.t (i INTEGER)", "already exists"),
    ("DROP SCHEMA ice.ns", "is not empty"),
    ("DROP SCHEMA ice.ns CASCADE", "CASCADE is not supported"),
]


@pytest.mark.whole
@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_every_statement_on_rows_and_columns(pair: Pair, format_version: int) -> None:
    """Rows of every type come, change and go, columns and partitions change: DuckDB agrees after each, and goes on."""
    pair.ice.execute(f"CREATE TABLE ice.ns.t ({TYPES}) WITH ('format-version' = {format_version})")
    by_default = ["ALTER TABLE {t} ADD COLUMN made VARCHAR DEFAULT 'here'"] if format_version == 3 else []
    for statement in [*ROWS, *by_default, *COLUMNS]:
        pair.ice.execute(statement.replace("{t}", "ice.ns.t"))
        assert pair.rows(), statement
    assert len(pair.rows()) == 20
    check_going_on(pair.served, ("ns", "t"))
    # a session of DuckDB 1.5.5 breaks when another one flushes a table whose columns have changed
    pair.lake = pair.served.lake.duckdb()
    pair.ice.execute("TRUNCATE ice.ns.t")
    assert pair.rows() == []


@pytest.mark.whole
@pytest.mark.parametrize(
    ("format_version", "parts"),
    [
        pytest.param(2, "bucket(4, id), year(ts), name", id="v2", marks=pytest.mark.long),
        pytest.param(3, "truncate(2, name), month(ts)", id="v3"),
    ],
)
def test_partitioned_tables_are_made_filled_and_changed(pair: Pair, format_version: int, parts: str) -> None:
    """CREATE TABLE AS with partitions: rows move between them, filters find them, and DuckDB goes on."""
    source = "SELECT i::INTEGER AS id, 'n' || (i % 3) AS name, TIMESTAMP '2019-12-01' + to_days(i::INTEGER * 30) AS ts FROM range(12) r(i)"
    pair.ice.execute(f"CREATE TABLE ice.ns.t PARTITIONED BY ({parts}) WITH ('format-version' = {format_version}) AS {source}")
    pair.ice.execute("INSERT INTO ice.ns.t VALUES (NULL, NULL, NULL)")
    pair.ice.execute("UPDATE ice.ns.t SET name = 'moved' WHERE id = 3")
    pair.ice.execute("DELETE FROM ice.ns.t WHERE id = 4")
    for where, ids in [("name = 'n1'", [1, 7, 10]), ("id = 3", [3]), ("ts < '2020-01-01'", [0, 1]), ("name IS NULL", [None])]:
        for conn, table in [(pair.ice, "ice.ns.t"), (pair.lake, "lake.ns.t")]:
            found = conn.execute(f"SELECT id FROM {table} WHERE {where} ORDER BY id").fetchall()
            assert [row[0] for row in found] == ids, f"{table} where {where}"
    check_going_on(pair.served, ("ns", "t"))


@pytest.mark.whole
def test_transactions_are_whole(pair: Pair) -> None:
    """A table made and filled, altered and changed within one transaction; one rolled back leaves nothing; a stale one is refused."""
    ice = pair.ice
    for statement in ["BEGIN", "CREATE TABLE ice.ns.t (i INTEGER)", "INSERT INTO ice.ns.t VALUES (1)", "COMMIT"]:
        ice.execute(statement)
    assert pair.rows() == [(1,)]
    for statement in [
        "BEGIN",
        "INSERT INTO ice.ns.t VALUES (2)",
        "ALTER TABLE ice.ns.t ADD COLUMN j INTEGER",
        "INSERT INTO ice.ns.t VALUES (3, 3)",
        "UPDATE ice.ns.t SET i = 33 WHERE i = 3",
        "DELETE FROM ice.ns.t WHERE i = 1",
        "COMMIT",
    ]:
        ice.execute(statement)
    assert pair.rows() == [(2, None), (33, 3)]
    for statement in ["BEGIN", "INSERT INTO ice.ns.t VALUES (9, 9)", "CREATE TABLE ice.ns.gone (i INTEGER)", "ROLLBACK"]:
        ice.execute(statement)
    assert pair.lake.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall() == [("t",)]
    ice.execute("BEGIN")
    ice.execute("DELETE FROM ice.ns.t WHERE i = 2")
    pair.lake.execute("INSERT INTO lake.ns.t VALUES (5, 5)")
    with pytest.raises(duckdb.Error, match="Requirement failed"):
        ice.execute("COMMIT")
    assert pair.rows() == [(2, None), (5, 5), (33, 3)]
    check_going_on(pair.served, ("ns", "t"))


@pytest.mark.whole
def test_names_properties_and_defaults(pair: Pair) -> None:
    """Renamed, told properties, made with defaults: DuckDB has them, and inserts with them."""
    ice, lake = pair.ice, pair.lake
    ice.execute("CREATE TABLE ice.ns.t (i INTEGER DEFAULT 5, j VARCHAR DEFAULT 'x', k DATE) WITH ('format-version' = 3)")
    ice.execute("ALTER TABLE ice.ns.t SET ('owner' = 'ann')")
    ice.execute("INSERT INTO ice.ns.t (k) VALUES (NULL)")
    lake.execute("INSERT INTO lake.ns.t (k) VALUES (DATE '2020-01-01')")
    ice.execute("ALTER TABLE ice.ns.t ALTER COLUMN i SET DEFAULT 6")
    lake.execute("INSERT INTO lake.ns.t (j) VALUES ('y')")
    assert [row[:2] for row in pair.rows()] == [(5, "x"), (5, "x"), (6, "y")]
    ice.execute("ALTER TABLE ice.ns.t RENAME TO u")
    assert lake.execute("SELECT table_name, tags['owner'] FROM duckdb_tables() WHERE schema_name = 'ns'").fetchall() == [("u", "ann")]
    assert ("owner", "ann") in ice.execute("FROM iceberg_table_properties(ice.ns.u)").fetchall()
    check_going_on(pair.served, ("ns", "u"))
    ice.execute("DROP TABLE ice.ns.u")
    ice.execute("DROP SCHEMA ice.ns")


def test_what_the_extension_cannot_write(pair: Pair) -> None:
    """Each refusal, by the extension or by the catalog, changes nothing."""
    pair.ice.execute("CREATE TABLE ice.ns.t (id BIGINT NOT NULL, name VARCHAR)")
    pair.ice.execute("INSERT INTO ice.ns.t VALUES (1, 'a')")
    before = pair.served.server.get("namespaces/ns/tables/t").json["metadata"]
    for statement, why in REFUSED:
        with pytest.raises(duckdb.Error, match=why):
            pair.ice.execute(statement)
    assert pair.served.server.get("namespaces/ns/tables/t").json["metadata"] == before


@pytest.mark.long
def test_columns_that_lead_back_to_older_ones(pair: Pair) -> None:
    """The extension counts schemas from the current one and refuses the next ALTER then; one of plain DuckDB helps it on."""
    pair.ice.execute("CREATE TABLE ice.ns.t (id BIGINT)")
    pair.ice.execute("ALTER TABLE ice.ns.t ADD COLUMN e INTEGER")
    pair.ice.execute("ALTER TABLE ice.ns.t DROP COLUMN e")
    with pytest.raises(duckdb.Error, match="already exists in the table"):
        pair.ice.execute("ALTER TABLE ice.ns.t ADD COLUMN g INTEGER")
    pair.lake.execute("ALTER TABLE lake.ns.t ADD COLUMN f INTEGER")
    pair.ice.execute("ALTER TABLE ice.ns.t ADD COLUMN g INTEGER")
    assert [row[0] for row in pair.lake.execute("DESCRIBE lake.ns.t").fetchall()] == ["id", "f", "g"]
