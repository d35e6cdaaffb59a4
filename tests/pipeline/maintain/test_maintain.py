"""`maintain` on real Spark, against the real server: fewer files, the same rows on both sides, and nothing that anybody needs is gone."""

from threading import Thread

import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.maintain.planning import StepKind
from tests.pipeline.maintain.keeper import AT_ONCE, Keeper, find

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

LINES = "SELECT i AS id, 'n' || i AS name, DATE '2026-01-01' + (i % 2)::INTEGER AS day FROM range({}, {}) r(i)"
MERGE_ON_READ = "'format-version' = 3, 'write.delete.mode' = 'merge-on-read'"


def fill(keeper: Keeper) -> None:
    """Small files, deletes and updates of every kind, inlined rows, structs among them; a table of Spark's with deletion vectors."""
    keeper.checker.run("CREATE TABLE t (id BIGINT, name VARCHAR, day DATE)")
    for start in range(0, 240, 40):
        keeper.checker.run(f"INSERT INTO t {LINES.format(start, start + 40)}")
    keeper.checker.run(
        "DELETE FROM t WHERE id % 40 < 15",
        "DELETE FROM t WHERE id = 20",
        "INSERT INTO t VALUES (1000, 'inlined', NULL), (1001, 'gone', NULL)",
        "UPDATE t SET name = 'new' WHERE id IN (21, 1000)",
        "DELETE FROM t WHERE id = 1001",
        "CREATE TABLE s (id INTEGER, point STRUCT(x INTEGER, label VARCHAR))",
        *(f"INSERT INTO s VALUES ({i}, {{'x': {i}, 'label': 'l{i}'}})" for i in range(6)),
    )
    keeper.checker.ask_spark(
        f"CREATE TABLE {{c}}.main.v (id bigint, name string) PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ({MERGE_ON_READ})"
    )
    for start in range(0, 50, 10):
        keeper.checker.ask_spark(f"INSERT INTO {{c}}.main.v SELECT id, concat('v', id) FROM range({start}, {start + 10}, 1, 1)")
    keeper.checker.ask_spark("DELETE FROM {c}.main.v WHERE id % 2 = 1")


def count_manifests(keeper: Keeper) -> dict[str, int]:
    """How many manifests each table is made of now, as PyIceberg reads it."""
    catalog = keeper.checker.served.pyiceberg().catalog
    return {table: len(catalog.load_table(f"main.{table}").inspect.manifests()) for table in "tsv"}


def test_a_lake_is_put_in_order(keeper: Keeper) -> None:
    """Rows stay as they are now and at every snapshot; each commit names its run; a second run finds nothing to do."""
    fill(keeper)
    before = {table: keeper.ask(f"FROM {table} ORDER BY ALL") for table in "tsv"}
    assert min(count_manifests(keeper).values()) >= 6
    planned = keeper.run(dry_run=True)
    assert planned.verdict is Verdict.planned
    assert [(step.subject, step.kind) for step in planned.steps if step.verdict is Verdict.planned] == [
        ("main.s", StepKind.compact),
        ("main.t", StepKind.flush),
        ("main.t", StepKind.compact),
        ("main.v", StepKind.compact),
    ]
    assert keeper.count_files("t") == 6
    report = keeper.run()
    assert report.verdict is Verdict.done, report.describe()
    assert [step.subject for step in find(report, lambda step: step.verdict is Verdict.skipped)] == ["main.s"]
    assert {table: keeper.ask(f"FROM {table} ORDER BY ALL") for table in "tsv"} == before
    assert (keeper.count_files("t"), keeper.count_files("s"), keeper.count_files("v")) == (1, 1, 2)
    for table in "tsv":
        summary = keeper.list_summaries(table)[-1]
        assert (summary["operation"], summary["duckicelake.run-id"]) == ("replace", report.run_id), table
    assert max(count_manifests(keeper).values()) <= 2, "what was compacted takes its manifests along"
    keeper.check_same()
    again = keeper.run()
    assert again.verdict is Verdict.nothing, again.describe()


@pytest.mark.long
@pytest.mark.parametrize(
    "is_of_spark", [pytest.param(False, id="duckdb"), pytest.param(True, id="deletion vector", marks=pytest.mark.long)]
)
def test_a_large_file_with_many_deletes_is_written_anew(keeper: Keeper, is_of_spark: bool) -> None:
    """Though it is above the target: its deletes are gone then, the rows the same, and its neighbour without deletes is left alone."""
    select = "SELECT i AS id, sha256(i::VARCHAR) AS name FROM range({}, {}) r(i)"
    keeper.checker.run(f"CREATE TABLE t AS {select.format(0, 3000)}", f"INSERT INTO t {select.format(3000, 6000)}")
    files = dict(keeper.ask("SELECT data_file, data_file_size_bytes FROM ducklake_list_files('lake', 't')"))
    if is_of_spark:
        keeper.checker.ask_spark(f"ALTER TABLE {{c}}.main.t SET TBLPROPERTIES ({MERGE_ON_READ})")
        keeper.checker.ask_spark("DELETE FROM {c}.main.t WHERE id < 3000 AND id % 3 = 0")
    else:
        keeper.checker.run("DELETE FROM t WHERE id < 3000 AND id % 3 = 0")
    with_deletes = "SELECT data_file FROM ducklake_list_files('lake', 't') WHERE delete_file IS NOT NULL"
    [(worn,)] = keeper.ask(with_deletes)
    rows, target = keeper.ask("FROM t ORDER BY ALL"), min(files.values()) // 2
    assert len(rows) == 5000
    assert keeper.run(target_size=target, delete_ratio=0.34).steps == ()
    report = keeper.run(target_size=target)
    assert [(step.kind, step.verdict, step.removed) for step in report.steps] == [(StepKind.compact, Verdict.done, 1)], report.describe()
    assert keeper.ask(with_deletes) == []
    left = {name for name, *_ in keeper.ask("FROM ducklake_list_files('lake', 't')")}
    assert left & set(files) == set(files) - {worn}
    assert keeper.ask("FROM t ORDER BY ALL") == rows
    keeper.check_same()
    assert keeper.run(target_size=target).steps == ()


@pytest.mark.long
@pytest.mark.parametrize("keep_refs", [True, False])
def test_what_a_tag_names_outlives_every_age(keeper: Keeper, keep_refs: bool) -> None:
    """Snapshots go, files that none of them needs go too; the tag's rows are there for Iceberg clients, and for DuckDB if it is told so."""
    fill(keeper)
    keeper.checker.ask_spark("ALTER TABLE {c}.main.t CREATE TAG kept")
    tagged = keeper.checker.served.server.get("namespaces/main/tables/t").json["metadata"]["refs"]["kept"]["snapshot-id"]
    rows = keeper.ask("FROM t ORDER BY ALL")
    keeper.checker.run("DELETE FROM t WHERE id > 100", f"INSERT INTO t {LINES.format(2000, 2040)}")
    ages = {name.replace("-", "_"): age for name, age in AT_ONCE.items()}
    report = keeper.run(**ages, keep_refs=keep_refs)
    assert report.verdict is Verdict.done, report.describe()
    left = [row[0] for row in keeper.ask("SELECT snapshot_id FROM ducklake_snapshots('lake') ORDER BY ALL")]
    assert (len(left), tagged in left) == ((2, True) if keep_refs else (1, False)), left
    [cleaned] = find(report, lambda step: step.kind is StepKind.clean_up)
    # those of `s` and `v`, which nobody named, and the seven of `t` where the tag does not hold them
    assert cleaned.removed == (23 if keep_refs else 30), cleaned
    keeper.check_same(every_snapshot=False)
    at_tag = keeper.checker.spark.arrow(f"SELECT * FROM {keeper.checker.catalog}.main.t VERSION AS OF 'kept'")
    assert sorted((tuple(row.values()) for row in at_tag.to_pylist()), key=repr) == sorted(rows, key=repr)
    if keep_refs:
        assert keeper.ask(f"FROM t AT (VERSION => {tagged}) ORDER BY ALL") == rows
    assert keeper.run(**ages, keep_refs=keep_refs).status == 0


@pytest.mark.long
def test_duckdb_goes_on_meanwhile(keeper: Keeper) -> None:
    """Rows that are added, changed and deleted while files are written again are there, changed and gone afterwards."""
    fill(keeper)
    duck = keeper.checker.served.lake.duckdb()
    failed: list[Exception] = []

    def write() -> None:
        try:
            for number in range(6):
                duck.execute(f"INSERT INTO t {LINES.format(5000 + 40 * number, 5040 + 40 * number)}")
                duck.execute(f"DELETE FROM t WHERE id = {5000 + 40 * number}")
        except Exception as error:  # noqa: BLE001  the test shows it
            failed.append(error)

    writer = Thread(target=write)

    def tell(step: str) -> None:
        if step == "compact main.t" and not writer.ident:
            writer.start()

    report = keeper.run(tell=tell)
    writer.join()
    assert (failed, report.status) == ([], 0), report.describe()
    assert keeper.ask("SELECT count(*) FROM t WHERE id >= 5000") == [(6 * 39,)]
    assert keeper.ask("SELECT count(*), sum(id) FROM t WHERE id < 5000") == [(6 * 25 - 1 + 1, sum(keep_ids()) + 1000)]
    keeper.check_same()


def keep_ids() -> list[int]:
    """The ids below 1000 that `fill` leaves."""
    return [i for i in range(240) if i % 40 >= 15 and i != 20]
