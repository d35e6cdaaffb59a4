"""The job: each table read as Iceberg by Spark and as DuckLake by DuckDB, and compared; then its files; with its options and its report.

`commands.jobs.verify` calls `verify` on the main thread. DuckDB reads its side on a second thread while Spark reads the other. Nothing in
the lake is changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from duckicelake.errors import BadRequest, CatalogError, CommitFailed
from duckicelake.pipeline.common.failures import (
    SPARK_FAILURES,
    explain_missing,
    explain_outage,
    explain_spark,
    explain_store,
)
from duckicelake.pipeline.common.reports import Stopwatch, explain_duckdb, format_report, read_versions
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.verify.checksums import (
    Checksums,
    CompareSpec,
    GroupDifference,
    build_compare_spec,
    check_comparable,
    checksum_batches,
    checksum_rows,
    compare,
    find_different_bins,
    find_examples,
    find_incomparable,
    format_select,
    pick_batches,
    pick_rows,
    quote_duckdb,
)
from duckicelake.pipeline.verify.files import (
    FilesLocation,
    check_files,
    choose_entries,
    decode_entries,
    list_entries,
    list_lake_files,
    make_shape,
)
from duckicelake.pipeline.verify.snapshot_pairs import (
    CatalogTable,
    LakeHistory,
    SnapshotPair,
    count_tables,
    list_tables,
    load_keys,
    load_state,
    read_history,
)
from duckicelake.translate.namespaces import to_schema_name


class VerifyVerdict(StrEnum):
    """The outcome of a comparison."""

    planned = "planned"
    same = "same"
    differs = "differs"
    expired = "expired"
    unknown = "could-not-look"
    nothing = "nothing-to-look-at"


@dataclass(frozen=True, slots=True)
class Finding:
    """One look at a table: its rows at one moment, or its files."""

    table: str
    what: str
    verdict: VerifyVerdict
    snapshot_id: int | None = None
    iceberg_rows: int = 0
    ducklake_rows: int = 0
    files: int = 0
    parts: tuple[GroupDifference, ...] = ()
    only_in_iceberg: tuple[str, ...] = ()
    only_in_ducklake: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    message: str = ""

    def describe(self) -> list[str]:
        """Return the finding in words: one line, and more when something is wrong."""
        where = f"{self.table} {self.what}".rstrip()
        if self.verdict is VerifyVerdict.planned:
            return [f"{where}: would be looked at"]
        if self.verdict is VerifyVerdict.expired:
            return [f"{where}: passed over: DuckLake has expired it"]
        if self.verdict is VerifyVerdict.unknown:
            return [f"{where}: could not look: {self.message}", *(f"  {problem}" for problem in self.problems)]
        if self.verdict is VerifyVerdict.same:
            is_rows = not self.what.startswith("files")
            return [f"{where}: {self.iceberg_rows} rows, the same" if is_rows else f"{where}: {self.files}, all as they are said to be"]
        if self.problems:
            return [f"{where}: {len(self.problems)} things are not as they are said to be", *(f"  {problem}" for problem in self.problems)]
        lines = [f"{where}: differs: {self.iceberg_rows} rows in Iceberg, {self.ducklake_rows} in DuckLake"]
        lines += [f"  {part.name}: {part.iceberg_rows} rows in Iceberg, {part.ducklake_rows} in DuckLake" for part in self.parts]
        lines += [f"  only in Iceberg: {row}" for row in self.only_in_iceberg]
        lines += [f"  only in DuckLake: {row}" for row in self.only_in_ducklake]
        return [*lines, f"  {self.message}"] if self.message else lines


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """One run. `message` is set when nothing could be looked at."""

    findings: tuple[Finding, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def verdict(self) -> VerifyVerdict:
        """The worst of all: a difference counts more than what could not be looked at. A look at nothing shows nothing to be the same."""
        found = {finding.verdict for finding in self.findings}
        if VerifyVerdict.differs in found:
            return VerifyVerdict.differs
        if VerifyVerdict.unknown in found or self.message:
            return VerifyVerdict.unknown
        if not found:
            return VerifyVerdict.nothing
        return VerifyVerdict.planned if VerifyVerdict.planned in found else VerifyVerdict.same

    @property
    def status(self) -> int:
        """The status for the shell: 0 same, or a lake without tables, 1 differs, 3 could not look."""
        return {VerifyVerdict.differs: 1, VerifyVerdict.unknown: 3}.get(self.verdict, 0)

    def format_json(self) -> str:
        """Return the report for machines."""
        return format_report("verify", self.verdict, self)

    def describe(self) -> list[str]:
        """Return the report for people."""
        counts = {verdict: sum(finding.verdict is verdict for finding in self.findings) for verdict in VerifyVerdict}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing to look at"
        return [*(line for finding in self.findings for line in finding.describe()), said]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """One call of the job. No tables: all of them; neither a snapshot nor every one: as they are now."""

    tables: tuple[TableIdent, ...] = ()
    snapshot_id: int | None = None
    every_snapshot: bool = False
    files: bool = False
    examples: int = 5

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.snapshot_id is not None and (self.every_snapshot or len(self.tables) != 1):
            raise BadRequest("--snapshot needs one table, and not --every-snapshot")
        if self.examples < 0:
            raise BadRequest("--examples begins at 0")


def read_options(tables: Sequence[str] | None, snapshot_id: int | None, given: Mapping[str, Any]) -> VerifyOptions:
    """Return the command's arguments as options. Raises: BadRequest: they contradict each other, or a name is no table's."""
    idents = tuple(map(parse_ident, tables or ()))
    return VerifyOptions(idents, snapshot_id, given["every_snapshot"], given["files"], given["examples"])


LAKE = "lake"
"""The lake's name in DuckDB."""
HIDDEN = "the lake has {} tables, and the catalog shows none of them: perhaps it does not show them to this account"
POINTER = "`verify {} --files` looks at each of its files"
BATCH_ROWS = 65_536
ATTEMPTS = 3
PICKED_ROWS = 50_000
PARTS = 100
"""How many partitions or buckets a report names."""
_FAILURES = (CatalogError, *SPARK_FAILURES, duckdb.Error, pa.ArrowException)
"""What a look at a table may end in."""
_BROKEN = (duckdb.InternalException, duckdb.FatalException)
"""After these DuckDB refuses everything else in the session."""
_BROKEN_STREAMS = {"INTERNAL Error": duckdb.InternalException, "FATAL Error": duckdb.FatalException}
"""How the same errors begin where all that comes through is their text."""


@dataclass(frozen=True, slots=True)
class VerifyContext:
    """The context of a run: Spark and the catalog, and a way to open the lake in DuckDB, for reading."""

    job: JobContext
    open_lake: Callable[[], DuckDBPyConnection]
    metadata_schema: str


def verify(context: VerifyContext, options: VerifyOptions, *, dry_run: bool = False) -> VerifyReport:
    """Look at every table that was asked for. What cannot be looked at is a finding too.

    Raises: CatalogError: the catalog does not answer
    """
    watch = Stopwatch(context.job.progress)
    told = replace(context, job=replace(context.job, progress=watch.start_step))
    told.job.progress("list tables")
    tables = options.tables or list_tables(told.job.connect())
    # One table after the other: going back to an earlier one, DuckDB 1.5.5 shows columns of an earlier state.
    with closing(LakeSession(told.open_lake, reads_again=options.every_snapshot)) as session:
        if not dry_run:
            session.get()
        # An empty lake is no failure; if the catalog hides the tables of a lake, nothing is known of it.
        hidden = 0 if tables else count_tables(session.get(), told.metadata_schema)
        look = _plan if dry_run else _compare_table
        findings = [finding for ident in tables for finding in look(told, session, ident, options)]
    return VerifyReport(tuple(findings), watch.read(), read_versions("duckdb"), message=HIDDEN.format(hidden) if hidden else "")


@dataclass(slots=True)
class LakeSession:
    """A session of DuckDB in the lake, opened when it is needed, and again after an error that breaks it.

    `reads_again`: the same files are read many times, and DuckDB keeps what it has read.
    """

    open_lake: Callable[[], DuckDBPyConnection]
    opened: DuckDBPyConnection | None = None
    reads_again: bool = False

    def get(self) -> DuckDBPyConnection:
        """DuckDB. Raises: duckdb.Error: the lake cannot be opened."""
        if self.opened is None:
            self.opened = self.open_lake()
            # Sums have no order.
            self.opened.execute("SET preserve_insertion_order = false")
            self.opened.execute("SET enable_external_file_cache = $1", [self.reads_again])
        return self.opened

    def read(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, batch by batch; the next one is read while one is looked at. Raises: duckdb.Error"""
        batches = self._read(sql)
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(next, batches, None)
            while (batch := coming.result()) is not None:
                coming = ahead.submit(next, batches, None)
                yield batch

    def _read(self, sql: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.get().execute(sql).to_arrow_reader(BATCH_ROWS)
        except (OSError, pa.ArrowException) as error:
            # Arrow's streams hand DuckDB's errors on as errors of the system, with nothing of them but the text.
            text = str(error)
            raise _BROKEN_STREAMS.get(text.partition(":")[0], duckdb.Error)(text) from error

    def explain(self, error: duckdb.Error) -> str:
        """Return what DuckDB says is wrong, in a line; a session that it broke ends."""
        if isinstance(error, _BROKEN):
            self.close()
        return explain_duckdb(error)

    def close(self) -> None:
        """End it."""
        with suppress(duckdb.Error):
            if self.opened is not None:
                self.opened.close()
        self.opened = None


def _plan(context: VerifyContext, session: LakeSession, ident: TableIdent, options: VerifyOptions) -> Iterator[Finding]:
    try:
        context.job.progress(f"plan {ident}")
        _, pairs = _choose(context, session, ident, options)
        for pair in pairs:
            yield Finding(str(ident), str(pair), VerifyVerdict.expired if pair.is_expired else VerifyVerdict.planned, pair.snapshot_id)
    except CatalogError as error:
        yield Finding(str(ident), "", VerifyVerdict.unknown, message=error.message)
    except duckdb.Error as error:
        yield Finding(str(ident), "", VerifyVerdict.unknown, message=session.explain(error))


def _choose(
    context: VerifyContext, session: LakeSession, ident: TableIdent, options: VerifyOptions
) -> tuple[CatalogTable, list[SnapshotPair]]:
    is_past = options.snapshot_id is not None or (options.every_snapshot and not options.files)
    state = load_state(context.job.connect(), ident)
    history = read_history(session.get(), context.metadata_schema, ident) if is_past else LakeHistory()
    if options.snapshot_id is not None:
        return state, [state.get(options.snapshot_id, history)]
    return state, [*(state.list_pairs(history) if is_past else ()), state.head]


def _compare_table(context: VerifyContext, session: LakeSession, ident: TableIdent, options: VerifyOptions) -> Iterator[Finding]:
    try:
        state, pairs = _choose(context, session, ident, options)
        looker = TableComparer(context.job, session, ident, options)
        for pair in pairs:
            if pair.is_expired:
                yield Finding(str(ident), str(pair), VerifyVerdict.expired, pair.snapshot_id)
                continue
            context.job.progress(f"{'look at files of' if options.files else 'compare'} {ident} {pair}")
            yield looker.check_files(state, pair, context.metadata_schema) if options.files else looker.look(state, pair)
    except CatalogError as error:
        yield Finding(str(ident), "", VerifyVerdict.unknown, message=error.message)
    except duckdb.Error as error:
        yield Finding(str(ident), "", VerifyVerdict.unknown, message=session.explain(error))


@dataclass(frozen=True, slots=True)
class TableComparer:
    """Both sides of one table."""

    context: JobContext
    session: LakeSession
    ident: TableIdent
    options: VerifyOptions

    def look(self, state: CatalogTable, pair: SnapshotPair) -> Finding:
        """Compare the rows of a moment; at head it is begun again when the table was changed meanwhile."""
        return self._hold(state, pair, Finding(str(self.ident), str(pair), VerifyVerdict.unknown, pair.snapshot_id), self._compare)

    def check_files(self, state: CatalogTable, pair: SnapshotPair, metadata_schema: str) -> Finding:
        """Look at the files of a moment, or of all."""
        what = "files of every snapshot" if self.options.every_snapshot else f"files {pair}"
        finding = Finding(str(self.ident), what, VerifyVerdict.unknown, pair.snapshot_id)
        return self._hold(state, pair, finding, partial(self._check_files, metadata_schema))

    def _hold(
        self, state: CatalogTable, pair: SnapshotPair, finding: Finding, look: Callable[[Finding, CatalogTable, SnapshotPair], Finding]
    ) -> Finding:
        try:
            if pair.snapshot_id is not None:
                return look(finding, state, pair)
            for _ in range(ATTEMPTS):
                found = look(finding, state, state.head)
                after = load_state(self.context.connect(), self.ident)
                if after.version == state.version:
                    return found
                state = after
            raise CommitFailed(f"others changed it during each of {ATTEMPTS} looks; name a --snapshot")
        except _FAILURES as error:
            return replace(finding, message=self._explain(error))

    def _explain(self, error: Exception) -> str:
        if isinstance(error, CatalogError):
            return error.message
        if isinstance(error, duckdb.Error):
            return self.session.explain(error)
        gone = explain_outage(self.context.connect) or explain_store(str(error))
        said = gone or explain_missing(str(error)) or explain_spark(error)
        is_of_rows = not gone and not self.options.files and isinstance(error, PySparkException | Py4JJavaError)
        return f"{said}\n{POINTER.format(self.ident)}" if is_of_rows else said

    def _compare(self, finding: Finding, state: CatalogTable, pair: SnapshotPair) -> Finding:
        check_comparable(pair.schema)
        look = build_compare_spec(pair.schema, state.spec)
        iceberg, ducklake = self._tally(pair, look)
        parts = compare(iceberg, ducklake)
        found = replace(finding, iceberg_rows=iceberg.rows, ducklake_rows=ducklake.rows)
        if not parts:
            return replace(found, verdict=VerifyVerdict.same)
        found = replace(found, verdict=VerifyVerdict.differs, parts=parts[:PARTS] if look.groups else ())
        try:
            return self._add_examples(found, pair, CompareSpec(look.fields, by_bins=True))
        except _FAILURES as error:
            # Even if the rows cannot be shown, there is a difference.
            return replace(found, message=f"the rows cannot be shown: {self._explain(error)}")

    def _add_examples(self, found: Finding, pair: SnapshotPair, by_bins: CompareSpec) -> Finding:
        sides = self._tally(pair, by_bins)
        parts = found.parts or compare(*sides)[:PARTS]
        examples = self._find_examples(pair, by_bins, _choose_bins(*sides))
        return replace(found, parts=parts, only_in_iceberg=tuple(examples[0]), only_in_ducklake=tuple(examples[1]))

    def _tally(self, pair: SnapshotPair, look: CompareSpec) -> tuple[Checksums, Checksums]:
        """Return the checksums of both sides, made at the same time."""
        with ThreadPoolExecutor(1) as beside:
            ducklake = beside.submit(lambda: checksum_batches(self._read_ducklake(pair), look))
            try:
                return checksum_rows(self._read_iceberg(pair), look), ducklake.result()
            except BaseException:
                # The other result is not needed any more.
                self.session.get().interrupt()
                raise

    def _check_files(self, metadata_schema: str, finding: Finding, state: CatalogTable, pair: SnapshotPair) -> Finding:
        is_all, rest = self.options.every_snapshot, self.context.connect()
        place, shape = FilesLocation(state.metadata["location"], rest.catalog, load_keys(rest, self.ident)), make_shape(state)
        if find_incomparable(state.head.schema) is None:
            entries = list_entries(self.context.spark, self.context.name(self.ident), pair, is_all=is_all)
        else:
            # Iceberg's list has bounds in the columns' types, and Spark takes none of it where it does not know one.
            lists = state.list_manifest_lists(pair, is_all=is_all)
            entries = choose_entries(decode_entries(self.context.spark, lists, place, shape))
        lake = list_lake_files(self.session.get(), metadata_schema, self.ident, pair, is_all=is_all)
        seen = check_files(self.context.spark, entries, lake, place, shape)
        verdict = VerifyVerdict.differs if seen.problems else VerifyVerdict.unknown if seen.unseen else VerifyVerdict.same
        message = "at some of its files" if seen.unseen else ""
        return replace(finding, verdict=verdict, files=seen.files, problems=(*seen.problems, *seen.unseen), message=message)

    def _find_examples(self, pair: SnapshotPair, look: CompareSpec, bins: list[int]) -> tuple[list[str], list[str]]:
        ducklake = (row for batch in pick_batches(self._read_ducklake(pair), look, bins) for row in batch.to_pylist())
        return find_examples(pick_rows(self._read_iceberg(pair), look, bins), ducklake, self.options.examples)

    def _read_iceberg(self, pair: SnapshotPair) -> DataFrame:
        name = self.context.name(self.ident)
        at = "" if pair.snapshot_id is None else f" VERSION AS OF {pair.snapshot_id}"
        return self.context.spark.sql(f"SELECT * FROM {name}{at}")  # noqa: S608  a quoted name and a number

    def _read_ducklake(self, pair: SnapshotPair) -> Iterator[pa.RecordBatch]:
        table = ".".join(map(quote_duckdb, (LAKE, to_schema_name(self.ident.namespace), self.ident.name)))
        return self.session.read(format_select(pair.schema, table, pair.lake_snapshot_id, pair.names))


def _choose_bins(iceberg: Checksums, ducklake: Checksums) -> list[int]:
    """Return some bins that differ, the smallest first, of as many rows as may be looked at one by one; at least one."""
    sizes = iceberg.counts + ducklake.counts
    bins = sorted(find_different_bins(iceberg, ducklake), key=lambda one: int(sizes[one]))
    chosen, rows = bins[:1], 0
    for one in bins[1:]:
        rows += int(sizes[one])
        if rows > PICKED_ROWS:
            break
        chosen.append(one)
    return chosen
