"""NULLs that DuckLake lets into NOT NULL columns: such columns are published as optional, so readers find the NULLs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from duckdb import ConstraintException
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.expressions import IsNull
from pyiceberg.io.pyarrow import _dataframe_to_data_files  # pyright: ignore[reportPrivateUsage]
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StructType

from duckicelake.commands.check import list_findings
from duckicelake.embedded.home import Home
from tests.interop.test_lacked_columns import fill
from tests.rest.serving import make_settings
from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.lakes import FreshLake
from tests.support.readers import Ident, Served
from tests.support.tiers import whole_after

T: Ident = ("main", "t")
NESTED = "a STRUCT(x INTEGER) NOT NULL, b INTEGER[] NOT NULL, c MAP(VARCHAR, INTEGER) NOT NULL, d INTEGER NOT NULL"
WHOLE = "{'x': 1}, [1], MAP {'k': 1}, 1"


def read_metadata(served: Served) -> dict[str, Any]:
    """The table's metadata, of every snapshot."""
    return served.server.get("namespaces/main/tables/t").json["metadata"]


def read_required(metadata: dict[str, Any], schema_id: int | None = None) -> set[str]:
    """The names of the required columns of a schema, the current one if none is named."""
    wanted = metadata["current-schema-id"] if schema_id is None else schema_id
    schema = next(item for item in metadata["schemas"] if item["schema-id"] == wanted)
    return {field["name"] for field in schema["fields"] if field["required"]}


def find_nulls(served: Served, column: str) -> tuple[int, int, int]:
    """How many NULLs DuckDB, PyIceberg and DuckDB's `iceberg` extension find in a column by IS NULL."""
    duck = served.lake.duckdb().execute(f"SELECT count(*) FROM t WHERE {column} IS NULL").fetchall()[0][0]
    other = served.duckdb_iceberg().conn.execute(f"SELECT count(*) FROM ice.main.t WHERE {column} IS NULL").fetchall()[0][0]
    return duck, served.pyiceberg().catalog.load_table(T).scan(row_filter=IsNull(column)).to_arrow().num_rows, other


def add_file(lake: FreshLake, rows: str, columns: str = "a") -> None:
    """Add a file with these rows to the table by `ducklake_add_data_files`."""
    duck, path = lake.duckdb(), f"{lake.data_path}added/{len(rows)}-{columns}.parquet"
    duck.execute(f"COPY (SELECT * FROM (VALUES {rows}) v({columns})) TO '{path}' (FORMAT parquet)")
    duck.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")


@pytest.mark.parametrize("limit", whole_after(1, [pytest.param(0, id="files"), pytest.param(10, id="inlined")]))
@pytest.mark.parametrize(
    "change", whole_after(1, ["INSERT INTO t VALUES (NULL, NULL, NULL, 2)", "UPDATE t SET a = NULL, b = NULL, c = NULL"])
)
def test_nested_columns_with_nulls_are_optional(served: Served, limit: int, change: str) -> None:
    """DuckLake checks NOT NULL of these columns on none of its ways; what it does check stays required."""
    duck = served.lake.duckdb()
    duck.execute(f"CALL lake.set_option('data_inlining_row_limit', {limit})")
    duck.execute(f"CREATE TABLE t ({NESTED})")
    assert read_required(read_metadata(served)) == {"a", "b", "c", "d"}
    duck.execute(f"INSERT INTO t VALUES ({WHOLE})")
    before = read_metadata(served)
    assert (before["current-schema-id"], read_required(before)) == (0, {"a", "b", "c", "d"})
    duck.execute(change)
    after = read_metadata(served)
    assert read_required(after) == {"d"}
    assert read_required(after, 0) == {"a", "b", "c", "d"}
    assert [snapshot["schema-id"] for snapshot in after["snapshots"]] == [0, 1]
    assert served.pyiceberg().catalog.load_table(T).scan(row_filter=IsNull("a")).to_arrow().num_rows == 1
    rows = [reader.read(T).to_pylist() for reader in (served.pyiceberg(), served.duckdb_iceberg())]
    assert [sum(row[column] is None for row in found) for found in rows for column in ("a", "b", "c")] == [1] * 6


def test_added_files_with_nulls_make_their_columns_optional(served: Served) -> None:
    """DuckLake adds files without a look at NOT NULL; what PyIceberg deletes by IS NULL is gone afterwards."""
    duck = served.lake.duckdb()
    fill(duck, "CREATE TABLE t (a INTEGER NOT NULL)", "INSERT INTO t VALUES (0)")
    add_file(served.lake, "(1), (2)")
    assert read_required(read_metadata(served)) == {"a"}
    add_file(served.lake, "(1), (NULL), (3)")
    assert read_required(read_metadata(served)) == set()
    assert find_nulls(served, "a") == (1, 1, 1)
    with pytest.raises(ConstraintException):
        duck.execute("INSERT INTO t VALUES (NULL)")
    served.pyiceberg().catalog.load_table(T).delete(IsNull("a"))
    assert sorted(duck.execute("FROM t").fetchall()) == [(0,), (1,), (1,), (2,), (3,)]


def test_a_column_is_required_again_when_the_last_file_with_nulls_has_expired(served: Served) -> None:
    """While a snapshot shows such a file, readers of changes need the column optional; the schema that comes back has its old id."""
    duck = served.lake.duckdb()
    fill(duck, "CREATE TABLE t (a INTEGER NOT NULL)", "INSERT INTO t VALUES (0)")
    add_file(served.lake, "(1), (NULL), (3)")
    duck.execute("DELETE FROM t WHERE a IS NULL")
    assert read_metadata(served)["current-schema-id"] == 1
    expire_everything(duck)
    metadata = read_metadata(served)
    assert (metadata["current-schema-id"], read_required(metadata)) == (0, {"a"})


def test_check_names_the_columns_that_may_hold_nulls(served: Served, tmp_path: Path) -> None:
    """The warning says what to do; a column that is proven, or may hold NULLs to DuckDB too, is none."""
    duck = served.lake.duckdb()
    fill(duck, "CREATE TABLE t (a STRUCT(x INTEGER) NOT NULL, b INTEGER NOT NULL, c INTEGER[] NOT NULL)")
    duck.execute("INSERT INTO t VALUES (NULL, 1, NULL)")
    duck.execute("ALTER TABLE t ALTER COLUMN c DROP NOT NULL")
    (lake,) = make_settings(served.lake).lakes()
    (finding,) = list_findings(lake, Home(tmp_path))
    assert (finding.severity, finding.subject) == ("warning", "main.t")
    assert "column 'a' as optional" in finding.problem
    assert "ALTER COLUMN a DROP NOT NULL" in finding.remedy


def make_table(catalog: RestCatalog, **properties: str) -> None:
    """A client's table whose rows are identified by a required column."""
    fields = [
        NestedField(1, "a", IntegerType(), required=True),
        NestedField(2, "s", StructType(NestedField(3, "x", IntegerType(), required=True)), required=True),
    ]
    catalog.create_table(T, Schema(*fields, identifier_field_ids=[1]), properties=properties)


def make_rows(*values: int) -> pa.Table:
    """Rows as a client writes them that knows the columns as required."""
    struct = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("s", struct, nullable=False)])
    return pa.Table.from_pylist([{"a": value, "s": {"x": value}} for value in values], schema=schema)


def test_columns_of_clients_stay_required_under_their_schema(served: Served) -> None:
    """All files have counted no NULL, so the schema that the client gave stays the current one."""
    catalog = served.pyiceberg().catalog
    make_table(catalog)
    table = catalog.load_table(T)
    table.append(make_rows(1, 2))
    table.append(make_rows(3))
    metadata = read_metadata(served)
    assert [schema["identifier-field-ids"] for schema in metadata["schemas"]] == [[1]]
    assert read_required(metadata) == {"a", "s"}
    assert {snapshot["schema-id"] for snapshot in metadata["snapshots"]} == {0}
    fill(served.lake.duckdb(), "INSERT INTO t VALUES (4, {'x': 4})")
    assert read_metadata(served)["current-schema-id"] == 0


def test_identifier_fields_follow_and_the_column_stays_not_null_to_duckdb(served: Served) -> None:
    """Iceberg demands that identifier fields are required. A client that changes other columns does not mean this one."""
    duck, catalog = served.lake.duckdb(), served.pyiceberg().catalog
    make_table(catalog)
    table = catalog.load_table(T)
    table.append(make_rows(1))
    add_file(served.lake, "(NULL::INTEGER, NULL::STRUCT(x INTEGER))", "a, s")
    loaded = catalog.load_table(T)
    assert loaded.schema().identifier_field_ids == []
    assert not any(field.required for field in loaded.schema().fields)
    with loaded.update_schema() as update:
        update.add_column("b", IntegerType())
    assert "b" in catalog.load_table(T).schema().column_names
    with pytest.raises(ConstraintException):
        duck.execute("INSERT INTO t (a, s) VALUES (NULL, {'x': 1})")
    table.refresh()
    table.append(make_rows(2))
    assert find_nulls(served, "a") == (1, 1, 1)


def test_a_parts_null_makes_the_part_optional(served: Served) -> None:
    """DuckDB knows no NOT NULL below the root: a NULL in a required field of a struct made `SELECT *` fail."""
    duck, catalog = served.lake.duckdb(), served.pyiceberg().catalog
    make_table(catalog)
    catalog.load_table(T).append(make_rows(1))
    fill(duck, "INSERT INTO t VALUES (2, {'x': NULL})")
    schema = catalog.load_table(T).schema()
    assert [schema.find_field(i).required for i in (1, 2, 3)] == [True, False, False]
    assert sorted(row["a"] for row in served.pyiceberg().read(T).to_pylist()) == [1, 2]


def test_columns_that_a_client_does_not_count_stay_required(served: Served) -> None:
    """The client wrote by a schema that requires them; the commit's own answer, a load, and another server's agree."""
    catalog = served.pyiceberg().catalog
    make_table(catalog, **{"write.metadata.metrics.default": "none"})
    table = catalog.load_table(T)
    table.append(make_rows(1, 2))
    assert [field.required for field in table.schema().fields] == [True, True]
    known = read_metadata(served)
    table.append(make_rows(3))
    assert read_metadata(served)["current-schema-id"] == known["current-schema-id"]
    assert sorted(served.pyiceberg().read(T)["a"].to_pylist()) == [1, 2, 3]


def test_a_commit_that_says_that_it_brings_nulls_is_refused(served: Served) -> None:
    """The files were written before the column became required; the refusal names file and column, and nothing changes."""
    catalog = served.pyiceberg().catalog
    catalog.create_table(T, Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", IntegerType())))
    table = catalog.load_table(T)
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.int32())])
    rows = {"nulls": {"a": [1, None], "b": [1, 2]}, "lacks": {"b": [1, 2]}, "whole": {"a": [1, 2], "b": [3, None]}}
    with table.transaction() as transaction:
        metadata = transaction.table_metadata
        made = {
            name: list(_dataframe_to_data_files(metadata, pa.table(found, pa.schema([schema.field(key) for key in found])), table.io))
            for name, found in rows.items()
        }
    with catalog.load_table(T).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("a", required=True)
    for name, files in made.items():
        transaction = catalog.load_table(T).transaction()
        with transaction.update_snapshot().fast_append() as append:
            append.append_data_file(files[0])
        if name == "whole":
            transaction.commit_transaction()
            continue
        with pytest.raises(BadRequestError) as refusal:
            transaction.commit_transaction()
        assert files[0].file_path in str(refusal.value)
        assert "column 'a'" in str(refusal.value)
    assert served.lake.duckdb().execute("FROM t ORDER BY a").fetchall() == [(1, 3), (2, None)]
