"""The checks themselves: each kind of lie in a table's metadata is found out."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from duckicelake.pipeline.common.reports import RUN_ID
from tests.differential.checks.contents import check_contents
from tests.differential.checks.deletes import Targets, list_targets
from tests.differential.checks.manifests import check_metadata, list_snapshots
from tests.differential.checks.nulls import check_nulls
from tests.differential.checks.partitions import check_partitions
from tests.differential.checks.shape import check_required
from tests.differential.checks.snapshots import check_increments, check_snapshot_ids, list_appends
from tests.differential.generator.definitions import CreateTable, SetComment
from tests.differential.generator.kinds import Column, Scalar
from tests.differential.generator.maintenance import ExpireSnapshots, FlushInlined
from tests.differential.generator.model import Lake
from tests.differential.generator.operations import Delete, Insert
from tests.differential.generator.predicates import Everything
from tests.differential.generator.steps import History, Step
from tests.differential.prove import play
from tests.differential.replay import Past, read_snapshots
from tests.differential.sessions import Sessions
from tests.support.readers import DuckLakeReader, Served
from tests.support.tiers import long_after, whole_after

# Where PyIceberg keeps these in a data file's record.
PARTITION, RECORD_COUNT, FILE_SIZE_IN_BYTES, NULL_VALUE_COUNTS, LOWER_BOUNDS = 3, 4, 5, 8, 10


NOTHING = Targets({}, {})


@pytest.fixture
def published(served: Served) -> IcebergTable:
    """A partitioned table with files, inlined rows and deletes, as PyIceberg loads it; its metadata can be tampered with."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT, place VARCHAR)")
    conn.execute("ALTER TABLE t SET PARTITIONED BY (place)")
    conn.execute("INSERT INTO t SELECT i, 'p' || i % 2 FROM range(40) r(i)")
    conn.execute("INSERT INTO t VALUES (100, 'p0'), (101, NULL)")
    conn.execute("DELETE FROM t WHERE id % 4 = 0")
    return served.pyiceberg().catalog.load_table(("main", "t"))


def wrong_total(table: IcebergTable) -> None:
    """A summary that counts one row too many."""
    summary = table.snapshots()[-1].summary
    assert summary is not None
    summary._additional_properties["total-records"] = "43"


def wrong_parent(table: IcebergTable) -> None:
    """A snapshot that skips its forerunner."""
    vars(table.snapshots()[2])["parent_snapshot_id"] = table.snapshots()[0].snapshot_id


def wrong_ref(table: IcebergTable) -> None:
    """main that is not the current snapshot."""
    vars(table.metadata.refs["main"])["snapshot_id"] = table.snapshots()[0].snapshot_id


def wrong_order(table: IcebergTable) -> None:
    """Two snapshots that have changed places: files are deleted before they are there."""
    second, third = (vars(snapshot) for snapshot in table.snapshots()[1:3])
    second["manifest_list"], third["manifest_list"] = third["manifest_list"], second["manifest_list"]


def wrong_property(table: IcebergTable) -> None:
    """A table property that names another lake snapshot."""
    table.metadata.properties["ducklake.snapshot-id"] = "1"


@pytest.mark.parametrize("lie", long_after(1, [wrong_total, wrong_parent, wrong_ref, wrong_order, wrong_property]))
def test_a_lie_in_the_metadata_is_found(published: IcebergTable, lie: Callable[[IcebergTable], None]) -> None:
    """Untouched metadata passes; with one lie in it, it does not."""
    assert check_metadata(published)
    lie(published)
    with pytest.raises(AssertionError):
        check_metadata(published)


def wrong_count(entry: ManifestEntry) -> None:
    """A file said to have one row more than it has."""
    entry.data_file[RECORD_COUNT] = entry.data_file.record_count + 1


def wrong_size(entry: ManifestEntry) -> None:
    """A file said to be smaller than it is."""
    entry.data_file[FILE_SIZE_IN_BYTES] = entry.data_file.file_size_in_bytes - 1


def narrow_bound(entry: ManifestEntry) -> None:
    """A lower bound above the smallest value."""
    entry.data_file[LOWER_BOUNDS] = {1: to_bytes(LongType(), 7)}


def wrong_nulls(entry: ManifestEntry) -> None:
    """A column said to have a NULL that it has not."""
    entry.data_file[NULL_VALUE_COUNTS] = {1: 1}


@pytest.mark.parametrize("lie", long_after(1, [wrong_count, wrong_size, narrow_bound, wrong_nulls]))
def test_a_lie_about_a_file_is_found(published: IcebergTable, lie: Callable[[ManifestEntry], None]) -> None:
    """What a manifest says of a file is held against the file."""
    entry = find_file(published, "p0")
    check_contents(published, entry, NOTHING)
    lie(entry)
    with pytest.raises(AssertionError):
        check_contents(published, entry, NOTHING)


def test_a_wrong_partition_is_found(published: IcebergTable) -> None:
    """A file may not be said to hold another partition's rows."""
    entry, other = find_file(published, "p0"), find_file(published, "p1")
    entry.data_file[PARTITION] = other.data_file.partition
    with pytest.raises(AssertionError):
        check_contents(published, entry, NOTHING)


@pytest.mark.parametrize(("index", "value"), whole_after(1, [(0, False), (2, b"p1"), (3, b"p0")]), ids=["null", "lower", "upper"])
def test_a_lie_about_a_manifests_partitions_is_found(published: IcebergTable, index: int, value: object) -> None:
    """The range that a manifest list gives of a manifest's partitions is held against the entries."""
    snapshot = published.snapshots()[0]
    (manifest,) = [found for found in snapshot.manifests(published.io) if found.partition_spec_id > 0]
    entries = manifest.fetch_manifest_entry(published.io, discard_deleted=False)
    entries[0].data_file[PARTITION] = Record(None) if index == 0 else entries[0].data_file.partition
    summary = (manifest.partitions or [])[0]
    summary[0] = True
    check_partitions(published, manifest, entries)
    summary[index] = value
    with pytest.raises(AssertionError):
        check_partitions(published, manifest, entries)


def test_a_snapshot_too_many_or_too_few_is_found(served: Served, sessions: Sessions) -> None:
    """The list of a table's snapshots is held against the model, and against what DuckLake says of each."""
    create = CreateTable("main", "t", (Column(1, "id", Scalar("int32")),))
    steps = (create, Insert(1, (((1, 1),),)), SetComment(1, None, "x"), Delete(1, Everything()))
    history = History("UTC", tuple(Step((operation,)) for operation in steps))
    pyiceberg = served.pyiceberg()
    with sessions.on_lake(served.lake) as duckdb:
        past = Past(play(served, history, duckdb, {}, pyiceberg), read_snapshots(duckdb.conn))
    published, table = pyiceberg.catalog.load_table(("main", "t")), past.head.tables[1]
    assert check_snapshot_ids(past, table, published, {2, 4}) == [2, 4]
    assert list(list_appends(past, table, published)) == [2]
    for recorded in ({2}, {2, 3, 4}):
        with pytest.raises(AssertionError):
            check_snapshot_ids(past, table, published, recorded)
    vars(published.metadata)["snapshots"] = published.snapshots()[:1]
    with pytest.raises(AssertionError):
        check_snapshot_ids(past, table, published, {2})


def test_rows_added_after_maintenance_of_another_table_are_expected(served: Served, sessions: Sessions) -> None:
    """Between an expired snapshot and the next one, lake snapshots that are left and are another table's hide nothing."""
    columns = (Column(1, "id", Scalar("int32")),)
    operations = (
        *(CreateTable("main", "t", columns), CreateTable("main", "other", columns)),
        *(Insert(1, (((1, 1),),)), Insert(2, (((1, 1),),)), ExpireSnapshots(), FlushInlined()),
        *(Insert(2, (((1, 2),),)), FlushInlined(), Insert(1, (((1, 2),), ((1, 3),)))),
    )
    pyiceberg = served.pyiceberg()
    with sessions.on_lake(served.lake) as duckdb:
        history = History("UTC", tuple(Step((operation,)) for operation in operations))
        past = Past(play(served, history, duckdb, {}, pyiceberg), read_snapshots(duckdb.conn))
    table = past.head.tables[1]
    check_increments(past, table, pyiceberg)
    appends = list_appends(past, table, pyiceberg.catalog.load_table(table.ident))
    assert [added.plain_rows() for added in appends.values()] == [{(2,): 1, (3,): 1}]


def test_files_of_removed_snapshots_keep_their_numbers(published: IcebergTable, served: Served) -> None:
    """The next snapshot that is left adds them, for readers of increments; no other number than one of those gone is taken for theirs."""
    head = published.snapshots()[0].snapshot_id
    published.manage_snapshots().create_tag(head, "v").commit()
    served.lake.duckdb().execute("INSERT INTO t SELECT i, 'p0' FROM range(40) r(i)")
    before = list_numbers(published.refresh())
    published.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    left = [snapshot.sequence_number for snapshot in list_snapshots(published.refresh())]
    assert list_numbers(published) == before
    assert set(before.values()) - set(left), "every file is of a snapshot that is left"
    assert check_metadata(published, has_expired=True, has_refs=True)
    with pytest.raises(AssertionError, match="not range"):
        check_metadata(published, has_expired=False, has_refs=True)


def list_numbers(table: IcebergTable) -> dict[str, int]:
    """The sequence number of each live data file."""
    entries = (entry for entry in table.inspect.entries().to_pylist() if entry["status"] != ManifestEntryStatus.DELETED)
    return {entry["data_file"]["file_path"]: entry["sequence_number"] for entry in entries if entry["data_file"]["content"] == 0}


def unknown_target(files: dict[str, DataFile]) -> None:
    """The data file that is meant is not there."""
    files.clear()


def shorter_target(files: dict[str, DataFile]) -> None:
    """The data file that is meant has no such row."""
    for data_file in files.values():
        data_file[RECORD_COUNT] = 1


@pytest.mark.parametrize("version", whole_after(1, [2, 3]))
@pytest.mark.parametrize("lie", whole_after(1, [unknown_target, shorter_target]))
def test_a_lie_about_deletes_is_found(served: Served, version: int, lie: Callable[[dict[str, DataFile]], None]) -> None:
    """Positions, in a file of their own or in a deletion vector, are held against the data file that they mean."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM range(40) r(i)")
    if version == 3:
        conn.execute("ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 7")
    conn.execute("DELETE FROM t WHERE id % 4 = 1")
    published = served.pyiceberg().catalog.load_table(("main", "t"))
    assert published.format_version == version
    entries = check_metadata(published).values()
    (deletes,) = (entry for entry in entries if entry.data_file.content != DataFileContent.DATA)
    files = {entry.data_file.file_path: entry.data_file for entry in entries if entry is not deletes}
    targets = list_targets(published, files)
    check_contents(published, deletes, targets)
    lie(files)
    with pytest.raises(AssertionError):
        check_contents(published, deletes, targets)


def find_file(table: IcebergTable, place: str) -> ManifestEntry:
    """The data file that DuckDB wrote for one place."""
    entries = check_metadata(table).values()
    found = [entry for entry in entries if entry.data_file.record_count == 20 and place in entry.data_file.file_path]
    assert len(found) == 1
    return found[0]


def test_a_null_that_is_not_found_or_stands_in_a_required_column_is_found(served: Served) -> None:
    """Readers' counts by IS NULL are held against the model, and so is `required`: a column with NULLs must be optional."""
    duckdb = DuckLakeReader(served.lake.duckdb())
    duckdb.conn.execute("CREATE TABLE t (id BIGINT NOT NULL, a INTEGER NOT NULL)")
    duckdb.conn.execute("INSERT INTO t VALUES (1, 1)")
    lake = CreateTable("main", "t", (Column(1, "id", Scalar("int64"), True), Column(2, "a", Scalar("int32"), True))).apply(Lake())
    right, wrong = (Insert(1, (((1, 1), (2, value)),)).apply(lake).tables[1] for value in (1, None))
    published = served.pyiceberg().catalog.load_table(right.ident)
    readers = (duckdb, served.pyiceberg(), served.duckdb_iceberg())
    assert check_required(right, published) == set()
    for reader in readers:
        check_nulls(right, reader)
        with pytest.raises(AssertionError, match="IS NULL"):
            check_nulls(wrong, reader)
    with pytest.raises(AssertionError, match="optional"):
        check_required(wrong, published)


def test_nulls_among_uuids_are_asked_of_readers_that_can_filter_by_them(served: Served) -> None:
    """PyIceberg reads the rows of a file that it wrote itself, and cannot filter by the column; DuckDB's counts must be right."""
    served.lake.duckdb().execute("CREATE TABLE t (id BIGINT, a UUID)")
    values = (UUID(int=1), None)
    published = served.pyiceberg().catalog.load_table(("main", "t"))
    published.append(pa.table({"id": [1, 2], "a": pa.array([value and value.bytes for value in values], pa.uuid())}))
    lake = CreateTable("main", "t", (Column(1, "id", Scalar("int64")), Column(2, "a", Scalar("uuid"), True))).apply(Lake())
    right, wrong = (Insert(1, tuple(((1, 1), (2, value)) for value in rows)).apply(lake).tables[1] for rows in (values, values[:1] * 2))
    check_nulls(right, served.pyiceberg())
    for reader in (DuckLakeReader(served.lake.duckdb()), served.duckdb_iceberg()):
        check_nulls(right, reader)
        with pytest.raises(AssertionError, match="IS NULL"):
            check_nulls(wrong, reader)


@pytest.mark.parametrize("said", whole_after(1, [{RUN_ID: "20200101T000000_dead"}, {}]), ids=["a run of ingest", "nobody known"])
def test_a_snapshot_without_changes_is_as_its_author_says(served: Served, said: dict[str, str]) -> None:
    """A run of `ingest` may append nothing; of others it is held to be wrong."""
    served.lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    published = served.pyiceberg().catalog.load_table(("main", "t"))
    published.append(published.schema().as_arrow().empty_table(), said)
    with nullcontext() if said else pytest.raises(AssertionError, match="append"):
        check_metadata(published)
