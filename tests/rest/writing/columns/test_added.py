"""Columns that a commit adds or changes: rows that are there read the same to everybody afterwards, or it is refused."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.serving import Server
from tests.rest.writing.client import Client, open_client, read_rows, write_file
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import whole_after


def field(field_id: int, name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    """An optional column."""
    return {"id": field_id, "name": name, "required": False, "type": kind, **more}


def default(value: object) -> dict[str, object]:
    """What gives a field a default, for rows older and newer than it."""
    return {"initial-default": value, "write-default": value}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    """The type of a column with fields."""
    return {"type": "struct", "fields": list(fields)}


ID, PLACE = field(1, "id", "long"), field(2, "place", struct(field(3, "x")))
LATER = [ID, field(2, "place", struct(field(3, "x"), field(5, "y", **default(7)))), field(4, "n", **default(5)), field(6, "plain")]
"""The columns ID and PLACE with others that came after the first row: two with defaults, one of them nested, and one without."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of version 3 with one row, in a lake that tests share."""

    client: Client
    lake: FreshLake
    catalog: RestCatalog
    name: str

    def change(self, fields: Sequence[Any]) -> Any:
        """Ask for these columns."""
        schema = {"type": "struct", "schema-id": 0, "fields": fields}
        updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
        return self.client.commit(updates, name=self.name)

    def refuse(self, fields: Sequence[Any], *said: str) -> None:
        """Fail unless the columns are refused by 400 for that reason, and nothing has changed."""
        self.client.load(self.name)
        rows = read_rows(self.lake)
        refused = self.change(fields)
        assert refused.error == (400, "BadRequestException")
        assert all(words in refused.json["error"]["message"] for words in said), refused.body
        assert read_rows(self.lake) == rows

    def read(self) -> tuple[Any, Any]:
        """Return the rows as DuckDB and as PyIceberg read them."""
        found = self.lake.duckdb().execute(f"FROM {self.name} ORDER BY id").to_arrow_table().to_pylist()
        return found, sorted(self.catalog.load_table(("main", self.name)).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def table(standing: Server, standing_lake: FreshLake) -> Table:
    """A table with the columns ID and PLACE and one row by an Iceberg client."""
    client, name = open_client(standing, standing_lake), f"c{uuid4().hex}"
    body = {"name": name, "schema": {"type": "struct", "fields": [ID, PLACE]}, "properties": {"format-version": "3"}}
    made = client.post("namespaces/main/tables", body)
    assert made.status == 200, made.body
    base = made.json["metadata"]
    inner = pa.field("x", pa.int32(), metadata={"PARQUET:field_id": "3"})
    places = pa.StructArray.from_arrays([pa.array([1], pa.int32())], fields=[inner])
    file = write_file(client, base, "a", {1: pa.array([1], pa.int64()), 2: places})
    assert client.commit(client.append(base, 9_000_000_001, [file]), name=name).status == 200
    return Table(client, standing_lake, Served(standing_lake, standing).pyiceberg().catalog, name)


def test_an_initial_default_never_changes(table: Table) -> None:
    """It may not be changed, given or taken away, nested or not; both readers go on reading what they did."""
    assert table.change(LATER).status == 200
    row = {"id": 1, "place": {"x": 1, "y": 7}, "n": 5, "plain": None}
    assert table.read() == ([row], [row])
    nested = [field(3, "x"), field(5, "y", **default(8))]
    for fields in (
        [*LATER[:2], field(4, "n", **default(6)), LATER[3]],
        [*LATER[:2], field(4, "n"), LATER[3]],
        [*LATER[:3], field(6, "plain", **default(1))],
        [LATER[0], field(2, "place", struct(*nested)), *LATER[2:]],
        [LATER[0], field(2, "place", struct(field(3, "x"), field(5, "y"))), *LATER[2:]],
    ):
        table.refuse(fields, "Cannot change the initial default of")
    assert table.read() == ([row], [row])
    promoted = field(4, "m", "long", **{"initial-default": 5, "write-default": 9})
    assert table.change([*LATER[:2], promoted, LATER[3]]).status == 200
    row = {"id": 1, "place": {"x": 1, "y": 7}, "m": 5, "plain": None}
    assert table.read() == ([row], [row])


def test_a_replaced_table_has_other_defaults(table: Table) -> None:
    """Main has no rows then: columns are what their new owner says."""
    assert table.change(LATER).status == 200
    schema = {"type": "struct", "schema-id": 0, "fields": [*LATER[:2], field(4, "n"), field(7, "k", required=True)]}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    assert table.client.commit([{"action": "remove-snapshot-ref", "ref-name": "main"}, *updates], name=table.name).status == 200
    assert table.read() == ([], [])


def test_rows_have_no_value_of_a_required_column(table: Table) -> None:
    """It needs a default for them, nested too; within a column that is new no row has anything, and an empty table takes all."""
    key = field(4, "k") | {"required": True}
    inner = field(5, "y") | {"required": True}
    table.refuse([ID, PLACE, key], "cannot add required column without a default value: k")
    table.refuse([ID, field(2, "place", struct(field(3, "x"), inner))], "without a default value: place.y")
    taken = [ID, PLACE, key | default(3), field(6, "new", struct(field(7, "z") | {"required": True}))]
    assert table.change(taken).status == 200
    assert table.read()[1] == [{"id": 1, "place": {"x": 1}, "k": 3, "new": None}]
    empty = f"e{uuid4().hex}"
    assert table.client.create(empty).status == 200
    assert Table(table.client, table.lake, table.catalog, empty).change([ID, field(2, "name", "string"), key]).status == 200


@pytest.mark.parametrize(
    "name", whole_after(1, ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_Last_Updated_Sequence_Number"])
)
def test_names_of_metadata_columns_are_refused(table: Table, name: str) -> None:
    """Engines could not read such a column; a field of a struct is no such, nor what a changelog has."""
    table.refuse([ID, PLACE, field(4, name)], "metadata column")
    body = {"name": f"n{uuid4().hex}", "schema": {"type": "struct", "fields": [field(1, name)]}}
    assert table.client.post("namespaces/main/tables", body).error == (400, "BadRequestException")
    assert table.change([ID, field(2, "place", struct(field(3, "x"), field(5, name))), field(6, "_change_type")]).status == 200


def test_a_metadata_columns_name_by_duckdb_stays(table: Table) -> None:
    """Other columns of the table change, and that one gets another name."""
    name = f"d{uuid4().hex}"
    table.lake.duckdb().execute(f"CREATE TABLE {name} (id BIGINT, _file VARCHAR)")
    there = Table(table.client, table.lake, table.catalog, name)
    assert there.change([ID, field(2, "_file", "string"), field(3, "more")]).status == 200
    assert there.change([ID, field(2, "renamed", "string"), field(3, "more")]).status == 200
    there.refuse([ID, field(2, "_file", "string"), field(3, "more")], "metadata column")


@pytest.mark.parametrize("mark", ["?", "#"])
def test_no_location_ends_in_the_middle(table: Table, mark: str) -> None:
    """Clients take a path to end there: refused for a table that is made, staged, moved or registered."""
    place = f"{table.lake.iceberg_path}{uuid4().hex}{mark}x"
    name = f"l{uuid4().hex}"
    move = [{"action": "set-location", "location": place}]
    copy = table.client.load(table.name) | {"location": place, "table-uuid": str(uuid4()), "snapshots": [], "refs": {}}
    del copy["current-snapshot-id"]
    told = f"{table.lake.iceberg_path}{uuid4().hex}/metadata/v1.metadata.json"
    table.client.objects.put_new(told, json.dumps(copy).encode())
    register = {"name": name, "metadata-location": told}
    for answer in (
        table.client.create(name, location=place),
        table.client.create(name, location=place, **{"stage-create": True}),
        table.client.commit(move, name=table.name),
        table.client.post("namespaces/main/register", register),
    ):
        assert answer.error == (400, "BadRequestException")
        assert "'?' or '#'" in answer.json["error"]["message"]


def test_a_promoted_default_may_be_told_as_a_double(table: Table) -> None:
    """Java tells it so: the number that the float was all along, for rows older and newer than the column."""
    exact = 0.10000000149011612
    assert table.change([ID, PLACE, field(7, "x", "float", **default(0.1))]).status == 200
    table.refuse([ID, PLACE, field(7, "x", "double", **default(0.1000001))], "Cannot change the initial default of")
    done = table.change([ID, PLACE, field(7, "x", "double", **default(exact))])
    assert done.status == 200, done.body
    table.lake.duckdb().execute(f"INSERT INTO {table.name} (id) VALUES (2)")
    in_duckdb, in_iceberg = table.read()
    assert [row["x"] for row in in_duckdb] == [row["x"] for row in in_iceberg] == [exact, exact]


@pytest.mark.parametrize(
    ("kind", "told", "value"),
    [
        ("uuid", "0195d0c0-0000-7000-8000-00000000000a", UUID("0195d0c0-0000-7000-8000-00000000000a")),
        ("binary", "00ff4e", b"\x00\xffN"),
        ("fixed[3]", "00ff4e", b"\x00\xffN"),
    ],
)
def test_a_default_may_be_bytes(table: Table, kind: str, told: str, value: object) -> None:
    """Both readers have it for older rows, and DuckDB writes it into new ones; it stays as DuckDB changes other columns."""
    assert table.change([ID, PLACE, field(7, "d", kind, **default(told))]).status == 200
    assert [str(row["d"]) for rows in table.read() for row in rows] == [str(value)] * 2
    duck = table.lake.duckdb()
    duck.execute(f"ALTER TABLE {table.name} ADD COLUMN other INTEGER; INSERT INTO {table.name} (id) VALUES (2)")
    shown = table.client.load(table.name)["schemas"][-1]["fields"][2]
    assert (shown["type"], shown["initial-default"], shown["write-default"]) == (kind, told, told)
    assert [str(row["d"]) for rows in table.read() for row in rows] == [str(value)] * 4
    if kind == "fixed[3]":
        duck.execute(f"ALTER TABLE {table.name} ALTER d SET DEFAULT 'longer'")
        shown = table.client.load(table.name)["schemas"][-1]["fields"][2]
        assert (shown["initial-default"], shown.get("write-default")) == (told, None)


def test_a_default_may_be_an_empty_text(table: Table) -> None:
    """It is not taken for none: DuckDB writes it where an INSERT leaves the column out, also after other columns came."""
    text, other = field(7, "text", "string", **default("")), field(8, "other")
    assert table.change([ID, PLACE, text]).status == 200
    assert table.change([ID, PLACE, text, other]).status == 200
    table.lake.duckdb().execute(f"INSERT INTO {table.name} (id) VALUES (2)")
    in_duckdb, in_iceberg = table.read()
    assert [row["text"] for row in in_duckdb] == [row["text"] for row in in_iceberg] == ["", ""]
