"""PyIceberg reads the other columns of files in which DuckDB wrote variants."""

import json

import pytest

from duckicelake.pyiceberg_v3 import install
from tests.support.readers import Served

HIDE = {"updates": [{"action": "set-properties", "updates": {"iceberg.unreadable-columns": "hide"}}]}


def test_the_other_columns_are_read(served: Served) -> None:
    """Values of one shape and of several, beside a struct whose fields are called alike. Without the shim, PyIceberg refuses the file."""
    duck, reader = served.lake.duckdb(), served.pyiceberg()
    duck.execute("CREATE TABLE t (i INTEGER, v VARIANT, w VARIANT, m STRUCT(metadata BLOB, value BLOB))")
    shapes = "CASE n % 3 WHEN 0 THEN {'a': n}::VARIANT WHEN 1 THEN n::VARIANT END"
    row = f"n, {shapes}, n::VARIANT, {{'metadata': 'x'::BLOB, 'value': NULL}}"
    duck.execute(f"INSERT INTO t SELECT {row} FROM range(30) r(n)")
    answer = served.server.ask("POST", "namespaces/main/tables/t", {"content-type": "application/json"}, json.dumps(HIDE).encode())
    assert answer.status == 200
    with pytest.raises(ValueError, match="does not have field-ids"):
        reader.read(("main", "t"))
    uninstall = install()
    try:
        found = reader.read(("main", "t")).sort_by("i").to_pylist()
    finally:
        uninstall()
    assert found == [{"i": n, "m": {"metadata": b"x", "value": None}} for n in range(30)]
