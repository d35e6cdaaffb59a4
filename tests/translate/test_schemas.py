"""The schemas of real DuckLake histories."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import parse_schema
from duckicelake.lake.rows import JsonNote, TableNote, TableState
from duckicelake.translate.schemas import Schemas, to_schemas
from tests.translate.support.room import Room

HISTORY = (
    "INSERT INTO {t} VALUES (1, 'a')",
    "ALTER TABLE {t} ADD COLUMN c DOUBLE",
    "INSERT INTO {t} VALUES (2, 'b', 0.5)",
    "ALTER TABLE {t} RENAME COLUMN s TO text",
    "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT",
    "COMMENT ON COLUMN {t}.i IS 'number'",
    "INSERT INTO {t} VALUES (3, 'c', 1.5)",
    "ALTER TABLE {t} ALTER COLUMN i SET NOT NULL",
    "ALTER TABLE {t} DROP COLUMN c",
    "ALTER TABLE {t} ADD COLUMN c DATE",
    "ALTER TABLE {t} SET PARTITIONED BY (i)",
    "COMMENT ON TABLE {t} IS 'no column'",
)
ICEBERG_NAMES = {"INTEGER": "int", "BIGINT": "long", "VARCHAR": "string", "DOUBLE": "double", "DATE": "date"}


def tell(room: Room, statements: Sequence[str]) -> str:
    """A table after these statements."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)", *(statement.format(t=name) for statement in statements))
    return name


def note(state: TableState, schemas: Schemas) -> TableState:
    """The state once its schemas have been noted."""
    table = TableNote(state.table.table_id, "s3://b/t", schemas.format_version, 0, 1, 0, 0, "", 0)
    return replace(state, notes=replace(state.notes, table=table, schemas=[*state.notes.schemas, *schemas.new_notes]))


def test_each_lake_snapshot_has_the_columns_duckdb_shows_there(room: Room) -> None:
    """Names and types at every lake snapshot, also at those that changed no row."""
    name = tell(room, HISTORY)
    state = room.read(name)
    schemas = to_schemas(state, 0)
    first = state.columns[0].begin_snapshot
    for lake_snapshot_id in range(first, state.position.lake_snapshot_id + 1):
        shown = room.duckdb.execute(f"DESCRIBE SELECT * FROM {name} AT (VERSION => {lake_snapshot_id})").fetchall()
        found = [(item.name, str(item.type)) for item in schemas.at(lake_snapshot_id).fields]
        assert found == [(row[0], ICEBERG_NAMES[row[1]]) for row in shown]
    assert [item.field_id for item in schemas.current.fields] == [1, 2, 4]
    assert schemas.last_column_id == 4


def test_a_schema_has_one_id_however_often_it_comes_back(room: Room) -> None:
    """Ids are given in order of appearance; going back is no new schema, and what concerns no column is none either."""
    name = tell(room, ["COMMENT ON COLUMN {t}.i IS 'x'", "COMMENT ON COLUMN {t}.i IS NULL", "ALTER TABLE {t} SET PARTITIONED BY (i)"])
    schemas = to_schemas(room.read(name), 0)
    assert [schema.schema_id for _, schema in schemas.timeline] == [0, 1, 0]
    assert schemas.current.schema_id == 0
    assert [item.id for item in schemas.new_notes] == [0, 1]


def test_an_id_once_given_never_changes(room: Room) -> None:
    """A later reading finds the noted ids, gives new ones above them, and notes nothing twice."""
    name = tell(room, HISTORY[:4])
    state = room.read(name)
    before = to_schemas(state, 0)
    again = to_schemas(note(state, before), 0)
    assert (again.all(), again.new_notes) == (before.all(), ())
    room.run(*(statement.format(t=name) for statement in HISTORY[4:]))
    later_state = replace(room.read(name), notes=note(state, before).notes)
    later = to_schemas(later_state, 0)
    assert later.all()[: len(before.all())] == before.all()
    assert [item.id for item in later.new_notes] == list(range(len(before.all()), len(later.all())))


def test_ids_of_schemas_that_are_gone_stay_taken(room: Room) -> None:
    """What has been noted and is not there any more keeps its id."""
    state = room.read(tell(room, []))
    foreign = [JsonNote(0, "[]"), JsonNote(7, '[{"id":99}]')]
    schemas = to_schemas(replace(state, notes=replace(state.notes, schemas=foreign)), 0)
    assert schemas.current.schema_id == 8


def test_a_format_version_once_given_never_falls(room: Room) -> None:
    """A table published as version 3 stays one when the column that needed it is gone."""
    state = room.read(tell(room, []))
    noted = TableNote(state.table.table_id, "s3://b/t", 3, 0, 1, 0, 0, "", 0)
    assert to_schemas(replace(state, notes=replace(state.notes, table=noted)), 0).format_version == 3


def test_what_breaks_vectors_is_known_while_such_rows_are_left(room: Room) -> None:
    """An int that became a long is one in older files, nested or not, until no such row is left; milliseconds always do.

    Rows of the lake snapshot that changed it may have been written before in the same transaction.
    """
    statements = ["ALTER TABLE {t} ADD COLUMN xs STRUCT(a SMALLINT)[]", "ALTER TABLE {t} ALTER COLUMN xs TYPE STRUCT(a BIGINT)[]"]
    state = room.read(tell(room, statements))
    changed = max(row.begin_snapshot for row in state.columns)
    assert to_schemas(state, 0).breaks_vectors
    assert to_schemas(state, changed).breaks_vectors
    assert not to_schemas(state, changed + 1).breaks_vectors
    assert not to_schemas(room.read(tell(room, statements[:1])), 0).breaks_vectors
    assert to_schemas(room.read(tell(room, ["ALTER TABLE {t} ADD COLUMN m TIMESTAMP_MS[]"])), 0).breaks_vectors


def test_the_note_is_the_schema(room: Room) -> None:
    """The noted JSON is exactly the published fields."""
    schemas = to_schemas(room.read(tell(room, HISTORY)), 0)
    for item, schema in zip(schemas.new_notes, schemas.all(), strict=True):
        text = f'{{"type":"struct","schema-id":{item.id},"fields":{item.json}}}'
        assert parse_schema(json.loads(text)) == schema


def test_a_column_with_an_id_of_readers_is_refused(room: Room) -> None:
    """Iceberg's readers take it for one of theirs, such as the row ids; one id less is a column like others."""
    state = room.read(tell(room, ()))
    first, last = state.columns[0], state.columns[-1]
    assert to_schemas(replace(state, columns=(first, replace(last, column_id=2_147_483_446))), 0).last_column_id == 2_147_483_446
    with pytest.raises(Unsupported, match="Column 's' has the id 2147483447.*CREATE TABLE … AS SELECT"):
        to_schemas(replace(state, columns=(first, replace(last, column_id=2_147_483_447))), 0)
