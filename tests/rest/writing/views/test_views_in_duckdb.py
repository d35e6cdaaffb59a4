"""Views on both sides: DuckDB reads what REST made, and REST shows what DuckDB made of it."""

from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.views.requests import (
    COLUMNS,
    VIEWS,
    commit,
    count_snapshots,
    create,
    ident,
    load,
    names,
    post,
    replace_text,
    texts,
    version,
)
from tests.support.lakes import FreshLake


def test_a_view_is_one_for_both_sides(server: Server, duck: DuckDBPyConnection) -> None:
    """DuckDB selects under the schema's names, wherever it stands and whatever it calls the lake; REST keeps all texts."""
    sql = {"duckdb": "FROM t", "trino": "SELECT a, b FROM main.t", "spark": "SELECT a, b FROM t"}
    made = create(server, "v", sql, properties={"comment": "hello", "k": "v"}).json
    assert made == server.get(f"{VIEWS}/v").json
    assert texts(made["metadata"]) == sql
    assert made["metadata"]["properties"] == {"comment": "hello", "k": "v"}
    duck.execute("USE memory")
    assert duck.execute("SELECT name, i FROM lake.main.v").fetchall() == [("x", 1)]
    assert duck.execute("SELECT comment FROM duckdb_views() WHERE view_name = 'v'").fetchone() == ("hello",)
    assert server.ask("HEAD", f"{VIEWS}/v").status == 204


def test_what_duckdb_cannot_read_says_so_there(server: Server, duck: DuckDBPyConnection) -> None:
    """It has its name and its columns in DuckDB, and becomes readable with its first text for DuckDB."""
    create(server, "v", {"trino": "SELECT a, b FROM main.t"})
    assert duck.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'v'").fetchall() == [
        ("i", "INTEGER"),
        ("name", "VARCHAR"),
    ]
    with pytest.raises(duckdb.InvalidInputException, match="its dialects: trino"):
        duck.execute("SELECT count(*) FROM v")
    with pytest.raises(duckdb.Error, match="already exists"):
        duck.execute("CREATE TABLE v (i INTEGER)")
    assert replace_text(server, "v", {"trino": "SELECT a, b FROM main.t", "duckdb": "FROM t"}).status == 200
    assert duck.execute("FROM v").fetchall() == [(1, "x")]


def test_what_duckdb_makes_is_listed_and_loaded(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Its text has the dialect `duckdb` and names that everybody may read; columns follow from the text."""
    duck.execute("CREATE VIEW one(x) AS SELECT a + 1, b, count(*) AS n FROM lake.main.t GROUP BY ALL")
    duck.execute("CREATE VIEW two AS SELECT *, x + 1 FROM one")
    assert server.get(VIEWS).json["identifiers"] == [ident("one"), ident("two")]
    one = load(server, "one")
    assert texts(one)["duckdb"] == "SELECT (a + 1), b, count_star() AS n FROM main.t GROUP BY ALL"
    assert "raise_error" in texts(one)["spark"]
    assert names(one) == [("x", "string"), ("b", "string"), ("n", "long")]
    assert names(load(server, "two")) == [("x", "string"), ("b", "string"), ("n", "long"), ("(x + 1)", "string")]
    assert [name for name, _ in names(load(server, "two"))] == [row[0] for row in duck.execute("DESCRIBE two").fetchall()]
    row = lake.psycopg().execute("SELECT view_uuid FROM ducklake_view WHERE view_name = 'one'").fetchone()
    assert row is not None
    assert one["view-uuid"] == str(row[0])
    assert load(server, "one") == one


def test_the_catalogs_word_in_a_text_stays(server: Server, duck: DuckDBPyConnection) -> None:
    """Whoever made the view; columns under their whole names have their types, and a rename into another namespace changes nothing."""
    duck.execute("CREATE SCHEMA far; CREATE VIEW found AS SELECT '{DUCKLAKE_CATALOG}.x' AS x, lake.main.t.b FROM lake.main.t")
    found = load(server, "found")
    assert texts(found)["duckdb"] == "SELECT '{DUCKLAKE_CATALOG}.x' AS x, main.t.b FROM main.t"
    assert names(found) == [("x", "string"), ("b", "string")]
    create(server, "told", {"duckdb": "SELECT 1, '{DUCKLAKE_CATALOG}.x' FROM t"})
    for name in ("found", "told"):
        assert post(server, "views/rename", {"source": ident(name), "destination": ident(name, "far")}).status == 204
    duck.execute("USE memory")
    assert duck.execute("FROM lake.far.found").fetchall() == [("{DUCKLAKE_CATALOG}.x", "x")]
    assert duck.execute("FROM lake.far.told").fetchall() == [(1, "{DUCKLAKE_CATALOG}.x")]


def test_a_star_follows_the_table(server: Server, duck: DuckDBPyConnection) -> None:
    """A column that the table gets is in DuckDB's view at once, so it is a new version over REST."""
    duck.execute("CREATE VIEW v AS FROM t")
    before = load(server, "v")
    duck.execute("ALTER TABLE t ADD COLUMN c DATE")
    after = load(server, "v")
    assert names(after) == [*names(before), ("c", "date")]
    assert after["current-version-id"] == before["current-version-id"] + 1
    assert load(server, "v") == after


def test_duckdb_replaces_what_was_told(server: Server, duck: DuckDBPyConnection) -> None:
    """The view keeps its uuid and history; what other dialects said is no longer current."""
    told = create(server, "v", {"spark": "SELECT a, b FROM t", "trino": "SELECT 1"}).json["metadata"]
    duck.execute("CREATE OR REPLACE VIEW v AS SELECT 5 AS five")
    duck.execute("CREATE OR REPLACE VIEW v AS SELECT 6 AS six")
    found = load(server, "v")
    assert texts(found) == {"duckdb": "SELECT 6 AS six", "spark": "SELECT 6 AS six"}
    assert names(found) == [("six", "int")]
    assert (found["view-uuid"], found["location"]) == (told["view-uuid"], told["location"])
    assert [item["version-id"] for item in found["version-log"]] == [1, 2]
    assert found["versions"][0] == told["versions"][0]
    schema = {"action": "add-schema", "schema": COLUMNS}
    added = {"action": "add-view-version", "view-version": version({"duckdb": "FROM t", "spark": "SELECT 2"}, **{"schema-id": -1})}
    again = commit(server, "v", schema, added, {"action": "set-current-view-version", "view-version-id": -1}, uuid=told["view-uuid"])
    assert texts(again.json["metadata"]) == {"duckdb": "FROM t", "spark": "SELECT 2"}
    assert duck.execute("FROM v").fetchall() == [(1, "x")]


def test_duckdb_renames_comments_and_drops(server: Server, duck: DuckDBPyConnection) -> None:
    """A rename keeps the view, a comment is a property, and a view made again is another one."""
    told = create(server, "v", {"spark": "SELECT a, b FROM t"}).json["metadata"]
    duck.execute("ALTER VIEW v RENAME TO w")
    assert server.get(f"{VIEWS}/v").error == (404, "NoSuchViewException")
    assert load(server, "w") == told
    duck.execute("COMMENT ON VIEW w IS 'hello'")
    assert load(server, "w") == {**told, "properties": {"comment": "hello"}}
    duck.execute("DROP VIEW w")
    assert server.ask("HEAD", f"{VIEWS}/w").status == 404
    duck.execute("CREATE VIEW w AS SELECT 1 AS one")
    assert load(server, "w")["view-uuid"] != told["view-uuid"]
    assert len(load(server, "w")["versions"]) == 1


def test_a_comment_told_is_one_in_duckdb(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Properties that DuckLake has no word for make no lake snapshot; a comment makes one, and none when it stays."""
    create(server, "v", {"spark": "SELECT a, b FROM t"})
    before = count_snapshots(lake)
    commit(server, "v", {"action": "set-properties", "updates": {"k": "v"}})
    assert count_snapshots(lake) == before
    commit(server, "v", {"action": "set-properties", "updates": {"comment": "hello"}})
    commit(server, "v", {"action": "set-properties", "updates": {"comment": "hello"}})
    assert count_snapshots(lake) == before + 1
    assert duck.execute("SELECT comment FROM duckdb_views() WHERE view_name = 'v'").fetchone() == ("hello",)
    commit(server, "v", {"action": "remove-properties", "removals": ["comment"]})
    assert duck.execute("SELECT comment FROM duckdb_views() WHERE view_name = 'v'").fetchone() == (None,)
    assert load(server, "v")["properties"] == {"k": "v"}


def test_properties_of_duckdbs_view_leave_its_text_alone(server: Server, duck: DuckDBPyConnection) -> None:
    """Its text is DuckDB's as long as nobody gives it another."""
    duck.execute("CREATE VIEW v AS SELECT a FROM t")
    commit(server, "v", {"action": "set-properties", "updates": {"k": "v"}})
    duck.execute("ALTER TABLE t ALTER a TYPE BIGINT")
    assert duck.execute("FROM v").fetchall() == [(1,)]
    found = load(server, "v")
    assert found["properties"] == {"k": "v"}
    assert names(found) == [("a", "long")]


def test_renames_keep_what_a_view_reads(server: Server, duck: DuckDBPyConnection) -> None:
    """Into another namespace too, where names alone would mean other tables."""
    duck.execute("CREATE SCHEMA far")
    duck.execute("CREATE TABLE far.t AS SELECT 2 AS a, 'far' AS b")
    create(server, "told", {"spark": "SELECT a, b FROM t"})
    duck.execute("CREATE VIEW found AS SELECT a FROM t")
    before = load(server, "found")
    for name in ("told", "found"):
        assert post(server, "views/rename", {"source": ident(name), "destination": ident("V_" + name, "far")}).status == 204
        assert server.get(f"{VIEWS}/{name}").status == 404
    assert duck.execute("FROM far.v_told").fetchall() == [(1, "x")]
    assert duck.execute("FROM far.v_found").fetchall() == [(1,)]
    after = server.get("namespaces/far/views/v_found").json["metadata"]
    assert after["view-uuid"] == before["view-uuid"]
    assert texts(after) == {"duckdb": "SELECT a FROM main.t", "spark": "SELECT a FROM main.t"}
    assert server.get("namespaces/far/views").json["identifiers"] == [ident("V_found", "far"), ident("V_told", "far")]


def test_an_open_transaction_of_duckdb_meets_a_view_of_its_name(server: Server, duck: DuckDBPyConnection) -> None:
    """DuckDB finds the conflict itself, by the words that our commit leaves; what REST acknowledged stays."""
    for statement in ("CREATE VIEW v AS SELECT 1 AS one", "CREATE TABLE V (i INTEGER)"):
        duck.execute("BEGIN")
        duck.execute(statement)
        assert create(server, "v", {"duckdb": "FROM t"}).status == 200
        with pytest.raises(duckdb.Error, match="onflict"):
            duck.execute("COMMIT")
        assert duck.execute("FROM v").fetchall() == [(1, "x")]
        assert server.ask("DELETE", f"{VIEWS}/v").status == 204


@pytest.mark.whole
def test_expiry_leaves_views_as_they_are(server: Server, duck: DuckDBPyConnection) -> None:
    """What was told or found once needs no older lake snapshot."""
    create(server, "told", {"duckdb": "FROM t"})
    duck.execute("CREATE VIEW found AS SELECT a FROM t")
    duck.execute("CREATE OR REPLACE VIEW told AS SELECT b FROM t")
    before = [load(server, "told"), load(server, "found")]
    duck.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    assert [load(server, "told"), load(server, "found")] == before


@pytest.mark.whole
def test_two_servers_replace_one_view_at_once(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Every acknowledged change is a version of its own, DuckDB's among them."""
    create(server, "v", {"duckdb": "SELECT 0, ''"}, properties={"version.history.num-entries": "100"})
    with serve(make_settings(lake)) as other, ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(replace_text, (server, other)[n % 2], "v", {"duckdb": f"SELECT {n}, 'x'"}) for n in range(1, 17)]
        assert [answer.result().status for answer in sent] == [200] * 16
        assert load(server, "v") == load(other, "v")
    metadata = load(server, "v")
    assert sorted(item["representations"][0]["sql"] for item in metadata["versions"][1:]) == sorted(
        f"SELECT {n}, 'x'" for n in range(1, 17)
    )
    assert [item["version-id"] for item in metadata["version-log"]] == list(range(1, 18))
    assert duck.execute("FROM v").fetchall() == [(int(texts(metadata)["duckdb"].split()[1].rstrip(",")), "x")]


def test_two_servers_find_the_same_of_duckdbs_view(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Whoever looks first numbers what DuckDB did, for all."""
    duck.execute("CREATE VIEW v AS SELECT 1 AS one")
    with serve(make_settings(lake)) as other, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: (server, other)[n % 2].get(f"{VIEWS}/v").body, range(16)))
    assert len(set(found)) == 1
