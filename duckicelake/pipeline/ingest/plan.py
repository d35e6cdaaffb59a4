"""The plan of a run, the tables and columns that it creates, and their removal when the run fails."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import Rest, TableIdent
from duckicelake.pipeline.common.spark_compat import get_condition
from duckicelake.pipeline.common.spark_sql import (
    PartitionTerm,
    format_columns,
    format_create,
    format_order,
    parse_created_columns,
    quote,
    quote_ident,
)
from duckicelake.pipeline.ingest.options import IngestOptions
from duckicelake.pipeline.ingest.quarantine import COLUMNS as QUARANTINE_COLUMNS
from duckicelake.pipeline.ingest.schema_evolution import ColumnChange, apply_changes
from duckicelake.pipeline.ingest.source import Reading

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
    changes: Sequence[ColumnChange]
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
            self._make(table, format_columns(plan.made), options.partition_by)
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

    def _change(self, ident: TableIdent, change: ColumnChange) -> None:
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

    def _make(self, ident: TableIdent, columns: str, partitions: Iterable[PartitionTerm] = ()) -> None:
        if self.connect().load(ident) is not None:
            return
        try:
            self.spark.sql(format_create(self._name(ident), columns, partitions, may_be_there=False))
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
