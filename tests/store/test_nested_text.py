"""The two kinds of text of nested values, beyond what DuckDB writes today."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.errors import Unsupported
from duckicelake.store.inlined_values import InlinedColumn, build_node, parse_nested
from tests.support.examples import examples

TEXT = InlinedColumn(2, "element", "varchar")
PAIR = InlinedColumn(1, "pair", "struct", (InlinedColumn(2, "a", "int32"), InlinedColumn(3, "b", "varchar")))
WHEN = InlinedColumn(1, "when", "struct", (InlinedColumn(2, "d", "date"),))


def list_of(element: InlinedColumn) -> InlinedColumn:
    """A list column."""
    return InlinedColumn(1, "many", "list", (element,))


def parse(column: InlinedColumn, text: str) -> object:
    """The value of a column's text."""
    return parse_nested(build_node(column), text)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_any_texts_in_a_list_come_back(texts: list[str | None]) -> None:
    """Whatever DuckDB prints for a list of texts is read as those texts."""
    shown = duckdb.execute("SELECT ?::VARCHAR[]::VARCHAR", [texts]).fetchall()[0][0]
    assert parse(list_of(TEXT), shown) == texts


@pytest.mark.parametrize("text", ["}", "]", "[']", "}', 'b': 2}", "{", "'}"])
def test_brackets_in_texts_close_nothing(text: str) -> None:
    """DuckDB cannot cast these back from inside nested lists and structs; we can."""
    query = "SELECT [[t]]::VARCHAR, [{'a': 1, 'b': t}]::VARCHAR FROM (SELECT ?::VARCHAR t)"
    [(lists, structs)] = duckdb.execute(query, [text]).fetchall()
    assert parse(list_of(list_of(TEXT)), lists) == [[text]]
    assert parse(list_of(PAIR), structs) == [{"a": 1, "b": text}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("{'a': 1, 'b': 'it''s'}", {"a": 1, "b": "it's"}, id="doubled-quotes"),
        pytest.param("{'a': NULL, 'b': NULL}", {"a": None, "b": None}, id="nulls"),
        pytest.param("{'a': -2147483648, 'b': 'NULL'}", {"a": -(2**31), "b": "NULL"}, id="the-word-null"),
        pytest.param("{'a': 1, 'b': CONCAT('', chr(0), 'x''', chr(0), '')}", {"a": 1, "b": "\0x'\0"}, id="nul-characters"),
        pytest.param("{'a''s': 1, '}': ', '}", {"a": 1, "b": ", "}, id="renamed-fields-count-by-place"),
        pytest.param("{'a': 1, 'b': 'CAST(''1'' AS DATE)'}", {"a": 1, "b": "CAST('1' AS DATE)"}, id="sql-in-a-text"),
        pytest.param("NULL", None, id="a-null-struct"),
    ],
)
def test_literal_structs(text: str, value: object) -> None:
    """The SQL that DuckLake makes of a struct is read without being run."""
    assert parse(PAIR, text) == value


def test_casts_of_today_and_of_older_releases() -> None:
    """DuckLake wrote `::` until May 2026 and CAST since."""
    assert parse(WHEN, "{'d': CAST('2020-01-02' AS VARCHAR)}") == {"d": 18263}
    assert parse(WHEN, "{'d': '2020-01-02'::VARCHAR}") == {"d": 18263}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "{'a': 1}",
        "{'a': 1, 'b': 'x', 'c': 2}",
        "{'a': 1, 'b': 'x'} ",
        "{'a': 1, 'b': 'x'",
        "{'a': 1, 'b': 'x}",
        "{'a': , 'b': 'x'}",
        "{a: 1, 'b': 'x'}",
        "{'a': 1, 'b': CONCAT('x'}",
        "{'a': (SELECT 1), 'b': 'x'}",
        "[1, 'x']",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    """A text of another form is an error, whole or not at all."""
    with pytest.raises(ValueError, match="character"):
        parse(PAIR, text)


@pytest.mark.parametrize("text", ["", "[", "[a", "[a,b]", "[a]]", "a", "{}", "['a]", "[a, ]", "[, a]", "['a'b]"])
def test_other_lists_are_refused(text: str) -> None:
    """A list is brackets, texts, and a comma with a space between."""
    with pytest.raises(ValueError, match="character"):
        parse(list_of(TEXT), text)


def test_a_value_iceberg_cannot_say_is_named_by_its_path() -> None:
    """The refusal tells which field of which column it is."""
    with pytest.raises(Unsupported, match=r"'when\.d' \(date\).*no date"):
        parse(WHEN, "{'d': 'tomorrow'}")
