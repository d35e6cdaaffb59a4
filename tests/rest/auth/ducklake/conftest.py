"""Fixtures: guarded servers that vend keys, so that DuckDB users get some too."""

from collections.abc import Generator

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack

SECRETS = (
    "CREATE TABLE b.payroll (salary_of_bob BIGINT DEFAULT 424242, note VARCHAR)",
    "COMMENT ON TABLE b.payroll IS 'what bob gets'",
    "BEGIN; CALL lake.set_commit_message('bob', 'pays salary_of_bob'); INSERT INTO b.payroll VALUES (133742, 'hush'); COMMIT",
    "CREATE TABLE b.filed AS SELECT 133742 + range AS salary_of_bob FROM range(100)",
)


@pytest.fixture(scope="package")
def shared(stack: SharedStack) -> Generator[Guarded]:
    """A server whose lake has rows in files, inlined rows and inlined deletes in `a`, and secrets in `b`; tests only add to it."""
    with make_lake(stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as running:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.rows AS SELECT range AS i, 'x' || range AS s FROM range(5000)")
        conn.execute("INSERT INTO a.rows VALUES (-1, 'inlined'); DELETE FROM a.rows WHERE i BETWEEN 3 AND 5")
        conn.execute("; ".join(SECRETS))
        yield running


@pytest.fixture
def managed(lake: FreshLake) -> Generator[Managed]:
    """A server of its own, with principals that its lake keeps."""
    with guard(lake, sts_role_arn=ROLE_ARN) as running:
        yield Managed(running)
