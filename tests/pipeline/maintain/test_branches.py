"""What `ingest` leaves in a lake holds nothing for ever: branches of dead runs, and lake snapshots that main came from."""

from pathlib import Path

import pytest

from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.options import MaintainOptions
from duckicelake.pipeline.maintain.planning import Kind
from duckicelake.pipeline.maintain.policy import Policies
from duckicelake.pipeline.maintain.report import MaintainReport
from duckicelake.pipeline.reports import Verdict
from duckicelake.pipeline.rest import open_rest, parse_ident
from tests.pipeline.ingest.mill import open_mill
from tests.pipeline.maintain.keeper import AT_ONCE, Keeper, find, make_desk
from tests.rest.serving import make_settings, serve
from tests.support.readers import Served

DEAD, YOUNG = "ingest_20200101T000000_dead_1", "ingest_29990101T000000_alive_1"


def run(served: Served, *, dry_run: bool = False) -> MaintainReport:
    """The job, without Spark, with every age as low as it goes."""
    return maintain(make_desk(served, lambda _: None), MaintainOptions(policies=Policies(AT_ONCE)), dry_run=dry_run)


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
    [planned] = find(run(served, dry_run=True), lambda step: step.kind is Kind.branches)
    assert (planned.subject, planned.verdict, planned.reason) == ("main.t", Verdict.planned, "1 branches of dead runs of ingest")
    [done] = find(run(served), lambda step: step.kind is Kind.branches)
    assert done.describe() == "main.t: branches: 1 branches of dead runs removed"
    after = rest.load(ident)
    assert after is not None
    assert after.refs.keys() == {"main", YOUNG}
    assert find(run(served), lambda step: step.kind is Kind.branches) == []


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
