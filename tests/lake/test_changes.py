"""The grammar of `changes_made`."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.lake.changes import (
    DATA_KINDS,
    REWRITE_KINDS,
    TABLE_KINDS,
    Change,
    format_tokens,
    kinds_of_table,
    parse_changes,
    touched_tables,
)

NAME_KINDS = ("created_schema", "created_table", "created_view", "created_scalar_macro", "created_table_macro")
ID_KINDS = ("dropped_schema", "dropped_view", "altered_view", "dropped_scalar_macro", *sorted(TABLE_KINDS))


def quote(name: str) -> str:
    """A name as DuckDB writes it."""
    return '"' + name.replace('"', '""') + '"'


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12) | st.sampled_from(
    ["a,b", '"', '","', '"",', "x,inserted_into_table:7,y", "a:b", "\n", "ä ö", "inserted_into_table:7", ","]
)
name_entries = st.builds(
    lambda kind, parts: Change(kind, ".".join(map(quote, parts))), st.sampled_from(NAME_KINDS), st.lists(names, min_size=1, max_size=2)
)
id_entries = st.builds(lambda kind, id: Change(kind, str(id)), st.sampled_from(ID_KINDS), st.integers(0, 2**40))


@given(st.lists(name_entries | id_entries, max_size=6))
def test_every_entry_comes_back_whatever_the_names(entries: list[Change]) -> None:
    """Reading what DuckDB writes gives its entries in order; commas and quotes within names are text."""
    text = ",".join(f"{entry.kind}:{entry.value}" for entry in entries)
    assert list(parse_changes(text)) == entries


@given(st.lists(name_entries, max_size=5), st.integers(0, 2**40))
def test_a_name_never_touches_a_table(entries: list[Change], table_id: int) -> None:
    """What a name says is no token, even when it looks like one."""
    text = ",".join([*(f"{entry.kind}:{entry.value}" for entry in entries), f"altered_table:{table_id}"])
    assert touched_tables(text) == {table_id}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, [], id="null"),
        pytest.param("", [], id="empty"),
        pytest.param("INSERTED_INTO_TABLE:3", [Change("inserted_into_table", "3")], id="upper case"),
        pytest.param("shrugged_at:3,dropped_table:4", [Change("shrugged_at", "3"), Change("dropped_table", "4")], id="unknown kind"),
        pytest.param('created_table:"s"."a,""b"",c"', [Change("created_table", '"s"."a,""b"",c"')], id="quotes and commas"),
        pytest.param("altered_table:1,,dropped_table:2", [Change("altered_table", "1"), Change("dropped_table", "2")], id="empty entry"),
    ],
)
def test_odd_texts_are_read_as_far_as_they_go(text: str | None, expected: list[Change]) -> None:
    """What does not fit the grammar is passed over, the rest is read."""
    assert list(parse_changes(text)) == expected


def test_a_kind_belongs_to_the_table_of_that_very_id() -> None:
    """Table 1 is not table 11. `altered_view` may name a table whose properties changed."""
    text = "inserted_into_table:11,altered_view:1,inlined_delete:1,dropped_schema:1,altered_table:1"
    assert kinds_of_table(text, 1) == {"inlined_delete", "altered_table", "altered_view"}
    assert kinds_of_table(text, 11) == {"inserted_into_table"}
    assert touched_tables(text) == {1, 11}


@pytest.mark.parametrize(
    "text", ["inserted_into_table:", "inserted_into_table:x", 'altered_table:"1"', "altered_table:-1", "altered_table:²"]
)
def test_a_value_that_is_no_id_touches_nothing(text: str) -> None:
    """Ids are decimal digits."""
    assert touched_tables(text) == frozenset()


def test_an_unclosed_quote_costs_no_more_than_a_closed_one() -> None:
    """Reading is linear in the text, whatever a foreign writer left there."""
    began = time.process_time()
    assert list(parse_changes('created_table:"s".' + '"x"' * 20 + '"')) == []
    assert time.process_time() - began < 0.5


def test_tokens_read_back_as_the_kinds_they_were_made_of() -> None:
    """The look-up's tokens are entries of the grammar."""
    tokens = format_tokens(7, DATA_KINDS)
    assert kinds_of_table(",".join(tokens), 7) == DATA_KINDS
    assert tokens == sorted(tokens)
    assert REWRITE_KINDS < DATA_KINDS < TABLE_KINDS
