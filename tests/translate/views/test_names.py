"""Whose tables a query means."""

import json
from collections.abc import Iterator

import pytest

from duckicelake.translate.sql import CONFIG, NameContext, Parser, as_query, find_qualified_query, list_names, open_parser

NAMES = NameContext(("a", "b"), "lake")


@pytest.fixture(scope="module")
def parser() -> Iterator[Parser]:
    """One parser for all tests of this file."""
    with open_parser() as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        pytest.param("FROM t", 'SELECT * FROM {DUCKLAKE_CATALOG}."a␟b".t', id="alone"),
        pytest.param("SELECT 1 FROM ns.t", "SELECT 1 FROM {DUCKLAKE_CATALOG}.ns.t", id="with-namespace"),
        pytest.param("SELECT 1 FROM LAKE.ns.t", "SELECT 1 FROM {DUCKLAKE_CATALOG}.ns.t", id="with-own-catalog"),
        pytest.param(
            "WITH t AS (SELECT * FROM t) SELECT * FROM T",
            'WITH t AS (SELECT * FROM {DUCKLAKE_CATALOG}."a␟b".t)SELECT * FROM T',
            id="a-query-of-its-own-hides-a-table-outside-itself",
        ),
        pytest.param("SELECT * FROM ns.t WHERE x = 'FROM t'", "SELECT * FROM {DUCKLAKE_CATALOG}.ns.t WHERE (x = 'FROM t')", id="text"),
        pytest.param(
            """SELECT '{DUCKLAKE_CATALOG}.x', '"{DUCKLAKE_CATALOG}".ns.t' FROM ns.t""",
            """SELECT '{DUCKLAKE_CATALOG}.x', '"{DUCKLAKE_CATALOG}".ns.t' FROM {DUCKLAKE_CATALOG}.ns.t""",
            id="the-catalogs-word-in-a-text",
        ),
        pytest.param("SELECT i FROM range(3) r(i)", 'SELECT i FROM "range"(3) AS r(i)', id="numbers"),
    ],
)
def test_tables_get_their_whole_names(parser: Parser, sql: str, whole: str) -> None:
    """A name means the same from every namespace and under every name of the catalog."""
    assert find_qualified_query(parser, sql, NAMES) == whole


def test_a_recursive_query_reads_itself(parser: Parser) -> None:
    """Its own name inside is no table, and tables beside it are."""
    sql = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r, t WHERE i < 3) SELECT * FROM r"
    whole = find_qualified_query(parser, sql, NAMES)
    assert whole is not None
    assert "FROM r ," in whole
    assert whole.count("{DUCKLAKE_CATALOG}") == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM other.s.t",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM t WHERE i IN (SELECT i FROM query_table('x'))",
        "SELECT * FROM t AT (VERSION => 1)",
        "SELECT $1",
        "DESCRIBE t",
        "SELECT 1; SELECT 2",
        "DROP TABLE t",
        "CREATE VIEW v AS SELECT 1",
        "SELECT",
        "",
        'SELECT "{DUCKLAKE_CATALOG}".a FROM t AS "{DUCKLAKE_CATALOG}"',
        'SELECT 1 FROM "{DUCKLAKE_CATALOG}".ns.t',
        "SELECT 1 FROM {DUCKLAKE_CATALOG}.ns.t",
        "SELECT '\0'",
        "SELECT 1 /*" + "x" * 70_000 + "*/",
        "SELECT 1" + " + 1" * 5_000,
    ],
    ids=lambda sql: sql[:40],
)
def test_anything_else_is_not_taken(parser: Parser, sql: str) -> None:
    """What is no single query over tables of this lake has no text for DuckLake; nothing of it runs."""
    assert find_qualified_query(parser, sql, NAMES) is None


def test_names_of_a_foreign_default_catalog_are_not_ours(parser: Parser) -> None:
    """A view made beside another catalog means that one's tables, unless it says otherwise."""
    foreign = NameContext(("ns",), "lake", is_own=False)
    assert find_qualified_query(parser, "SELECT * FROM t", foreign) is None
    assert find_qualified_query(parser, "SELECT * FROM ns.t", foreign) is None
    assert find_qualified_query(parser, "SELECT * FROM lake.ns.t", foreign) == "SELECT * FROM {DUCKLAKE_CATALOG}.ns.t"


def test_names_that_a_ducklake_view_reads(parser: Parser) -> None:
    """Names without a namespace are of the view's own."""
    tree = parser.find_query(as_query("SELECT * FROM {DUCKLAKE_CATALOG}.m.t, u WHERE EXISTS (FROM m.w)"))
    assert tree is not None
    assert list_names(tree, "own") == {("m", "t"), ("own", "u"), ("m", "w")}


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ("SELECT 'ü{DUCKLAKE_CATALOG}.x' FROM {DUCKLAKE_CATALOG}.m.t", "SELECT 'ü{DUCKLAKE_CATALOG}.x' FROM m.t"),
        ('SELECT a AS "{DUCKLAKE_CATALOG}.a" FROM {DUCKLAKE_CATALOG}.t', 'SELECT a AS "{DUCKLAKE_CATALOG}.a" FROM t'),
        ("SELECT 'it''s', {DUCKLAKE_CATALOG}.m.t.a FROM {DUCKLAKE_CATALOG}.m.t", "SELECT 'it''s', m.t.a FROM m.t"),
        ("SELECT $$ {DUCKLAKE_CATALOG}. $$", "SELECT $$ {DUCKLAKE_CATALOG}. $$"),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_texts_and_quoted_names_of_a_ducklake_view_stay(held: str, shown: str) -> None:
    """DuckLake puts no catalog into them either."""
    assert as_query(held) == shown


def test_the_parser_reaches_nothing(parser: Parser) -> None:
    """Even a text that would run could open no file; it only comes back as a tree."""
    assert CONFIG["enable_external_access"] == "false"
    assert parser.find_query("SELECT * FROM read_text('/etc/hostname')") is not None
    assert parser.find_query("SELECT error('never')") is not None


@pytest.mark.parametrize("sql", ["SELECT a, b FROM t GROUP BY ALL", "SELECT [1, 2], {'a': 1}, x -> x + 1 FROM t"])
def test_a_tree_comes_back_as_the_same_query(parser: Parser, sql: str) -> None:
    """What DuckDB writes down for a tree has that tree, places in the text aside."""
    tree = parser.find_query(sql)
    assert tree is not None
    text = parser.find_text(tree)
    assert text is not None
    again = parser.find_query(text)
    assert again is not None
    assert parser.find_text(again) == text
    assert json.dumps(again)
