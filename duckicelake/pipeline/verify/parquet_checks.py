"""One Parquet file against its manifest entry and DuckLake's rows: row count, null counts, bounds, partition values.

The footer decides where it is exact; otherwise the column is read. Executors of `verify` call this on files that they have opened; `import`
calls `read_leaf_columns` in the driver.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duckicelake.errors import BadRequest
from duckicelake.iceberg.single_values import decode_value
from duckicelake.iceberg.transforms import apply_transform
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.translate.files import FLOATING, find_lower, find_upper
from duckicelake.translate.partitions import UNITS_BY_TYPE
from duckicelake.translate.values import parse_value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = ("int", "long", "date", "time", "timestamp", "timestamptz")
_FIELD_ID = b"PARQUET:field_id"
_STRAYS = 3
"""The number of wrong partition values that a message names."""
_PROVEN = frozenset({"boolean", "int", "long", "string", "date", "timestamp", "timestamptz"})
"""Types of which DuckLake's text of a partition value stands for one value."""


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """A part of a partition spec, with the type of the column."""

    name: str
    source_id: int
    transform: str
    form: PrimitiveType
    result: PrimitiveType


@dataclass(frozen=True, slots=True)
class FileExpectations:
    """The parts of a table's metadata that are needed to read its files: leaf types by field id, and its partition specs."""

    leaves: Mapping[int, PrimitiveType]
    specs: Mapping[int, tuple[PartitionPart, ...]]


@dataclass(frozen=True, slots=True)
class Column:
    """A leaf of a file that is in no list or map: its statistics by the footer. `lower` and `upper` None: nothing.

    `is_skipped`: Iceberg's writers up to 1.11 count nothing of it where the struct around it is NULL.
    """

    path: tuple[str, ...]
    is_skipped: bool
    nulls: int | None
    lower: object = None
    upper: object = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


class _Leaf(NamedTuple):
    path: tuple[str, ...]
    field_id: int | None
    is_in_optional: bool


def spread_partition(entry: Mapping[str, Any], shape: FileExpectations) -> Mapping[str, Any]:
    """Return what is said of a file, with its partition values where they are encoded by name, as of manifests that we read ourselves."""
    said = entry.get("partition")
    if not isinstance(said, list):
        return entry
    forms = {part.name: part.result for part in shape.specs.get(entry["spec_id"], ())}
    pairs = cast("list[tuple[str, bytes]]", said)
    return {**entry, "partition": {name: decode_value(forms[name], content) for name, content in pairs}}


def check_parquet(file: pq.ParquetFile, entry: Mapping[str, Any], shape: FileExpectations) -> Iterator[str]:
    """Yield what a manifest says of the file and is not so."""
    metadata = file.metadata
    if metadata.num_rows != entry["record_count"]:
        yield f"has {metadata.num_rows} rows, the manifest says {entry['record_count']}"
    columns = read_leaf_columns(file, shape.leaves)
    yield from _check_counts(columns, entry, metadata.num_rows)
    yield from _check_bounds(file, columns, entry, shape)
    yield from _check_partition(file, columns, entry, shape)


def read_leaf_columns(
    file: pq.ParquetFile, leaves: Mapping[int, PrimitiveType], named: Mapping[tuple[str, ...], int] | None = None
) -> dict[int, Column]:
    """Return the leaves with field ids, by these; dropped columns are left out. `named`: the ids are those of names."""
    found: dict[int, Column] = {}
    for index, leaf in zip(range(file.metadata.num_columns), _walk(file.schema_arrow), strict=True):
        field_id = leaf.field_id if named is None else named.get(leaf.path)
        if field_id is not None and field_id in leaves and file.schema.column(index).max_repetition_level == 0:
            found[field_id] = _read_column(file, index, leaf, leaves[field_id])
    return found


def _walk(fields: Any, path: tuple[str, ...] = (), is_in_optional: bool = False) -> Iterator[_Leaf]:
    """Yield the leaves in the file's order. Paths are tuples, since names may hold dots."""
    for field in fields:
        here: tuple[str, ...] = (*path, field.name)
        form: Any = getattr(field.type, "storage_type", field.type)
        children: list[Any] = [form.field(place) for place in range(form.num_fields)] if pa.types.is_nested(form) else []
        if children:
            yield from _walk(children, here, is_in_optional or field.nullable)
        else:
            said: Mapping[bytes, bytes] = field.metadata or {}
            yield _Leaf(here, int(said[_FIELD_ID]) if _FIELD_ID in said else None, is_in_optional)


def _read_column(file: pq.ParquetFile, index: int, leaf: _Leaf, form: PrimitiveType) -> Column:
    groups: list[Any] = [file.metadata.row_group(group).column(index).statistics for group in range(file.metadata.num_row_groups)]
    knows_nulls = all(group is not None and group.has_null_count for group in groups)
    nulls = sum(group.null_count for group in groups) if knows_nulls else None
    column = Column(leaf.path, leaf.is_in_optional and form.name in FLOATING, nulls)
    bounded = [group for group in groups if group is not None and group.has_min_max]
    # A group of nulls alone has no bounds and needs none.
    if len([group for group in groups if group is None or group.has_min_max or group.num_values]) > len(bounded) or not bounded:
        return column
    try:
        lows, highs = ([to_value(form, getattr(group, end)) for group in bounded] for end in ("min", "max"))
    except (OverflowError, ValueError):
        return column
    if None in lows or None in highs:
        return column
    return replace(column, lower=min(lows), upper=max(highs))  # type: ignore[type-var]  values of one type


def to_value(form: PrimitiveType, value: Any) -> object:
    """Return a value as Python has it, as Iceberg has it; None when that is not known for certain."""
    match value:
        case datetime():
            since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
            micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            return micros if form.name in ("timestamp", "timestamptz") else None
        case date():
            return (value - _EPOCH.date()).days if form.name == "date" else None
        case bool():
            return value if form.name == "boolean" else None
        case int():
            return float(value) if form.name in ("float", "double") else value if form.name in _WHOLE else None
        case float() if form.name in ("float", "double") and value == value:
            return value
        case str() if form.name == "string":
            return value
        case bytes() if form.name == "string":
            return value.decode()
        case bytes() if form.name == "binary" or form.name.startswith("fixed") or (form.name == "uuid" and len(value) == 16):
            return value
        case Decimal() if form.name.startswith("decimal"):
            return value
        case _:
            return None


def _get_by_field(entry: Mapping[str, Any], name: str) -> dict[int, Any]:
    """Return what a manifest says by field id, which it may do of none."""
    return dict(entry[name] or ())


def _check_counts(columns: Mapping[int, Column], entry: Mapping[str, Any], rows: int) -> Iterator[str]:
    all_nulls, all_values = _get_by_field(entry, "null_value_counts"), _get_by_field(entry, "value_counts")
    for field_id, column in columns.items():
        nulls, values = all_nulls.get(field_id), all_values.get(field_id)
        if column.is_skipped and nulls is not None and values is not None and values < rows:
            if column.nulls in (None, nulls + rows - values):
                continue
        if nulls is not None and column.nulls not in (None, nulls):
            yield f"column {column.name} has {column.nulls} nulls, the manifest says {nulls}"
        if values not in (None, rows):
            yield f"column {column.name} has {rows} values, the manifest says {values}"


def _check_bounds(file: pq.ParquetFile, columns: Mapping[int, Column], entry: Mapping[str, Any], shape: FileExpectations) -> Iterator[str]:
    lowers, uppers = _get_by_field(entry, "lower_bounds"), _get_by_field(entry, "upper_bounds")
    for field_id, column in columns.items():
        form = shape.leaves[field_id]
        if field_id not in lowers and field_id not in uppers:
            continue
        try:
            lower, upper = (decode_value(form, said[field_id]) if field_id in said else None for said in (lowers, uppers))
        except BadRequest as error:
            yield f"column {column.name}: {error.message}"
            continue
        if column.lower is None or not _is_within(column.lower, column.upper, lower, upper):
            low, high = read_value_range(file, column.path, form)
            if low is not None and not _is_within(low, high, lower, upper):
                yield f"column {column.name} has values from {low!r} to {high!r}, the manifest says from {lower!r} to {upper!r}"


def _is_within(low: Any, high: Any, lower: Any, upper: Any) -> bool:
    return (lower is None or lower <= low) and (upper is None or high <= upper)


def read_value_range(file: pq.ParquetFile, path: tuple[str, ...], form: PrimitiveType) -> tuple[object, object]:
    """Return the least and the greatest value of a column, NaN left out, by reading it; None, None when there is none."""
    compute: Any = pc
    found: list[Any] = []
    for values in read_values(file, path, form):
        some = compute.drop_null(values)
        if pa.types.is_floating(some.type):
            some = compute.filter(some, compute.invert(compute.is_nan(some)))
        if len(some):
            extremes = compute.min_max(some).as_py()
            found += [to_value(form, extremes["min"]), to_value(form, extremes["max"])]
    known = [value for value in found if value is not None]
    return (min(known), max(known)) if known else (None, None)


def read_values(file: pq.ParquetFile, path: tuple[str, ...], form: PrimitiveType) -> Iterator[Any]:
    """Yield a column, batch by batch, in types whose Python values `to_value` converts."""
    compute: Any = pc
    # By a path with dots others may come along, which are passed over by their names.
    columns: Any = file.iter_batches(columns=[".".join(path)])
    for batch in columns:
        values = batch.column(path[0])
        for name in path[1:]:
            values = compute.struct_field(values, [values.type.get_field_index(name)])
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        if form.name == "date":
            values = values.cast(pa.int32())
        elif form.name == "time":
            values = values.cast(pa.time64("us")).cast(pa.int64())
        elif form.name in ("timestamp", "timestamptz"):
            values = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
        yield values


def _check_partition(
    file: pq.ParquetFile, columns: Mapping[int, Column], entry: Mapping[str, Any], shape: FileExpectations
) -> Iterator[str]:
    said: Mapping[str, Any] = entry.get("partition") or {}
    for part in shape.specs.get(entry["spec_id"], ()):
        column = columns.get(part.source_id)
        if column is None or part.transform == "void":
            continue
        claimed = said.get(part.name)
        value = None if claimed is None else to_value(part.result, claimed)
        if (claimed is not None and value is None) or _proves(column, part, value, file.metadata.num_rows):
            continue
        strays = list_strays(file, column, part.form, partial(apply_transform, part.transform, part.form), {value})
        if strays:
            yield f"is in the partition {part.name}={value!r}, its rows belong to {_format_strays(strays)}"


def _proves(column: Column, part: PartitionPart, value: object, rows: int) -> bool:
    if value is None:
        return column.nulls == rows
    if part.transform.startswith("bucket") or column.nulls != 0 or column.lower is None:
        return False
    ends = {apply_transform(part.transform, part.form, end) for end in (column.lower, column.upper)}
    return ends == {value}


def list_strays(
    file: pq.ParquetFile, column: Column, form: PrimitiveType, to_unit: Callable[[object], object], known: Set[object]
) -> set[object]:
    """Return some of the partition values of a column's values that are not the expected one, by reading no further than that takes."""
    found: set[object] = set()
    for values in read_values(file, column.path, form):
        for one in values.unique().to_pylist():
            unit = to_unit(None if one is None else to_value(form, one))
            if unit not in known:
                found.add(unit)
            if len(found) == _STRAYS:
                return found
    return found


def _format_strays(strays: set[object]) -> str:
    return ", ".join(sorted(map(repr, strays)))


def check_lake_facts(file: pq.ParquetFile, entry: Mapping[str, Any], shape: FileExpectations) -> Iterator[str]:
    """Yield what DuckLake's statistics and partition values say of the file and is not so, also where manifests of earlier say what is."""
    columns, rows = read_leaf_columns(file, shape.leaves), file.metadata.num_rows
    for told in entry["lake_statistics"] or ():
        column = columns.get(told["column_id"])
        if column is not None:
            yield from _check_lake_counts(column, told, rows)
            yield from _check_lake_bounds(file, column, told, (entry, shape.leaves[told["column_id"]]))
    for told in entry["lake_partition"] or ():
        column = columns.get(told["column_id"])
        if column is not None:
            yield from _check_lake_partition(file, column, told, shape.leaves[told["column_id"]])


def _check_lake_counts(column: Column, told: Mapping[str, Any], rows: int) -> Iterator[str]:
    count, nulls = told["count"], told["nulls"]
    # DuckLake has both as 0 where it counts nothing.
    if count is None or nulls is None or count + nulls == 0:
        return
    if count + nulls != rows:
        yield f"column {column.name} has {rows} values, DuckLake says {count + nulls}"
    if column.nulls is not None and column.nulls != nulls:
        yield f"column {column.name} has {column.nulls} nulls, DuckLake says {nulls}"


def _check_lake_bounds(
    file: pq.ParquetFile, column: Column, told: Mapping[str, Any], where: tuple[Mapping[str, Any], PrimitiveType]
) -> Iterator[str]:
    entry, form = where
    if form.name in FLOATING and told["has_nan"] is not False:
        return
    least, greatest = (None if text is None else parse_value(form, text) for text in (told["least"], told["greatest"]))
    ends = find_lower(form, least), find_upper(form, greatest)
    said = tuple(_get_by_field(entry, name).get(told["column_id"]) for name in ("lower_bounds", "upper_bounds"))
    if ends in ((None, None), said):
        # There are none, or the manifest says the same, which was looked at.
        return
    lower, upper = (None if end is None else _blur(form, decode_value(form, end)) for end in ends)
    low, high = _blur(form, column.lower), _blur(form, column.upper)
    if low is None or not _is_within(low, high, lower, upper):
        low, high = (_blur(form, end) for end in read_value_range(file, column.path, form))
        if low is not None and not _is_within(low, high, lower, upper):
            yield f"column {column.name} has values from {low!r} to {high!r}, DuckLake says from {told['least']} to {told['greatest']}"


def _blur(form: PrimitiveType, value: object) -> object:
    """Return the value; one of a double as a float, since the column may have been one, whose text has fewer digits."""
    if form.name != "double" or not isinstance(value, float):
        return value
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _check_lake_partition(file: pq.ParquetFile, column: Column, told: Mapping[str, Any], form: PrimitiveType) -> Iterator[str]:
    transform, text = told["transform"], told["text"]
    is_identity = transform == "identity" and (form.name in _PROVEN or form.name.startswith("decimal"))
    # A unit that is NULL may be that of an infinite date.
    if not is_identity and (transform not in UNITS_BY_TYPE.get(form.name, ()) or text is None):
        return
    claimed = None if text is None else parse_value(form if is_identity else PrimitiveType("int"), text)
    if (text is not None and claimed is None) or (claimed is None and column.nulls == file.metadata.num_rows):
        return
    to_unit = partial(apply_transform if is_identity else _compute_unit, transform, form)
    if column.nulls == 0 and column.lower is not None and to_unit(column.lower) == claimed:
        # Units come again in every year, month or day, but not within one.
        if apply_transform(transform, form, column.lower) == apply_transform(transform, form, column.upper):
            return
    strays = list_strays(file, column, form, to_unit, {claimed, _UNKNOWN})
    if strays:
        yield f"has rows with {transform}({column.name}) of {_format_strays(strays)}, DuckLake says {text}"


_UNKNOWN = object()
"""A unit of a value that has no calendar."""


def _compute_unit(transform: str, form: PrimitiveType, value: object) -> object:
    """Return the year, month, day or hour of a calendar, as DuckLake partitions by."""
    ordinal = apply_transform(transform, form, value)
    if not isinstance(ordinal, int):
        return None
    if transform == "year":
        return ordinal + _EPOCH.year
    if transform in ("month", "hour"):
        return ordinal % 12 + 1 if transform == "month" else ordinal % 24
    try:
        return (_EPOCH + timedelta(days=ordinal)).day
    except OverflowError:
        return _UNKNOWN
