"""Histories of merges: a lake and its branches, which are merged, rebased, reset, reverted, tagged and deleted between changes.

What a client of the lake (`clients.py`) or a commit of PyIceberg makes of a member is read in a new session. What an operation on branches
must make of it is computed from these rows: a merge takes from the rows of what it is merged into those that the branch deleted, and adds
those that it added. Branches are merged with the lake, and with the branch they were made of.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import psycopg
import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError

from duckicelake.errors import BadRequest, MergeConflicts, NotFound, Unsupported
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.merge import MergeRequest, MergeResult, merge_branch
from duckicelake.lake.branches.merge_rules import CANCEL, OURS, Resolution
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.branches.revert import RevertRequest, revert_snapshot
from tests.differential.members.clients import CHANGES, LakeClient, State, Table, count_rows
from tests.lake.branches.repository import as_lake
from tests.rest.branches.test_served import open_catalog
from tests.rest.serving import Server
from tests.support.lakes import FreshLake

MAIN, MOST = "main", 5
LIKELY = ("append", "append", "insert", "delete", "delete few", "update", "merge", "merge", "rebase", "rebase", "take mine")
OF_BRANCHES = ("up", "up", "down", "down", "fork branch")
KINDS = (*LIKELY, *OF_BRANCHES, *CHANGES, "iceberg append", "iceberg delete", "fork", "fork", "tag", "reset", "revert", "remove", "gc")


class Event(NamedTuple):
    """What is done; the numbers choose a member, a table and a snapshot among those that there are."""

    kind: str
    member: int
    other: int


def draw_events() -> st.SearchStrategy[list[Event]]:
    """Some twenty events."""
    numbers = st.integers(0, 11)
    return st.lists(st.builds(Event, st.sampled_from(KINDS), numbers, numbers), min_size=8, max_size=24)


@dataclass(slots=True)
class Member:
    """A member by its name: what it showed after each of its snapshots, and the lake's tables at its fork point.

    `parent`: the name of what it was made of, or has been merged with since; `parent_base`: the tables that this had then.
    """

    name: str
    lake: FreshLake
    catalog: RestCatalog
    base: State
    parent: str
    parent_base: State
    shown: dict[int, State] = field(default_factory=dict[int, State])
    is_tag: bool = False

    @property
    def now(self) -> State:
        """What it shows."""
        return self.shown[max(self.shown)]


@dataclass(slots=True)
class Counts:
    """How many operations on branches were done, and how many were refused."""

    done: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])


class Repository:
    """A served lake with its branches, on which events are played."""

    def __init__(self, lake: FreshLake, server: Server, client: LakeClient, counts: Counts) -> None:
        self._lake, self._server, self._client, self._counts = lake, server, client, counts
        self._conn: psycopg.Connection = lake.psycopg()
        self._number = 0
        self.members = {MAIN: Member(MAIN, lake, open_catalog(server, lake, "lake"), {}, MAIN, {})}
        self._run(self.members[MAIN], "create", 0)
        self._fork("b0", MAIN, is_tag=False)

    def play(self, event: Event) -> None:
        """Play an event, if there is what it is about."""
        self._number += 1
        members = [each for each in self.members.values() if not each.is_tag]
        member = members[event.member % len(members)]
        branches = [each for each in members if each.name != MAIN]
        branch = branches[event.other % len(branches)] if branches else None
        special: Mapping[str, Callable[[Member], None]] = {
            "merge": lambda chosen: self._merge(chosen, MergeRequest(chosen.name)),
            "take mine": lambda chosen: self._merge(chosen, MergeRequest(chosen.name, resolution=Resolution(OURS))),
            "rebase": lambda chosen: self._merge(
                chosen, MergeRequest(MAIN, chosen.name, resolution=Resolution((CANCEL, OURS)[event.member % 2]))
            ),
            "up": lambda chosen: self._merge_with_parent(chosen, event, is_rebase=False),
            "down": lambda chosen: self._merge_with_parent(chosen, event, is_rebase=True),
            "fork branch": lambda chosen: self._make("fork", chosen.name),
            "reset": self._reset,
            "remove": self._remove,
        }
        if event.kind in special:
            if branch is not None:
                special[event.kind](branch)
        elif event.kind == "gc":
            collect_garbage(self._conn, self._lake.metadata_schema)
        elif event.kind in ("fork", "tag"):
            self._make(event.kind, member.name)
        elif event.kind == "revert":
            self._revert(member, event.other)
        else:
            self._run(member, event.kind, event.other)

    def _read(self, member: Member) -> None:
        """Note what a new session sees."""
        head, member.shown[head] = self._client.read(member.lake)

    def _run(self, member: Member, kind: str, other: int) -> None:
        tables = sorted(member.now.values(), key=lambda table: table.name) if member.shown else []
        if not tables and kind != "create":
            return
        table = tables[other % len(tables)] if tables else Table("", Counter())
        if kind.startswith("iceberg"):
            change_by_iceberg(member.catalog, kind, table.name, self._number)
        else:
            self._client.change(member.lake, kind, table, self._number)
        before = member.now if member.shown else None
        self._read(member)
        assert kind not in ("flush", "compact", "rewrite", "clean", "maintain") or member.now == before, kind

    def _make(self, kind: str, parent: str) -> None:
        if len(self.members) <= MOST:
            self._fork(f"{kind[0]}{self._number}", parent, is_tag=kind == "tag")

    def _fork(self, name: str, parent: str, *, is_tag: bool) -> None:
        source = self.members[parent]
        made = create_branch(self._conn, self._lake.metadata_schema, BranchRequest(name, parent, is_tag=is_tag))
        base = source.now if parent == MAIN else source.base
        catalog = open_catalog(self._server, self._lake, f"lake@{name}")
        self.members[name] = Member(name, as_lake(self._lake, made), catalog, base, parent, source.now, dict(source.shown), is_tag)
        self._read(self.members[name])
        assert self.members[name].now == source.now

    def _try(self, kind: str, touched: Sequence[Member], apply: Callable[[], object]) -> object:
        """Return what an operation returns, or None if it is refused, which must change nothing."""
        before = {each.name: each.now for each in touched}
        try:
            result = apply()
        except (MergeConflicts, Unsupported, BadRequest, NotFound) as error:
            self._counts.refused[f"{kind}: {', '.join(sorted(each.kind for each in getattr(error, 'conflicts', ()))) or error}"] += 1
            for each in touched:
                self._read(each)
                assert each.now == before[each.name], f"{kind} of {each.name} was refused"
            return None
        self._counts.done[kind] += 1
        return result

    def _merge(self, branch: Member, request: MergeRequest) -> None:
        main, kind = self.members[MAIN], "rebase" if request.name == MAIN else "merge"
        result = self._try(kind, (main, branch), lambda: merge_branch(self._conn, self._lake.metadata_schema, request))
        if not isinstance(result, MergeResult) or result.snapshot_id is None:
            return
        expected = merge_states(branch.base, main.now, branch.now, name_left_out(result))
        before = main.now
        self._read(main)
        assert main.now == (before if kind == "rebase" else expected), kind
        self._follow(branch, expected)

    def _merge_with_parent(self, branch: Member, event: Event, *, is_rebase: bool) -> None:
        """Merge a branch into the branch that it was made of, or that one into it; make one first if there is none."""
        if branch.parent == MAIN:
            made = [each for each in self.members.values() if each.parent == branch.name and not each.is_tag]
            if not made:
                self._make("fork", branch.name)
                return
            branch = made[0]
        parent, kind = self.members.get(branch.parent), "down" if is_rebase else "up"
        if parent is None:
            return
        names = (parent.name, branch.name) if is_rebase else (branch.name, parent.name)
        request = MergeRequest(*names, resolution=Resolution((CANCEL, OURS)[event.member % 2]))
        main, before = self.members[MAIN].now, parent.now
        result = self._try(kind, (parent, branch), lambda: merge_branch(self._conn, self._lake.metadata_schema, request))
        if not isinstance(result, MergeResult) or result.snapshot_id is None:
            return
        expected = merge_states(branch.parent_base, parent.now, branch.now, name_left_out(result))
        for each in (parent, self.members[MAIN]):
            self._read(each)
        assert (self.members[MAIN].now, parent.now) == (main, before if is_rebase else expected), kind
        self._follow(branch, expected, parent)

    def _follow(self, branch: Member, expected: State, parent: Member | None = None) -> None:
        """Note what a branch shows that goes on from the lake, or from its parent branch."""
        of = parent or self.members[MAIN]
        branch.base = of.now if parent is None else parent.base
        branch.parent, branch.parent_base, branch.shown = of.name, of.now, dict(of.shown)
        self._client.forget(branch.lake)
        self._read(branch)
        assert branch.now == expected, branch.name

    def _reset(self, branch: Member) -> None:
        if self._try("reset", (branch,), lambda: reset_branch(self._conn, self._lake.metadata_schema, branch.name)) is not None:
            self._follow(branch, self.members[MAIN].now)

    def _remove(self, branch: Member) -> None:
        assert delete_branch(self._conn, self._lake.metadata_schema, branch.name)
        del self.members[branch.name]

    def _revert(self, member: Member, other: int) -> None:
        """Revert one of the last snapshots, before and after which the member was read."""
        pairs = [
            (before, after) for before, after in zip(sorted(member.shown), sorted(member.shown)[1:], strict=False) if after == before + 1
        ]
        pairs = [(before, after) for before, after in pairs[-4:] if member.shown[before] != member.shown[after]]
        if not pairs:
            return
        before, after = pairs[other % len(pairs)]
        request = RevertRequest(after, member.name)
        if self._try("revert", (member,), lambda: revert_snapshot(self._conn, self._lake.metadata_schema, request)) is not None:
            expected = merge_states(member.shown[after], member.now, member.shown[before], set())
            self._read(member)
            assert member.now == expected, f"revert of {after} on {member.name}"

    def prove(self) -> None:
        """Fail unless the client and PyIceberg show of each member what it showed, at each snapshot that it has."""
        for member in self.members.values():
            try:
                left, doubled = self._client.prove(member.lake, member.shown)
            except AssertionError as error:
                error.add_note(f"member: {member.name}")
                raise
            self._prove_iceberg(member, left, doubled)

    def _prove_iceberg(self, member: Member, left: set[int], doubled: set[str]) -> None:
        for uuid, table in member.now.items():
            published = member.catalog.load_table(("main", table.name))
            assert str(published.metadata.table_uuid) == uuid
            ids = [each.snapshot_id for each in published.metadata.snapshots]
            for at in sorted(left & set(member.shown)):
                snapshot_id = max((each for each in ids if each <= at), default=None)
                if uuid in member.shown[at] and snapshot_id is not None and snapshot_id >= min(ids) and table.name not in doubled:
                    rows = count_rows(published.scan(snapshot_id=snapshot_id).to_arrow().to_pylist())
                    assert rows == member.shown[at][uuid].rows, f"PyIceberg: {member.name} {table.name} {at}"


def name_left_out(result: MergeResult) -> set[str]:
    """The tables of which a merge has kept the side of what it was merged into."""
    return {each.name.removeprefix("main.") for each in result.left_out}


def merge_states(base: State, main: State, branch: State, left_out: set[str]) -> State:
    """What a merge makes of three states; of the tables that are left out, by their names, the lake's side is kept."""
    merged: dict[str, Table] = {}
    for uuid in {*base, *main, *branch}:
        old, mine, theirs = base.get(uuid), main.get(uuid), branch.get(uuid)
        if left_out & {table.name for table in (mine, theirs) if table is not None}:
            theirs = old if old is not None or mine is not None else None
            if old is None or mine is None:
                merged |= {} if mine is None else {uuid: mine}
                continue
        if old is None:
            found = mine or theirs
            assert found is not None
            merged[uuid] = found
        elif mine is not None and theirs is not None:
            name = theirs.name if theirs.name != old.name else mine.name
            merged[uuid] = Table(name, mine.rows - (old.rows - theirs.rows) + (theirs.rows - old.rows))
    return merged


def change_by_iceberg(catalog: RestCatalog, kind: str, name: str, number: int) -> None:
    """Append to a table, or delete from it, over REST."""
    try:
        table = catalog.load_table(("main", name))
    except NoSuchTableError as error:
        raise AssertionError(f"no table {name}") from error
    if kind == "iceberg delete":
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            # There may be nothing to delete.
            table.delete(f"id < {number}005 and id >= {number - 2}000")
    else:
        table.append(pa.table({"id": pa.array(range(number * 1000, number * 1000 + 15), pa.int64()), "v": [f"i{number}"] * 15}))


def prove_merges(lake: FreshLake, server: Server, events: Sequence[Event], client: LakeClient, counts: Counts) -> None:
    """Play events on a lake with a branch, and prove all members."""
    repository = Repository(lake, server, client, counts)
    for event in events:
        repository.play(event)
    repository.prove()
