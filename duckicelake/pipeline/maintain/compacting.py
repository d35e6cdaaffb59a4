"""One table's files written anew: planned again when others overtook it, and told by what is in the table."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from duckicelake.errors import CatalogError, CommitFailed, Unsupported
from duckicelake.pipeline.connect import is_gone
from duckicelake.pipeline.failures.steps import FAILURES, explain_failure
from duckicelake.pipeline.ingest.job import SPARK_FAILURES, SparkFailed
from duckicelake.pipeline.maintain.checks import check_may_write, check_possible, spell_order
from duckicelake.pipeline.maintain.desk import MaintainContext
from duckicelake.pipeline.maintain.pieces import RUN_ID, Landed, have_others_moved, list_landed
from duckicelake.pipeline.maintain.planning import Step, StepKind, TableFacts, plan_compaction
from duckicelake.pipeline.maintain.policy import Policy
from duckicelake.pipeline.maintain.report import StepResult, plan_of, report_found
from duckicelake.pipeline.maintain.rewriting import Rewritten, is_commit_failure, is_passing, is_piecemeal, rewrite
from duckicelake.pipeline.maintain.survey import TableName, check_shared
from duckicelake.pipeline.reports import Verdict
from duckicelake.pipeline.spark import LazySpark, procedures_with_properties

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
        # Pieces of an attempt before count too; where nobody tells, this one's are known.
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
        """What became of the pieces.

        Raises: SparkFailed: some could not be written, or committed; CommitFailed: others overtook all of them, or they each other
        """
        ident, after = self.name.ident, self._load()
        landed, lost = list_landed(after, self.properties[RUN_ID]), len(rewritten.uncommitted)
        come = len(landed.snapshots) - len(list_landed(before, self.properties[RUN_ID]).snapshots)
        if rewritten.unwritten_files:
            reason = next(iter(rewritten.unwritten), _OF_THE_LOG)
            raise SparkFailed(f"Spark could not write {rewritten.unwritten_files} files of {ident} anew: {reason}")
        if lost and not have_others_moved(before, after, self.properties[RUN_ID]):
            # Iceberg commits several at once and gives a piece up after a few tries.
            failure = CommitFailed if all(map(is_commit_failure, rewritten.uncommitted)) else SparkFailed
            raise failure(f"{lost} of {lost + come} pieces of {ident} could not be committed: {rewritten.uncommitted[0]}")
        if lost and not come:
            raise CommitFailed(f"others changed all that was written anew of {ident}")
        if not landed.snapshots:
            return []
        message = f"others overtook {lost} of {lost + come} pieces, which the next run takes" if lost else ""
        return [_add(replace(told, message=message), landed)]

    def _load(self) -> Mapping[str, Any]:
        return self.context.connect().load_every(self.name.ident)

    def _read_landed(self) -> Landed | None:
        """What this run has rewritten by now; None when that is nothing, or nobody tells."""
        with suppress(CatalogError, OSError):
            landed = list_landed(self._load(), self.properties[RUN_ID])
            return landed if landed.snapshots else None
        return None


def _add(done: StepResult, landed: Landed | None) -> StepResult:
    if landed is None:
        return done
    return replace(done, bytes=landed.bytes, removed=landed.removed, added=landed.added, snapshot_id=landed.snapshots[-1])
