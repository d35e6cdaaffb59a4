"""Rounds without Spark: what the catalog says of tables, what is withheld, and that a failure stops nothing else."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
from duckdb import DuckDBPyConnection
from psycopg import sql

from duckicelake.errors import CommitFailed, NoSuchTable
from duckicelake.pipeline.common import lake_tables
from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.common.rest import parse_ident
from duckicelake.pipeline.maintain import compaction, lake_access
from duckicelake.pipeline.maintain.compaction import Rewritten
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import DuckLake, MaintainContext, parse_changed_tables
from duckicelake.pipeline.maintain.planning import FileGroup, StepKind, TableFacts
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies, Policy, parse_policies
from tests.pipeline.maintain.keeper import make_desk
from tests.support.readers import Served
from tests.support.tiers import whole_after

FIVE_FILES = ("CREATE TABLE t (id BIGINT)", *(f"INSERT INTO t SELECT range FROM range({20 * i}, {20 * i + 20})" for i in range(5)))

END_SHARING = """
SELECT pg_terminate_backend(l.pid, 10000) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
 WHERE l.locktype = 'advisory' AND d.datname = current_database()
"""


def run(served: Served, *statements: str) -> DuckDBPyConnection:
    """Have DuckDB run statements on the lake."""
    duck = served.lake.duckdb()
    for statement in statements:
        duck.execute(statement)
    return duck


def look(served: Served, **policy: Any) -> TableFacts:
    """What the catalog says of the one table."""
    desk = make_desk(served, list[str]().append)
    with desk.open_postgres() as conn:
        [name] = lake_tables.list_live_tables(conn)
        return lake_access.read_facts(conn, name.table_id, Policy(**policy))


def test_the_catalog_is_summed_up(served: Served) -> None:
    """Files by partition, small and worn ones apart; inlined rows, dead ones too, as Iceberg clients see them; inlined deletes."""
    run(
        served,
        "CREATE TABLE t (id BIGINT, day DATE)",
        "ALTER TABLE t SET PARTITIONED BY (day)",
        "INSERT INTO t SELECT i, DATE '2026-01-01' + (i // 20)::INTEGER FROM range(40) r(i)",
        "INSERT INTO t SELECT i, DATE '2026-01-01' FROM range(40, 60) r(i)",
        "DELETE FROM t WHERE id < 12",
        "INSERT INTO t VALUES (100, NULL), (101, NULL)",
        "INSERT INTO t VALUES (102, NULL)",
        "DELETE FROM t WHERE id IN (100, 30)",
    )
    facts = look(served)
    assert [(group.partition, group.files, group.small_files, group.worn_files) for group in facts.groups] == [
        ("2026-01-01", 2, 2, 1),
        ("2026-01-02", 1, 1, 0),
    ]
    assert (facts.inlined_rows, facts.inlined_batches, facts.inlined_deletes, facts.withheld) == (3, 2, 1, "")
    assert facts.files == 3
    assert 0 < facts.largest_bytes <= facts.bytes
    assert [group.worn_files for group in look(served, delete_ratio=0.7).groups] == [0, 0]
    assert [group.small_bytes for group in look(served, target_size=2).groups] == [0, 0]


@pytest.mark.parametrize(
    ("statements", "why"),
    whole_after(
        1,
        [
            pytest.param(
                ("CREATE TABLE t (p STRUCT(x VARCHAR))", "INSERT INTO t VALUES ({'x': 'it''s'})"),
                "DuckDB 1.5.5 would garble the inlined structs",
                id="structs",
            ),
            pytest.param(
                (
                    "CREATE TABLE t AS SELECT range AS id FROM range(40)",
                    "DELETE FROM t WHERE id < 12",
                    "DELETE FROM t WHERE id = 20",
                    "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)",
                ),
                "DuckDB 1.5.5 would show earlier snapshots' rows twice until they expire",
                id="deletes of both kinds",
            ),
        ],
    ),
)
def test_what_duckdb_would_do_wrongly_is_withheld(served: Served, statements: tuple[str, ...], why: str) -> None:
    """The flush is told as skipped, and not done; status 0."""
    duck = run(served, *statements)
    before = duck.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
    report = maintain(make_desk(served, list[str]().append), MaintainOptions())
    assert [(step.kind, step.verdict, step.message) for step in report.steps] == [(StepKind.flush, Verdict.skipped, why)]
    assert report.status == 0
    assert duck.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall() == before


def test_structs_are_withheld_before_they_are_inlined(served: Served) -> None:
    """A row may come between the look and the flush."""
    run(served, "CREATE TABLE t (p STRUCT(x VARCHAR))")
    facts = look(served)
    assert (facts.inlined_rows, facts.withheld) == (0, "DuckDB 1.5.5 would garble the inlined structs")


@dataclass(slots=True)
class Overtaken:
    """A session of DuckDB that somebody overtakes when it commits."""

    conn: DuckDBPyConnection
    overtake: Callable[[], object]

    def execute(self, statement: str, *given: Any) -> DuckDBPyConnection:
        if statement == "COMMIT":
            self.overtake()
        return self.conn.execute(statement, *given)

    def close(self) -> None:
        self.conn.close()


def test_a_flush_that_duckdb_overtook_brings_no_deleted_row_back(served: Served) -> None:
    """It is made again as a whole: no inlined delete is left beside the file that was made of it."""
    duck = run(served, "CREATE TABLE t AS SELECT range AS id FROM range(40)", "DELETE FROM t WHERE id < 4", "CREATE TABLE u (id BIGINT)")
    overtakers = [lambda: duck.execute("INSERT INTO u SELECT range FROM range(30)")]
    desk = make_desk(served, list[str]().append)

    def open_lake() -> Any:
        return Overtaken(served.lake.duckdb(), overtakers.pop()) if overtakers else served.lake.duckdb()

    [done] = maintain(replace(desk, lake=DuckLake(open_lake)), MaintainOptions()).steps
    assert (done.kind, done.verdict, done.attempts) == (StepKind.flush, Verdict.done, 2)
    assert duck.execute("SELECT count(*), min(id) FROM t").fetchall() == [(36, 4)]
    [table_id] = [name.table_id for name in list_tables(desk) if name.table_name == "t"]
    with served.lake.psycopg() as conn:
        query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(f"ducklake_inlined_delete_{table_id}"))
        assert conn.execute(query).fetchone() == (0,)
    duck.execute("DELETE FROM t WHERE id = 30")
    assert served.lake.duckdb().execute("SELECT count(*) FROM t").fetchall() == [(35,)]


def test_a_flush_names_its_run(served: Served) -> None:
    """In DuckLake's own words for a commit: who made it, and the run and versions."""
    duck = run(served, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    report = maintain(make_desk(served, list[str]().append), MaintainOptions())
    told = duck.execute("SELECT author, commit_extra_info FROM ducklake_snapshots('lake') ORDER BY snapshot_id DESC LIMIT 1").fetchone()
    assert told is not None
    versions = {f"duckicelake.version.{name}": text for name, text in report.versions.items()}
    assert (told[0], json.loads(told[1])) == (
        "duckicelake maintain",
        {"duckicelake.job": "maintain", "duckicelake.run-id": report.run_id, **versions},
    )
    assert set(report.versions) == {"duckicelake", "pyspark", "duckdb"}


def list_tables(desk: MaintainContext) -> list[lake_tables.TableName]:
    """The live tables."""
    with desk.open_postgres() as conn:
        return lake_tables.list_live_tables(conn)


def test_runs_know_of_each_other(served: Served) -> None:
    """By a lock of Postgres: many share the lake, one alone may have it for itself, and it shares it again afterwards."""
    desk = make_desk(served, list[str]().append)
    with desk.open_postgres() as alice, desk.open_postgres() as bob:
        assert lake_access.share_lake(alice)
        with lake_access.owning_lake(alice) as is_own:
            assert (is_own, lake_access.share_lake(bob)) == (True, False)
        assert lake_access.share_lake(bob)
        for one in (alice, bob):
            with lake_access.owning_lake(one) as is_own:
                assert not is_own


def make_fake(served: Served, monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | Rewritten]) -> MaintainContext:
    """A desk whose Spark comes to these ends, one after the other."""

    def rewrite(*_: Any) -> Rewritten:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(compaction, "rewrite", rewrite)
    monkeypatch.setattr(compaction, "procedures_with_properties", lambda *_: nullcontext())
    spark: Any = object()
    return replace(make_desk(served, list[str]().append), open_spark=lambda: nullcontext(spark))


def test_a_commit_that_others_overtook_is_planned_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice; the third time it is done, or it failed with the reason, and the next table has its turn."""
    run(served, *FIVE_FILES)
    overtaken = CommitFailed("others changed it")
    done = maintain(make_fake(served, monkeypatch, [overtaken, overtaken, Rewritten(5, 1, 99)]), MaintainOptions())
    assert [(step.verdict, step.attempts, step.removed) for step in done.steps] == [(Verdict.done, 3, 5)]
    run(served, "CREATE TABLE u (id BIGINT)", "INSERT INTO u VALUES (1)")
    failed = maintain(make_fake(served, monkeypatch, [overtaken] * 3), MaintainOptions())
    assert [(step.subject, step.verdict, step.message) for step in failed.steps] == [
        ("main.t", Verdict.failed, "others changed it"),
        ("main.u", Verdict.done, ""),
    ]
    assert failed.status == 1


def test_a_commit_whose_answer_was_lost_is_found_done(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned again, there is nothing left to do."""
    duck = run(served, *FIVE_FILES)
    desk = make_fake(served, monkeypatch, [])

    def lose(*_: Any) -> Rewritten:
        duck.execute("CALL ducklake_merge_adjacent_files('lake')")
        raise OSError("lost")

    monkeypatch.setattr(compaction, "rewrite", lose)
    [done] = maintain(desk, MaintainOptions()).steps
    assert (done.verdict, done.reason, done.attempts) == (Verdict.done, "it was done after all", 2)


def test_a_long_history_is_read_piece_by_piece(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every lake snapshot changed is not in memory at once."""
    run(served, *FIVE_FILES)
    cursors: list[tuple[str]] = []
    with make_desk(served, list[str]().append).open_postgres() as conn:

        def look(changes: str | None) -> frozenset[int]:
            cursors.extend(conn.execute("SELECT name FROM pg_cursors WHERE name <> ''").fetchall())
            return parse_changed_tables(changes)

        monkeypatch.setattr(lake_access, "parse_changed_tables", look)
        found = lake_access.read_snapshots(conn)
    [table_id] = {table_id for snapshot in found for table_id in snapshot.table_ids}
    assert [table_id in snapshot.table_ids for snapshot in sorted(found, key=lambda one: one.snapshot_id)][-5:] == [True] * 5
    assert set(cursors) == {("lake_snapshots",)}


def test_nothing_is_written_that_others_may_take_for_orphans(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose connection broke has let go of the lake: the table fails before Spark is asked."""
    run(served, *FIVE_FILES)
    desk = make_fake(served, monkeypatch, [])

    def tell(step: str) -> None:
        if step.startswith("compact"):
            with served.lake.psycopg() as conn:
                conn.execute(END_SHARING)

    [failed] = maintain(replace(desk, progress=tell), MaintainOptions((parse_ident("main.t"),))).steps
    assert (failed.kind, failed.verdict, failed.reason) == (StepKind.compact, Verdict.failed, "5 small files, 0 with many deletes")
    assert "the connection to Postgres that shares the lake broke" in failed.message


def test_a_line_that_is_idle_for_hours_is_kept_alive(served: Served) -> None:
    """The lake is shared over one, on which nothing is asked while Spark writes."""
    with make_desk(served, list[str]().append).open_postgres() as conn:
        told = conn.info.get_parameters()
    assert (told["keepalives_idle"], told["keepalives_interval"], told["tcp_user_timeout"]) == ("5", "2", "10000")


def test_without_spark_the_rest_is_done(served: Served) -> None:
    """The table that needs it fails; the snapshots of the lake expire all the same."""
    run(served, *FIVE_FILES)
    report = maintain(make_desk(served, list[str]().append), MaintainOptions(policies=MaintainPolicies({"snapshot-age": "0s"})))
    assert [(step.kind, step.verdict) for step in report.steps] == [(StepKind.compact, Verdict.failed), (StepKind.expire, Verdict.done)]
    assert "there is no Spark here" in report.steps[0].message
    with pytest.raises(NoSuchTable, match=r"There is no table main\.none"):
        maintain(make_desk(served, list[str]().append), MaintainOptions((parse_ident("main.none"),)))


def test_tables_are_named_as_they_are_printed(served: Served) -> None:
    """A dot in a name is quoted, and case is as the caller likes; so in a policy's sections."""
    run(served, 'CREATE SCHEMA "Odd Schema.x"', 'CREATE TABLE "Odd Schema.x".t (id BIGINT)', 'INSERT INTO "Odd Schema.x".t VALUES (1)')
    policies = parse_policies("[tables.'\"odd schema.X\".T']\nflush-rows = 2")
    assert maintain(make_desk(served, list[str]().append), MaintainOptions(policies=policies)).describe()[:-1] == []
    [step] = maintain(make_desk(served, list[str]().append), MaintainOptions((parse_ident('"odd SCHEMA.x"."T"'),))).steps
    assert (step.subject, step.verdict) == ('"Odd Schema.x".t', Verdict.done), step
    assert parse_ident(step.subject).namespace == ("Odd Schema.x",)


def test_steps_have_names_that_do_not_change(served: Served) -> None:
    """The first word of what is told is the step's, by which metrics are kept from run to run."""
    duck = run(served, *FIVE_FILES, "DROP TABLE t")
    policies = MaintainPolicies({"snapshot-age": "0s", "file-age": "0s", "orphan-age": "1h"})
    report = maintain(make_desk(served, list[str]().append), MaintainOptions(policies=policies))
    assert [step.verdict for step in report.steps] == [Verdict.done] * 3, report.describe()
    assert [told.partition(" ")[0] for told in report.seconds] == ["look", *(str(step.kind) for step in report.steps)]
    duck.close()


def test_a_table_that_cannot_be_published_is_passed_over(served: Served) -> None:
    """It is told as skipped, and keeps its snapshots."""
    run(served, "CREATE TABLE t (id UBIGINT)", "INSERT INTO t SELECT range FROM range(30)", "INSERT INTO t SELECT range FROM range(30)")
    report = maintain(make_desk(served, list[str]().append), MaintainOptions(policies=MaintainPolicies({"snapshot-age": "0s"})))
    assert [(step.subject, step.verdict) for step in report.steps[:1]] == [("main.t", Verdict.skipped)]
    with served.lake.psycopg() as conn:
        assert conn.execute("SELECT count(*) FROM ducklake_snapshot WHERE snapshot_id > 1").fetchone() == (2,)


def test_sums_are_made_by_the_table() -> None:
    """Files and bytes of a table are those of its partitions."""
    facts = TableFacts((FileGroup("a", 1, 10, 0, 0, 0, 0), FileGroup("b", 2, 20, 0, 0, 0, 0)))
    assert (facts.files, facts.bytes) == (3, 30)
