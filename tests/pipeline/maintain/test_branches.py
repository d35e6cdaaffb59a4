"""What `ingest` leaves in a lake holds nothing for ever: branches of dead runs, and lake snapshots that main came from."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.common.rest import Rest, TableIdent, open_rest, parse_ident
from duckicelake.pipeline.common.staging import walk
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.planning import MaintainReport, StepKind, StepResult
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from tests.differential.beside.rounds import EAGER, make_eager_desk
from tests.pipeline.ingest.mill import TABLE, Mill, open_mill
from tests.pipeline.maintain.keeper import AT_ONCE, DEAD, Keeper, find, make_desk
from tests.rest.serving import make_settings, serve
from tests.support.readers import Served
from tests.support.spark import Spark, letting_go
from tests.support.tiers import whole_after

OVERTAKEN = 6
YOUNG = "ingest_29990101T000000_alive_1"


def run(served: Served, *, dry_run: bool = False) -> MaintainReport:
    """The job, without Spark, with every age as low as it goes."""
    return maintain(make_desk(served, lambda _: None), MaintainOptions(policies=MaintainPolicies(AT_ONCE)), dry_run=dry_run)


def count_snapshots(served: Served) -> int:
    """How many lake snapshots there are."""
    return len(served.lake.duckdb().execute("FROM ducklake_snapshots('lake')").fetchall())


def test_branches_of_dead_runs_go(served: Served) -> None:
    """With the lake snapshots that they named; those of runs that may still be at work stay, and everybody else's."""
    duck = served.lake.duckdb()
    duck.execute("CREATE TABLE t AS SELECT 1 AS id")
    rest, ident = open_rest(served.rest_catalog()), parse_ident("main.t")
    head = rest.load(ident)
    assert head is not None
    named = [{"action": "set-snapshot-ref", "ref-name": name, "type": "branch", "snapshot-id": head.main} for name in (DEAD, YOUNG)]
    rest.commit([{"identifier": {"namespace": ["main"], "name": "t"}, "requirements": [], "updates": named}])
    duck.execute("INSERT INTO t VALUES (2)")
    [planned] = find(run(served, dry_run=True), lambda step: step.kind is StepKind.branches)
    assert (planned.subject, planned.verdict, planned.reason) == ("main.t", Verdict.planned, "1 branches of dead runs of ingest")
    [done] = find(run(served), lambda step: step.kind is StepKind.branches)
    assert done.describe() == "main.t: branches: 1 branches of dead runs removed"
    after = rest.load(ident)
    assert after is not None
    assert after.refs.keys() == {"main", YOUNG}
    assert find(run(served), lambda step: step.kind is StepKind.branches) == []


def append(served: Served, branch: str) -> int:
    """A row that a run of `ingest` might have written to a branch of `raw.trips`; the snapshot."""
    table = served.pyiceberg().catalog.load_table("raw.trips")
    row = pa.table({"id": [7]}, schema=table.schema().as_arrow())
    table.append(row, branch=branch, snapshot_properties={"duckicelake.run-id": "20200101T000000_dead"})
    return open_rest(served.rest_catalog()).load_every(TABLE)["refs"][branch]["snapshot-id"]


def name(branch: str, snapshot_id: int, kind: str = "branch") -> dict[str, Any]:
    """The update that has a ref name a snapshot."""
    return {"action": "set-snapshot-ref", "ref-name": branch, "type": kind, "snapshot-id": snapshot_id}


def begin(served: Served, branch: str) -> int:
    """`raw.trips` with a branch of one row more; the branch's snapshot."""
    duck = served.lake.duckdb()
    duck.execute("CREATE SCHEMA raw")
    duck.execute("CREATE TABLE raw.trips AS SELECT 1::BIGINT AS id")
    commit(served, name(branch, open_rest(served.rest_catalog()).load_every(TABLE)["current-snapshot-id"]))
    return append(served, branch)


@pytest.mark.parametrize("branch", whole_after(1, [DEAD, "staged"]))
def test_what_is_named_in_the_last_moment_stays(served: Served, monkeypatch: pytest.MonkeyPatch, branch: str) -> None:
    """Somebody tags a snapshot after the run has looked at the table, and before it commits: the tag stays, with all that it shows."""
    head = begin(served, branch)
    if branch != DEAD:
        commit(served, {"action": "remove-snapshot-ref", "ref-name": branch})
    look, tags = Rest.load_every, ["precious"]

    def look_and_be_overtaken(rest: Rest, ident: TableIdent) -> Any:
        found = look(rest, ident)
        if tags:
            commit(served, name(tags.pop(), head, "tag"))
        return found

    monkeypatch.setattr(Rest, "load_every", look_and_be_overtaken)
    report = run(served)
    assert report.status == 0, report.describe()
    assert open_rest(served.rest_catalog()).load_every(TABLE)["refs"].keys() == {"main", "precious"}
    table = served.pyiceberg().catalog.load_table("raw.trips")
    assert table.scan(snapshot_id=head).to_arrow()["id"].to_pylist() == [7, 1]


@pytest.mark.whole
def test_who_writes_all_the_time_does_not_keep_snapshots(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others commit between each look at the table and the request that rests on it: it is asked again, until they pause."""
    begin(served, "staged")
    commit(served, {"action": "remove-snapshot-ref", "ref-name": "staged"})
    look, rows, duck = Rest.load_every, list(range(OVERTAKEN)), served.lake.duckdb()

    def look_and_be_overtaken(rest: Rest, ident: TableIdent) -> Any:
        found = look(rest, ident)
        if rows:
            duck.execute("INSERT INTO raw.trips VALUES (?)", [rows.pop()])
        return found

    monkeypatch.setattr(Rest, "load_every", look_and_be_overtaken)
    [done] = find(run(served), lambda step: step.kind is StepKind.forget)
    assert (done.verdict, done.removed, done.attempts) == (Verdict.done, 1, OVERTAKEN + 1)


@pytest.mark.parametrize(
    "change", whole_after(1, ["DROP TABLE raw.trips", "ALTER TABLE raw.trips RENAME TO others"]), ids=["drop", "rename"]
)
@pytest.mark.parametrize("kind", whole_after(1, [StepKind.forget, StepKind.branches, StepKind.flush]))
def test_a_table_that_goes_meanwhile_is_passed_over(served: Served, kind: StepKind, change: str) -> None:
    """When a step has been told, and before it has an effect: nothing has failed, and nothing is said to be done."""
    begin(served, "staged")
    commit(served, {"action": "remove-snapshot-ref", "ref-name": "staged"})
    commit(served, name(DEAD, open_rest(served.rest_catalog()).load_every(TABLE)["current-snapshot-id"]))
    told: list[str] = []
    beginning = {StepKind.branches: "drop branches"}.get(kind, str(kind))

    def tell(step: str) -> None:
        if step.startswith(beginning):
            told.append(step)
            served.lake.duckdb().execute(change)

    report = maintain(make_desk(served, tell), MaintainOptions(policies=MaintainPolicies(AT_ONCE)))
    assert (len(told), report.status, find(report, lambda step: step.kind is kind)) == (1, 0, []), report.describe()


def test_what_main_was_at_stays_when_its_branch_goes(served: Served) -> None:
    """Somebody has moved main to a dead run's branch: its snapshots are main's now, and go by its policy alone."""
    made = [begin(served, DEAD), append(served, DEAD)]
    commit(served, name("main", made[-1]))
    served.lake.duckdb().execute("INSERT INTO raw.trips VALUES (9)")
    report = maintain(make_desk(served, lambda _: None), MaintainOptions(policies=MaintainPolicies({})))
    assert [step.describe() for step in report.steps][:1] == ["raw.trips: branches: 1 branches of dead runs removed"]
    found = open_rest(served.rest_catalog()).load_every(TABLE)
    assert set(made) < {one["snapshot-id"] for one in found["snapshots"]}
    assert made[-1] in [entry["snapshot-id"] for entry in found["snapshot-log"]]


@pytest.mark.parametrize("is_tagged", whole_after(1, [True, False]), ids=["tag", "branch"])
def test_what_refs_of_a_dropped_table_name_goes(served: Served, is_tagged: bool) -> None:
    """Nobody can read it by them, or remove them: neither a tag nor what a branch begins at keeps a lake snapshot any longer."""
    begin(served, "staged")
    if is_tagged:
        commit(
            served,
            name("kept", open_rest(served.rest_catalog()).load_every(TABLE)["current-snapshot-id"], "tag"),
            {"action": "remove-snapshot-ref", "ref-name": "staged"},
        )
    duck = served.lake.duckdb()
    duck.execute("DROP TABLE raw.trips")
    duck.execute("CREATE TABLE raw.others AS SELECT 1 AS id")
    report = run(served)
    assert report.status == 0, report.describe()
    assert count_snapshots(served) == 1


def list_ids(served: Served, name: str) -> list[int]:
    """The snapshots that Iceberg clients see of a table, without those that replaced files."""
    found = served.server.get(f"namespaces/raw/tables/{name}").json["metadata"]["snapshots"]
    return [one["snapshot-id"] for one in found if one["summary"]["operation"] != "replace"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_what_ingest_made_goes_with_its_files(served: Served, spark: Spark, tmp_path: Path) -> None:
    """Snapshots that runs made on branches, those that became visible and those of a run that failed; their files go when no metadata
    file in the table's log names them any more. A tag keeps its own.
    """
    mill = open_mill(served, spark, tmp_path / "files")
    fill(served, mill)
    tagged = list_ids(served, "trips")[-2]
    commit(served, {"action": "set-snapshot-ref", "ref-name": "kept", "type": "tag", "snapshot-id": tagged})
    chain = {one["snapshot-id"] for one in walk(open_rest(served.rest_catalog()).load_every(TABLE), tagged)}
    done = [step for _ in range(2) for step in keep(served, spark)]
    forgotten = [step.describe() for step in done if step.kind is StepKind.forget]
    assert forgotten == ["raw.trips: forget: 1 snapshots removed", "raw.trips__ingested: forget: 5 snapshots removed"]
    assert set(list_ids(served, "trips")) == chain
    assert mill.rows() == [(number,) for number in range(4)]
    assert served.pyiceberg().read(("raw", "trips")).num_rows == 4
    commit(served, {"action": "remove-snapshot-ref", "ref-name": "kept"})
    keep(served, spark)
    assert list_ids(served, "trips") == []
    for most in ("2", "1", "2", "1"):
        commit(served, {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": most}})
    keep(served, spark)
    location = served.server.get("namespaces/raw/tables/trips").json["metadata"]["location"]
    [(objects,)] = mill.ask(f"SELECT count(*) FROM glob('{location}/data/**')")
    assert objects == len(mill.ask("SELECT data_file FROM ducklake_list_files('lake', 'trips', schema => 'raw')"))
    assert mill.rows() == [(number,) for number in range(4)]


def fill(served: Served, mill: Mill) -> None:
    """Four runs, and one between them that is stopped before it becomes visible: nothing of it stays."""

    def stop(step: str) -> None:
        if step == "publish":
            raise KeyboardInterrupt

    for number in range(4):
        mill.write(f"{number}.csv", f"id\n{number}\n")
        if number == 1:
            before = list_ids(served, "trips")
            with pytest.raises(KeyboardInterrupt):
                mill.run(tell=stop)
            assert list_ids(served, "trips") == before
            assert mill.list_refs("trips") == ["main"]
        run = mill.run()
        assert run.rows_out == 1
        told = {name: text for name, text in mill.find_summary("trips").items() if name.startswith("duckicelake.")}
        versions = {f"duckicelake.version.{name}": version(name) for name in ("duckicelake", "pyspark")}
        assert told == {"duckicelake.job": "ingest", "duckicelake.run-id": run.run_id, **versions}


def keep(served: Served, spark: Spark) -> Sequence[StepResult]:
    """A round that does at once whatever there is to do."""
    with letting_go():
        report = maintain(make_eager_desk(served, spark), MaintainOptions(policies=MaintainPolicies(EAGER)))
    assert report.status == 0, report.describe()
    return report.steps


def commit(served: Served, *updates: dict[str, Any]) -> None:
    """Change `raw.trips` over REST."""
    change = {"identifier": {"namespace": ["raw"], "name": "trips"}, "requirements": [], "updates": list(updates)}
    open_rest(served.rest_catalog()).commit([change])


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_what_ingest_moved_main_to_holds_no_lake_snapshot(keeper: Keeper, tmp_path: Path) -> None:
    """A dropped table's file of that time goes, and every reader reads the tables, also from a server that knows nothing yet."""
    served, checker = keeper.checker.served, keeper.checker
    mill = open_mill(served, checker.spark, tmp_path / "files")
    checker.run("CREATE TABLE gone AS SELECT i AS id FROM range(100) r(i)")
    [(uri,)] = keeper.ask("SELECT data_file FROM ducklake_list_files('lake', 'gone')")
    for number in range(2):
        mill.write(f"{number}.csv", f"id\n{number}\n")
        assert mill.run(mode="upsert", key=("id",)).rows_out == 1
    checker.run("DROP TABLE gone")
    for _ in range(2):
        report = run(served)
        assert report.status == 0, report.describe()
    assert count_snapshots(served) == 1
    assert keeper.ask(f"SELECT count(*) FROM glob('{uri.removesuffix('.parquet')}*')") == [(0,)]
    for name, rows in (("trips", 2), ("trips__ingested", 2)):
        assert keeper.ask(f"SELECT count(*) FROM raw.{name}") == [(rows,)]
        assert checker.spark.arrow(f"SELECT * FROM {checker.catalog}.raw.{name}").num_rows == rows
        with serve(make_settings(served.lake)) as other:
            for one in (served, Served(served.lake, other)):
                assert one.pyiceberg().read(("raw", name)).num_rows == rows
    report = checker.verify(every_snapshot=True)
    assert report.status == 0, report.describe()
    assert checker.verify(files=True).status == 0
    mill.write("2.csv", "id\n2\n")
    assert mill.run(mode="upsert", key=("id",)).rows_out == 1
    assert mill.rows() == [(0,), (1,), (2,)]
    assert run(served).status == 0
