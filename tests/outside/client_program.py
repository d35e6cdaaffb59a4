"""A program that one client's Python runs: it reads or writes tables and prints what came of each case, a line of JSON a case.

It runs in an environment of its own, so it imports nothing of this repository, and its client when it is asked for.
Usage: python client_program.py CLIENT, with {"facts": …, "cases": [[name, operation, table] …]} on standard input
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from importlib import import_module
from pathlib import Path
from re import fullmatch
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

Facts = Mapping[str, str]
Rows = list[dict[str, Any]]
UUID_TEXT = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
OURS = {"bucket", "iceberg_path", "text", "spark", "copy_id"}
"""Facts that are no properties of a catalog."""
NEW_ID = 1000
NEW_ROW = {"id": NEW_ID, "name": "new", "v": 0.5}


def simplify(value: Any) -> Any:
    """Return a value in one spelling for all clients: text and numbers; binary and UUIDs as digits, maps as pairs, times in UTC."""
    if isinstance(value, datetime):
        # pandas knows nanoseconds as a part of its own
        utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return f"{utc:%Y-%m-%d %H:%M:%S.%f}{getattr(value, 'nanosecond', 0):03}"
    if isinstance(value, (bytes, UUID)):
        return value.hex if isinstance(value, UUID) else value.hex()
    if isinstance(value, str) and fullmatch(UUID_TEXT, value):
        return value.replace("-", "")
    if isinstance(value, (date, time, Decimal)):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    return simplify_nested(value)


def simplify_nested(value: Any) -> Any:
    """Return the same of a list, a map or a struct, and of what numpy has for lists and numbers."""
    if hasattr(value, "tolist"):
        return simplify(value.tolist())
    if isinstance(value, dict):
        return {name: simplify(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(each, dict) and set(each) == {"key", "value"} for each in value):
            value = [(each["key"], each["value"]) for each in value]
        return [simplify(each) for each in value]
    return value


def open_catalog(facts: Facts) -> Any:
    """Return PyIceberg's catalog, which most of the clients read with."""
    return import_module("pyiceberg.catalog").load_catalog("lake", **list_properties(facts))


def list_properties(facts: Facts) -> dict[str, str]:
    """Return the properties of PyIceberg's catalog."""
    return {name: text for name, text in facts.items() if name not in OURS}


def ask_pyiceberg(facts: Facts, operation: str, table: str) -> Rows:
    """PyIceberg alone."""
    found = open_catalog(facts).load_table(f"main.{table}")
    if operation == "append":
        arrow = import_module("pyarrow")
        found.append(arrow.Table.from_pylist([NEW_ROW], found.schema().as_arrow()))
    if operation == "copy":
        rows = found.scan(row_filter="id = 1").to_arrow()
        return found.append(renumber(rows, facts)) or []
    return found.scan(row_filter="id < 10" if operation == "filter" else "true").to_arrow().to_pylist()


def ask_polars(facts: Facts, operation: str, table: str) -> Rows:
    """Polars, with its own reader."""
    polars, found = import_module("polars"), open_catalog(facts).load_table(f"main.{table}")
    if operation == "append":
        polars.DataFrame(NEW_ROW, schema_overrides={"id": polars.Int32}).write_iceberg(found, mode="append")
    if operation == "copy":
        copied = polars.lit(int(facts["copy_id"]), polars.Int32).alias("id")
        rows = polars.scan_iceberg(found).filter(polars.col("id") == 1).with_columns(copied)
        return rows.collect().write_iceberg(found, mode="append") or []
    scanned = polars.scan_iceberg(open_catalog(facts).load_table(f"main.{table}"))
    scanned = scanned.filter(polars.col("id") < 10) if operation == "filter" else scanned
    return scanned.collect().to_arrow().to_pylist()


def ask_pandas(facts: Facts, operation: str, table: str) -> Rows:
    """pandas, by name. It makes whole numbers beside NULLs floating, and NULLs NaN, which `convert_dtypes` takes back."""
    pandas = import_module("pandas")
    if operation == "append":
        frame = pandas.DataFrame([NEW_ROW]).astype({"id": "int32"})
        frame.to_iceberg(f"main.{table}", "lake", catalog_properties=list_properties(facts), append=True)
    if operation == "copy":
        frame = pandas.read_iceberg(f"main.{table}", "lake", catalog_properties=list_properties(facts), row_filter="id = 1")
        frame["id"] = pandas.Series([int(facts["copy_id"])], dtype="int32")
        return frame.to_iceberg(f"main.{table}", "lake", catalog_properties=list_properties(facts), append=True) or []
    row_filter = {"row_filter": "id < 10"} if operation == "filter" else {}
    rows = pandas.read_iceberg(f"main.{table}", "lake", catalog_properties=list_properties(facts), **row_filter).convert_dtypes()
    return [{name: None if is_missing(value) else value for name, value in row.items()} for row in rows.to_dict("records")]


def is_missing(value: Any) -> bool:
    """True for what pandas has in the place of NULL."""
    return value is None or type(value).__name__ in {"NAType", "NaTType"} or (isinstance(value, float) and value != value)


def ask_daft(facts: Facts, operation: str, table: str) -> Rows:
    """Daft."""
    daft = import_module("daft")
    if operation == "append":
        daft.from_pydict({name: [value] for name, value in NEW_ROW.items()}).write_iceberg(open_catalog(facts).load_table(f"main.{table}"))
    frame = daft.read_iceberg(open_catalog(facts).load_table(f"main.{table}"))
    if operation == "copy":
        copied = frame.where(daft.col("id") == 1).with_column("id", daft.lit(int(facts["copy_id"])).cast(daft.DataType.int32()))
        return copied.write_iceberg(open_catalog(facts).load_table(f"main.{table}")).to_pylist()[:0]
    frame = frame.where(daft.col("id") < 10) if operation == "filter" else frame
    return frame.to_arrow().to_pylist()


def ask_datafusion(facts: Facts, operation: str, table: str) -> Rows:
    """DataFusion with pyiceberg-core, whose tables are read-only."""
    found, context = open_catalog(facts).load_table(f"main.{table}"), import_module("datafusion").SessionContext()
    properties = {name: text for name, text in found.io.properties.items() if isinstance(text, str)}
    make = import_module("pyiceberg_core.datafusion").IcebergDataFusionTable
    context.register_table("t", make(identifier=found.name(), metadata_location=found.metadata_location, file_io_properties=properties))
    if operation == "append":
        context.sql("INSERT INTO t VALUES (1000, 'new', 0.5)").collect()
    if operation == "copy":
        return context.sql(f"INSERT INTO t SELECT {facts['copy_id']}, x FROM t WHERE id = 1").collect()
    return context.sql(f"SELECT * FROM t{' WHERE id < 10' if operation == 'filter' else ''}").to_arrow_table().to_pylist()


def ask_clickhouse(facts: Facts, operation: str, table: str) -> Rows:
    """ClickHouse, inside chDB."""
    session = import_module("chdb.session").Session()
    keys, bucket = f"'{facts['s3.access-key-id']}', '{facts['s3.secret-access-key']}'", f"{facts['s3.endpoint']}/{facts['bucket']}"
    session.query("SET allow_database_iceberg = 1, allow_insert_into_iceberg = 1, write_full_path_in_iceberg_metadata = 1")
    # Texts come as bytes, because ClickHouse has no other type for binary.
    session.query("SET output_format_arrow_string_as_string = 0")
    session.query(
        f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{facts['uri']}/v1', {keys}) "
        f"SETTINGS catalog_type='rest', warehouse='lake', storage_endpoint='{bucket}'"
    )
    if operation == "append":
        session.query(f"INSERT INTO lake.`main.{table}` VALUES (1000, 'new', 0.5)")
    if operation == "copy":
        session.query(f"INSERT INTO lake.`main.{table}` SELECT {facts['copy_id']}, x FROM lake.`main.{table}` WHERE id = 1")
        return []
    where = " WHERE id < 10" if operation == "filter" else ""
    content = session.query(f"SELECT * FROM lake.`main.{table}`{where}", "Arrow").bytes()
    with import_module("pyarrow").ipc.open_file(content) as reader:
        return [{name: decode(value) for name, value in row.items()} for row in reader.read_all().to_pylist()]


def decode(value: Any) -> Any:
    """Return bytes as the text that they may be, also inside of lists, maps and structs."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {name: decode(each) for name, each in value.items()}
    return type(value)(map(decode, value)) if isinstance(value, (list, tuple)) else value


LOADS = (
    [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}],
    [{"id": 3, "name": "c", "w": 1.5}, {"id": 4, "name": "d", "w": None}],
)
LOADED_COUNT: Mapping[str, int] = {"append": 5, "replace": 2, "merge": 4}


def ask_dlt(facts: Facts, operation: str, table: str) -> Rows:
    """dlt with the file that `connect` prints: two loads, the second one with a new column; the rows as PyIceberg reads them."""
    dlt, name = import_module("dlt"), table.partition(".")[2]
    with TemporaryDirectory() as folder:
        os.chdir(os.environ["HOME"])
        Path(".dlt").mkdir(exist_ok=True)
        Path(".dlt/secrets.toml").write_text(facts["text"])
        pipeline = dlt.pipeline(name, pipelines_dir=folder, destination="filesystem", dataset_name="dlt")
        disposition = {"disposition": "merge", "strategy": "upsert"} if operation == "merge" else operation
        for rows in LOADS:
            key = {"primary_key": "id"} if operation == "merge" else {}
            # `upsert` of PyIceberg reads by the schema of the newest snapshot, which has no new column.
            given = [{name: value for name, value in row.items() if name != "w"} for row in rows] if operation == "merge" else rows
            pipeline.run(given, table_name=name, write_disposition=disposition, table_format="iceberg", **key)
    return check_count(open_catalog(facts).load_table(table).scan().to_arrow().to_pylist(), LOADED_COUNT[operation])


DBT_MODELS: Mapping[str, tuple[str, str, int]] = {
    "table": ("models", "{{ config(materialized='table') }} SELECT i::INTEGER AS id, 'n' || i AS name FROM range(3) r(i)", 3),
    "incremental": (
        "models",
        "{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id', on_schema_change='append_new_columns') }} "
        "SELECT i::INTEGER AS id, 'n' || i AS name {% if is_incremental() %}, 1.5::DOUBLE AS w {% endif %} "
        "FROM range({% if is_incremental() %} 2, 6 {% else %} 3 {% endif %}) r(i)",
        6,
    ),
    "seed": ("seeds", "id,name\n1,a\n2,\n", 2),
    "snapshot": (
        "snapshots",
        "{% snapshot dbt_snapshot %}{{ config(target_schema='main', unique_key='id', strategy='check', check_cols='all') }} "
        "SELECT 1 AS id, '{{ invocation_id }}' AS name {% endsnapshot %}",
        2,
    ),
}
"""By operation: the folder of dbt's project, the text of the model, and the number of rows after two runs."""


def ask_dbt(facts: Facts, operation: str, table: str) -> Rows:
    """dbt-duckdb with the profile that `connect` prints: two runs, then the rows as PyIceberg reads them."""
    kind, text, count = DBT_MODELS[operation]
    with TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        (folder / "profiles.yml").write_text(facts["text"])
        (folder / "dbt_project.yml").write_text("name: ours\nversion: '1.0.0'\nprofile: lake\n")
        (folder / kind).mkdir()
        (folder / kind / f"dbt_{operation}{'.csv' if kind == 'seeds' else '.sql'}").write_text(text)
        for _ in range(2):
            done = import_module("dbt.cli.main").dbtRunner().invoke(["build", "--project-dir", name, "--profiles-dir", name])
            if not done.success:
                raise RuntimeError(f"dbt: {done.exception or [each.message for each in done.result]}")
    return check_count(open_catalog(facts).load_table(table).scan().to_arrow().to_pylist(), count)


def ask_sqlmesh(facts: Facts, operation: str, table: str) -> Rows:
    """SQLMesh with the configuration that `connect` prints: a plan of a table with all its rows, and a second one after a change."""
    with TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        os.chdir(os.environ["HOME"])
        (folder / "config.yaml").write_text(facts["text"])
        (folder / "models").mkdir()
        for count in (3, 5):
            query = f"SELECT i::INT AS id, 'n' || i AS name FROM range({count}) AS r(i)"
            (folder / "models" / "full.sql").write_text(f"MODEL (name lake.{table}, kind FULL);\n{query}")
            context = import_module("sqlmesh").Context(paths=str(folder))
            context.plan(auto_apply=True, no_prompts=True)
        return check_count(context.engine_adapter.fetchdf(f"SELECT * FROM lake.{table}").to_dict("records"), 5)


def check_count(rows: Rows, count: int) -> Rows:
    """Return the rows, if there are so many."""
    if len(rows) != count:
        raise RuntimeError(f"{len(rows)} rows, where {count} were loaded")
    return rows


def ask_ray(facts: Facts, operation: str, table: str) -> Rows:
    """Ray Data."""
    ray = import_module("ray")
    ray.init(num_cpus=1, include_dashboard=False, ignore_reinit_error=True, log_to_driver=False)
    given = {"table_identifier": f"main.{table}", "catalog_kwargs": {"name": "lake", **list_properties(facts)}}
    if operation == "append":
        arrow = import_module("pyarrow")
        row = arrow.Table.from_pylist([NEW_ROW], arrow.schema([("id", arrow.int32()), ("name", arrow.string()), ("v", arrow.float64())]))
        ray.data.from_arrow(row).write_iceberg(**given)
    if operation == "copy":
        refs = ray.data.read_iceberg(**given, row_filter=import_module("pyiceberg.expressions").EqualTo("id", 1)).to_arrow_refs()
        (rows,) = [each for each in map(ray.get, refs) if each.num_rows]
        return ray.data.from_arrow(renumber(rows, facts)).write_iceberg(**given) or []
    row_filter = {"row_filter": import_module("pyiceberg.expressions").LessThan("id", 10)} if operation == "filter" else {}
    tables = [ray.get(each) for each in ray.data.read_iceberg(**given, **row_filter).to_arrow_refs()]
    return [row for each in tables for row in each.to_pylist()]


def renumber(rows: Any, facts: Facts) -> Any:
    """Return an Arrow table of one row with the id that this client writes."""
    arrow = import_module("pyarrow")
    return rows.set_column(rows.column_names.index("id"), "id", arrow.array([int(facts["copy_id"])], arrow.int32()))


@cache
def open_spark(settings: str) -> Any:
    """Return the session of Spark, whose catalog `lake` is the default."""
    return import_module("pyspark.sql").SparkSession.builder.master("local[2]").config(map=json.loads(settings)).getOrCreate()


def ask_spark(facts: Facts, operation: str, table: str) -> Rows:
    """Spark, with Iceberg's runtime."""
    return ask_sql(lambda query: open_spark(facts["spark"]).sql(query).toArrow().to_pylist(), f"main.`{table}`", facts, operation)


def ask_duckdb(facts: Facts, operation: str, table: str) -> Rows:
    """DuckDB's `iceberg` extension, attached with the text that `connect` prints."""
    conn = import_module("duckdb").connect()
    conn.execute("SET TimeZone = 'UTC'")
    conn.execute(facts["text"])

    def fetch(query: str) -> Rows:
        found = conn.execute(query).to_arrow_table()
        return found.to_pylist()

    return ask_sql(fetch, f'iceberg_lake.main."{table}"', facts, operation)


def ask_sql(fetch: Callable[[str], Rows], table: str, facts: Facts, operation: str) -> Rows:
    """The cases as SQL."""
    if operation == "append":
        fetch(f"INSERT INTO {table} VALUES ({NEW_ID}, 'new', 0.5)")
    if operation == "copy":
        return fetch(f"INSERT INTO {table} SELECT {facts['copy_id']}, x FROM {table} WHERE id = 1")[:0]
    return fetch(f"SELECT * FROM {table}{' WHERE id < 10' if operation == 'filter' else ''}")


def run_text(facts: Facts, table: str) -> Rows:
    """Run the Python that `connect` prints, with the name of a table of ours; it prints to standard error."""
    with redirect_stdout(sys.stderr):
        exec(facts["text"].replace("main.flights", f"main.{table}"), {})
    return []


def run_clickhouse_text(facts: Facts, table: str) -> Rows:
    """Run the statements that `connect` prints, the last of which reads five rows."""
    session = import_module("chdb.session").Session()
    statements = [each for each in facts["text"].replace("main.flights", f"main.{table}").split(";\n") if each.strip()]
    answers = [session.query(statement, "JSONEachRow").bytes() for statement in statements]
    return check_count([{} for _ in answers[-1].splitlines()], 5)[:0]


CLIENTS: Mapping[str, Callable[[Facts, str, str], Rows]] = {
    "pyiceberg": ask_pyiceberg,
    "polars": ask_polars,
    "pandas": ask_pandas,
    "daft": ask_daft,
    "datafusion": ask_datafusion,
    "clickhouse": ask_clickhouse,
    "ray": ask_ray,
    "spark": ask_spark,
    "duckdb": ask_duckdb,
    "dlt": ask_dlt,
    "dbt": ask_dbt,
    "sqlmesh": ask_sqlmesh,
}


def ask(client: str, facts: Facts, operation: str, table: str) -> Rows:
    """Return the rows of a case; of a text of `connect` none."""
    if operation == "connect" and client not in {"spark", "duckdb"}:
        return run_clickhouse_text(facts, table) if client == "clickhouse" else run_text(facts, table)
    return CLIENTS[client](facts, operation, table)


def main() -> None:
    """Run the cases of standard input, and print the rows or the error of each."""
    asked = json.load(sys.stdin)
    for name, operation, table in asked["cases"]:
        try:
            answer: dict[str, Any] = {"rows": simplify(ask(sys.argv[1], asked["facts"], operation, table))}
        except BaseException as error:  # noqa: BLE001  Rust's panics are no Exception, and the next case is run all the same
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        sys.stdout.write(json.dumps({"name": name, **answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
