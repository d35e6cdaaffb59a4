"""Whose scans are planned, and with which keys."""

from collections.abc import Generator

import pytest

from duckicelake.backends.buckets import ROLE_ARN
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.vended import is_refused, open_root, open_vended, split
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

PATH = "namespaces/a/tables/t"
VENDED = {"X_Iceberg_Access_Delegation": "vended-credentials"}


@pytest.fixture(scope="module")
def vending(stack: SharedStack) -> Generator[Guarded]:
    """A guarded server that vends keys, for tests that leave its tables as they are."""
    with make_lake(stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as running:
        yield running
