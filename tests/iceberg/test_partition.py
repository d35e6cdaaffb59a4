import pytest
from pyiceberg.partitioning import PartitionSpec as OracleSpec
from pyiceberg.schema import Schema as OracleSchema

from duckicelake.errors import BadRequest
from duckicelake.iceberg.partition import (
    UNASSIGNED,
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    assign_field_ids,
    format_spec,
    get_last_field_id,
    is_same_spec,
    list_partition_types,
    parse_spec,
)
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.types import ListType, NestedField, PrimitiveType, StructType

SPEC = PartitionSpec(
    2,
    (
        PartitionField(1, 1000, "id", "identity"),
        PartitionField(1, 1001, "id_bucket", "bucket[16]"),
        PartitionField(2, 1002, "at_day", "day"),
        PartitionField(2, 1003, "at_hour", "hour"),
        PartitionField(3, 1004, "name_trunc", "truncate[4]"),
        PartitionField(3, 1005, "gone", "void"),
        PartitionField(5, 1006, "inner", "identity"),
    ),
)
SCHEMA = Schema(
    0,
    (
        NestedField(1, "id", PrimitiveType("long"), True),
        NestedField(2, "at", PrimitiveType("timestamptz"), False),
        NestedField(3, "name", PrimitiveType("string"), False),
        NestedField(4, "point", StructType((NestedField(5, "x", PrimitiveType("double"), False),)), False),
        NestedField(6, "tags", ListType(7, PrimitiveType("string"), False), False),
    ),
)


def field(**changes):
    return {"name": "a", "transform": "identity", "source-id": 1, "field-id": 1000} | changes


def without(key):
    return {name: value for name, value in field().items() if name != key}


def test_specs_come_back_from_their_json():
    """parse_spec(format_spec(x)) = x, and PyIceberg reads the same."""
    assert parse_spec(format_spec(SPEC)) == SPEC
    assert parse_spec(format_spec(UNPARTITIONED)) == UNPARTITIONED
    theirs = OracleSpec.model_validate(format_spec(SPEC))
    assert parse_spec(theirs.model_dump(mode="json", by_alias=True)) == SPEC


def test_partition_types_are_pyicebergs():
    """Each transform gives the type that PyIceberg gives."""
    oracle = OracleSpec.model_validate(format_spec(SPEC)).partition_type(OracleSchema.model_validate(format_schema(SCHEMA)))
    assert [type.name for type in list_partition_types(SPEC, SCHEMA)] == [str(item.field_type) for item in oracle.fields]


def test_dropped_columns_leave_what_their_transform_fixes():
    """bucket, time and void transforms have a type without their column; the others cannot be told."""
    spec = PartitionSpec(0, tuple(PartitionField(99, 1000 + i, t, t) for i, t in enumerate(["bucket[4]", "day", "year", "void"])))
    assert [type.name for type in list_partition_types(spec, SCHEMA)] == ["int", "date", "int", "int"]
    with pytest.raises(BadRequest, match="not in the schema"):
        list_partition_types(PartitionSpec(0, (PartitionField(99, 1000, "a", "identity"),)), SCHEMA)


@pytest.mark.parametrize(
    ("source_id", "transform"),
    [
        pytest.param(1, "hour", id="hour-of-long"),
        pytest.param(5, "bucket[4]", id="bucket-of-double"),
        pytest.param(2, "truncate[4]", id="truncate-of-time"),
        pytest.param(6, "identity", id="identity-of-list"),
    ],
)
def test_transforms_are_refused_for_other_types(source_id, transform):
    """A transform takes only the types the specification lists."""
    with pytest.raises(BadRequest, match="cannot be applied"):
        list_partition_types(PartitionSpec(0, (PartitionField(source_id, 1000, "a", transform),)), SCHEMA)


def test_missing_field_ids_are_assigned():
    """A client may leave all field ids out; the server numbers from the last one, from 1000 at least."""
    spec = parse_spec({"fields": [without("field-id"), without("field-id") | {"name": "b"}]})
    assert [item.field_id for item in spec.fields] == [UNASSIGNED, UNASSIGNED]
    assert [item.field_id for item in assign_field_ids(spec, 999).fields] == [1000, 1001]
    assert [item.field_id for item in assign_field_ids(spec, 1004).fields] == [1005, 1006]
    assert assign_field_ids(SPEC, 5000) is SPEC
    assert get_last_field_id((UNPARTITIONED, SPEC)) == 1006
    assert get_last_field_id((UNPARTITIONED,)) == 999


def test_one_source_may_come_in_a_list():
    """v3 writes `source-ids` for transforms of several columns; one column is the plain case."""
    assert parse_spec({"fields": [without("source-id") | {"source-ids": [7]}]}).fields[0].source_id == 7


def test_same_spec_ignores_ids():
    """Specs are compatible when they split alike under the same names."""
    assert is_same_spec(PartitionSpec(0, (PartitionField(1, 1000, "a", "day"),)), PartitionSpec(4, (PartitionField(1, 1009, "a", "day"),)))
    assert not is_same_spec(
        PartitionSpec(0, (PartitionField(1, 1000, "a", "day"),)), PartitionSpec(0, (PartitionField(1, 1000, "b", "day"),))
    )


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(value, id=name)
        for name, value in {
            "not-an-object": [],
            "no-fields": {"spec-id": 0},
            "fields-no-array": {"fields": {}},
            "field-no-object": {"fields": [1]},
            "no-name": {"fields": [without("name")]},
            "empty-name": {"fields": [field(name="")]},
            "no-transform": {"fields": [without("transform")]},
            "unknown-transform": {"fields": [field(transform="zorder")]},
            "bucket-of-nothing": {"fields": [field(transform="bucket[0]")]},
            "no-source": {"fields": [without("source-id")]},
            "two-sources": {"fields": [without("source-id") | {"source-ids": [1, 2]}]},
            "name-twice": {"fields": [field(), field(**{"field-id": 1001})]},
            "field-id-twice": {"fields": [field(), field(name="b")]},
            "some-field-ids": {"fields": [field(), without("field-id") | {"name": "b"}]},
            "text-spec-id": {"spec-id": "0", "fields": []},
        }.items()
    ],
)
def test_malformed_specs_are_bad_requests(node):
    """A stranger's JSON never raises anything but BadRequest."""
    with pytest.raises(BadRequest):
        parse_spec(node)
