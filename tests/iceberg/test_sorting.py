import pytest
from pyiceberg.table.sorting import SortOrder as OracleOrder

from duckicelake.errors import BadRequest
from duckicelake.iceberg.partition import UNSORTED, SortField, SortOrder, format_sort_order, parse_sort_order

ORDER = SortOrder(1, (SortField(1, "identity", "asc", "nulls-first"), SortField(2, "bucket[8]", "desc", "nulls-last")))
FIELD = {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}


def test_sort_orders_come_back_from_their_json():
    """parse_sort_order(format_sort_order(x)) = x, and PyIceberg reads the same."""
    assert parse_sort_order(format_sort_order(ORDER)) == ORDER
    assert parse_sort_order(format_sort_order(UNSORTED)) == UNSORTED
    theirs = OracleOrder.model_validate(format_sort_order(ORDER))
    assert parse_sort_order(theirs.model_dump(mode="json", by_alias=True)) == ORDER


def test_order_id_follows_from_the_fields_when_left_out():
    """Order 0 is the unsorted one; a new sorted one starts at 1."""
    assert parse_sort_order({"fields": []}) == UNSORTED
    assert parse_sort_order({"fields": [FIELD]}).order_id == 1


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(7, id="number"),
        pytest.param({"order-id": 1}, id="no-fields"),
        pytest.param({"order-id": 0, "fields": [FIELD]}, id="sorted-under-0"),
        pytest.param({"order-id": 1, "fields": [FIELD | {"direction": "up"}]}, id="direction"),
        pytest.param({"order-id": 1, "fields": [FIELD | {"null-order": "nulls-middle"}]}, id="null-order"),
        pytest.param({"order-id": 1, "fields": [FIELD | {"transform": "random"}]}, id="transform"),
        pytest.param({"order-id": 1, "fields": [FIELD | {"source-id": "1"}]}, id="source-id"),
    ],
)
def test_malformed_sort_orders_are_bad_requests(node):
    """A stranger's JSON never raises anything but BadRequest."""
    with pytest.raises(BadRequest):
        parse_sort_order(node)
