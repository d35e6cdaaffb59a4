"""`duckicelake branch`, and the other commands on a branch."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from duckicelake.cli import build_cli
from duckicelake.config import SettingsError
from duckicelake.errors import BadRequest, Unsupported
from duckicelake.lake.branches.create import BranchRequest
from tests.cli.test_commands import settings_for
from tests.lake.branches.repository import fill, make_branch, read_rows
from tests.support.lakes import FreshLake


def ask(settings: Mapping[str, str], *arguments: str) -> str:
    """What a command prints. Raises: the error that ends it."""
    done = CliRunner().invoke(build_cli(), list(arguments), env=dict(settings))
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_branch_is_made_listed_used_and_deleted(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command says what the next one needs; `duckdb` and `connect` take the branch as a warehouse."""
    monkeypatch.chdir(tmp_path)
    settings = settings_for(lake)
    home = ("--home", str(tmp_path / "home"))
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS id FROM range(20)")
    made = ask(settings, "branch", "create", "dev", *home)
    assert "warehouse lake@dev" in made and f"METADATA_SCHEMA '{lake.metadata_schema}@dev'" in made
    child = ask(settings, "branch", "create", "child", "--from", "dev", *home)
    assert "of dev" in child
    ask(settings, "branch", "create", "old", "--at", "0", *home)
    lines = ask(settings, "branch", "list", *home).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["dev", "child", "old"]
    assert "from dev" in lines[1] and "at snapshot 0" in lines[2]
    counted = ask(settings, "duckdb", "INSERT INTO t SELECT range FROM range(30); SELECT count(*) FROM t", "--warehouse", "lake@dev", *home)
    assert "50" in counted
    assert len(read_rows(lake, "t")) == 20
    assert "append main.t" in ask(settings, "branch", "log", "dev", *home)
    assert json.loads(ask(settings, "branch", "log", "main", "--limit", "1", "--format", "json", *home))[0]["operations"]
    assert "changed table main.t: 30 rows added, 1 files added" in ask(settings, "branch", "diff", "main", "dev", *home)
    compared = json.loads(ask(settings, "branch", "diff", "dev", "main", "--format", "json", *home))
    assert compared["tables"] == [{"change": "changed", "name": "main.t", "files-removed": 1, "rows-deleted": 30}]
    assert "are the same" in ask(settings, "branch", "diff", "main", "main", *home)
    shown = ask(settings, "connect", "--warehouse", "lake@dev", "--client", "pyiceberg", *home)
    assert "lake@dev" in shown
    with pytest.raises(SettingsError, match="branch list"):
        ask(settings, "connect", "--warehouse", "lake@nothing", *home)
    with pytest.raises(BadRequest, match="dev, child, old"):
        ask(settings, "init", "--remove", *home)
    with pytest.raises(Unsupported, match="child"):
        ask(settings, "branch", "reset", "dev", *home)
    assert "begins again at snapshot 1 of main" in ask(settings, "branch", "reset", "old", *home)
    assert "warehouse lake@new" in ask(settings, "branch", "rename", "old", "new", *home)
    for name in ("child", "dev", "new"):
        assert "is deleted" in ask(settings, "branch", "delete", name, *home)
    with pytest.raises(BadRequest, match="does not exist"):
        ask(settings, "branch", "delete", "dev", *home)
    assert "no branches" in ask(settings, "branch", "list", *home)
    ask(settings, "init", "--remove", *home)


@pytest.mark.whole
def test_connect_says_how_to_reach_a_branch(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--branch` is short for the warehouse of the branch, for each client; `main` is the lake."""
    monkeypatch.chdir(tmp_path)
    settings, home = settings_for(lake), ("--home", str(tmp_path / "home"))
    ask(settings, "branch", "create", "dev", *home)
    for branch, warehouse in (("dev", "lake@dev"), ("main", "lake")):
        for client in ("pyiceberg", "duckdb", "spark"):
            shown = ask(settings, "connect", "--branch", branch, "--client", client, *home)
            assert shown == ask(settings, "connect", "--warehouse", warehouse, "--client", client, *home)
            assert ("lake@dev" in shown) == (branch == "dev")
    facts = json.loads(ask(settings, "connect", "--branch", "dev", "--format", "json", *home).partition("{")[2].join(["{", ""]))
    assert (facts["warehouse"], facts["ducklake"]["metadata_schema"]) == ("lake@dev", f"{lake.metadata_schema}@dev")
    with pytest.raises(SettingsError, match="branch list"):
        ask(settings, "connect", "--branch", "nothing", *home)


def test_a_branch_is_merged(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan says what a merge would do; the merge is in the log under its message; then there is nothing to merge."""
    monkeypatch.chdir(tmp_path)
    settings, home = settings_for(lake), ("--home", str(tmp_path / "home"))
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS id FROM range(20)")
    with closing(make_branch(lake, "dev").duckdb()) as session:
        session.execute("INSERT INTO t SELECT range FROM range(30)")
    planned = ask(settings, "branch", "merge", "dev", "--dry-run", *home)
    assert planned.splitlines() == ["branch dev can be merged:", "  append main.t"]
    merged = json.loads(ask(settings, "branch", "merge", "dev", "--message", "nightly", "--format", "json", *home))
    assert merged["tables"] == {"main.t": ["append"]}
    assert "duckicelake: nightly" in ask(settings, "branch", "log", "main", "--limit", "1", *home)
    assert "nothing to merge" in ask(settings, "branch", "merge", "dev", *home)
    news = ("branch", "merge", "main", "--into", "dev", *home)
    assert "newest snapshot of main already" in ask(settings, *news)
    with closing(make_branch(lake, BranchRequest("child", "dev")).duckdb()) as session:
        session.execute("INSERT INTO t SELECT range FROM range(30)")
    up = ("branch", "merge", "child", "--into", "dev", *home)
    assert ask(settings, *up, "--dry-run").splitlines() == ["branch child can be merged into branch dev:", "  append main.t"]
    assert ask(settings, *up).startswith("branch child is merged into branch dev as snapshot ")
    assert "newest snapshot of dev already" in ask(settings, "branch", "merge", "dev", "--into", "child", *home)
    ask(settings, "branch", "delete", "child", *home)
    snapshot = str(merged["snapshot-id"])
    assert "can be reverted:" in ask(settings, "branch", "revert", "main", snapshot, "--dry-run", *home)
    assert json.loads(ask(settings, "branch", "revert", "main", snapshot, "--format", "json", *home))["tables"] == {"main.t": ["delete"]}
    assert len(read_rows(lake, "t")) == 20
    again = ask(settings, "branch", "revert", "main", str(int(snapshot) + 1), *home)
    assert f"snapshot {int(snapshot) + 1} of main is reverted by snapshot {int(snapshot) + 2}" in again
    with pytest.raises(BadRequest, match="no choice"):
        ask(settings, "branch", "merge", "dev", "--except", "main.t=mine", *home)
    assert len(read_rows(lake, "t")) == 50


@pytest.mark.parametrize("at", ["yesterday", "12.5"])
def test_an_unreadable_fork_point_is_refused(lake: FreshLake, tmp_path: Path, at: str) -> None:
    """A fork point is a number, a time or a tag."""
    with pytest.raises(BadRequest, match="--at"):
        ask(settings_for(lake), "branch", "create", "dev", "--at", at, "--home", str(tmp_path / "home"))


def compare_rows(lake: FreshLake, tmp_path: Path, limit: int, *form: str) -> str:
    """Return what the comparison of main with the branch prints."""
    return ask(settings_for(lake), "branch", "diff", "main", "dev", "--rows", str(limit), *form, "--home", str(tmp_path / "home"))


def test_rows_are_shown_whatever_they_are_stored_in(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, deletes of some rows of a file, inlined rows and deletes, made, dropped and replaced tables; compacted rows are the same.

    Inlined rows that both sides have are not shown, nor rows of files if only one side has a column that hides the names of files.
    """
    monkeypatch.chdir(tmp_path)
    with closing(lake.duckdb()) as main:
        fill(main)
        main.execute("CREATE TABLE hiding (filename VARCHAR)")
        main.execute("CREATE TABLE compacted AS SELECT range AS i FROM range(50)")
        main.execute("INSERT INTO compacted FROM range(50, 90)")
        for name in ("one_more", "one_less"):
            main.execute(f"CREATE TABLE {name} (id INTEGER)")
            main.execute(f"INSERT INTO {name} VALUES (1), (2)")
        main.execute("CREATE TABLE called AS SELECT i AS id, i::VARCHAR AS filename FROM range(40) r(i)")
        dev = make_branch(lake, "dev")
        # as many deletes of one file on both sides
        main.execute("DELETE FROM t WHERE id = 3")
    with closing(dev.duckdb()) as session:
        for statement in (
            "DELETE FROM t WHERE id IN (7, 900)",
            "INSERT INTO t SELECT i, 'x' FROM range(1000, 1030) r(i)",
            "INSERT INTO t VALUES (2000, 'inlined')",
            "INSERT INTO s.parts VALUES (9, 9), (9, 9)",
            "UPDATE s.parts SET n = n + 1000 WHERE n = 4",
            "CALL ducklake_merge_adjacent_files('lake', 'compacted')",
            "CREATE TABLE made AS SELECT 1.50::DECIMAL(9, 2) AS d, 'inf'::DOUBLE AS f, DATE '2026-01-02' AS day, {'a': [NULL, 0.5]} AS n",
            "DROP TABLE empty",
            "INSERT INTO hiding VALUES ('x')",
            "INSERT INTO one_more VALUES (3)",
            "DELETE FROM one_less WHERE id = 2",
            "ALTER TABLE called RENAME COLUMN filename TO file",
            "INSERT INTO called SELECT i, 'x' FROM range(40, 80) r(i)",
        ):
            session.execute(statement)
    found: dict[str, Any] = {
        each["name"]: each.get("rows") for each in json.loads(compare_rows(lake, tmp_path, 3, "--format", "json"))["tables"]
    }
    t = found["main.t"]
    assert t["added"] == [{"id": 3, "v": "m"}, *({"id": each, "v": "x"} for each in (1000, 1001))] and t["more-added"]
    assert t["deleted"] == [{"id": 7, "v": "m"}, {"id": 900, "v": "i"}] and not t["more-deleted"]
    assert found["s.parts"]["added"] == [{"k": 1, "n": 1004}, {"k": 9, "n": 9}, {"k": 9, "n": 9}]
    assert found["s.parts"]["deleted"] == [{"k": 1, "n": 4}] and not found["s.parts"]["more-added"]
    assert found["main.compacted"] == {"added": [], "deleted": [], "more-added": False, "more-deleted": False}
    assert found["main.made"]["added"] == [{"d": "1.50", "f": "inf", "day": "2026-01-02", "n": {"a": [None, 0.5]}}]
    assert found["main.hiding"]["added"] == [{"filename": "x"}]
    assert (found["main.one_more"]["added"], found["main.one_more"]["deleted"]) == ([{"id": 3}], [])
    assert (found["main.one_less"]["added"], found["main.one_less"]["deleted"]) == ([], [{"id": 2}])
    assert (found["main.called"]["added"][0], found["main.called"]["deleted"]) == ({"id": 40, "file": "x"}, [])


@pytest.mark.whole
def test_rows_are_compared_by_the_columns_that_both_sides_have(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renamed, promoted and added columns make no row another one; older rows have an added one's default."""
    monkeypatch.chdir(tmp_path)
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t (id INTEGER, v VARCHAR, gone INTEGER, n STRUCT(a INTEGER))")
        for first in (0, 20):
            main.execute(f"INSERT INTO t SELECT i, 'v', -i, {{'a': i}} FROM range({first}, {first + 20}) r(i)")
        dev = make_branch(lake, "dev")
        main.execute("ALTER TABLE t ADD COLUMN mine VARCHAR DEFAULT 'm'")
        main.execute("UPDATE t SET mine = 'changed' WHERE id = 19")
    with closing(dev.duckdb()) as session:
        for statement in (
            "ALTER TABLE t ALTER COLUMN id TYPE BIGINT",
            "ALTER TABLE t RENAME COLUMN v TO w",
            "ALTER TABLE t DROP COLUMN gone",
            "ALTER TABLE t ADD COLUMN extra INTEGER DEFAULT 7",
            "ALTER TABLE t RENAME TO u",
            "CALL ducklake_merge_adjacent_files('lake', 'u')",
            "UPDATE u SET extra = 8 WHERE id = 1",
            "UPDATE u SET w = 'new' WHERE id = 2",
        ):
            session.execute(statement)
    lines = compare_rows(lake, tmp_path, 2).splitlines()
    rows = [(line[4], json.loads(line[6:])) for line in lines if line.startswith(("    + ", "    - "))]
    assert rows == [
        ("-", {"id": 1, "v": "v", "n": {"a": 1}, "mine": "m"}),
        ("-", {"id": 2, "v": "v", "n": {"a": 2}, "mine": "m"}),
        ("+", {"id": 1, "w": "v", "n": {"a": 1}, "extra": 8}),
        ("+", {"id": 2, "w": "new", "n": {"a": 2}, "extra": 7}),
    ]
    # Of the third, only the column has changed that the branch does not have.
    assert lines[-1] == "    more rows were deleted and added: a greater --rows shows them"


@pytest.mark.whole
def test_rows_are_those_of_the_table_that_is_named(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with dots do not make two tables one; of what DuckDB cannot compare, the message does not say that it may be tried again."""
    monkeypatch.chdir(tmp_path)
    with closing(lake.duckdb()) as main:
        for statement in ('CREATE SCHEMA "a.b"', "CREATE SCHEMA a", 'CREATE TABLE "a.b".c (x INTEGER)', 'CREATE TABLE a."b.d" (y INTEGER)'):
            main.execute(statement)
        dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        for statement in (
            'CREATE TABLE a."b.c" AS SELECT 1 AS z',
            'INSERT INTO "a.b".c VALUES (2)',
            'DROP TABLE a."b.d"',
            'CREATE TABLE "a.b".d AS SELECT 3 AS w',
        ):
            session.execute(statement)
    found = json.loads(compare_rows(lake, tmp_path, 1, "--format", "json"))["tables"]
    assert [(each["change"], each["name"], each.get("rows", {}).get("added")) for each in found] == [
        ("changed", "a.b.c", [{"x": 2}]),
        ("made", "a.b.c", [{"z": 1}]),
        ("dropped", "a.b.d", None),
        ("made", "a.b.d", [{"w": 3}]),
    ]
    for side, column_type, value in ((lake, "DATE", "2026-01-02"), (dev, "INTEGER", "7")):
        with closing(side.duckdb()) as session:
            session.execute(f'ALTER TABLE "a.b".c ADD COLUMN mine {column_type}')
            session.execute('INSERT INTO "a.b".c (x, mine) VALUES (4, $1)', [value])
    with pytest.raises(Unsupported, match=r"a\.b\.c could not be compared: Conversion Error") as refused:
        compare_rows(lake, tmp_path, 1)
    assert "again" not in str(refused.value)
