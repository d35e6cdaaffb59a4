"""Compaction that puts rows in order: the same rows, in files that readers can pass over. How they lie in these, pyarrow reads."""

from collections.abc import Callable
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.common.spark_sql import parse_order
from tests.pipeline.ingest.mill import open_mill
from tests.pipeline.maintain.keeper import Keeper
from tests.support.keys import open_s3
from tests.support.tiers import long_after

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
FILES, ROWS = 6, 40
T = "namespaces/main/tables/t"
Row = tuple[Any, ...]
BITS = 6
SIDE = 1 << BITS
"""Each column has so many values, and every pair of them is in a row."""


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({"strategy": "sort", "order": "name desc, id"}, id="sort", marks=pytest.mark.long),
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
    assert [step.snapshot_id for step in report.steps] == [keeper.checker.served.server.get(T).json["metadata"]["current-snapshot-id"]]
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "stay"),
    [({}, True), pytest.param({"strategy": "sort"}, True, marks=pytest.mark.long), ({"strategy": "sort", "order": "name"}, False)],
)
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


def read_files(keeper: Keeper, table: str, schema: str = "main") -> list[list[Row]]:
    """The rows of each live file of a table as they lie there."""
    store = keeper.checker.served.lake.store
    client, found = open_s3(store), list[list[Row]]()
    for (uri,) in keeper.ask(f"SELECT data_file FROM ducklake_list_files('lake', '{table}', schema => '{schema}')"):
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        rows = pq.read_table(BytesIO(client.get_object(Bucket=bucket, Key=key)["Body"].read()), columns=["x", "y"])
        found.append(list(zip(*(column.to_pylist() for column in rows.columns), strict=True)))
    return found


def interleave(row: Row) -> int:
    """The bits of both numbers in turn, the highest first."""
    return sum((row[column] >> bit & 1) << (2 * bit + 1 - column) for bit in range(BITS) for column in (0, 1))


def check_order(files: list[list[Row]], by: Callable[[Row], Any]) -> None:
    """Each file is in order, and begins where another one ends."""
    assert all(rows == sorted(rows, key=by) for rows in files)
    in_turn = sorted(files, key=lambda rows: by(rows[0]))
    assert all(by(one[-1]) <= by(other[0]) for one, other in zip(in_turn, in_turn[1:], strict=False))


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "by"),
    [
        pytest.param({"strategy": "sort", "order": "y desc, x"}, lambda row: (-row[1], row[0]), id="sort"),
        pytest.param({"strategy": "zorder", "order": "x, y"}, interleave, id="zorder"),
    ],
)
def test_compaction_puts_rows_in_order(keeper: Keeper, policy: dict[str, Any], by: Callable[[Row], Any]) -> None:
    """Several files come out, each with its own range of the order; none went in that had one."""
    keeper.checker.run("CREATE TABLE t (x BIGINT, y BIGINT, note VARCHAR)")
    for part in range(8):
        pairs = f"SELECT i // {SIDE}, i % {SIDE}, sha256(i::VARCHAR) FROM range({SIDE * SIDE}) r(i)"
        keeper.checker.run(f"INSERT INTO t {pairs} WHERE hash(i) % 8 = {part} ORDER BY hash(-i)")
    before = read_files(keeper, "t")
    assert len(before) == 8
    assert all(rows != sorted(rows, key=by) for rows in before)
    size = max(bytes_ for (bytes_,) in keeper.ask("SELECT data_file_size_bytes FROM ducklake_list_files('lake', 't')"))
    report = keeper.run(target_size=2 * size, **policy)
    assert report.status == 0, report.describe()
    after = read_files(keeper, "t")
    assert 1 < len(after) < len(before)
    check_order(after, by)
    assert sorted(row for rows in after for row in rows) == [(x, y) for x in range(SIDE) for y in range(SIDE)]
    assert keeper.ask("SELECT count(*), count(DISTINCT (x, y)) FROM t WHERE note = sha256((x * 64 + y)::VARCHAR)") == [(SIDE * SIDE,) * 2]


def test_a_sorted_table_gets_and_keeps_its_order(keeper: Keeper, tmp_path: Path) -> None:
    """Files that `ingest` writes, first as it is told and then as the table has it, and what becomes of them when they are put together."""
    mill = open_mill(keeper.checker.served, keeper.checker.spark, tmp_path / "files")

    def by(row: Row) -> tuple[int, int]:
        return -row[1], row[0]

    for number, how in enumerate(({"sort_by": parse_order("y desc, x")}, {})):
        lines = [f"{i * 37 % 1000},{i * i % 7}" for i in range(number * 500, number * 500 + 500)]
        mill.write(f"{number}.csv", "\n".join(["x,y", *lines, ""]))
        mill.run(**how)
        files = read_files(keeper, "trips", "raw")
        assert sum(map(len, files)) == 500 * (number + 1)
        assert all(rows == sorted(rows, key=by) for rows in files)
    assert len(files) > 1
    report = keeper.run("raw.trips", strategy="sort", min_files=2)
    assert report.status == 0, report.describe()
    [rows] = read_files(keeper, "trips", "raw")
    assert rows == sorted(((i * 37 % 1000, i * i % 7) for i in range(1000)), key=by)


ZORDERED = "INTEGER BIGINT FLOAT DOUBLE VARCHAR UUID BLOB DATE TIMESTAMP TIMESTAMPTZ".split()


@pytest.mark.long
def test_orders_name_columns_in_any_case(keeper: Keeper) -> None:
    """Of every type that z-order takes, also words of SQL, by `sort` those inside a struct; Iceberg 1.11 fails on a truth of NULL."""
    columns = ", ".join(f'"C{number}" {form}' for number, form in enumerate(ZORDERED))
    keeper.checker.run(f'CREATE TABLE "group" ("order" INT, "Id" INT, "In" STRUCT("Deep" INT), {columns}, truth BOOLEAN)')
    every = ", ".join(f"c{number}" for number in range(len(ZORDERED)))
    for strategy, order, truth in (
        ("zorder", f"ORDER, id, {every}, Truth", "true"),
        ("sort", "IN.deep, ID desc", "true"),
        ("zorder", "truth", "NULL"),
    ):
        for _ in range(2):
            keeper.checker.run(f'INSERT INTO "group" ("order", "Id", truth) SELECT range, -range, {truth} FROM range(30)')
        [done] = [step for step in keeper.run("main.group", min_files=2, strategy=strategy, order=order).steps if step.kind == "compact"]
        assert (done.verdict, done.added) == ((Verdict.done, 1) if truth == "true" else (Verdict.failed, 0)), (order, done)
        assert done.reason.endswith(" small files, 0 with many deletes")
    keeper.check_same(every_snapshot=False)


@pytest.mark.parametrize(
    ("strategy", "order", "message"),
    long_after(
        1,
        [
            ("zorder", "id, Price", "strategy zorder cannot take column price, which is decimal(38, 10)"),
            ("zorder", "point.x", "strategy zorder cannot take column point.x, which is inside another one"),
            ("sort", "none", "there is no column none to order by"),
            ("sort", "", "strategy sort needs an order, of the policy or of the table itself"),
            ("binpack", "", "column clock is time, which Spark does not read"),
        ],
    ),
)
def test_a_plan_tells_what_cannot_be_done(keeper: Keeper, strategy: str, order: str, message: str) -> None:
    """In the words of the run, which fails before Spark is asked."""
    clock = ", clock TIME" if strategy == "binpack" else ""
    keeper.checker.run(f"CREATE TABLE t (id BIGINT, price DECIMAL(38, 10), point STRUCT(x INT){clock})")
    for start in range(0, 60, 20):
        keeper.checker.run(f"INSERT INTO t (id) SELECT range FROM range({start}, {start + 20})")
    asked = {"strategy": strategy, "min_files": 2, **({"order": order} if order else {})}
    [planned], [done] = (keeper.run("main.t", dry_run=dry_run, **asked).steps for dry_run in (True, False))
    assert planned == done
    assert message in done.message
    assert "compact main.t" not in keeper.told
