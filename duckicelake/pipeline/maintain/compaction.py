"""Compaction of one table by Iceberg's `rewrite_data_files`, committed over REST with the run's id in every snapshot.

A large table is committed in pieces; the table's own history says which of them landed, and Iceberg's log why others did not.

`maintain.job` calls it in the driver, table by table. Facts are read from Postgres on a connection of their own; `conn` only holds the
advisory lock that runs share. Spark commits over REST.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from duckicelake.errors import CatalogError, CommitFailed, Unsupported
from duckicelake.pipeline.common.failures import FAILURES, SPARK_FAILURES, SparkFailed, explain_failure, shorten
from duckicelake.pipeline.common.lake_tables import TableName, check_may_write
from duckicelake.pipeline.common.reports import RUN_ID, Verdict
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_connect import is_gone
from duckicelake.pipeline.common.spark_session import LazySpark, jobs_tagged_as_pieces, procedures_with_properties
from duckicelake.pipeline.common.spark_sql import quote, quote_ident, quote_text
from duckicelake.pipeline.maintain.lake_access import MaintainContext, check_shared
from duckicelake.pipeline.maintain.planning import (
    Step,
    StepKind,
    StepResult,
    TableFacts,
    check_possible,
    plan_compaction,
    plan_of,
    report_found,
    spell_order,
)
from duckicelake.pipeline.maintain.policy import Policy, Strategy

WRITING = "org.apache.iceberg.spark.actions.RewriteDataFilesSparkAction"
COMMITTING = "org.apache.iceberg.actions.BaseCommitService"
"""The names of loggers, each of which logs one piece at a time."""
_END = "\x1e"


@contextmanager
def capturing_logs() -> Generator[Callable[[str], list[str]]]:
    """Inside, calling the value with a logger's name returns the traces that it has logged so far."""
    context: Any = SparkContext
    log4j = context._jvm.org.apache.logging.log4j
    found, told = log4j.LogManager.getContext(False), dict[str, Any]()
    heard = list[tuple[Any, Any]]()
    try:
        for name in (WRITING, COMMITTING):
            layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(f"%ex{_END}").withAlwaysWriteExceptions(False).build()
            told[name] = context._jvm.java.io.StringWriter()
            appender = log4j.core.appender.WriterAppender.createAppender(layout, None, told[name], name, False, True)
            appender.start()
            heard.append((found.getLogger(name), appender))
            heard[-1][0].addAppender(appender)
        yield lambda name: [trace for trace in str(told[name].toString()).split(_END) if trace.strip()]
    finally:
        # When Java is gone there is nothing to take back.
        with suppress(Py4JError, OSError):
            for logger, appender in heard:
                logger.removeAppender(appender)


GROUP_BYTES = 10 << 30
"""More than that is committed piece by piece, so that what is done stays done."""
_OVER_TARGET = 1.8
_PIECEMEAL = "partial-progress.enabled"
_OF_COMMITS = {"org.apache.iceberg.exceptions.CommitFailedException", "org.apache.iceberg.exceptions.CommitStateUnknownException"}
_OF_CONFLICTS = "org.apache.iceberg.exceptions.ValidationException"
_TOLD_OF_COMMITS = ("Cannot commit rewrite because of a ValidationException or CommitFailedException", "CommitStateUnknownException")
"""Texts of the same errors from a Spark Connect server, which does not send their classes."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The counts of a rewriting, and the errors of pieces that were not written or not committed."""

    removed: int
    added: int
    bytes: int
    unwritten_files: int = 0
    unwritten: tuple[str, ...] = ()
    uncommitted: tuple[str, ...] = ()


def rewrite(spark: SparkSession, catalog: str, ident: TableIdent, call: tuple[Policy, TableFacts, Step]) -> Rewritten:
    """Compact small files and leave deleted rows out. Raises: what Spark raises. For a large table the result lists failed pieces."""
    policy, facts, step = call
    statement = format_call(catalog, ident, policy, format_options(policy, facts, step))
    if not is_piecemeal(step):
        return _read(spark.sql(statement).collect()[0])
    with capturing_logs() as hear, jobs_tagged_as_pieces(spark):
        done = _read(spark.sql(statement).collect()[0])
        unwritten, uncommitted = (tuple(map(shorten, hear(name))) for name in (WRITING, COMMITTING))
        return replace(done, unwritten=unwritten, uncommitted=uncommitted)


def _read(row: Any) -> Rewritten:
    # Iceberg counts what failed before any commit, and passes over what was not committed.
    counts = ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count", "failed_data_files_count")
    return Rewritten(*(row[name] for name in counts))


def is_piecemeal(step: Step) -> bool:
    """Return True if it is committed piece by piece; what became of each is heard of in Java alone."""
    return step.bytes > GROUP_BYTES and not is_remote()


def is_passing(error: Exception) -> bool:
    """Return True if it may be over by now: others overtook a commit, its outcome is unknown, or the session's Java is gone."""
    if isinstance(error, CommitFailed) or is_gone(error):
        return True
    if is_remote():
        return any(words in str(error) for words in _TOLD_OF_COMMITS)
    names = list(_list_classes(error))
    # Bare, it is no conflict: Iceberg says so too of an order by a column that there is not.
    return not _OF_COMMITS.isdisjoint(names) or _OF_CONFLICTS in names[1:]


def is_commit_failure(trace: str) -> bool:
    """Return True if a trace is of a commit that another one overtook, or whose outcome is unknown."""
    return any(name in trace for name in _OF_COMMITS)


def _list_classes(error: Exception) -> Iterator[str]:
    """Yield the names of the classes of what went wrong in Java, each before its cause."""
    told: Any = error
    java = told.java_exception if isinstance(error, Py4JJavaError) else None
    with suppress(Py4JError, OSError):
        while java is not None:
            yield str(java.getClass().getName())
            java = java.getCause()


def format_options(policy: Policy, facts: TableFacts, step: Step) -> dict[str, str]:
    """Return the procedure's options, so that it chooses the files that were planned."""
    options = {
        "target-file-size-bytes": policy.target_size,
        "min-file-size-bytes": min(facts.small_bytes or policy.small_bytes, policy.target_size - 1),
        # Files above the target stay: to split them is much work for nothing.
        "max-file-size-bytes": max(int(policy.target_size * _OVER_TARGET), facts.largest_bytes) + 1,
        "min-input-files": policy.min_files,
        "delete-ratio-threshold": policy.delete_ratio,
    }
    if is_piecemeal(step):
        options |= {_PIECEMEAL: "true", "max-file-group-size-bytes": GROUP_BYTES}
    return {name: str(value) for name, value in options.items()}


def format_call(catalog: str, ident: TableIdent, policy: Policy, options: Mapping[str, str]) -> str:
    """Return the statement that rewrites; sorted by the order given, else by the table's own."""
    # Without the catalog, a namespace of a catalog's name would be taken for that one.
    arguments = [f"table => {quote_text(quote_ident(catalog, ident))}"]
    if policy.strategy is not Strategy.binpack:
        arguments.append("strategy => 'sort'")
        columns = ", ".join(quote(field.column) for field in policy.order)
        terms = f"zorder({columns})" if policy.strategy is Strategy.zorder else ", ".join(field.sql for field in policy.order)
        if terms:
            arguments.append(f"sort_order => {quote_text(terms)}")
    pairs = ", ".join(f"{quote_text(name)}, {quote_text(value)}" for name, value in options.items())
    return f"CALL {quote(catalog)}.system.rewrite_data_files({', '.join(arguments)}, options => map({pairs}))"


@dataclass(frozen=True, slots=True)
class Landed:
    """The pieces that are in the table: each is a snapshot, here oldest first."""

    snapshots: tuple[int, ...]
    removed: int
    added: int
    bytes: int


def list_landed(metadata: Mapping[str, Any], run_id: str) -> Landed:
    """Return the pieces of a run, from all snapshots of the table."""
    summaries = {one["snapshot-id"]: one["summary"] for one in metadata.get("snapshots", ())}
    # Clients see a snapshot by its other name too, which main was never at.
    ours = [one for one in _list_states(metadata) if summaries.get(one, {}).get(RUN_ID) == run_id]
    names = ("deleted-data-files", "added-data-files", "removed-files-size")
    return Landed(tuple(ours), *(sum(int(summaries[one].get(name, 0)) for one in ours) for name in names))


def have_others_moved(before: Mapping[str, Any], after: Mapping[str, Any], run_id: str) -> bool:
    """Return True if anybody but the run moved main meanwhile."""
    states, mine = _list_states(after), set(list_landed(after, run_id).snapshots)
    others = [one for one in states if one not in mine]
    return others != [one for one in _list_states(before) if one not in mine]


def _list_states(metadata: Mapping[str, Any]) -> list[int]:
    return list(dict.fromkeys(entry["snapshot-id"] for entry in metadata.get("snapshot-log", ())))


ATTEMPTS = 3
_OF_THE_LOG = "for the reason that its log gives"


@dataclass(frozen=True, slots=True)
class Compactor:
    """The compaction of one table, of which its snapshots carry the properties; `conn` shares the lake with other runs."""

    context: MaintainContext
    spark: LazySpark
    properties: Mapping[str, str]
    conn: psycopg.Connection
    name: TableName
    policy: Policy

    def compact(self, metadata: Mapping[str, Any], *, dry_run: bool) -> Sequence[StepResult]:
        """Do it, if there is something to do, or say what. Raises: FAILURES: it cannot be done."""
        facts, step = self._plan()
        if step is None:
            return []
        check_possible(self.policy, metadata)
        if dry_run:
            return [plan_of(str(self.name.ident), step)]
        try:
            self._announce()
            return replace(self, policy=spell_order(self.policy, metadata))._attempt(facts, step)
        except Unsupported:
            raise
        except FAILURES as error:
            failed = StepResult(
                str(self.name.ident), StepKind.compact, Verdict.failed, step.reason, message=explain_failure(error, self.context.connect)
            )
            return [_add(failed, self._read_landed())]

    def _plan(self) -> tuple[TableFacts, Step | None]:
        facts = self.context.read_facts(self.name, self.policy)
        return facts, plan_compaction(facts, self.policy)

    def _announce(self) -> None:
        check_may_write(self.context.connect(), self.name.ident)
        self.context.progress(f"compact {self.name.ident}")
        check_shared(self.conn)

    def _attempt(self, facts: TableFacts, planned: Step) -> Sequence[StepResult]:
        step: Step | None = planned
        failed: Exception | None = None
        for attempt in range(1, ATTEMPTS + 1):
            if failed is not None:
                facts, step = self._plan()
                if step is None:
                    # A commit whose answer was lost is found done.
                    return [_add(report_found(str(self.name.ident), StepKind.compact, attempt), self._read_landed())]
                if not is_passing(failed):
                    break
                self._announce()
            try:
                return self._rewrite(facts, step or planned, attempt)
            except (CommitFailed, *SPARK_FAILURES) as error:
                failed = error
        raise failed or CommitFailed("nothing was tried")

    def _rewrite(self, facts: TableFacts, step: Step, attempt: int) -> Sequence[StepResult]:
        before = self._load() if is_piecemeal(step) else None
        rewritten = self._have_written(facts, step)
        told = StepResult(str(self.name.ident), StepKind.compact, Verdict.done, step.reason, attempts=attempt)
        if before is not None:
            return self._judge(told, rewritten, before)
        done = _add(told, self._read_landed())
        # Pieces of an earlier attempt count too; if the catalog does not list them, only those of this attempt are known.
        if done.removed <= rewritten.removed:
            done = replace(done, bytes=rewritten.bytes, removed=rewritten.removed, added=rewritten.added)
        return [done] if done.removed else []

    def _have_written(self, facts: TableFacts, step: Step) -> Rewritten:
        try:
            session = self.spark.get()
            with procedures_with_properties(session, self.context.catalog, self.properties):
                return rewrite(session, self.context.catalog, self.name.ident, (self.policy, facts, step))
        except SPARK_FAILURES as error:
            if is_gone(error):
                self.spark.close()
            raise

    def _judge(self, told: StepResult, rewritten: Rewritten, before: Mapping[str, Any]) -> Sequence[StepResult]:
        """Return what became of the pieces.

        Raises: SparkFailed: some could not be written, or committed; CommitFailed: others overtook all of them, or they each other
        """
        ident, after = self.name.ident, self._load()
        landed, lost = list_landed(after, self.properties[RUN_ID]), len(rewritten.uncommitted)
        come = len(landed.snapshots) - len(list_landed(before, self.properties[RUN_ID]).snapshots)
        if rewritten.unwritten_files:
            reason = next(iter(rewritten.unwritten), _OF_THE_LOG)
            raise SparkFailed(f"Spark could not rewrite {rewritten.unwritten_files} files of {ident}: {reason}")
        if lost and not have_others_moved(before, after, self.properties[RUN_ID]):
            # Iceberg commits several at once and gives a piece up after a few tries.
            failure = CommitFailed if all(map(is_commit_failure, rewritten.uncommitted)) else SparkFailed
            raise failure(f"{lost} of {lost + come} pieces of {ident} could not be committed: {rewritten.uncommitted[0]}")
        if lost and not come:
            raise CommitFailed(f"others changed all rewritten files of {ident}")
        if not landed.snapshots:
            return []
        message = f"others overtook {lost} of {lost + come} pieces, which the next run takes" if lost else ""
        return [_add(replace(told, message=message), landed)]

    def _load(self) -> Mapping[str, Any]:
        return self.context.connect().load_every(self.name.ident)

    def _read_landed(self) -> Landed | None:
        """Return what this run has rewritten by now; None if nothing, or if the catalog does not answer."""
        with suppress(CatalogError, OSError):
            landed = list_landed(self._load(), self.properties[RUN_ID])
            return landed if landed.snapshots else None
        return None


def _add(done: StepResult, landed: Landed | None) -> StepResult:
    if landed is None:
        return done
    return replace(done, bytes=landed.bytes, removed=landed.removed, added=landed.added, snapshot_id=landed.snapshots[-1])
