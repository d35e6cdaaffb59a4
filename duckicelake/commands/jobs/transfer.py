"""`duckicelake pipeline import` and `export`: copy or register tables between the lake and another catalog.

`start` calls it on the main thread. It opens the other catalog, by REST, in a database or as folders of a store; `pipeline.transfer` does
the work, and commits to the lake over REST.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.reports import FAILED, GetLake, Stop, get_exit_status, print_error, print_lines, run_or_report, write_report
from duckicelake.commands.jobs.session import SparkSettings, opening_spark, read_spark_settings, showing_progress, to_catalog
from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.http_client import format_auth_properties
from duckicelake.pipeline.common.java import source_jars
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import RestCatalog, open_rest
from duckicelake.pipeline.common.spark_session import LazySpark, catalog_settings
from duckicelake.pipeline.common.staging import make_run_id
from duckicelake.pipeline.transfer.catalogs import Catalog, LazyScratchCatalog
from duckicelake.pipeline.transfer.copies import Store
from duckicelake.pipeline.transfer.delta import DeltaFolders
from duckicelake.pipeline.transfer.job import TransferContext, transfer
from duckicelake.pipeline.transfer.options import FOLDERS, Form, TransferOptions, TransferReport, name_place, read_options
from duckicelake.pipeline.transfer.parquet_folders import HiveFolders
from duckicelake.pipeline.transfer.rest import RestSide
from duckicelake.pipeline.transfer.serverless import HadoopWarehouse, JdbcCatalog, open_database
from duckicelake.store.objects import StoreSettings, open_objects

RESOLVING = {"io-impl": "org.apache.iceberg.io.ResolvingFileIO"}
"""Settings for reading files of any kind of store."""


@dataclass(frozen=True, slots=True)
class TransferCall:
    """The command's arguments without those that name the lake."""

    job: str
    options: TransferOptions
    spark_settings: SparkSettings
    dry_run: bool
    report: Path | None


def read_call(job: str, given: Mapping[str, Any]) -> TransferCall:
    """Return the parsed arguments; `given` has the command's parameters by name.

    Raises: BadRequest: arguments contradict each other, or one is malformed
    """
    options = read_options(given)
    if job == "export" and options.form in FOLDERS:
        raise BadRequest(f"--format {options.form} is read and not written: export to hadoop, jdbc or rest")
    return TransferCall(job, options, read_spark_settings(given), given["dry_run"], given["report"])


def report_transfer(call: TransferCall, find: GetLake, stop: Stop) -> int:
    """Run the job, print its outcome, write the report, and return the exit status."""
    done = run_or_report(find, lambda facts, _: run_transfer(facts, call, stop), lambda message: TransferReport(call.job, message=message))
    is_written = write_report(call.report, done.format_json())
    if done.message:
        print_error(done.message, FAILED)
    else:
        print_lines(done.describe())
    return get_exit_status(done.status, stop) if is_written else FAILED


def run_transfer(facts: Facts, call: TransferCall, stop: Stop) -> TransferReport:
    """Run the job once, with its steps on the terminal."""
    with showing_progress(Console(stderr=True), "looking", stop) as tell:
        catalog = to_catalog(facts)
        # Iceberg's own S3 connector reads Iceberg tables only, so folders of other formats need Hadoop's.
        jars = source_jars(call.options.place) if call.options.form in FOLDERS else ()
        spark = LazySpark(partial(opening_spark, call.spark_settings, catalog, tell, jars, stop))
        return transfer(make_desk(catalog, call, spark, tell), call.options, dry_run=call.dry_run)


def make_desk(catalog: RestCatalog, call: TransferCall, spark: LazySpark, tell: Progress) -> TransferContext:
    """Return the job's context. Spark is started when it is needed."""
    bench = LazyScratchCatalog(make_run_id(datetime.now(UTC)), spark)
    lake, other = open_lake(catalog), open_other(catalog, call, bench)
    source, target = (other, lake) if call.job == "import" else (lake, other)
    given: Mapping[str, str] = {} if call.job == "import" else call.options.properties
    return TransferContext(
        call.job, source, target, bench, tell, lambda keys: open_objects(_build_store_settings(catalog, {**given, **keys}))
    )


def open_lake(catalog: RestCatalog) -> RestSide:
    """Return the lake as a side of the transfer."""
    settings = {**catalog_settings(catalog), **RESOLVING}
    return RestSide(f"warehouse {catalog.warehouse}", partial(open_rest, catalog), Store(catalog, {}, _put_nothing), settings)


def open_other(catalog: RestCatalog, call: TransferCall, bench: LazyScratchCatalog) -> Catalog:
    """Return the other catalog. Raises: BadRequest: its kind cannot be determined."""
    options = call.options
    properties = options.properties
    place = build_folder_uri(options.place)
    store = Store(catalog, properties, open_objects(_build_store_settings(catalog, properties)).put_new)
    if options.form is Form.rest:
        return _open_rest_side(options, store)
    if options.form is Form.jdbc:
        warehouse = properties.get("warehouse")
        folder = None if warehouse is None else build_folder_uri(warehouse)
        found = JdbcCatalog(open_database(options.place, properties), store, properties.get("catalog-name"), folder)
        return found.settle() if call.job == "export" else found
    if options.form is Form.hive:
        return HiveFolders(place, store, bench)
    return DeltaFolders(place, store) if options.form is Form.delta else HadoopWarehouse(place, store)


def build_folder_uri(place: str) -> str:
    """Return a folder's URI, or its absolute path on the local disk."""
    if place.startswith("file:"):
        place = "/" + place.removeprefix("file:").lstrip("/")
    return (place if "://" in place else os.path.abspath(place)).rstrip("/")


def _open_rest_side(options: TransferOptions, store: Store) -> RestSide:
    properties = options.properties
    there = RestCatalog(options.place, properties.get("warehouse", ""), properties=properties)
    settings = {**catalog_settings(there), **RESOLVING, **format_auth_properties(properties, options.place)}
    rest_settings = {name: text for name, text in {**settings, **properties, "uri": options.place}.items() if text}
    return RestSide(name_place(options.place), cache(partial(open_rest, there)), store, rest_settings)


def _build_store_settings(catalog: RestCatalog, given: Mapping[str, str]) -> StoreSettings:
    if any(name.startswith("s3.") for name in given):
        keys = given.get("s3.access-key-id"), given.get("s3.secret-access-key")
        token = given.get("s3.session-token")
        return StoreSettings(given.get("s3.endpoint"), given.get("client.region", "us-east-1"), *keys, session_token=token)
    keys = catalog.s3_access_key_id, catalog.s3_secret_access_key
    return StoreSettings(catalog.s3_endpoint, catalog.s3_region or "us-east-1", *keys)


def _put_nothing(uri: str, _: bytes) -> bool:
    raise BadRequest(f"{uri} is the lake's: only its server writes metadata there")
