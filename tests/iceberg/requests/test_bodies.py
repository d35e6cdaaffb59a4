import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.partition import UNPARTITIONED, UNSORTED, PartitionField, PartitionSpec, SortField, SortOrder
from duckicelake.iceberg.requests.bodies import (
    CommitTable,
    CommitView,
    CreateTable,
    CreateView,
    Identifier,
    parse_commit_table,
    parse_commit_view,
    parse_create_table,
    parse_create_view,
    parse_identifier,
    parse_transaction,
)
from duckicelake.iceberg.requests.requirements import AssertCreate, AssertTableUuid, AssertViewUuid
from duckicelake.iceberg.requests.updates import SetLocation
from duckicelake.iceberg.schema import format_schema
from duckicelake.iceberg.view_metadata import format_version
from tests.iceberg.support.updates import SCHEMAS, UUID
from tests.iceberg.support.views import version

TABLE = {"namespace": ["a", "b"], "name": "t"}
UPDATE = {"action": "set-location", "location": "s3://b/t"}
SCHEMA = format_schema(SCHEMAS[0])


def test_a_commit_is_read():
    """Requirements and updates in order; the identifier and the requirements may be left out."""
    whole = {"identifier": TABLE, "requirements": [{"type": "assert-table-uuid", "uuid": UUID}], "updates": [UPDATE]}
    assert parse_commit_table(whole) == CommitTable(Identifier(("a", "b"), "t"), (AssertTableUuid(UUID),), (SetLocation("s3://b/t"),))
    assert parse_commit_table({"updates": []}) == CommitTable(None, (), ())


def test_a_transaction_is_read():
    """Each change names its table."""
    changes = [{"identifier": TABLE, "requirements": [{"type": "assert-create"}], "updates": [UPDATE]}]
    changes.append({"identifier": {"namespace": ["a"], "name": "t"}, "updates": []})
    first, second = parse_transaction({"table-changes": changes})
    assert first == CommitTable(Identifier(("a", "b"), "t"), (AssertCreate(),), (SetLocation("s3://b/t"),))
    assert second == CommitTable(Identifier(("a",), "t"), (), ())


def test_a_change_of_a_view_is_read():
    """Views have requirements and updates of their own."""
    body = {"requirements": [{"type": "assert-view-uuid", "uuid": UUID}], "updates": [UPDATE]}
    assert parse_commit_view(body) == CommitView(None, (AssertViewUuid(UUID),), (SetLocation("s3://b/t"),))


def test_a_new_table_is_read():
    """Spec and order may be left out or null; a spec's fields need no ids."""
    assert parse_create_table({"name": "t", "schema": SCHEMA, "partition-spec": None}) == CreateTable(
        "t", SCHEMAS[0], UNPARTITIONED, UNSORTED
    )
    whole = {
        "name": "t",
        "location": "s3://b/t",
        "schema": SCHEMA,
        "partition-spec": {"spec-id": 3, "fields": [{"name": "d", "transform": "day", "source-id": 2}]},
        "write-order": {
            "order-id": 2,
            "fields": [{"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}],
        },
        "stage-create": True,
        "properties": {"a": "b"},
    }
    spec = PartitionSpec(3, (PartitionField(2, -1, "d", "day"),))
    order = SortOrder(2, (SortField(1, "identity", "asc", "nulls-first"),))
    assert parse_create_table(whole) == CreateTable("t", SCHEMAS[0], spec, order, "s3://b/t", {"a": "b"}, True)


def test_a_new_view_is_read():
    """A view needs a schema and a version."""
    body = {"name": "v", "schema": SCHEMA, "view-version": format_version(version()), "properties": {"a": "b"}}
    assert parse_create_view(body) == CreateView("v", SCHEMAS[0], version(), {"a": "b"}, None)


def with_change(**changes):
    return {"table-changes": [{"identifier": TABLE, "updates": []}, {"identifier": {**TABLE, "name": "u"}, "updates": [], **changes}]}


@pytest.mark.parametrize(
    ("parse", "body", "problem"),
    [
        pytest.param(parse_commit_table, [], "Cannot read request body: it is not a JSON object", id="no-object"),
        pytest.param(parse_commit_table, {}, "request body: 'updates' is missing", id="no-updates"),
        pytest.param(parse_commit_table, {"updates": [{}]}, r"Cannot read updates\[0\]: 'action'", id="bad-update"),
        pytest.param(parse_commit_table, {"updates": [], "requirements": {}}, "Cannot read requirements: ", id="bad-requirements"),
        pytest.param(parse_commit_table, {"updates": [], "identifier": "a.t"}, "Cannot read identifier: ", id="bad-identifier"),
        pytest.param(parse_transaction, {}, "'table-changes' is missing", id="no-changes"),
        pytest.param(parse_transaction, with_change(identifier=None), r"table-changes\[1\]: 'identifier' is missing", id="no-identifier"),
        pytest.param(parse_transaction, with_change(identifier=TABLE), r"table-changes\[1\]: its table is changed twice", id="twice"),
        pytest.param(parse_transaction, with_change(updates=[{}]), r"table-changes\[1\]\.updates\[0\]: 'action'", id="deep-update"),
        pytest.param(parse_transaction, with_change(requirements=[1]), r"table-changes\[1\]\.requirements\[0\]: ", id="deep-requirement"),
        pytest.param(parse_create_table, {"schema": SCHEMA}, "'name' is missing", id="no-name"),
        pytest.param(parse_create_table, {"name": "", "schema": SCHEMA}, "'name' is missing or malformed; send a name", id="empty-name"),
        pytest.param(parse_create_table, {"name": "t"}, "'schema' is missing", id="no-schema"),
        pytest.param(parse_create_table, {"name": "t", "schema": {"fields": 1}}, r"request body\.schema: ", id="bad-schema"),
        pytest.param(parse_create_table, {"name": "t", "schema": SCHEMA, "stage-create": 1}, "'stage-create'", id="number-for-flag"),
        pytest.param(parse_create_table, {"name": "t", "schema": SCHEMA, "location": ""}, "'location'", id="empty-location"),
        pytest.param(
            parse_create_table, {"name": "t", "schema": SCHEMA, "properties": {"a": 1}}, "'properties'", id="number-in-properties"
        ),
        pytest.param(parse_create_view, {"name": "v", "schema": SCHEMA}, "'view-version' is missing", id="no-version"),
        pytest.param(parse_commit_view, {"updates": [{"action": "add-spec"}]}, "cannot change a view", id="tables-update"),
    ],
)
def test_a_malformed_body_names_the_place(parse, body, problem):
    """The message leads to the value in the body."""
    with pytest.raises(BadRequest, match=problem):
        parse(body)


@pytest.mark.parametrize(
    "value", [{"namespace": [], "name": "t"}, {"namespace": ["a", ""], "name": "t"}, {"namespace": ["a"], "name": ""}, {}]
)
def test_a_name_has_a_namespace(value):
    """No level is empty, and neither is the name."""
    with pytest.raises(BadRequest, match="Cannot read source"):
        parse_identifier(value, "source")
