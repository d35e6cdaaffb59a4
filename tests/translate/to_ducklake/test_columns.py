"""Iceberg schemas as DuckLake columns."""

import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.lake_format import V1_0, V1_1, LakeFormat
from duckicelake.lake.rows import ColumnRow, TableRow
from duckicelake.lake.writing.rows import EndedColumn, EndedComment, NewColumn, NewComment, NewRow
from duckicelake.translate.to_ducklake.columns import (
    ColumnRules,
    change_columns,
    change_comments,
    create_columns,
    has_narrow,
    to_column_type,
)
from duckicelake.translate.types import PLACEHOLDER, FieldRules, columns_at, is_placeholder, to_fields

TABLE = 7
RULES = FieldRules(
    TableRow(TABLE, UUID(int=1), "t", "t/", True, "main", "main/", True),
    is_past=False,
    defaulted=frozenset(),
    unreadable={},
    hidden=frozenset(),
)


def schema(*fields: dict[str, Any]) -> Schema:
    """A schema of these fields, optional unless they say otherwise."""
    return parse_schema({"type": "struct", "schema-id": 0, "fields": [{"required": False} | field for field in fields]})


def field(field_id: int, name: str, kind: Any, **more: Any) -> dict[str, Any]:
    """A field's JSON."""
    return {"id": field_id, "name": name, "type": kind, **more}


NESTED = schema(
    field(1, "id", "long", required=True, doc="the key"),
    field(2, "place", {"type": "struct", "fields": [field(4, "x", "int", required=False), field(5, "at", "timestamptz", required=False)]}),
    field(3, "tags", {"type": "list", "element-id": 6, "element": "string", "element-required": False}),
    field(7, "m", {"type": "map", "key-id": 8, "key": "string", "value-id": 9, "value": "decimal(9, 2)", "value-required": False}),
)


def to_live(rows: list[NewRow], begin: int = 1) -> list[ColumnRow]:
    """New columns as DuckLake then has them."""
    return [
        ColumnRow(
            column_id=row.column_id,
            begin_snapshot=begin,
            end_snapshot=None,
            column_order=row.column_order,
            column_name=row.column_name,
            column_type=row.column_type,
            initial_default=row.initial_default,
            default_value=row.default_value,
            default_value_type=row.default_value_type,
            nulls_allowed=row.nulls_allowed,
            parent_column=row.parent_column,
        )
        for row in rows
        if isinstance(row, NewColumn)
    ]


def change(before: Schema, after: Schema, widens: bool = False) -> list[NewRow]:
    """What makes the columns of one schema those of another."""
    return change_columns(TABLE, to_live(create_columns(TABLE, before)), after, ColumnRules(before, widens))


def test_a_schema_comes_back_from_its_columns() -> None:
    """What is written is read as the same fields, docs and NOT NULL of the root included."""
    rows = create_columns(TABLE, NESTED)
    live = to_live(rows)
    comments = [row for row in rows if isinstance(row, NewComment)]
    assert comments == [NewComment(TABLE, 1, "the key")]
    fields = to_fields(columns_at(live, (), 1), RULES)
    assert [item.type for item in fields] == [item.type for item in NESTED.fields]
    assert [(item.field_id, item.name, item.required) for item in fields] == [(i.field_id, i.name, i.required) for i in NESTED.fields]


def test_parents_carry_no_default_type() -> None:
    """DuckLake wants an empty one for structs, lists and maps, and a word for leaves."""
    kinds = {row.column_name: row.default_value_type for row in create_columns(TABLE, NESTED) if isinstance(row, NewColumn)}
    assert kinds == {"id": "literal", "place": "", "x": "literal", "at": "literal", "tags": "", "element": "literal", "m": "",
                     "key": "literal", "value": "literal"}  # fmt: skip


def test_the_same_schema_changes_nothing() -> None:
    """Whatever it holds."""
    assert change(NESTED, NESTED) == []


@pytest.mark.parametrize(
    ("after", "ended", "names"),
    [
        pytest.param([field(1, "key", "long"), field(2, "b", "int")], [1], ["key"], id="rename"),
        pytest.param([field(1, "a", "long"), field(2, "b", "long")], [2], ["b"], id="promote"),
        pytest.param([field(1, "a", "long"), field(2, "b", "int"), field(3, "c", "date")], [], ["c"], id="add"),
        pytest.param([field(1, "a", "long")], [2], [], id="drop"),
        pytest.param([field(2, "b", "int"), field(1, "a", "long")], [], [], id="move"),
        pytest.param([field(1, "a", "long", required=True), field(2, "b", "int")], [1], ["a"], id="require"),
        pytest.param([], [1, 2], [PLACEHOLDER], id="drop all"),
    ],
)
def test_only_what_changes_is_written(after: list[dict[str, Any]], ended: list[int], names: list[str]) -> None:
    """A column that stays as it is keeps its row."""
    rows = change(schema(field(1, "a", "long"), field(2, "b", "int")), schema(*after))
    assert sorted(row.column_id for row in rows if isinstance(row, EndedColumn)) == ended
    assert [row.column_name for row in rows if isinstance(row, NewColumn)] == names


def test_placeholders_stand_for_what_is_lacking() -> None:
    """In a table without columns and in structs without fields at any level; they come back as such, and end when something else comes."""
    nothing = {"type": "struct", "fields": []}
    inner = {"type": "list", "element-id": 3, "element": nothing, "element-required": False}
    empty = schema(field(1, "s", {"type": "struct", "fields": [field(2, "l", inner, required=False)]}), field(4, "t", nothing))
    for before, ids in ((schema(), [8]), (empty, [8, 9])):
        live = to_live(create_columns(TABLE, before, last_column_id=7))
        assert [row.column_id for row in live if is_placeholder(row)] == ids
        assert [item.type for item in to_fields(columns_at(live, (), 1), RULES)] == [item.type for item in before.fields]
        assert change_columns(TABLE, live, before, ColumnRules(before, widens=False, last_column_id=9)) == []
        after = schema(field(1, "s", {"type": "struct", "fields": [field(10, "x", "int", required=False)]}))
        rows = change_columns(TABLE, live, after, ColumnRules(before, widens=False, last_column_id=10))
        assert {row.column_id for row in rows if isinstance(row, EndedColumn)} >= {*ids}
        assert not [row for row in to_live(rows) if is_placeholder(row)]


def test_a_placeholders_id_is_used_once() -> None:
    """No client's column gets it, also when the placeholder is gone, and no other placeholder, also when DuckDB renamed the first one."""
    nothing = {"type": "struct", "fields": []}
    empty = schema(field(1, "id", "int"), field(2, "s", nothing))
    live = to_live(create_columns(TABLE, empty))
    after = schema(field(1, "id", "int"), field(2, "s", nothing), field(3, "x", "boolean"))
    rules = ColumnRules(empty, widens=False, last_column_id=3)
    for columns in (live, [replace(row, end_snapshot=2) if is_placeholder(row) else row for row in live]):
        with pytest.raises(BadRequest, match="'x' has the id 3.*above its last-column-id"):
            change_columns(TABLE, columns, after, rules)
    (placeholder,) = to_live(create_columns(TABLE, schema()))
    flag = replace(placeholder, begin_snapshot=2, end_snapshot=4, column_name="flag")
    (other,) = to_live(create_columns(TABLE, schema(field(2, "a", "int"))), begin=3)
    rows = change_columns(
        TABLE, [replace(placeholder, end_snapshot=2), flag, other], schema(), ColumnRules(schema(field(2, "a", "int")), widens=False)
    )
    assert [row.column_id for row in to_live(rows) if is_placeholder(row)] == [3]


def test_columns_stand_in_the_order_of_their_ids() -> None:
    """Wherever clients put them, also in a table that is made so; DuckDB gives a column that it alters its id as order."""
    before = schema(field(1, "a", "int"), field(2, "b", "int"), field(3, "c", "int"))
    after = schema(field(3, "c", "int"), field(1, "a", "int"), field(4, "d", "int"), field(2, "b", "int"))
    assert {row.column_id: row.column_order for row in to_live(change(before, after))} == {4: 4}
    assert {row.column_id: row.column_order for row in to_live(create_columns(TABLE, after))} == {1: 1, 2: 2, 3: 3, 4: 4}


@pytest.mark.parametrize("orders", [(4, 2, 3, 1), (1, 2, 2, 4)], ids=["others", "shared"])
def test_other_orders_end_with_the_next_change(orders: tuple[int, ...]) -> None:
    """Those that earlier versions gave moved columns; a table whose orders ascend with the ids keeps them."""
    before = schema(*(field(i, name, "int") for i, name in enumerate("abcd", 1)))
    moved = [replace(row, column_order=order) for row, order in zip(to_live(create_columns(TABLE, before)), orders, strict=True)]
    after = schema(*(field(i, name, "int") for i, name in enumerate("abcde", 1)))
    rows = [row for row in change_columns(TABLE, moved, after, ColumnRules(before, widens=False)) if isinstance(row, NewColumn)]
    told = {row.column_id: row.column_order for row in moved} | {row.column_id: row.column_order for row in rows}
    assert told == {i: i for i in range(1, 6)}


def test_a_maps_key_comes_first() -> None:
    """Also when its id is the higher one, which another catalog may have given it."""
    kind = {"type": "map", "key-id": 3, "key": "string", "value-id": 2, "value": "long", "value-required": False}
    rows = to_live(create_columns(TABLE, schema({"id": 1, "name": "m", "required": False, "type": kind})))
    assert {row.column_name: row.column_order for row in rows} == {"m": 1, "key": 1, "value": 2}


def test_a_default_of_duckdb_stays() -> None:
    """What Iceberg cannot say and did not change is kept: an expression, a default that only new rows get."""
    base = schema(field(1, "a", "long"))
    (live,) = to_live(create_columns(TABLE, base))
    live = ColumnRow(1, 1, None, 1, "a", "int64", None, "now()", "expression", live.nulls_allowed, None)
    (_, new) = change_columns(TABLE, [live], schema(field(1, "b", "long")), ColumnRules(base, widens=False))
    assert isinstance(new, NewColumn)
    assert (new.column_name, new.default_value, new.default_value_type) == ("b", "now()", "expression")


def test_defaults_of_version_3_are_kept_as_texts() -> None:
    """In DuckDB's own spelling."""
    (row,) = create_columns(TABLE, schema(field(1, "d", "date", **{"initial-default": "2020-02-29", "write-default": "2021-01-01"})))
    assert isinstance(row, NewColumn)
    assert (row.initial_default, row.default_value) == ("2020-02-29", "2021-01-01")


@pytest.mark.parametrize(
    ("kind", "held", "since"),
    [
        ("timestamp_ns", "timestamp_ns", V1_0),
        ("geometry", "geometry", V1_0),
        ("timestamptz_ns", "timestamptz_ns", V1_1),
        ("unknown", "null", V1_1),
        ("variant", "variant", V1_0),
        ("geography", None, V1_1),
        ("geometry(srid:3857)", None, V1_1),
    ],
)
def test_types_of_version_3(kind: str, held: str | None, since: LakeFormat) -> None:
    """Those that DuckLake holds, in the versions that hold them; the others are refused."""
    for lake_format in (V1_0, V1_1):
        if held is not None and lake_format.version >= since.version:
            assert to_column_type(PrimitiveType(kind), "c", lake_format) == held
        else:
            with pytest.raises(BadRequest, match=re.escape(f"Column 'c' has the type {kind}")):
                to_column_type(PrimitiveType(kind), "c", lake_format)


@pytest.mark.parametrize("within", ["list", "struct"])
def test_variants_are_columns_of_the_table(within: str) -> None:
    """Within another column, only their own files would be read alike, so they are refused."""
    element: dict[str, Any] = {"type": "list", "element-id": 2, "element": "variant", "element-required": False}
    struct = {"type": "struct", "fields": [{"id": 2, "name": "a", "type": "variant", "required": False}]}
    with pytest.raises(BadRequest, match="within another column"):
        create_columns(TABLE, schema(field(1, "v", element if within == "list" else struct)))


@pytest.mark.parametrize(
    ("kind", "default", "text"),
    [
        ("uuid", "0195D0C0-0000-7000-8000-00000000000A", "0195d0c0-0000-7000-8000-00000000000a"),
        ("binary", "00ff274e554c4c", r"\x00\xFF\x27\x4E\x55\x4C\x4C"),
        ("binary", "4e554c4c", r"\x4E\x55\x4C\x4C"),
        ("binary", "", ""),
        ("fixed[2]", "aa5c", r"\xAA\x5C"),
    ],
)
def test_defaults_in_bytes_are_kept_as_texts(kind: str, default: str, text: str) -> None:
    """DuckDB casts them to the column's type; the bytes of the word NULL are a default."""
    (row,) = create_columns(TABLE, schema(field(1, "d", kind, **{"initial-default": default, "write-default": default})))
    assert isinstance(row, NewColumn)
    assert (row.initial_default, row.default_value) == (text, text)
    (shown,) = to_fields(columns_at(to_live([row]), (), 1), replace(RULES, defaulted=frozenset({1})))
    assert (shown.initial_default, shown.write_default) == (default.lower(), default.lower())


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        pytest.param([field(1, PLACEHOLDER, "int")], "reserves", id="name of the placeholder"),
        pytest.param([field(1, "a", "int"), field(2, "A", "int")], "differ by case", id="case"),
        pytest.param([field(1, "Row_Id", "int")], "reserves", id="reserved name"),
        pytest.param([field(1, "a", "fixed[0]")], "length of 1 or more", id="type"),
        pytest.param(
            [field(9, "a", {"type": "struct", "fields": [
                field(2, "b", {"type": "struct", "fields": [field(10, "c", "int", required=False)]}, required=False)]})],
            "Number parents first",
            id="ids out of order",
        ),
    ],
)  # fmt: skip
def test_what_would_break_a_lake_is_refused(fields: list[dict[str, Any]], word: str) -> None:
    """One bad row would keep every DuckDB from attaching it."""
    with pytest.raises(BadRequest, match=word):
        create_columns(TABLE, schema(*fields))


@pytest.mark.parametrize(("old", "new"), [("long", "int"), ("string", "long"), ("date", "timestamp"), ("double", "float")])
def test_a_type_that_old_files_do_not_have_is_refused(old: str, new: str) -> None:
    """Also for a column that comes back under its old id."""
    with pytest.raises(BadRequest, match="cannot change its type"):
        change(schema(field(1, "a", old)), schema(field(1, "a", new)))
    gone = to_live(create_columns(TABLE, schema(field(1, "a", old))))
    past = ColumnRow(2, 1, 2, 2, "b", "date", None, "NULL", "literal", True, None)
    with pytest.raises(BadRequest, match="cannot change its type"):
        after = schema(field(1, "a", old), field(2, "b", "string"))
        change_columns(TABLE, [*gone, past], after, ColumnRules(schema(field(1, "a", old)), widens=False))


@pytest.mark.parametrize(("narrow", "kind", "wide"), [("int8", "int", "int32"), ("uint16", "int", "int32"), ("json", "string", "varchar")])
def test_narrow_types_widen_with_the_first_file_of_a_client(narrow: str, kind: str, wide: str) -> None:
    """Only then: DuckDB's own tables stay as they are until somebody may write more into them."""
    live = [ColumnRow(1, 1, None, 1, "a", narrow, None, "NULL", "literal", True, None)]
    same = schema(field(1, "a", kind))
    assert has_narrow(live)
    assert change_columns(TABLE, live, same, ColumnRules(same, widens=False)) == []
    rows = change_columns(TABLE, live, same, ColumnRules(same, widens=True))
    assert [row.column_type for row in rows if isinstance(row, NewColumn)] == [wide]


def test_docs_are_comments() -> None:
    """Set, changed and taken away; an empty one is none."""
    after = schema(field(1, "a", "int", doc="new"), field(2, "b", "int", doc="same"), field(3, "c", "int", doc=""))
    rows = change_comments(TABLE, {1: "old", 2: "same", 3: "gone"}, after)
    assert rows == [EndedComment(TABLE, 1), EndedComment(TABLE, 3), NewComment(TABLE, 1, "new")]
