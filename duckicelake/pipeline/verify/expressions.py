"""The numbers of `hashing`, as Spark makes them itself: text of its SQL."""

from collections.abc import Sequence

from duckicelake.iceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType, find_decimal
from duckicelake.pipeline.ingest.target import quote
from duckicelake.pipeline.verify.hashing import BLOCK_FIELDS, LONG_BYTES, NULL, OTHER, SUM_MASK, is_bytes, is_float

_SPARK = {"int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE"}

Parts = Sequence[tuple[str, IcebergType]]


def format_number(parts: Parts) -> str:
    """The number of a row that has these values, each an expression with its type."""
    return f"xxhash64({', '.join(_list_arguments(parts, 0))})"


def _list_arguments(parts: Parts, depth: int) -> list[str]:
    """What of the values is hashed: the marks of a block of fields, then its values. `depth` keeps names of functions' arguments apart."""
    found: list[str] = []
    for start in range(0, len(parts), BLOCK_FIELDS):
        block = parts[start : start + BLOCK_FIELDS]
        found.append(" | ".join(_format_mark(value, form, 2 * place) for place, (value, form) in enumerate(block)))
        found += [_format_value(value, form, depth) for value, form in block]
    return found


def _format_mark(value: str, form: IcebergType, bit: int) -> str:
    other = ""
    if isinstance(form, PrimitiveType) and is_float(form):
        # The power is looked at where there is a zero: of -0.0 it is -Infinity.
        other = f"WHEN {value} = 0 AND pow({value}, -1) < 0 THEN {OTHER << bit}L "
    elif isinstance(form, PrimitiveType) and is_bytes(form):
        other = f"WHEN octet_length({value}) > {LONG_BYTES} THEN {OTHER << bit}L "
    return f"CASE WHEN {value} IS NULL THEN {NULL << bit}L {other}ELSE 0L END"


def _format_value(value: str, form: IcebergType, depth: int) -> str:
    match form:
        case StructType(fields):
            parts = [(f"{value}.{quote(field.name)}", field.type) for field in fields]
            return f"IF({value} IS NULL, NULL, xxhash64({', '.join(_list_arguments(parts, depth))}))"
        case ListType():
            element, place = f"x{depth}", f"i{depth}"
            parts = ", ".join([f"CAST({place} AS BIGINT)", *_list_arguments([(element, form.element_type)], depth + 1)])
            return _format_sum(value, f"transform({value}, ({element}, {place}) -> xxhash64({parts}))")
        case MapType():
            entry = f"x{depth}"
            parts = ", ".join(_list_arguments([(f"{entry}.key", form.key_type), (f"{entry}.value", form.value_type)], depth + 1))
            return _format_sum(value, f"transform(map_entries({value}), {entry} -> xxhash64({parts}))")
        case PrimitiveType():
            if not is_bytes(form):
                return _format_cast(value, form)
            sum_of_long = "md5({0})" if form.name in ("string", "uuid") else "CAST(md5({0}) AS BINARY)"
            return f"IF(octet_length({value}) > {LONG_BYTES}, {sum_of_long.format(value)}, {value})"


def _format_cast(value: str, form: PrimitiveType) -> str:
    """The value as its Iceberg type has it: where it has that already, Spark leaves the cast out."""
    decimal = find_decimal(form)
    spark = _SPARK.get(form.name) if decimal is None else f"DECIMAL({decimal[0]}, {decimal[1]})"
    return value if spark is None else f"CAST({value} AS {spark})"


def _format_sum(value: str, numbers: str) -> str:
    added = f"aggregate({numbers}, 0L, (a, b) -> (a + (b & {SUM_MASK}L)) & {SUM_MASK}L)"
    return f"IF({value} IS NULL, NULL, xxhash64(CAST(size({value}) AS BIGINT), {added}))"
