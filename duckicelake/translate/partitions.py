"""DuckLake's partition keys as Iceberg specs. A file whose values cannot be proven is published under the unpartitioned spec.

DuckLake's year, month, day and hour are calendar components, so Iceberg's `month` needs year and month together, and
so on; those of a timestamptz depend on the writer's time zone and prove nothing. DuckLake 1.1's `epoch_` transforms are Iceberg's.
`bucket` equals Iceberg's for some types. A client's spec becomes a partitioning of DuckLake 1.1 where DuckLake has all its transforms.
Spec 0 is always unpartitioned; derived files, and files older than the partitioning, use it.
`catalog` calls this for loads and commits, and Spark executors of `publish` and `verify` do. No I/O.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.transforms import TRANSFORMS
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.lake_format import V1_1, LakeFormat
from duckicelake.lake.rows import DataFileRow, JsonNote, PartitionRow
from duckicelake.translate.values import days_from_civil, parse_value

TIME_UNITS = ("year", "month", "day", "hour")
UNITS_BY_TYPE: Mapping[str, tuple[str, ...]] = {"date": TIME_UNITS[:3], "timestamp": TIME_UNITS}
BUCKET = re.compile(r"bucket\((\d+)\)")
BUCKETED_ALIKE = frozenset(
    {"int8", "int16", "int32", "int64", "varchar", "json", "blob", "date", "time", "timestamp", "timestamp_us", "timestamptz"}
)
"""DuckLake types that its `bucket` hashes as Iceberg does: not unsigned types, nor timestamps of seconds or milliseconds."""
NO_KEYS = frozenset({"int128", "uint128", "timetz", "timestamp_ns", "timestamptz_ns", "geometry", "variant", "interval", "uint64", "null"})
"""DuckLake types whose texts do not prove the values of a file, or that Iceberg does not partition by."""
FIRST_FIELD_ID = 1000
VOID = "void"
INT = PrimitiveType("int")
FLOAT = PrimitiveType("float")


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One field of a spec, and the DuckLake key indexes that its value is computed from.

    `is_ordinal`: DuckLake's value is the field's value, a count since 1970, and no calendar component.
    `has_been_float`: the column was a FLOAT before it became a DOUBLE.
    """

    source_id: int
    transform: str
    key_indexes: tuple[int, ...]
    is_ordinal: bool = False
    has_been_float: bool = False


@dataclass(frozen=True, slots=True)
class PublishedSpec:
    """An Iceberg spec of a DuckLake partitioning, or of a client; a client's has the names that it gave its fields."""

    spec_id: int
    field_ids: tuple[int, ...]
    keys: tuple[PartitionKey, ...]
    names: tuple[str, ...] = ()


UNPARTITIONED = PublishedSpec(0, (), ())


@dataclass(frozen=True, slots=True)
class Partitioning:
    """All specs of a table. `by_partition_id` has the partitionings of DuckLake that map to a spec with fields.

    `unproven` is the spec of files whose partition values are not proven.
    """

    specs: tuple[PublishedSpec, ...]
    by_partition_id: Mapping[int, PublishedSpec]
    default_spec_id: int
    new_notes: tuple[JsonNote, ...]
    unproven: PublishedSpec = UNPARTITIONED
    is_unproven_used: bool = True

    @property
    def needed(self) -> set[int]:
        """The ids of the specs that new files of clients or DuckDB get, or files of DuckDB have."""
        return {self.default_spec_id, self.unproven.spec_id} if self.is_unproven_used else {self.default_spec_id}

    def find(self, spec_id: int) -> PublishedSpec | None:
        """Return the spec with that id, or None if it cannot be published any more."""
        return next((spec for spec in self.specs if spec.spec_id == spec_id), None)


def to_partitioning(rows: Sequence[PartitionRow], schema: Schema, notes: Sequence[JsonNote]) -> Partitioning:
    """Return a table's specs: noted ones keep their ids, new ones get the next ids in order of appearance."""
    noted = {note.json: note.id for note in notes}
    field_ids = {(f["source-id"], f["transform"]): f["field-id"] for note in notes for f in json.loads(note.json)}
    by_partition_id: dict[int, PublishedSpec] = {}
    new_notes: list[JsonNote] = []
    for partition_id, group in groupby(rows, key=lambda row: row.partition_id):
        keys = to_keys(list(group), schema)
        if not keys:
            continue
        ids = tuple(_field_id(field_ids, key) for key in keys)
        text = _format_note(keys, ids)
        client_spec = None if text in noted else _find_client_spec(keys, notes)
        if client_spec is not None:
            by_partition_id[partition_id] = client_spec
            continue
        if text not in noted:
            noted[text] = max(noted.values(), default=0) + 1
            new_notes.append(JsonNote(noted[text], text))
        by_partition_id[partition_id] = PublishedSpec(noted[text], ids, keys)
    specs = {spec.spec_id: spec for spec in by_partition_id.values()}
    live = [row.partition_id for row in rows if row.end_snapshot is None]
    default = by_partition_id.get(live[-1], UNPARTITIONED) if live else UNPARTITIONED
    ordered = (UNPARTITIONED, *(specs[spec_id] for spec_id in sorted(specs) if spec_id != UNPARTITIONED.spec_id))
    return Partitioning(ordered, by_partition_id, default.spec_id, tuple(new_notes))


def _find_client_spec(keys: Sequence[PartitionKey], notes: Sequence[JsonNote]) -> PublishedSpec | None:
    """Return the client's spec that has these keys, void fields aside; one that the client has removed only if there is no other."""
    by_field = {(key.source_id, key.transform): key for key in keys}
    for note in sorted(notes, key=lambda note: (note.is_removed, note.id)):
        fields = json.loads(note.json)
        pairs = [(field["source-id"], field["transform"]) for field in fields]
        if all("name" in field for field in fields) and [pair for pair in pairs if pair[1] != VOID] == list(by_field):
            in_order = tuple(by_field.get(pair, PartitionKey(*pair, ())) for pair in pairs)
            names = tuple(field["name"] for field in fields)
            return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), in_order, names)
    return None


def is_partitioned_alike(first: PublishedSpec, second: PublishedSpec) -> bool:
    """Return True if two specs with partition fields have the same fields, void ones and names aside."""
    fields = [[(key.source_id, key.transform) for key in spec.keys if key.transform != VOID] for spec in (first, second)]
    return bool(fields[0]) and fields[0] == fields[1]


def to_partition_keys(
    spec: PartitionSpec, schema: Schema, column_types: Mapping[int, Sequence[str]], lake_format: LakeFormat
) -> list[tuple[int, str]]:
    """Return the columns and transforms by which DuckLake partitions as a client's spec does; none if DuckLake cannot do so exactly.

    `column_types`: all DuckLake types that a column has ever had. Buckets are left out: DuckDB prunes files without bucket values,
    and files of clients have none in DuckLake.
    """
    transforms = {unit: name for name, unit in lake_format.transforms.items()}
    if transforms:
        transforms["identity"] = "identity"
    fields = [(field.source_id, field.transform) for field in spec.fields if field.transform != VOID]
    roots = {field.field_id for field in schema.fields}
    # DuckDB cannot insert into a table that is partitioned by a nested field.
    if any(source_id not in roots or transform not in transforms for source_id, transform in fields):
        return []
    keys = [(source_id, transforms[transform]) for source_id, transform in fields]
    rows = [PartitionRow(0, 0, None, index, *key, column_types.get(key[0], ())) for index, key in enumerate(keys)]
    return keys if [(key.source_id, key.transform) for key in to_keys(rows, schema)] == fields else []


def has_buckets(rows: Iterable[PartitionRow]) -> bool:
    """Return True if DuckDB partitions a table by buckets; it prunes all files without bucket values in DuckLake then."""
    return any(row.end_snapshot is None and row.transform is not None and BUCKET.fullmatch(row.transform.lower()) for row in rows)


def list_partition_columns(rows: Iterable[PartitionRow]) -> set[int]:
    """Return the ids of the columns that DuckDB partitions a table by."""
    return {row.column_id for row in rows if row.end_snapshot is None and row.column_id is not None}


def _field_id(field_ids: dict[tuple[int, str], int], key: PartitionKey) -> int:
    highest = max(field_ids.values(), default=FIRST_FIELD_ID - 1)
    return field_ids.setdefault((key.source_id, key.transform), highest + 1)


def _format_note(keys: Sequence[PartitionKey], field_ids: Sequence[int]) -> str:
    fields = [
        {"source-id": key.source_id, "field-id": field_id, "transform": key.transform}
        for key, field_id in zip(keys, field_ids, strict=True)
    ]
    return json.dumps(fields, separators=(",", ":"))


def to_keys(rows: Sequence[PartitionRow], schema: Schema) -> tuple[PartitionKey, ...]:
    """Return the partition keys that one DuckLake partitioning proves; none if a source column is gone."""
    indexes: dict[tuple[int, str], int] = {}
    promoted = {row.column_id for row in rows if {"float32", "float64"} <= set(row.column_types)}
    for row in rows:
        if row.column_id is not None and row.transform is not None and row.partition_key_index is not None:
            if find_field(schema, row.column_id) is None:
                return ()
            alike = BUCKETED_ALIKE.issuperset(row.column_types) or not BUCKET.fullmatch(row.transform.lower())
            if (alike and NO_KEYS.isdisjoint(row.column_types)) or _is_ordinal(row.transform, row.column_types):
                indexes[row.column_id, row.transform.lower()] = row.partition_key_index
    keys: list[PartitionKey] = []
    for (source_id, transform), index in indexes.items():
        key = _to_key(source_id, transform, index, indexes, schema)
        if key is not None:
            keys.append(replace(key, has_been_float=source_id in promoted))
    return tuple(keys)


def _is_ordinal(transform: str, column_types: Iterable[str]) -> bool:
    """Return True if a DuckLake transform counts since 1970 as Iceberg's does: by UTC, rounded down."""
    return transform.lower() in V1_1.transforms and all(kind.startswith(("date", "timestamp")) for kind in column_types)


def _to_key(source_id: int, transform: str, index: int, indexes: Mapping[tuple[int, str], int], schema: Schema) -> PartitionKey | None:
    field = find_field(schema, source_id)
    if field is None or not isinstance(field.type, PrimitiveType):
        return None
    bucket = BUCKET.fullmatch(transform)
    if transform == "identity":
        return PartitionKey(source_id, "identity", (index,))
    if bucket:
        return PartitionKey(source_id, f"bucket[{bucket[1]}]", (index,))
    if transform in V1_1.transforms:
        unit = TRANSFORMS[V1_1.transforms[transform]]
        return PartitionKey(source_id, str(unit), (index,), is_ordinal=True) if unit.result_type(field.type) is not None else None
    if transform == "year" and field.type.name in UNITS_BY_TYPE:
        units = UNITS_BY_TYPE[field.type.name]
        chain = [unit for unit in units if all((source_id, coarser) in indexes for coarser in _up_to(unit))]
        return PartitionKey(source_id, chain[-1], tuple(indexes[source_id, unit] for unit in _up_to(chain[-1])))
    return None


def _up_to(unit: str) -> tuple[str, ...]:
    return TIME_UNITS[: TIME_UNITS.index(unit) + 1]


def to_spec(published: PublishedSpec, schema: Schema) -> PartitionSpec:
    """Return a spec with the client's names, or with names that are free in this schema: `column`, `column_transform`."""
    if published.names:
        named = zip(published.keys, published.field_ids, published.names, strict=True)
        return PartitionSpec(published.spec_id, tuple(PartitionField(key.source_id, i, name, key.transform) for key, i, name in named))
    taken = {field.name for field in schema.fields}
    fields: list[PartitionField] = []
    for key, field_id in zip(published.keys, published.field_ids, strict=True):
        source = find_field(schema, key.source_id)
        name = source.name if source else f"field_{key.source_id}"
        if key.transform != "identity":
            name = _free_name(f"{name}_{key.transform.partition('[')[0]}", taken)
        taken.add(name)
        fields.append(PartitionField(key.source_id, field_id, name, key.transform))
    return PartitionSpec(published.spec_id, tuple(fields))


def _free_name(name: str, taken: Iterable[str]) -> str:
    while name in taken:
        name += "_"
    return name


def find_partition(row: DataFileRow, spec: PublishedSpec, schema: Schema) -> tuple[object, ...] | None:
    """Return the partition tuple that a file's texts prove under a spec, or None if one of them proves nothing."""
    texts = row.partition_values or ()
    values: list[object] = []
    for key in spec.keys:
        if key.transform == VOID:
            values.append(None)
            continue
        if any(index >= len(texts) for index in key.key_indexes):
            return None
        parts = [texts[index] for index in key.key_indexes]
        value = _to_value(key, parts, schema)
        # A null component may come from an infinite date, which Iceberg maps to a year.
        if value is None and (key.transform in TIME_UNITS or any(part is not None for part in parts)):
            return None
        values.append(value)
    return tuple(values)


def _to_value(key: PartitionKey, texts: Sequence[str | None], schema: Schema) -> object | None:
    present = [text for text in texts if text is not None]
    if len(present) < len(texts):
        return None
    if key.transform != "identity":
        numbers = [parse_value(INT, text) for text in present]
        components = [number for number in numbers if isinstance(number, int)]
        if len(components) < len(present):
            return None
        return _to_ordinal(components) if key.transform in TIME_UNITS and not key.is_ordinal else components[0]
    field = find_field(schema, key.source_id)
    value = parse_value(field.type, present[0]) if field and isinstance(field.type, PrimitiveType) else None
    if not isinstance(value, float):
        return value
    # A file that DuckLake rewrote after the promotion has the text of the FLOAT, which is that of another DOUBLE, too.
    if key.has_been_float and parse_value(FLOAT, present[0]) not in (value, None):
        return None
    # DuckLake puts 0.0 and -0.0 into one file, and Iceberg distinguishes them.
    return None if value == 0.0 or not math.isfinite(value) else value


def _to_ordinal(components: Sequence[int]) -> int:
    """Return years, months, days or hours since 1970, by the number of components."""
    match components:
        case [year]:
            return year - 1970
        case [year, month]:
            return (year - 1970) * 12 + month - 1
        case [year, month, day]:
            return days_from_civil(year, month, day)
        case _:
            year, month, day, hour = components
            return days_from_civil(year, month, day) * 24 + hour
