"""Tables that leave out columns that Iceberg cannot represent: what is published, and what a client's change may do."""

from dataclasses import replace
from typing import Any

import pytest

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.schema import Schema
from duckicelake.lake.rows import ColumnRow
from duckicelake.translate.to_ducklake.columns import ColumnRules, change_columns
from duckicelake.translate.types import columns_at
from duckicelake.translate.unreadable_columns import (
    PROPERTY,
    ColumnHistory,
    check_appendable,
    check_property,
    check_stays_readable,
    list_left_out,
    list_unseen,
)
from tests.translate.support.room import Room
from tests.translate.test_types import publish
from tests.translate.to_ducklake.test_columns import field, schema


def hide(room: Room, name: str) -> None:
    """Set the property of a table."""
    state = room.read(name)
    room.postgres.execute(
        "INSERT INTO ducklake_tag (object_id, begin_snapshot, key, value) VALUES (%s, %s, %s, 'hide')",
        (state.table.table_id, state.position.lake_snapshot_id, PROPERTY),
    )
    room.postgres.commit()


def names(shown: Schema) -> list[str]:
    """The names of the root columns."""
    return [item.name for item in shown.fields]


@pytest.mark.parametrize(
    "kind", ["UBIGINT", "INTERVAL", "VARIANT[]", "UBIGINT[]", "STRUCT(a INTEGER, u UBIGINT)", "MAP(VARCHAR, INTERVAL)"]
)
def test_a_column_of_an_unpublished_type_is_left_out_whole(room: Room, kind: str) -> None:
    """Without the property, the table is refused; with it, every schema is without the column."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER)", f"ALTER TABLE {name} ADD COLUMN v {kind}", f"ALTER TABLE {name} ADD COLUMN j DATE")
    with pytest.raises(Unsupported, match=f"Column 'v.*Leave it out with the table property {PROPERTY}=hide, or"):
        publish(room, name)
    hide(room, name)
    schemas = publish(room, name)
    assert [names(shown) for _, shown in schemas.timeline] == [["i"], ["i"], ["i", "j"]]
    assert schemas.last_column_id == max(row.column_id for row in room.read(name).columns)


def test_a_variant_is_published_unless_the_property_leaves_it_out(room: Room) -> None:
    """Clients that cannot read the type read the other columns so."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, v VARIANT)", f"ALTER TABLE {name} ADD COLUMN w VARIANT[]")
    with pytest.raises(Unsupported, match=r"Column 'w\.element' has the DuckLake type 'variant'"):
        publish(room, name)
    room.run(f"ALTER TABLE {name} DROP COLUMN w")
    schemas = publish(room, name)
    assert (names(schemas.current), schemas.format_version) == (["i", "v"], 3)
    hide(room, name)
    assert [names(shown) for _, shown in publish(room, name).timeline] == [["i"]] * 3


def test_a_column_whose_older_rows_cannot_be_read_is_left_out(room: Room) -> None:
    """The snapshots from before the change of its type have it."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, v INTEGER)", f"INSERT INTO {name} VALUES (1, 2)")
    room.run(f"ALTER TABLE {name} ALTER COLUMN v TYPE DOUBLE")
    hide(room, name)
    assert [names(shown) for _, shown in publish(room, name).timeline] == [["i", "v"], ["i"]]


def test_a_column_with_a_default_that_iceberg_lacks_is_left_out(room: Room) -> None:
    """NaN is no JSON value."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER)", f"INSERT INTO {name} VALUES (1)", f"ALTER TABLE {name} ADD COLUMN v DOUBLE DEFAULT 'nan'")
    hide(room, name)
    assert names(publish(room, name).current) == ["i"]


def test_a_column_with_numbers_that_readers_mistake_is_left_out(room: Room) -> None:
    """From every snapshot, because the statistics do not say which rows have them."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, v UINTEGER)", f"INSERT INTO {name} VALUES (1, 4294967295)")
    room.flush(name)
    hide(room, name)
    assert [names(shown) for _, shown in publish(room, name).timeline] == [["i"]]


@pytest.mark.parametrize(("kind", "breaks"), [("VARIANT", True), ("UBIGINT", False)])
def test_files_with_a_variant_are_not_read_by_vectors(room: Room, kind: str, breaks: bool) -> None:
    """Spark's vectorised reader fails over the variant's shredded fields, its other one over unsigned numbers of 64 bits."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, v {kind})", f"INSERT INTO {name} SELECT n, n::{kind} FROM range(20) r(n)")
    hide(room, name)
    assert publish(room, name).breaks_vectors == breaks


def test_a_table_without_other_columns_is_refused(room: Room) -> None:
    """The message names the property."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (v UBIGINT)")
    hide(room, name)
    with pytest.raises(Unsupported, match=f"{PROPERTY}.*leaves out every column"):
        publish(room, name)


def test_the_fields_of_a_column_are_left_out_with_it(room: Room) -> None:
    """Rows in Postgres are converted without them; a dropped field of an unpublished type leaves its column readable."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, s STRUCT(a INTEGER, u UBIGINT), t STRUCT(b INTEGER, u UBIGINT))")
    room.run(f"ALTER TABLE {name} DROP COLUMN t.u")
    state = room.read(name)
    before = columns_at(state.columns, (), state.columns[0].begin_snapshot)
    ids = {row.column_name: row.column_id for row in state.columns if row.column_name in ("s", "a", "u") and row.end_snapshot is None}
    dropped = {row.column_id for row in state.columns if row.end_snapshot is not None}
    assert list_left_out(before, dropped) == set(ids.values())


SHOWN = schema(field(1, "a", "long"))


def column(column_id: int, name: str, kind: str, **more: Any) -> ColumnRow:
    """A live root column."""
    known: dict[str, Any] = {"initial_default": None, "default_value": "NULL", "default_value_type": "literal", "nulls_allowed": True}
    return ColumnRow(column_id, 1, None, column_order=column_id, column_name=name, column_type=kind, parent_column=None, **known | more)


LIVE = [column(1, "a", "int64"), column(2, "u", "uint64")]


def test_a_clients_change_leaves_unseen_columns_alone() -> None:
    """Neither a column that it adds nor one that it drops changes theirs."""
    after = schema(field(3, "b", "int"))
    rows = change_columns(7, LIVE, after, ColumnRules(SHOWN, widens=False))
    assert {getattr(row, "column_id", None) for row in rows} == {1, 3}
    assert [row.column_name for row in list_unseen(LIVE, SHOWN)] == ["u"]


@pytest.mark.parametrize("after", [[field(1, "a", "long"), field(3, "U", "int")], [field(1, "u", "long")]], ids=["added", "renamed"])
def test_the_name_of_an_unseen_column_is_taken(after: list[dict[str, Any]]) -> None:
    """In any case, as DuckDB compares names."""
    with pytest.raises(BadRequest, match="(?i)column 'u' has the name of a column of the type uint64"):
        change_columns(7, LIVE, schema(*after), ColumnRules(SHOWN, widens=False))


def test_rows_need_values_of_an_unseen_not_null_column() -> None:
    """Unless the column has a default for rows that lack it."""
    check_appendable([column(2, "u", "uint64"), column(3, "v", "uint64", nulls_allowed=False, initial_default="1")])
    with pytest.raises(BadRequest, match="'u' of the type uint64 is NOT NULL"):
        check_appendable([column(2, "u", "uint64", nulls_allowed=False)])


def test_the_property_stays_while_it_hides_a_column() -> None:
    """The table would be unreadable for the client that removes it."""
    unseen = [column(2, "u", "uint64")]
    for after in ({}, {PROPERTY: "refuse"}):
        check_stays_readable([], {PROPERTY: "hide"}, after)
        with pytest.raises(BadRequest, match="because of 'u'"):
            check_stays_readable(unseen, {PROPERTY: "hide"}, after)
    with pytest.raises(BadRequest, match="must be 'refuse' or 'hide'"):
        check_property({PROPERTY: "yes"})


def version(column_id: int, kind: str, begin: int, end: int | None = None, parent: int | None = None) -> ColumnRow:
    """A version of a column or field."""
    return replace(column(column_id, f"c{column_id}", kind), begin_snapshot=begin, end_snapshot=end, parent_column=parent)


STRUCT = [version(2, "struct", 3), version(3, "int32", 3, parent=2)]


@pytest.mark.parametrize(
    ("columns", "begin_snapshot", "may_have"),
    [
        pytest.param([version(2, "uint64", 5)], 4, False, id="the column is younger"),
        pytest.param([version(2, "int32", 5)], 5, True, id="the commit adds the column"),
        pytest.param([version(2, "uint64", 3)], 5, False, id="unpublished when the file was committed"),
        pytest.param([version(2, "uint32", 3, 6), version(2, "uint64", 6)], 5, True, id="published when the file was committed"),
        pytest.param([version(2, "uint32", 3, 4), version(2, "uint64", 4)], 5, True, id="published once, and the file may be older"),
        pytest.param([version(2, "uint64", 9)], 5, True, id="what it was has expired"),
        pytest.param([*STRUCT, version(4, "uint64", 6, parent=2)], 5, True, id="a field is younger"),
        pytest.param([*STRUCT, version(4, "uint64", 3, parent=2)], 5, False, id="a field was unpublished"),
        pytest.param([*STRUCT, version(4, "uint64", 3, 4, 2), version(5, "uint64", 6, None, 2)], 5, True, id="a field was dropped"),
    ],
)
def test_a_clients_file_may_have_values_of_a_column_that_it_saw(columns: list[ColumnRow], begin_snapshot: int, may_have: bool) -> None:
    """A file that came back is older than its row, and only the column's own age is a proof; DuckDB's files may have values of any."""
    history = ColumnHistory(columns, columns[0], 9 if columns[0].begin_snapshot == 9 else 1)
    assert history.may_have_values(begin_snapshot, is_noted=True, is_own=True) == may_have
    is_younger = columns[0].begin_snapshot == 5 and begin_snapshot == 4
    assert history.may_have_values(begin_snapshot, is_noted=True, is_own=False) != is_younger
    assert history.may_have_values(begin_snapshot, is_noted=False, is_own=False)
