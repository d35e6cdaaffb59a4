"""Every statement about a lake is one about a branch too, although its tables are views there."""

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest
from psycopg import sql

from duckicelake.commands.check import list_findings
from duckicelake.embedded.home import Home
from duckicelake.lake.branches import create, layout, notes, spare
from duckicelake.lake.branches.registry import LAYOUT
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


RECORDED = (3, "cae888aeb38342d652a2b3155e48afdbd12ac404320a1ddb146074d9a7dfb9e8")


def test_other_statements_that_make_a_branch_give_its_layout_another_number() -> None:
    """Servers of both versions would serve branches that lack what one of them needs. Comments and docstrings do not matter.

    If branches that were made before stay right with the changed statements, record the digest anew under the same number.
    """
    texts = [
        value.as_string() if isinstance(value, sql.Composable) else repr(value)
        for module in (layout, create, notes, spare)
        for name, value in sorted(vars(module).items())
        if (isinstance(value, sql.Composable) and not name.startswith("SELECT_"))
        or name in ("COPIED", "VIEWED", "RIGHTS", "LARGE", "FILE_NOTES")
    ]
    texts.append(files(create.__package__ or "").joinpath("repository.sql").read_text())
    digest = hashlib.sha256()
    for text in texts:
        digest.update(re.sub(r"(?m)^ *--.*\n", "", text).encode())
    assert (LAYOUT, digest.hexdigest()) == RECORDED
