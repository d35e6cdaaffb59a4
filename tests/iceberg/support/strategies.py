"""Hypothesis strategies in the format's words: types, values of them, files and entries."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from duckicelake.iceberg.manifest import DataFile, ManifestEntry
from duckicelake.iceberg.transforms import to_decimal
from duckicelake.iceberg.types import PrimitiveType, find_decimal, find_fixed_length

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**63 - 1)

VALUES: dict[str, SearchStrategy[object]] = {
    "boolean": st.booleans(),
    "int": INTS,
    "date": INTS,
    "time": st.integers(0, 86_399_999_999),
    **dict.fromkeys(("long", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), LONGS),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(),
    "uuid": st.binary(min_size=16, max_size=16),
    "binary": st.binary(),
}
PRIMITIVES = [*VALUES, "decimal(1, 0)", "decimal(9, 2)", "decimal(18, 18)", "decimal(38, 10)", "fixed[0]", "fixed[7]"]


def values_of(type: PrimitiveType) -> SearchStrategy[object]:
    """Iceberg values of a primitive type."""
    if found := find_decimal(type):
        precision, scale = found
        limit = 10**precision - 1
        return st.integers(-limit, limit).map(lambda unscaled: to_decimal(unscaled, scale))
    length = find_fixed_length(type)
    return VALUES[type.name] if length is None else st.binary(min_size=length, max_size=length)


def types_and_values(count: int = 1) -> SearchStrategy[tuple[PrimitiveType, list[object]]]:
    """A primitive type and that many values of it."""
    types = st.sampled_from(PRIMITIVES).map(PrimitiveType)
    return types.flatmap(lambda type: st.tuples(st.just(type), st.lists(values_of(type), min_size=count, max_size=count)))


def maps_of(values: SearchStrategy[object]) -> SearchStrategy[object]:
    """A map by column id, or None."""
    return st.none() | st.dictionaries(st.integers(1, 2**31 - 1), values, max_size=4)


def data_files(types: tuple[PrimitiveType, ...], format_version: int) -> SearchStrategy[DataFile]:
    """Data files with everything that a version of the format can say."""
    later = format_version > 1
    lineage = format_version > 2
    return st.builds(
        DataFile,
        content=st.just(0),
        file_path=st.text(min_size=1),
        file_format=st.sampled_from(["PARQUET", "ORC", "AVRO", "PUFFIN"]),
        partition=st.tuples(*[st.none() | values_of(type) for type in types]),
        record_count=COUNTS,
        file_size_in_bytes=COUNTS,
        column_sizes=maps_of(COUNTS),
        value_counts=maps_of(COUNTS),
        null_value_counts=maps_of(COUNTS),
        nan_value_counts=maps_of(COUNTS),
        lower_bounds=maps_of(st.binary()),
        upper_bounds=maps_of(st.binary()),
        split_offsets=st.none() | st.lists(COUNTS, max_size=3).map(tuple),
        equality_ids=st.none() | st.lists(INTS, max_size=3).map(tuple) if later else st.none(),
        sort_order_id=st.none() | st.integers(0, 2**31 - 1),
        first_row_id=st.none() | COUNTS if lineage else st.none(),
        referenced_data_file=st.none() | st.text() if later else st.none(),
        content_offset=st.none() | COUNTS if lineage else st.none(),
        content_size_in_bytes=st.none() | COUNTS if lineage else st.none(),
    )


def entries_of(types: tuple[PrimitiveType, ...], format_version: int) -> SearchStrategy[ManifestEntry]:
    """Manifest entries; version 1 has no sequence numbers and always a snapshot id."""
    inherited = st.none() | COUNTS if format_version > 1 else st.none()
    return st.builds(
        ManifestEntry,
        status=st.sampled_from([0, 1, 2]),
        snapshot_id=st.none() | COUNTS if format_version > 1 else COUNTS,
        sequence_number=inherited,
        file_sequence_number=inherited,
        data_file=data_files(types, format_version),
    )
