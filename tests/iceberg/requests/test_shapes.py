from dataclasses import replace

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.partition import UNASSIGNED, UNPARTITIONED, UNSORTED, PartitionField, PartitionSpec, SortField, SortOrder
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.table_draft import map_spec_ids, resolve_added_specs
from duckicelake.iceberg.requests.updates import (
    LAST_ADDED,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    RemoveSchemas,
    RemoveSnapshots,
    RemoveSpecs,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    UpgradeFormatVersion,
)
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import ListType, PrimitiveType, StructType
from tests.iceberg.support.updates import AT, ID, NOW_MS, SCHEMAS, TEXT, column, snapshot, table

BUCKET = PartitionField(1, 1000, "id_bucket", "bucket[4]")
DAY = PartitionField(2, 1001, "at_day", "day")


def apply(base, *updates):
    return apply_updates(base, updates, NOW_MS)


def specs(*fields):
    return AddSpec(PartitionSpec(0, fields))


def orders(*keys):
    return AddSortOrder(SortOrder(1, tuple(SortField(source, transform, "asc", "nulls-first") for source, transform in keys)))


def test_new_columns_get_a_new_schema():
    """The id the client proposes counts for nothing: the next one is given, and the last column id follows the schema."""
    found = apply(table(), AddSchema(Schema(77, (ID, AT, TEXT))), SetCurrentSchema(-1))
    assert [item.schema_id for item in found.schemas] == [0, 1]
    assert (found.current_schema_id, found.last_column_id) == (1, 3)


def test_the_same_columns_keep_their_schema():
    """Adding a schema that is there gives its id; -1 means it, and so does the next request's -1."""
    added = apply(table(), AddSchema(Schema(5, (ID, AT, TEXT))), SetCurrentSchema(-1))
    back = apply(added, AddSchema(Schema(9, (ID, AT))), SetCurrentSchema(-1))
    assert (back.current_schema_id, back.schemas) == (0, added.schemas)


def test_the_last_column_id_never_goes_down():
    """A dropped column's id is not given again."""
    found = apply(table(last_column_id=9), AddSchema(Schema(1, (ID, TEXT))), SetCurrentSchema(-1))
    assert found.last_column_id == 9


def test_a_schema_says_more_than_its_columns():
    """Docs, order, required and identifier fields make another schema."""
    changes = [
        Schema(0, (replace(ID, doc="key"), AT)),
        Schema(0, (AT, ID)),
        Schema(0, (replace(ID, required=True), AT)),
        Schema(0, (replace(ID, required=True), AT), (1,)),
    ]
    found = apply(table(), *[AddSchema(item) for item in changes])
    assert [item.schema_id for item in found.schemas] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("update", "message"),
    [
        pytest.param(SetCurrentSchema(-1), "Cannot set last added schema: no schema has been added", id="none-added"),
        pytest.param(SetCurrentSchema(7), "Cannot set current schema to unknown schema: 7", id="unknown"),
        pytest.param(RemoveSchemas((0,)), "Cannot remove the current schema", id="current"),
        pytest.param(AddSchema(SCHEMAS[5]), "Invalid type for fine: timestamp_ns is not supported until v3", id="type-of-v3"),
        pytest.param(AddSchema(Schema(0, (column(0, "a"),))), "a has id 0; send ids from 1 to 10000", id="id-0"),
        pytest.param(AddSchema(Schema(0, (column(2147483540, "a"),))), "a has id 2147483540", id="id-of-readers"),
        pytest.param(AddSchema(Schema(0, (column(1_000_003, "a"),))), "a has id 1000003; send ids from 1 to 1000002", id="too-far"),
        pytest.param(AddSchema(Schema(0, (column(1, "a", ListType(-1, PrimitiveType("int"), True)),))), "a.element has id -1", id="below"),
    ],
)
def test_schemas_that_cannot_be_are_refused(update, message):
    """Unknown ids, ids out of range, and types that the format version lacks."""
    with pytest.raises(BadRequest, match=message):
        apply(table(), update)


def test_ids_of_columns_end_before_those_of_readers():
    """Below, a column may have any id that a table's next columns can still follow."""
    assert apply(table(last_column_id=2), AddSchema(Schema(0, (column(1_000_002, "a"),)))).last_column_id == 1_000_002
    with pytest.raises(BadRequest, match="a has id 2147483447; send ids from 1 to 2147483446"):
        apply(table(last_column_id=2_147_483_000), AddSchema(Schema(0, (column(2_147_483_447, "a"),))))


def test_types_follow_an_upgrade():
    """What a version lacks may be asked for right after the upgrade to it."""
    assert apply(table(), UpgradeFormatVersion(3), AddSchema(SCHEMAS[5])).format_version == 3


def test_a_schema_in_use_stays():
    """Readers of an old snapshot need the schema it was written with; without the snapshot it may go."""
    base = apply(table(), AddSchema(SCHEMAS[1]), SetCurrentSchema(-1), AddSnapshot(snapshot(1)))
    with pytest.raises(BadRequest, match="Cannot remove schema 0: snapshot 1 was written with it"):
        apply(base, RemoveSchemas((0,)))
    assert [item.schema_id for item in apply(base, RemoveSchemas((0, 5)), RemoveSnapshots((1,))).schemas] == [1]


def test_a_spec_gets_the_next_id():
    """The client's id counts for nothing, its field ids do."""
    found = apply(table(), AddSpec(PartitionSpec(9, (BUCKET,))), SetDefaultSpec(-1))
    assert found.partition_specs == (UNPARTITIONED, PartitionSpec(1, (BUCKET,)))
    assert (found.default_spec_id, found.last_partition_id) == (1, 1000)


def test_the_same_spec_keeps_its_id():
    """Same sources, transforms and names in the same order: ids are no difference."""
    base = apply(table(), specs(BUCKET), SetDefaultSpec(-1))
    again = apply(base, specs(replace(BUCKET, field_id=1005)), AddSpec(UNPARTITIONED), SetDefaultSpec(-1))
    assert (again.partition_specs, again.default_spec_id, again.last_partition_id) == (base.partition_specs, 0, 1000)


def test_fields_without_ids_are_numbered():
    """After the last one given out; the same source and transform get the id they had before."""
    open_fields = [replace(item, field_id=UNASSIGNED) for item in (DAY, BUCKET)]
    base = apply(table(last_partition_id=1003), specs(replace(BUCKET, name="b")))
    assert apply(base, specs(*open_fields)).partition_specs[-1].fields == (replace(DAY, field_id=1004), replace(BUCKET, field_id=1000))


def test_version_1_numbers_fields_by_position():
    """Readers of v1 count from 1000 and look at no ids."""
    base = apply(table(1), specs(BUCKET))
    numbered = specs(replace(BUCKET, transform="void"), replace(DAY, field_id=UNASSIGNED))
    with pytest.raises(BadRequest, match=r"Spec does not use sequential IDs that are required in v1: \[1001, 1000\]"):
        apply(base, specs(DAY, BUCKET))
    open_fields = [replace(item, field_id=UNASSIGNED) for item in numbered.spec.fields]
    assert [item.field_id for item in apply(base, specs(*open_fields)).partition_specs[-1].fields] == [1000, 1001]


def nested(parent):
    inner = column(8, "inner", "int")
    return Schema(0, (column(7, "outer", StructType((inner,)) if parent == "struct" else ListType(9, StructType((inner,)), True)),))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        pytest.param(
            PartitionField(5, 1000, "x", "identity"), r"Cannot find source column for partition field: 1000: x: identity\(5\)", id="gone"
        ),
        pytest.param(PartitionField(1, 1000, "x", "day"), "Invalid source type long for transform: day", id="wrong-type"),
        pytest.param(PartitionField(1, 1000, "at", "bucket[2]"), "sourced from different field in schema: at", id="name-taken"),
        pytest.param(PartitionField(1, 7, "x", "identity"), "its id 7 is below 1000", id="low-id"),
    ],
)
def test_specs_that_do_not_fit_are_refused(field, message):
    """Java's words where it has some."""
    with pytest.raises(BadRequest, match=message):
        apply(table(), specs(field))


def test_a_partition_field_may_have_its_columns_name():
    """Only the name of another column is refused; a dropped source frees it."""
    assert len(apply(table(), specs(PartitionField(1, 1000, "id", "bucket[2]"))).partition_specs) == 2
    assert len(apply(table(), specs(PartitionField(9, 1000, "id", "void"))).partition_specs) == 2


def test_only_structs_may_hold_a_partitions_source():
    """A value in a list is many values."""
    inside = specs(PartitionField(8, 1000, "x", "identity"))
    assert len(apply(table(), AddSchema(nested("struct")), SetCurrentSchema(-1), inside).partition_specs) == 2
    with pytest.raises(BadRequest, match="Invalid partition field parent: outer, which is a list or map"):
        apply(table(), AddSchema(nested("list")), SetCurrentSchema(-1), inside)
    with pytest.raises(BadRequest, match="Cannot partition by non-primitive source field: outer"):
        apply(table(), AddSchema(nested("list")), SetCurrentSchema(-1), specs(PartitionField(7, 1000, "x", "identity")))


def test_a_field_id_means_one_thing():
    """Readers unite the tuples of all specs by field id; void stands for what was there."""
    base = apply(table(), specs(BUCKET))
    with pytest.raises(BadRequest, match=r"Conflicting partition fields: 1000: id_bucket: bucket\[4\]\(1\) and 1000: at_day: day\(2\)"):
        apply(base, specs(replace(DAY, field_id=1000)))
    assert len(apply(base, specs(replace(BUCKET, transform="void"), DAY)).partition_specs) == 3


def test_a_column_cannot_take_a_partition_fields_name():
    """Java could not read such a table any more, whichever spec it is and whenever the column comes."""
    base = apply(table(), specs(BUCKET))
    with pytest.raises(BadRequest, match="sourced from different field in schema: id_bucket"):
        apply(base, AddSchema(Schema(0, (ID, AT, column(3, "id_bucket")))), SetCurrentSchema(-1))


def test_the_default_spec_needs_its_columns():
    """A column goes only after the spec that splits by it is no longer the default."""
    base = apply(table(), specs(DAY), SetDefaultSpec(-1))
    dropped = (AddSchema(SCHEMAS[4]), SetCurrentSchema(-1))
    with pytest.raises(BadRequest, match=r"Cannot find source column for partition field: 1001: at_day: day\(2\)"):
        apply(base, *dropped)
    assert apply(base, *dropped, SetDefaultSpec(0)).default_spec_id == 0


@pytest.mark.parametrize(
    ("update", "message"),
    [
        pytest.param(SetDefaultSpec(-1), "Cannot set last added spec: no spec has been added", id="spec-none-added"),
        pytest.param(SetDefaultSpec(3), "Cannot set default partition spec to unknown spec: 3", id="spec-unknown"),
        pytest.param(RemoveSpecs((0, 1)), "Cannot remove the default partition spec", id="spec-default"),
        pytest.param(SetDefaultSortOrder(-1), "Cannot set last added sort order: no sort order has been added", id="order-none-added"),
        pytest.param(SetDefaultSortOrder(3), "Cannot set default sort order to unknown sort order: 3", id="order-unknown"),
        pytest.param(orders((5, "identity")), r"source column for sort field: identity\(5\) ASC NULLS FIRST", id="order-column-gone"),
        pytest.param(orders((1, "hour")), "Invalid source type long for transform: hour", id="order-wrong-type"),
    ],
)
def test_specs_and_orders_that_are_not_there_are_refused(update, message):
    """An id must be known when it is set."""
    with pytest.raises(BadRequest, match=message):
        apply(table(), update)


def test_a_spec_has_the_id_that_its_client_gives_it_until_the_request_is_done():
    """The client does not see spec 1, and takes its id; a spec that is shown is itself, and an id is nobody's before it is added."""
    hidden = apply(table(), specs(BUCKET))
    asked = [AddSpec(PartitionSpec(1, (DAY,))), SetDefaultSpec(0), SetDefaultSpec(1)]
    named = resolve_added_specs(asked, {0})
    assert named == [*asked[:2], SetDefaultSpec(LAST_ADDED)]
    found = apply(hidden, *named)
    assert found.default_spec_id == 2
    assert map_spec_ids(asked, {0}, found) == {1: 2}
    assert map_spec_ids(asked, {0, 1}, found) == {}
    assert map_spec_ids([AddSpec(PartitionSpec(1, (BUCKET,)))], {0}, found) == {}
    assert resolve_added_specs([SetDefaultSpec(1), *asked[:1]], {0}) == [SetDefaultSpec(1), *asked[:1]]


def test_the_default_may_be_a_spec_that_was_added_before_another():
    """Both have other ids here than their client gives them, and what it calls the last one is the last one still."""
    hidden, third = apply(table(), specs(BUCKET)), replace(BUCKET, name="id_other", transform="bucket[9]", field_id=1002)
    asked = [AddSpec(PartitionSpec(1, (DAY,))), AddSpec(PartitionSpec(2, (third,))), SetDefaultSpec(1)]
    found = apply(hidden, *resolve_added_specs(asked, {0}))
    assert [item.fields for item in found.partition_specs] == [(), (BUCKET,), (DAY,), (third,)]
    assert found.default_spec_id == 2
    assert map_spec_ids(resolve_added_specs(asked, {0}), {0}, found) == {1: 2, 2: 3}
    assert apply(hidden, *resolve_added_specs([*asked, SetDefaultSpec(LAST_ADDED)], {0})).default_spec_id == 3
    assert apply(hidden, *resolve_added_specs([*asked, SetDefaultSpec(2)], {0})).default_spec_id == 3


def test_specs_are_removed():
    """Ids that are not there are no error, and the number of a removed field is not given again."""
    base = apply(table(), specs(BUCKET), specs(DAY))
    found = apply(base, RemoveSpecs((1, 7)))
    assert [item.spec_id for item in found.partition_specs] == [0, 2]
    assert found.last_partition_id == 1001


def test_sort_orders_count_from_1():
    """No key is order 0; the same keys keep their id."""
    found = apply(
        table(), orders((1, "identity")), orders((2, "day")), AddSortOrder(SortOrder(1)), orders((1, "identity")), SetDefaultSortOrder(-1)
    )
    assert [item.order_id for item in found.sort_orders] == [0, 1, 2]
    assert found.sort_orders[0] == UNSORTED
    assert found.default_sort_order_id == 1


def test_keys_must_be_single_values():
    """A list has no place in an order."""
    with pytest.raises(BadRequest, match="Cannot sort by non-primitive source field: tags"):
        apply(table(), AddSchema(SCHEMAS[3]), SetCurrentSchema(-1), orders((4, "identity")))
