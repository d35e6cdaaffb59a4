"""Trino with its own Iceberg connector against DuckDB's own view of the lake."""

import pytest

from duckicelake.commands.facts import Facts
from duckicelake.commands.snippets import format_trino
from tests.interop.rich_lake import TABLES, RichLake
from tests.interop.trino.reader import TrinoReader, fold_names
from tests.rest.serving import WAREHOUSE
from tests.support.readers import Ident
from tests.support.tiers import long_but
from tests.support.trino.server import TrinoRefused

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

# A dot separates the levels of a namespace in this client, so `a.b` is to it what `a␟b` is to DuckDB.
READABLE = [ident for ident in TABLES if "." not in ident[0]]
HISTORIES = ["trips", "visits", "measures"]


def test_namespaces_and_tables_are_listed(trino_reader: TrinoReader) -> None:
    """Under their names, in lower case, nested namespaces by their levels."""
    schemas = {row["Schema"] for row in trino_reader.find_rows("SHOW SCHEMAS FROM {}")}
    assert schemas == {"a", "a.b", "information_schema", "main", "system", "ü"}
    tables = {row["Table"] for row in trino_reader.find_rows("SHOW TABLES FROM {}.main")}
    assert tables == {"empty", "measures", "trips", "visits"}
    assert trino_reader.find_rows("SHOW TABLES FROM {}.a") == []


@pytest.mark.parametrize("ident", READABLE, ids=".".join)
def test_a_scan_gives_the_rows_duckdb_sees(rich: RichLake, trino_reader: TrinoReader, ident: Ident) -> None:
    """Files, inlined rows, position deletes of v2, deletion vectors and defaults of v3, odd names, type for type."""
    rich.check_same(fold_names(rich.truth.read(ident)), trino_reader.read(ident))


def test_a_dot_in_a_schema_is_a_level(rich: RichLake, trino_reader: TrinoReader) -> None:
    """`"a.b".t` of this client is the table of the nested namespace; the namespace of one level is out of its reach."""
    rich.check_same(rich.truth.read(("a\u241fb", "t")), trino_reader.read(("a.b", "t")))
    with pytest.raises(TrinoRefused, match="TABLE_NOT_FOUND"):
        trino_reader.read(("a.b", "T x"))


def test_what_is_not_there_is_missing(trino_reader: TrinoReader) -> None:
    """Trino asks for a view first and for a table then, and takes no for an answer."""
    with pytest.raises(TrinoRefused, match="TABLE_NOT_FOUND"):
        trino_reader.read(("main", "nothing"))
    with pytest.raises(TrinoRefused, match="SCHEMA_NOT_FOUND"):
        trino_reader.read(("nowhere", "trips"))


@pytest.mark.parametrize("name", long_but(HISTORIES, "visits"))
def test_every_snapshot_is_readable(rich: RichLake, trino_reader: TrinoReader, name: str) -> None:
    """By id and by time, a snapshot shows what DuckDB shows at the lake snapshot of the same id."""
    snapshots = trino_reader.find_rows(f'SELECT snapshot_id, committed_at FROM {{}}.main."{name}$snapshots" ORDER BY 1')
    assert len(snapshots) > 3
    for snapshot in snapshots:
        expected = rich.truth.read(("main", name), snapshot["snapshot_id"])
        rich.check_same(expected, trino_reader.read(("main", name), snapshot["snapshot_id"]))
        # The times of snapshots have three digits.
        at_time = f"TIMESTAMP '{snapshot['committed_at']:%Y-%m-%d %H:%M:%S.%f} UTC'"
        found = trino_reader.trino.arrow(f"SELECT * FROM {trino_reader.catalog}.main.{name} FOR TIMESTAMP AS OF {at_time}")
        rich.check_same(expected, found)


@pytest.mark.long
def test_a_forgotten_column_is_there_in_its_time(rich: RichLake, trino_reader: TrinoReader) -> None:
    """Renamed, dropped and added columns: a snapshot has the names of its time."""
    first = min(row["snapshot_id"] for row in trino_reader.find_rows('SELECT snapshot_id FROM {}.main."trips$snapshots"'))
    then, now = (trino_reader.read(("main", "trips"), snapshot_id).column_names for snapshot_id in (first, None))
    assert (then[2], then[-1]) == ("price", "draft")
    assert (now[2], now[-1]) == ("fare", "note")


@pytest.mark.parametrize(
    "query",
    long_but(
        [
            pytest.param("SELECT * FROM {}.main.trips WHERE id < 90", id="bounds"),
            pytest.param("SELECT * FROM {}.main.trips WHERE id IN (5, 100, 1004, 2000, 2001, 3099)", id="list of values"),
            pytest.param("SELECT fare, note FROM {}.main.trips WHERE city = 'Łódź'", id="text"),
            pytest.param("SELECT id FROM {}.main.trips WHERE note IS NULL AND fare > 1000", id="column that older files lack"),
            pytest.param("SELECT id, seen FROM {}.main.trips WHERE seen < TIMESTAMP '1970-01-01 00:00:00 UTC'", id="instant"),
            pytest.param("SELECT spot.x FROM {}.main.trips WHERE spot.y < -1200", id="inside a struct"),
            pytest.param("SELECT id, tags[1] AS tag FROM {}.main.trips WHERE cardinality(tags) = 2", id="inside a list"),
            pytest.param("SELECT * FROM {}.main.visits WHERE country = 'de'", id="identity partition"),
            pytest.param("SELECT * FROM {}.main.visits WHERE day >= DATE '2026-03-01' AND day < DATE '2026-04-01'", id="month partition"),
            pytest.param("SELECT * FROM {}.main.visits WHERE country IS NULL OR country = 'se'", id="outside of partitions"),
            pytest.param("SELECT * FROM {}.main.measures WHERE rank = 7", id="default"),
            pytest.param("SELECT * FROM {}.main.measures WHERE rank IS NULL OR rank > 7", id="beside a default"),
            pytest.param("SELECT country, count(*) AS n FROM {}.main.visits GROUP BY country", id="aggregate"),
            pytest.param("SELECT count(*) AS n FROM {0}.main.trips t JOIN {0}.main.visits v ON t.day = v.day", id="join"),
        ],
        "bounds",
        "column that older files lack",
        "inside a struct",
        "month partition",
        "default",
    ),
)
def test_a_query_has_duckdbs_answer(rich: RichLake, trino_reader: TrinoReader, query: str) -> None:
    """Pruning by bounds and partitions loses no rows."""
    in_duckdb = query.format("lake").replace("TIMESTAMP '", "TIMESTAMPTZ '").replace("cardinality(", "len(")
    expected = rich.ask(in_duckdb)
    assert len(expected) > 0
    rich.check_same(expected, trino_reader.trino.arrow(query.format(trino_reader.catalog)))


def test_partitions_prune(trino_reader: TrinoReader) -> None:
    """A query for one country and month reads the files of that partition and those that are in none."""
    where = "country = 'pl' AND day = DATE '2026-02-15'"
    found = trino_reader.find_rows(f'SELECT DISTINCT "$path" AS path, "$partition" AS part FROM {{}}.main.visits WHERE {where}')
    assert len(found) == 1
    assert "country=pl" in found[0]["part"]


def test_rows_keep_their_lineage(rich: RichLake, trino_reader: TrinoReader) -> None:
    """In v3 `$row_id` is DuckDB's rowid, and the sequence number is the lake snapshot that wrote the row."""
    found = trino_reader.trino.arrow(
        f'SELECT id, "$row_id" AS row_id, "$last_updated_sequence_number" AS since FROM {trino_reader.catalog}.main.measures'
    )
    rich.check_same(rich.ask("SELECT id, rowid AS row_id, snapshot_id AS since FROM lake.measures"), found)


def test_the_printed_catalog_file_works(rich: RichLake, trino_reader: TrinoReader) -> None:
    """What `duckicelake connect --client trino` prints is what Trino takes, nested namespaces included."""
    served, store = rich.served, rich.served.lake.store
    facts = Facts(
        catalog_uri=served.server.uri,
        warehouse=WAREHOUSE,
        prefix=WAREHOUSE,
        credential=None,
        iceberg_path=served.lake.iceberg_path,
        ducklake_attach="",
        ducklake_dsn="",
        ducklake_data_path=served.lake.data_path,
        ducklake_metadata_schema="",
        s3_endpoint=store.endpoint,
        s3_region=store.region,
        s3_access_key_id=store.access_key_id,
        s3_secret_access_key=store.secret_access_key,
    )
    properties = dict(line.split("=", 1) for line in format_trino(facts).splitlines())
    assert properties.pop("connector.name") == "iceberg"
    printed = TrinoReader(trino_reader.trino, trino_reader.trino.add(properties))
    rich.check_same(rich.truth.read(("main", "visits")), printed.read(("main", "visits")))
    rich.check_same(rich.truth.read(("a\u241fb", "t")), printed.read(("a.b", "t")))
