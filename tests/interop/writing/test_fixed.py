"""Columns of Iceberg's type `fixed`: DuckDB has them as BLOB, clients see the length they gave, whatever DuckDB changes beside it."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ResolveError
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import FixedType, ListType, LongType, MapType, NestedField, StringType, StructType

from tests.support.going_on import check_going_on
from tests.support.readers import Served

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "f", FixedType(4), required=True),
    NestedField(3, "s", StructType(NestedField(4, "g", FixedType(2), required=False)), required=False),
    NestedField(5, "l", ListType(6, FixedType(2), False), required=False),
    NestedField(7, "m", MapType(8, FixedType(1), 9, FixedType(3), False), required=False),
    NestedField(10, "other", StringType(), required=False),
    identifier_field_ids=[2],
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "f": b"abcd", "s": {"g": b"xy"}, "l": [b"ab", None], "m": [(b"k", b"abc")], "other": "a"},
    {"id": 2, "f": b"\x00\xff\x80\\", "s": {"g": None}, "l": [], "m": [(b"\x00", None)], "other": None},
    {"id": 3, "f": b"zzzz", "s": None, "l": None, "m": None, "other": "c"},
]
# DuckDB 1.5.5 reads inlined BLOBs within a struct as the SQL it wrote of them
INLINED = "INSERT INTO lake.ns.t VALUES (4, 'efgh', {'g': NULL}, ['cd'::BLOB, NULL], MAP {'k'::BLOB: 'xyz'::BLOB}, 'd')"
FOURTH = {"id": 4, "f": b"efgh", "s": {"g": None}, "l": [b"cd", None], "m": [(b"k", b"xyz")], "other": "d"}
LENGTHS = {"f": "fixed[4]", "s.g": "fixed[2]", "l.element": "fixed[2]", "m.key": "fixed[1]", "m.value": "fixed[3]"}


def make_table(catalog: RestCatalog, **more: Any) -> None:
    """Make ns.t with the three rows."""
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", SCHEMA, **more)
    table.append(pa.Table.from_pylist(ROWS, schema=table.schema().as_arrow()))


def read(catalog: RestCatalog, **how: Any) -> list[dict[str, Any]]:
    """PyIceberg's rows of ns.t."""
    return catalog.load_table("ns.t").scan(**how).to_arrow().sort_by("id").to_pylist()


def list_lengths(schema: Schema) -> dict[str, str]:
    """The `fixed` columns of a schema by path."""
    names = ((schema.find_column_name(i), field) for i, field in schema._lazy_id_to_field.items())  # pyright: ignore[reportPrivateUsage]
    return {str(name): str(field.field_type) for name, field in names if isinstance(field.field_type, FixedType)}


@pytest.mark.whole
def test_lengths_survive_what_duckdb_changes(served: Served) -> None:
    """Clients' files and inlined rows are read by every reader, in all schemas, after DuckDB altered other columns and these."""
    catalog, duck = served.pyiceberg().catalog, served.lake.duckdb()
    make_table(catalog)
    duck.execute(INLINED)
    assert read(catalog) == [*ROWS, FOURTH]
    duck.execute("INSERT INTO lake.ns.t (id, f) VALUES (5, 'gone')")
    assert read(catalog)[-1] == {**dict.fromkeys(FOURTH), "id": 5, "f": b"gone"}
    duck.execute("DELETE FROM lake.ns.t WHERE id = 5")
    for change in ("RENAME COLUMN other TO o", "ADD COLUMN more INTEGER", "RENAME COLUMN f TO ff", "ADD COLUMN b BLOB", "DROP COLUMN o"):
        duck.execute(f"ALTER TABLE lake.ns.t {change}")
    duck.execute("COMMENT ON COLUMN lake.ns.t.ff IS 'told'")
    table = catalog.load_table("ns.t")
    assert list_lengths(table.schema()) == {("ff" if name == "f" else name): length for name, length in LENGTHS.items()}
    assert all(len(list_lengths(schema)) == len(LENGTHS) for schema in table.schemas().values())
    assert table.schema().identifier_field_names() == {"ff"}
    assert table.properties["read.parquet.vectorization.enabled"] == "false"
    assert str(table.schema().find_field("b").field_type) == "binary"
    found = [{**row, "f": row["ff"], "other": old["other"]} for row, old in zip(read(catalog), [*ROWS, FOURTH], strict=True)]
    assert [{name: row[name] for name in ROWS[0]} for row in found] == [*ROWS, FOURTH]
    typed = duck.execute("SELECT typeof(ff), typeof(s), typeof(l), typeof(m) FROM lake.ns.t LIMIT 1").fetchone()
    assert typed == ("BLOB", "STRUCT(g BLOB)", "BLOB[]", "MAP(BLOB, BLOB)")
    duck.execute("ALTER TABLE lake.ns.t DROP COLUMN s")
    check_going_on(served, ("ns", "t"))


def test_what_duckdb_writes(served: Served) -> None:
    """DuckDB knows no length: PyIceberg alone cannot read the column in its files, and says so; a client's rewriting helps."""
    catalog, duck = served.pyiceberg().catalog, served.lake.duckdb()
    ice = served.duckdb_iceberg().conn
    make_table(catalog)
    rows = "SELECT id, f, s.g FROM {}.ns.t ORDER BY id"
    duck.execute("INSERT INTO lake.ns.t (id, f, s) VALUES (4, 'longer than that', {'g': NULL}), (5, 'abcd', NULL)")
    for statement in ("SELECT 1", "CALL ducklake_flush_inlined_data('lake')", "CALL ducklake_merge_adjacent_files('lake')"):
        duck.execute(statement)
        expected = duck.execute(rows.format("lake")).fetchall()
        assert len(expected) == 5
        assert ice.execute(rows.format("ice")).fetchall() == expected
        assert [row["id"] for row in read(catalog, selected_fields=("id",))] == [1, 2, 3, 4, 5]
        with pytest.raises(ResolveError, match="fixed"):
            read(catalog, selected_fields=("f",))
    assert ice.execute("SELECT id FROM ice.ns.t WHERE f = 'abcd'::BLOB ORDER BY id").fetchall() == [(1,), (5,)]


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(8)], ids=str)
def test_partitions(served: Served, transform: Any) -> None:
    """By the value and by its bucket: every reader finds the rows, and DuckDB goes on with the table."""
    catalog, duck = served.pyiceberg().catalog, served.lake.duckdb()
    make_table(catalog, partition_spec=PartitionSpec(PartitionField(2, 1000, transform, "part")))
    duck.execute(INLINED)
    for row in [*ROWS, FOURTH]:
        assert read(catalog, row_filter=EqualTo("f", row["f"])) == [row]
        assert duck.execute("SELECT id FROM lake.ns.t WHERE f = ?", [row["f"]]).fetchall() == [(row["id"],)]
    found = catalog.load_table("ns.t").inspect.partitions().to_pylist()
    assert sum(item["record_count"] for item in found) == 4


@pytest.mark.parametrize("kind", ["fixed[8]", "binary"])
def test_the_length_stays(served: Served, kind: str) -> None:
    """No client may change it, nor make the column `binary`: PyIceberg could not read the older files."""
    catalog = served.pyiceberg().catalog
    make_table(catalog)
    schema = catalog.load_table("ns.t").schema().model_dump(by_alias=True, mode="json")
    schema["fields"][1]["type"] = kind
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    body = json.dumps({"requirements": [], "updates": updates}).encode()
    answer = served.server.ask("POST", "namespaces/ns/tables/t", {"Content-Type": "application/json"}, body)
    assert answer.status == 400, answer.json
    assert f"from fixed[4] to {kind}" in answer.json["error"]["message"]
    assert list_lengths(catalog.load_table("ns.t").schema()) == LENGTHS
