"""Rows that are refused leave nothing: no table, no ledger, no namespace, no column."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.common.spark_connect import KEEPS_READS
from duckicelake.pipeline.common.spark_sql import parse_order, parse_partitions
from duckicelake.pipeline.ingest.options import Evolve, IngestMode
from tests.pipeline.ingest.mill import Mill
from tests.pipeline.ingest.whole.wrong import TABLES, damage, lacks_utf8
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
KEYED = {"mode": IngestMode.upsert, "key": ("id",)}
VERSIONED = {"mode": IngestMode.scd2, "key": ("id",), "order_by": "seen"}


def describe(mill: Mill) -> tuple[Any, Any]:
    """The table's columns, in DuckDB and over REST."""
    return mill.ask("DESCRIBE raw.trips"), mill.served.server.get("namespaces/raw/tables/trips").json["metadata"]["schemas"]


def write_twice(mill: Mill) -> None:
    """Two rows of one key, and nothing that says which is the later one."""
    mill.write_parquet("a.parquet", id=[1, 1], seen=[1, 1], note=["a", "b"])


REFUSED: dict[str, tuple[Callable[[Mill], object], dict[str, Any], str]] = {
    "bad lines": (
        lambda mill: mill.write("a.csv", "id\n1\nbad\n"),
        {"schema": "id INT", "max_quarantined": 0},
        "1 rows are bad, more than --max-quarantined 0",
    ),
    "texts": (lambda mill: mill.write_parquet("a.parquet", id=lacks_utf8()), {"max_quarantined": 0}, "1 rows are bad"),
    "upsert": (write_twice, KEYED, "several rows have the key id = 1"),
    "scd2": (write_twice, VERSIONED, "hold from the same seen"),
    "order": (lambda mill: mill.write_parquet("a.parquet", id=[1]), {**KEYED, "order_by": "seen", "schema": "id BIGINT, seen INT"}, "seen"),
    "unreadable": (lambda mill: damage(mill.write_parquet("a.parquet", id=[1, 2])), KEYED, "a.parquet"),
}


@pytest.mark.parametrize("name", long_but(REFUSED, "bad lines"))
def test_what_is_refused_makes_no_table(mill: Mill, name: str) -> None:
    """Nor a ledger, nor a namespace; DuckDB and REST see none."""
    write, options, message = REFUSED[name]
    write(mill)
    with pytest.raises(CatalogError, match=message):
        mill.run(**options)
    assert [mill.served.server.get(f"namespaces/raw/tables/{table}").status for table in TABLES] == [404] * 3
    assert mill.served.server.get("namespaces/raw").status == 404
    assert mill.ask("SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake' AND schema_name = 'raw'") == []


@pytest.mark.long
@pytest.mark.parametrize("mode", [pytest.param(KEYED, id="upsert"), pytest.param(VERSIONED, id="scd2", marks=pytest.mark.long)])
def test_what_is_refused_adds_no_column(mill: Mill, mode: dict[str, Any]) -> None:
    """And widens none; rows that follow each other do both, also inside, and are counted once."""
    numbers = pa.array([1], pa.int32())
    mill.write_parquet("a.parquet", id=numbers, seen=numbers, s=[{"x": 1}])
    mill.run(**mode)
    before = describe(mill)
    later = {"id": [2, 2], "seen": [2, 2], "s": [{"x": 1, "y": 2}] * 2, "more": ["a", "b"]}
    path = mill.write_parquet("b.parquet", **later)
    with pytest.raises(BadRequest, match="several rows|hold from the same"):
        mill.run(**mode, evolve=Evolve.widen)
    assert describe(mill) == before
    path.unlink()
    mill.write_parquet("b.parquet", **later | {"id": [2, 3]})
    mill.told.clear()
    assert mill.run(**mode, evolve=Evolve.widen).rows_out == 2
    assert mill.rows(columns="id, more") == [(1, None), (2, "a"), (3, "b")]
    assert mill.told.count("count rows") == (1 if mode is KEYED or KEEPS_READS else 2)


@pytest.mark.long
def test_a_table_with_a_key_twice_keeps_its_columns(mill: Mill) -> None:
    """It cannot be merged into, which shows before a column is added."""
    mill.write("a.csv", "id\n1\n1\n")
    mill.run()
    mill.write("b.csv", "id,more\n1,x\n")
    with pytest.raises(BadRequest, match="several rows of one key"):
        mill.run(**KEYED, evolve=Evolve.add)
    assert [row[0] for row in describe(mill)[0]] == ["id"]


@pytest.mark.long
def test_what_was_foreseen_is_counted_once(mill: Mill) -> None:
    """A table of each type that is made for the rows, partitioned and ordered, and later with a default of DuckDB's."""
    columns = "i INT NOT NULL, s STRUCT<a: INT, b: ARRAY<STRING>>, m MAP<STRING, DECIMAL(9, 2)>, t TIMESTAMP, n TIMESTAMP_NTZ, w SMALLINT"
    mill.write("a.jsonl", '{"i": 1, "s": {"a": 1, "b": ["x"]}, "m": {"k": 1.5}, "t": "2026-01-01T00:00:00Z", "w": 3}\n')
    mill.run(schema=columns, partition_by=parse_partitions("bucket(4, i)"), sort_by=parse_order("i desc"))
    mill.duck.execute("ALTER TABLE raw.trips ADD COLUMN d VARCHAR DEFAULT 'none'")
    mill.write("b.jsonl", '{"i": 2, "w": 4}\n')
    mill.run()
    assert mill.told.count("count rows") == 2
    assert mill.rows(columns="i, s.a, w, d") == [(1, 1, 3, "none"), (2, None, 4, None)]


@pytest.mark.long
@pytest.mark.parametrize("mode", [{"mode": IngestMode.append}, KEYED], ids=["append", "upsert"])
def test_what_comes_between_is_counted_again(mill: Mill, mode: dict[str, Any]) -> None:
    """Rows that are there after the count decide what a merge does; a column that has a default then is in each row."""
    mill.write_parquet("a.parquet", id=[1], note=["a"])
    mill.run(**mode)
    mill.write_parquet("b.parquet", id=[2], note=["b"])
    pending = ["ALTER TABLE raw.trips ADD COLUMN more INTEGER DEFAULT 7", "INSERT INTO raw.trips VALUES (3, 'duck', 8)"]

    def tell(step: str) -> None:
        mill.told.append(step)
        while step == "branch raw.trips__ingested" and pending:
            mill.duck.execute(pending.pop(0))

    mill.told.clear()
    assert mill.run(tell=tell, **mode).attempts == 1
    assert mill.told.count("count rows") == 2
    assert [row[:2] for row in mill.rows()] == [(1, "a"), (2, "b"), (3, "duck")]
