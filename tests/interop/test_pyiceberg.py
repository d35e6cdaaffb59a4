"""PyIceberg over REST against DuckDB's own view of the lake."""

import pytest
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import GreaterThanOrEqual

from tests.interop.rich_lake import TABLES, RichLake
from tests.support.readers import Ident, PyIcebergReader
from tests.support.tiers import whole_after

TRIPS, VISITS, MEASURES, EMPTY = (("main", name) for name in ("trips", "visits", "measures", "empty"))


def test_namespaces_and_tables_are_listed(pyiceberg: PyIcebergReader) -> None:
    """Dots stay in names, levels nest, and a parent that only its children imply is there and empty."""
    catalog = pyiceberg.catalog
    assert catalog.list_namespaces() == [("a",), ("a.b",), ("main",), ("ü",)]
    assert catalog.list_namespaces(("a",)) == [("a", "b")]
    assert catalog.list_tables(("a",)) == []
    assert catalog.list_tables("main") == [EMPTY, MEASURES, TRIPS, VISITS]
    assert catalog.list_tables(("a.b",)) == [("a.b", "T x")]
    assert catalog.list_tables(("a", "b")) == [("a", "b", "t")]


def test_existence_is_told(pyiceberg: PyIcebergReader) -> None:
    """What is not there is said to be missing, in the words PyIceberg knows."""
    catalog = pyiceberg.catalog
    assert [catalog.namespace_exists(name) for name in ("main", "nowhere", "ü", ("a",))] == [True, False, True, True]
    assert [catalog.table_exists(name) for name in (TRIPS, ("main", "nothing"), ("nowhere", "trips"))] == [True, False, False]
    with pytest.raises(NoSuchTableError):
        catalog.load_table(("main", "nothing"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("nowhere")


@pytest.mark.parametrize("ident", TABLES, ids=".".join)
def test_a_scan_gives_the_rows_duckdb_sees(rich: RichLake, pyiceberg: PyIcebergReader, ident: Ident) -> None:
    """Files, inlined rows, deletes, defaults, odd names."""
    rich.check_same(rich.truth.read(ident), pyiceberg.read(ident))


def test_a_table_in_a_nested_namespace_is_read(rich: RichLake, pyiceberg: PyIcebergReader) -> None:
    """Levels `a`, `b` are DuckDB's schema `a␟b`."""
    rich.check_same(rich.truth.read(("a\u241fb", "t")), pyiceberg.catalog.load_table(("a", "b", "t")).scan().to_arrow())


@pytest.mark.parametrize("ident", whole_after(1, map(pytest.param, (TRIPS, VISITS, MEASURES))), ids=".".join)
def test_every_snapshot_is_readable(rich: RichLake, pyiceberg: PyIcebergReader, ident: Ident) -> None:
    """A snapshot shows what DuckDB shows at the lake snapshot of the same id."""
    snapshots = pyiceberg.catalog.load_table(ident).snapshots()
    assert len(snapshots) > 3
    for snapshot in snapshots:
        rich.check_same(rich.truth.read(ident, snapshot.snapshot_id), pyiceberg.read(ident, snapshot.snapshot_id))


@pytest.mark.parametrize(
    ("condition", "most_files"),
    [
        pytest.param("id < 90", 2, id="bounds of the first file and of inlined rows"),
        pytest.param("id = 3050", 1, id="bounds of the last file"),
        pytest.param("id = -1", 0, id="out of all bounds"),
        pytest.param("fare > 2000.50", 3, id="decimal"),
        pytest.param("city = 'Łódź'", 4, id="text"),
        pytest.param("city IS NULL", 1, id="null"),
        pytest.param("note IS NULL", 5, id="column that older files lack"),
        pytest.param("note = 'new'", 5, id="value of a column that older files lack"),
        pytest.param("day >= '2200-01-01'", 1, id="date"),
        pytest.param("seen < '1970-01-01T00:00:00+00:00'", 1, id="instant"),
        pytest.param("id IN (7, 1004, 2001)", 3, id="list of values"),
    ],
)
def test_bounds_prune_without_losing_rows(rich: RichLake, pyiceberg: PyIcebergReader, condition: str, most_files: int) -> None:
    """A filter gives DuckDB's rows from no more files than can hold them."""
    scan = pyiceberg.catalog.load_table(TRIPS).scan(row_filter=condition)
    assert len({task.file.file_path for task in scan.plan_files()}) <= most_files
    rich.check_answer(f"FROM lake.trips WHERE {condition}", scan.to_arrow())


@pytest.mark.parametrize(
    ("condition", "most_files"),
    [
        pytest.param("country = 'de'", 5, id="identity"),
        pytest.param("day >= '2026-03-01' AND day < '2026-04-01'", 4, id="month"),
        pytest.param("country = 'pl' AND day = '2026-02-15'", 2, id="both"),
        pytest.param("country IS NULL", 1, id="null"),
        pytest.param("country = 'se'", 2, id="rows from before it was partitioned"),
        pytest.param("day > '2027-01-01'", 0, id="out of all"),
        pytest.param("country <> 'de'", 10, id="not equal"),
    ],
)
def test_partitions_prune_without_losing_rows(rich: RichLake, pyiceberg: PyIcebergReader, condition: str, most_files: int) -> None:
    """A filter on the partitioned columns reads the partitions it must, and files that are in none."""
    scan = pyiceberg.catalog.load_table(VISITS).scan(row_filter=condition)
    assert len({task.file.file_path for task in scan.plan_files()}) <= most_files
    rich.check_answer(f"FROM lake.visits WHERE {condition}", scan.to_arrow())


def test_columns_can_be_chosen(rich: RichLake, pyiceberg: PyIcebergReader) -> None:
    """In the table's own order, also with a filter on a column that is not asked for, and inside a struct."""
    table = pyiceberg.catalog.load_table(TRIPS)
    rich.check_answer("SELECT id, fare FROM lake.trips", table.scan(selected_fields=("id", "fare")).to_arrow())
    found = table.scan(GreaterThanOrEqual("id", 1400), selected_fields=("city", "note")).to_arrow()
    rich.check_answer("SELECT city, note FROM lake.trips WHERE id >= 1400", found)
    found = table.scan(selected_fields=("spot.x",)).to_arrow()
    rich.check_answer("SELECT CASE WHEN spot IS NULL THEN NULL ELSE {'x': spot.x} END AS spot FROM lake.trips", found)


def test_an_increment_is_what_was_inserted(rich: RichLake, pyiceberg: PyIcebergReader) -> None:
    """The rows that inserts added between two snapshots; deletes and updates in between do not count."""
    table = pyiceberg.catalog.load_table(TRIPS)
    first, second, *_ = (snapshot.snapshot_id for snapshot in table.snapshots())
    found = table.incremental_append_scan(from_snapshot_id_exclusive=first).to_arrow()
    columns = ", ".join(found.column_names)
    rich.check_same(rich.list_inserts("trips", second, columns), found)
    assert len(found) == 604
