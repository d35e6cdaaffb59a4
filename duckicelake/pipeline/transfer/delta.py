"""Delta tables as a source: the log says which rows and columns they have now, and Spark reads the Parquet files.

The library `deltalake` reads the log; its columns become Iceberg's.

`commands.jobs.transfer` makes the source, and `transfer.job` calls it in the driver. Executors read the rows. Nothing is written here.

Source: Delta protocol, «Schema Serialization Format» and «Column Mapping»
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import count, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duckicelake.errors import BadRequest, ServiceUnavailable, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import get_current_schema
from duckicelake.iceberg.partition import FIRST_FIELD_ID, PartitionField, PartitionSpec
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, decimal_type
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.common.storage import DELTA_LOG, S3Store
from duckicelake.pipeline.ingest.file_source import escape_pattern
from duckicelake.pipeline.transfer.catalogs import Entry, ScratchCatalog, TransferTable
from duckicelake.pipeline.transfer.copies import describe_new
from duckicelake.pipeline.transfer.parquet_folders import REMEDY, FolderFile, ReadFolders, describe_files
from duckicelake.pipeline.transfer.serverless import NO_KEYS, is_delta
from duckicelake.translate.locations import to_canonical

READ_FEATURES = frozenset(
    ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck")
    # Their types are refused by column.
    + ("variantType", "variantType-preview", "variantShredding-preview", "geospatial")
)
"""What a log may ask of its readers."""
VECTORS = "deletionVectors"
DELETED_MAX = 32_000_000
_BEGIN = re.compile(r"(?:0{20}\.json|0{20}\.\d{20}\.compacted\.json|\d{20}\.checkpoint\.(?!\d{10}\.\d{10}\.).*)", re.DOTALL)
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_AUTHORITY = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?")
_HIDDEN = re.compile(r"|_[^=]*|\..*|.*\._COPYING_", re.DOTALL)
"""Names that Spark passes over, and that of a folder, which has none."""
_PREFIX = "partition."
Positions = NDArray[np.int64]
_STYLE = re.compile("\x1b\\[[0-9;]*m↳?|↳")
_PANIC = "PanicException"
"""Of Rust; it has no place to be imported from."""


@dataclass(frozen=True, slots=True)
class DeltaState:
    """A version of a table. `paths`: its files as Spark takes them, unescaped; `values`: by partition column, those of each file as text
    that Spark casts (dates in days, timestamps in µs since 1970), None for NULL.
    """

    table_id: str
    version: int
    schema: Mapping[str, Any]
    partitions: tuple[str, ...]
    configuration: Mapping[str, str]
    description: str | None
    paths: tuple[str, ...]
    values: Mapping[str, tuple[str | None, ...]]
    read_vectors: Callable[[], Mapping[str, Positions]] = field(compare=False)
    """By key of a file the numbers of its deleted rows."""


def get_path_key(path: str) -> str:
    """Return the key of a file among those of its table: its path without scheme and authority."""
    return _AUTHORITY.sub("", path, count=1)


def read_log(place: str, names: Collection[str], keys: Mapping[str, str]) -> DeltaState:
    """Return the newest version of the table in a folder, in whose log lie files of these names; `keys` are those to its store.

    Raises: BadRequest: the log is damaged, or the library is missing; Unsupported: it asks for what is not known here
    """
    check_whole(names)
    # The library follows links, and the names of its files are compared with these.
    place = place if _SCHEME.match(place) else str(Path(place).resolve())
    # Only this source needs it, and it is large.
    try:
        from deltalake import DeltaTable  # noqa: PLC0415  an extra of its own
    except ImportError as error:
        raise BadRequest("Delta tables are read with deltalake, which is not installed: .venv/bin/pip install -e '.[delta]'") from error
    with explaining(place):
        table = DeltaTable(_to_uri(place), storage_options=dict(keys) or None)
        protocol, metadata = table.protocol(), table.metadata()
        features = frozenset(protocol.reader_features or ())
        unknown = sorted(features - READ_FEATURES)
        if unknown:
            raise Unsupported(f"its log asks for {', '.join(unknown)}, which is not known here: drop that feature from the Delta table")
        files: Any = pa.table(table.get_add_actions(flatten=True))
        schema = json.loads(table.schema().to_json())
    partitions = tuple(metadata.partition_columns)
    paths = tuple(_resolve(place, path) for path in files["path"].to_pylist())
    check_paths(place, paths)
    if len(set(map(get_path_key, paths))) < len(paths):
        raise Unsupported("several of its files have one path in several places: write them to one place (OPTIMIZE)")
    values = {name: tuple(map(format_value, _as_numbers(files[_PREFIX + name]).to_pylist())) for name in partitions}

    def read_vectors() -> Mapping[str, Positions]:
        if VECTORS not in features:
            return {}
        with explaining(place):
            return _read_vectors(table, frozenset(map(get_path_key, paths)))

    told = metadata.configuration, metadata.description
    return DeltaState(str(metadata.id), table.version(), schema, partitions, *told, paths, values, read_vectors)


def check_whole(names: Collection[str]) -> None:
    """Raises: BadRequest: the log has neither its beginning nor a checkpoint, so that files may be missing"""
    if not any(map(_BEGIN.fullmatch, names)) and not _has_whole_parts(names):
        raise BadRequest("its log has neither a first commit nor a checkpoint: the files that those name are not known")


def _has_whole_parts(names: Collection[str]) -> bool:
    """Return True if all parts of a checkpoint are there: the library takes no other one."""
    parts = Counter((found[1], int(found[3])) for name in names if (found := _PART.fullmatch(name)))
    return any(found == count for (_, count), found in parts.items())


def check_paths(place: str, paths: Iterable[str]) -> None:
    """Raises: Unsupported: Spark would pass over a file, find it under another name, or look for it outside of the table's store"""
    kind = _get_store_kind(place)
    for path in paths:
        *folders, name = get_path_key(path).removeprefix("/").split("/")
        if _get_store_kind(path) != kind:
            raise Unsupported(f"its file {path} is not in the table's own store: write the table again (a deep clone)")
        if _HIDDEN.fullmatch(name) or not {"", ".", ".."}.isdisjoint(folders):
            raise Unsupported(f"its file {path} has a name that Spark passes over, or a path that it changes: write the table again")


def _get_store_kind(place: str) -> str:
    found = _SCHEME.match(place)
    return "file" if found is None else found[0].lower().rstrip(":/").replace("s3a", "s3")


def format_value(value: Any) -> str | None:
    """Return a value of a partition as Spark casts it."""
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _as_numbers(column: Any) -> Any:
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    # NumPy's text of a float would have the digits of a double.
    return column.cast(pa.string()) if pa.types.is_float32(column.type) else column


def _resolve(place: str, path: str) -> str:
    """Return a file's path, unescaped; the log has URIs, relative to the table's folder or not."""
    plain = unquote(path)
    return plain if _SCHEME.match(plain) else f"{place}/{plain}"


def _read_vectors(table: Any, known: frozenset[str]) -> Mapping[str, Positions]:
    found: dict[str, Positions] = {}
    count = 0
    batches: Any = pa.RecordBatchReader.from_stream(table.deletion_vectors())
    for batch in batches:
        for uri, kept in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
            positions = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
            key = get_path_key(unquote(uri))
            if key not in known:
                raise BadRequest(f"its log deletes rows of {uri}, which is none of its files")
            found[key], count = positions, count + len(positions)
            if count > DELETED_MAX:
                raise Unsupported(f"more than {DELETED_MAX} rows are deleted by vectors: write its files again (REORG … PURGE)")
    return found


def _to_uri(place: str) -> str:
    return place if _SCHEME.match(place) else Path(place).as_uri()


@contextmanager
def explaining(place: str) -> Generator[None]:
    """Map errors of the library to ours, in one line. Raises: BadRequest, ServiceUnavailable"""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  an extra of its own

    try:
        yield
    except DeltaError as error:
        raise BadRequest(f"the log of {place} cannot be read: {_first_line(error)}") from error
    except OSError as error:
        raise ServiceUnavailable(f"{place} cannot be read: {_join_causes(error)}") from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise BadRequest(f"the log of {place} cannot be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    # What the library was built of follows.
    return str(error).partition("\n")[0].strip()


def _join_causes(error: BaseException) -> str:
    """Without what the store sent: that may repeat the headers of the request."""
    lines = takewhile(lambda line: "<" not in line, _STYLE.sub("", str(error)).splitlines())
    return ": ".join(filter(None, map(str.strip, lines)))


MODE, BY_ID = "delta.columnMapping.mode", "id"
_PHYSICAL, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
_SPARK_ID = "parquet.field.id"
"""The metadata key by which Spark finds a column by field id."""
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)", re.ASCII)
_PLAIN = {
    **{name: name for name in ("string", "long", "float", "double", "boolean", "binary", "date")},
    **{name: "int" for name in ("integer", "short", "byte")},
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
UNMAPPED = (None, "none")
_MODES = (*UNMAPPED, "name", BY_ID)

Node = Mapping[str, Any]


def parse_columns(schema: Node) -> Schema:
    """Return the columns under ids of no meaning. Raises: Unsupported: one is of a type that a copy cannot have."""
    return Schema(0, _parse_fields(schema["fields"], count(1), ""))


def make_spec(schema: Schema, partitions: Sequence[str]) -> PartitionSpec:
    """Partitions by the values of these columns. Raises: Unsupported: the log has values of one that cannot be told from it"""
    columns = {item.name: item for item in schema.fields}
    for name in partitions:
        if columns[name].type == PrimitiveType("binary"):
            raise Unsupported(
                f"it is partitioned by {name}, which is binary, and writers do not agree on such values: write it again without"
            )
    ids = count(FIRST_FIELD_ID)
    return PartitionSpec(0, tuple(PartitionField(columns[name].field_id, next(ids), name, "identity") for name in partitions))


def check_mapping(configuration: Mapping[str, str]) -> None:
    """Raises: Unsupported: columns are found in files by an unknown rule"""
    if configuration.get(MODE) not in _MODES:
        raise Unsupported(f"its columns are mapped by {configuration[MODE]!r}, which is neither name nor id")


def format_physical(schema: Node, mode: str | None) -> dict[str, Any]:
    """Return the same columns as Spark's JSON has them, under the names, or also the ids, that the files have."""

    def rename(item: Node) -> tuple[str, dict[str, Any]]:
        return get_physical_name(item, mode), {_SPARK_ID: item["metadata"][_ID]} if mode == BY_ID else {}

    return _format_type(schema, rename)


def get_physical_name(item: Node, mode: str | None) -> str:
    """Return a column's name in files: what is left of a mapping says nothing where columns are not mapped."""
    return str(item["name"] if mode in UNMAPPED else item["metadata"].get(_PHYSICAL, item["name"]))


def format_logical(schema: Node) -> dict[str, Any]:
    """Return the same columns as Spark's JSON has them, under their own names, and nothing else."""
    return _format_type(schema, lambda item: (item["name"], {}))


def _parse_fields(items: Sequence[Node], ids: Iterator[int], parent: str) -> tuple[NestedField, ...]:
    return tuple(_parse_field(item, ids, f"{parent}{item['name']}") for item in items)


def _parse_field(item: Node, ids: Iterator[int], path: str) -> NestedField:
    field_id = next(ids)
    return NestedField(field_id, item["name"], _parse_type(item["type"], ids, path), not item["nullable"], item["metadata"].get("comment"))


def _parse_type(form: Any, ids: Iterator[int], path: str) -> IcebergType:
    match form:
        case {"type": "struct", "fields": fields}:
            return StructType(_parse_fields(fields, ids, f"{path}."))
        case {"type": "array", "elementType": element, "containsNull": has_null}:
            return ListType(next(ids), _parse_type(element, ids, f"{path}.element"), not has_null)
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": has_null}:
            key_id, value_id = next(ids), next(ids)
            return MapType(key_id, _parse_type(key, ids, f"{path}.key"), value_id, _parse_type(value, ids, f"{path}.value"), not has_null)
        case str():
            return _parse_plain(form, path)
        case _:
            raise BadRequest(f"column {path} has no type that can be read")


def _parse_plain(form: str, path: str) -> PrimitiveType:
    decimal = _DECIMAL.fullmatch(form)
    if decimal is not None and int(decimal[2]) >= 0:
        return decimal_type(int(decimal[1]), int(decimal[2]))
    if form not in _PLAIN:
        raise Unsupported(f"column {path} is {form}, which a copy cannot have: write it as another type, or leave it out, and try again")
    return PrimitiveType(_PLAIN[form])


def _format_type(form: Any, rename: Callable[[Node], tuple[str, dict[str, Any]]]) -> Any:
    match form:
        case {"type": "struct", "fields": fields}:
            named = [(item, *rename(item)) for item in fields]
            inner = [
                {"name": name, "type": _format_type(item["type"], rename), "nullable": True, "metadata": metadata}
                for item, name, metadata in named
            ]
            return {"type": "struct", "fields": inner}
        case {"type": "array", "elementType": element}:
            return {"type": "array", "elementType": _format_type(element, rename), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            types = {"keyType": _format_type(key, rename), "valueType": _format_type(value, rename)}
            return {"type": "map", **types, "valueContainsNull": True}
        case _:
            return form


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
        state = read_log(entry.place, self.list_names(f"{entry.place}/{DELTA_LOG}"), format_keys(self.open_s3()))
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

        Raises: Unsupported: it is not made of whole files alone, under their own names; and what `parquet_folders.describe_files` raises
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
    """Return the value of a partition as Iceberg has it; the empty text is NULL. Raises: Unsupported: its meaning is ambiguous"""
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
    columns = T.StructType.fromJson(format_logical(state.schema))
    if not state.paths:
        return spark.createDataFrame([], columns)
    mode = state.configuration.get(MODE)
    if mode == BY_ID:
        # It changes nothing where no ids are asked for.
        spark.conf.set(_READS_BY_ID, "true")
    physical = {item["name"]: get_physical_name(item, mode) for item in state.schema["fields"]}
    written = T.StructType.fromJson(format_physical(state.schema, mode))
    own = T.StructType([field for field, name in zip(written.fields, physical, strict=True) if name not in state.partitions])
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


def _read_value(number: int, form: T.DataType) -> Column:
    """Return the value of a partition; a row of a file that the log does not know ends the read."""
    text = F.col(f"{_OF}{number}")
    if isinstance(form, T.DateType):
        value = F.date_from_unix_date(text.cast("int"))
    elif isinstance(form, T.TimestampType | T.TimestampNTZType):
        # The session's time zone is UTC.
        value = F.timestamp_micros(text.cast("bigint"))
    else:
        value = text
    stray = F.concat(F.lit("the log has no partition of "), F.col(_KEY))
    return F.when(F.col(_OF).isNull(), F.raise_error(stray).cast(form)).otherwise(value.cast(form))
