"""Python tools as clients: they read and append to tables that DuckDB made, and every row is compared with DuckDB's."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import duckdb
from duckdb import DuckDBPyConnection

from duckicelake.commands.snippets import Client, Tool, format_client
from tests.outside.client_program import simplify
from tests.outside.results import Result
from tests.outside.stand import Stand, list_spark

PACKAGES: Mapping[str, Sequence[str]] = {
    "polars": (
        "polars==2.1.0",
        "polars-iceberg==0.1.0",
        "pandas==3.1.1",
        "datafusion==54.*",
        "pyiceberg[pyarrow]==0.12.0",
        "pyiceberg-core==0.11.0",
    ),
    "daft": ("daft[iceberg]==0.7.26", "pandas"),
    "chdb": ("chdb==4.4.0", "pyarrow"),
    "ray": ("ray[data]==2.60.0", "pyiceberg[pyarrow,s3fs]==0.12.0", "pandas"),
    "dbt": ("dbt-duckdb==1.11.1", "dbt-core==1.11.16", "duckdb==1.5.5", "pyiceberg[pyarrow,s3fs]==0.12.0", "pytz"),
    "sqlmesh": ("sqlmesh==0.236.4", "duckdb==1.5.5", "pyarrow", "pytz"),
    "dlt": ("dlt[pyiceberg,s3,filesystem]==1.31.0", "pyiceberg[pyarrow]==0.12.0", "sqlalchemy", "sqlglot<29"),
}
"""What each environment has: Daft requires an older PyIceberg. Arrow needs pandas for nanoseconds."""
OWN = "own"
"""The environment of this checkout."""
ENVIRONMENTS: Mapping[str, str] = {
    **dict.fromkeys(("pyiceberg", "polars", "pandas", "datafusion"), "polars"),
    "daft": "daft",
    "ray": "ray",
    "clickhouse": "chdb",
    "spark": OWN,
    "duckdb": OWN,
}
LOADERS: Mapping[str, Sequence[str]] = {
    "dlt": ("append", "replace", "merge"),
    "dbt": ("table", "incremental", "seed", "snapshot"),
    "sqlmesh": ("full",),
}
"""Tools that write tables of their own, and what they do. Each has an environment of its name, and runs with the text of `connect`."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true"}
PROGRAM = Path(__file__).with_name("client_program.py")
IN_FILES = "CALL lake.set_option('data_inlining_row_limit', 0)"
FLAT = "SELECT i::INTEGER AS id, 'n' || i AS name, i / 7 AS v FROM range(1000) r(i)"

TABLES: Mapping[str, Sequence[str]] = {
    "flat": (f"CREATE TABLE flat AS {FLAT}",),
    "appended": (f"CREATE TABLE appended AS {FLAT}",),
    "inlined": ("CREATE TABLE inlined (id INTEGER, name VARCHAR, v DOUBLE)", "INSERT INTO inlined VALUES (1, 'a', 1.5), (20, NULL, NULL)"),
    "deleted": (f"CREATE TABLE deleted AS {FLAT}", "DELETE FROM deleted WHERE id % 3 = 0", "UPDATE deleted SET v = 0 WHERE id = 7"),
    "evolved": (
        f"CREATE TABLE evolved AS {FLAT}",
        "ALTER TABLE evolved RENAME name TO title",
        "ALTER TABLE evolved DROP v",
        "ALTER TABLE evolved ADD COLUMN w INTEGER",
        "INSERT INTO evolved VALUES (5, 'x', 3)",
    ),
    "promoted": (
        f"CREATE TABLE promoted AS {FLAT}",
        "ALTER TABLE promoted ALTER id TYPE BIGINT",
        "INSERT INTO promoted VALUES (5000000000, 'x', 3)",
    ),
    "default": (
        f'CREATE TABLE "default" AS {FLAT}',
        'ALTER TABLE "default" ADD COLUMN d INTEGER DEFAULT 42',
        "INSERT INTO \"default\" VALUES (5, 'x', 3, 7)",
    ),
    "vectors": (
        f"CREATE TABLE vectors AS {FLAT}",
        "ALTER TABLE vectors ADD COLUMN d INTEGER DEFAULT 42",
        "UPDATE vectors SET d = d",
        "DELETE FROM vectors WHERE id % 3 = 0",
    ),
    "identity": (
        "CREATE TABLE identity (id INTEGER, name VARCHAR, v DOUBLE)",
        "ALTER TABLE identity SET PARTITIONED BY (name)",
        "INSERT INTO identity SELECT i, CASE WHEN i % 3 > 0 THEN 'p' || i % 3 END, i / 7 FROM range(100) r(i)",
    ),
    "month": (
        "CREATE TABLE month (id INTEGER, seen TIMESTAMP)",
        "ALTER TABLE month SET PARTITIONED BY (month(seen))",
        "INSERT INTO month SELECT i, TIMESTAMP '1969-11-30 12:00:00' + INTERVAL (i) DAY FROM range(100) r(i)",
    ),
}
TYPES: Mapping[str, tuple[str, str]] = {
    "boolean": ("BOOLEAN", "i % 2 = 0"),
    "integer": ("INTEGER", "i - 5"),
    "smallint": ("SMALLINT", "i - 5"),
    "utinyint": ("UTINYINT", "i"),
    "bigint": ("BIGINT", "i * 10000000000"),
    "float": ("FLOAT", "i / 7"),
    "double": ("DOUBLE", "i / 7"),
    "decimal": ("DECIMAL(9, 2)", "i / 4"),
    "decimal38": ("DECIMAL(38, 10)", "i / 4"),
    "date": ("DATE", "DATE '1969-12-30' + i::INTEGER"),
    "time": ("TIME", "TIME '01:02:03.5' + INTERVAL (i) SECOND"),
    "timestamp": ("TIMESTAMP", "TIMESTAMP '1969-12-31 23:59:59.5' + INTERVAL (i) SECOND"),
    "timestamptz": ("TIMESTAMPTZ", "TIMESTAMPTZ '2024-02-29 12:00:00.25+02' + INTERVAL (i) DAY"),
    "timestamp_ns": ("TIMESTAMP_NS", "make_timestamp_ns(1700000000123456789 + i)"),
    "varchar": ("VARCHAR", "'ü' || i"),
    "json": ("JSON", "('{\"a\": ' || i || '}')::JSON"),
    "blob": ("BLOB", "'\\x00\\xFF'::BLOB"),
    "uuid": ("UUID", "('00000000-0000-4000-8000-00000000000' || i)::UUID"),
    "struct": ("STRUCT(a INTEGER, b VARCHAR)", "{'a': i, 'b': 'x' || i}"),
    "list": ("INTEGER[]", "[i, NULL, i + 1]"),
    "map": ("MAP(VARCHAR, INTEGER)", "MAP {'k' || i: i}"),
}
FIRST_COPY = 100
FILTERED = ("flat", "deleted", "promoted", "default", "identity")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that a client does with one table."""

    name: str
    operation: str
    table: str


def list_cases() -> list[Case]:
    """Return the cases of each client: reading every table and type, filters, an append to a table of files that DuckDB wrote, and
    the text that `connect` prints.
    """
    cases = [Case(f"read/{table}", "read", table) for table in TABLES if table != "appended"]
    cases += [Case(f"type/{name}", "read", f"type_{name}") for name in TYPES]
    cases += [Case(f"append/{name}", "copy", f"copy_{name}") for name in TYPES]
    cases += [Case(f"filter/{table}", "filter", table) for table in FILTERED]
    return [*cases, Case("append/appended", "append", "appended"), Case("connect", "connect", "flat")]


def list_loads(client: str) -> list[Case]:
    """Return the cases of a tool that writes tables of its own; dlt's lie in a namespace of its own."""
    schema = "dlt" if client == "dlt" else "main"
    return [Case(operation, operation, f"{schema}.{'loaded' if client == 'dlt' else client}_{operation}") for operation in LOADERS[client]]


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the clients that are chosen, or all; the results by `CLIENT/CASE`."""
    environments = {**ENVIRONMENTS, **{name: name for name in LOADERS}}
    clients = chosen or [*environments]
    with stand.lake.duckdb() as conn:
        if not set(clients) <= set(LOADERS):
            make_tables(conn)
        results: dict[str, Result] = {}
        for client in clients:
            results |= run_client(fetch(cache, environments[client]), stand, client, conn)
        return results


def fetch(cache: Path, name: str) -> Path:
    """Return the Python of an environment, installed the first time and when it is to have other packages."""
    if name == OWN:
        return Path(sys.executable)
    folder = cache / "clients" / name
    python = folder / "bin" / "python"
    installed, wanted = folder / "complete", "\n".join(PACKAGES[name])
    if not installed.exists() or installed.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *PACKAGES[name]], check=True)
        installed.write_text(wanted)
    return python


def make_tables(conn: DuckDBPyConnection) -> None:
    """Make the tables with DuckDB: all but `inlined` in files."""
    for table, statements in TABLES.items():
        for statement in statements if table == "inlined" else (IN_FILES, *statements):
            conn.execute(statement)
    for name, (type_, value) in TYPES.items():
        conn.execute(f"CREATE TABLE type_{name} (id INTEGER, x {type_})")
        conn.execute(f"INSERT INTO type_{name} SELECT i, CASE WHEN i <> 3 THEN {value} END FROM range(8) r(i)")
        conn.execute(f"CREATE TABLE copy_{name} AS SELECT * FROM type_{name}")


def run_client(python: Path, stand: Stand, client: str, conn: DuckDBPyConnection) -> dict[str, Result]:
    """Run all cases of one client. What it appends is taken away again."""
    store, cases = stand.lake.store, list_loads(client) if client in LOADERS else list_cases()
    facts = {
        "type": "rest",
        "uri": stand.server.uri,
        "warehouse": "lake",
        "s3.endpoint": store.endpoint,
        "s3.region": store.region,
        "s3.access-key-id": store.access_key_id,
        "s3.secret-access-key": store.secret_access_key,
        "bucket": stand.bucket,
        "iceberg_path": stand.lake.iceberg_path,
        "text": format_client(stand.facts, cast("Client | Tool", client)),
        "spark": json.dumps(list_spark(stand, "lake")) if client == "spark" else "",
        "copy_id": str(copy_id(client)),
    }
    asked = json.dumps({"facts": facts, "cases": [[case.name, case.operation, case.table] for case in cases]})
    with TemporaryDirectory() as home:
        link_extensions(Path(home))
        environment = {**os.environ, "AWS_REGION": store.region, "HOME": home, **QUIET}
        done = subprocess.run([python, PROGRAM, client], input=asked, env=environment, capture_output=True, text=True, check=False)
    answers = {answer["name"]: answer for answer in map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines()))}
    found = {f"{client}/{case.name}": judge_case(client, case, answers.get(case.name), conn, done.stderr) for case in cases}
    if client not in LOADERS:
        conn.execute("DELETE FROM appended WHERE id = 1000")
    return found


def link_extensions(home: Path) -> None:
    """Put DuckDB's extensions where INSTALL finds them, in the home folder."""
    folder = home / ".duckdb" / "extensions" / f"v{duckdb.__version__}" / "linux_amd64"
    folder.mkdir(parents=True)
    for name in ("ducklake", "postgres_scanner", "httpfs", "avro", "iceberg"):
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        (folder / f"{name}.duckdb_extension").symlink_to(next(package.rglob(f"{name}.duckdb_extension")))


def copy_id(client: str) -> int:
    """Return the id of the row that a client appends to each table of types."""
    return FIRST_COPY + [*ENVIRONMENTS, "flink", "trino"].index(client) if client not in LOADERS else 0


def judge_copy(case: Case, written_id: int, conn: DuckDBPyConnection) -> Result:
    """Return whether DuckDB reads in the row that a client copied what is in the one that it is a copy of."""
    query = (
        f"SELECT list(x)[1] IS NOT DISTINCT FROM list(x)[2], list(x) FROM {case.table} WHERE id IN (1, {written_id}) HAVING count(*) = 2"
    )
    try:
        found = conn.execute(query).fetchone()
    except duckdb.Error as error:
        return Result("failed", f"DuckDB cannot read the table any more: {error}"[:2000])
    return Result("passed") if found is not None and found[0] else Result("failed", f"DuckDB reads {found}")


def judge_case(client: str, case: Case, answer: Mapping[str, Any] | None, conn: DuckDBPyConnection, stderr: str) -> Result:
    """Return whether a client's rows are DuckDB's."""
    if answer is None:
        return Result("failed", f"the program ended before this case: {stderr[-1500:]}")
    if "error" in answer:
        return Result("failed", answer["error"])
    if case.operation == "connect":
        return Result("passed")
    if case.operation == "copy":
        return judge_copy(case, copy_id(client), conn)
    where = " WHERE id < 10" if case.operation == "filter" else ""
    appends = case.operation == "append" and case.table in TABLES
    expected = list(read_expected(conn, f"SELECT * FROM {format_name(case)}{where}", appends=appends))
    found = sorted(json.dumps(row, sort_keys=True) for row in answer["rows"])
    if found == expected:
        return Result("passed")
    different = next(((mine, theirs) for mine, theirs in zip(expected, found, strict=False) if mine != theirs), None)
    return Result("failed", f"{len(found)} rows, DuckDB has {len(expected)}; first difference: {different}")


def format_name(case: Case) -> str:
    """Return the table of a case as DuckDB names it."""
    return f'"{case.table}"' if case.table in TABLES or case.operation == "read" else case.table


def read_expected(conn: DuckDBPyConnection, query: str, *, appends: bool) -> Iterator[str]:
    """Yield DuckDB's rows in the spelling of the program, sorted."""
    if appends:
        assert conn.execute(f"SELECT count(*) FROM ({query}) WHERE id = 1000 AND name = 'new'").fetchone() == (1,)
    yield from sorted(json.dumps(row, sort_keys=True) for row in simplify(conn.execute(query).to_arrow_table().to_pylist()))
