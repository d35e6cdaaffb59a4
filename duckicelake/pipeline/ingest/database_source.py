"""A table or a query of a database, read once by Spark in one snapshot of the database and kept on disk for the run.

`ingest.job` opens it in the driver. Spark's executors read over JDBC. For a parallel read of Postgres, a connection of the driver holds the
snapshot that all of them read.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NumericType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.pipeline.common.spark_connect import block_pushdown, checkpoint_rows, parse_ddl
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.common.storage import NoSource
from duckicelake.pipeline.ingest import database_checks
from duckicelake.pipeline.ingest.database_checks import Guard
from duckicelake.pipeline.ingest.options import Changed, Format, IngestMode, IngestOptions
from duckicelake.pipeline.ingest.source import FILE, RAW, ROW, WRONG, ColumnSet, Reading, Taken, list_paths

DRIVERS = {"postgresql": "org.postgresql.Driver", "sqlite": "org.sqlite.JDBC"}
"""Those that we fetch; others are given."""

ORDERED = (ByteType, ShortType, IntegerType, LongType, DecimalType, DateType, TimestampType, TimestampNTZType)
"""Types whose values have one order, in every database and in Spark; texts have many."""

CONNECT_SECONDS = 10
EXPORT = "SELECT pg_export_snapshot()"
_SHARE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{0}'"
_FETCH_ROWS = "10000"
_SQLITE, _POSTGRES = "jdbc:sqlite:", "jdbc:postgresql:"
_OF_PARTS = ("partitioncolumn", "lowerbound", "upperbound", "numpartitions")
_PLACE = re.compile("^[^=]*(database|schema|catalog|service|instance|search.?path|db)[^=]*=|search_path", re.IGNORECASE)
_PORT = "5432"
_OF_LIBPQ = ("sslmode", "sslrootcert")


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The column by whose values rows are new, its type, and the greatest value that was taken, as text; None: nothing yet."""

    column: str
    type: DataType
    value: str | None

    def select_new(self, rows: DataFrame) -> DataFrame:
        """Return rows above the greatest value, and rows that have no value."""
        if self.value is None:
            return rows
        column = F.col(quote(self.column))
        return rows.where((block_pushdown(column, self.type) > F.lit(self.value).cast(self.type)) | column.isNull())


@dataclass(frozen=True, slots=True)
class JdbcReading:
    """One look into a database; `name` is what the ledger calls it. `held` are the rows, once they were read; `guard` checks values."""

    spark: SparkSession
    name: str
    options: Mapping[str, Any]
    bookmark: Bookmark | None = None
    held: DataFrame | None = None
    files: Sequence[Taken] = ()
    form: Format = Format.jdbc
    path_columns: Sequence[str] = ()
    guard: Guard | None = None

    @property
    def is_parallel(self) -> bool:
        return any(name.lower() == "partitioncolumn" for name in self.options)

    def describe(self) -> str:
        """Return what is taken, in words."""
        if self.bookmark is None:
            return f"take {self.name} as it is"
        since = "" if self.bookmark.value is None else f" with more than {self.bookmark.value}"
        return f"take the rows of {self.name}{since} in {self.bookmark.column}"

    def load(self) -> DataFrame:
        """Return the rows that are to be taken, not yet read."""
        rows = self.spark.read.format("jdbc").options(**self.options).load()
        rows = rows if self.guard is None else self.guard.convert(rows)
        return rows if self.bookmark is None else self.bookmark.select_new(rows)

    def read_columns(self, *, looks_at_values: bool = True) -> StructType:
        """Return what the database says of its columns."""
        return self.load().drop(WRONG, RAW).schema

    def read(self, columns: StructType) -> DataFrame:
        """Return the rows that are held."""
        rows = self.load() if self.held is None else self.held
        return rows.select("*", F.lit(self.name).alias(FILE), F.lit(None).cast("bigint").alias(ROW))

    def list_column_sets(self, columns: StructType) -> Sequence[ColumnSet]:
        """Return what was asked for."""
        return [ColumnSet(frozenset(list_paths(columns)))]

    def count(self) -> Mapping[str, int] | None:
        """Return None: Spark counts the checkpointed rows."""
        return None

    @contextmanager
    def holding(self) -> Generator[Reading]:
        """The rows as they are now, read once and kept on disk; lost with an executor they end the run, for they cannot be read again.

        Raises: BadRequest: some have no value in the column that says which are new, or one that Spark reads as a lesser one
        """
        with self._sharing() as reading:
            held = checkpoint_rows(reading.load())
            taken = reading._build_taken(held)
            reading._check_watermark(taken.watermark)
            held = held if self.guard is None else self.guard.sift(held, self.name)
        yield replace(self, held=held, files=[taken])

    def _build_taken(self, held: DataFrame) -> Taken:
        if self.bookmark is None:
            return Taken(self.name)
        column = F.col(quote(self.bookmark.column))
        reasons = [] if self.guard is None else self.guard.list_reasons(self.bookmark.column)
        wrong = F.coalesce(F.col(WRONG).isin(reasons), F.lit(False)) if reasons else F.lit(False)
        without = F.count_if(column.isNull() | wrong).alias("without")
        (found,) = held.agg(F.max(column).cast("string").alias("greatest"), without).collect()
        if found["without"]:
            raise BadRequest(
                f"{found['without']} rows of {self.name} have no {self.bookmark.column}, or one that has no place in its order: "
                "a later run could not know whether they were taken; leave them out, or give them one, by --option query=…"
            )
        return Taken(self.name, watermark_column=self.bookmark.column, watermark=found["greatest"] or self.bookmark.value)

    def _check_watermark(self, greatest: str | None) -> None:
        """Raises: BadRequest: to the database rows are new that are not for Spark: they would be taken again by every run."""
        if self.bookmark is None or greatest is None:
            return
        column = F.col(quote(self.bookmark.column))
        again = replace(self, bookmark=replace(self.bookmark, value=greatest)).load()
        # The least, and no condition, which the database would answer by its own order.
        least, passed = F.min(column), F.lit(greatest).cast(self.bookmark.type)
        (found,) = again.agg(least.cast("string").alias("least"), (least <= passed).alias("is_passed")).collect()
        if found["is_passed"]:
            raise BadRequest(
                f"{self.name} has rows with more than {greatest} in {self.bookmark.column}, which Spark reads as {found['least']}: "
                "infinity, or too many digits. Every run would take them again; leave them out, or cut digits, by --option query=…"
            )

    @contextmanager
    def _sharing(self) -> Generator["JdbcReading"]:
        """The same with one state of the database for all of a parallel read, where it is Postgres."""
        if not self.is_parallel or not self.options["url"].startswith(_POSTGRES):
            yield self
            return
        try:
            with psycopg.connect(**read_address(self.options)) as conn:
                conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                (snapshot,) = conn.execute(EXPORT).fetchone() or ("",)
                first = _SHARE.format(snapshot)
                more = next((text for name, text in self.options.items() if name.lower() == "sessioninitstatement"), None)
                others = {name: text for name, text in self.options.items() if name.lower() not in ("sessioninitstatement", "fetchsize")}
                # Without a size to fetch by, the driver is in no transaction.
                init = {"sessionInitStatement": first if more is None else f"{first}; {more}", "fetchsize": _FETCH_ROWS}
                yield replace(self, options=others | init)
        except psycopg.Error as error:
            raise ServiceUnavailable(f"{self.name}: {str(error).strip()}") from error

    def check_still(self) -> None:
        """Do nothing: rows of a database are read once."""


def open_database(spark: SparkSession, options: IngestOptions, ledger: DataFrame | None) -> JdbcReading | None:
    """Return the rows of a database that the ledger does not know; None when there are none.

    Raises: BadRequest: the options do not say which, or the rows were taken before and could come twice
    """
    how = choose_options(options.source, options.reading)
    file = Path(re.split("[?]", options.source)[0].removeprefix(_SQLITE))
    if options.source.startswith(_SQLITE) and not str(file).startswith((":", "file:")) and not file.is_file():
        # Its driver would make it.
        raise NoSource(f"there is no {file}")
    reading = JdbcReading(spark, name_database(options.source, options.reading), how)
    if options.source.startswith(_SQLITE):
        reading = _guard_sqlite(reading, options.incremental_by)
    elif options.source.startswith(_POSTGRES):
        reading = _guard_postgres(reading, options.incremental_by)
    before = None if ledger is None or "watermark" not in ledger.columns else ledger.where(F.col("uri") == reading.name)
    if before is not None and not _is_open(reading.name, before, options):
        return None
    if options.incremental_by is not None:
        reading = replace(reading, bookmark=build_bookmark(reading.read_columns(), options.incremental_by, reading.name))
    if before is None:
        return reading
    reading, may_be_known = _recall(reading, before)
    return None if may_be_known and not reading.load().limit(1).collect() else reading


def _is_open(name: str, before: DataFrame, options: IngestOptions) -> bool:
    """Return True if rows may be taken. Raises: BadRequest: they were taken otherwise before, and appended they would come twice."""
    asked, taken = (options.incremental_by or "").lower(), before.where("rows > 0")
    others = taken.where(F.lower(F.coalesce("watermark_column", F.lit(""))) != asked) if asked else taken
    earlier = others.limit(1).collect() if options.mode is IngestMode.append and options.changed is not Changed.take else []
    if earlier and options.changed is Changed.skip:
        return False
    if earlier:
        how = f"by {earlier[0]['watermark_column']}" if earlier[0]["watermark_column"] else "whole"
        raise BadRequest(
            f"{name} was taken {how} before (run {earlier[0]['run_id']}): appended, its rows would come twice. "
            "--incremental-by COLUMN takes new rows alone, if the first run had it too; --mode upsert replaces rows; "
            "--changed take appends them again"
        )
    return True


def build_bookmark(columns: StructType, column: str, name: str) -> Bookmark:
    """Return the column that says which rows are new. Raises: BadRequest: it is not there, or its values have no order that all share."""
    own = next((field for field in columns.fields if field.name.lower() == column.lower()), None)
    if own is None:
        raise BadRequest(f"{name} has no column {column}")
    if not isinstance(own.dataType, ORDERED):
        raise BadRequest(f"column {column} is {own.dataType.simpleString()}: rows are new by whole numbers, decimals, dates or timestamps")
    if name.startswith(_SQLITE) and not isinstance(own.dataType, ByteType | ShortType | IntegerType | LongType):
        raise BadRequest(f"column {column} is {own.dataType.simpleString()}, which SQLite compares as text or number: use a whole number")
    return Bookmark(own.name, own.dataType, None)


def _recall(reading: JdbcReading, before: DataFrame) -> tuple[JdbcReading, bool]:
    """The same behind what the ledger has of it, and whether that may be all: a source without rows is taken once, for its columns."""
    bookmark = reading.bookmark
    if bookmark is None:
        # One that had rows is not asked for one alone first: a query may take long, and those that are read whole bring rows each time.
        (found,) = before.agg(F.max_by("rows", "ingested_at").alias("last")).collect()
        return reading, found["last"] == 0
    known = before.where(F.lower("watermark_column") == bookmark.column.lower())
    greatest = F.max(F.col("watermark").cast(bookmark.type)).cast("string")
    (found,) = known.agg(greatest.alias("greatest"), F.count("*").alias("runs")).collect()
    return replace(reading, bookmark=replace(bookmark, value=found["greatest"])), found["runs"] > 0


def choose_options(url: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's reader. Raises: BadRequest: no table and no query, or both; no driver is known"""
    kind = url.split(":")[1].lower() if url.count(":") > 1 else ""
    how = {name.lower(): text for name, text in given.items()}
    table = _get_table(how)
    if "driver" not in how and kind not in DRIVERS:
        raise BadRequest(f"no driver is known for jdbc:{kind}: give its jar, --conf spark.jars=…, and its class, --option driver=…")
    ours = {"driver": DRIVERS.get(kind, ""), "fetchsize": _FETCH_ROWS, "prefertimestampntz": "true"}
    others = {name: text for name, text in how.items() if name not in ("dbtable", "query", "url")}
    return ours | others | {"url": url, "dbtable": table}


def _get_table(how: Mapping[str, str]) -> str:
    """Return what stands behind FROM; a query in brackets, so that it can be read in parts too."""
    table, query = how.get("dbtable"), how.get("query")
    if (table is None) == (query is None):
        raise BadRequest("say what to take of the database: --option dbtable=TABLE, or --option query='SELECT …'")
    return f"({query}) duckicelake" if table is None else table


def name_database(url: str, given: Mapping[str, str]) -> str:
    """Return what the ledger calls the source: where it is and what is read, and neither who asks nor how."""
    how = {name.lower(): text for name, text in given.items()}
    place, *more = re.split("[?;&]", url)
    # The parameters may name the database or schema, among others that hold credentials and settings.
    kept = sorted(text for text in more if _PLACE.search(text))
    return f"{';'.join([place, *kept])}#{how.get('dbtable') or how.get('query') or ''}"


def _guard_sqlite(reading: JdbcReading, first: str | None) -> JdbcReading:
    """Return the same with checks of its values. Raises: BadRequest: it is read in a way in which they would be others"""
    how = reading.options
    if re.search(
        "date_precision=(?!milliseconds)", f"{how['url']}&date_precision={how.get('date_precision', 'milliseconds')}", re.IGNORECASE
    ):
        raise BadRequest(
            "whole numbers in dates and timestamps of SQLite are milliseconds: read seconds by --option query='SELECT 1000 * …'"
        )
    said = parse_ddl(how["customschema"]) if "customschema" in how else StructType()
    types = {field.name.lower(): field.dataType for field in said.fields} if isinstance(said, StructType) else {}
    whole = {name: text for name, text in how.items() if name not in _OF_PARTS}
    guarded = database_checks.guard_sqlite(how["dbtable"], replace(reading, options=whole).read_columns(), types, first)
    column = next((one for one in guarded.columns.fields if one.name.lower() == how.get("partitioncolumn", "").lower()), None)
    if column is not None and not isinstance(column.dataType, NumericType):
        raise BadRequest(f"partitionColumn {column.name} is {column.dataType.simpleString()}: SQLite has parts by numbers alone")
    return replace(reading, guard=guarded, options=dict(how) | {"dbtable": guarded.table, "customschema": guarded.schema})


def _guard_postgres(reading: JdbcReading, first: str | None) -> JdbcReading:
    how = reading.options
    bare = [name.lower() for name in (first, how.get("partitioncolumn")) if name is not None]
    guarded = database_checks.guard_postgres(how["dbtable"], reading.read_columns(), bare)
    return reading if guarded is None else replace(reading, guard=guarded, options=dict(how) | {"dbtable": guarded.table})


def read_address(options: Mapping[str, str]) -> dict[str, Any]:
    """Return where Postgres is, as libpq says it; `options` are those of Spark's reader."""
    parts = urlsplit(options["url"].removeprefix("jdbc:"))
    places = [_split_port(place) for place in parts.netloc.split(",")]
    how = {name: text for name, text in parse_qsl(parts.query) if name in (*_OF_LIBPQ, "user")}
    how |= {name: options[name] for name in ("user", "password") if name in options}
    where = {"host": ",".join(host for host, _ in places), "port": ",".join(port for _, port in places)}
    return where | {"dbname": unquote(parts.path.removeprefix("/"))} | how | {"connect_timeout": CONNECT_SECONDS}


def _split_port(place: str) -> tuple[str, str]:
    """Return a host and its port, as Postgres' driver for Java has it; an IPv6 address is in brackets."""
    if place.startswith("["):
        host, _, port = place.removeprefix("[").partition("]")
        return host, port.removeprefix(":") or _PORT
    host, _, port = place.partition(":")
    return host or "localhost", port or _PORT
