"""Spark with Iceberg's own runtime against DuckDB's own view of the lake."""

from datetime import datetime
from typing import Any

import pytest

from tests.interop.rich_lake import TABLES, RichLake
from tests.support.readers import Ident, SparkReader
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def find_rows(reader: SparkReader, sql: str) -> list[dict[str, Any]]:
    """The rows of a query; `{}` in it is the catalog."""
    return reader.spark.arrow(sql.format(reader.catalog)).to_pylist()


def list_snapshots(reader: SparkReader, name: str) -> list[tuple[int, datetime]]:
    """Ids and times of a table's snapshots."""
    rows = find_rows(reader, f"SELECT snapshot_id, committed_at FROM {{}}.main.{name}.snapshots ORDER BY 1")
    return [(row["snapshot_id"], row["committed_at"]) for row in rows]


def test_namespaces_and_tables_are_listed(spark_reader: SparkReader) -> None:
    """Nested namespaces below their parents, tables under their names."""
    top = {row["namespace"] for row in find_rows(spark_reader, "SHOW NAMESPACES IN {}")}
    assert top == {"a", "`a.b`", "main", "`ü`"}
    assert [row["namespace"] for row in find_rows(spark_reader, "SHOW NAMESPACES IN {}.a")] == ["a.b"]
    assert find_rows(spark_reader, "SHOW TABLES IN {}.a") == []
    found = {row["tableName"] for row in find_rows(spark_reader, "SHOW TABLES IN {}.main")}
    assert found == {"empty", "measures", "trips", "visits"}


@pytest.mark.parametrize("ident", TABLES, ids=".".join)
def test_a_scan_gives_the_rows_duckdb_sees(rich: RichLake, spark_reader: SparkReader, ident: Ident) -> None:
    """Files, inlined rows, position deletes of v2, deletion vectors and defaults of v3, odd names."""
    rich.check_same(rich.truth.read(ident), spark_reader.read(ident))


def test_a_table_in_a_nested_namespace_is_read(rich: RichLake, spark_reader: SparkReader) -> None:
    """Levels `a`, `b` are DuckDB's schema `a␟b`."""
    rich.check_same(rich.truth.read(("a\u241fb", "t")), spark_reader.spark.arrow(f"SELECT * FROM {spark_reader.catalog}.a.b.t"))


@pytest.mark.parametrize("name", long_but(["trips", "visits", "measures"], "visits"))
def test_every_snapshot_is_readable(rich: RichLake, spark_reader: SparkReader, name: str) -> None:
    """By id and by time, a snapshot shows what DuckDB shows at the lake snapshot of the same id."""
    snapshots = list_snapshots(spark_reader, name)
    assert len(snapshots) > 3
    for snapshot_id, time in snapshots:
        expected = rich.truth.read(("main", name), snapshot_id)
        rich.check_same(expected, spark_reader.read(("main", name), snapshot_id))
        at_time = f"SELECT * FROM {spark_reader.catalog}.main.{name} TIMESTAMP AS OF '{time:%Y-%m-%d %H:%M:%S.%f}'"
        rich.check_same(expected, spark_reader.spark.arrow(at_time))


@pytest.mark.parametrize(
    "query",
    long_but(
        [
            pytest.param("SELECT * FROM {}.main.trips WHERE id < 90", id="bounds"),
            pytest.param("SELECT * FROM {}.main.trips WHERE id IN (7, 1004, 2001)", id="list of values"),
            pytest.param("SELECT fare, note FROM {}.main.trips WHERE city = 'Łódź'", id="text"),
            pytest.param("SELECT id FROM {}.main.trips WHERE note IS NULL AND fare > 1000", id="column that older files lack"),
            pytest.param("SELECT id, seen FROM {}.main.trips WHERE seen < TIMESTAMP '1970-01-01 00:00:00+00:00'", id="instant"),
            pytest.param("SELECT spot.x FROM {}.main.trips WHERE spot.y < -1200", id="inside a struct"),
            pytest.param("SELECT * FROM {}.main.visits WHERE country = 'de'", id="identity partition"),
            pytest.param("SELECT * FROM {}.main.visits WHERE day >= DATE '2026-03-01' AND day < DATE '2026-04-01'", id="month partition"),
            pytest.param("SELECT * FROM {}.main.visits WHERE country IS NULL OR country = 'se'", id="outside of partitions"),
            pytest.param("SELECT * FROM {}.main.measures WHERE coalesce(rank, -1) = 7", id="default"),
            pytest.param("SELECT * FROM {}.main.measures WHERE rank IS NULL OR rank > 7", id="beside a default"),
            pytest.param("SELECT country, count(*) AS n FROM {}.main.visits GROUP BY country", id="aggregate"),
        ],
        "bounds",
        "column that older files lack",
        "inside a struct",
        "month partition",
        "default",
    ),
)
def test_a_query_has_duckdbs_answer(rich: RichLake, spark_reader: SparkReader, query: str) -> None:
    """Pruning by bounds and partitions loses no rows."""
    in_duckdb = query.format("lake").replace("TIMESTAMP '", "TIMESTAMPTZ '")
    expected = rich.ask(in_duckdb)
    assert len(expected) > 0
    rich.check_same(expected, spark_reader.spark.arrow(query.format(spark_reader.catalog)))


def test_a_pushed_filter_finds_the_default_of_older_files(rich: RichLake, spark_reader: SparkReader, iceberg: str | None) -> None:
    """Iceberg 1.11.0 skips files that lack the column, though the default matches (apache/iceberg#16690)."""
    found = find_rows(spark_reader, "SELECT id FROM {}.main.measures WHERE rank = 7 ORDER BY id")
    seen = "true" if iceberg is None else "id >= 200"
    assert found == rich.ask(f"SELECT id FROM lake.measures WHERE rank = 7 AND {seen} ORDER BY id").to_pylist()


def test_partitions_prune(spark_reader: SparkReader) -> None:
    """Iceberg's scan plans fewer files for a country and a month than there are."""
    session, name = spark_reader.spark.session, f"{spark_reader.catalog}.main.visits"
    # A file that costs as much to open as a task may hold is a task of its own.
    table = session.read.option("file-open-cost", 1 << 27).option("split-size", 1 << 27).table(name)
    assert table.rdd.getNumPartitions() == 14
    assert table.where("country = 'pl' AND day = DATE '2026-02-15'").rdd.getNumPartitions() == 1


def test_an_increment_is_what_was_inserted(rich: RichLake, spark_reader: SparkReader) -> None:
    """The rows that inserts added between two snapshots; deletes and updates in between do not count."""
    (first, _), (second, _), *_, (last, _) = list_snapshots(spark_reader, "trips")
    options = {"start-snapshot-id": str(first), "end-snapshot-id": str(last)}
    appended = spark_reader.spark.session.read.format("iceberg").options(**options)
    found = spark_reader.spark.collect(appended.load, f"{spark_reader.catalog}.main.trips")
    columns = ", ".join(found.column_names)
    rich.check_same(rich.list_inserts("trips", second, columns), found)
    assert len(found) == 604


@pytest.mark.parametrize(("name", "version", "kind"), [("trips", "2", "PARQUET"), ("measures", "3", "PUFFIN")])
def test_deletes_come_in_the_form_of_the_version(spark_reader: SparkReader, name: str, version: str, kind: str) -> None:
    """Position delete files in v2, deletion vectors in v3."""
    shown = find_rows(spark_reader, f"SHOW TBLPROPERTIES {{}}.main.{name}")
    assert {"key": "format-version", "value": version} in shown
    deletes = find_rows(spark_reader, f"SELECT DISTINCT file_format, content FROM {{}}.main.{name}.delete_files")
    assert deletes == [{"file_format": kind, "content": 1}]


@pytest.mark.parametrize("name", long_but(["trips", "visits", "measures"], "measures"))
def test_metadata_tables_tell_of_duckdbs_table(rich: RichLake, spark_reader: SparkReader, name: str) -> None:
    """files, entries, manifests, snapshots, history, refs and partitions agree with DuckDB and with each other."""
    table = f"{{}}.main.{name}"
    ids = [snapshot_id for snapshot_id, _ in list_snapshots(spark_reader, name)]
    history = find_rows(spark_reader, f"SELECT snapshot_id, parent_id, is_current_ancestor FROM {table}.history ORDER BY 1")
    assert [row["snapshot_id"] for row in history] == ids
    assert [row["parent_id"] for row in history] == [None, *ids[:-1]]
    assert all(row["is_current_ancestor"] for row in history)
    assert find_rows(spark_reader, f"SELECT name, type, snapshot_id FROM {table}.refs") == [
        {"name": "main", "type": "BRANCH", "snapshot_id": ids[-1]}
    ]
    files = find_rows(spark_reader, f"SELECT content, file_path, record_count FROM {table}.files")
    rows = sum(row["record_count"] if row["content"] == 0 else -row["record_count"] for row in files)
    assert rows == len(rich.truth.read(("main", name)))
    assert rich.list_files(name).keys() <= {row["file_path"] for row in files if row["content"] == 0}
    live = find_rows(spark_reader, f"SELECT data_file.file_path AS file_path FROM {table}.entries WHERE status <> 2")
    assert sorted(row["file_path"] for row in live) == sorted(row["file_path"] for row in files)
    (counted,) = find_rows(
        spark_reader,
        "SELECT sum(added_data_files_count + existing_data_files_count + added_delete_files_count + existing_delete_files_count) AS files "
        f"FROM {table}.manifests",
    )
    assert counted["files"] == len(files)
    (parts,) = find_rows(spark_reader, f"SELECT sum(record_count - position_delete_record_count) AS rows FROM {table}.partitions")
    assert parts["rows"] == rows


def test_rows_keep_their_lineage(rich: RichLake, spark_reader: SparkReader) -> None:
    """In v3 `_row_id` is DuckDB's rowid, and the sequence number is the lake snapshot that wrote the row."""
    found = spark_reader.spark.arrow(f"SELECT id, _row_id, _last_updated_sequence_number FROM {spark_reader.catalog}.main.measures")
    expected = rich.ask("SELECT id, rowid AS _row_id, snapshot_id AS _last_updated_sequence_number FROM lake.measures")
    rich.check_same(expected, found)


def test_a_folder_is_a_table(local: RichLake, spark_reader: SparkReader) -> None:
    """Spark reads the location as a Hadoop table: `version-hint.text` leads to `v<N>.metadata.json`."""
    location = local.served.pyiceberg().catalog.load_table(("main", "trips")).location()
    found = spark_reader.spark.collect(spark_reader.spark.session.read.format("iceberg").load, location)
    local.check_same(local.truth.read(("main", "trips")), found)
