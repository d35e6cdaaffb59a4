"""The job itself: look, plan, stage on branches, count, and publish everything in one commit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as read_version

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, CommitStateUnknown
from duckicelake.pipeline.connect import explain_gone
from duckicelake.pipeline.ingest.evolution import Change, check_metadata_name, check_names, plan_evolution
from duckicelake.pipeline.ingest.options import Evolve, IngestOptions, Mode
from duckicelake.pipeline.ingest.publishing import Publisher
from duckicelake.pipeline.ingest.report import Report, Status, Stopwatch
from duckicelake.pipeline.ingest.rows import QUARANTINE_COLUMNS, Checked, Count, Demands, check_lines, check_rows, survey
from duckicelake.pipeline.ingest.sources.columns import choose_columns
from duckicelake.pipeline.ingest.sources.files import open_files
from duckicelake.pipeline.ingest.sources.jdbc import open_database
from duckicelake.pipeline.ingest.sources.reading import Reading
from duckicelake.pipeline.ingest.sources.shapes import check_order, find_coverage
from duckicelake.pipeline.ingest.staging import Stage, Staged, discard, discard_stale, make_branch, make_run_id
from duckicelake.pipeline.ingest.target import add_defaults, format_columns, format_create, format_order, parse_columns, quote, quote_ident
from duckicelake.pipeline.ingest.versions import VALIDITY, add_validity, drop_validity, widen_validity
from duckicelake.pipeline.ingest.writing import RowsLeftOut, check_count, write_target
from duckicelake.pipeline.jars import Progress
from duckicelake.pipeline.older import TELLS_DEFAULTS
from duckicelake.pipeline.rest import Ident, Rest, TableHead
from duckicelake.pipeline.unlike import refusing_unlike

LEDGER, QUARANTINE = "__ingested", "__quarantine"
LEDGER_COLUMNS = "uri string, size_bytes bigint, modified_ms bigint, rows bigint, quarantined bigint, run_id string, ingested_at timestamp"
LATER_COLUMNS = "etag string, watermark_column string, watermark string"
"""What ledgers of earlier versions lack."""

APART = "take them one after the other, those of the narrower type first, the others with --evolve widen; nothing was taken"
PUBLISHED = "published"
"""What is told when it is done."""
EXPLAINED_LINES = 4
SPARK_FAILURES = (PySparkException, Py4JError, OSError)
"""What Spark raises, and what is raised when its Java is gone."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a run works with: Spark, the catalog under its name there and over REST, and who hears of each step before it is taken."""

    spark: SparkSession
    catalog: str
    connect: Callable[[], Rest]
    tell: Progress

    def name(self, ident: Ident) -> str:
        """A table in Spark's SQL."""
        return quote_ident(self.catalog, ident)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is going to do: `incoming` are the files' columns, `made` those of the table if it has to be made.

    `ledger` is where the ledger's main was when the files were chosen. `gets_order`: the table gets the order asked for. `uuids` are the
    columns of the table that Spark has as texts. `looks_at_texts`: texts are looked at before they are written.
    """

    reading: Reading
    incoming: StructType
    made: StructType
    target: StructType | None
    changes: Sequence[Change]
    ledger: int | None
    gets_order: bool
    uuids: Sequence[str] = ()
    looks_at_texts: bool = False

    def describe(self, options: IngestOptions) -> tuple[str, ...]:
        """The plan in words, a line for each step."""
        shape = f"create {options.table} ({format_columns(self.made)})" if self.target is None else f"{options.table} is there"
        steps = [self.reading.describe(), shape]
        if self.target is None and options.partition_by:
            steps.append(f"partitioned by {', '.join(field.sql for field in options.partition_by)}")
        steps += [f"{change} in {options.table}" for change in self.changes]
        by = f" by {', '.join(options.key)}" if options.key else ""
        return (*steps, f"{options.mode} the rows{by}; bad ones go to {options.table.beside(QUARANTINE)}, one commit for all")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was staged: the branches, the target's first when it has one, and the counts."""

    staged: Sequence[Staged]
    counts: Mapping[str, Count]
    superseded: int = 0

    @property
    def rows_in(self) -> int:
        return sum(count.rows for count in self.counts.values())

    @property
    def bad(self) -> int:
        return sum(count.bad for count in self.counts.values())


class SparkFailed(CatalogError):
    """Spark could not read or write something; the message begins with its own words."""


def ingest(desk: Desk, options: IngestOptions, *, dry_run: bool = False) -> Report:
    """Take every file of the source that was not taken yet, and say what became of the rows.

    Raises: CatalogError: nothing was taken, for the reason that it says; CommitStateUnknown: nobody knows, and running again finds out
    """
    watch = Stopwatch(desk.tell)
    try:
        report = _ingest(replace(desk, tell=watch.tell), options, _begin(options), dry_run)
        return replace(report, seconds=watch.read())
    except SPARK_FAILURES as error:
        raise SparkFailed(options.hide(f"{explain(error)}\nNothing was taken.")) from error


_OF_TRACES = ("at ", "...", "JVM stacktrace", "An error occurred while calling ", "Suppressed: ")
"""How lines begin that say nothing of what is wrong."""


def explain(error: Exception) -> str:
    """What Spark says is wrong: the first lines of its message and of the last cause, without the trace."""
    gone = explain_gone(error)
    if gone:
        return gone
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_OF_TRACES)]
    causes = [line for line in said[EXPLAINED_LINES:] if line.startswith("Caused by")]
    return "\n".join([*said[:EXPLAINED_LINES], *causes[-1:]])


def _ingest(desk: Desk, options: IngestOptions, report: Report, dry_run: bool) -> Report:
    for attempt in range(1, options.attempts + 1):
        rest = desk.connect()
        desk.tell(f"list {options.source}")
        plan = _look(desk, rest, options)
        if plan is None:
            if not dry_run:
                _discard_stale(rest, options)
            return replace(report, status=Status.nothing_new)
        files = plan.reading.files
        report = replace(report, files=len(files), bytes=sum(file.size_bytes or 0 for file in files), plan=plan.describe(options))
        if dry_run:
            return report
        try:
            return _attempt_sifting(desk, options, plan, replace(report, attempts=attempt))
        except CommitFailed as error:
            desk.tell(f"again, because {error.message}")
    raise CommitFailed(f"{options.table} was changed by others during each of {options.attempts} attempts; nothing was taken")


def _list_tables(options: IngestOptions) -> list[Ident]:
    return [options.table, options.table.beside(LEDGER), options.table.beside(QUARANTINE)]


def _discard_stale(rest: Rest, options: IngestOptions) -> None:
    """Remove what dead runs left; that this cannot be done now makes nothing new of what is not."""
    for table in _list_tables(options):
        with suppress(CatalogError):
            discard_stale(rest, table, datetime.now(UTC))


def _begin(options: IngestOptions) -> Report:
    versions = {"duckicelake": read_version("duckicelake"), "pyspark": read_version("pyspark")}
    run_id = make_run_id(datetime.now(UTC))
    return Report(run_id, str(options.table), options.source, options.mode, Status.planned, versions=versions)


def _look(desk: Desk, rest: Rest, options: IngestOptions) -> Plan | None:
    """The plan, None when there is nothing to take."""
    # The ledger first: before it has rows the table is there.
    ledger_head, head = rest.load(options.table.beside(LEDGER)), rest.load(options.table)
    base = None if ledger_head is None else ledger_head.main
    check_pair(options.table, head, base)
    name = desk.name(options.table.beside(LEDGER))
    ledger = None if base is None else desk.spark.read.option("versionAsOf", base).table(name)
    reading = open_database(desk.spark, options, ledger) if options.is_database else open_files(desk.spark, options, ledger)
    if reading is None:
        return None
    check_lines(reading)
    check_target(head, options)
    target = None if head is None else _find_columns(desk, options)
    given = None if options.schema is None else parse_columns(options.schema)
    with refusing_unlike(APART):
        incoming = choose_columns(reading, given, target, options.evolve)
    check_metadata_name(incoming, options)
    changes = () if target is None else plan_evolution(target, incoming, options.evolve)
    if target is not None and options.mode is Mode.scd2:
        held = desk.spark.table(desk.name(options.table)).schema
        changes = (*changes, *widen_validity(held, changes, incoming, options.order_by or ""))
    known = {name.lower() for name in (*incoming.names, *(target.names if target else ()))}
    check_names(options, known, known | set(VALIDITY) if options.mode is Mode.scd2 else known)
    made = add_validity(incoming, options.order_by or "") if options.mode is Mode.scd2 else incoming
    gets_order, uuids = head is None or _may_get_order(head), () if head is None else head.uuids
    # Whoever merges reads the rows several times anyway.
    return Plan(reading, incoming, made, target, changes, base, gets_order, uuids, looks_at_texts=bool(options.key))


def _find_columns(desk: Desk, options: IngestOptions) -> StructType:
    """The columns of the target that come from files."""
    columns = desk.spark.table(desk.name(options.table)).schema
    head = None if TELLS_DEFAULTS or not options.key else desk.connect().load(options.table)
    columns = columns if head is None else add_defaults(columns, head.defaults)
    return drop_validity(columns) if options.mode is Mode.scd2 else columns


def check_pair(table: Ident, head: TableHead | None, ledger: int | None) -> None:
    """Raises: BadRequest: the table is gone, and its ledger would have its files passed over."""
    if head is None and ledger is not None:
        raise BadRequest(
            f"{table} is gone and {table.beside(LEDGER)} is there, which would have its files passed over: "
            "drop it too to take them again, or rename it like the table, if that has another name now"
        )


def _may_get_order(head: TableHead) -> bool:
    # A run may have been killed between the table and its order.
    return head.main is None and not head.order


def check_target(head: TableHead | None, options: IngestOptions) -> None:
    """Raises: BadRequest: the table that is there has another shape than the one asked for."""
    partitions, order = (tuple(field.term for field in asked) for asked in (options.partition_by, options.sort_by))
    if head is not None and partitions not in ((), head.partitions):
        raise BadRequest(f"{options.table} is there and partitioned by {', '.join(head.partitions) or 'nothing'}; alter it yourself")
    if head is not None and order not in ((), head.order) and not _may_get_order(head):
        raise BadRequest(f"{options.table} is there and ordered by {', '.join(head.order) or 'nothing'}; alter it yourself")
    if options.mode is Mode.overwrite_partitions and not (partitions if head is None else head.partitions):
        raise BadRequest(f"{options.table} has no partitions: all of its rows would be overwritten")


def _attempt_sifting(desk: Desk, options: IngestOptions, plan: Plan, report: Report) -> Report:
    """Texts that are not in UTF-8 are seldom, so they are looked for while they are written, and before that if some were left out then."""
    try:
        return _attempt(desk, options, plan, report)
    except RowsLeftOut as error:
        desk.tell(f"again, because {error.message}")
        # The table has its new columns by now.
        return _attempt(desk, options, replace(plan, looks_at_texts=True, changes=()), report)


def _attempt(desk: Desk, options: IngestOptions, plan: Plan, report: Report) -> Report:
    branch = make_branch(report.run_id, report.attempts, datetime.now(UTC))
    properties = {"duckicelake.job": "ingest", "duckicelake.run-id": report.run_id}
    properties |= {f"duckicelake.version.{name}": version for name, version in report.versions.items()}
    properties |= options.batch.properties if options.batch else {}
    stage = Stage(desk.spark, desk.catalog, desk.connect, branch, properties, desk.tell)
    tables = _list_tables(options)
    for table in tables:
        discard_stale(desk.connect(), table, datetime.now(UTC))
    try:
        with plan.reading.holding() as reading:
            _prepare(desk, options, plan)
            outcome = _stage(desk, stage, options, replace(plan, reading=reading), report.run_id)
        plan.reading.check_still()
        has_landed = partial(_is_in_ledger, desk, options.table, report.run_id)
        has_followed = Publisher(desk.connect, outcome.staged, has_landed, options.mode is Mode.append, desk.tell).publish()
    except CommitStateUnknown:
        # What is staged may be what becomes visible.
        raise
    except BaseException:
        for table in tables:
            with suppress(CatalogError, OSError):
                discard(desk.connect(), table, [branch])
        raise
    with suppress(OSError):
        # Whether somebody hears of it or not, it is done.
        desk.tell(PUBLISHED)
    return replace(
        report,
        status=Status.done,
        rows_in=outcome.rows_in,
        rows_out=outcome.rows_in - outcome.bad - outcome.superseded,
        rows_quarantined=outcome.bad,
        rows_superseded=outcome.superseded,
        snapshots=_find_snapshots(desk, outcome.staged, report.run_id if has_followed else None),
    )


def _find_snapshots(desk: Desk, staged: Sequence[Staged], followed: str | None) -> dict[str, int]:
    """Where the run's rows became visible: at the branches' snapshots, but for that of a target which followed others, by the run's id."""
    found = {str(one.ident): one.head for one in staged}
    if followed is not None:
        target = staged[0].ident
        del found[str(target)]
        # Nobody has to hear of it: it is done.
        with suppress(CatalogError):
            found = {str(target): desk.connect().find_snapshot(target, "duckicelake.run-id", followed), **found}
    return found


def _prepare(desk: Desk, options: IngestOptions, plan: Plan) -> None:
    """Make the tables that are missing and the columns that the target lacks."""
    if plan.target is None:
        desk.tell(f"create {options.table}")
        desk.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(map(quote, (desk.catalog, *options.table.namespace)))}")
        desk.spark.sql(format_create(desk.name(options.table), format_columns(plan.made), options.partition_by))
    if plan.gets_order:
        for statement in format_order(desk.name(options.table), options.sort_by):
            desk.tell(f"order {options.table}")
            desk.spark.sql(statement)
    for change in plan.changes:
        desk.tell(f"{change} in {options.table}")
        desk.spark.sql(change.format_alter(desk.name(options.table)))
    ledger = desk.name(options.table.beside(LEDGER))
    desk.spark.sql(format_create(ledger, f"{LEDGER_COLUMNS}, {LATER_COLUMNS}"))
    if plan.ledger is not None:
        known = desk.spark.table(ledger).columns
        for column in (column for column in LATER_COLUMNS.split(", ") if column.split()[0] not in known):
            desk.spark.sql(f"ALTER TABLE {ledger} ADD COLUMN {column}")


def _stage(desk: Desk, stage: Stage, options: IngestOptions, plan: Plan, run_id: str) -> Outcome:
    """Everything on branches, counted: what went in is what comes out."""
    ledger = stage.open(options.table.beside(LEDGER))
    if ledger.base != plan.ledger:
        raise CommitFailed(f"another run of ingest wrote to {options.table}")
    target = stage.open(options.table)
    columns = _find_columns(desk, options)
    if plan_evolution(columns, plan.incoming, Evolve.widen):
        raise CommitFailed(f"the columns of {options.table} are others than they were made for this run")
    needed = options.key if options.mode is not Mode.scd2 else (*options.key, options.order_by or "")
    checked = check_rows(plan.reading, plan.incoming, columns, Demands(needed, plan.uuids, plan.looks_at_texts))
    if options.key:
        coverage = find_coverage(columns, plan.reading.find_shapes(plan.incoming))
        check_order(coverage, options.order_by)
        checked = replace(checked, coverage=coverage)
    stage.tell("count rows")
    outcome = Outcome([], survey(checked, plan.reading))
    if options.max_quarantined is not None and outcome.bad > options.max_quarantined:
        raise BadRequest(f"{outcome.bad} rows are bad, more than --max-quarantined {options.max_quarantined}; nothing was taken")
    good = outcome.rows_in - outcome.bad
    target, superseded = write_target(stage, options, target, checked, good)
    staged = [target, _write_ledger(stage, ledger, plan, outcome.counts, run_id)]
    if outcome.bad:
        staged.append(_write_quarantine(stage, options.table.beside(QUARANTINE), checked, outcome.bad, run_id))
    return replace(outcome, staged=staged, superseded=superseded)


def _write_ledger(stage: Stage, opened: Staged, plan: Plan, counts: Mapping[str, Count], run_id: str) -> Staged:
    none, now = Count(0, 0), datetime.now(UTC)
    taken = [(file, counts.get(file.path, none)) for file in plan.reading.files]
    rows = [
        *(
            (
                file.uri,
                file.size_bytes,
                file.modified_ms,
                count.rows,
                count.bad,
                run_id,
                now,
                file.etag,
                file.watermark_column,
                file.watermark,
            )
            for file, count in taken
        )
    ]
    stage.append(opened.ident, stage.spark.createDataFrame(rows, f"{LEDGER_COLUMNS}, {LATER_COLUMNS}").coalesce(1))
    written = stage.look_after(opened)
    check_count(written, len(rows))
    return written


def _write_quarantine(stage: Stage, ident: Ident, checked: Checked, bad: int, run_id: str) -> Staged:
    stage.spark.sql(format_create(quote_ident(stage.catalog, ident), QUARANTINE_COLUMNS))
    opened = stage.open(ident)
    stage.append(ident, checked.bad(run_id))
    written = stage.look_after(opened)
    check_count(written, bad)
    return written


def _is_in_ledger(desk: Desk, table: Ident, run_id: str) -> bool:
    try:
        ledger = desk.spark.table(desk.name(table.beside(LEDGER)))
        return bool(ledger.where(ledger["run_id"] == run_id).limit(1).collect())
    except SPARK_FAILURES as error:
        raise CommitStateUnknown(f"nobody knows whether the commit landed: {explain(error)}") from error
