"""Updates as clients send them, and strategies that draw them: sensible ones, and ones that cannot be."""

from dataclasses import fields, replace

from hypothesis import strategies as st

from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import (
    UNASSIGNED,
    UNPARTITIONED,
    UNSORTED,
    PartitionField,
    PartitionSpec,
    SortField,
    SortOrder,
    format_sort_order,
    format_spec,
)
from duckicelake.iceberg.requests import updates as actions
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.snapshots import (
    PartitionStatisticsFile,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    format_partition_statistics,
    format_ref,
    format_snapshot,
    format_statistics,
)
from duckicelake.iceberg.types import IcebergType, ListType, NestedField, PrimitiveType
from duckicelake.iceberg.view_metadata import format_version

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
NOW_MS = 1_700_000_000_000
NAMES = {
    actions.AssignUuid: "assign-uuid",
    actions.UpgradeFormatVersion: "upgrade-format-version",
    actions.AddSchema: "add-schema",
    actions.SetCurrentSchema: "set-current-schema",
    actions.AddSpec: "add-spec",
    actions.SetDefaultSpec: "set-default-spec",
    actions.AddSortOrder: "add-sort-order",
    actions.SetDefaultSortOrder: "set-default-sort-order",
    actions.AddSnapshot: "add-snapshot",
    actions.SetSnapshotRef: "set-snapshot-ref",
    actions.RemoveSnapshots: "remove-snapshots",
    actions.RemoveSnapshotRef: "remove-snapshot-ref",
    actions.SetLocation: "set-location",
    actions.SetProperties: "set-properties",
    actions.RemoveProperties: "remove-properties",
    actions.SetStatistics: "set-statistics",
    actions.RemoveStatistics: "remove-statistics",
    actions.SetPartitionStatistics: "set-partition-statistics",
    actions.RemovePartitionStatistics: "remove-partition-statistics",
    actions.RemoveSpecs: "remove-partition-specs",
    actions.RemoveSchemas: "remove-schemas",
    actions.AddViewVersion: "add-view-version",
    actions.SetCurrentViewVersion: "set-current-view-version",
}
KEYS = {
    (actions.AddSortOrder, "order"): "sort-order",
    (actions.SetDefaultSortOrder, "order_id"): "sort-order-id",
    (actions.SetPartitionStatistics, "statistics"): "partition-statistics",
    (actions.AddViewVersion, "version"): "view-version",
    (actions.SetCurrentViewVersion, "version_id"): "view-version-id",
    (actions.RemoveSnapshotRef, "name"): "ref-name",
}


def format_update(update):
    """An update as the JSON that a client sends."""
    kind = type(update)
    if kind is actions.SetSnapshotRef:
        return {"action": NAMES[kind], "ref-name": update.name, **format_ref(update.ref)}
    values = {item.name: getattr(update, item.name) for item in fields(update)}
    return {"action": NAMES[kind]} | {KEYS.get((kind, key), key.replace("_", "-")): format_part(value) for key, value in values.items()}


def format_part(value):
    """A part of an update as JSON."""
    match value:
        case Schema():
            return format_schema(value)
        case PartitionSpec():
            return format_spec_with_gaps(value)
        case SortOrder():
            return format_sort_order(value)
        case Snapshot():
            return format_snapshot(value)
        case StatisticsFile():
            return format_statistics(value)
        case PartitionStatisticsFile():
            return format_partition_statistics(value)
        case tuple():
            return list(value)
        case _:
            return format_version(value) if hasattr(value, "representations") else value


def format_spec_with_gaps(spec):
    """A spec as JSON; fields without ids say none."""
    node = format_spec(spec)
    node["fields"] = [{key: value for key, value in item.items() if value != UNASSIGNED} for item in node["fields"]]
    return node


def column(field_id, name, type: str | IcebergType = "long", required=False, **more):
    """A column."""
    return NestedField(field_id, name, PrimitiveType(type) if isinstance(type, str) else type, required, **more)


ID, AT, TEXT, TAGS = (
    column(1, "id"),
    column(2, "at", "timestamp"),
    column(3, "text", "string"),
    column(4, "tags", ListType(5, PrimitiveType("int"), True)),
)
SCHEMAS = [
    Schema(0, (ID, AT)),
    Schema(0, (ID, AT, TEXT)),
    Schema(3, (AT, ID)),
    Schema(1, (ID, AT, TEXT, TAGS)),
    Schema(0, (ID,)),
    Schema(0, (ID, AT, column(6, "fine", "timestamp_ns"))),
]
SPECS = [
    UNPARTITIONED,
    PartitionSpec(0, (PartitionField(1, 1000, "id_bucket", "bucket[4]"),)),
    PartitionSpec(5, (PartitionField(2, UNASSIGNED, "at_day", "day"),)),
    PartitionSpec(0, (PartitionField(2, 1001, "at_day", "day"), PartitionField(1, 1000, "id_bucket", "bucket[4]"))),
    PartitionSpec(1, (PartitionField(3, 1000, "text", "identity"),)),
    PartitionSpec(1, (PartitionField(5, 1000, "tag", "identity"),)),
    PartitionSpec(1, (PartitionField(1, 1000, "id_day", "day"),)),
    PartitionSpec(1, (PartitionField(1, 1000, "at", "identity"),)),
    PartitionSpec(1, (PartitionField(1, 1000, "id_bucket", "void"), PartitionField(1, 1001, "id", "identity"))),
]
ORDERS = [
    UNSORTED,
    SortOrder(1, (SortField(1, "identity", "asc", "nulls-first"),)),
    SortOrder(7, (SortField(2, "day", "desc", "nulls-last"), SortField(1, "identity", "asc", "nulls-first"))),
    SortOrder(1, (SortField(3, "identity", "asc", "nulls-first"),)),
    SortOrder(1, (SortField(4, "identity", "asc", "nulls-first"),)),
]
SNAPSHOT_IDS = st.integers(1, 5)
SMALL = st.integers(-1, 3)
REFS = st.sampled_from(["main", "branch", "tag"])


def snapshot(snapshot_id, parent=None, number=1, **more):
    """A snapshot as a client adds it."""
    found = Snapshot(
        snapshot_id, parent, number, NOW_MS - 1000 + snapshot_id, f"s3://b/t/metadata/snap-{snapshot_id}.avro", {"operation": "append"}, 0
    )
    return replace(found, **more)


def table(version=2, **changes):
    """A table of two columns and no snapshot."""
    empty = TableMetadata(
        format_version=version,
        table_uuid=UUID,
        location="s3://b/t",
        last_sequence_number=0,
        last_updated_ms=NOW_MS - 5000,
        last_column_id=2,
        schemas=(SCHEMAS[0],),
        current_schema_id=0,
        partition_specs=(UNPARTITIONED,),
        default_spec_id=0,
        last_partition_id=999,
        properties={"owner": "alice"},
    )
    return replace(empty, **changes)


SNAPSHOTS = st.builds(
    snapshot,
    SNAPSHOT_IDS,
    st.none() | SNAPSHOT_IDS,
    st.integers(1, 6),
    schema_id=st.none() | st.integers(0, 1),
    first_row_id=st.none() | st.integers(0, 9),
    added_rows=st.integers(0, 3),
).filter(lambda item: item.parent_snapshot_id != item.snapshot_id)
BRANCHES = st.builds(
    SnapshotRef, SNAPSHOT_IDS, st.just("branch"), st.none() | st.integers(1, 3), st.none() | st.integers(1, 3), st.none() | st.just(2)
)
TAGS_REFS = st.builds(SnapshotRef, SNAPSHOT_IDS, st.just("tag"), st.none() | st.integers(1, 3))
TABLE_UPDATES = st.one_of(
    st.builds(actions.AssignUuid, st.just(UUID)),
    st.builds(actions.UpgradeFormatVersion, st.integers(1, 4)),
    st.builds(actions.AddSchema, st.sampled_from(SCHEMAS)),
    st.builds(actions.SetCurrentSchema, SMALL),
    st.builds(actions.AddSpec, st.sampled_from(SPECS)),
    st.builds(actions.SetDefaultSpec, SMALL),
    st.builds(actions.AddSortOrder, st.sampled_from(ORDERS)),
    st.builds(actions.SetDefaultSortOrder, SMALL),
    st.builds(actions.AddSnapshot, SNAPSHOTS),
    st.builds(actions.SetSnapshotRef, REFS, BRANCHES | TAGS_REFS),
    st.builds(actions.RemoveSnapshots, st.lists(SNAPSHOT_IDS, max_size=2).map(tuple)),
    st.builds(actions.RemoveSnapshotRef, REFS),
    st.builds(actions.SetLocation, st.sampled_from(["s3://b/t", "s3://b/u"])),
    st.builds(actions.SetProperties, st.dictionaries(st.sampled_from(["a", "b", "owner"]), st.text(max_size=2), max_size=2)),
    st.builds(actions.RemoveProperties, st.lists(st.sampled_from(["a", "owner", "no"]), max_size=2, unique=True).map(tuple)),
    st.builds(
        actions.SetStatistics, st.builds(lambda at, size: StatisticsFile(at, "s3://b/s.puffin", size, 1, ()), SNAPSHOT_IDS, SNAPSHOT_IDS)
    ),
    st.builds(actions.RemoveStatistics, SNAPSHOT_IDS),
    st.builds(
        actions.SetPartitionStatistics,
        st.builds(lambda at, size: PartitionStatisticsFile(at, "s3://b/p.parquet", size), SNAPSHOT_IDS, SNAPSHOT_IDS),
    ),
    st.builds(actions.RemovePartitionStatistics, SNAPSHOT_IDS),
    st.builds(actions.RemoveSpecs, st.lists(st.integers(0, 2), max_size=2, unique=True).map(tuple)),
    st.builds(actions.RemoveSchemas, st.lists(st.integers(0, 2), max_size=2, unique=True).map(tuple)),
)


@st.composite
def likely_requests(draw, base):
    """Requests of a few updates that mostly go together: ids and numbers follow the table's."""
    found = []
    numbers = iter(range(base.last_sequence_number + 1, base.last_sequence_number + 99))
    snapshot_ids = [item.snapshot_id for item in base.snapshots]
    row_id = base.next_row_id
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["commit", "commit", "stage", "schema", "spec", "order", "other"]))
        if kind in ("commit", "stage"):
            new_id = max([*snapshot_ids, 0]) + 1
            main = base.refs.get("main")
            more = {"first_row_id": row_id, "added_rows": 2} if base.format_version >= 3 else {}
            found.append(actions.AddSnapshot(snapshot(new_id, main and main.snapshot_id, next(numbers), schema_id=None, **more)))
            snapshot_ids.append(new_id)
            row_id += 2
            if kind == "commit":
                found.append(actions.SetSnapshotRef(draw(REFS.filter(lambda name: name != "tag")), SnapshotRef(new_id, "branch")))
        elif kind == "schema":
            found += [actions.AddSchema(draw(st.sampled_from(SCHEMAS[:5]))), actions.SetCurrentSchema(-1)]
        elif kind == "spec":
            found += [actions.AddSpec(draw(st.sampled_from(SPECS[:4]))), actions.SetDefaultSpec(-1)]
        elif kind == "order":
            found += [actions.AddSortOrder(draw(st.sampled_from(ORDERS[:3]))), actions.SetDefaultSortOrder(-1)]
        else:
            found.append(draw(TABLE_UPDATES))
    return tuple(found)
