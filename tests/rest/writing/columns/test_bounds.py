"""Bounds as DuckDB reads them: its queries find every row of clients' files, and those of a type that a commit widened."""

import struct
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from duckicelake.iceberg.manifest import DataFile
from tests.rest.serving import Server
from tests.rest.writing.client import Client, open_client, write_file
from tests.support.lakes import FreshLake

TENTH = struct.unpack("<f", struct.pack("<f", 0.1))[0]
"""0.1 as a float, which is greater than 0.1."""
FOUND = f"SELECT count(*) FILTER (x > 0.1), count(*) FILTER (x = {TENTH!r}), count(*) FROM {{}} WHERE x >= {TENTH!r}"


def widen(client: Client, name: str) -> None:
    """Make the column `x` a double."""
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "x", "required": False, "type": "double"}]}
    done = client.commit([{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}], name=name)
    assert done.status == 200, done.body


def add_by_duckdb(client: Client, lake: FreshLake, name: str) -> None:
    """Make a table of one float in a file of DuckDB's."""
    session = lake.duckdb()
    session.execute(f"CREATE TABLE {name} (x FLOAT)")
    session.execute(f"INSERT INTO {name} SELECT 0.1 FROM range(20)")
    assert client.load(name)["current-snapshot-id"]


def add_by_client(client: Client, lake: FreshLake, name: str) -> None:
    """Make a table of one float in a file of a client's."""
    schema = {"type": "struct", "fields": [{"id": 1, "name": "x", "required": False, "type": "float"}]}
    base = client.post("namespaces/main/tables", {"name": name, "schema": schema}).json["metadata"]
    told: dict[str, Any] = {"value_counts": {1: 20}, "null_value_counts": {1: 0}, "nan_value_counts": {1: 0}}
    bounds = {1: struct.pack("<f", 0.1)}
    file = write_file(client, base, "a", {1: pa.array([0.1] * 20, pa.float32())}, **told, lower_bounds=bounds, upper_bounds=bounds)
    assert client.commit(client.append(base, 9_000_000_001, [file]), name=name).status == 200


@pytest.mark.parametrize("by_duckdb", [pytest.param(True, id="duckdb"), pytest.param(False, id="client")])
def test_floats_are_found_as_doubles(standing: Server, standing_lake: FreshLake, by_duckdb: bool) -> None:
    """DuckDB prunes by the texts of bounds, and 0.1 as a float is another double than 0.1; as a float it is found in the past, too."""
    client, name = open_client(standing, standing_lake), f"w{uuid4().hex}"
    (add_by_duckdb if by_duckdb else add_by_client)(client, standing_lake, name)
    before = client.load(name)["current-snapshot-id"]
    widen(client, name)
    session = standing_lake.duckdb()
    assert session.execute(FOUND.format(name)).fetchone() == (20, 20, 20)
    past = f"{name} AT (VERSION => {before})"
    assert session.execute(f"SELECT count(*) FROM {past} WHERE x = 0.1::FLOAT").fetchone() == (20,)
    session.execute(f"INSERT INTO {name} SELECT 0.1 FROM range(30)")
    assert session.execute(f"SELECT count(*), min(x), max(x) FROM {name} WHERE x >= 0.1").fetchone() == (50, 0.1, TENTH)


def test_duckdb_widens_a_clients_floats(standing: Server, standing_lake: FreshLake) -> None:
    """What it then reads as doubles are the very numbers that the client's bounds told."""
    client, name = open_client(standing, standing_lake), f"w{uuid4().hex}"
    add_by_client(client, standing_lake, name)
    session = standing_lake.duckdb()
    session.execute(f"ALTER TABLE {name} ALTER x TYPE DOUBLE")
    assert session.execute(FOUND.format(name)).fetchone() == (20, 20, 20)


@pytest.mark.parametrize("text", ["3.4028234663852886e38", "-3.4028234663852886e38", "3.4e38", "-2.3e20", "1.1e-7"])
def test_floats_of_many_or_few_digits_are_found(standing: Server, standing_lake: FreshLake, text: str) -> None:
    """DuckLake compares the text of such a number as a double with bounds that are floats."""
    client, name = open_client(standing, standing_lake), f"w{uuid4().hex}"
    schema = {"type": "struct", "fields": [{"id": 1, "name": "x", "required": False, "type": "float"}]}
    base = client.post("namespaces/main/tables", {"name": name, "schema": schema}).json["metadata"]
    told: dict[str, Any] = {"value_counts": {1: 1}, "null_value_counts": {1: 0}, "nan_value_counts": {1: 0}}
    files: list[DataFile] = []
    for value in (float(text), 0.5):
        bounds = {1: struct.pack("<f", value)}
        column = pa.array([value], pa.float32())
        files.append(write_file(client, base, str(value), {1: column}, **told, lower_bounds=bounds, upper_bounds=bounds))
    assert client.commit(client.append(base, 9_000_000_001, files), name=name).status == 200
    session = standing_lake.duckdb()
    for condition in ("=", ">=", "<="):
        found = session.execute(f"SELECT count(*) FILTER (x <> 0.5) FROM {name} WHERE x {condition} ({text})::FLOAT").fetchone()
        assert found == (1,), condition


def test_a_time_before_the_year_1_is_found(standing: Server, standing_lake: FreshLake) -> None:
    """DuckDB has the era behind the date, before the time of day."""
    client, name = open_client(standing, standing_lake), f"w{uuid4().hex}"
    schema = {"type": "struct", "fields": [{"id": 1, "name": "day", "required": False, "type": "timestamp"}]}
    base = client.post("namespaces/main/tables", {"name": name, "schema": schema}).json["metadata"]
    told: dict[str, Any] = {"value_counts": {1: 1}, "null_value_counts": {1: 0}}
    first = -63_530_000_000_000_000
    bounds = {1: struct.pack("<q", first)}
    file = write_file(
        client, base, "a", {1: pa.array([first], pa.int64()).view(pa.timestamp("us"))}, **told, lower_bounds=bounds, upper_bounds=bounds
    )
    assert client.commit(client.append(base, 9_000_000_001, [file]), name=name).status == 200
    assert standing_lake.duckdb().execute(f"SELECT count(*) FROM {name} WHERE day < '0001-01-01'").fetchone() == (1,)


def test_the_most_distant_date_hides_nothing(standing: Server, standing_lake: FreshLake) -> None:
    """It is infinity to DuckDB, which reads no date of that text."""
    client, name = open_client(standing, standing_lake), f"w{uuid4().hex}"
    schema = {"type": "struct", "fields": [{"id": 1, "name": "d", "required": False, "type": "date"}]}
    base = client.post("namespaces/main/tables", {"name": name, "schema": schema}).json["metadata"]
    told: dict[str, Any] = {"value_counts": {1: 2}, "null_value_counts": {1: 0}}
    bounds: dict[str, Any] = {"lower_bounds": {1: struct.pack("<i", 0)}, "upper_bounds": {1: struct.pack("<i", 2**31 - 1)}}
    file = write_file(client, base, "a", {1: pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32())}, **told, **bounds)
    assert client.commit(client.append(base, 9_000_000_001, [file]), name=name).status == 200
    for condition in ("d = '1970-01-01'", "d > '2000-01-01'", "isinf(d)"):
        assert standing_lake.duckdb().execute(f"SELECT count(*) FROM {name} WHERE {condition}").fetchone() == (1,)
