"""Random filters on a table with something of everything: the rows of a plan are the rows that DuckDB finds by the same filter."""

import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import FileScanTask
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform

from tests.rest.scans.plans import Planner
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import PyIcebergReader, Served
from tests.support.shared_stack import SharedStack

ROW = """i AS id, CASE WHEN i % 11 = 0 THEN NULL ELSE 'abcde'[1 + i % 5] || 'abc'[1 + i % 3] || i % 4 END AS old,
    CASE WHEN i % 13 = 0 THEN NULL ELSE DATE '1969-12-20' + (i % 90)::INTEGER END AS d,
    CASE WHEN i % 7 = 0 THEN NULL ELSE TIMESTAMP '1969-12-25 22:30:00' + to_hours(i * 5) END AS seen,
    CASE WHEN i % 17 = 0 THEN 'NaN'::DOUBLE WHEN i % 19 = 0 THEN NULL WHEN i % 23 = 0 THEN 'Infinity'::DOUBLE ELSE i / 4 - 20 END AS x,
    CASE WHEN i % 5 = 0 THEN NULL ELSE (i % 50 / 10)::FLOAT END AS f,
    CASE WHEN i % 6 = 0 THEN NULL ELSE (i % 300 / 7)::DECIMAL(9, 2) END AS price, (i % 100)::INTEGER AS n, i % 2 = 0 AS b,
    CASE WHEN i % 9 = 0 THEN NULL ELSE {{'y': CASE WHEN i % 4 = 0 THEN NULL ELSE i % 30 END}} END AS s"""
INSERT = "INSERT INTO t SELECT " + ROW + " FROM range({start}, {end}) r(i)"
BEFORE = (
    "CREATE TABLE t AS SELECT " + ROW.format() + " FROM range(0) r(i)",
    INSERT.format(start=0, end=150),
    "ALTER TABLE t SET PARTITIONED BY (old)",
    INSERT.format(start=150, end=300),
    "DELETE FROM t WHERE id % 10 = 3",
    "ALTER TABLE t RENAME COLUMN old TO k",
    "ALTER TABLE t ALTER n SET DATA TYPE BIGINT",
    "ALTER TABLE t SET PARTITIONED BY (year(d), month(d), b)",
    INSERT.format(start=300, end=420),
    "ALTER TABLE t RESET PARTITIONED BY",
    INSERT.format(start=420, end=426),
    "DELETE FROM t WHERE id = 422",
    "ALTER TABLE t ADD COLUMN late INTEGER",
)
AFTER = ("DELETE FROM t WHERE id % 10 = 7", "UPDATE t SET late = 5 WHERE id BETWEEN 100 AND 104")
COLUMNS: Mapping[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-5, 620),
    "k": st.sampled_from(["", "a", "aa", "aa0", "bb1", "cc", "dc", "dc2", "e", "z"]),
    "d": st.integers(-20, 80).map(lambda days: f"{'1969-12' if days < 0 else '1970-01' if days < 31 else '1970-02'}-{days % 28 + 1:02}"),
    "seen": st.integers(1, 28).map(lambda day: f"1970-0{day % 4 + 1}-{day:02}T{day % 24:02}:30:00"),
    "x": st.integers(-100, 500).map(lambda value: value / 4 - 0.5),
    "f": st.integers(-5, 55).map(lambda value: value / 10),
    "price": st.integers(-100, 4500).map(lambda cents: f"{cents / 100:.2f}"),
    "n": st.integers(-3, 103) | st.just(2**40),
    "b": st.booleans(),
    "s.y": st.integers(-2, 32),
    "late": st.integers(3, 7),
}
KINDS = ("lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "in", "not-in", "is-null", "not-null")


@st.composite
def predicates(draw: st.DrawFn) -> dict[str, Any]:
    """A predicate, as JSON."""
    name = draw(st.sampled_from(sorted(COLUMNS)))
    more = ("is-nan", "not-nan") if name in "xf" else ("starts-with", "not-starts-with") if name == "k" else ()
    kind = draw(st.sampled_from((*KINDS, *more)))
    if kind in ("in", "not-in"):
        return {"type": kind, "term": name, "values": draw(st.lists(COLUMNS[name], min_size=1, max_size=4))}
    return {"type": kind, "term": name} | ({} if kind.startswith(("is-", "not-n")) else {"value": draw(COLUMNS[name])})


JOINED = st.sampled_from(["and", "and", "or"])
FILTERS = st.recursive(
    predicates(),
    lambda inner: (
        st.builds(lambda kind, left, right: {"type": kind, "left": left, "right": right}, JOINED, inner, inner)
        | inner.map(lambda child: {"type": "not", "child": child})
    ),
    max_leaves=5,
)
COMPARED = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "=", "not-eq": "<>"}


def to_sql(node: Any) -> str:
    """A filter as DuckDB has it."""
    if isinstance(node, bool):
        return str(node)
    match node["type"]:
        case "and" | "or":
            return f"({to_sql(node['left'])} {node['type']} {to_sql(node['right'])})"
        case "not":
            return f"(NOT {to_sql(node['child'])})"
        case kind:
            return predicate_to_sql(kind, node)


def predicate_to_sql(kind: str, node: Any) -> str:
    """A predicate as DuckDB has it."""
    name = node["term"]
    match kind:
        case "is-null" | "not-null":
            return f"({name} IS {'NOT ' * (kind == 'not-null')}NULL)"
        case "is-nan" | "not-nan":
            return f"({'NOT ' * (kind == 'not-nan')}isnan({name}))"
        case "in" | "not-in":
            return f"({name} {'NOT ' * (kind == 'not-in')}IN ({', '.join(literal(name, value) for value in node['values'])}))"
        case "starts-with" | "not-starts-with":
            return f"({'NOT ' * (kind == 'not-starts-with')}starts_with({name}, {literal(name, node['value'])}))"
        case _:
            return f"({name} {COMPARED[kind]} {literal(name, node['value'])})"


def literal(name: str, value: Any) -> str:
    """A value as DuckDB has it; numbers of floats are floats."""
    if name in ("d", "seen", "price"):
        return f"{ {'d': 'DATE', 'seen': 'TIMESTAMP', 'price': 'DECIMAL(9, 2)'}[name] } '{value}'"
    if name in ("x", "f"):
        return f"{value!r}::{'DOUBLE' if name == 'x' else 'FLOAT'}"
    return f"'{value}'" if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class Mixed:
    """The table, DuckDB's view of it, and which ids each of its files shows."""

    planner: Planner
    conn: DuckDBPyConnection
    ids: Mapping[str, frozenset[int]]
    deletes: Mapping[str, list[str]]

    def find(self, node: Any) -> frozenset[int]:
        """The rows that fit."""
        return frozenset(row[0] for row in self.conn.execute(f"SELECT id FROM seen_rows WHERE {to_sql(node)}").fetchall())


@pytest.fixture(scope="module")
def mixed(stack: SharedStack) -> Generator[Mixed]:
    """Files of five specs by two writers, inlined rows, deletes of each, columns renamed, promoted and added."""
    with make_lake(stack) as lake, serve(make_settings(lake)) as server:
        served, conn = Served(lake, server), lake.duckdb()
        for statement in BEFORE:
            conn.execute(statement)
        reader = served.pyiceberg()
        append_by_pyiceberg(lake, reader, conn)
        for statement in AFTER:
            conn.execute(statement)
        planner = Planner(server)
        conn.execute("CREATE TEMP TABLE seen_rows AS SELECT * FROM lake.t")
        yield Mixed(planner, conn, list_ids(reader), list_deletes(planner.plan()))


def append_by_pyiceberg(lake: FreshLake, reader: PyIcebergReader, conn: DuckDBPyConnection) -> None:
    """Files under specs that only Iceberg knows."""
    table = reader.catalog.load_table(("main", "t"))
    conn.execute("SET TimeZone = 'UTC'")
    for number, (column, transform) in enumerate(
        [("id", BucketTransform(4)), ("k", TruncateTransform(2)), ("seen", DayTransform()), ("price", TruncateTransform(500))]
    ):
        with table.update_spec() as update:
            update.add_field(column, transform)
        start = 500 + number * 30
        rows = conn.execute(f"SELECT {ROW.format()}, NULL::INTEGER AS late FROM range({start}, {start + 12}) r(i)").to_arrow_table()
        named = rows.rename_columns(["k" if name == "old" else name for name in rows.column_names])
        table.append(cast_to(named, table.schema().as_arrow()))


def cast_to(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows under a schema's types."""
    return rows.select(schema.names).cast(schema)


def list_ids(reader: PyIcebergReader) -> Mapping[str, frozenset[int]]:
    """The ids of the rows that each file shows, read by what a client plans itself."""
    scan = reader.catalog.load_table(("main", "t")).scan(selected_fields=("id",))

    def read(task: FileScanTask) -> frozenset[int]:
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415 - only here

        arrow = ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter).to_table([task])
        return frozenset(arrow.column("id").to_pylist())

    return {task.file.file_path: read(task) for task in scan.plan_files()}


def list_deletes(plan: Any) -> dict[str, list[str]]:
    """The delete files of each data file."""
    paths = [item["file-path"] for item in plan.get("delete-files", [])]
    tasks = plan["file-scan-tasks"]
    return {task["data-file"]["file-path"]: [paths[at] for at in task.get("delete-file-references", [])] for task in tasks}


@pytest.mark.whole
def test_the_table_is_as_mixed_as_it_should_be(mixed: Mixed) -> None:
    """What the filters are held against."""
    tasks = mixed.planner.plan()["file-scan-tasks"]
    assert {task["data-file"]["file-path"] for task in tasks} == mixed.ids.keys()
    assert len({task["data-file"]["spec-id"] for task in tasks}) >= 6
    assert sum(bool(found) for found in mixed.deletes.values()) > 5
    assert frozenset[int]().union(*mixed.ids.values()) == mixed.find(True)
    assert len(tasks) > 60
    assert math.isnan(mixed.conn.execute("SELECT x FROM seen_rows WHERE isnan(x)").fetchall()[0][0])


@pytest.mark.whole
@pytest.mark.parametrize("count", [pytest.param(60, id="some"), pytest.param(5000, id="thousands", marks=pytest.mark.long)])
def test_a_plan_has_the_rows_that_fit_and_asks_for_no_others(mixed: Mixed, count: int) -> None:
    """What fits lies in files of the plan; what is left to ask of a file's rows finds just those; their deletes are all there."""
    pruned = 0

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(node=FILTERS)
    def check(node: Any) -> None:
        nonlocal pruned
        plan = mixed.planner.plan(filter=node)
        expected, found = mixed.find(node), set[int]()
        residuals = {json.dumps(task["residual-filter"]): task["residual-filter"] for task in plan["file-scan-tasks"]}
        fitting = {told: mixed.find(residual) for told, residual in residuals.items()}
        for task in plan["file-scan-tasks"]:
            path = task["data-file"]["file-path"]
            rows = fitting[json.dumps(task["residual-filter"])] & mixed.ids[path]
            assert rows == expected & mixed.ids[path], (path, json.dumps(task))
            found |= rows
        assert found == expected
        deletes = list_deletes(plan)
        assert all(sorted(told) == sorted(mixed.deletes[path]) for path, told in deletes.items())
        pruned += len(mixed.ids) - len(deletes)

    check()
    assert pruned > count * 10
