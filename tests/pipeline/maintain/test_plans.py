"""What is planned from what the catalog says: only work that wins something, and nothing that anybody still needs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException

from duckicelake.errors import BadRequest, CommitFailed, NoSuchTable
from duckicelake.pipeline.common import spark_session
from duckicelake.pipeline.common.lake_tables import TableName, choose_tables
from duckicelake.pipeline.common.rest import parse_ident
from duckicelake.pipeline.common.spark_session import commits_with_properties
from duckicelake.pipeline.common.spark_sql import parse_order
from duckicelake.pipeline.maintain.compaction import format_call, format_options, is_passing
from duckicelake.pipeline.maintain.lake_access import parse_changed_tables
from duckicelake.pipeline.maintain.planning import (
    FileGroup,
    LakeSnapshot,
    StepKind,
    TableFacts,
    check_possible,
    plan_compaction,
    plan_expiry,
    plan_flush,
    plan_forgetting,
    plan_removal,
    spell_order,
)
from duckicelake.pipeline.maintain.policy import Policy, Strategy

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ICEBERG = "org.apache.iceberg.exceptions"
POLICY = Policy(target_size=1000)
EMPTY = FileGroup("", 0, 0, 0, 0, 0, 0)

SIZES = st.lists(st.integers(1, 3000), max_size=30)
SNAPSHOTS = st.lists(st.tuples(st.integers(0, 40), st.frozensets(st.integers(1, 4), max_size=3)), min_size=1, max_size=25)


def group(sizes: list[int], worn: int = 0, policy: Policy = POLICY) -> FileGroup:
    """A partition of files of these sizes, the first of them worn."""
    small = [size for size in sizes if size < policy.small_bytes]
    return FileGroup("", len(sizes), sum(sizes), len(small), sum(small), worn, sum(sizes[:worn]))


@given(SIZES, st.integers(2, 6), st.sampled_from([0.5, 0.75, 0.95]))
def test_what_was_compacted_is_not_compacted_again(sizes: list[int], min_files: int, ratio: float) -> None:
    """Small files become fewer, of the target's size; those that come out are not planned again."""
    policy = Policy(target_size=1000, min_files=min_files, small_file_ratio=ratio)
    step = plan_compaction(TableFacts((group(sizes, policy=policy),)), policy)
    if step is None:
        return
    small = [size for size in sizes if size < policy.small_bytes]
    count = -(-sum(small) // policy.target_size)
    assert count < len(small)
    out = [size for size in sizes if size >= policy.small_bytes] + [sum(small) // count] * count
    assert plan_compaction(TableFacts((group(out, policy=policy),)), policy) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(TableFacts(), None, id="empty"),
        pytest.param(TableFacts((group([10] * 4),)), None, id="few"),
        pytest.param(TableFacts((group([10] * 4), group([10] * 4))), None, id="few in each partition"),
        pytest.param(TableFacts((group([10] * 5),)), "5 small files, 0 with many deletes", id="small"),
        pytest.param(TableFacts((group([2000], worn=1),)), "0 small files, 1 with many deletes", id="worn"),
        pytest.param(
            TableFacts((group([10] * 5), group([10] * 6))), "11 small files, 0 with many deletes of 2 partitions", id="partitions"
        ),
        pytest.param(TableFacts(inlined_rows=9, inlined_batches=9), None, id="inlined rows are flushed first"),
        pytest.param(
            TableFacts((group([10]),), inlined_rows=9, inlined_batches=4, withheld="structs"),
            "5 small files, 0 with many deletes",
            id="kept",
        ),
        pytest.param(
            TableFacts(inlined_rows=9, inlined_batches=5, withheld="structs"), "5 small files, 0 with many deletes", id="inlined alone"
        ),
    ],
)
def test_compaction(facts: TableFacts, reason: str | None) -> None:
    """A partition needs enough small files, or one with many deleted rows; rows that must not be flushed count as files."""
    step = plan_compaction(facts, POLICY)
    assert (step and step.reason) == reason


def test_a_flush_takes_enough_rows() -> None:
    """Dead rows and deletes count; what DuckDB would do wrongly is left."""
    facts = TableFacts(inlined_rows=6, inlined_deletes=4)
    assert plan_flush(facts, replace(POLICY, flush_rows=11)) is None
    step = plan_flush(facts, replace(POLICY, flush_rows=10))
    assert step is not None
    assert (step.kind, step.rows) == (StepKind.flush, 10)
    assert plan_flush(replace(facts, withheld="structs"), POLICY) is None


@given(SNAPSHOTS, st.frozensets(st.integers(0, 24)), st.integers(1, 4), st.integers(0, 40))
def test_nothing_expires_that_somebody_needs(
    drawn: list[tuple[int, frozenset[int]]], kept: frozenset[int], count: int, age_days: int
) -> None:
    """Not the newest, not what a ref names, not those before a table's newest, nothing younger than the age; all else goes."""
    snapshots = [LakeSnapshot(number, NOW - timedelta(days=days), tables) for number, (days, tables) in enumerate(drawn)]
    policy = Policy(snapshot_age=timedelta(days=age_days), snapshot_count=count)
    # table 4 was dropped, table 3 keeps everything
    step = plan_expiry(snapshots, kept, {1: policy, 2: policy, 3: Policy()}, policy, NOW)
    gone = set() if step is None else set(step.versions)
    assert len(snapshots) - 1 not in gone
    assert not gone & kept
    for table in (1, 2):
        own = [one.snapshot_id for one in snapshots if table in one.table_ids]
        assert not gone & set(own[-count:-1])
    assert all(snapshots[number].at <= NOW - timedelta(days=age_days) for number in gone)
    assert all(3 not in snapshots[number].table_ids for number in gone)
    again = plan_expiry([one for one in snapshots if one.snapshot_id not in gone], kept, {1: policy, 2: policy, 3: Policy()}, policy, NOW)
    assert again is None


def test_expiry_takes_what_is_old() -> None:
    """The law above holds for an empty plan too, so here is one that is not."""
    snapshots = [LakeSnapshot(number, NOW - timedelta(days=10 - number), frozenset({1})) for number in range(6)]
    policy = Policy(snapshot_age=timedelta(days=7), snapshot_count=2)
    step = plan_expiry(snapshots, frozenset({1}), {1: policy}, Policy(), NOW)
    assert step is not None
    assert step.versions == (0, 2, 3)
    cold = [replace(one, table_ids=frozenset({1 if one.snapshot_id == 2 else 2})) for one in snapshots]
    step = plan_expiry(cold, frozenset(), {1: Policy(snapshot_age=timedelta()), 2: Policy(snapshot_age=timedelta())}, Policy(), NOW)
    assert step is not None
    assert step.versions == (0, 1, 2, 3, 4)
    assert plan_expiry(snapshots, frozenset(), {1: Policy()}, policy, NOW) is None


def test_a_plan_of_expiry_looks_at_each_snapshot_once() -> None:
    """However many tables there are: it is made for lakes of thousands, with snapshots without end."""
    looks: list[int] = []

    class Watched(frozenset[int]):
        def __iter__(self) -> Iterator[int]:
            looks.append(1)
            return super().__iter__()

        def __contains__(self, one: object) -> bool:
            looks.append(1)
            return super().__contains__(one)

    tables = 100
    snapshots = [LakeSnapshot(number, NOW, Watched({number % tables})) for number in range(1000)]
    policies = {number: Policy(snapshot_age=timedelta(), snapshot_count=3) for number in range(tables)}
    step = plan_expiry(snapshots, frozenset(), policies, Policy(), NOW)
    assert step is not None
    # The newest state of each holds none of its own.
    assert (len(step.versions), max(step.versions)) == (1000 - 2 * tables - 1, 998)
    assert len(looks) <= 2 * len(snapshots)


def test_removal_goes_by_the_lakes_ages() -> None:
    """Orphans stay unless an age says otherwise."""
    assert plan_removal(0, Policy(), NOW) == []
    steps = plan_removal(3, Policy(orphan_age=timedelta(hours=5)), NOW)
    assert [(step.kind, step.before) for step in steps] == [
        (StepKind.clean_up, NOW - timedelta(days=2)),
        (StepKind.orphans, NOW - timedelta(hours=5)),
    ]


def test_the_procedure_chooses_what_was_planned() -> None:
    """The same sizes and ratios; files above the target stay; names and texts are quoted."""
    facts = TableFacts((group([10] * 5),), largest_bytes=5000)
    step = plan_compaction(facts, POLICY)
    assert step is not None
    options = format_options(POLICY, facts, step)
    assert options == {
        "target-file-size-bytes": "1000",
        "min-file-size-bytes": "750",
        "max-file-size-bytes": "5001",
        "min-input-files": "5",
        "delete-ratio-threshold": "0.3",
    }
    call = format_call("la`ke", parse_ident("a.it's"), POLICY, {"x": "1"})
    assert call == "CALL `la``ke`.system.rewrite_data_files(table => '`la``ke`.`a`.`it\\'s`', options => map('x', '1'))"
    assert "partial-progress.enabled" in format_options(POLICY, facts, replace(step, bytes=1 << 40))


def test_what_a_lake_snapshot_changed_is_read_from_its_tokens() -> None:
    """Tables by id; names and unknown words are none."""
    assert parse_changed_tables('created_table:"a"."b,inserted_into_table:7",inserted_into_table:3,altered_table:4,future:5') == {3, 4}
    assert parse_changed_tables(None) == frozenset()
    assert parse_changed_tables(f"altered_table:²,altered_table:{'9' * 5000},altered_table:4") == {4}


def make_table(*columns: str, by: str) -> dict[str, Any]:
    """A table of numbers, in partitions of one of them."""
    fields = [{"id": number, "name": name, "type": "long", "required": False} for number, name in enumerate(columns, 1)]
    part = {"source-id": columns.index(by) + 1, "field-id": 1000, "transform": "identity", "name": by}
    return {
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": [part]}],
        "default-spec-id": 0,
        "default-sort-order-id": 0,
    }


@pytest.mark.parametrize(
    ("strategy", "order", "refused"),
    [
        pytest.param(Strategy.zorder, "Day", "needs a column that is not the same in all of a partition", id="partitions"),
        pytest.param(Strategy.zorder, "day, id", "", id="another beside"),
        pytest.param(Strategy.zorder, "a.b", "column a.b, which has a dot or a backtick in its name", id="dot"),
        pytest.param(Strategy.sort, "A.b", "", id="dot for sort"),
        pytest.param(Strategy.sort, "ID desc, nobody", "there is no column nobody to order by", id="nobody"),
        pytest.param(Strategy.binpack, "nobody", "", id="no order asked for"),
    ],
)
def test_an_order_is_held_against_the_table(strategy: Strategy, order: str, refused: str) -> None:
    """What can be done is said in the table's spelling, the rest is refused."""
    metadata, policy = make_table("id", "day", "a.b", "ID", by="day"), Policy(strategy=strategy, order=parse_order(order))
    if refused:
        with pytest.raises(BadRequest, match=refused):
            check_possible(policy, metadata)
        return
    check_possible(policy, metadata)
    told = ", ".join(field.column for field in spell_order(policy, metadata).order)
    assert told == (order if strategy is Strategy.binpack else order.lower())


TABLES = [TableName(number, schema, name) for number, (schema, name) in enumerate([("raw", "small"), ("raw", "Small"), ("A.b", "t")])]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        pytest.param((), (0, 1, 2), id="all"),
        pytest.param(("raw.Small",), (1,), id="exact"),
        pytest.param(("RAW.SMALL",), (0,), id="the first of those that differ by case alone"),
        pytest.param(("RAW.Small", "raw.Small"), (1,), id="once"),
        pytest.param(('"a.b".T',), (2,), id="quoted"),
    ],
)
def test_tables_are_named_in_any_case(asked: tuple[str, ...], found: tuple[int, ...]) -> None:
    """The catalog's own choice: a table's exact spelling wins, then its namespace's, then the older one."""
    assert [name.table_id for name in choose_tables(TABLES, tuple(map(parse_ident, asked)))] == list(found)


@pytest.mark.parametrize("asked", ["raw.smal", "a.b.t", "RÄW.small"])
def test_a_table_that_there_is_not_is_told(asked: str) -> None:
    """By the name that was given."""
    with pytest.raises(NoSuchTable, match=asked):
        choose_tables(TABLES, (parse_ident(asked),))


def make_java_error(*names: str) -> Py4JJavaError:
    """An error of Java's; each class is the cause of the one before."""
    java: Any = None
    for number, name in enumerate(reversed(names)):
        told = SimpleNamespace(getName=lambda name=name: name)
        java = SimpleNamespace(_target_id=f"o{number}", getClass=lambda told=told: told, getCause=lambda java=java: java)
    return Py4JJavaError("it failed", java)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        pytest.param(CommitFailed("others changed 3 files"), True, id="files left out"),
        pytest.param(Py4JNetworkError("no answer"), True, id="dead Java"),
        pytest.param(ConnectionRefusedError(), True, id="dead Java's port"),
        pytest.param(make_java_error("java.lang.RuntimeException", f"{ICEBERG}.ValidationException"), True, id="conflict"),
        pytest.param(make_java_error("java.lang.RuntimeException", f"{ICEBERG}.CommitFailedException"), True, id="refused commit"),
        pytest.param(make_java_error(f"{ICEBERG}.CommitStateUnknownException"), True, id="unknown commit"),
        pytest.param(make_java_error(f"{ICEBERG}.ValidationException"), False, id="wrong order"),
        pytest.param(make_java_error("org.apache.spark.SparkException", f"{ICEBERG}.NotFoundException"), False, id="file that is gone"),
        pytest.param(AnalysisException("no such table"), False, id="Spark's own"),
    ],
)
def test_what_may_be_over_by_now(error: Exception, passes: bool) -> None:
    """Only that is tried again."""
    assert is_passing(error) == passes


def test_what_ends_the_work_is_told_when_java_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends Java too, so nothing can be taken back there."""

    class Gone:
        def put(self, name: str, value: str) -> None:
            """As if it were there."""

        def remove(self, name: str) -> None:
            raise Py4JNetworkError(name)

    iceberg = SimpleNamespace(EnvironmentContext=Gone())
    org = SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg))
    monkeypatch.setattr(spark_session, "SparkContext", SimpleNamespace(_jvm=SimpleNamespace(org=org)))
    with pytest.raises(SystemExit), commits_with_properties({"a": "b"}):
        raise SystemExit(0)


def make_metadata(parents: dict[int, int | None], refs: dict[str, int], log: Sequence[int]) -> dict[str, Any]:
    """A table whose snapshots have these parents and are as many hours old as ten less than their ids; main was at those of the log."""
    hour = 3_600_000
    begin = NOW.timestamp() * 1000 - 10 * hour
    snapshots = [{"snapshot-id": one, "parent-snapshot-id": parent, "timestamp-ms": begin + one * hour} for one, parent in parents.items()]
    return {
        "current-snapshot-id": log[-1],
        "refs": {name: {"snapshot-id": head, "type": "branch"} for name, head in {"main": log[-1], **refs}.items()},
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": one} for one in log],
    }


LINE = make_metadata({1: None, 2: 1, 3: 2, 4: 2, 5: 4, 6: 3, 7: 6}, {"audit": 5}, (1, 2, 3, 6))
"""Main came from 1, 2 and 3 to 6; a branch left it at 2, and 7 is staged."""


@pytest.mark.parametrize(
    ("beside", "age", "count", "gone"),
    [
        pytest.param({1, 2, 3, 4, 5, 6}, 0, 1, (3,), id="what a branch comes from stays, and where main is"),
        pytest.param({1, 2, 4, 5, 6}, 0, 1, None, id="DuckLake's own are its own affair"),
        pytest.param({3}, 7, 1, (3,), id="old enough"),
        pytest.param({3}, 8, 1, None, id="too young"),
        pytest.param({3, 7}, 0, 2, (7,), id="one of main's newest, whatever is staged"),
        pytest.param({3}, None, 1, None, id="nothing goes unless somebody says so"),
    ],
)
def test_snapshots_beside_ducklake_are_forgotten(beside: set[int], age: int | None, count: int, gone: tuple[int, ...] | None) -> None:
    """Those that no ref leads to, by the table's policy."""
    policy = Policy(snapshot_age=None if age is None else timedelta(hours=age), snapshot_count=count)
    step = plan_forgetting(LINE, frozenset(beside), policy, NOW)
    assert (step and step.versions) == gone


def test_a_table_without_snapshots_has_none_to_forget() -> None:
    """Nobody wrote to it yet."""
    assert plan_forgetting({"current-snapshot-id": -1}, frozenset({1}), Policy(snapshot_age=timedelta()), NOW) is None
