"""A guarded server that vends keys, for clients that have an id and a secret and nothing else."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.principals import Guarded, guard
from tests.support.lakes import FreshLake


@contextmanager
def guard_rows(lake: FreshLake) -> Generator[Guarded]:
    """The server, with a table of several files and kinds of rows."""
    with guard(lake, sts_role_arn=ROLE_ARN) as running:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.rows AS SELECT range AS i, 'x' || range AS s FROM range(50000)")
        conn.execute("INSERT INTO a.rows VALUES (-1, 'inlined'); DELETE FROM a.rows WHERE i < 10 AND i >= 0")
        yield running


@pytest.fixture
def guarded(each_lake: FreshLake) -> Generator[Guarded]:
    """It on each kind of store."""
    with guard_rows(each_lake) as running:
        yield running
