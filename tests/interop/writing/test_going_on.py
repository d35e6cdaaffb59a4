"""The check that every suite of writers ends with sees what is wrong."""

import pytest

from tests.interop.writing.pair import Pair
from tests.support.going_on import check_going_on
from tests.support.tiers import long_after

NARROW = "UPDATE ducklake_table_column_stats SET max_value = '5'"
MISCOUNTED = "UPDATE ducklake_data_file SET record_count = record_count + 1"
MOVED = "UPDATE ducklake_data_file SET begin_snapshot = begin_snapshot + 1 WHERE data_file_id = 0"


@pytest.mark.parametrize(
    "damage", long_after(1, [pytest.param(NARROW, id="bounds"), pytest.param(MISCOUNTED, id="count"), pytest.param(MOVED, id="past")])
)
def test_a_damaged_table_is_found(pair: Pair, damage: str) -> None:
    """Wrong bounds, a wrong count and a wrong past make it fail."""
    pair.lake.execute("CREATE TABLE lake.ns.t (i BIGINT)")
    for start in (0, 20):
        pair.lake.execute(f"INSERT INTO lake.ns.t SELECT range FROM range({start}, {start + 20})")
    pair.rows()
    pair.served.lake.psycopg().execute(damage)  # pyright: ignore
    with pytest.raises(AssertionError):
        check_going_on(pair.served, ("ns", "t"))
