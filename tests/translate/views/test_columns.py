"""What a DuckDB view's text says of its columns."""

from collections.abc import Iterator, Sequence

import pytest

from duckicelake.iceberg.schema import Schema, format_schema, parse_schema
from duckicelake.iceberg.types import ListType, PrimitiveType, StructType
from duckicelake.lake.rows import ColumnRow
from duckicelake.translate.sql import Parser, open_parser
from duckicelake.translate.view_columns import (
    QueryScope,
    ViewColumn,
    find_columns,
    format_sql_type,
    name_columns,
    number_fields,
    to_columns,
)

TABLE = [ViewColumn("a", PrimitiveType("int")), ViewColumn("b", PrimitiveType("string")), ViewColumn("odd", None)]
OTHER = [ViewColumn("a", PrimitiveType("long")), ViewColumn("c", PrimitiveType("date"))]


@pytest.fixture(scope="module")
def parser() -> Iterator[Parser]:
    """One parser for all tests of this file."""
    with open_parser() as opened:
        yield opened


def read(parser: Parser, sql: str) -> list[str] | None:
    """The columns of a query over the tables `main.t`, `main.u` and `ns.u`, each as `name type`."""
    tree = parser.find_query(sql)
    assert tree is not None
    relations = {("main", "t"): TABLE, ("main", "u"): TABLE, ("ns", "u"): OTHER}
    found = find_columns(tree, QueryScope(relations, "main", lambda item: f"<{item['type']}>", {}))
    return None if found is None else [f"{column.name} {column.type or '?'}" for column in found]


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        pytest.param("SELECT a, B, odd FROM T", ["a int", "B string", "odd ?"], id="columns"),
        pytest.param("SELECT * FROM t", ["a int", "b string", "odd ?"], id="star"),
        pytest.param("SELECT u.*, t.b FROM t, ns.u", ["a long", "c date", "b string"], id="star-of-one"),
        pytest.param("SELECT * EXCLUDE (b, odd) FROM t", ["a int"], id="star-without"),
        pytest.param("SELECT a FROM t JOIN ns.u ON t.a = u.a", ["a ?"], id="a-name-of-two-tables"),
        pytest.param("SELECT x.a AS z FROM t AS x", ["z int"], id="aliases"),
        pytest.param("SELECT main.T.a, NS.u.c, main.t.a > 1 AS w FROM t, ns.u", ["a int", "c date", "w boolean"], id="with-schemas"),
        pytest.param("SELECT ns.u.a AS y FROM main.u, ns.u", ["y long"], id="a-table-of-each-schema"),
        pytest.param("SELECT x.t.a, t.st.f FROM ns.u AS x, t", ["a ?", "f ?"], id="parts-of-structs"),
        pytest.param("WITH t AS (SELECT b FROM t) SELECT main.t.b FROM t", ["b ?"], id="a-query-has-no-schema"),
        pytest.param("SELECT q FROM t AS x(q)", ["q int"], id="column-aliases"),
        pytest.param("SELECT a + 1, a + 1 AS s FROM t", ["<FUNCTION> ?", "s ?"], id="expressions"),
        pytest.param("SELECT count(*) n, a > 1 y, 'x' t, 1 i, 1.50 d, true w FROM t", None, id="told-by-the-text"),
        pytest.param("SELECT a::DECIMAL(9, 2) d, b::DATE e, try_cast(a AS INT) f FROM t", ["d decimal(9, 2)", "e date", "f ?"], id="casts"),
        pytest.param("WITH q(k) AS (SELECT a FROM t) SELECT k FROM q", ["k int"], id="with"),
        pytest.param("SELECT z FROM (SELECT c AS z FROM ns.u)", ["z date"], id="subquery"),
        pytest.param("SELECT a, b FROM t UNION ALL SELECT a, 'x' FROM ns.u", ["a ?", "b string"], id="union"),
    ],
)
def test_columns_follow_from_the_text(parser: Parser, sql: str, columns: list[str] | None) -> None:
    """Names always, types where the text or a table's column tells them."""
    expected = columns or ["n long", "y boolean", "t string", "i int", "d decimal(3, 2)", "w boolean"]
    assert read(parser, sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM missing",
        "SELECT * FROM range(3)",
        "SELECT * FROM t JOIN ns.u USING (a)",
        "SELECT * REPLACE (1 AS a) FROM t",
        "SELECT COLUMNS('a.*') FROM t",
        "SELECT a FROM t UNION BY NAME SELECT c FROM ns.u",
        "SELECT a, b FROM t UNION SELECT a FROM t",
        "SELECT x FROM t AS y(x, x2, x3, x4)",
    ],
)
def test_what_only_the_binder_knows_is_not_guessed(parser: Parser, sql: str) -> None:
    """No columns at all rather than wrong ones."""
    assert read(parser, sql) is None


def test_names_are_those_that_duckdb_shows() -> None:
    """The view's own list comes first, and a name that is there already gets a number."""
    found = [ViewColumn("a", None), ViewColumn("A", None), ViewColumn("a", None)]
    assert [column.name for column in name_columns(found, "")] == ["a", "A_1", "a_2"]
    assert [column.name for column in name_columns(found, '"x ""y""","z"')] == ['x "y"', "z", "a"]
    assert [column.name for column in name_columns(None, '"x","y"')] == ["x", "y"]
    assert name_columns(None, "") == []


def test_columns_become_a_valid_schema() -> None:
    """Ids are given once over all levels, and a type that is not told is a text."""
    rows = [row(1, "s", "struct"), row(2, "x", "int32", 1), row(3, "l", "list"), row(4, "element", "varchar", 3), row(5, "u", "uint64")]
    columns = to_columns(rows)
    assert isinstance(columns[0].type, StructType)
    assert isinstance(columns[1].type, ListType)
    assert columns[2].type is None
    schema = Schema(0, number_fields(columns))
    assert parse_schema(format_schema(schema)) == schema
    assert [format_sql_type(field.type) for field in schema.fields] == ['STRUCT("x" INTEGER)', "VARCHAR[]", "VARCHAR"]


def row(column_id: int, name: str, kind: str, parent: int | None = None) -> ColumnRow:
    """A live column."""
    return ColumnRow(column_id, 0, None, column_id, name, kind, None, None, None, True, parent)


def test_a_part_of_an_unknown_type_makes_the_whole_unknown() -> None:
    """A list of what Iceberg has no word for is no list."""
    rows: Sequence[ColumnRow] = [row(1, "l", "list"), row(2, "element", "uint64", 1)]
    assert to_columns(rows) == [ViewColumn("l", None)]
