"""A guarded server that vends keys, for clients that have an id and a secret and nothing else."""

from collections.abc import Generator

import pytest

from duckicelake.backends.buckets import ROLE_ARN
from tests.rest.auth.principals import Guarded, guard
from tests.support.lakes import FreshLake


@pytest.fixture
def guarded(each_lake: FreshLake) -> Generator[Guarded]:
    """The server, with a table of several files and kinds of rows, on each kind of store."""
    lake = each_lake
    with guard(lake, sts_role_arn=ROLE_ARN) as running:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.rows AS SELECT range AS i, 'x' || range AS s FROM range(50000)")
        conn.execute("INSERT INTO a.rows VALUES (-1, 'inlined'); DELETE FROM a.rows WHERE i < 10 AND i >= 0")
        yield running
