"""Delta tables as a source: Spark reads the Parquet files, and the log says which rows and columns they have now."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import get_current_schema
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.types import IcebergType
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.common.storage import S3Store
from duckicelake.pipeline.ingest.file_source import escape_pattern
from duckicelake.pipeline.transfer.catalogs import Entry, TransferTable
from duckicelake.pipeline.transfer.copy_files import describe_new
from duckicelake.pipeline.transfer.delta_log import (
    BY_ID,
    MODE,
    UNMAPPED,
    DeltaState,
    Positions,
    check_mapping,
    format_logical,
    format_physical,
    get_path_key,
    get_physical_name,
    make_spec,
    parse_columns,
    read_log,
)
from duckicelake.pipeline.transfer.hadoop import LOG, NO_KEYS, is_delta
from duckicelake.pipeline.transfer.in_place import REMEDY, FolderFile, describe_files
from duckicelake.pipeline.transfer.parquet_folders import ReadFolders
from duckicelake.pipeline.transfer.scratch_catalog import ScratchCatalog
from duckicelake.translate.locations import to_canonical

OWN = "delta."
"""How properties begin that are about the Delta table itself."""
_PARTITIONS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("int", "long", "date", "timestamp"), int),
    "string": str,
    "decimal": Decimal,
    "boolean": "true".__eq__,
}
"""How values of partitions are read that the log's reader writes as Spark casts them."""


@dataclass(frozen=True, slots=True)
class DeltaFolders(ReadFolders):
    """A folder with a log is a table. `states`: the one that was read last, by place."""

    states: dict[str, DeltaState] = field(default_factory=dict[str, DeltaState], repr=False)

    def list_entries(self) -> Iterator[Entry]:
        """Yield every folder that is a table; the root may be the only one."""
        yield from self.list_tables_below(is_delta, lambda name: not name.startswith((".", "_")))

    def load(self, entry: Entry) -> TransferTable:
        """Return the table as its log has it now; its state is its version.

        Raises: BadRequest, Unsupported: it is damaged, or has what a copy cannot have
        """
        state = read_log(entry.place, self.list_names(f"{entry.place}/{LOG}"), format_keys(self.open_s3()))
        check_mapping(state.configuration)
        schema = parse_columns(state.schema)
        properties = {name: text for name, text in state.configuration.items() if not name.startswith(OWN)}
        if state.description is not None:
            properties = {"comment": state.description} | properties
        asked = CreateTable(entry.ident.name, schema, make_spec(schema, state.partitions), properties=properties)
        metadata = replace(describe_new(asked, entry.place), table_uuid=state.table_id, current_snapshot_id=state.version)
        # One table is moved after another, and a state may be large.
        self.states.clear()
        self.states[entry.place] = state
        return TransferTable(entry.ident, metadata, entry.place, NO_KEYS)

    def describe_files(self, loaded: TransferTable) -> list[DataFile]:
        """Return what a manifest says of the files that the version has.

        Raises: Unsupported: it is not made of whole files alone, under their own names; and what `in_place.describe_files` raises
        """
        state = self.states[loaded.metadata_location]
        check_plain(state)
        columns = {item.name: item.type for item in get_current_schema(loaded.metadata).fields}
        files = [
            FolderFile(
                to_canonical(path), None, {name: parse_partition(columns[name], state.values[name][number]) for name in state.partitions}
            )
            for number, path in enumerate(state.paths)
        ]
        return describe_files(self.open(loaded.metadata_location), files, loaded.metadata)

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows of the version that was read, as a view of this session."""
        store = self.open_s3()
        rows = read_rows(bench.spark, self.states[loaded.metadata_location], {} if store is None else store.format_settings())
        name = f"delta_{bench.run_id}"
        rows.createOrReplaceTempView(name)
        return quote(name)


def check_plain(state: DeltaState) -> None:
    """Raises: Unsupported: the log says more of the files than which they are"""
    mode = state.configuration.get(MODE)
    if mode not in UNMAPPED:
        raise Unsupported(f"its columns are mapped by {mode}, of which its files know nothing: {REMEDY}")
    if state.read_vectors():
        raise Unsupported(f"rows of its files are deleted by vectors: purge them (REORG … PURGE), or {REMEDY}")


def parse_partition(type_: IcebergType, text: str | None) -> object:
    """Return the value of a partition as Iceberg has it; the empty text is NULL. Raises: Unsupported: that cannot be told for certain"""
    if text in (None, ""):
        return None
    name = str(type_).partition("(")[0]
    if name not in _PARTITIONS:
        raise Unsupported(
            f"it is partitioned by a column of the type {type_}, which DuckDB does not read from names of folders alike: {REMEDY}"
        )
    return _PARTITIONS[name](text)


def format_keys(store: S3Store | None) -> Mapping[str, str]:
    """Return the store settings of `deltalake`."""
    if store is None:
        return {}
    keys = {"AWS_ACCESS_KEY_ID": store.keys.key_id, "AWS_SECRET_ACCESS_KEY": store.keys.secret, "AWS_REGION": store.region}
    if store.keys.token is not None:
        keys["AWS_SESSION_TOKEN"] = store.keys.token
    if store.endpoint is not None:
        # AWS_ENDPOINT_URL_S3 of the environment would win over the other one.
        keys |= {"AWS_ENDPOINT_URL": store.endpoint, "AWS_ENDPOINT_URL_S3": store.endpoint}
        keys["AWS_ALLOW_HTTP"] = str(urlsplit(store.endpoint).scheme == "http").lower()
    return keys


_KEY, _ROW, _OF = "__duckicelake_key", "__duckicelake_row", "__duckicelake_of"
_READS_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_START = "^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?"
"""Of a URI, before its path."""


def read_rows(spark: SparkSession, state: DeltaState, settings: Mapping[str, str]) -> DataFrame:
    """Return the rows; `settings` say how to reach the files."""
    columns = StructType.fromJson(format_logical(state.schema))
    if not state.paths:
        return spark.createDataFrame([], columns)
    mode = state.configuration.get(MODE)
    if mode == BY_ID:
        # It changes nothing where no ids are asked for.
        spark.conf.set(_READS_BY_ID, "true")
    physical = {item["name"]: get_physical_name(item, mode) for item in state.schema["fields"]}
    written = StructType.fromJson(format_physical(state.schema, mode))
    own = StructType([field for field, name in zip(written.fields, physical, strict=True) if name not in state.partitions])
    frame = spark.read.options(**settings).schema(own).parquet(*map(escape_pattern, state.paths))
    values: dict[str, Column] = {name: F.col(quote(physical[name])) for name in physical if name not in state.partitions}
    vectors = state.read_vectors()
    if state.partitions or vectors:
        where = F.col("_metadata")
        frame = frame.withColumns({_KEY: _build_path_key(where["file_path"]), _ROW: where["row_index"]})
    if vectors:
        frame = frame.join(_list_deleted(spark, vectors), [_KEY, _ROW], "left_anti")
    if state.partitions:
        frame = frame.join(F.broadcast(_list_values(spark, state)), _KEY, "left")
        values |= {name: _read_value(number, columns[name].dataType) for number, name in enumerate(state.partitions)}
    return frame.select(*(values[field.name].cast(field.dataType).alias(field.name) for field in columns.fields))


def _build_path_key(uri: Column) -> Column:
    """As `get_path_key` of the log, of a URI as Spark writes it in rows."""
    plain = F.url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(plain, _START, "")


def _list_deleted(spark: SparkSession, vectors: Mapping[str, Positions]) -> DataFrame:
    rows: Any = pd.DataFrame({_KEY: list(vectors), _ROW: [*vectors.values()]})
    found = spark.createDataFrame(rows, f"{_KEY} string, {_ROW} array<bigint>")
    return found.select(_KEY, F.explode(_ROW).alias(_ROW))


def _list_values(spark: SparkSession, state: DeltaState) -> DataFrame:
    rows = list(zip(map(get_path_key, state.paths), *(state.values[name] for name in state.partitions), strict=True))
    names = ", ".join(f"{_OF}{number} string" for number in range(len(state.partitions)))
    return spark.createDataFrame(rows, f"{_KEY} string, {names}").withColumn(_OF, F.lit(True))


def _read_value(number: int, form: DataType) -> Column:
    """Return the value of a partition; a row of a file that the log does not know ends the read."""
    text = F.col(f"{_OF}{number}")
    if isinstance(form, DateType):
        value = F.date_from_unix_date(text.cast("int"))
    elif isinstance(form, TimestampType | TimestampNTZType):
        # The session's time zone is UTC.
        value = F.timestamp_micros(text.cast("bigint"))
    else:
        value = text
    stray = F.concat(F.lit("the log has no partition of "), F.col(_KEY))
    return F.when(F.col(_OF).isNull(), F.raise_error(stray).cast(form)).otherwise(value.cast(form))
