"""Files that store columns in other types than the table's, as ClickHouse 26.9 does: refused if DuckDB misreads them."""

import io
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.iceberg.manifest import DataFile
from tests.rest.serving import Server
from tests.rest.writing.client import Client, open_client
from tests.support.lakes import FreshLake

CLICKHOUSE = {"user-agent": "ClickHouse/26.9.2.1"}
SNAPSHOT_ID = 7_000_000_000_000_000_001
DAY, TIME, TEXT, BYTES = date(2024, 1, 2), time(3, 4, 5, 678000), "é\\x41", b"\xff\\x41"
NOON_UTC = datetime(2024, 1, 2, 12, 0, 0, 1000, UTC)
NOON = NOON_UTC.replace(tzinfo=None)
NUMBER, KEY = Decimal("1.25"), UUID("00112233-4455-6677-8899-aabbccddeeff")
INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]

READ: Sequence[tuple[Any, Any, Any]] = [
    *(("boolean", True, kind) for kind in (pa.bool_(), pa.uint8())),
    *((of, 7, kind) for of in ("int", "long") for kind in [*INTEGERS, pa.string(), pa.decimal128(9, 0)]),
    *((of, 1.5, kind) for of in ("float", "double") for kind in (pa.float32(), pa.float64())),
    *(("decimal(9,2)", NUMBER, pa.decimal128(*shape)) for shape in ((9, 2), (18, 2), (38, 2), (38, 3), (5, 2))),
    ("decimal(38,2)", NUMBER, pa.decimal128(5, 2)),
    *(("date", DAY, kind) for kind in (pa.date32(), pa.date64(), pa.string())),
    *(("time", TIME, kind) for kind in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *(("timestamp", NOON, kind) for unit in ("ms", "us", "ns") for kind in (pa.timestamp(unit), pa.timestamp(unit, "UTC"))),
    *(("timestamptz", NOON_UTC, pa.timestamp(unit, "UTC")) for unit in ("ms", "us", "ns")),
    *(("timestamp_ns", NOON, pa.timestamp(unit)) for unit in ("us", "ns")),
    *(("string", TEXT, kind) for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))),
    *(("uuid", KEY, kind) for kind in (pa.uuid(), pa.binary(16), pa.binary(), pa.string())),
    *(("fixed[5]", BYTES, kind) for kind in (pa.binary(5), pa.binary())),
    *(("binary", BYTES, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(5))),
    *((of, None, pa.null()) for of in ("time", "binary", "uuid")),
    ({"type": "list", "element-id": 901, "element": "time", "element-required": False}, [TIME], pa.list_(pa.time64("us"))),
]
"""Types of columns, a value, and the Arrow types in which a file may hold it for DuckDB to read it right."""

MISREAD: Sequence[tuple[Any, Any, Any, Any, str]] = [
    ("time", TIME, 11045678000, pa.int64(), "int64"),
    ("date", DAY, 19724, pa.int32(), "int32"),
    ("timestamp", NOON, 1704196800001000, pa.int64(), "int64"),
    ("timestamptz", NOON_UTC, 1704196800001000, pa.int64(), "int64"),
    ("binary", "é".encode(), "é", pa.string(), "string"),
    ("fixed[2]", "é".encode(), "é", pa.string(), "string"),
    ("string", "é", "é".encode(), pa.binary(), "binary"),
    ("uuid", KEY, 7, pa.int64(), "int64"),
    ("int", 19724, DAY, pa.date32(), "date32"),
    ("time", TIME, [TIME], pa.list_(pa.time64("us")), "nested"),
    ({"type": "list", "element-id": 901, "element": "time", "element-required": False}, [TIME], [7], pa.list_(pa.int64()), "int64"),
]
"""Types of columns, a value, and how a file holds it so that DuckDB fails or returns another one."""


def create(client: Client, name: str, types: Sequence[Any]) -> Any:
    """Make a table with columns of these types, and return its metadata."""
    fields = [{"id": number, "name": f"c{number}", "required": False, "type": each} for number, each in enumerate(types, 1)]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    made = client.create(name, schema=schema, properties={"format-version": "3"})
    assert made.status == 200, made.body
    return client.load(name)


def store(value: Any, kind: Any) -> Any:
    """Return an array of one value, stored as this type."""
    if pa.types.is_dictionary(kind):
        return pa.array([value]).dictionary_encode()
    if isinstance(value, UUID):
        value = str(value) if kind == pa.string() else value.bytes
    if isinstance(value, int | date) and not pa.types.is_decimal(kind):
        return pa.array([value]).cast(kind)
    return pa.array([value], kind)


def put(client: Client, metadata: Any, arrays: Sequence[Any]) -> list[Any]:
    """Write a file with these columns, with field ids, and return the updates that append it."""
    columns = list(zip(metadata["schemas"][0]["fields"], arrays, strict=True))
    fields = [pa.field(f"c{column['id']}", with_ids(array.type, column), metadata=id_of(column["id"])) for column, array in columns]
    sink = io.BytesIO()
    pq.write_table(pa.table([array.cast(field.type) for array, field in zip(arrays, fields, strict=True)], schema=pa.schema(fields)), sink)
    path, content = f"{metadata['location']}/data/stored.parquet", sink.getvalue()
    client.objects.put_new(path, content)
    file = DataFile(0, path, "PARQUET", (), 1, len(content))
    return client.append(metadata, SNAPSHOT_ID, [file], format_version=3)


def id_of(number: int) -> dict[bytes, bytes]:
    """Return the metadata of an Arrow field for a field id."""
    return {b"PARQUET:field_id": str(number).encode()}


def with_ids(kind: Any, column: Any) -> Any:
    """Return a list type whose elements have the field id of the column's elements, 99 if it has none; any other type as it is."""
    element_id = column["type"]["element-id"] if isinstance(column["type"], dict) else 99
    return pa.list_(pa.field("element", kind.value_type, metadata=id_of(element_id))) if pa.types.is_list(kind) else kind


def test_files_that_duckdb_reads_are_taken(server: Server, lake: FreshLake) -> None:
    """ClickHouse may store a column in every type from which DuckDB reads the column's values."""
    client = open_client(server, lake)
    metadata = create(client, "t", [of for of, *_ in READ])
    done = client.commit(put(client, metadata, [store(value, kind) for _, value, kind in READ]), headers=CLICKHOUSE)
    assert done.status == 200, done.body
    session = lake.duckdb()
    session.execute("SET TimeZone = 'UTC'")
    [row] = session.execute("SELECT * FROM t").fetchall()
    wrong = [(*case, found) for case, found in zip(READ, row, strict=True) if found != case[1]]
    assert not wrong


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case[0]}-{case[-1]}"[-30:]) for case in MISREAD])
def test_files_that_duckdb_misreads_are_refused(server: Server, lake: FreshLake, case: tuple[Any, Any, Any, Any, str]) -> None:
    """DuckDB could read the table no more. Files of other clients are not looked into, so their commit lands."""
    of, value, stored, kind, told = case
    client = open_client(server, lake)
    updates = put(client, create(client, "t", [of]), [pa.array([stored], kind)])
    refused = client.commit(updates, headers=CLICKHOUSE)
    assert (refused.status, refused.json["error"]["type"]) == (400, "BadRequestException"), refused.body
    for part in ("stored.parquet", "'c1", of if isinstance(of, str) else "time", told):
        assert part in refused.json["error"]["message"]
    assert client.commit(updates).status == 200
    try:
        assert lake.duckdb().execute("SELECT c1 FROM t").fetchall() != [(value,)]
    except duckdb.Error as error:
        assert "stored.parquet" in str(error)


def test_transactions_are_looked_into(server: Server, lake: FreshLake) -> None:
    """A commit to several tables is refused for the file of one."""
    client = open_client(server, lake)
    updates = put(client, create(client, "t", ["time"]), [pa.array([7])])
    change = {"identifier": {"namespace": ["main"], "name": "t"}, "requirements": [], "updates": updates}
    refused = client.post("transactions/commit", {"table-changes": [change]}, CLICKHOUSE)
    assert refused.status == 400 and "stored.parquet" in refused.json["error"]["message"]
