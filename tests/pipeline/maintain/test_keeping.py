"""What a run does when the catalog changes under it or something fails: on a desk of stand-ins, without a lake."""

from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import psycopg
import pytest

from duckicelake.errors import CatalogError, CommitFailed, ServiceUnavailable
from duckicelake.pipeline.common import lake_tables
from duckicelake.pipeline.common.http_client import ANONYMOUS, Authenticator
from duckicelake.pipeline.common.lake_tables import TableName
from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.maintain import job, lake_access
from duckicelake.pipeline.maintain.job import QUICK_ATTEMPTS, maintain
from duckicelake.pipeline.maintain.lake_access import MaintainContext
from duckicelake.pipeline.maintain.planning import LakeSnapshot, StepKind, StepResult, TableFacts
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies

NOW = datetime(2026, 3, 1, tzinfo=UTC)
INLINED = TableFacts(inlined_rows=3, inlined_batches=1)
CLASH = duckdb.TransactionException("others came first")
EXPIRING = {"snapshot-age": "0s"}
SWEEPING = {"orphan-age": "1h"}
Outcome = Any
"""What a call comes to: it is raised if it can be."""


def come_to(outcomes: list[Outcome]) -> Outcome:
    """The next one; the last one is every further one too."""
    outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@dataclass(slots=True)
class Lake:
    """A lake of stand-ins: what is told of it, what its functions come to, and what was asked of them."""

    tables: dict[str, dict[str, str]] = field(default_factory=lambda: {"t": {}})
    facts: list[Outcome] = field(default_factory=lambda: [TableFacts()])
    flushes: list[Outcome] = field(default_factory=lambda: [None])
    named: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    besides: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    commits: list[Outcome] = field(default_factory=lambda: [None])
    expiries: list[Outcome] = field(default_factory=lambda: [None])
    sweeps: list[Outcome] = field(default_factory=lambda: [()])
    caller: Authenticator = ANONYMOUS
    may_share: bool = True
    may_own: bool = True
    scheduled: int = 0
    end: str | tuple[str, ...] = "(nowhere)"
    asked: list[Any] = field(default_factory=list[Any])
    loads: list[str] = field(default_factory=list[str])
    history_reads: int = 0
    pauses: list[float] = field(default_factory=list[float])

    def list_live_tables(self, _: Any) -> list[TableName]:
        return [TableName(number, "main", name) for number, name in enumerate(self.tables, start=1)]

    def read_snapshots(self, _: Any) -> list[LakeSnapshot]:
        self.history_reads += 1
        return [LakeSnapshot(number, NOW - timedelta(days=9 - number), frozenset({1})) for number in range(6)]

    @contextmanager
    def owning(self, _: Any) -> Any:
        yield self.may_own

    def load_whole(self, ident: TableIdent) -> Any:
        self.loads.append(ident.name)
        return {"metadata": {"properties": self.tables[ident.name]}}

    def load_every(self, _: TableIdent) -> Any:
        times = [{"snapshot-id": number, "sequence-number": number, "timestamp-ms": 0} for number in range(6)]
        log = [{"snapshot-id": number} for number in range(6)]
        refs = {"main": {"snapshot-id": 5}}
        return {"table-uuid": "u", "current-snapshot-id": 5, "refs": refs, "snapshots": times, "snapshot-log": log}

    def commit(self, changes: Sequence[Any]) -> None:
        [change] = changes
        self.asked.append(change)
        come_to(self.commits)

    def flush(self, *_: Any) -> None:
        self.asked.append("flush")
        come_to(self.flushes)

    def expire(self, versions: Sequence[int]) -> int:
        self.asked.append(tuple(versions))
        come_to(self.expiries)
        return len(versions)

    def tell(self, step: str) -> None:
        if step.startswith(self.end):
            raise CatalogError(f"stopped before: {step}")

    def clean_up(self, _: datetime) -> int:
        return self.scheduled

    def remove_orphans(self, _: datetime) -> int:
        return 2

    def sweep(self, _: datetime, spared: Collection[tuple[str, str]]) -> Sequence[str]:
        self.asked.append(spared)
        return come_to(self.sweeps)

    def close(self) -> None:
        """As a connection."""


Run = Callable[..., list[StepResult]]


@pytest.fixture
def lake() -> Lake:
    """One table, and nothing to do."""
    return Lake()


@pytest.fixture
def run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Have the job done there; the policy is that of all tables, and of some."""
    told: dict[str, Callable[..., Any]] = {
        "list_live_tables": lake.list_live_tables,
        "read_facts": lambda *_: come_to(lake.facts),
        "read_snapshots": lake.read_snapshots,
        "read_named": lambda _: come_to(lake.named),
        "read_branch_snapshots": lambda *_: come_to(lake.besides),
        "read_now": lambda _: NOW,
        "count_scheduled": lambda *_: lake.scheduled,
        "share_lake": lambda _: lake.may_share,
        "owning_lake": lake.owning,
    }
    for name, function in told.items():
        monkeypatch.setattr(lake_tables if name == "list_live_tables" else lake_access, name, function)
    monkeypatch.setattr(job, "EXPIRED_AT_ONCE", 2)
    stand_in: Any = lake
    desk = MaintainContext(lambda: stand_in, lambda: stand_in, stand_in, lambda: stand_in, "c", lake.sweep, lake.tell, lake.pauses.append)

    def run(default: dict[str, Any] | None = None, *, dry_run: bool = False, **tables: Any) -> list[StepResult]:
        policies = MaintainPolicies(default or {}, {f"main.{name}": section for name, section in tables.items()})
        return list(maintain(desk, MaintainOptions(policies=policies), dry_run=dry_run).steps)

    return run


def test_a_flush_that_others_overtook_is_made_again(lake: Lake, run: Run) -> None:
    """Up to ten times, with longer and longer pauses, and each time for what is there then."""
    lake.facts, lake.flushes = [INLINED, TableFacts(inlined_rows=5), TableFacts()], [CLASH, None]
    [done] = run()
    assert (done.verdict, done.rows, done.attempts, lake.asked) == (Verdict.done, 5, 2, ["flush"] * 2)
    lake.facts, lake.flushes, lake.pauses[:] = [INLINED], [CLASH], []
    [failed] = run()
    assert (failed.verdict, failed.message) == (Verdict.failed, "DuckDB: others came first")
    assert lake.asked == ["flush"] * (2 + QUICK_ATTEMPTS)
    assert len(lake.pauses) == QUICK_ATTEMPTS - 1
    assert lake.pauses == sorted(set(lake.pauses))


def test_a_flush_is_decided_anew_each_time(lake: Lake, run: Run) -> None:
    """What must not be flushed now is not; what is done by now, by whomever, is not done again."""
    lake.facts, lake.flushes = [INLINED, TableFacts(inlined_rows=3, withheld="structs"), TableFacts()], [CLASH]
    assert [(step.verdict, step.message) for step in run()] == [(Verdict.skipped, "structs")]
    lake.facts = [INLINED, TableFacts()]
    assert [(step.verdict, step.reason, step.attempts) for step in run()] == [(Verdict.done, "it was done after all", 2)]
    assert lake.asked == ["flush"] * 2


def test_a_table_of_inlined_rows_may_vanish_meanwhile(lake: Lake, run: Run) -> None:
    """The catalog is asked once again."""
    vanished = psycopg.errors.UndefinedTable("gone")
    lake.facts = [vanished, INLINED, TableFacts()]
    assert [step.verdict for step in run()] == [Verdict.done]
    lake.facts = [vanished]
    assert [(step.kind, step.verdict) for step in run()] == [(StepKind.flush, Verdict.failed), (StepKind.compact, Verdict.failed)]


def test_what_is_named_meanwhile_does_not_expire(lake: Lake, run: Run) -> None:
    """Versions go piece by piece, and the refs are read before each."""
    lake.named = [frozenset({0}), frozenset({0}), frozenset({0, 3, 4})]
    [done] = run(EXPIRING)
    assert (lake.asked, done.removed) == ([(1, 2)], 2)
    lake.named, lake.asked[:] = [frozenset({0})], []
    [done] = run(EXPIRING | {"keep-refs": False})
    assert (lake.asked, done.removed) == ([(0, 1), (2, 3), (4,)], 5)


def test_an_expiry_that_fails_is_planned_anew(lake: Lake, run: Run) -> None:
    """Whatever DuckDB says; a ref that came meanwhile counts."""
    lake.named = [frozenset()] * 3 + [frozenset({0, 1})]
    lake.expiries = [None, duckdb.IOException("the line broke"), None]
    [done] = run(EXPIRING)
    assert (lake.asked, done.attempts, len(lake.pauses)) == ([(0, 1), (2, 3), (2, 3), (4,)], 2, 1)
    lake.expiries = [duckdb.IOException("the line broke")]
    [failed] = run(EXPIRING)
    assert (failed.kind, failed.verdict) == (StepKind.expire, Verdict.failed)


def test_where_nothing_may_expire_nothing_is_looked_at_for_it(lake: Lake, run: Run) -> None:
    """Without an age each table is loaded once, and no lake snapshot read; with one of any table, or of the lake, they are."""
    aged = {"duckicelake.maintain.snapshot-age": "7 days"}
    lake.tables = {"off": {"duckicelake.maintain.enabled": "false"} | aged, "t": {}, "u": {}}
    assert run() == []
    assert (lake.loads, lake.history_reads) == (["off", "t", "u"], 0)
    for default, tables in (({}, {"u": aged}), (EXPIRING, {"u": {}}), (EXPIRING, {"u": {"duckicelake.maintain.snapshot-age": "never"}})):
        lake.history_reads, lake.tables = 0, tables
        run(default)
        assert lake.history_reads > 0, default


def test_a_table_that_comes_meanwhile_has_its_own_age(lake: Lake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody has looked at is no table whose snapshots stay for ever."""
    lists = [lake.list_live_tables(None)]
    lake.tables = {"t": {}, "new": {"duckicelake.maintain.snapshot-age": "7 days"}}
    monkeypatch.setattr(lake_tables, "list_live_tables", lambda _: lists.pop() if lists else lake.list_live_tables(None))
    run()
    assert lake.history_reads == 1


def test_a_section_for_no_table_is_told(lake: Lake, run: Run) -> None:
    """Perhaps it was meant to keep some table's past: nothing expires then, and nothing is swept."""
    for dry_run in (False, True):
        steps = run(EXPIRING | SWEEPING, dry_run=dry_run, tt={"enabled": False})
        assert [(step.subject, step.kind, step.verdict) for step in steps] == [("main.tt", None, Verdict.failed)]
    assert lake.asked == []


def test_snapshots_are_forgotten_anew_when_the_table_changed(lake: Lake, run: Run) -> None:
    """What is meanwhile named stays; when a lost answer did it, it is found done; and nothing goes where nobody says when."""
    lake.besides, lake.commits = [frozenset({1, 2})] * 2 + [frozenset({2}), frozenset()], [CommitFailed("somebody moved a ref")]
    [_, told] = run(EXPIRING)
    asked = [change for change in lake.asked if isinstance(change, dict)]
    assert [change["updates"] for change in asked] == [[{"action": "remove-snapshots", "snapshot-ids": ids}] for ids in ([1, 2], [2])]
    assert asked[0]["requirements"] == [
        {"type": "assert-table-uuid", "uuid": "u"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
    ]
    assert (told.kind, told.verdict, told.attempts) == (StepKind.forget, Verdict.done, 3)
    lake.besides = [frozenset({1})]
    [_, told] = run(EXPIRING)
    assert told.describe() == "main.t: forget: failed: somebody moved a ref"
    lake.asked.clear()
    assert run({}) == []
    assert lake.asked == []


def test_one_tables_property_stops_no_other_one(lake: Lake, run: Run) -> None:
    """What cannot be read is told; that table keeps its snapshots and its objects, as does one that is to be left alone."""
    lake.tables = {"off": {"duckicelake.maintain.enabled": "false"}, "odd": {"history.expire.max-snapshot-age-ms": "²"}, "t": {}}
    lake.facts = [INLINED, TableFacts()]
    steps = run(EXPIRING | SWEEPING)
    assert [(step.subject, step.kind, step.verdict) for step in steps] == [
        ("main.odd", None, Verdict.failed),
        ("main.t", StepKind.flush, Verdict.done),
        ("(the lake)", StepKind.orphans, Verdict.done),
    ]
    assert lake.asked == ["flush", {("main", "off"), ("main", "odd")}]


def test_a_sweep_that_fails_tells_what_went_before(lake: Lake, run: Run) -> None:
    """The objects below DATA_PATH are gone by then."""
    lake.sweeps = [ServiceUnavailable("no store")]
    [failed] = run(SWEEPING)
    assert (failed.verdict, failed.removed) == (Verdict.failed, 2)
    assert failed.message == "no store (2 objects below DATA_PATH were removed)"


BEGUN = {
    StepKind.flush: "3 inlined rows, 0 inlined deletes",
    StepKind.expire: "5 of 6 lake snapshots",
    StepKind.forget: "1 of 6 snapshots",
    StepKind.orphans: "what nothing names",
}
"""Why a run begins its steps that finds these."""


def test_steps_that_fail_have_the_reason_for_which_they_were_begun(lake: Lake, run: Run) -> None:
    """Whether DuckDB, the catalog or the store refuses; the reason is that of the last plan, and where planning fails there is none."""
    lake.facts = [TableFacts(inlined_rows=1)] * (QUICK_ATTEMPTS - 1) + [INLINED, TableFacts()]
    lake.flushes, lake.expiries, lake.sweeps = [CLASH], [duckdb.IOException("the line broke")], [ServiceUnavailable("no store")]
    lake.besides, lake.commits = [frozenset({1})], [CommitFailed("somebody moved a ref")]
    steps = run(EXPIRING | SWEEPING)
    assert {step.verdict for step in steps} == {Verdict.failed}
    assert {step.kind: step.reason for step in steps} == BEGUN
    lake.facts = [psycopg.errors.UndefinedTable("gone")]
    assert [(step.kind, step.reason) for step in run()] == [(StepKind.flush, ""), (StepKind.compact, "")]


def test_steps_that_are_stopped_have_a_reason_too(lake: Lake, run: Run) -> None:
    """Somebody ended the run just before each of them."""
    lake.facts, lake.besides, lake.scheduled = [INLINED], [frozenset({1})], 7
    lake.end = ("flush", "expire", "forget", "clean-up", "orphans")
    steps = run(EXPIRING | SWEEPING)
    assert {step.message.partition(":")[0] for step in steps} == {"stopped before"}
    assert {step.kind: step.reason for step in steps} == BEGUN | {StepKind.clean_up: "7 files that no snapshot needs"}


def test_a_run_that_is_ended_tells_what_went_before(lake: Lake, run: Run) -> None:
    """Files that were removed are in the report, whoever stops it before it looks for more."""
    lake.scheduled, lake.end = 7, "orphans"
    assert [(step.kind, step.verdict, step.removed, step.message) for step in run(SWEEPING)] == [
        (StepKind.clean_up, Verdict.done, 7, ""),
        (StepKind.orphans, Verdict.failed, 0, "stopped before: orphans what nothing names"),
    ]


def test_orphans_of_another_run_are_not_swept(lake: Lake, run: Run) -> None:
    """While one is at work the step is passed over; while one sweeps there is no work at all, but plans are made."""
    lake.may_own = False
    assert [(step.kind, step.verdict, step.message) for step in run(SWEEPING)] == [
        (StepKind.orphans, Verdict.skipped, "another run is at work")
    ]
    lake.may_share, lake.facts = False, [INLINED]
    [busy] = run(SWEEPING)
    assert (busy.kind, busy.verdict) == (None, Verdict.failed)
    assert "another run is removing orphans" in busy.message
    assert [step.verdict for step in run(dry_run=True)] == [Verdict.planned]
    assert lake.asked == []
