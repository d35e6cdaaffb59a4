"""A program that one client's Python runs: it reads or writes tables and prints what came of each case, a line of JSON a case.

It runs in an environment of its own, so it imports nothing of this repository, and its client when it is asked for.
Usage: python client_program.py CLIENT, with {"facts": …, "cases": [[name, operation, table] …]} on standard input
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib import import_module
from re import fullmatch
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

Facts = Mapping[str, str]
Rows = list[dict[str, Any]]
UUID_TEXT = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
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
    return import_module("pyiceberg.catalog").load_catalog("lake", **dict(facts))


def ask_pyiceberg(facts: Facts, operation: str, table: str) -> Rows:
    """PyIceberg alone."""
    found = open_catalog(facts).load_table(f"main.{table}")
    if operation == "append":
        arrow = import_module("pyarrow")
        found.append(arrow.Table.from_pylist([NEW_ROW], found.schema().as_arrow()))
    return found.scan(row_filter="id < 10" if operation == "filter" else "true").to_arrow().to_pylist()


def ask_polars(facts: Facts, operation: str, table: str) -> Rows:
    """Polars, with its own reader."""
    polars, found = import_module("polars"), open_catalog(facts).load_table(f"main.{table}")
    if operation == "append":
        polars.DataFrame(NEW_ROW, schema_overrides={"id": polars.Int32}).write_iceberg(found, mode="append")
    scanned = polars.scan_iceberg(open_catalog(facts).load_table(f"main.{table}"))
    scanned = scanned.filter(polars.col("id") < 10) if operation == "filter" else scanned
    return scanned.collect().to_arrow().to_pylist()


def ask_pandas(facts: Facts, operation: str, table: str) -> Rows:
    """pandas, by name. It makes whole numbers beside NULLs floating, and NULLs NaN, which `convert_dtypes` takes back."""
    pandas = import_module("pandas")
    if operation == "append":
        pandas.DataFrame([NEW_ROW]).astype({"id": "int32"}).to_iceberg(f"main.{table}", "lake", catalog_properties=dict(facts), append=True)
    row_filter = {"row_filter": "id < 10"} if operation == "filter" else {}
    rows = pandas.read_iceberg(f"main.{table}", "lake", catalog_properties=dict(facts), **row_filter).convert_dtypes()
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
    """dlt: two loads, the second one with a new column; the rows as PyIceberg reads them."""
    dlt, credentials = (
        import_module("dlt"),
        import_module("dlt.sources.credentials").AwsCredentials(
            aws_access_key_id=facts["s3.access-key-id"],
            aws_secret_access_key=facts["s3.secret-access-key"],
            endpoint_url=facts["s3.endpoint"],
            region_name=facts["s3.region"],
        ),
    )
    catalog = {name: text for name, text in facts.items() if name not in {"bucket", "iceberg_path"}}
    os.environ["ICEBERG_CATALOG__ICEBERG_CATALOG_NAME"] = "lake"
    os.environ["ICEBERG_CATALOG__ICEBERG_CATALOG_TYPE"] = "rest"
    os.environ["ICEBERG_CATALOG__ICEBERG_CATALOG_CONFIG"] = json.dumps(catalog)
    destination = dlt.destinations.filesystem(bucket_url=facts["iceberg_path"] + "dlt", credentials=credentials)
    with TemporaryDirectory() as folder:
        pipeline = dlt.pipeline(table, pipelines_dir=folder, destination=destination, dataset_name="dlt")
        disposition = {"disposition": "merge", "strategy": "upsert"} if operation == "merge" else operation
        for rows in LOADS:
            key = {"primary_key": "id"} if operation == "merge" else {}
            # `upsert` of PyIceberg reads by the schema of the newest snapshot, which has no new column.
            given = [{name: value for name, value in row.items() if name != "w"} for row in rows] if operation == "merge" else rows
            pipeline.run(given, table_name=table, write_disposition=disposition, table_format="iceberg", **key)
    found = open_catalog(facts).load_table(f"dlt.{table}").scan().to_arrow().to_pylist()
    if len(found) != LOADED_COUNT[operation]:
        raise RuntimeError(f"{len(found)} rows, where {LOADED_COUNT[operation]} were loaded")
    return found


CLIENTS: Mapping[str, Callable[[Facts, str, str], Rows]] = {
    "pyiceberg": ask_pyiceberg,
    "polars": ask_polars,
    "pandas": ask_pandas,
    "daft": ask_daft,
    "datafusion": ask_datafusion,
    "clickhouse": ask_clickhouse,
    "dlt": ask_dlt,
}


def main() -> None:
    """Run the cases of standard input, and print the rows or the error of each."""
    asked = json.load(sys.stdin)
    for name, operation, table in asked["cases"]:
        try:
            answer: dict[str, Any] = {"rows": simplify(CLIENTS[sys.argv[1]](asked["facts"], operation, table))}
        except BaseException as error:  # noqa: BLE001  Rust's panics are no Exception, and the next case is run all the same
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        sys.stdout.write(json.dumps({"name": name, **answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
