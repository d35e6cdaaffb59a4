"""The job `profile`: the current snapshot of each table gets statistics if it has none, and the report shows what is known of it.

`commands.jobs.profile` calls `profile` on the main thread. Spark's procedures write statistics files to the store and commit them over
REST; Postgres is only read.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
from pyspark.sql import SparkSession

from duckicelake.errors import CatalogError, CommitFailed, NoSuchTable, Unsupported
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, child_fields, walk_fields
from duckicelake.pipeline.common.failures import FAILURES, SPARK_FAILURES, explain_failure
from duckicelake.pipeline.common.lake_tables import (
    TableName,
    check_askable,
    check_may_write,
    choose_tables,
    explain_hidden_table,
    list_live_tables,
)
from duckicelake.pipeline.common.reports import Interrupted, Progress, Stopwatch, Verdict, read_versions
from duckicelake.pipeline.common.rest import Rest, TableIdent
from duckicelake.pipeline.common.spark_connect import is_gone
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.common.spark_sql import quote_ident
from duckicelake.pipeline.common.staging import make_run_id
from duckicelake.pipeline.profile_report import (
    ColumnProfile,
    Extremes,
    FileFacts,
    MeasuredTable,
    ProfileOptions,
    ProfileReport,
    TableProfile,
    compute_partition_statistics,
    compute_statistics,
    find_state,
    read_extremes,
    read_files,
)
from duckicelake.pipeline.verify.checksums import check_readable
from duckicelake.pipeline.verify.snapshot_pairs import load_state

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ProfileContext:
    """The context of a run. Spark is opened when there is something for it to measure."""

    connect: Callable[[], Rest]
    open_postgres: Callable[[], psycopg.Connection]
    open_spark: Callable[[], AbstractContextManager[SparkSession]]
    catalog: str
    progress: Progress


def profile(context: ProfileContext, options: ProfileOptions, *, dry_run: bool = False) -> ProfileReport:
    """Measure the tables that were asked for, or say which ones there are to measure.

    Raises: CatalogError, psycopg.Error: it cannot even be begun
    """
    watch, now = Stopwatch(context.progress), datetime.now(UTC)
    told = replace(context, progress=watch.start_step)
    told.progress("look at the catalog")
    context.connect()
    with closing(context.open_postgres()) as conn, closing(LazySpark(context.open_spark)) as spark:
        names = choose_tables(list_live_tables(conn), options.tables)
        profiler = Profiler(told, options, spark, dry_run)
        found = [one for name in names for one in profiler.profile_table(name)]
    return ProfileReport(make_run_id(now), now.isoformat(timespec="seconds"), tuple(found), watch.read(), read_versions())


@dataclass(frozen=True, slots=True)
class Profiler:
    """One run."""

    context: ProfileContext
    options: ProfileOptions
    spark: LazySpark
    dry_run: bool

    def profile_table(self, name: TableName) -> Iterator[TableProfile]:
        """Measure one table; none when it was dropped meanwhile. What fails is said in its place."""
        table = str(name.ident)
        try:
            yield self._profile(name)
        except NoSuchTable as error:
            yield from self._report_hidden(name, error.message)
        except Unsupported as error:
            yield TableProfile(table, Verdict.skipped, message=error.message)
        except FAILURES as error:
            yield TableProfile(table, Verdict.failed, message=explain_failure(error, self.context.connect))

    def _report_hidden(self, name: TableName, said: str) -> Iterator[TableProfile]:
        message = explain_hidden_table(self.context.open_postgres, self.context.connect, name, said)
        if message:
            yield TableProfile(str(name.ident), Verdict.failed if self.options.tables else Verdict.skipped, message=message)

    def _profile(self, name: TableName) -> TableProfile:
        if self.dry_run:
            self.context.progress(f"plan {name.ident}")
        check_askable(name)
        state = self._load(name.ident)
        if state is None:
            return TableProfile(str(name.ident), Verdict.nothing, "nothing was ever written to it")
        reason, extremes, message = explain_work(state, self.options), dict[int, Extremes](), ""
        if not reason:
            verdict = Verdict.nothing
            reason = "its current snapshot has statistics" if state.statistics_path else "no column can have a sketch"
        else:
            check_readable(state.schema)
            verdict = Verdict.planned if self.dry_run else Verdict.done
            if not self.dry_run:
                check_may_write(self.context.connect(), name.ident)
                try:
                    state, extremes = self._measure(name.ident, state)
                except (Interrupted, *SPARK_FAILURES) as error:
                    state = self._load_computed(name.ident, state, error)
                    verdict = Verdict.done if isinstance(error, Interrupted) else Verdict.failed
                    message = f"its statistics are in the catalog: {explain_failure(error, self.context.connect)}"
        # Not one connection for all: Spark may work for hours between two tables.
        with closing(self.context.open_postgres()) as conn:
            files = read_files(conn, name.table_id, state.snapshot_id)
        return replace(describe(state, files, extremes), table=str(name.ident), verdict=verdict, reason=reason, message=message)

    def _load_computed(self, ident: TableIdent, before: MeasuredTable, error: Exception) -> MeasuredTable:
        """Return the state with statistics that were computed before the error. Raises: the error, when there are none"""
        with suppress(CatalogError):
            after = self._load(ident, before.snapshot_id)
            if after is not None and list_computed(after) != list_computed(before):
                return after
        raise error

    def _load(self, ident: TableIdent, snapshot_id: int | None = None) -> MeasuredTable | None:
        return find_state(load_state(self.context.connect(), ident).metadata, snapshot_id)

    def _measure(self, ident: TableIdent, state: MeasuredTable) -> tuple[MeasuredTable, dict[int, Extremes]]:
        """Compute what is missing, of the newest snapshot when that one vanished meanwhile; returns the state afterwards."""
        for _ in range(ATTEMPTS):
            try:
                self._compute(ident, state)
                self.context.progress(f"scan {ident}")
                extremes = read_extremes(self.spark.get(), quote_ident(self.context.catalog, ident), state)
            except SPARK_FAILURES as error:
                if is_gone(error):
                    self.spark.close()
                newest = self._load(ident)
                if newest is None or self._load(ident, state.snapshot_id) is not None:
                    raise
                state = newest
            else:
                return self._load(ident, state.snapshot_id) or state, extremes
        raise CommitFailed(f"its snapshots vanished during each of {ATTEMPTS} attempts")

    def _compute(self, ident: TableIdent, state: MeasuredTable) -> None:
        if lacks_sketches(state, self.options):
            self.context.progress(f"compute {ident}")
            compute_statistics(self.spark.get(), self.context.catalog, ident, state)
        if lacks_partitions(state, self.options):
            self.context.progress(f"compute partitions of {ident}")
            compute_partition_statistics(self.spark.get(), self.context.catalog, ident, state)


def explain_work(state: MeasuredTable, options: ProfileOptions) -> str:
    """Return why statistics are to be computed; empty when there is nothing to compute."""
    missing = {"columns": lacks_sketches(state, options), "partitions": lacks_partitions(state, options)}
    kinds = " and ".join(kind for kind, lacks in missing.items() if lacks)
    return f"statistics of {kinds} at snapshot {state.snapshot_id}" if kinds else ""


def list_computed(state: MeasuredTable) -> tuple[str, bool]:
    """Return what there is of statistics."""
    return state.statistics_path, state.has_partition_statistics


def lacks_sketches(state: MeasuredTable, options: ProfileOptions) -> bool:
    """Return True if sketches of the columns are to be computed."""
    return bool(state.list_sketched()) and (options.again or not state.has_sketches())


def lacks_partitions(state: MeasuredTable, options: ProfileOptions) -> bool:
    """Return True if statistics of the partitions are to be computed."""
    return options.partitions and state.is_partitioned and (options.again or not state.has_partition_statistics)


def describe(state: MeasuredTable, files: FileFacts, extremes: Mapping[int, Extremes]) -> TableProfile:
    """Return what is known of a table at a snapshot."""
    distinct = state.read_distinct()
    columns = tuple(
        describe_column(item, sum_column(item, state, files), distinct.get(item.field_id), extremes.get(item.field_id))
        for item in state.schema.fields
    )
    return TableProfile(
        "",
        Verdict.nothing,
        snapshot_id=state.snapshot_id,
        statistics_path=state.statistics_path,
        total=state.total,
        delete_files=state.delete_files,
        columns=columns,
        sizes=files.sizes,
        growth=state.list_growth(),
    )


def describe_column(
    item: NestedField, sums: tuple[int | None, int | None], distinct: int | None, extremes: Extremes | None
) -> ColumnProfile:
    """Return one column; `sums` are its bytes and null values by the files' statistics."""
    size, nulls = sums
    named = ColumnProfile(item.field_id, item.name, name_type(item.type), distinct, nulls, bytes=size)
    if extremes is None:
        return named
    return replace(named, nulls=extremes.nulls if nulls is None else nulls, minimum=extremes.minimum, maximum=extremes.maximum)


def name_type(form: IcebergType) -> str:
    """Return a type in a word."""
    match form:
        case StructType():
            return "struct"
        case ListType():
            return "list"
        case MapType():
            return "map"
        case PrimitiveType():
            return str(form)


def sum_column(item: NestedField, state: MeasuredTable, files: FileFacts) -> tuple[int | None, int | None]:
    """Return the bytes of a column with all that is nested in it, and its null values; None if the files' statistics are not exact."""
    # Only what nothing is nested in lies in files.
    leaves = [inner.field_id for _, inner in walk_fields((item,)) if not child_fields(inner.type)]
    told = [files.columns[one].bytes for one in leaves if one in files.columns and files.columns[one].sized_files == files.files]
    own = files.columns.get(item.field_id)
    is_whole = not state.delete_files and (state.total.files, state.total.rows) == (files.files, files.records)
    nulls = own.nulls if own is not None and is_whole and own.files == files.files else None
    return sum(told) if told and len(told) == len(leaves) else None, nulls
