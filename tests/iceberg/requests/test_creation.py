import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema as OracleSchema
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadataUtil

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import format_metadata, parse_metadata
from duckicelake.iceberg.partition import UNASSIGNED, UNPARTITIONED, UNSORTED, PartitionField, PartitionSpec, SortField, SortOrder
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.requests.table_changes import NewIdentity, assign_fresh_ids, build_new_metadata
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.types import ListType, MapType, NestedField, PrimitiveType, StructType, walk_fields
from tests.iceberg.support.updates import NOW_MS, SCHEMAS, UUID, column

IDENTITY = NewIdentity(UUID, "s3://b/t", NOW_MS)
INT = PrimitiveType("int")
POINT = StructType((column(31, "x", "int"), column(32, "y", "int", True)))
DEEP = Schema(
    7,
    (
        column(10, "id", "long", True),
        column(20, "points", ListType(21, POINT, False)),
        column(40, "names", MapType(41, StructType((column(43, "k"),)), 42, ListType(44, INT, True), True)),
        column(50, "last", "string", doc="é"),
    ),
    (10,),
)


def create(schema=SCHEMAS[0], **changes):
    return build_new_metadata(CreateTable("t", schema, **changes), IDENTITY)


def nested_types(next_id):
    """Types of any depth under ids that count from anywhere."""
    plain = st.sampled_from(["int", "string", "double"]).map(PrimitiveType)
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.builds(lambda item, must: ListType(next(next_id), item, must), inner, st.booleans()),
            st.builds(lambda key, value, must: MapType(next(next_id), key, next(next_id), value, must), inner, inner, st.booleans()),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda items: StructType(tuple(NestedField(next(next_id), f"f{i}", item, i % 2 == 0) for i, item in enumerate(items)))
            ),
        ),
        max_leaves=6,
    )


@given(st.data())
def test_fresh_ids_are_pyicebergs(data):
    """Columns are numbered from 1, a struct's fields before what lies within them, as PyIceberg and Java do."""
    ids = iter(data.draw(st.permutations(range(1, 200))))
    types = data.draw(st.lists(nested_types(ids), min_size=1, max_size=4))
    schema = Schema(3, tuple(NestedField(next(ids), f"c{i}", item, False) for i, item in enumerate(types)))
    fresh, new_ids = assign_fresh_ids(schema)
    oracle = assign_fresh_schema_ids(OracleSchema.model_validate(format_schema(schema)))
    expected = json.loads(oracle.model_dump_json(exclude_none=True))
    assert format_schema(fresh)["fields"] == expected["fields"]
    assert sorted(new_ids.values()) == list(range(1, len(new_ids) + 1))


def test_fresh_ids_keep_everything_else():
    """Names, docs, requirement and identifier fields stay; only ids change."""
    fresh, new_ids = assign_fresh_ids(DEEP)
    assert [(path, item.field_id) for path, item in walk_fields(fresh.fields)] == [
        ("id", 1),
        ("points", 2),
        ("points.element", 5),
        ("points.element.x", 6),
        ("points.element.y", 7),
        ("names", 3),
        ("names.key", 8),
        ("names.key.k", 10),
        ("names.value", 9),
        ("names.value.element", 11),
        ("last", 4),
    ]
    assert fresh.identifier_field_ids == (1,)
    assert (fresh.fields[3].doc, new_ids[50]) == ("é", 4)


def test_a_new_table_has_first_ids():
    """Schema 0, spec 0, order 1, fields from 1000; spec and order follow their columns to the new ids."""
    spec = PartitionSpec(5, (PartitionField(50, 1234, "l", "truncate[3]"), PartitionField(10, 77, "b", "bucket[4]")))
    found = create(DEEP, spec=spec, order=SortOrder(9, (SortField(50, "identity", "desc", "nulls-last"),)))
    assert found.partition_specs == (
        PartitionSpec(0, (PartitionField(4, 1000, "l", "truncate[3]"), PartitionField(1, 1001, "b", "bucket[4]"))),
    )
    assert found.sort_orders == (SortOrder(1, (SortField(4, "identity", "desc", "nulls-last"),)),)
    assert (found.current_schema_id, found.default_spec_id, found.default_sort_order_id) == (0, 0, 1)
    assert (found.last_column_id, found.last_partition_id, found.last_sequence_number) == (11, 1001, 0)
    assert (found.table_uuid, found.location, found.last_updated_ms) == (UUID, "s3://b/t", NOW_MS)
    assert (found.snapshots, found.current_snapshot_id, found.metadata_log) == ((), None, ())


def test_a_new_table_may_be_plain():
    """Unpartitioned is spec 0 and last partition id 999, unsorted is order 0."""
    found = create(spec=PartitionSpec(3), order=SortOrder(0))
    assert (found.partition_specs, found.last_partition_id) == ((UNPARTITIONED,), 999)
    assert (found.sort_orders, found.default_sort_order_id) == ((UNSORTED,), 0)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_new_table_is_read_by_others(version):
    """What we say of a new table, we and PyIceberg read back."""
    found = create(DEEP, properties={"format-version": str(version)})
    assert found.format_version == version
    assert parse_metadata(format_metadata(found)) == found
    assert TableMetadataUtil.parse_obj(format_metadata(found)).schema().find_field("names.value.element").field_id == 11


def test_properties_of_a_new_table():
    """Version 2 and zstd unless said otherwise; what Iceberg derives is not stored."""
    assert create().format_version == 2
    assert create().properties == {"write.parquet.compression-codec": "zstd"}
    said = {
        "write.parquet.compression-codec": "snappy",
        "owner": "bob",
        "uuid": "x",
        "format-version": "3",
        "commit.retry.num-retries": "0",
    }
    found = create(properties=said)
    assert found.format_version == 3
    assert found.properties == {"write.parquet.compression-codec": "snappy", "owner": "bob", "commit.retry.num-retries": "0"}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        pytest.param({"properties": {"format-version": "4"}}, r"Unsupported format version: v4 \(supported: v3\)", id="version-4"),
        pytest.param({"properties": {"format-version": "2.0"}}, "'2.0' is no number", id="no-version"),
        pytest.param(
            {"schema": Schema(0, (column(1, "v", "variant"),))}, "Invalid schema for v2:\n- Invalid type for v: variant", id="type"
        ),
        pytest.param({"properties": {"commit.retry.num-retries": "x"}}, "num-retries must have integer value", id="no-count"),
        pytest.param({"properties": {"commit.retry.min-wait-ms": "-1"}}, "min-wait-ms must have non negative", id="negative-count"),
        pytest.param(
            {"properties": {"write.metadata.metrics.column.no": "full"}}, "could not find column no from table prop", id="no-column"
        ),
        pytest.param({"spec": PartitionSpec(0, (PartitionField(9, 1000, "x", "identity"),))}, "column for partition field: x", id="spec"),
        pytest.param({"spec": PartitionSpec(0, (PartitionField(1, UNASSIGNED, "x", "day"),))}, "Invalid source type long", id="transform"),
        pytest.param({"order": SortOrder(1, (SortField(9, "identity", "asc", "nulls-first"),))}, "column for sort field", id="order"),
    ],
)
def test_a_new_table_must_fit_together(request_, message):
    """Java's words where it has some."""
    with pytest.raises(BadRequest, match=message):
        create(**request_)


def test_metrics_may_name_nested_columns():
    """A dotted name is a column too."""
    assert create(DEEP, properties={"write.metadata.metrics.column.points.element.x": "full"}).last_column_id == 11


def test_a_column_may_keep_its_defaults():
    """Version 3 has defaults; they are part of the column."""
    found = create(Schema(0, (replace(column(8, "n", "int"), initial_default=12, write_default=10),)), properties={"format-version": "3"})
    assert (found.schemas[0].fields[0].field_id, found.schemas[0].fields[0].initial_default) == (1, 12)
