"""Flink: batches over the tables of `clients`, row by row against DuckDB; streams: reads, upserts, a write that is killed and goes on."""

import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from duckdb import DuckDBPyConnection

from duckicelake.commands.snippets import format_flink
from tests.outside.client_program import NEW_ROW, simplify
from tests.outside.client_suite import Case, copy_id, judge_case, list_cases, make_tables
from tests.outside.java_program import (
    JAVA,
    JavaProgram,
    ProgramRefused,
    count_rows,
    fetch_program,
    judge_check,
    list_classpath,
    start_program,
    wait_until,
)
from tests.outside.results import Result
from tests.outside.stand import Stand

FLINK, ICEBERG = "2.1.1", "1.11.0"
"""The newest releases of which the registry has all jars."""
SOURCES = Path(__file__).parent / "flink"
STREAMED_COUNT = 20_000
COMPACT = "CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')"
OPENED = ("java.lang", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.net", "java.nio", "java.time")
SETTINGS: Mapping[str, str] = {
    "parallelism.default": "1",
    "table.local-time-zone": "UTC",
    "rest.bind-port": "0",
    # Threads of S3's client outlive a job.
    "classloader.check-leaked-classloader": "false",
    "taskmanager.memory.network.min": "16m",
    "taskmanager.memory.network.max": "16m",
    "taskmanager.memory.managed.size": "64m",
    "execution.checkpointing.interval": "500 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}


@contextmanager
def start(folder: Path, stand: Stand, mode: str, **more: str) -> Generator[JavaProgram]:
    """Start a Flink that knows the catalog by the text that `connect --client flink` prints. It is killed at the end."""
    opened = [word for module in OPENED for word in ("--add-opens", f"java.base/{module}=ALL-UNNAMED")]
    settings = {**SETTINGS, "execution.runtime-mode": mode, **{name.replace("_", "."): text for name, text in more.items()}}
    words = [*JAVA, "-Xmx900m", *opened, *list_classpath(folder), "FlinkProgram", *(f"{name}={text}" for name, text in settings.items())]
    with start_program(words, folder / "log", {**os.environ, "AWS_REGION": stand.lake.store.region}) as flink:
        for statement in format_flink(stand.facts).split(";\n"):
            if code := "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip():
                flink.ask("sql", code)
        yield flink


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the cases that are chosen, or all; the results by case."""
    folder = fetch_program(cache, "flink", SOURCES, {"flink": FLINK, "iceberg": ICEBERG})
    cases = [case for case in list_cases() if case.operation != "connect" and (not chosen or case.name in chosen)]
    with stand.lake.duckdb() as conn:
        results = run_batches(folder, stand, conn, cases) if cases else {}
        for name, check in STREAMS.items():
            if not chosen or name in chosen:
                results[name] = judge_check(partial(check, folder, stand, conn))
    return results


def run_batches(folder: Path, stand: Stand, conn: DuckDBPyConnection, cases: list[Case]) -> dict[str, Result]:
    """Run cases of `clients` in one Flink."""
    make_tables(conn)
    with start(folder, stand, "batch") as flink:
        return {case.name: judge_case("flink", case, ask_case(flink, case), conn, "") for case in cases}


def ask_case(flink: JavaProgram, case: Case) -> Mapping[str, Any]:
    """Return the rows of a case, or the error."""
    table = f"`lake`.`main`.`{case.table}`"
    try:
        if case.operation == "append":
            flink.ask("sql", f"INSERT INTO {table} VALUES ({NEW_ROW['id']}, '{NEW_ROW['name']}', {NEW_ROW['v']})")
        if case.operation == "copy":
            return {"rows": flink.ask("sql", f"INSERT INTO {table} SELECT {copy_id('flink')}, x FROM {table} WHERE id = 1")}
        return {"rows": simplify(flink.ask("sql", f"SELECT * FROM {table}{' WHERE id < 10' if case.operation == 'filter' else ''}"))}
    except ProgramRefused as error:
        return {"error": str(error)[:2000]}


def read_rows(conn: DuckDBPyConnection, query: str) -> list[Any]:
    """Return DuckDB's rows as Flink's are spelled."""
    return simplify(conn.execute(query).to_arrow_table().to_pylist())


def check_stream_read(folder: Path, stand: Stand, conn: DuckDBPyConnection) -> None:
    """A stream has each row once: of files, inlined, after a new column, and after a flush and a merge."""
    conn.execute("CREATE TABLE streamed AS SELECT i::INTEGER AS id FROM range(10) r(i)")
    with start(folder, stand, "streaming") as flink:
        flink.ask("open", "SELECT id FROM lake.main.streamed /*+ OPTIONS('streaming'='true', 'monitor-interval'='200ms') */")
        found = flink.ask("take", "10")
        for statement, count in {
            "CALL lake.set_option('data_inlining_row_limit', 100); INSERT INTO streamed VALUES (10), (11)": 2,
            "DELETE FROM streamed WHERE id = 0; INSERT INTO streamed SELECT i FROM range(12, 1012) r(i)": 1000,
            "ALTER TABLE streamed ADD COLUMN name VARCHAR; INSERT INTO streamed VALUES (1012, 'a')": 1,
            f"{COMPACT}; INSERT INTO streamed VALUES (1013, 'b')": 1,
        }.items():
            conn.execute(statement)
            found += flink.ask("take", str(count))
    assert sorted(row["id"] for row in found) == list(range(1014))


def check_stream_restart(folder: Path, stand: Stand, conn: DuckDBPyConnection) -> None:
    """A stream that is killed while it writes, and goes on from its last checkpoint, has written each row once.

    DuckDB inserts and merges in between.
    """
    insert = "INSERT INTO lake.main.written SELECT id, 'n' || CAST(id AS STRING) FROM default_catalog.default_database.numbers"
    source = (
        "CREATE TEMPORARY TABLE default_catalog.default_database.numbers (id INT) WITH ('connector'='datagen', 'rows-per-second'='2000', "
        f"'fields.id.kind'='sequence', 'fields.id.start'='1', 'fields.id.end'='{STREAMED_COUNT}')"
    )
    with tempfile.TemporaryDirectory() as kept:
        with start(folder, stand, "streaming", execution_checkpointing_dir=f"file://{kept}") as flink:
            flink.ask("sql", "CREATE TABLE lake.main.written (id INT, name STRING)")
            flink.ask("sql", source)
            flink.ask("start", insert)
            wait_until(lambda: count_rows(conn, "written") > STREAMED_COUNT // 5)
        before = count_rows(conn, "written")
        assert before < STREAMED_COUNT, "the stream had ended before it was killed"
        conn.execute("INSERT INTO written VALUES (-1, 'ours')")
        conn.execute("CALL ducklake_merge_adjacent_files('lake')")
        last = max(Path(kept).glob("*/chk-*/_metadata"), key=lambda path: int(path.parent.name.removeprefix("chk-"))).parent
        recovered = {"execution_checkpointing_dir": f"file://{kept}", "execution_state-recovery_path": f"file://{last}"}
        with start(folder, stand, "streaming", **recovered) as flink:
            flink.ask("sql", source)
            flink.ask("start", insert)
            flink.ask("wait", "")
    found = conn.execute("SELECT id, name FROM written ORDER BY id").fetchall()
    assert found == [(-1, "ours"), *((number, f"n{number}") for number in range(1, STREAMED_COUNT + 1))], f"{len(found)} rows"


def check_upsert(folder: Path, stand: Stand, conn: DuckDBPyConnection) -> None:
    """Upserts replace the rows of their keys, also those that DuckDB changed and inserted in between."""
    with start(folder, stand, "streaming") as flink:
        flink.ask(
            "sql",
            "CREATE TABLE lake.main.upserted (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED) "
            "WITH ('format-version'='2', 'write.upsert.enabled'='true')",
        )
        flink.ask("sql", "INSERT INTO lake.main.upserted VALUES (1, 10), (2, 20), (3, 30)")
        conn.execute("UPDATE upserted SET v = 99 WHERE id = 3; INSERT INTO upserted VALUES (4, 40), (5, 50)")
        flink.ask("sql", "INSERT INTO lake.main.upserted VALUES (2, 21), (4, 41), (6, 60)")
    expected = [{"id": 1, "v": 10}, {"id": 2, "v": 21}, {"id": 3, "v": 99}, {"id": 4, "v": 41}, {"id": 5, "v": 50}, {"id": 6, "v": 60}]
    assert read_rows(conn, "SELECT * FROM upserted ORDER BY id") == expected
    with start(folder, stand, "batch") as flink:
        assert sorted(flink.ask("sql", "SELECT * FROM lake.main.upserted"), key=lambda row: row["id"]) == expected


def check_write(folder: Path, stand: Stand, conn: DuckDBPyConnection) -> None:
    """Tables that Flink makes, appends to, evolves, overwrites and drops are DuckDB's too."""
    with start(folder, stand, "batch") as flink:
        flink.ask(
            "sql",
            "CREATE TABLE lake.main.typed (id INT, b BIGINT, f FLOAT, d DOUBLE, c DECIMAL(9, 2), s STRING, x BYTES, o BOOLEAN, t DATE, "
            "m TIMESTAMP(6), z TIMESTAMP_LTZ(6), l ARRAY<INT>, r ROW<a INT, n STRING>, k MAP<STRING, INT>, p STRING) PARTITIONED BY (p)",
        )
        flink.ask(
            "sql",
            "INSERT INTO lake.main.typed VALUES (1, 10000000000, CAST(0.5 AS FLOAT), 1e10, 12.25, 'ü', X'00FF', TRUE, DATE '1969-12-31', "
            "TIMESTAMP '1969-12-31 23:59:59.5', CAST(TIMESTAMP '2024-02-29 12:00:00.25' AS TIMESTAMP_LTZ(6)), ARRAY[1, 2], ROW(7, 'x'), "
            "MAP['a', 1], 'one')",
        )
        flink.ask("sql", "ALTER TABLE lake.main.typed ADD (later STRING)")
        flink.ask("sql", "INSERT INTO lake.main.typed (id, p, later) VALUES (2, 'two', 'z')")
        rows = sorted(simplify(flink.ask("sql", "SELECT * FROM lake.main.typed")), key=lambda row: row["id"])
        assert rows == read_rows(conn, "SELECT * FROM typed ORDER BY id")
        flink.ask("sql", "INSERT OVERWRITE lake.main.typed PARTITION (p = 'two') (id, later) SELECT 3, 'y'")
        assert conn.execute("SELECT id, later FROM typed ORDER BY id").fetchall() == [(1, None), (3, "y")]
        flink.ask("sql", "DROP TABLE lake.main.typed")
        assert conn.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'typed'").fetchone() == (0,)


STREAMS: Mapping[str, Callable[[Path, Stand, DuckDBPyConnection], None]] = {
    "write/tables": check_write,
    "stream/read": check_stream_read,
    "stream/restart": check_stream_restart,
    "stream/upsert": check_upsert,
}
