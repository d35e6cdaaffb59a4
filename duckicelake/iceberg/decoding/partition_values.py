"""Partition tuples as manifests hold them, as iceberg values."""

from collections.abc import Callable, Mapping
from uuid import UUID

from duckicelake.errors import BadRequest
from duckicelake.iceberg.bounds import encode_value
from duckicelake.iceberg.decoding.avro_types import AvroReader
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.transforms import get_scale, result_type, to_decimal
from duckicelake.iceberg.types import PrimitiveType, find_decimal

Decode = Callable[[object], object]


def build_tuple_decoder(spec: PartitionSpec, schema: Schema, record: AvroReader) -> Callable[[Mapping[int, object]], tuple[object, ...]]:
    """What makes the tuple of a spec from the record of an entry, read by field id.

    Raises: BadRequest — the record lacks a field; when called: a value that is not of its field's type
    """
    missing = [item.name for item in spec.fields if item.field_id not in record.fields]
    if missing:
        raise BadRequest(f"its partition tuples have no {', '.join(missing)}; write it again")
    decoders = [(item.field_id, _build_value_decoder(item, schema)) for item in spec.fields]
    return lambda values: tuple([decode(values[field_id]) for field_id, decode in decoders])


def _build_value_decoder(item: PartitionField, schema: Schema) -> Decode:
    source = find_field(schema, item.source_id)
    type = result_type(item.transform, None if source is None else source.type)

    def decode(value: object) -> object:
        if value is None or type is None:
            return value
        try:
            found = decode_partition_value(type, value)
            encode_value(type, found)
        except (BadRequest, ValueError, ArithmeticError, TypeError, AttributeError) as error:
            raise BadRequest(f"partition value {str(value)[:100]!r} of {item.name} is no {type}; write it again") from error
        return found

    return decode


def decode_partition_value(type: PrimitiveType, value: object) -> object:
    """The iceberg value of what Avro holds."""
    match value:
        case bytes() if find_decimal(type):
            return to_decimal(int.from_bytes(value, "big", signed=True), get_scale(type))
        case str() if type.name == "uuid":
            return UUID(value).bytes
        case _:
            return value
