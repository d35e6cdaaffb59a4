"""The job: each table of the source is published in the target at once, or not at all. A table that fails is reported; the others go on.

`commands.jobs.transfer` calls `transfer` on the main thread. Spark is started when a table needs it. Objects of copies are written to the
target's store before the commit that publishes a table; unfinished copies of earlier runs are deleted there.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256

import pyarrow as pa
from pyspark.sql import SparkSession

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, CommitStateUnknown, Forbidden, ServiceUnavailable, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.schema import Schema
from duckicelake.pipeline.common.failures import SPARK_FAILURES, explain_outage, explain_spark
from duckicelake.pipeline.common.java import JarUnavailable, NoJava
from duckicelake.pipeline.common.reports import Interrupted, Progress, Stopwatch, Verdict, format_run_properties, read_versions
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_connect import is_gone
from duckicelake.pipeline.transfer.catalogs import Catalog, CopyFiles, Entry, EntryKind, LazyScratchCatalog, TransferTable
from duckicelake.pipeline.transfer.copies import (
    adapt_view,
    count_rows,
    describe_copy,
    is_same,
    is_untouched,
    name_run,
    remove_dead_copies,
    remove_refused_copy,
    remove_staging,
    same_view,
)
from duckicelake.pipeline.transfer.options import (
    ComparedAspect,
    TransferMode,
    TransferOptions,
    TransferReport,
    TransferResult,
    check_tables,
    spell_tables,
)
from duckicelake.pipeline.transfer.parquet_folders import REMEDY, ReadFolders
from duckicelake.pipeline.transfer.rest import RestSide, check_unchanged
from duckicelake.pipeline.verify.checksums import Checksums, CompareSpec, check_readable, checksum_rows, compare


@dataclass(frozen=True, slots=True)
class Compared:
    """Row counts of a source and a target, and the checksums by which they are the same; `difference` "": they are."""

    source_rows: int
    target_rows: int
    source_checksum: str
    target_checksum: str
    difference: str = ""


def compare_rows(spark: SparkSession, source: str, target: str, schema: Schema) -> Compared:
    """Count and sum up the rows of both. Columns go by their places."""
    look = CompareSpec(schema.fields, by_bins=True)
    theirs, ours = (_tally(spark, name, look) for name in (source, target))
    parts = compare(theirs, ours)
    said = f"{theirs.rows} rows there, {ours.rows} here, and {len(parts)} of the buckets by which they are counted differ"
    return Compared(theirs.rows, ours.rows, format_checksum(theirs), format_checksum(ours), said if parts else "")


def format_checksum(tally: Checksums) -> str:
    """Return a text of what is compared of the rows in bins: the same where that is the same.

    Shape:  SHA-256 of the counts, i64 LE, then the sums, u64 LE, of all bins
    """
    return sha256(tally.counts.astype("<i8").tobytes() + tally.sums.astype("<u8").tobytes()).hexdigest()


def _tally(spark: SparkSession, name: str, look: CompareSpec) -> Checksums:
    return checksum_rows(spark.sql(f"SELECT * FROM {name}"), look)  # noqa: S608  a quoted name


FAILURES = (NoJava, JarUnavailable, pa.ArrowException, *SPARK_FAILURES)
"""Errors that fail one table and have a message of their own."""
EXPORT = "export"
"""The job whose source is the lake."""
UNCERTAIN = (CommitFailed, CommitStateUnknown, ServiceUnavailable)
"""After these the table may be there."""


@dataclass(frozen=True, slots=True)
class TransferContext:
    """The context of a run."""

    job: str
    source: Catalog
    target: Catalog
    bench: LazyScratchCatalog
    progress: Progress
    reach: Callable[[Mapping[str, str]], CopyFiles]
    """The target's objects, with the keys that it gave."""


def transfer(context: TransferContext, options: TransferOptions, *, dry_run: bool = False) -> TransferReport:
    """Bring every table and view that was asked for, or say what there is to do.

    Raises: CatalogError: the source cannot even be listed
    """
    watch, run_id = Stopwatch(context.progress), context.bench.run_id
    told = replace(context, progress=watch.start_step)
    versions = read_versions()
    properties = format_run_properties(context.job, run_id, versions)
    told.progress(f"list {context.source.name}")
    entries = list(context.source.list_entries())
    if context.job == EXPORT:
        options = replace(options, tables=spell_tables([entry.ident for entry in entries], options.tables))
    with closing(context.bench):
        mover = Mover(told, options, properties, dry_run, datetime.now(UTC) - options.grace)
        moved = [mover.move(entry, twins) for entry, twins in choose(entries, options)]
    missing = check_tables([entry.ident for entry in entries], options.tables)
    moved += [TransferResult(str(ident), EntryKind.table, Verdict.failed, message="the source has no such table") for ident in missing]
    return TransferReport(context.job, run_id, context.source.name, context.target.name, tuple(moved), watch.read(), versions)


def choose(entries: Sequence[Entry], options: TransferOptions) -> Iterator[tuple[Entry, int]]:
    """Yield what was asked for, tables first, each with how many names there are of it that differ by case alone."""
    asked = [entry for entry in entries if not options.tables or entry.ident in options.tables]
    counts = Counter(str(entry.ident).lower() for entry in asked)
    for entry in sorted(asked, key=lambda entry: (entry.kind, entry.ident.namespace, entry.ident.name)):
        yield entry, counts[str(entry.ident).lower()]


@dataclass(frozen=True, slots=True)
class Mover:
    """One run."""

    context: TransferContext
    options: TransferOptions
    properties: Mapping[str, str]
    dry_run: bool
    before: datetime
    """Runs that have been silent since are dead."""

    def move(self, entry: Entry, twins: int) -> TransferResult:
        """Bring one. What fails is said in its place."""
        ident = TableIdent((*self.options.into, *entry.ident.namespace), entry.ident.name)
        try:
            if entry.fault:
                raise BadRequest(entry.fault)
            if twins > 1:
                raise BadRequest("the source has names that differ from it by case alone, which DuckLake takes for one: name one of them")
            if not ident.namespace:
                raise BadRequest("it is in no namespace: give it one with --into")
            if self.dry_run:
                self.context.progress(f"plan {ident}")
            return self._move_view(entry, ident) if entry.kind is EntryKind.view else self._move_table(entry, ident)
        except Exception as error:  # noqa: BLE001  one table's failure, of any kind, must not lose the results of the others
            self._forget_broken(error)
            return TransferResult(str(ident), entry.kind, Verdict.failed, message=self._explain(error))

    def _forget_broken(self, error: Exception) -> None:
        if is_gone(error) and not isinstance(error, OSError):
            self.context.bench.close()

    def _explain(self, error: Exception) -> str:
        sides = [side for side in (self.context.source, self.context.target) if isinstance(side, RestSide)]
        outages = (explain_outage(side.ask_anything) for side in sides if isinstance(error, SPARK_FAILURES))
        return next(filter(None, outages), "") or explain(error)

    def _move_table(self, entry: Entry, ident: TableIdent) -> TransferResult:
        loaded = self.context.source.load(entry)
        there = self.context.target.find(ident)
        if there is not None:
            return self._recognise(loaded, there)
        files = self._describe_files(loaded)
        self._check_possible(loaded, files)
        if self.dry_run:
            return self._report(loaded, ident, Verdict.planned, count_rows(loaded.metadata) if files is None else _count(files))
        self.context.progress(f"{self.options.mode} {ident}")
        prepared = None
        try:
            if files is not None:
                prepared = self._prepare(loaded, ident)
                self._take(loaded, prepared, files)
            elif self.options.mode is TransferMode.register:
                self._register(loaded, ident)
            else:
                prepared = self._prepare(loaded, ident)
                self._copy(loaded, prepared)
        except UNCERTAIN:
            there = self.context.target.find(ident)
            if there is None or not is_same(loaded.metadata, there.metadata):
                raise
        made = self.context.target.find(ident)
        if made is None:
            raise CommitFailed("another session dropped or renamed it at once")
        if prepared is not None and made.metadata.table_uuid == prepared.metadata.table_uuid:
            with suppress(CatalogError):
                remove_staging(self.context.reach(made.keys or prepared.keys), prepared, made.metadata)
        return self._check(loaded, made, Verdict.done)

    def _check_possible(self, loaded: TransferTable, files: Sequence[DataFile] | None) -> None:
        """Raises: Unsupported: it cannot be brought in any mode"""
        if files is None and self.options.mode is TransferMode.register:
            self._get_registrar(loaded)
        else:
            check_readable(get_current_schema(loaded.metadata))

    def _get_registrar(self, loaded: TransferTable) -> RestSide:
        if not isinstance(self.context.target, RestSide) or not loaded.metadata_location:
            raise Unsupported("its catalog does not say where its metadata file is: --mode copy")
        return self.context.target

    def _register(self, loaded: TransferTable, ident: TableIdent) -> None:
        self._get_registrar(loaded).register(ident, loaded.metadata_location)

    def _describe_files(self, loaded: TransferTable) -> Sequence[DataFile] | None:
        """Return the files that are to become a table's where they are; None: nothing but its metadata, or its rows, are brought."""
        source = self.context.source
        return source.describe_files(loaded) if self.options.mode is TransferMode.register and isinstance(source, ReadFolders) else None

    def _take(self, loaded: TransferTable, prepared: TransferTable, files: Sequence[DataFile]) -> None:
        target = self.context.target
        if not isinstance(target, RestSide):
            raise Unsupported("files are taken where they are by REST catalogs alone: --mode copy")
        try:
            written = target.take(prepared, loaded.metadata, files)
            self.context.progress(f"publish {prepared.ident}")
            target.publish(prepared, name_run(written, self.properties))
        except (BadRequest, Forbidden, Unsupported) as error:
            with suppress(CatalogError):
                remove_refused_copy(self.context.reach(prepared.keys), prepared)
            raise Unsupported(f"{error.message} ({REMEDY})") from error

    def _prepare(self, loaded: TransferTable, ident: TableIdent) -> TransferTable:
        self.context.bench.get()
        prepared = self.context.target.prepare(ident, describe_copy(loaded, ident.name))
        self._clear(prepared, is_there=False)
        return prepared

    def _clear(self, loaded: TransferTable, *, is_there: bool) -> None:
        # The table is brought even if leftovers cannot be removed now.
        with suppress(CatalogError):
            remove_dead_copies(self.context.target, self.context.reach(loaded.keys), loaded, self.before, is_there=is_there)

    def _copy(self, loaded: TransferTable, prepared: TransferTable) -> None:
        bench, ident = self.context.bench.get(), prepared.ident
        written = self.context.target.write(bench, prepared, self.context.source.open_rows(bench, loaded))
        if isinstance(self.context.source, RestSide):
            check_unchanged(self.context.source, loaded)
        self.context.progress(f"publish {ident}")
        self.context.target.publish(prepared, name_run(written, self.properties))

    def _recognise(self, loaded: TransferTable, there: TransferTable) -> TransferResult:
        if not is_same(loaded.metadata, there.metadata):
            raise CommitFailed("another table has the name, or an older state of this one: rename or drop that, or choose --into")
        if self.dry_run:
            return _check_history(loaded, there, self._report(loaded, there.ident, Verdict.there, None))
        if self.options.mode is TransferMode.copy:
            self._clear(there, is_there=True)
        return self._check(loaded, there, Verdict.there)

    def _check(self, loaded: TransferTable, there: TransferTable, verdict: Verdict) -> TransferResult:
        """Return the result for a table that is there now, after its rows were compared if it is unchanged since."""
        moved = self._report(loaded, there.ident, verdict, None)
        if not is_untouched(loaded.metadata, there.metadata):
            return replace(moved, message="written to since, so not compared")
        moved = _check_history(loaded, there, moved)
        if moved.verdict is Verdict.failed:
            return moved
        if not self.options.is_verified:
            return replace(moved, message="not compared")
        schema = get_current_schema(there.metadata)
        try:
            check_readable(schema)
        except Unsupported as error:
            return replace(moved, message=f"not compared: {error.message}")
        return self._compare(loaded, there, moved)

    def _compare(self, loaded: TransferTable, there: TransferTable, moved: TransferResult) -> TransferResult:
        try:
            self.context.progress(f"compare {there.ident}")
            bench = self.context.bench.get()
            names = self.context.source.open_rows(bench, loaded), self.context.target.open_rows(bench, there)
            found = compare_rows(bench.spark, *names, get_current_schema(there.metadata))
        except Interrupted as error:
            return replace(moved, message=f"not compared: {error.message}")
        except FAILURES as error:
            self._forget_broken(error)
            return replace(moved, verdict=Verdict.failed, message=f"it is there, and was not compared: {self._explain(error)}")
        compared = _add_rows(moved, found)
        if found.difference:
            return replace(compared, verdict=Verdict.failed, message=f"it is there, and its rows are not the same: {found.difference}")
        return compared

    def _move_view(self, entry: Entry, ident: TableIdent) -> TransferResult:
        target = self.context.target
        if not isinstance(target, RestSide):
            return TransferResult(str(ident), EntryKind.view, Verdict.skipped, message="views are brought to REST catalogs alone")
        view = adapt_view(self.context.source.load_view(entry), self.options.properties.get("catalog-name"), self.options.into)
        there = target.find_view(ident)
        if there is not None:
            if not same_view(view, there):
                raise CommitFailed("another view has the name, or another version of this one: rename or drop that, or choose --into")
            return TransferResult(str(ident), EntryKind.view, Verdict.there)
        if not self.dry_run:
            self.context.progress(f"make view {ident}")
            target.make_view(ident, view)
        return TransferResult(str(ident), EntryKind.view, Verdict.planned if self.dry_run else Verdict.done, "make view")

    def _report(self, loaded: TransferTable, ident: TableIdent, verdict: Verdict, rows: int | None) -> TransferResult:
        is_kept = self.options.mode is TransferMode.register
        snapshots = len(loaded.metadata.snapshots) if is_kept else 0
        return TransferResult(str(ident), EntryKind.table, verdict, str(self.options.mode), rows, snapshots)


def _count(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _add_rows(moved: TransferResult, found: Compared) -> TransferResult:
    return replace(
        moved,
        rows=found.source_rows,
        target_rows=found.target_rows,
        checked=(*moved.checked, ComparedAspect.rows, ComparedAspect.checksums),
        source_checksum=found.source_checksum,
        target_checksum=found.target_checksum,
    )


def _check_history(loaded: TransferTable, there: TransferTable, moved: TransferResult) -> TransferResult:
    """Return the result for a table, failed if it is unchanged and lacks snapshots of the source."""
    if not moved.snapshots or not is_untouched(loaded.metadata, there.metadata):
        return moved
    checked = replace(moved, checked=(ComparedAspect.snapshots,))
    lost = len(_list_ids(loaded.metadata) - _list_ids(there.metadata))
    if not lost:
        return checked
    said = f"{lost} of its {moved.snapshots} snapshots are not there"
    why = "it is a copy (--mode copy brings no history), or they have expired; drop it, or say --mode copy"
    return replace(checked, verdict=Verdict.failed, message=f"{said}: {why}")


def _list_ids(metadata: TableMetadata) -> set[int]:
    return {snapshot.snapshot_id for snapshot in metadata.snapshots}


def explain(error: Exception) -> str:
    """Return what is wrong, in a few words."""
    if isinstance(error, CatalogError):
        return error.message
    return explain_spark(error) if isinstance(error, FAILURES) else f"{type(error).__name__}: {error}"
