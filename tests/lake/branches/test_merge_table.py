"""The merge table on a real lake: one table for each cell, all merged as one lake snapshot."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import duckdb
import pytest
from pyiceberg.catalog.rest import RestCatalog

from duckicelake.errors import MergeConflicts
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.merge import MergeRequest, MergeResult, merge_branch, plan_merge
from duckicelake.lake.branches.merge_rules import OURS, Conflict, Resolution
from tests.lake.branches.merge_cells import CELLS, Cell
from tests.lake.branches.repository import Rows, maintain, make_branch, read_head
from tests.rest.branches.test_served import open_catalog
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import long_but

pytestmark = pytest.mark.whole


@dataclass
class Merged:
    """What a branch was merged into, the lake or its parent branch, and what both had before."""

    sides: "Sides"
    conflicts: dict[str, Conflict]
    refusal: str
    is_unchanged: bool
    before: dict[str, Rows]
    expected: dict[str, Rows]
    head: int
    result: MergeResult
    after: dict[str, dict[str, Rows | None]] = field(default_factory=dict[str, dict[str, Rows | None]])

    @property
    def lake(self) -> FreshLake:
        """What was merged into."""
        return self.sides.parent

    @property
    def dev(self) -> FreshLake:
        """The branch."""
        return self.sides.dev


@dataclass(frozen=True)
class Sides:
    """A branch, and what it was made of, in the repository of a lake."""

    repository: FreshLake
    parent: FreshLake
    dev: FreshLake
    name: str

    def merge(self, resolution: Resolution | None = None, *, is_rebase: bool = False) -> MergeResult:
        """Merge the branch, or what it was made of into it."""
        return merge_branch(self.repository.psycopg(), self.repository.metadata_schema, self.ask(resolution, is_rebase=is_rebase))

    def ask(self, resolution: Resolution | None = None, *, is_rebase: bool = False) -> MergeRequest:
        """Return the request."""
        name, into = (self.name, "dev") if is_rebase else ("dev", self.name)
        return MergeRequest(name, into, resolution=resolution or Resolution())


def run(session: duckdb.DuckDBPyConnection, cell: Cell, statements: tuple[str, ...]) -> None:
    """Run the statements of a cell."""
    for statement in statements:
        session.execute(statement.format(t=cell.name))


def set_up(session: duckdb.DuckDBPyConnection, *files: int) -> None:
    """Make files of the tables, with few lake snapshots, and with the second one inlined rows."""
    for first in files:
        session.execute("BEGIN")
        for cell in CELLS:
            if not first:
                session.execute(f"CREATE TABLE {cell.name} (id BIGINT, v VARCHAR)")
            session.execute(f"INSERT INTO {cell.name} SELECT i, 'o' FROM range({first}, {first + 20}) r(i)")
        session.execute("COMMIT")
    if 100 not in files:
        return
    session.execute("BEGIN")
    for cell in CELLS:
        session.execute(f"INSERT INTO {cell.name} VALUES (900, 'i')")
    session.execute("COMMIT")


def read(session: duckdb.DuckDBPyConnection, name: str) -> Rows:
    """The rows of a table, none if there is no such table."""
    try:
        return session.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
    except duckdb.CatalogException:
        return []


def dump(lake: FreshLake, dev: FreshLake) -> list[object]:
    """Every row of DuckLake's tables and of the notes of both sides."""
    conn, found = lake.psycopg(), list[object]()
    for side in (lake, dev):
        names = conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'", (f'"{side.metadata_schema}"',)
        )
        for (name,) in names.fetchall():
            rows = conn.execute(f'SELECT * FROM "{side.metadata_schema}"."{name}"'.encode()).fetchall()
            found.append((side.metadata_schema, name, sorted(map(repr, rows))))
    return sorted(map(repr, found))


def three_way(base: Rows, main: Rows, branch: Rows) -> Rows:
    """The lake's rows without those that the branch deleted, with those that it added."""
    counted = Counter(main) - (Counter(base) - Counter(branch)) + (Counter(branch) - Counter(base))
    return sorted(counted.elements(), key=repr)


def expect(session: duckdb.DuckDBPyConnection, cell: Cell, base: Rows, main: Rows, branch: Rows) -> Rows:
    """What a merge makes of a cell's table."""
    if cell.conflict is not None:
        return sorted(main, key=repr)
    if cell.now == "":
        return []
    if cell.rows is None:
        return three_way(base, main, branch)
    session.execute(f"CREATE OR REPLACE TEMP TABLE before_{cell.name} AS FROM {name_on_main(cell)}")
    return sorted(session.execute(cell.rows.format(before=f"before_{cell.name}")).fetchall(), key=repr)


def name_on_main(cell: Cell) -> str:
    """What the lake calls a cell's table before the merge."""
    renamed = [text for text in cell.main if " RENAME TO " in text]
    return renamed[-1].rpartition(" ")[2].format(t=cell.name) if renamed else cell.name


def name_on_branch(cell: Cell) -> str:
    """What the branch calls a cell's table before the merge."""
    renamed = [text for text in cell.branch if " RENAME TO " in text]
    return renamed[-1].rpartition(" ")[2].format(t=cell.name) if renamed else cell.name


def name_after(cell: Cell) -> str:
    """What a cell's table is called after the merge."""
    return name_on_main(cell) if cell.conflict or not cell.now else cell.now.format(t=cell.name)


PARENTS = long_but(["main", "parent"], "main")


@pytest.fixture(scope="module", params=PARENTS)
def merged(stack: SharedStack, request: pytest.FixtureRequest) -> Iterator[Merged]:
    """All cells: refused first, then merged without the tables that are in conflict."""
    with make_lake(stack) as lake:
        yield merge_all(*change_both(lake, request.param))


def change_both(lake: FreshLake, name: str) -> tuple[Sides, dict[str, Rows], dict[str, Rows]]:
    """Do what each cell says on both sides; return them, the lake's rows by then, and what a merge makes of both.

    The branch is made of the lake (`main`), or of a branch of it, which has written some of the files itself.
    """
    parent = lake
    set_up(lake.duckdb(), *((0, 100) if name == "main" else (0,)))
    if name != "main":
        parent = make_branch(lake, name)
        set_up(parent.duckdb(), 100)
    main = parent.duckdb()
    base = {cell.name: read(main, cell.name) for cell in CELLS}
    sides = Sides(lake, parent, make_branch(lake, BranchRequest("dev", name)), name)
    with closing(sides.dev.duckdb()) as session:
        for cell in CELLS:
            run(session, cell, cell.branch)
            run(main, cell, cell.main)
        branch = {cell.name: read(session, name_on_branch(cell)) for cell in CELLS}
    before = {cell.name: read(main, name_on_main(cell)) for cell in CELLS}
    return sides, before, {cell.name: expect(main, cell, base[cell.name], before[cell.name], branch[cell.name]) for cell in CELLS}


@pytest.mark.long
@pytest.mark.parametrize("parent", PARENTS)
def test_a_rebased_branch_shows_what_a_merge_makes_of_each_cell(stack: SharedStack, parent: str) -> None:
    """Without the conflicts, for which the lake's side is kept. The lake is as it was, and gets the same rows by a merge afterwards."""
    with make_lake(stack) as lake:
        sides, before, expected = change_both(lake, parent)
        with pytest.raises(MergeConflicts) as refused:
            sides.merge(is_rebase=True)
        assert {each.kind for each in refused.value.conflicts} == {cell.conflict for cell in CELLS if cell.conflict is not None}
        sides.merge(Resolution(OURS), is_rebase=True)
        with closing(sides.parent.duckdb(read_only=True)) as session:
            assert {cell.name: read(session, name_on_main(cell)) for cell in CELLS} == before
        for shown in ((sides.dev,), (sides.dev, sides.parent)):
            for side in shown:
                with closing(side.duckdb(read_only=True)) as session:
                    for cell in CELLS:
                        assert sorted(read(session, name_after(cell)), key=repr) == expected[cell.name], cell.name
            sides.merge()


def merge_all(sides: Sides, before: dict[str, Rows], expected: dict[str, Rows]) -> Merged:
    """Merge, and read everything again in new sessions."""
    head, dumped = read_head(sides.parent), dump(sides.parent, sides.dev)
    with pytest.raises(MergeConflicts) as refused:
        sides.merge()
    conflicts: dict[str, Conflict] = {}
    for each in refused.value.conflicts:
        conflicts.setdefault(re.sub(r"^main\.|_[bmx]$", "", each.name), each)
    is_unchanged = dump(sides.parent, sides.dev) == dumped
    result = sides.merge(Resolution(OURS))
    done = Merged(sides, conflicts, refused.value.message, is_unchanged, before, expected, head, result)
    look(done, "merged")
    return done


def look(done: Merged, when: str) -> None:
    """Read the tables of both sides in new sessions."""
    for side, word in ((done.lake, "main"), (done.dev, "branch")):
        with closing(side.duckdb(read_only=True)) as session:
            done.after[f"{word} {when}"] = {cell.name: sorted(read(session, name_after(cell)), key=repr) for cell in CELLS}


@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_each_cell_is_merged_or_refused(merged: Merged, cell: Cell) -> None:
    """Both sides have the expected rows afterwards; a conflict names the table, its kind, what each side did, and what to do."""
    found = merged.conflicts.get(cell.name)
    assert (None if found is None else found.kind) == cell.conflict
    assert found is None or (found.reason and found.remedy and found.branch)
    assert merged.after["main merged"][cell.name] == merged.expected[cell.name]
    assert merged.after["branch merged"][cell.name] == merged.expected[cell.name]


def test_a_refused_merge_changes_nothing(merged: Merged) -> None:
    """All rows of both metadata schemas are as they were, and the message names each object."""
    assert merged.is_unchanged
    assert merged.result.snapshot_id is not None
    assert "drop/change: The table is dropped on the branch" in merged.refusal and "and 31 more" in merged.refusal


def test_the_lake_before_the_merge_can_be_read(merged: Merged) -> None:
    """Time travel to the lake's last snapshot before the merge."""
    with closing(merged.lake.duckdb(read_only=True)) as session:
        for cell in CELLS:
            if cell.name == "promoted_column" or not merged.before[cell.name]:
                continue
            rows = session.execute(f"SELECT * FROM {name_on_main(cell)} AT (VERSION => {merged.head}) ORDER BY ALL").fetchall()
            assert rows == merged.before[cell.name], cell.name


def read_iceberg(catalog: RestCatalog, name: str, at: int | None = None) -> Rows:
    """The rows that PyIceberg reads, as of the newest snapshot up to a lake snapshot."""
    table = catalog.load_table(("main", name))
    snapshots = [each.snapshot_id for each in table.metadata.snapshots if at is not None and each.snapshot_id <= at]
    found = table.scan(snapshot_id=max(snapshots, default=None)).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.long
def test_iceberg_clients_read_the_same(merged: Merged) -> None:
    """PyIceberg on both sides, and on the lake as of the snapshot before the merge; the newest snapshot of a merged table is the merge."""
    repository, name = merged.sides.repository, merged.sides.name
    with serve(make_settings(repository)) as server:
        main, branch = (open_catalog(server, repository, each) for each in ("lake" if name == "main" else f"lake@{name}", "lake@dev"))
        for cell in CELLS:
            # A scan of a snapshot has the columns of that snapshot.
            if not merged.expected[cell.name] or cell.rows is not None or re.search(" (ADD|DROP) COLUMN ", " ".join(cell.main)):
                continue
            name, expected = name_after(cell), merged.expected[cell.name]
            assert read_iceberg(main, name) == expected, cell.name
            assert read_iceberg(branch, name) == expected, cell.name
            assert read_iceberg(main, name, merged.head) == sorted(merged.before[cell.name], key=repr), cell.name
            current = main.load_table(("main", name)).metadata.current_snapshot_id
            assert current == branch.load_table(("main", name)).metadata.current_snapshot_id, cell.name
            changes_rows = merged.result.tables.get(f"main.{name}", [])
            assert ("append" not in changes_rows and "delete" not in changes_rows) or current == merged.result.snapshot_id, cell.name


@pytest.mark.long
def test_both_sides_go_on_and_are_merged_again(merged: Merged) -> None:
    """Small inserts into every table, which are inlined in tables for the columns as they are by now; row ids stay unique."""
    for side in (merged.lake, merged.dev):
        with closing(side.duckdb()) as session:
            for cell in CELLS:
                if merged.expected[cell.name]:
                    session.execute(f"INSERT INTO {name_after(cell)} SELECT * FROM {name_after(cell)} ORDER BY ALL LIMIT 1")
    merged.sides.merge()
    for cell in CELLS:
        rows = merged.expected[cell.name]
        if rows:
            first = sorted(rows, key=lambda row: tuple((value is None, value) for value in row))[0]
            merged.expected[cell.name] = sorted([*rows, first, first], key=repr)
    look(merged, "again")
    assert merged.after["main again"] == merged.expected
    assert merged.after["branch again"] == merged.expected
    for side in (merged.lake, merged.dev):
        with closing(side.duckdb(read_only=True)) as session:
            for cell in CELLS:
                if merged.expected[cell.name]:
                    counts = session.execute(f"SELECT count(*), count(DISTINCT rowid) FROM {name_after(cell)}").fetchone()
                    assert counts is not None and counts[0] == counts[1], cell.name


@pytest.mark.long
def test_maintenance_of_both_sides_leaves_the_merged_rows(merged: Merged) -> None:
    """Files that the branch wrote are the lake's now: neither side's clean-up takes what the other reads. Then nothing is left to merge."""
    lake = merged.sides.repository
    planned = plan_merge(lake.psycopg(), lake.metadata_schema, merged.sides.ask())
    assert planned.has_nothing
    for side in (merged.dev, merged.lake):
        maintain(side)
    look(merged, "maintained")
    for cell in CELLS:
        assert merged.after["main maintained"][cell.name] == merged.expected[cell.name], cell.name
        assert merged.after["branch maintained"][cell.name] == merged.expected[cell.name], cell.name
