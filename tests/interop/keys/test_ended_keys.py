"""What PyIceberg does when its keys are over."""

import pytest
from pyiceberg.io import load_file_io

from tests.interop.keys.accounts import guard_with_dead_keys
from tests.interop.keys.test_pyiceberg import ROWS, open_catalog
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack


def test_pyiceberg_goes_on_with_keys_that_it_is_told_to_ask_for(stack: SharedStack, lake: FreshLake) -> None:
    """It asks for none by itself, whatever an answer says of refreshing; `load_credentials` gives newer ones for a loaded table."""
    with guard_with_dead_keys(stack, lake) as (guarded, given):
        catalog = open_catalog(guarded, "reader")
        table = catalog.load_table(ROWS)
        with pytest.raises(OSError):
            table.scan().to_arrow()
        assert given.living == 0
        table.io = load_file_io({**table.io.properties, **catalog.load_credentials(ROWS, table.location())}, table.location())
        assert table.scan().to_arrow().num_rows == 50_000
        assert given.living == 1
