"""DuckDB's iceberg extension over REST against DuckDB's own view of the lake."""

import pytest

from tests.interop.rich_lake import TABLES, RichLake
from tests.support.readers import DuckDBIcebergReader, Ident, PyIcebergReader
from tests.support.tiers import whole_after

# A dot separates the levels of a namespace in this client, so `a.b` is to it what `a␟b` is to DuckDB.
READABLE = [ident for ident in TABLES if "." not in ident[0]]


def test_tables_are_listed(duckdb_iceberg: DuckDBIcebergReader) -> None:
    """Under their names, dots and spaces in them."""
    found = duckdb_iceberg.conn.execute("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'ice'").fetchall()
    assert set(READABLE) <= set(found)


@pytest.mark.parametrize("ident", READABLE, ids=".".join)
def test_a_scan_gives_the_rows_duckdb_sees(rich: RichLake, duckdb_iceberg: DuckDBIcebergReader, ident: Ident) -> None:
    """Files, inlined rows, deletes, defaults, odd names."""
    rich.check_same(rich.truth.read(ident), duckdb_iceberg.read(ident))


def test_a_dot_in_a_schema_is_a_level(rich: RichLake) -> None:
    """`"a.b".t` of this client is the table of the nested namespace."""
    rich.check_same(rich.truth.read(("a\u241fb", "t")), rich.served.duckdb_iceberg().read(("a.b", "t")))


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("FROM {}.main.trips WHERE id < 90", id="bounds"),
        pytest.param("FROM {}.main.trips WHERE id IN (5, 100, 1003, 2000, 2001, 3099)", id="list of values"),
        pytest.param("SELECT fare, note FROM {}.main.trips WHERE city = 'Łódź'", id="text"),
        pytest.param("SELECT id FROM {}.main.trips WHERE note IS NULL AND fare > 1000", id="column that older files lack"),
        pytest.param("FROM {}.main.trips WHERE seen < TIMESTAMPTZ '1970-01-01 00:00:00+00'", id="instant"),
        pytest.param("SELECT spot.x, tags[1] AS tag FROM {}.main.trips WHERE spot.y < -1200", id="inside a struct"),
        pytest.param("FROM {}.main.visits WHERE country = 'de'", id="identity partition"),
        pytest.param("FROM {}.main.visits WHERE day >= '2026-03-01' AND day < '2026-04-01'", id="month partition"),
        pytest.param("FROM {}.main.visits WHERE country IS NULL OR country = 'se'", id="outside of partitions"),
        pytest.param("FROM {}.main.measures WHERE rank = 7", id="default"),
        pytest.param("FROM {}.main.measures WHERE rank IS NULL OR rank > 7", id="beside a default"),
        pytest.param("SELECT country, count(*) AS n, sum(amount) AS total FROM {}.main.visits GROUP BY ALL", id="aggregate"),
        pytest.param("SELECT count(*) AS n FROM {0}.main.trips t JOIN {0}.main.visits v ON t.day = v.day", id="join"),
    ],
)
def test_a_query_has_duckdbs_answer(rich: RichLake, duckdb_iceberg: DuckDBIcebergReader, query: str) -> None:
    """Pruning by bounds and partitions loses no rows."""
    expected = rich.ask(query.format("lake"))
    assert len(expected) > 0
    rich.check_same(expected, duckdb_iceberg.conn.execute(query.format("ice")).to_arrow_table())


@pytest.mark.parametrize("name", whole_after(1, ["trips", "visits", "measures"]))
def test_every_snapshot_is_readable(rich: RichLake, duckdb_iceberg: DuckDBIcebergReader, name: str) -> None:
    """A snapshot shows what DuckDB shows at the lake snapshot of the same id, and at the time of it."""
    found = duckdb_iceberg.conn.execute(f"SELECT snapshot_id, timestamp_ms FROM iceberg_snapshots(ice.main.{name})").fetchall()
    assert len(found) > 3
    for snapshot_id, time in found:
        expected = rich.truth.read(("main", name), snapshot_id)
        rich.check_same(expected, duckdb_iceberg.read(("main", name), snapshot_id))
        at_time = f"FROM ice.main.{name} AT (TIMESTAMP => TIMESTAMP '{time}')"
        rich.check_same(expected, duckdb_iceberg.conn.execute(at_time).to_arrow_table())


def test_the_snapshots_are_those_of_other_clients(duckdb_iceberg: DuckDBIcebergReader, pyiceberg: PyIcebergReader) -> None:
    """Ids, numbers and lists as PyIceberg reads them."""
    query = "SELECT snapshot_id, sequence_number, manifest_list FROM iceberg_snapshots(ice.main.trips) ORDER BY 1"
    found = duckdb_iceberg.conn.execute(query).fetchall()
    snapshots = pyiceberg.catalog.load_table(("main", "trips")).snapshots()
    assert found == [(snapshot.snapshot_id, snapshot.sequence_number, snapshot.manifest_list) for snapshot in snapshots]


@pytest.mark.parametrize("name", ["trips", "visits", "measures"])
def test_the_metadata_lists_the_files(rich: RichLake, duckdb_iceberg: DuckDBIcebergReader, name: str) -> None:
    """Live data files hold DuckDB's rows and those that delete files take away."""
    found = duckdb_iceberg.conn.execute(
        f"SELECT manifest_content, file_path, record_count FROM iceberg_metadata(ice.main.{name}) WHERE status <> 'DELETED'"
    ).fetchall()
    rows = {path: count for kind, path, count in found if kind == "DATA"}
    deleted = sum(count for kind, _, count in found if kind == "DELETE")
    assert rich.list_files(name).keys() <= rows.keys()
    assert sum(rows.values()) - deleted == len(rich.truth.read(("main", name)))
