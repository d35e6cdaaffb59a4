"""A lake that Postgres has no statistics of yet: what a load and a create cost after few and after many transactions of DuckDB."""

from collections.abc import Callable, Sequence
from functools import partial

from psycopg import sql

from bench.commits.client import create_table
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import Stand

TABLES, FEW, LOOKS = 20, 10, 10
CREATE = "CREATE TABLE {name} (id BIGINT, name VARCHAR);"
INSERT = "INSERT INTO {name} VALUES (1, 'a');"


SELECT_TABLES = """
SELECT relname FROM pg_class
 WHERE relkind = 'r' AND relname ~ '^(ducklake|iceberg)_' AND relnamespace = current_schema::regnamespace
"""


def measure_young(stand: Stand, scale: Scale) -> Result:
    """Return the CPU time of a load of a table with one new row, and of a create."""
    names = [f"young_{number}" for number in range(TABLES)]
    _commit(stand, CREATE, names)
    # On a busy machine Postgres would get to see the tables before they are measured.
    for (name,) in stand.postgres.execute(SELECT_TABLES).fetchall():
        stand.postgres.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(sql.Identifier(name)))
    rows: list[dict[str, Cell]] = []
    done = 1
    for transactions in sorted({FEW, max(FEW, scale.young_transactions)}):
        for _ in range(transactions - done):
            _commit(stand, INSERT, names)
        done = transactions
        _load(stand, names[0])
        loads = [_spend(stand, partial(_insert, stand, names[0]), partial(_load, stand, names[0])) for _ in range(LOOKS)]
        created = [f"young_{transactions}_{number}" for number in range(LOOKS)]
        creates = [_spend(stand, bool, partial(create_table, stand, name)) for name in created]
        rows += [{"transactions": transactions, "what": "load", **_average(loads)}]
        rows += [{"transactions": transactions, "what": "create", **_average(creates)}]
    return Result("A young lake: CPU-milliseconds of a load and a create", rows)


def _commit(stand: Stand, statement: str, names: Sequence[str]) -> None:
    """Run a statement for each table in one transaction of DuckDB."""
    stand.duckdb.execute(f"BEGIN;{''.join(statement.format(name=name) for name in names)}COMMIT")


def _insert(stand: Stand, name: str) -> None:
    _commit(stand, INSERT, [name])


def _load(stand: Stand, name: str) -> None:
    status, _, _ = stand.server.fetch(stand.table_path(name))
    assert status == 200


def _spend(stand: Stand, before: Callable[[], object], act: Callable[[], object]) -> dict[str, float]:
    """Return the CPU time of an act by process."""
    before()
    began = stand.meter.read_cpu_ms()
    act()
    ended = stand.meter.read_cpu_ms()
    return {name: ended[name] - began[name] for name in began}


def _average(spent: Sequence[dict[str, float]]) -> dict[str, Cell]:
    return {f"{name}_cpu_ms": sum(each[name] for each in spent) / len(spent) for name in spent[0]}
