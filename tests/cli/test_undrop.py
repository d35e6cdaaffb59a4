"""`duckicelake dropped list` and `duckicelake undrop`."""

from contextlib import closing
from pathlib import Path

import pytest

from duckicelake.errors import AlreadyExists, BadRequest, NoSuchTable
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.lake.branches.repository import read_rows
from tests.support.lakes import FreshLake

ODD = (["table:s.t%00"], ["namespace:s␟n"], ["table:s.t", "--as", "s.%0A"], ["table:s." + "t" * 5000])


def test_what_is_dropped_is_listed_and_comes_back(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that the list shows; what is refused is said, and the audit log names the command line."""
    monkeypatch.chdir(tmp_path)
    settings, home = settings_for(lake), ("--home", str(tmp_path / "home"))
    assert "Nothing is dropped" in ask(settings, "dropped", "list", *home)
    with closing(lake.duckdb()) as session:
        session.execute("CREATE SCHEMA s")
        session.execute('CREATE TABLE s."a.b" AS SELECT range AS i FROM range(20)')
        session.execute("CREATE TABLE s.t AS SELECT range AS i FROM range(30)")
        session.execute("DROP TABLE s.t")
        session.execute("DROP SCHEMA s CASCADE")
    lines = ask(settings, "dropped", "list", *home).splitlines()
    assert [line.split(":")[0].rsplit(" ", 1)[0] for line in lines] == ["table s.a%2Eb", "namespace s", "table s.t"]
    assert "lake snapshot" in lines[0]
    assert ask(settings, "undrop", "namespace:s", *home) == "namespace s is back, with its tables a.b\n"
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE s.t (i INTEGER)")
    with pytest.raises(AlreadyExists, match="Choose another name"):
        ask(settings, "undrop", "table:s.t", *home)
    assert ask(settings, "undrop", "table:s.t", "--as", "s.before", *home) == "table s.before is back\n"
    assert (len(read_rows(lake, 's."a.b"')), len(read_rows(lake, "s.before"))) == (20, 30)
    with pytest.raises(NoSuchTable, match="uuid"):
        ask(settings, "undrop", "table:s.t", "--uuid", "00000000-0000-4000-8000-000000000000", *home)
    for wrong in (["s.t"], ["table:t"], ["table:s..t"], ["table:s.t", "--uuid", "x"], ["view:s.v"], *ODD):
        with pytest.raises(BadRequest):
            ask(settings, "undrop", *wrong, *home)
    rows = lake.psycopg().execute("SELECT principal, operation, objects FROM iceberg_audit ORDER BY id").fetchall()
    assert rows == [("command line", "undrop", ["s"]), ("command line", "undrop", ["s.t", "s.before"])]
