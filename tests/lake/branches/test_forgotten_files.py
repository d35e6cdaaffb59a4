"""Orphan scans of a branch after a merge or reset: the files that other members read lie in its DATA_PATH still."""

from contextlib import closing

import psycopg
import pytest

from duckicelake.lake.branches import delete
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.reset import reset_branch
from tests.lake.branches.repository import maintain, make_branch, read_rows
from tests.lake.branches.test_lifecycle import kill_at, list_named, list_objects
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but

SCAN = "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)"
FILLED = [(number,) for number in range(70)]


@pytest.mark.parametrize("step", long_but(["reset", "merge"], "merge"))
@pytest.mark.parametrize("is_tag", long_but([False, True], True), ids=["branch", "tag"])
def test_a_merged_file_stays_that_the_lake_replaced_and_another_member_reads(lake: FreshLake, step: str, *, is_tag: bool) -> None:
    """The lake's own row of the file is gone by then, and the branch shows the lake's newest snapshot."""
    dev = _make_filled(lake)
    _merge(lake)
    old = make_branch(lake, BranchRequest("old", is_tag=is_tag))
    maintain(lake)
    if step == "merge":
        lake_rows = [*FILLED, *((number,) for number in range(500, 530))]
        _run(dev, "INSERT INTO t FROM range(500, 530)")
        _merge(lake)
    else:
        lake_rows = FILLED
        reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
    _run(dev, SCAN)
    assert read_rows(old, "t") == FILLED
    assert read_rows(dev, "t") == read_rows(lake, "t") == lake_rows


@pytest.mark.whole
def test_a_file_stays_that_the_branch_of_a_deleted_branch_reads(lake: FreshLake) -> None:
    """It is found through the grandchild's own rows, and goes when the grandchild has gone."""
    dev = _make_filled(lake)
    make_branch(lake, BranchRequest("child", "dev"))
    grand = make_branch(lake, BranchRequest("grand", "child"))
    delete_branch(lake.psycopg(), lake.metadata_schema, "child")
    reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
    _run(dev, SCAN)
    assert read_rows(grand, "t") == FILLED
    _run(dev, "INSERT INTO t FROM range(900, 930)")
    _merge(lake)
    _run(dev, SCAN)
    assert read_rows(grand, "t") == FILLED
    delete_branch(lake.psycopg(), lake.metadata_schema, "grand")
    maintain(lake)
    named = list_named(lake, "t") | list_named(dev, "t")
    assert {path for path in list_objects(lake) - named if path.startswith(dev.data_path)} == set()
    assert len(read_rows(dev, "t")) == 70


@pytest.mark.whole
@pytest.mark.parametrize("step", long_but([None, "drop_deleted+", "_release", "_release+"], None, "_release+"))
def test_what_is_left_after_a_collection_is_what_is_reached(lake: FreshLake, step: str | None) -> None:
    """With branches that were merged and reset, and after they are deleted; also if a collection was killed meanwhile."""
    _run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    _run(lake, "CREATE TABLE u AS SELECT range AS id FROM range(40)")
    members = {"lake": lake} | {name: make_branch(lake, name) for name in ("dev", "other")}
    for number, side in enumerate(members.values()):
        _run(side, f"INSERT INTO t FROM range({100 * number + 100}, {100 * number + 130})")
    _run(members["other"], "CREATE TABLE made AS SELECT range AS id FROM range(25)")
    for side in (lake, members["dev"]):
        _run(side, "DELETE FROM u WHERE id < 15")
        maintain(side)
    _run(lake, "DROP TABLE u")
    reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("other"))
    rows = {name: read_rows(side, "t") for name, side in members.items()}
    if step is not None:
        kill_at(lake, "gc", step)
    _collect(lake, members)
    assert list_objects(lake) == _list_reached(members)
    assert {name: read_rows(side, "t") for name, side in members.items()} == rows
    for name in ("dev", "other"):
        members.pop(name)
        assert delete_branch(lake.psycopg(), lake.metadata_schema, name)
        _collect(lake, members)
        assert list_objects(lake) == _list_reached(members)
    assert read_rows(lake, "t") == rows["lake"]


def test_a_collection_passes_over_a_branch_that_is_deleted_meanwhile(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another server, after the branches were listed; the later members are done, too."""
    _, other = make_branch(lake, "dev"), make_branch(lake, "other")
    release, done = delete._release, list[str]()  # pyright: ignore[reportPrivateUsage]  the step at which the other server comes

    def come_between(conn: psycopg.Connection, member: str) -> int:
        if member == lake.metadata_schema:
            assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
        count = release(conn, member)
        done.append(member)
        return count

    monkeypatch.setattr(delete, "_release", come_between)
    collect_garbage(lake.psycopg(), lake.metadata_schema)
    assert done == [lake.metadata_schema, other.metadata_schema]
    monkeypatch.undo()
    conn = lake.psycopg()
    conn.execute(f'DROP VIEW "{other.metadata_schema}".ducklake_delete_file CASCADE'.encode())
    with pytest.raises(psycopg.errors.UndefinedTable):
        collect_garbage(conn, lake.metadata_schema)


def _collect(lake: FreshLake, members: dict[str, FreshLake]) -> None:
    for side in members.values():
        maintain(side)
    collect_garbage(lake.psycopg(), lake.metadata_schema)
    for side in members.values():
        maintain(side)


def _list_reached(members: dict[str, FreshLake]) -> set[str]:
    found: set[str] = set()
    for side in members.values():
        names = side.psycopg().execute("SELECT table_name FROM ducklake_table WHERE end_snapshot IS NULL AND table_name <> ''").fetchall()
        found |= {path for (name,) in names for path in list_named(side, name)}
    return found


def _make_filled(lake: FreshLake) -> FreshLake:
    _run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    _run(dev, "INSERT INTO t FROM range(40, 70)")
    return dev


def _run(side: FreshLake, statement: str) -> None:
    with closing(side.duckdb()) as session:
        session.execute(statement)


def _merge(lake: FreshLake) -> None:
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
