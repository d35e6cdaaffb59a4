"""The plan of a run: the columns that the source brings, and the tables and columns that the run creates.

`ingest.job` calls this in the driver. Spark creates namespaces, tables and columns, each in a commit of its own. When a run fails, tables
that it created and nobody uses are dropped over REST; namespaces, columns and sort orders stay.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from duckicelake.errors import BadRequest, CatalogError, CommitStateUnknown
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import Rest, TableIdent
from duckicelake.pipeline.common.spark_connect import get_condition
from duckicelake.pipeline.common.spark_sql import (
    PartitionTerm,
    format_columns,
    format_create,
    format_needed_properties,
    format_order,
    parse_created_columns,
    quote,
    quote_ident,
)
from duckicelake.pipeline.ingest.file_checks import NO_VALUE, list_path_values, list_taken, name_column, refusing_unread_types
from duckicelake.pipeline.ingest.file_source import FileReading, find_option
from duckicelake.pipeline.ingest.options import Evolve, Format, IngestOptions
from duckicelake.pipeline.ingest.row_checks import QUARANTINE_COLUMNS
from duckicelake.pipeline.ingest.schema_evolution import ColumnEvolution, adopt, apply_changes, fits
from duckicelake.pipeline.ingest.source import FILE, Reading

_SHOWN = 100


def choose_columns(reading: Reading, given: StructType | None, target: StructType | None, evolve: Evolve) -> StructType:
    """Return the columns that the files bring: given, else their own; text that the table knows is read as the table has it.

    Raises: BadRequest: the files or their paths have columns that the given ones do not hold, or one that Spark does not read, or none
    """
    if not isinstance(reading, FileReading):
        return _choose_columns(reading, given, target, evolve)
    with refusing_unread_types(reading.spark, reading.form, partial(list_taken, reading.files, reading.store)):
        return _choose_columns(reading, given, target, evolve)


def _choose_columns(reading: Reading, given: StructType | None, target: StructType | None, evolve: Evolve) -> StructType:
    _check_path_values(reading)
    _check_path_conflicts(reading)
    if reading.form.is_text:
        if given is not None:
            _check_paths(reading.path_columns, given)
        columns = _choose_text_columns(reading, target, evolve) if given is None else given
        if reading.form is Format.json:
            _check_capitals(columns if given is None else _read_own_columns(reading), columns)
        _check_header(reading, columns)
        if given is not None or target is not None:
            _check_times(reading, columns)
        return columns
    own = reading.read_columns()
    if isinstance(reading, FileReading):
        if {*own.names} <= {*reading.path_columns}:
            raise BadRequest(f"{reading.files[0].path} has no column, and so have all of the files: leave them out")
        own = reading.adopt_paths(own, given or target)
    if given is not None:
        _check_given(own, given)
        return given
    return own


def _check_header(reading: Reading, columns: StructType) -> None:
    """Raises: BadRequest: columns have no names or twice the same, and are not the same in all files"""
    if not isinstance(reading, FileReading) or not reading.has_odd_header:
        return
    (first, header), *others = reading.read_headers()
    other = next((file for file, names in others if names != header), None)
    if other is not None:
        raise BadRequest(
            f"the headers of {first.path} and {other.path} differ, and have columns without a name or twice the same: take them apart"
        )
    named = [name for name in reading.read_columns(looks_at_values=False).names if name not in reading.path_columns]
    asked = [name for name in columns.names if name not in reading.path_columns]
    if [name.lower() for name in named] != [name.lower() for name in asked]:
        shown = f"the header of {first.path} has columns without a name or twice the same, which are named ({', '.join(named)})"
        raise BadRequest(f"{shown}: the columns asked for are ({', '.join(asked)})")


def _read_own_columns(reading: Reading) -> StructType:
    """Return the columns of the files; none where Spark cannot say, as of an object with a name twice, which the reader refuses later."""
    try:
        return reading.read_columns(looks_at_values=False)
    except AnalysisException:
        return StructType([])


def _check_capitals(own: StructType, columns: StructType, above: tuple[str, ...] = ()) -> None:
    """Raises: BadRequest: files have a name that is a column's but for its capitals: Spark would read no value there"""
    spelled = {item.name.lower(): item for item in columns.fields}
    for item in own.fields:
        column = spelled.get(item.name.lower())
        if column is None:
            continue
        if column.name != item.name:
            one, other = sorted(".".join((*above, name)) for name in (item.name, column.name))
            raise BadRequest(
                f"the names {one} and {other} differ by their capitals alone, and in JSON values are found by the one or the other: "
                "write it alike in all files, and in --schema as they have it; nothing was taken"
            )
        inner = _strip_lists(item.dataType), _strip_lists(column.dataType)
        if isinstance(inner[0], StructType) and isinstance(inner[1], StructType):
            _check_capitals(inner[0], inner[1], (*above, item.name))


def _strip_lists(form: DataType) -> DataType:
    while isinstance(form, ArrayType):
        form = form.elementType
    return form


def _check_times(reading: Reading, columns: StructType) -> None:
    found = reading.find_times(columns) if isinstance(reading, FileReading) else None
    if found is not None:
        raise BadRequest(
            f"{unquote(found[FILE])} has a time without a day where the columns say timestamp: {found['row'][:_SHOWN]}. Spark would "
            "take it for one of today; make the column a text by --schema, or say how times are written by --option timestampFormat=…"
        )


def _check_path_values(reading: Reading) -> None:
    """Raises: BadRequest: a path says that there is a column and not what is in it, or has no name of it"""
    for file in reading.files:
        parts = [part.partition("=") for part in file.path.split("/")[:-1]]
        empty = next((name for name, equals, value in parts if name in reading.path_columns and equals and not (name and value)), None)
        if empty is not None:
            said = f"{file.path} lies in a folder {empty}=, of which Spark makes no value"
            raise BadRequest(f"{said}: give it one (NULL is {empty}={NO_VALUE}); nothing was taken")


def _check_path_conflicts(reading: Reading) -> None:
    """Raises: BadRequest: a column is in the paths and in the files too, and they do not say the same."""
    if not isinstance(reading, FileReading) or not reading.path_columns:
        return
    names = {name.lower(): name for name in reading.path_columns}
    asked = StructType([StructField(name, StringType()) for name in names.values()]) if reading.form is Format.json else None
    rows = reading.read_alone(asked)
    found = reading.list_own_names() if reading.form is Format.avro else rows.columns
    both = {name: names[name.lower()] for name in found if name.lower() in names}
    if not both:
        return
    remedy = "which would stand in place of the rows' own values: take the files one by one, or without one of the two"
    other = reading.find_other_case() if reading.form is Format.json else None
    if other is not None or reading.form in (Format.csv, Format.avro):
        name = other or next(iter(both))
        raise BadRequest(f"column {name} is in the files and in their paths ({names[name.lower()]}=…), {remedy}")
    told = [(file.uri, *(_get_path_value(file.path, name) for name in both.values())) for file in reading.files]
    said = reading.spark.createDataFrame(told, ", ".join([f"{FILE} string", *(f"p{place} string" for place, _ in enumerate(both))]))
    differs = F.lit(False)
    for place, name in enumerate(both):
        own, path = name_column(name), F.col(f"p{place}")
        is_same = own.eqNullSafe(F.expr(f"try_cast(p{place} AS {rows.schema[name].dataType.simpleString()})"))
        # A value of JSON may leave out what its path says.
        differs = differs | ~(is_same | (own.isNull() & path.isNotNull() if reading.form is Format.json else F.lit(False)))
    known = rows.select(*map(name_column, both), F.col("_metadata.file_path").alias(FILE)).join(F.broadcast(said), FILE)
    wrong = known.where(differs).select(FILE, F.to_json(F.struct(*map(name_column, both))).alias("row")).first()
    if wrong is not None:
        raise BadRequest(f"{unquote(wrong[FILE])} has a row of {wrong['row'][:_SHOWN]}, and its path says otherwise, {remedy}")


def _get_path_value(path: str, column: str) -> str | None:
    values = list_path_values([path], [column])[column]
    value = next(iter(values), None)
    return None if value in (None, NO_VALUE) else unquote(value)


def _choose_text_columns(reading: Reading, target: StructType | None, evolve: Evolve) -> StructType:
    found = _read_text_columns(reading, target, evolve)
    if not {*found.names} <= {*reading.path_columns}:
        return adopt(found, target, evolve)
    if target is None:
        is_lines = reading.form is Format.json and find_option(reading.options, "multiLine") != "true"
        more = "; where a value of JSON goes on over several lines, --option multiLine=true reads files whole" if is_lines else ""
        raise BadRequest(f"nothing in the files says what columns they have; give --schema{more}")
    # Blank lines alone, or objects without a name: rows, if there are any, have no value.
    return target


def _read_text_columns(reading: Reading, target: StructType | None, evolve: Evolve) -> StructType:
    if reading.form is Format.csv and target is not None and evolve is not Evolve.widen:
        named, known = reading.read_columns(looks_at_values=False), {name.lower() for name in target.names}
        if all(name.lower() in known for name in named.names):
            return named
    # Where new columns are refused, the table says what values are.
    is_said = reading.form is Format.json and target is not None and evolve is Evolve.fail
    return reading.read_columns(looks_at_values=not is_said)


def _check_paths(columns: Sequence[str], given: StructType) -> None:
    names = {name.lower() for name in given.names}
    missing = next((name for name in columns if name.lower() not in names), None)
    if missing is not None:
        raise BadRequest(f"column {missing} of the paths ({missing}=…) is not in --schema")


def _check_given(own: StructType, given: StructType) -> None:
    wanted = {item.name.lower(): item for item in given.fields}
    for item in own.fields:
        column = wanted.get(item.name.lower())
        if column is None:
            raise BadRequest(f"column {item.name} of the files is not in --schema")
        if not fits(item.dataType, column.dataType):
            raise BadRequest(
                f"column {item.name}: the files have {item.dataType.simpleString()}, which does not fit {column.dataType.simpleString()}"
            )


LEDGER, QUARANTINE = "__ingested", "__quarantine"
LEDGER_COLUMNS = "uri string, size_bytes bigint, modified_ms bigint, rows bigint, quarantined bigint, run_id string, ingested_at timestamp"
LATER_COLUMNS = "etag string, watermark_column string, watermark string"
"""What ledgers of earlier versions lack."""

_THERE = "TABLE_OR_VIEW_ALREADY_EXISTS"
_NONE = -1
_SHAPE = ("table-uuid", "location", "schemas", "current-schema-id", "partition-specs", "default-spec-id", "properties")
"""What of a table's metadata is as it was when the run made it, if no other writer has changed it; the order is the run's to give."""


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The plan of a run: `incoming` are the files' columns, `made` those of the table if it has to be made.

    `ledger` is where the ledger's main was when the files were chosen. `gets_order`: the table gets the order asked for.
    `looks_at_texts`: texts are looked at before they are written.
    """

    reading: Reading
    incoming: StructType
    made: StructType
    target: StructType | None
    changes: Sequence[ColumnEvolution]
    ledger: int | None
    gets_order: bool
    looks_at_texts: bool = False

    @property
    def planned_columns(self) -> StructType:
        """The columns of the table that come from files, as they are going to be."""
        return parse_created_columns(self.incoming) if self.target is None else apply_changes(self.target, self.changes)

    @property
    def names(self) -> Sequence[str]:
        """The table's columns as they are spelled there; one name may be listed twice, first as the files spell it."""
        return (*self.made.names, *self.planned_columns.names)

    @property
    def makes(self) -> bool:
        """Return True if there is something to make before rows can be written."""
        return self.target is None or self.ledger is None or bool(self.changes)

    def describe(self, options: IngestOptions) -> tuple[str, ...]:
        """Return the plan in words, a line for each step."""
        shape = f"create {options.table} ({format_columns(self.made)})" if self.target is None else f"{options.table} is there"
        steps = [self.reading.describe(), shape]
        if self.target is None and options.partition_by:
            steps.append(f"partitioned by {', '.join(field.sql for field in options.partition_by)}")
        if self.gets_order and options.sort_by:
            steps.append(f"ordered by {', '.join(field.sql for field in options.sort_by)}")
        steps += [f"{change} in {options.table}" for change in self.changes]
        by = f" by {', '.join(options.key)}" if options.key else ""
        return (*steps, f"{options.mode} the rows{by}; bad ones go to {options.table.with_suffix(QUARANTINE)}, one commit for all")


@dataclass(frozen=True, slots=True)
class TableMaker:
    """Makes tables, and knows those that it has made, each by what it was then."""

    spark: SparkSession
    catalog: str
    connect: Callable[[], Rest]
    progress: Progress
    made: dict[TableIdent, Mapping[str, Any]] = field(default_factory=dict[TableIdent, Mapping[str, Any]])

    def prepare(self, options: IngestOptions, plan: IngestPlan, *, may_be_bad: bool) -> None:
        """Make the tables that are missing and the columns that the target lacks."""
        table = options.table
        if plan.target is None:
            self.progress(f"create {table}")
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(map(quote, (self.catalog, *table.namespace)))}")
            self._make(table, format_columns(plan.made), options.partition_by, format_needed_properties(plan.made))
        if plan.gets_order:
            for statement in format_order(self._name(table), options.sort_by):
                self.progress(f"order {table}")
                self.spark.sql(statement)
        for change in plan.changes:
            self.progress(f"{change} in {table}")
            self._change(table, change)
        self._make_ledger(table.with_suffix(LEDGER), is_old=plan.ledger is not None)
        if may_be_bad:
            self._make(table.with_suffix(QUARANTINE), QUARANTINE_COLUMNS)

    def _change(self, ident: TableIdent, change: ColumnEvolution) -> None:
        try:
            self.spark.sql(change.format_alter(self._name(ident)))
        except PySparkException:
            held = self.spark.table(self._name(ident)).schema
            if apply_changes(held, [change]) != held:
                raise
            # Another run was faster.

    def _make_ledger(self, ident: TableIdent, *, is_old: bool) -> None:
        self._make(ident, f"{LEDGER_COLUMNS}, {LATER_COLUMNS}")
        if is_old:
            known = self.spark.table(self._name(ident)).columns
            for column in (column for column in LATER_COLUMNS.split(", ") if column.split()[0] not in known):
                self.spark.sql(f"ALTER TABLE {self._name(ident)} ADD COLUMN {column}")

    def _make(self, ident: TableIdent, columns: str, partitions: Iterable[PartitionTerm] = (), properties: str = "") -> None:
        if self.connect().load(ident) is not None:
            return
        try:
            self.spark.sql(format_create(self._name(ident), columns, partitions, may_be_there=False) + properties)
        except PySparkException as error:
            if get_condition(error) != _THERE:
                raise
        else:
            self.made[ident] = get_shape(self.connect().load_every(ident))

    def _name(self, ident: TableIdent) -> str:
        return quote_ident(self.catalog, ident)

    @contextmanager
    def taking_back(self) -> Generator["TableMaker"]:
        """Drop unused tables that the run has created when the block fails, unless its commit may have landed."""
        try:
            yield self
        except CommitStateUnknown:
            # What is staged may be what becomes visible.
            raise
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Drop the tables that the run has made and that hold nothing of anybody, where the catalog has a guard for that."""
        for ident, shape in reversed(self.made.items()):
            with suppress(CatalogError, OSError):
                rest = self.connect()
                answer = rest.load_answer(ident)
                if is_unused(answer["metadata"], shape):
                    rest.drop_unchanged(ident, answer["metadata-location"])
        self.made.clear()


def get_shape(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a table is but for its rows and their order."""
    return {name: metadata.get(name) for name in _SHAPE}


def is_unused(metadata: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Return True if a table is as it was made, and has no rows: not on main, on no branch, and in no snapshot that no ref names."""
    was_written_to = metadata.get("snapshot-log") or metadata.get("refs") or metadata.get("current-snapshot-id", _NONE) not in (None, _NONE)
    rows = [int(one["summary"].get("total-records", "1")) for one in metadata.get("snapshots", ())]
    return get_shape(metadata) == shape and not was_written_to and not any(rows)
