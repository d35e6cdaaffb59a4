"""The job `ingest`: plan, count rows, create what is missing, write to branches, and publish all tables in one commit.

`follow` is one run after another for the files that arrive at the source, until it is asked to end. `commands.jobs.ingest` calls both on
the main thread of the driver. The lake is reached through Spark and over REST alone, never by Postgres.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any

from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, CommitStateUnknown, ServiceUnavailable
from duckicelake.pipeline.common.failures import SPARK_FAILURES, SparkFailed, explain_outage, explain_spark
from duckicelake.pipeline.common.reports import PUBLISHED, RUN_ID, Stopwatch, format_run_properties, read_versions
from duckicelake.pipeline.common.rest import UNKNOWN, Rest, TableHead, TableIdent
from duckicelake.pipeline.common.spark_connect import EXPOSES_DEFAULTS, KEEPS_READS
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.common.spark_sql import add_defaults, check_partitions, parse_columns
from duckicelake.pipeline.common.staging import Stage, Staged, check_count, discard, discard_stale, make_branch, make_run_id
from duckicelake.pipeline.common.storage import NoSource
from duckicelake.pipeline.ingest.database_source import open_database
from duckicelake.pipeline.ingest.file_checks import refusing_mixed_types
from duckicelake.pipeline.ingest.file_source import open_files
from duckicelake.pipeline.ingest.merging import VALIDITY, add_validity, drop_validity, widen_validity
from duckicelake.pipeline.ingest.options import Batch, Evolve, IngestMode, IngestOptions, IngestReport, Run, Status
from duckicelake.pipeline.ingest.plan import LATER_COLUMNS, LEDGER, LEDGER_COLUMNS, QUARANTINE, IngestPlan, TableMaker, choose_columns
from duckicelake.pipeline.ingest.row_checks import RowCount, check_lines, keep_bad_files, select_bad, write_quarantine
from duckicelake.pipeline.ingest.schema_evolution import check_metadata_name, check_names, plan_evolution, spell_names
from duckicelake.pipeline.ingest.source import SourceMoved
from duckicelake.pipeline.ingest.writing import (
    DraftBasis,
    RowsLeftOut,
    RunPublisher,
    WriteDraft,
    check_source,
    check_values,
    draft_rows,
    get_basis,
    write_target,
)

SEPARATELY = "take them one after the other, those of the narrower type first, the others with --evolve widen; nothing was taken"


@dataclass(frozen=True, slots=True)
class StagedRun:
    """The branches of a run, the target's first, and the counts of rows."""

    staged: Sequence[Staged]
    draft: WriteDraft


def ingest(context: JobContext, options: IngestOptions, *, dry_run: bool = False, run: Run | None = None) -> IngestReport:
    """Take every file of the source that was not taken yet, and say what became of the rows.

    `run`, if one is given, knows what was known when it raises.
    Raises: CatalogError: nothing was taken, for the reason that it says; CommitStateUnknown: running again finds out
    """
    watch, run = Stopwatch(context.progress), run or begin(options)
    context = replace(context, progress=watch.start_step)
    try:
        with TableMaker(context.spark, context.catalog, context.connect, context.progress).taking_back() as maker:
            _ingest(context, options, run, maker, dry_run=dry_run)
    except CommitStateUnknown as error:
        where = f"run {run.report.run_id} is in {options.table.with_suffix(LEDGER)} if it did, and running again finds out"
        raise CommitStateUnknown(f"{error.message}; {where}") from error
    except SPARK_FAILURES as error:
        raise SparkFailed(options.hide(f"{explain_outage(context.connect) or explain_spark(error)}\nNothing was taken.")) from error
    finally:
        run.note(seconds=watch.read())
    return run.report


def _ingest(context: JobContext, options: IngestOptions, run: Run, maker: TableMaker, *, dry_run: bool) -> None:
    for attempt in range(1, options.attempts + 1):
        rest = context.connect()
        context.progress(f"list {options.source}")
        plan = _plan_run(context, rest, options)
        if plan is None:
            if not dry_run:
                _discard_stale(rest, options)
            maker.take_back()
            # An attempt before may have counted what another run took then.
            run.note(status=Status.nothing_new, files=0, bytes=0, plan=())
            return
        options = spell_names(options, plan.names)
        files = plan.reading.files
        run.note(files=len(files), bytes=sum(file.size_bytes or 0 for file in files), plan=plan.describe(options))
        if dry_run:
            return
        run.note(attempts=attempt)
        try:
            return _attempt_with_retry(context, options, plan, run, maker)
        except CommitFailed as error:
            context.progress(f"again, because {error.message}")
    raise CommitFailed(f"{options.table} was changed by others during each of {options.attempts} attempts; nothing was taken")


def _list_tables(options: IngestOptions) -> list[TableIdent]:
    return [options.table, options.table.with_suffix(LEDGER), options.table.with_suffix(QUARANTINE)]


def _discard_stale(rest: Rest, options: IngestOptions) -> None:
    """Remove what dead runs left; that this cannot be done now makes nothing new of what is not."""
    for table in _list_tables(options):
        with suppress(CatalogError):
            discard_stale(rest, table, datetime.now(UTC))


def begin(options: IngestOptions) -> Run:
    """Return a run that has done nothing yet."""
    run_id = make_run_id(datetime.now(UTC))
    return Run(IngestReport(run_id, str(options.table), options.source, options.mode, Status.planned, versions=read_versions()))


def _plan_run(context: JobContext, rest: Rest, options: IngestOptions) -> IngestPlan | None:
    """Return the plan, None when there is nothing to take."""
    # The ledger first: before it has rows the table is there.
    ledger_head, head = rest.load(options.table.with_suffix(LEDGER)), rest.load(options.table)
    base = None if ledger_head is None else ledger_head.main
    check_pair(options.table, head, base)
    name = context.name(options.table.with_suffix(LEDGER))
    ledger = None if base is None else context.spark.read.option("versionAsOf", base).table(name)
    reading = open_database(context.spark, options, ledger) if options.is_database else open_files(context.spark, options, ledger)
    if reading is None:
        return None
    check_lines(reading)
    check_target(head, options)
    target = None if head is None else _read_target_columns(context, options)
    given = None if options.schema is None else parse_columns(options.schema)
    with refusing_mixed_types(SEPARATELY):
        incoming = choose_columns(reading, given, target, options.evolve)
    check_metadata_name(incoming, options)
    changes = () if target is None else plan_evolution(target, incoming, options.evolve)
    if target is not None and options.mode is IngestMode.scd2:
        held = context.spark.table(context.name(options.table)).schema
        changes = (*changes, *widen_validity(held, changes, incoming, options.order_by or ""))
    known = {name.lower() for name in (*incoming.names, *(target.names if target else ()))}
    check_names(options, known, known | set(VALIDITY) if options.mode is IngestMode.scd2 else known)
    made = add_validity(incoming, options.order_by or "") if options.mode is IngestMode.scd2 else incoming
    check_partitions(options.partition_by, target or made)
    plan = IngestPlan(reading, incoming, made, target, changes, base, head is None or _may_get_order(head))
    # Merges read the rows several times anyway, and a limit on bad rows must be checked before anything is created.
    return replace(plan, looks_at_texts=bool(options.key) or (options.max_quarantined is not None and plan.makes))


def _read_target_columns(context: JobContext, options: IngestOptions) -> StructType:
    """Return the columns of the target that come from files."""
    columns = context.spark.table(context.name(options.table)).schema
    head = None if EXPOSES_DEFAULTS or not options.key else context.connect().load(options.table)
    columns = columns if head is None else add_defaults(columns, head.defaults)
    return drop_validity(columns) if options.mode is IngestMode.scd2 else columns


def check_pair(table: TableIdent, head: TableHead | None, ledger: int | None) -> None:
    """Raises: BadRequest: the table is gone, and its ledger would have its files passed over."""
    if head is None and ledger is not None:
        raise BadRequest(
            f"{table} is gone and {table.with_suffix(LEDGER)} is there, which would have its files passed over: "
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
    if options.mode is IngestMode.overwrite_partitions and not (partitions if head is None else head.partitions):
        raise BadRequest(f"{options.table} has no partitions: all of its rows would be overwritten")


def _attempt_with_retry(context: JobContext, options: IngestOptions, plan: IngestPlan, run: Run, maker: TableMaker) -> None:
    """Texts that are not in UTF-8 are seldom, so they are looked for while they are written, and before that if some were left out then."""
    try:
        _attempt(context, options, plan, run, maker)
    except RowsLeftOut as error:
        context.progress(f"again, because {error.message}")
        # The table is there by now, and has its new columns.
        made = replace(plan, target=plan.planned_columns, changes=(), gets_order=False)
        _attempt(context, options, replace(made, looks_at_texts=True), run, maker)


def _attempt(context: JobContext, options: IngestOptions, plan: IngestPlan, run: Run, maker: TableMaker) -> None:
    report = run.report
    branch = make_branch(report.run_id, report.attempts, datetime.now(UTC))
    properties = format_run_properties("ingest", report.run_id, report.versions)
    properties |= options.batch.properties if options.batch else {}
    stage = Stage(context.spark, context.catalog, context.connect, branch, properties, context.progress)
    tables = _list_tables(options)
    for table in tables:
        discard_stale(context.connect(), table, datetime.now(UTC))
    try:
        with plan.reading.holding() as reading:
            held = replace(plan, reading=reading)
            # Bad rows are found before anything is created.
            draft = _draft_before_changes(context, stage, options, held)
            maker.prepare(options, plan, may_be_bad=draft.bad > 0)
            outcome = _stage(context, stage, options, held, draft)
        plan.reading.check_still()
        has_followed = _publish(context, options, outcome, run)
    except CommitStateUnknown:
        # What is staged may be what becomes visible.
        raise
    except BaseException:
        for table in tables:
            with suppress(CatalogError, OSError):
                discard(context.connect(), table, [branch])
        raise
    with suppress(OSError):
        # The commit is done even if the listener fails.
        context.progress(PUBLISHED)
    snapshots = _list_new_snapshots(context, outcome.staged, report.run_id if has_followed else None)
    run.note(status=Status.done, snapshots=snapshots, **outcome.draft.counted)


def _publish(context: JobContext, options: IngestOptions, outcome: StagedRun, run: Run) -> bool:
    """Publish what was staged; whether the target's rows followed others'."""
    has_landed = partial(_is_in_ledger, context, options.table, run.report.run_id)
    try:
        return RunPublisher(context.connect, outcome.staged, has_landed, options.mode is IngestMode.append, context.progress).publish()
    except CommitStateUnknown:
        # Rows that may be there by now; of a run that failed none are.
        run.note(**outcome.draft.counted)
        raise


def _list_new_snapshots(context: JobContext, staged: Sequence[Staged], followed: str | None) -> dict[str, int]:
    """Return the snapshots that published the run: the branches' heads; a target that followed others is found by the run's id."""
    found = {str(one.ident): one.head for one in staged}
    if followed is not None:
        target = staged[0].ident
        del found[str(target)]
        # The run is published; its snapshot id is only for the report.
        with suppress(CatalogError):
            found = {str(target): context.connect().read_snapshot_id(target, RUN_ID, followed), **found}
    return found


def _draft_before_changes(context: JobContext, stage: Stage, options: IngestOptions, plan: IngestPlan) -> WriteDraft:
    """Return what is going to be written to a table that may have yet to be made. Raises: BadRequest: it would be refused"""
    head = context.connect().load(options.table)
    if (head is None) != (plan.target is None):
        raise CommitFailed(f"{options.table} was made or dropped by others")
    basis = replace(get_basis(options, plan.planned_columns, head), is_planned=plan.makes)
    draft = _draft(stage, options, plan, basis)
    if plan.makes:
        plan.reading.check_still()
    return draft


def _draft(stage: Stage, options: IngestOptions, plan: IngestPlan, basis: DraftBasis) -> WriteDraft:
    checked = check_source(options, plan.reading, plan.incoming, basis, looks_at_texts=plan.looks_at_texts)
    return draft_rows(stage, options, plan.reading, checked, basis)


def _stage(context: JobContext, stage: Stage, options: IngestOptions, plan: IngestPlan, draft: WriteDraft) -> StagedRun:
    """Return everything on branches: what went in is what comes out."""
    ledger = stage.open(options.table.with_suffix(LEDGER))
    if ledger.base != plan.ledger:
        raise CommitFailed(f"another run of ingest wrote to {options.table}")
    target = stage.open(options.table)
    columns = _read_target_columns(context, options)
    if plan_evolution(columns, plan.incoming, Evolve.widen):
        raise CommitFailed(f"the columns of {options.table} are others than they were made for this run")
    basis = replace(get_basis(options, columns, stage.load(options.table)), base=target.base if options.key else None)
    is_lost = bool(plan.changes) and options.mode is IngestMode.scd2 and not KEEPS_READS
    if basis != draft.basis or is_lost:
        # It is another table than was foreseen, or has other rows, or those that it held are to be read again.
        draft = _draft(stage, options, plan, basis)
    run_id = stage.properties[RUN_ID]
    staged = [write_target(stage, options, target, draft), _write_ledger(stage, ledger, plan, draft.counts, run_id)]
    if draft.bad:
        apart = keep_bad_files(plan.reading, draft.counts)
        checked = check_values(options, apart, plan.incoming, draft.basis, looks_at_texts=plan.looks_at_texts)
        staged.append(write_quarantine(stage, options.table.with_suffix(QUARANTINE), select_bad(checked, apart, run_id), draft.bad))
    return StagedRun(staged, draft)


def _write_ledger(stage: Stage, opened: Staged, plan: IngestPlan, counts: Mapping[str, RowCount], run_id: str) -> Staged:
    none, now = RowCount(0, 0), datetime.now(UTC)
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


def _is_in_ledger(context: JobContext, table: TableIdent, run_id: str) -> bool:
    try:
        ledger = context.spark.table(context.name(table.with_suffix(LEDGER)))
        return bool(ledger.where(ledger["run_id"] == run_id).limit(1).collect())
    except SPARK_FAILURES as error:
        said = explain_outage(context.connect) or explain_spark(error)
        raise CommitStateUnknown(f"{UNKNOWN}{said}") from error


PASSING = (ServiceUnavailable, CommitFailed, CommitStateUnknown, NoSource, SourceMoved)
"""Errors after which the next batch may succeed. The ledger says whether a commit landed whose answer was lost."""

BREAKDOWNS = 3
"""Spark does not say whether what broke it passes (a catalog that is started again) or stays (a file that cannot be read)."""

_OPTIONS = {
    "poll": "poll_seconds",
    "batch_files": "batch_files",
    "settle": "settle_seconds",
    "max_batches": "max_batches",
    "follow_for": "seconds",
}
"""The command's options that mean something with `--follow` alone."""

COUNTS = ("files", "bytes", "rows_in", "rows_out", "rows_quarantined", "rows_superseded")


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Limits by which a source is followed. None: without an end.

    `settle_seconds` is how long a file must not have changed: a writer may not have closed it yet.
    """

    poll_seconds: float = 10.0
    batch_files: int = 1000
    settle_seconds: float = 2.0
    max_batches: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        limits = {"--poll": self.poll_seconds, "--batch-files": self.batch_files, "--max-batches": self.max_batches}
        wrong = next((name for name, limit in limits.items() if limit is not None and limit <= 0), None)
        if wrong is not None:
            raise BadRequest(f"{wrong} must be more than 0")
        if self.settle_seconds < 0 or (self.seconds is not None and self.seconds < 0):
            raise BadRequest("--settle and --follow-for are no less than 0 seconds")


@dataclass(frozen=True, slots=True)
class FollowReport:
    """The sums of all batches. `last` is the newest batch, `message` says why the newest look at the source failed."""

    follow_id: str
    table: str
    source: str
    mode: str
    status: Status = Status.nothing_new
    batches: int = 0
    files: int = 0
    bytes: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    rows_superseded: int = 0
    failures: int = 0
    last: IngestReport | None = None
    message: str = ""

    def add(self, done: IngestReport) -> "FollowReport":
        """Return the report after a look that did not fail."""
        told = replace(self, message="", status=Status.done if self.batches else done.status)
        if done.status is not Status.done:
            return told
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(done, name) for name in COUNTS}
        return replace(told, batches=self.batches + 1, last=done, **sums)

    def fail(self, error: CatalogError) -> "FollowReport":
        """Return the report after a look that failed."""
        status = Status.unknown if isinstance(error, CommitStateUnknown) else Status.failed
        return replace(self, status=status, failures=self.failures + 1, message=error.message)

    def format_json(self) -> str:
        """Return the report for machines."""
        fields: Mapping[str, Any] = {"job": "ingest", **asdict(self)}
        return json.dumps(fields, indent=2) + "\n"


class FollowBroken(Exception):
    """An unexpected error ended the run; the cause says which. `report` covers the batches until then."""

    def __init__(self, report: FollowReport) -> None:
        super().__init__(report.message)
        self.report = report


def follow(
    context: JobContext, options: IngestOptions, how: FollowOptions, wait: Callable[[float], bool], heard: Callable[[FollowReport], None]
) -> FollowReport:
    """Take what comes, batch by batch; `heard` is given the report after each look that took something or failed.

    `wait` waits so many seconds and says whether the end is asked for; it is not called during a batch.
    What does not pass by itself (a file that has changed, columns that do not fit) ends the run with its message, and so does what
    breaks Spark again and again. Raises: FollowBroken
    """
    began, breakdowns = monotonic(), 0
    report = begin_follow(options)
    try:
        while True:
            before = report
            try:
                report = report.add(ingest(context, replace(options, batch=_make_batch(report, how))))
                breakdowns = 0
            except PASSING as error:
                report = report.fail(error)
            except SparkFailed as error:
                report, breakdowns = report.fail(error), breakdowns + 1
                if breakdowns == BREAKDOWNS:
                    return report
            except CatalogError as error:
                return report.fail(error)
            if report.batches > before.batches or report.message:
                heard(report)
            left = None if how.seconds is None else began + how.seconds - monotonic()
            if report.batches == how.max_batches or (left is not None and left <= 0):
                return report
            # After a batch there may be more already.
            pause = 0.0 if report.batches > before.batches else how.poll_seconds
            if wait(pause if left is None else min(pause, left)):
                return report
    except Exception as error:
        raise FollowBroken(replace(report, failures=report.failures + 1)) from error


def begin_follow(options: IngestOptions) -> FollowReport:
    """Return the report of a source before its first batch."""
    return FollowReport(make_run_id(datetime.now(UTC)), str(options.table), options.source, options.mode)


def check_followed(options: IngestOptions) -> None:
    """Raises: BadRequest: such a run cannot be one batch of many"""
    replace(options, batch=Batch("", 1, 1, 0))


def _make_batch(report: FollowReport, how: FollowOptions) -> Batch:
    now = datetime.now(UTC).timestamp()
    return Batch(report.follow_id, report.batches + 1, how.batch_files, int((now - how.settle_seconds) * 1000))


def read_follow(given: Mapping[str, Any]) -> FollowOptions | None:
    """Return how the command is to follow its source, None when it is not to.

    Raises: BadRequest: an option is given that means nothing without `--follow`, or cannot be meant
    """
    asked = {name: given[name] for name in _OPTIONS if given[name] is not None}
    if not given["follow"]:
        if asked:
            raise BadRequest(f"{', '.join(f'--{name}'.replace('_', '-') for name in asked)} belongs to --follow")
        return None
    if given["dry_run"]:
        raise BadRequest("--dry-run plans once, --follow goes on: choose one")
    return FollowOptions(**{_OPTIONS[name]: limit for name, limit in asked.items()})
