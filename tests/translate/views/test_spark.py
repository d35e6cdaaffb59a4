"""Spark's SQL in DuckDB's words, when both mean the same."""

import duckdb
import pytest

from duckicelake.translate.views import find_spark_text, find_translation

ROWS = [(1, "x", 1.5), (2, "y", None), (None, None, 2.5), (1, "x", 3.5)]

EXACT = [
    pytest.param("SELECT a, b FROM t WHERE a > 1 OR b = 'x'", [(1, "x"), (2, "y"), (1, "x")], id="where"),
    pytest.param('SELECT "x", b FROM t WHERE b = "y"', [("x", "y")], id="double-quotes-are-strings"),
    pytest.param("SELECT `a` FROM `t` WHERE a <=> NULL", [(None,)], id="back-ticks-and-null-safe"),
    pytest.param("SELECT a, count(*) n, sum(c) s FROM t GROUP BY a HAVING count(*) > 1", [(1, 2, 5.0)], id="groups"),
    pytest.param("SELECT count(DISTINCT b), min(a), max(c) FROM t", [(2, 1, 3.5)], id="aggregates"),
    pytest.param("SELECT CASE WHEN a = 1 THEN 'one' ELSE coalesce(b, 'none') END FROM t ORDER BY 1", None, id="case"),
    pytest.param("SELECT x.a FROM t x LEFT JOIN t y ON x.a = y.a AND y.b = 'y'", [(1,), (2,), (None,), (1,)], id="outer-join"),
    pytest.param("WITH q AS (SELECT a FROM t) SELECT a FROM q UNION SELECT a FROM q", [(1,), (2,), (None,)], id="with-union"),
    pytest.param("SELECT a * 2 + 1 FROM t WHERE a IN (1, 2) AND NOT (a BETWEEN 2 AND 3)", [(3,), (3,)], id="arithmetic"),
    pytest.param("SELECT a FROM (SELECT DISTINCT a FROM t) q WHERE EXISTS (SELECT 1 FROM t WHERE t.a = q.a)", [(1,), (2,)], id="subquery"),
]

INEXACT = [
    "SELECT a / 2 FROM t",
    "SELECT a - 1 FROM t",
    "SELECT CAST(a AS STRING) FROM t",
    "SELECT upper(b) FROM t",
    "SELECT b FROM t WHERE b LIKE 'x%'",
    "SELECT 'a\\n' FROM t",
    "SELECT a FROM t JOIN t u USING (a)",
    "SELECT a FROM t NATURAL JOIN t u",
    "SELECT a FROM t LEFT SEMI JOIN t u ON t.a = u.a",
    "SELECT a FROM t LIMIT 1",
    "SELECT a FROM t TABLESAMPLE (10 PERCENT)",
    "SELECT a FROM t VERSION AS OF 1",
    "SELECT max(a) OVER () FROM t",
    "SELECT a, count(*) FROM t GROUP BY ROLLUP (a)",
    "SELECT count(a, b) FROM t",
    "SELECT sum(a) FILTER (WHERE a > 1) FROM t",
    "SELECT /*+ BROADCAST(t) */ a FROM t",
    "SELECT 1e3, 1L",
    "SELECT current_date()",
    "SELECT explode(array(1, 2))",
    "INSERT INTO t SELECT 1",
    "DROP TABLE t",
    "SELECT 1; SELECT 2",
    "SELECT FROM WHERE",
    "",
    "SELECT " + "CASE WHEN true THEN " * 2_000 + "1" + " END" * 2_000,
]


@pytest.mark.parametrize(("sql", "rows"), EXACT)
def test_a_plain_query_gives_the_same_rows(sql: str, rows: list[tuple[object, ...]] | None) -> None:
    """The rows are those that Spark's documentation promises for the text; `interop` asks Spark itself."""
    text = find_translation(sql, None)
    assert text is not None
    with duckdb.connect() as conn:
        conn.execute("CREATE TABLE t (a INTEGER, b VARCHAR, c DOUBLE)")
        conn.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
        found = conn.execute(text).fetchall()
    assert rows is None or sorted(found, key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize("sql", INEXACT, ids=lambda sql: sql[:40])
def test_what_may_differ_is_not_translated(sql: str) -> None:
    """A node that is not on the list, or holds more than the list says, ends the translation."""
    assert find_translation(sql, ("a",)) is None


def test_a_star_means_the_columns_that_spark_noted() -> None:
    """A column that the table gets later is not the view's; without Spark's note nothing is known."""
    assert find_translation("SELECT * FROM t", None) is None
    assert find_translation("SELECT t.* FROM t", None) is None
    assert find_translation("SELECT count(*) FROM t", None) == "SELECT COUNT(*) FROM t"
    assert find_translation("SELECT * FROM t", ("b", 'q"')) == 'SELECT "b", "q""" FROM (SELECT * FROM t) AS query'


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        pytest.param('SELECT id, "name" FROM ns.t', "SELECT id, `name` FROM ns.t", id="names-in-quotes"),
        pytest.param("SELECT count_star() AS n FROM t", "SELECT COUNT(*) AS n FROM t", id="count"),
        pytest.param("SELECT CAST('t' AS BOOLEAN) AS yes", "SELECT TRUE AS yes", id="true"),
        pytest.param("SELECT * FROM t ORDER BY a", "SELECT * FROM t ORDER BY a NULLS LAST", id="order"),
        pytest.param("SELECT (a IS NOT DISTINCT FROM 1) FROM t", "SELECT (a IS NOT DISTINCT FROM 1) FROM t", id="null-safe"),
    ],
)
def test_a_plain_query_of_duckdb_has_a_text_for_spark(sql: str, text: str) -> None:
    """Spark would take double quotes for those of strings, and nulls for the smallest values."""
    assert find_spark_text(sql) == text


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT log(a) FROM t",
        "SELECT (a ^ 2) FROM t",
        "SELECT 'a\\n'",
        "SELECT DISTINCT ON (a) a FROM t",
        "SELECT a FROM t WHERE (a = ANY(SELECT b FROM t))",
        "SELECT a FROM t GROUP BY ALL",
        "SELECT CAST('x' AS BOOLEAN)",
        "FROM",
        "SELECT " + "CASE WHEN (a) THEN " * 2_000 + "1" + " END" * 2_000,
    ],
    ids=lambda sql: sql[:40],
)
def test_what_may_differ_in_spark_has_none(sql: str) -> None:
    """The same list in the other direction."""
    assert find_spark_text(sql) is None
