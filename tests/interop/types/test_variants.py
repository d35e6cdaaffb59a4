"""Variants of DuckDB and of clients are the same values in every reader, at each snapshot, and NULLs are NULLs."""

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from rich.console import Console

from duckicelake.commands.check import check_lakes, list_findings
from duckicelake.embedded.home import open_home
from duckicelake.errors import Unsupported
from duckicelake.pyiceberg_v3 import VariantType, install
from tests.rest.serving import make_settings
from tests.support.readers import DuckDBIcebergReader, Served
from tests.support.spark import Spark

Rows = list[tuple[int, object]]
JSON_TEXT = "CASE WHEN v IS NOT NULL THEN v::JSON::VARCHAR END"
"""DuckDB converts a NULL that it has written as a variant to the text `null`."""
SHAPES = ("NULL", "7", "'text'", "true", "1.50::DECIMAL(4, 2)", "2.5::DOUBLE", "[1, NULL]", "{'b': 1, 'a': {'z': NULL, 'c': 'x'}}")


@pytest.fixture
def shim() -> Iterator[None]:
    """PyIceberg knows variants."""
    uninstall = install()
    yield
    uninstall()


def make_value(draw: random.Random, depth: int = 3) -> object:
    """A value of any shape that JSON has, with names in any order."""
    match draw.randrange(8 if depth else 5):
        case 0:
            return None
        case 1:
            return draw.choice([True, False])
        case 2:
            return draw.randrange(-(2**40), 2**40)
        case 3:
            return draw.random()
        case 4:
            return "".join(draw.choices('ab€"\\', k=draw.choice([0, 3, 90])))
        case 5:
            return [make_value(draw, depth - 1) for _ in range(draw.randrange(4))]
        case _:
            return {name: make_value(draw, depth - 1) for name in draw.sample(["z", "b", "é", "a", "aa"], draw.randrange(6))}


def insert(served: Served, values: list[object], first: int) -> None:
    """Add JSON values as variants with DuckDB, numbered from `first` on."""
    texts = [None if value is None else json.dumps(value) for value in values]
    rows = "SELECT n + $1 - 1, t[n]::JSON::VARIANT FROM range(1, len($2) + 1) r(n), (SELECT $2::VARCHAR[] AS t)"
    served.lake.duckdb().execute(f"INSERT INTO t (i, v) {rows}", [first, texts])


def parse(rows: list[tuple[int, str | None]]) -> Rows:
    """Rows with their JSON parsed; a NULL is None, and a variant null is told apart."""
    return [(i, None if text is None else "variant null" if text == "null" else json.loads(text)) for i, text in rows]


def read_lake(served: Served, snapshot_id: int | None = None) -> Rows:
    """The rows of DuckDB."""
    at = "" if snapshot_id is None else f" AT (VERSION => {snapshot_id})"
    return parse(served.lake.duckdb().execute(f"SELECT i, {JSON_TEXT} FROM t{at} ORDER BY i").fetchall())


def read_table(table: Table, snapshot_id: int | None = None) -> Rows:
    """The rows of PyIceberg."""
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().sort_by("i").to_pylist()
    return parse([(row["i"], row["v"]) for row in rows])


def read_extension(reader: DuckDBIcebergReader, snapshot_id: int) -> Rows:
    """The rows of DuckDB's `iceberg` extension."""
    return parse(reader.conn.execute(f"SELECT i, {JSON_TEXT} FROM ice.main.t AT (VERSION => {snapshot_id}) ORDER BY i").fetchall())


@pytest.mark.whole
@pytest.mark.usefixtures("shim")
def test_values_are_the_same_at_each_snapshot(served: Served) -> None:
    """DuckDB's files are written again for clients, once each; clients delete rows of them, and DuckDB changes, merges and rewrites."""
    duck, catalog, extension = served.lake.duckdb(), served.pyiceberg().catalog, served.duckdb_iceberg()
    draw = random.Random(7)
    values = [make_value(draw) for _ in range(60)]
    duck.execute("CREATE TABLE t (i INTEGER, v VARIANT)")
    insert(served, values, 0)
    assert read_lake(served) == list(enumerate(values))
    catalog.load_table("main.t").delete("i = 3")
    insert(served, [make_value(draw) for _ in range(20)], 100)
    duck.execute("DELETE FROM t WHERE i = 101; UPDATE t SET v = {'y': 1, 'x': i}::VARIANT WHERE i < 10")
    table = catalog.load_table("main.t")
    table.append(pa.table({"i": pa.array([200], pa.int32())}))
    with pytest.raises(Unsupported, match="cannot write the variants of the column 'v'"):
        table.append(pa.table({"i": pa.array([201], pa.int32()), "v": pa.array([b"x"])}))
    table.delete("i in (5, 102)")
    extension.conn.execute("INSERT INTO ice.main.t VALUES (300, NULL), (301, {'q': 1, 'b': [NULL]}::VARIANT)")
    duck.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0); CALL ducklake_merge_adjacent_files('lake')")
    snapshots = table.refresh().snapshots()
    for snapshot in snapshots:
        expected = read_lake(served, snapshot.snapshot_id)
        assert read_table(table, snapshot.snapshot_id) == expected
        assert read_extension(extension, snapshot.snapshot_id) == expected
    assert len(read_lake(served)) == 60 + 20 + 3 - 1 - 1 - 2
    nulls = [i for i, value in read_lake(served) if value is None]
    assert sorted(table.scan("v is null").to_arrow().column("i").to_pylist()) == nulls
    table.manage_snapshots().rollback_to_snapshot(snapshots[0].snapshot_id).commit()
    assert read_lake(served) == read_table(table.refresh()) == list(enumerate(values))
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert all("/data/variants-" in path for path in paths)


@pytest.mark.usefixtures("shim")
def test_the_property_hides_variants_from_a_table_on(served: Served) -> None:
    """Files are DuckDB's own then. A client cannot add such a column, and gets an error that says why."""
    duck, reader = served.lake.duckdb(), served.pyiceberg()
    duck.execute("CREATE TABLE t (i INTEGER, v VARIANT)")
    insert(served, [{"a": 1}, None], 0)
    table = reader.catalog.load_table("main.t")
    with table.transaction() as change:
        change.set_properties({"iceberg.unreadable-columns": "hide"})
    assert [field.name for field in table.refresh().schema().fields] == ["i"]
    assert not any("/variants-" in task.file.file_path for task in table.scan().plan_files())
    assert len(table.scan().to_arrow()) == 2
    with pytest.raises(Exception, match="iceberg.unreadable-columns=hide leaves out such columns"), table.update_schema() as update:
        update.add_column("w", VariantType())


@pytest.mark.usefixtures("shim")
def test_a_lost_copy_is_written_again(served: Served, tmp_path: Path) -> None:
    """`check` misses it, and the repair makes it under the same name, from DuckDB's file."""
    served.lake.duckdb().execute("CREATE TABLE t (i INTEGER, v VARIANT)")
    insert(served, [{"b": 1, "a": 2}, None], 0)
    table = served.pyiceberg().catalog.load_table("main.t")
    [path] = [task.file.file_path for task in table.scan().plan_files()]
    table.io.delete(path)
    settings, home = make_settings(served.lake), open_home(tmp_path / "home")
    (lake,) = settings.lakes()
    assert any(path in finding.problem for finding in list_findings(lake, home))
    assert check_lakes(settings, home, Console(), timedelta())
    assert read_table(table) == [(0, {"a": 2, "b": 1}), (1, None)]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_and_duckdb_write_variants(served: Served, spark: Spark) -> None:
    """Shredded or not, with NULLs, and row-level changes of files of both.

    The first column is a variant: its offset in a file decides which row groups Spark reads.
    """
    reader, duck = served.spark(spark), served.lake.duckdb()
    name = reader.sql_name(("main", "t"))
    run = reader.spark.arrow
    run(f"CREATE TABLE {name} (v VARIANT, i INT) TBLPROPERTIES ('format-version' = '3')")
    nested = '{"b":1,"a":[1,null,{"z":"x","y":1.5}]}'
    run(f"""INSERT INTO {name} (i, v) VALUES (1, parse_json('{nested}')), (2, NULL), (3, parse_json('"t"'))""")
    run(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.parquet.shred-variants' = 'true')")
    run(f"""INSERT INTO {name} (i, v) VALUES (4, parse_json('{{"b":1,"a":3}}')), (5, parse_json('{{"b":2,"a":3}}'))""")
    for number, shape in enumerate(SHAPES, 10):
        duck.execute(f"INSERT INTO t (i, v) VALUES ({number}, ({shape})::VARIANT)")
    duck.execute("INSERT INTO t (i, v) SELECT n, CASE WHEN n % 50 = 0 THEN {'b': n, 'a': [n]}::VARIANT END FROM range(30, 5030) r(n)")
    run(f"DELETE FROM {name} WHERE i IN (3, 31, 32)")
    run(f"UPDATE {name} SET v = parse_json('[2]') WHERE i IN (4, 34, 35)")
    duck.execute("UPDATE t SET v = 'changed'::VARIANT WHERE i = 5")
    expected = read_lake(served)
    rows = run(f"SELECT i, to_json(v) AS v, v IS NULL AS is_null FROM {name} ORDER BY i").to_pylist()
    assert parse([(row["i"], row["v"]) for row in rows]) == expected
    assert [row["i"] for row in rows if row["is_null"]] == [i for i, value in expected if value is None]
    assert len(expected) == 5 + len(SHAPES) + 5000 - 3
    assert run(f"SELECT count(*) AS n FROM {name} WHERE v IS NULL").to_pylist() == [{"n": sum(value is None for _, value in expected)}]
