"""The files of a scan: which delete files apply to a data file, and the JSON of files.

Source: Iceberg spec «Scan Planning»; DeleteFileIndex and ContentFileParser of Iceberg 1.11; REST specification, «ContentFile»
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONEncoder

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.manifest import DATA, EQUALITY_DELETES, DataFile
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import format_value
from duckicelake.iceberg.transforms import result_type
from duckicelake.iceberg.types import PrimitiveType, walk_fields

FILE_PATH_ID = 2147483546
PUFFIN = "PUFFIN"
NAN = "NaN"
Partition = tuple[int, tuple[object, ...]]


@dataclass(slots=True, eq=False)
class ScanFile:
    """A live file of a manifest with its inherited values. `encoded_json` caches its JSON, with the partition types it was made for.

    `is_global`: its spec is unpartitioned, so its equality deletes apply to all data files.
    """

    file: DataFile
    spec_id: int
    snapshot_id: int
    sequence_number: int
    is_added: bool
    is_global: bool
    encoded_json: tuple[object, bytes] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _FilesBySequence:
    """Delete files by sequence number, ascending."""

    files: list[ScanFile] = field(default_factory=list[ScanFile])
    numbers: list[int] = field(default_factory=list[int])

    def sort(self) -> None:
        self.files.sort(key=lambda item: item.sequence_number)
        self.numbers = [item.sequence_number for item in self.files]

    def since(self, sequence_number: int) -> Sequence[ScanFile]:
        return self.files[bisect_left(self.numbers, sequence_number) :]


def _get_partition_key(item: ScanFile) -> Partition:
    # NaN is not equal to itself, but all NaN values are one partition.
    return item.spec_id, tuple(NAN if value != value else value for value in item.file.partition)


class DeleteIndex:
    """The delete files of a snapshot, by the files or partitions that they apply to."""

    def __init__(self, files: Iterable[ScanFile]) -> None:
        self._vectors: dict[str, ScanFile] = {}
        self._by_path: dict[str, _FilesBySequence] = {}
        self._positions: dict[Partition, _FilesBySequence] = {}
        self._equality: dict[Partition, _FilesBySequence] = {}
        self._everywhere = _FilesBySequence()
        self.file_count = 0
        for item in files:
            self.file_count += 1
            self._put(item)
        for group in (*self._by_path.values(), *self._positions.values(), *self._equality.values(), self._everywhere):
            group.sort()

    def _put(self, item: ScanFile) -> None:
        file, partition = item.file, _get_partition_key(item)
        if file.content == EQUALITY_DELETES:
            group = self._everywhere if item.is_global else self._equality.setdefault(partition, _FilesBySequence())
            group.files.append(item)
            return
        path = find_referenced(file)
        if path is not None and file.file_format == PUFFIN:
            known = self._vectors.get(path)
            if known is None or known.sequence_number <= item.sequence_number:
                self._vectors[path] = item
        elif path is not None:
            self._by_path.setdefault(path, _FilesBySequence()).files.append(item)
        else:
            self._positions.setdefault(partition, _FilesBySequence()).files.append(item)

    def find(self, data: ScanFile) -> list[ScanFile]:
        """Return the delete files that may delete rows of a data file."""
        number, partition = data.sequence_number, _get_partition_key(data)
        found = [*self._everywhere.since(number + 1)]
        if self._equality:
            found += self._equality.get(partition, _FilesBySequence()).since(number + 1)
        vector = self._vectors.get(data.file.file_path)
        if vector is not None and vector.sequence_number >= number:
            # The vector includes the older position deletes of the file.
            return [*found, vector]
        if self._positions:
            found += self._positions.get(partition, _FilesBySequence()).since(number)
        if self._by_path:
            found += self._by_path.get(data.file.file_path, _FilesBySequence()).since(number)
        return found


def find_referenced(file: DataFile) -> str | None:
    """Return the only data file that position deletes refer to; None when there may be several.

    Source: Iceberg's ContentFileUtil: equal bounds of the path column also name a single data file
    """
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower, upper = (bounds.get(FILE_PATH_ID) if bounds else None for bounds in (file.lower_bounds, file.upper_bounds))
    return lower.decode("utf-8", "replace") if lower is not None and lower == upper else None


CONTENT_NAMES = ("data", "position-deletes", "equality-deletes")
JSON = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
PartitionTypes = tuple[PrimitiveType | None, ...]


def list_readable_types(spec: PartitionSpec, schema: Schema) -> PartitionTypes:
    """Return the types by which clients read values of a spec; None for a dropped column, whose values they cannot read."""
    types = {item.field_id: item.type for _, item in walk_fields(schema.fields)}
    return tuple(None if item.source_id not in types else result_type(item.transform, types[item.source_id]) for item in spec.fields)


def encode_file(item: ScanFile, types: PartitionTypes) -> bytes:
    """Return a file as JSON without column metrics. The result is cached in the file.

    Raises: Unsupported — a partition value that JSON cannot represent
    """
    cached = item.encoded_json
    if cached is not None and cached[0] == types:
        return cached[1]
    encoded = JSON.encode(_format_file(item, types)).encode()
    item.encoded_json = (types, encoded)
    return encoded


def add_stats(encoded: bytes, file: DataFile, field_ids: Sequence[int]) -> bytes:
    """Return the JSON of a file with counts and bounds of some columns. Bounds are hexadecimal, as in Java."""
    metrics = {
        "column-sizes": _pick(file.column_sizes, field_ids),
        "value-counts": _pick(file.value_counts, field_ids),
        "null-value-counts": _pick(file.null_value_counts, field_ids),
        "nan-value-counts": _pick(file.nan_value_counts, field_ids),
        "lower-bounds": _pick_bounds(file.lower_bounds, field_ids),
        "upper-bounds": _pick_bounds(file.upper_bounds, field_ids),
    }
    more = {key: found for key, found in metrics.items() if found is not None}
    return encoded[:-1] + b"," + JSON.encode(more).encode()[1:] if more else encoded


def _format_file(item: ScanFile, types: PartitionTypes) -> dict[str, object]:
    file = item.file
    node: dict[str, object] = {
        "spec-id": item.spec_id,
        "content": CONTENT_NAMES[file.content],
        "file-path": file.file_path,
        "file-format": file.file_format.lower(),
        "partition": format_partition(file, types),
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
    }
    optional: dict[str, object] = {
        "split-offsets": file.split_offsets,
        "equality-ids": file.equality_ids,
        "sort-order-id": file.sort_order_id,
        "first-row-id": file.first_row_id if file.content == DATA else None,
        "referenced-data-file": file.referenced_data_file,
        "content-offset": file.content_offset,
        "content-size-in-bytes": file.content_size_in_bytes,
    }
    return node | {key: value for key, value in optional.items() if value is not None}


def format_partition(file: DataFile, types: PartitionTypes) -> list[object]:
    """Return the partition tuple of a file as JSON single values; null where clients do not know the type."""
    try:
        return [None if type is None else format_value(type, value) for type, value in zip(types, file.partition, strict=True)]
    except (BadRequest, ValueError) as error:
        raise Unsupported(f"{file.file_path} has a partition value that JSON cannot represent; plan the scan in the client.") from error


def _pick(counts: Mapping[int, int] | None, field_ids: Sequence[int]) -> dict[str, object] | None:
    found = [(field_id, counts[field_id]) for field_id in field_ids if field_id in counts] if counts else []
    return {"keys": [key for key, _ in found], "values": [value for _, value in found]} if found else None


def _pick_bounds(bounds: Mapping[int, bytes] | None, field_ids: Sequence[int]) -> dict[str, object] | None:
    found = [(field_id, bounds[field_id]) for field_id in field_ids if field_id in bounds] if bounds else []
    return {"keys": [key for key, _ in found], "values": [value.hex().upper() for _, value in found]} if found else None
