"""Compaction that puts rows in order: the same rows, in files that readers can pass over."""

from importlib.metadata import version
from typing import Any

import pytest

from tests.pipeline.maintain.keeper import Keeper

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
FILES, ROWS = 6, 40


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({"strategy": "sort", "order": "name desc, id"}, id="sort"),
        pytest.param({"strategy": "zorder", "order": "id, name"}, id="zorder"),
    ],
)
def test_rows_are_put_in_order(keeper: Keeper, policy: dict[str, Any]) -> None:
    """One file for six, sorted as the policy says, and nothing to do afterwards."""
    keeper.checker.run("CREATE TABLE t (id BIGINT, name VARCHAR)")
    for start in range(0, FILES * ROWS, ROWS):
        keeper.checker.run(
            f"INSERT INTO t SELECT (hash(i) % 1000)::BIGINT, 'n' || hash(i + 7) % 7 FROM range({start}, {start + ROWS}) r(i)"
        )
    before = keeper.ask("FROM t ORDER BY ALL")
    report = keeper.run(**policy)
    assert report.status == 0, report.describe()
    told = {name: text for name, text in keeper.list_summaries("t")[-1].items() if name.startswith("duckicelake.")}
    versions = {f"duckicelake.version.{name}": version(name) for name in ("duckicelake", "pyspark", "duckdb")}
    assert told == {"duckicelake.job": "maintain", "duckicelake.run-id": report.run_id, **versions}
    assert keeper.count_files("t") == 1
    after = keeper.ask("FROM t")
    assert sorted(after) == before
    assert after != before
    if policy["strategy"] == "sort":
        assert after == sorted(sorted(before), key=lambda row: row[1], reverse=True)
    else:
        # neither column is in order alone, and both are more so than they were written
        near = [abs(one[0] - other[0]) for one, other in zip(after, after[1:], strict=False)]
        assert sum(near) / len(near) < 1000 / 3
        assert [row[0] for row in after] != sorted(row[0] for row in after)
    keeper.check_same()
    assert [step.describe() for step in keeper.run(**policy).steps] == []


@pytest.mark.parametrize(("policy", "stay"), [({}, True), ({"strategy": "sort"}, True), ({"strategy": "sort", "order": "name"}, False)])
def test_sorted_files_stay(keeper: Keeper, policy: dict[str, Any], stay: bool) -> None:
    """Those of half the size of a small file and more, if the order asked for is the one that they have."""
    session, table = keeper.checker.spark.session, f"{keeper.checker.catalog}.main.t"
    keeper.checker.run("CREATE TABLE t (id BIGINT, name VARCHAR)")
    for start in range(5):
        session.sql(f"INSERT INTO {table} VALUES ({start}, 'small')")
    session.sql(f"ALTER TABLE {table} WRITE ORDERED BY id")
    session.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ hash(id), sha2(cast(id AS STRING), 256) FROM range(0, 3000, 1, 1)")
    sizes = dict(keeper.ask("SELECT data_file, data_file_size_bytes FROM ducklake_list_files('lake', 't')"))
    [(large, size)] = [(file, size) for file, size in sizes.items() if size > 10_000]
    report = keeper.run(target_size=2 * size, **policy)
    assert report.status == 0, report.describe()
    assert [(step.removed, step.bytes) for step in report.steps] == [(5, sum(sizes.values()) - size) if stay else (6, sum(sizes.values()))]
    assert (large in {file for file, *_ in keeper.ask("FROM ducklake_list_files('lake', 't')")}) is stay
    keeper.check_same()
    assert keeper.run(target_size=2 * size, **policy).steps == ()
