"""The job: each table is planned and maintained, then the lake's snapshots and files. A table that fails is reported; the others go on.

`commands.jobs.maintain` calls `maintain` on the main thread. The facts of a table are read from Postgres in one read-only transaction.
Tables are changed over REST, by Spark or by requests; DuckDB flushes inlined rows, expires lake snapshots and deletes files.
`MaintainContext.sweep`, a function of the command, deletes unreferenced objects in the tables' locations, what purges and staged creates
left, with its notes in Postgres, and stale uploads; then it repairs as `duckicelake check --repair` does: every server drops its caches,
lost published objects are written again, and expired roles of DuckDB's readers dropped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import duckdb
import psycopg

from duckicelake.errors import (
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    NoSuchTable,
    ServiceUnavailable,
    Unsupported,
)
from duckicelake.pipeline.common import lake_tables
from duckicelake.pipeline.common.failures import FAILURES, explain_failure, explain_outage
from duckicelake.pipeline.common.lake_tables import TableName, check_may_write, may_write
from duckicelake.pipeline.common.reports import Stopwatch, Verdict, format_run_properties, read_versions
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.common.staging import discard, list_stale, make_run_id
from duckicelake.pipeline.maintain import lake_access
from duckicelake.pipeline.maintain.compaction import ATTEMPTS, Compactor
from duckicelake.pipeline.maintain.lake_access import MaintainContext
from duckicelake.pipeline.maintain.planning import (
    LAKE,
    MaintainReport,
    Step,
    StepKind,
    StepResult,
    format_forgetting,
    plan_expiry,
    plan_flush,
    plan_forgetting,
    plan_of,
    plan_removal,
    report_found,
)
from duckicelake.pipeline.maintain.policy import MaintainOptions, Policy

QUICK_ATTEMPTS = 10
"""How often a flush and a forgetting are tried, which others overtake easily; DuckLake would try as often."""
PAUSE_SECONDS = 0.2
EXPIRED_AT_ONCE = 500
Begin = Callable[[Step], None]
"""Hears of a step that is planned, and may fail from then on."""


def maintain(context: MaintainContext, options: MaintainOptions, *, dry_run: bool = False) -> MaintainReport:
    """Put the tables and the lake in order, or say what there is to do.

    Raises: CatalogError, psycopg.Error: it cannot even be planned
    """
    watch = Stopwatch(context.progress)
    versions, run_id = read_versions("duckdb"), make_run_id(datetime.now(UTC))
    told = replace(context, progress=watch.start_step)
    told.progress("look at the catalog")
    context.connect()
    properties = format_run_properties("maintain", run_id, versions)
    with closing(context.open_postgres()) as conn, closing(LazySpark(context.open_spark)) as spark:
        if not dry_run and not lake_access.share_lake(conn):
            busy = StepResult(LAKE, None, Verdict.failed, message="another run is removing orphans: run again when it is done")
            return MaintainReport(run_id, (busy,), 0, watch.read(), versions)
        live = lake_tables.list_live_tables(conn)
        names = lake_tables.choose_tables(live, options.tables)
        unknown = options.policies.list_unknown(str(name.ident) for name in live)
        keeper = Keeper(told, options, properties, spark, conn, dry_run)
        steps = [step for name in names for step in keeper.keep_table(name)]
        steps += [
            StepResult(name, None, Verdict.failed, message="the policy has a section for it, and no table takes it") for name in unknown
        ]
        if not options.tables:
            steps += keeper.keep_lake(conn, may_lose=not unknown)
    return MaintainReport(run_id, tuple(steps), len(names), watch.read(), versions)


@dataclass(frozen=True, slots=True)
class Keeper:
    """One run."""

    context: MaintainContext
    options: MaintainOptions
    properties: Mapping[str, str]
    spark: LazySpark
    conn: psycopg.Connection
    dry_run: bool
    ageless: set[int] = field(default_factory=set[int])
    """The tables, by id, that were found to let no snapshot go."""

    def keep_table(self, name: TableName) -> Iterator[StepResult]:
        """Flush and compact one table. What fails is said in its place."""
        table = str(name.ident)
        try:
            if self.dry_run:
                self.context.progress(f"plan {table}")
            metadata = self._load(name)
            policy = self._get_policy(name, metadata)
        except NoSuchTable as error:
            said = error.message
            self.ageless.add(name.table_id)
            yield from self._try(table, None, lambda _: self._report_hidden(name, said))
            return
        except Unsupported as error:
            self.ageless.add(name.table_id)
            yield StepResult(table, None, Verdict.skipped, message=error.message)
            return
        except FAILURES as error:
            yield StepResult(table, None, Verdict.failed, message=explain_failure(error, self.context.connect))
            return
        if not policy.enabled or policy.snapshot_age is None:
            self.ageless.add(name.table_id)
        if not policy.enabled:
            return
        yield from self._keep(name, StepKind.branches, lambda begin: self._drop_branches(name, metadata, begin))
        yield from self._keep(name, StepKind.flush, lambda begin: self._flush(name, policy, begin))
        yield from self._keep(name, StepKind.compact, lambda _: self._prepare(name, policy).compact(metadata, dry_run=self.dry_run))

    def keep_lake(self, conn: psycopg.Connection, *, may_lose: bool) -> Iterator[StepResult]:
        """Expire snapshots and remove files that no snapshot needs; `conn` is the run's, which shares the lake unless the run only plans.

        Not `may_lose`: some table has another policy than was meant, so what is there stays.
        """
        if may_lose:
            yield from self._try(LAKE, StepKind.expire, self._expire)
            yield from self._try(LAKE, StepKind.forget, lambda _: self._forget_all(conn))
        yield from self._try(LAKE, StepKind.clean_up, lambda _: self._remove(conn, may_lose))

    def _report_hidden(self, name: TableName, said: str) -> Sequence[StepResult]:
        with closing(self.context.open_postgres()) as conn:
            message = lake_tables.explain_hidden(conn, name, said)
        verdict = Verdict.failed if self.options.tables else Verdict.skipped
        return [StepResult(str(name.ident), None, verdict, message=message)] if message else []

    def _keep(self, name: TableName, kind: StepKind, act: Callable[[Begin], Sequence[StepResult]]) -> Sequence[StepResult]:
        """Take a step of a table's; what did nothing has not failed when that was dropped or renamed meanwhile."""
        done = self._try(str(name.ident), kind, act)
        vain = [step for step in done if step.verdict is Verdict.failed and not step.removed]
        return [step for step in done if step not in vain] if vain and self._is_gone(name) else done

    def _is_gone(self, name: TableName) -> bool:
        try:
            with closing(self.context.open_postgres()) as conn:
                return name not in lake_tables.list_live_tables(conn)
        except FAILURES:
            return False

    def _try(self, subject: str, kind: StepKind | None, act: Callable[[Begin], Sequence[StepResult]]) -> Sequence[StepResult]:
        begun: list[Step] = []
        try:
            return act(begun.append)
        except Unsupported as error:
            return [StepResult(subject, kind, Verdict.skipped, message=error.message)]
        except FAILURES as error:
            reason = begun[-1].reason if begun else ""
            return [StepResult(subject, kind, Verdict.failed, reason, message=explain_failure(error, self.context.connect))]

    def _load(self, name: TableName) -> Mapping[str, Any]:
        """Return what the catalog says of it. Raises: Unsupported: it has what the catalog does not publish; what `load_whole` raises."""
        lake_tables.check_askable(name)
        return self.context.connect().load_whole(name.ident)["metadata"]

    def _get_policy(self, name: TableName, metadata: Mapping[str, Any]) -> Policy:
        return self.options.policies.find(str(name.ident), metadata.get("properties", {}))

    def _drop_branches(self, name: TableName, metadata: Mapping[str, Any], begin: Begin) -> Sequence[StepResult]:
        stale = list_stale(metadata.get("refs", {}), datetime.now(UTC))
        if not stale:
            return []
        step = Step(StepKind.branches, f"{len(stale)} branches of dead runs of ingest", files=len(stale))
        if self.dry_run:
            return [plan_of(str(name.ident), step)]
        begin(step)
        self.context.progress(f"drop branches of {name.ident}")
        removed = discard(self.context.connect(), name.ident, stale)
        return [StepResult(str(name.ident), step.kind, Verdict.done, step.reason, removed=removed, attempts=1)] if removed else []

    def _flush(self, name: TableName, policy: Policy, begin: Begin) -> Sequence[StepResult]:
        failed: duckdb.Error | None = None
        for attempt in range(1, QUICK_ATTEMPTS + 1):
            facts = self.context.read_facts(name, policy)
            step = plan_flush(facts, policy)
            if facts.withheld and facts.inlined_rows + facts.inlined_deletes >= policy.flush_rows:
                return [StepResult(str(name.ident), StepKind.flush, Verdict.skipped, message=facts.withheld)]
            if step is None:
                return [] if failed is None else [report_found(str(name.ident), StepKind.flush, attempt)]
            if self.dry_run:
                return [plan_of(str(name.ident), step)]
            begin(step)
            check_may_write(self.context.connect(), name.ident)
            self.context.progress(f"flush {name.ident}")
            try:
                self.context.lake.flush(name, self.properties)
            except duckdb.Error as error:
                if self._is_gone(name):
                    return []
                failed = error
                self._pause(attempt, QUICK_ATTEMPTS)
            else:
                return [StepResult(str(name.ident), StepKind.flush, Verdict.done, step.reason, rows=step.rows, attempts=attempt)]
        raise failed or CommitFailed("nothing was tried")

    def _pause(self, attempt: int, attempts: int) -> None:
        if attempt < attempts:
            self.context.pause(PAUSE_SECONDS * attempt)

    def _prepare(self, name: TableName, policy: Policy) -> Compactor:
        return Compactor(self.context, self.spark, self.properties, self.conn, name, policy)

    def _expire(self, begin: Begin) -> Sequence[StepResult]:
        failed: duckdb.Error | None = None
        gone: list[int] = []
        for attempt in range(1, ATTEMPTS + 1):
            step = self._plan_expiry()
            if step is None:
                return [] if failed is None else [replace(report_found(LAKE, StepKind.expire, attempt), removed=sum(gone))]
            if self.dry_run:
                return [plan_of(LAKE, step)]
            begin(step)
            self.context.progress(f"{step.kind} {step.reason}")
            try:
                for start in range(0, len(step.versions), EXPIRED_AT_ONCE):
                    gone.append(self._expire_some(step.versions[start : start + EXPIRED_AT_ONCE]))
            except duckdb.Error as error:
                failed = error
                self._pause(attempt, ATTEMPTS)
            else:
                return (
                    [StepResult(LAKE, StepKind.expire, Verdict.done, step.reason, removed=sum(gone), attempts=attempt)] if any(gone) else []
                )
        raise failed or CommitFailed("nothing was tried")

    def _forget_all(self, conn: psycopg.Connection) -> Sequence[StepResult]:
        found: list[StepResult] = []
        for name in lake_tables.list_live_tables(conn):
            found += self._keep(name, StepKind.forget, lambda begin, name=name: self._forget(conn, name, begin))
        return found

    def _forget(self, conn: psycopg.Connection, name: TableName, begin: Begin) -> Sequence[StepResult]:
        """Let go of a table's snapshots that DuckLake does not have."""
        failed: CatalogError | None = None
        for attempt in range(1, QUICK_ATTEMPTS + 1):
            policy = self._find_loadable(name) if failed or lake_access.read_branch_snapshots(conn, name.table_id) else None
            if policy is None or policy.snapshot_age is None:
                return []
            rest = self.context.connect()
            try:
                metadata = rest.load_every(name.ident)
            except NoSuchTable:
                return []
            beside = lake_access.read_branch_snapshots(conn, name.table_id, metadata["table-uuid"])
            step = plan_forgetting(metadata, beside, policy, lake_access.read_now(conn))
            if step is None:
                return [] if failed is None else [report_found(str(name.ident), StepKind.forget, attempt)]
            if self.dry_run:
                return [plan_of(str(name.ident), step)]
            begin(step)
            self.context.progress(f"forget {step.reason} of {name.ident}")
            try:
                rest.commit([format_forgetting(name.ident, metadata, step.versions)])
            except (CommitFailed, CommitStateUnknown) as error:
                # When the catalog does not answer, each attempt may take minutes.
                if isinstance(error, CommitStateUnknown) and attempt >= ATTEMPTS:
                    raise
                failed = error
                self._pause(attempt, QUICK_ATTEMPTS)
            else:
                return [StepResult(str(name.ident), step.kind, Verdict.done, step.reason, removed=len(step.versions), attempts=attempt)]
        raise failed or CommitFailed("nothing was tried")

    def _plan_expiry(self) -> Step | None:
        with closing(self.context.open_postgres()) as conn:
            known = {name.table_id for name in lake_tables.list_live_tables(conn)}
            if self.options.policies.lake.snapshot_age is None and known <= self.ageless:
                return None
            # Snapshots first: a table that is made afterwards has none of them.
            snapshots, now, names = lake_access.read_snapshots(conn), lake_access.read_now(conn), lake_tables.list_live_tables(conn)
        # A table that cannot be loaded keeps its snapshots. Loading a table also records which lake snapshots its refs need.
        policies, lake = self._list_policies(names)
        return plan_expiry(snapshots, self._read_kept(), policies, lake, now)

    def _list_policies(self, names: Sequence[TableName]) -> tuple[dict[int, Policy], Policy]:
        """By what snapshots go, of tables and of the lake: those that this account may not write to stay, and so do those of no table."""
        found, lake = {name.table_id: self._find_loadable(name) or Policy() for name in names}, self.options.policies.lake
        foreign = [name for name in names if not may_write(self.context.connect(), name.ident)]
        found |= {name.table_id: Policy() for name in foreign}
        return found, replace(lake, snapshot_age=None) if foreign else lake

    def _expire_some(self, versions: Sequence[int]) -> int:
        # A ref may have come since these were chosen.
        kept = self._read_kept()
        some = [version for version in versions if version not in kept]
        return self.context.lake.expire(some) if some else 0

    def _read_kept(self) -> frozenset[int]:
        if not self.options.policies.lake.keep_refs:
            return frozenset()
        with closing(self.context.open_postgres()) as conn:
            return lake_access.read_named(conn)

    def _find_loadable(self, name: TableName) -> Policy | None:
        """Its policy; None when it is to be left alone, or that cannot be known. Raises: ServiceUnavailable: there is no catalog"""
        try:
            policy = self._get_policy(name, self._load(name))
        except CatalogError as error:
            if isinstance(error, ServiceUnavailable) and explain_outage(self.context.connect):
                raise
            return None
        return policy if policy.enabled else None

    def _remove(self, conn: psycopg.Connection, may_lose: bool) -> Sequence[StepResult]:
        lake = self.options.policies.lake
        now = lake_access.read_now(conn)
        scheduled = lake_access.count_scheduled(conn, now - lake.file_age)
        done: list[StepResult] = []
        for step in plan_removal(scheduled, lake, now):
            if step.kind is StepKind.orphans and not may_lose:
                continue
            if self.dry_run or step.before is None:
                done.append(plan_of(LAKE, step))
                continue
            done += self._try(LAKE, step.kind, partial(self._remove_files, conn, step, step.before))
        return done

    def _remove_files(self, conn: psycopg.Connection, step: Step, before: datetime, begin: Begin) -> Sequence[StepResult]:
        begin(step)
        self.context.progress(f"{step.kind} {step.reason}")
        if step.kind is StepKind.clean_up:
            removed = self.context.lake.clean_up(before)
            return [StepResult(LAKE, step.kind, Verdict.done, step.reason, removed=removed, attempts=1)]
        with lake_access.owning_lake(conn) as is_own:
            if not is_own:
                # What it has not committed yet looks like an orphan.
                return [StepResult(LAKE, step.kind, Verdict.skipped, message="another run is at work")]
            return [self._remove_orphans(conn, step, before)]

    def _remove_orphans(self, conn: psycopg.Connection, step: Step, before: datetime) -> StepResult:
        spared = {(name.schema_name, name.table_name) for name in lake_tables.list_live_tables(conn) if self._find_loadable(name) is None}
        removed = self.context.lake.remove_orphans(before)
        try:
            removed += len(self.context.sweep(before, spared))
        except FAILURES as error:
            told = f"{explain_failure(error, self.context.connect)} ({removed} objects below DATA_PATH were removed)"
            return StepResult(LAKE, step.kind, Verdict.failed, step.reason, removed=removed, message=told, attempts=1)
        return StepResult(LAKE, step.kind, Verdict.done, step.reason, removed=removed, attempts=1)
