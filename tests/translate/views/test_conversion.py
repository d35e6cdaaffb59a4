"""What DuckLake keeps of an Iceberg view."""

from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import MapType, NestedField, PrimitiveType
from duckicelake.iceberg.view_metadata import SqlRepresentation, ViewMetadata, ViewVersion
from duckicelake.translate.sql import Parser, open_parser
from duckicelake.translate.views import DuckLakeView, to_ducklake_view

LONG = PrimitiveType("long")


@pytest.fixture(scope="module")
def parser() -> Iterator[Parser]:
    """One parser for all tests of this file."""
    with open_parser() as opened:
        yield opened


def make_view(names: tuple[str, ...] = ("a",), catalog: str | None = None, **sql: str) -> ViewMetadata:
    """A view in the namespace `ns` with columns of these names and a text in each of these dialects."""
    fields = tuple(NestedField(number, name, LONG, False) for number, name in enumerate(names, 1))
    texts = tuple(SqlRepresentation(text, dialect) for dialect, text in sql.items())
    version = ViewVersion(1, 0, 1, {}, texts, ("ns",), catalog)
    return ViewMetadata("u", 1, "s3://b/v", (Schema(0, fields),), 1, (version,))


def test_duckdbs_text_is_taken_before_any_other(parser: Parser) -> None:
    """The view's columns are called as its schema says."""
    held = to_ducklake_view(parser, make_view(("x", 'q"'), spark="SELECT b, b FROM t", duckdb="SELECT a, b FROM t"), "lake")
    assert held == DuckLakeView("SELECT a, b FROM {DUCKLAKE_CATALOG}.ns.t", '"x","q"""')


def test_plain_spark_is_taken(parser: Parser) -> None:
    """The names of the dialects are the same in any case."""
    held = to_ducklake_view(parser, make_view(SPARK="SELECT `a` FROM t"), "lake")
    assert held == DuckLakeView("SELECT a FROM {DUCKLAKE_CATALOG}.ns.t", '"a"')


def test_sparks_star_takes_the_columns_it_noted(parser: Parser) -> None:
    """As many names as the schema has; any other number is a note of something else."""
    view = make_view(("x",), spark="SELECT * FROM t")
    noted = replace(view, properties={"spark.query-column-names": "b"})
    assert to_ducklake_view(parser, noted, "lake").sql == "SELECT b FROM (SELECT * FROM {DUCKLAKE_CATALOG}.ns.t) AS query"
    other = replace(view, properties={"spark.query-column-names": "b,c"})
    assert not to_ducklake_view(parser, other, "lake").is_readable


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(make_view(trino="SELECT a FROM t"), id="another-dialect"),
        pytest.param(make_view(spark="SELECT upper(a) FROM t"), id="no-exact-translation"),
        pytest.param(make_view(duckdb="SELECT a FROM", spark="SELECT a FROM t"), id="duckdb-cannot-parse-its-own"),
        pytest.param(make_view(catalog="other", duckdb="SELECT a FROM t"), id="another-catalog"),
        pytest.param(make_view(("a", "A"), duckdb="SELECT a, b FROM t"), id="names-that-differ-by-case"),
        pytest.param(make_view((), duckdb="SELECT"), id="no-columns"),
        pytest.param(make_view(('we\'ird "x"',), **{"o'dd {DUCKLAKE_CATALOG}.": "x"}), id="quotes"),
    ],
)
def test_what_duckdb_cannot_read_stands_in(parser: Parser, view: ViewMetadata) -> None:
    """It has the view's columns, and whatever is selected from it fails and names the dialects."""
    held = to_ducklake_view(parser, view, "lake")
    assert not held.is_readable
    with duckdb.connect() as conn:
        names = [row[0] for row in conn.execute(f"DESCRIBE {held.sql}").fetchall()]
        assert len(names) == max(1, len(view.schemas[0].fields))
        for query in ("SELECT * FROM", "SELECT count(*) FROM", "SELECT 1 WHERE EXISTS (FROM", "SELECT max(1) FROM"):
            with pytest.raises(duckdb.InvalidInputException, match="dialects: "):
                conn.execute(f"{query} ({held.sql})" + (")" if "EXISTS" in query else ""))


def test_a_catalog_called_as_the_warehouse_is_this_lake(parser: Parser) -> None:
    """Spark notes the catalog that was current; only one of this name is known to be ours."""
    assert to_ducklake_view(parser, make_view(catalog="LAKE", spark="SELECT a FROM t"), "lake").is_readable
    assert not to_ducklake_view(parser, make_view(catalog="lake2", spark="SELECT a FROM t"), "lake").is_readable


def test_nested_types_have_words_in_duckdb(parser: Parser) -> None:
    """DESCRIBE shows the view's columns as they would be."""
    view = make_view(trino="x")
    field = NestedField(1, "m", MapType(2, PrimitiveType("string"), 3, PrimitiveType("decimal(9, 2)"), False), False)
    held = to_ducklake_view(parser, replace(view, schemas=(Schema(0, (field,)),)), "lake")
    with duckdb.connect() as conn:
        assert conn.execute(f"DESCRIBE {held.sql}").fetchall()[0][:2] == ("m", "MAP(VARCHAR, DECIMAL(9,2))")
