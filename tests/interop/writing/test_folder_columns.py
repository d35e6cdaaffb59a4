"""Files without field ids whose partition columns stand in names of folders alone, as Hive leaves them: every reader shows their values."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, RESTError
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from tests.rest.writing.refs.maintenance import EVERYTHING
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.tiers import long_after, long_but

NAMES = '[{"field-id":1,"names":["id"]},{"field-id":2,"names":["name"]},{"field-id":3,"names":["part"]}]'
DAY = datetime.date(2026, 3, 1)
DAYS = (DAY - datetime.date(1970, 1, 1)).days
MOMENT = datetime.datetime(2026, 3, 1, 12, 30, 0, 250_000)  # noqa: DTZ001  as columns without a zone have it
MICROS = ((DAYS * 24 + 12) * 60 + 30) * 60_000_000 + 250_000
NULL = "__HIVE_DEFAULT_PARTITION__"

Said = list[tuple[str, Any, Any]]
"""Names of folders after `part=`, the value in the partition, and the value that readers show."""

TAKEN: dict[str, tuple[PrimitiveType, Said]] = {
    "int": (IntegerType(), [("7", 7, 7), ("-3", -3, -3), ("007", 7, 7), (NULL, None, None)]),
    "long": (LongType(), [("9223372036854775807", 2**63 - 1, 2**63 - 1), ("%31", 1, 1), (NULL, None, None)]),
    "string": (
        StringType(),
        [
            *((text, text, text) for text in ("plain", "two words", "a+b", "007", "é", "it's", 'say "x"')),
            ("50%25", "50%", "50%"),
            ("50%", "50%", "50%"),
            ("a%2Fb", "a/b", "a/b"),
            ("12%3A30", "12:30", "12:30"),
            ("a%3Db%3Fc", "a=b?c", "a=b?c"),
            ("%C3%A9", "é", "é"),
            ("%4EULL", "NULL", "NULL"),
            ("", "", ""),
            (NULL, None, None),
        ],
    ),
    "date": (DateType(), [("2026-03-01", DAYS, DAY), (NULL, None, None)]),
    "boolean": (BooleanType(), [("true", True, True), ("false", False, False), (NULL, None, None)]),
    "decimal": (DecimalType(6, 2), [("1.50", Decimal("1.50"), Decimal("1.50")), ("-3", Decimal("-3.00"), Decimal("-3.00"))]),
    "timestamp": (TimestampType(), [("2026-03-01 12%3A30%3A00.25", MICROS, MOMENT), (NULL, None, None)]),
}

REFUSED: list[tuple[PrimitiveType, str, Any]] = [
    (IntegerType(), "part=8", 7),
    (IntegerType(), "part=7.0", 7),
    (IntegerType(), f"part={NULL}", 7),
    (IntegerType(), "part=7", None),
    (IntegerType(), "nowhere", 7),
    (IntegerType(), "Part=7", 7),
    (IntegerType(), "part=7/part=8", 7),
    (IntegerType(), "part=7=7", 7),
    (StringType(), "part=null", "null"),
    (StringType(), "part=%FF", "�"),
    (StringType(), "part=A", "a"),
    (DateType(), "part=2026-3-1", DAYS),
    (DecimalType(6, 2), "part=1.505", Decimal("1.51")),
    (FloatType(), "part=0.5", 0.5),
    (DoubleType(), "part=0.5", 0.5),
    (TimestamptzType(), "part=2026-03-01 12%3A30%3A00", MICROS),
]


def write_file(table: Table, folder: str, value: Any, rows: pa.Table) -> DataFile:
    """Write a file into a folder of the table's, and say what its manifest says of it."""
    path = f"{table.location()}/data/{folder}/file.parquet"
    with table.io.new_output(path).create() as sink:
        pq.write_table(rows, sink)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(value),
        record_count=rows.num_rows,
        file_size_in_bytes=len(table.io.new_input(path)),
        **dict.fromkeys(("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"), {}),
        split_offsets=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file


def append_files(table: Table, files: list[DataFile]) -> None:
    """Add files in one commit, with the partitions that they were given."""
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)


class Story:
    """The table ns.t of columns `id` and `name`, split by `part`, and what all sides show of it."""

    def __init__(self, served: Served, type_: PrimitiveType) -> None:
        self.served = served
        self.catalog: RestCatalog = served.pyiceberg().catalog
        self.catalog.create_namespace("ns")
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "part", type_))
        spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "part"))
        self.table: Table = self.catalog.create_table("ns.t", schema, partition_spec=spec)
        with self.table.transaction() as change:
            change.set_properties({"schema.name-mapping.default": NAMES})
        self.duck: DuckDBPyConnection = served.lake.duckdb()
        self.count = 0

    def add(self, *folders: tuple[str, Any]) -> list[int]:
        """Write a file of two rows into each of these folders and add all with these partitions; the first ids of each."""
        files, ids = list[DataFile](), list[int]()
        for folder, value in folders:
            ids.append(self.count)
            rows = pa.table({"name": [f"n{self.count}", None], "id": [self.count, self.count + 1]})
            files.append(write_file(self.table, f"{self.count}/{folder}", value, rows))
            self.count += 2
        append_files(self.table.refresh(), files)
        return ids

    def read(self, columns: str = "id, part", where: str = "true") -> list[tuple[Any, ...]]:
        """What DuckDB shows."""
        return self.duck.execute(f"SELECT {columns} FROM lake.ns.t WHERE {where} ORDER BY id").fetchall()

    def scan(self, where: Any = "true") -> list[tuple[Any, ...]]:
        """What PyIceberg shows."""
        filter_ = {} if where == "true" else {"row_filter": where}
        rows = self.table.refresh().scan(**filter_).to_arrow().to_pylist()
        return sorted(((row["id"], row["part"]) for row in rows), key=lambda row: row[0])


@pytest.mark.whole
@pytest.mark.parametrize("name", long_but(TAKEN, "string"))
def test_values_of_folders_are_those_of_partitions(served: Served, name: str) -> None:
    """To DuckDB, PyIceberg and DuckDB's Iceberg; whole, filtered, and after everything that DuckDB does to a table of its own."""
    type_, said = TAKEN[name]
    story = Story(served, type_)
    firsts = story.add(*((f"part={text}", value) for text, value, _ in said))
    wanted = [(first + at, shown) for first, (_, _, shown) in zip(firsts, said, strict=True) for at in (0, 1)]
    assert story.read() == wanted
    assert story.scan() == wanted
    for _, _, value in said:
        mine = [row for row in wanted if row[1] == value]
        told = f"part = {value!r}" if not isinstance(value, str) else "part = '" + value.replace("'", "''") + "'"
        if isinstance(value, datetime.date | Decimal):
            told = f"part = '{value}'"
        assert story.read(where="part IS NULL" if value is None else told) == mine
        assert story.scan(IsNull("part") if value is None else EqualTo("part", value)) == mine
    check_going_on(served, ("ns", "t"))


@pytest.mark.parametrize(("type_", "folder", "value"), long_after(1, REFUSED), ids=lambda value: str(value))
def test_folders_that_would_be_read_in_two_ways_are_refused(served: Served, type_: PrimitiveType, folder: str, value: Any) -> None:
    """With the file and the column; nothing is changed."""
    story = Story(served, type_)
    before = story.table.refresh().metadata_location
    with pytest.raises(BadRequestError, match="file.parquet.*'part'"):
        story.add((folder, value))
    assert story.table.refresh().metadata_location == before


@pytest.mark.whole
def test_files_outlive_changes_of_their_columns(served: Served) -> None:
    """A wider type, other names, another column, rows that change and go, and all of DuckLake's past."""
    story = Story(served, IntegerType())
    story.add(("part=1", 1), (f"part={NULL}", None))
    with story.table.refresh().update_schema() as update:
        update.update_column("part", LongType())
    story.duck.execute("ALTER TABLE lake.ns.t RENAME COLUMN part TO piece")
    story.duck.execute("ALTER TABLE lake.ns.t ADD COLUMN more INTEGER")
    story.duck.execute("UPDATE lake.ns.t SET piece = 3000000000, more = 6 WHERE id = 1")
    story.duck.execute("DELETE FROM lake.ns.t WHERE piece IS NULL AND id = 2")
    wanted = [(0, 1, None), (1, 3_000_000_000, 6), (3, None, None)]
    assert story.read("id, piece, more") == wanted
    assert read_all(story) == wanted
    for statement in EVERYTHING:
        story.duck.execute(statement)
        assert story.read("id, piece, more") == wanted
        assert read_all(story) == wanted


def read_all(story: Story) -> list[tuple[Any, ...]]:
    """PyIceberg's rows of three columns."""
    rows = story.table.refresh().scan().to_arrow().to_pylist()
    return sorted(((row["id"], row["piece"], row["more"]) for row in rows), key=lambda row: row[0])


def test_files_with_the_column_and_without_share_a_table(served: Served) -> None:
    """One mapping for each kind, for all commits; DuckDB passes over files by what their folders say."""
    story = Story(served, IntegerType())
    story.add(("part=1", 1), ("part=2", 2))
    story.table.refresh().append(pa.table({"id": [10], "name": ["x"], "part": pa.array([1], pa.int32())}))
    story.add(("part=1", 1))
    assert story.read(where="part = 1") == [(0, 1), (1, 1), (4, 1), (5, 1), (10, 1)]
    assert story.scan(EqualTo("part", 1)) == [(0, 1), (1, 1), (4, 1), (5, 1), (10, 1)]
    conn = served.lake.psycopg()
    assert conn.execute("SELECT count(*) FROM ducklake_column_mapping").fetchone() == (1,)
    told = "SELECT value_count, null_count, min_value, max_value FROM ducklake_file_column_stats WHERE column_id = 3 AND min_value = '2'"
    assert conn.execute(told).fetchall() == [(2, 0, "2", "2")]


def test_a_table_loses_a_column_that_is_in_folders_alone(served: Served) -> None:
    """Older snapshots would show NULL in it, so Iceberg's readers are refused, and told what to do; DuckDB goes on."""
    story = Story(served, IntegerType())
    story.add(("part=1", 1))
    story.duck.execute("ALTER TABLE lake.ns.t DROP COLUMN part")
    assert story.read("id, name") == [(0, "n0"), (1, None)]
    with pytest.raises(RESTError, match="only in its path.*CREATE TABLE … AS SELECT"):
        story.table.refresh()
