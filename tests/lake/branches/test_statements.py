"""Every statement about a lake is one about a branch too, although its tables are views there."""

from pathlib import Path

import pytest

from duckicelake.commands.check import list_findings
from duckicelake.embedded.home import Home
from tests.lake.branches.repository import fill, maintain, make_branch
from tests.lake.test_queries import ONLY_NESTING, list_failures, list_statements, make_inlined
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake


def test_every_statement_prepares_on_a_branch(lake: FreshLake) -> None:
    """A statement that Postgres does not allow on a view fails here, by its name."""
    make_inlined(lake)
    conn = make_branch(lake, "dev").psycopg()
    statements = {name: text for name, text in list_statements().items() if not name.endswith(ONLY_NESTING)}
    assert list_failures(conn, statements) == []


@pytest.mark.whole
def test_nothing_is_wrong_with_a_lake_that_has_branches(lake: FreshLake, tmp_path: Path) -> None:
    """`check` finds no fault in the lake after maintenance of both sides, nor in the branch."""
    fill(lake.duckdb())
    dev = make_branch(lake, "dev")
    dev.duckdb().execute("DELETE FROM t WHERE id < 50")
    lake.duckdb().execute("DELETE FROM t WHERE id > 100")
    for side in (lake, dev):
        maintain(side)
    for side in (lake, dev):
        named = {"data_path": side.data_path, "iceberg_path": side.iceberg_path}
        [settings] = make_settings(side, **named).lakes()
        assert [found for found in list_findings(settings, Home(tmp_path)) if found.severity == "error"] == []
