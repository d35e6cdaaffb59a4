"""A merge of a branch into its lake, or into the branch it was made of: one lake snapshot there, all or nothing, from which it goes on.

A merge of the lake (`main`) or of a parent branch into a branch is decided in the same way, and written into the branch: see `rebase`.

`catalog.repositories` and `commands.branches` call it. `plan_merge` takes no lock; REST calls it in a read transaction, a command in none.
`merge_locked` runs in the caller's transaction, for REST under the lake's lock already, takes the locks of both, and decides again unless
both are as they were planned.

The entries of `changes_made` for its lake snapshot make open transactions of DuckDB conflict where they must: an entry for an insert and
one for a delete together also conflict with inlined deletes, which neither of them does by itself.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest, LakeBusy, MergeConflicts, ServiceUnavailable, Unsupported
from duckicelake.lake.branches.changes import PLACEHOLDER, Changes, LiveObject, read_changes
from duckicelake.lake.branches.layout import (
    SELECT_INLINED,
    list_kinds,
)
from duckicelake.lake.branches.merge_notes import copy_merged_notes
from duckicelake.lake.branches.merge_rules import Conflict, Decision, MergePlan, Resolution, Side, decide
from duckicelake.lake.branches.merge_write import Head, MergeWriter, read_head
from duckicelake.lake.branches.rebase import copy_changes, drop_copy, merge_copy, restore_views
from duckicelake.lake.branches.refork import Restart, forget_rest, refork
from duckicelake.lake.branches.registry import MAIN, Branch, MergePoint, check_installed, get_branch, list_children, lock_branch, read_point
from duckicelake.lake.changes import NOTES_KIND, Change, format_changes, quote_names
from duckicelake.lake.install import LOCK_PAUSE_S, LOCK_TRIES, NEVER_IDLE, format_search_path

PROPERTIES = ("sort_info", "tag", "column_tag", "view_column_tag")


def list_tokens(changes: Changes, plan: MergePlan) -> list[Change]:
    """Return the entries for the lake snapshot of a merge, those of objects before those of rows."""
    noted = [Change(NOTES_KIND, str(table_id)) for table_id in sorted(plan.noted - _list_altered(Side(plan.versions)))]
    return list(dict.fromkeys([*_list_object_tokens(changes, plan), *noted, *_list_data_tokens(plan)]))


def _list_object_tokens(changes: Changes, plan: MergePlan) -> Iterator[Change]:
    side, names = Side(plan.versions), _Names(changes, plan)
    for schema_id in sorted(side.made("schema")):
        yield Change("created_schema", quote_names(*names.split(schema_id)))
    for kind, created in (("table", "created_table"), ("view", "created_view"), ("macro", "created_scalar_macro")):
        for object_id in sorted({*side.made(kind), *side.renamed(kind)}):
            yield Change(created, quote_names(*names.split(object_id)))
    for kind in ("table", "view", "schema"):
        for object_id in sorted(side.dropped(kind)):
            yield Change(f"dropped_{kind}", str(object_id))
    for object_id in sorted(side.dropped("macro")):
        yield Change("dropped_scalar_macro", str(object_id))
    for object_id in sorted(side.renamed("view")):
        yield Change("altered_view", str(object_id))
    for object_id in sorted(_list_altered(side) - plan.new_tables - plan.dropped_tables):
        known = names.branch.get(object_id) or names.main.get(object_id)
        if known is not None and known.kind in ("table", "view"):
            yield Change(f"altered_{known.kind}", str(object_id))


def _list_altered(side: Side) -> set[int]:
    return {*side.tables_of("column", "partition_info", *PROPERTIES), *side.renamed("table")}


def _list_data_tokens(plan: MergePlan) -> Iterator[Change]:
    for table_id, found in sorted(plan.files.items()):
        deletes = bool(found.removed or found.cut or found.ended_rows)
        inlines = bool(found.ended_rows or found.has_inlined_deletes)
        yield Change("inserted_into_table", str(table_id))
        if deletes:
            yield Change("deleted_from_table", str(table_id))
        if inlines:
            yield Change("inlined_delete", str(table_id))
        if found.new_inlined:
            yield Change("inlined_insert", str(table_id))


class _Names:
    """The live objects of both sides by id."""

    def __init__(self, changes: Changes, plan: MergePlan) -> None:
        self.branch = {each.object_id: each for each in changes.branch_objects}
        self.main = {each.object_id: each for each in changes.main_objects}
        self._schemas = plan.schemas

    def split(self, object_id: int) -> Sequence[str]:
        """Return the levels of the namespace, and the name, that an object has after the merge."""
        known: LiveObject = self.branch.get(object_id) or self.main[object_id]
        if known.schema_id in self.branch:
            return (*self.split(known.schema_id), known.name)
        schema_id = self._schemas.get(known.schema_id, known.schema_id)
        return (*self.split(schema_id), known.name) if schema_id in self.main else (known.name,)


def list_table_words(changes: Changes, plan: MergePlan) -> tuple[dict[str, list[str]], list[str]]:
    """Return words for what a merge applies: by table, and for namespaces, views and macros."""
    side, names = Side(plan.versions), _Names(changes, plan)
    words: dict[int, list[str]] = {}
    for made, word in (
        (plan.new_tables, "create"),
        (plan.dropped_tables, "drop"),
        (side.renamed("table"), "rename"),
        (side.tables_of("column") - plan.new_tables - plan.dropped_tables, "schema"),
        (side.tables_of("partition_info") - plan.new_tables - plan.dropped_tables, "partitioning"),
        (_list_altered(side) - side.tables_of("column", "partition_info") - side.renamed("table") - plan.new_tables, "properties"),
        (plan.noted, "definition"),
    ):
        for table_id in sorted(made):
            known = names.branch.get(table_id) or names.main.get(table_id)
            if known is not None and known.kind == "table":
                words.setdefault(table_id, []).append(word)
    for table_id, found in plan.files.items():
        each = words.setdefault(table_id, [])
        each += ["append"] if found.added_count or found.new_inlined else []
        each += ["delete"] if found.cut or found.ended_rows or found.removed else []
    tables = {".".join(names.split(table_id)): list(dict.fromkeys(found)) for table_id, found in sorted(words.items())}
    others = [
        f"{word} {'namespace' if kind == 'schema' else kind} {'.'.join(names.split(object_id))}"
        for kind in ("schema", "view", "macro")
        for word, ids in (("create", side.made(kind)), ("drop", side.dropped(kind)), ("change", side.renamed(kind)))
        for object_id in sorted(ids)
    ]
    return tables, others


MERGED_KEY = "merged_branch_"
"""In a setting of the lake, followed by a number: the ids of that branch's range are the lake's since."""
AUTO, FF, THREE_WAY = "auto", "ff", "three-way"
STRATEGIES = (AUTO, FF, THREE_WAY)
# DuckDB drops empty tables of inlined rows after a flush, without a snapshot.
VANISHED = "A table of inlined rows was dropped meanwhile; nothing was merged. Try again."


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """A branch to merge into the lake (`main`) or its parent branch, or one of these to merge into a branch that was made of it.

    `author`, `message`: of the lake snapshot; None: a message that names the branch.
    """

    name: str
    into: str = MAIN
    strategy: str = AUTO
    resolution: Resolution = field(default_factory=Resolution)
    author: str | None = None
    message: str | None = None

    @property
    def branches(self) -> Sequence[str]:
        """The names of the branches that the merge changes, or one branch if the other side is the lake."""
        return [name for name in (self.name, self.into) if name != MAIN]


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The effect of a merge, or of a planned one. `snapshot_id` None: nothing was written. `tables`: words for the changes, by table.

    `branch`: the branch that is merged, or that what it was made of is merged into. `name`, `into`: those of the request.
    """

    branch: str
    name: str
    into: str
    snapshot_id: int | None
    is_fast_forward: bool
    tables: Mapping[str, Sequence[str]]
    others: Sequence[str]
    left_out: Sequence[Conflict]
    overruled: Sequence[Conflict] = ()


@dataclass(frozen=True, slots=True)
class MergeSides:
    """The branch of a merge, and what it was made of: another branch, or the lake (None). `is_rebase`: that is merged into the branch."""

    branch: Branch
    parent: Branch | None
    is_rebase: bool

    @property
    def parent_name(self) -> str:
        """The name of what the branch was made of."""
        return MAIN if self.parent is None else self.parent.name

    @property
    def into(self) -> str:
        """The name of what is merged into."""
        return self.branch.name if self.is_rebase else self.parent_name

    @property
    def name(self) -> str:
        """The name of what is merged."""
        return self.parent_name if self.is_rebase else self.branch.name


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """A merge that was planned at a state of both sides."""

    sides: MergeSides
    point: MergePoint
    changes: Changes
    decision: Decision
    state: tuple[int, ...]

    @property
    def is_fast_forward(self) -> bool:
        """True if what is merged into has not changed since the fork point."""
        return self.changes.is_empty if self.sides.is_rebase else self.state[0] == self.point.fork_snapshot_id

    @property
    def has_nothing(self) -> bool:
        """True if there is nothing to write."""
        if self.sides.is_rebase:
            return self.state[0] == self.point.fork_snapshot_id
        return self.decision.plan.is_empty and not self.decision.left_out


SELECT_STATE = sql.SQL("""
SELECT (SELECT max(snapshot_id) FROM {p}.ducklake_snapshot), (SELECT max(snapshot_id) FROM {b}.ducklake_snapshot),
       (SELECT coalesce(max(id), 0) FROM {p}.iceberg_change), (SELECT coalesce(max(id), 0) FROM {b}.iceberg_change)
""")
# Rows, not lake snapshots: these expire, and a branch or tag without changes has some, too.
SELECT_NUMBERS = sql.SQL("""
SELECT begin_snapshot >> 32 FROM {t} WHERE begin_snapshot > {n} AND begin_snapshot < {placeholder}
 UNION SELECT end_snapshot >> 32 FROM {t} WHERE end_snapshot > {n}
""")
SELECT_NUMBERS_OF_INLINED = sql.SQL("""
SELECT {begin} >> 32 FROM {t} WHERE {begin} > {n} AND {begin} < {placeholder} UNION SELECT {end} >> 32 FROM {t} WHERE {end} > {n}
""")
SELECT_NUMBERS_OF_DELETES = sql.SQL("SELECT DISTINCT begin_snapshot >> 32 FROM {t} WHERE begin_snapshot > {n}")
SELECT_NUMBERS_OF_FILES = sql.SQL("""
SELECT data_file_id >> 32 FROM {b}.own_data_file WHERE data_file_id >= {nf} OR begin_snapshot > {n}
 UNION SELECT delete_file_id >> 32 FROM {b}.own_delete_file WHERE delete_file_id >= {nf} OR begin_snapshot > {n}
""")
SELECT_MERGED = sql.SQL("SELECT key FROM {p}.iceberg_setting WHERE starts_with(key, {prefix})")


def plan_merge(conn: psycopg.Connection, lake_schema: str, request: MergeRequest) -> PlannedMerge:
    """Return what a merge would do; nothing is locked or written.

    Raises: NoSuchRef: there is no such branch. BadRequest: this cannot be asked for. Unsupported: part of the branch was merged before,
            or another version made it
    """
    if request.strategy not in STRATEGIES:
        raise BadRequest(f"The strategy {request.strategy[:64]!r} is none of {', '.join(STRATEGIES)}.")
    conn.execute(format_search_path(lake_schema))
    sides = _get_sides(conn, lake_schema, request)
    branch = sides.branch
    for each in (branch, sides.parent):
        if each is not None:
            check_installed(conn, each)
    children = list_children(conn, branch)
    if children:
        raise Unsupported(
            f"Branches and tags were made of {branch.name!r}, which read files that it would forget by a merge: {', '.join(children)}. "
            f"Merge them into {MAIN!r}, or delete them first."
        )
    point = read_point(conn, lake_schema, branch, sides.parent)
    state = conn.execute(SELECT_STATE.format(**point.names)).fetchone()
    assert state is not None
    try:
        _check_numbers(conn, point, branch)
        changes = read_changes(conn, point)
    except psycopg.errors.UndefinedTable as error:
        raise LakeBusy(VANISHED) from error
    return PlannedMerge(sides, point, changes, decide(changes, request.resolution), tuple(state))


def _get_sides(conn: psycopg.Connection, lake_schema: str, request: MergeRequest) -> MergeSides:
    """Return the sides of a merge. Raises: NoSuchRef, BadRequest: these two are not merged with each other."""
    if request.into == MAIN:
        return MergeSides(get_branch(conn, request.name), None, False)
    into = get_branch(conn, request.into)
    if request.name == MAIN:
        if into.parent != lake_schema:
            raise Unsupported(
                f"{into.name!r} was made of another branch. The news of {MAIN!r} reach it through that one: merge that one into it."
            )
        return MergeSides(into, None, True)
    named = get_branch(conn, request.name)
    for branch, parent, is_rebase in ((named, into, False), (into, named, True)):
        # A branch that has the schema of a deleted one is younger than those made of that one.
        if branch.parent == parent.schema_name and parent.number < branch.number:
            return MergeSides(branch, parent, is_rebase)
    raise BadRequest(
        f"A branch is merged with {MAIN!r} or with the branch it was made of; neither of {named.name!r} and {into.name!r} was made of "
        "the other."
    )


def check_plan(planned: PlannedMerge, request: MergeRequest) -> None:
    """Raise MergeConflicts if something stands against the merge, with the list."""
    if request.strategy == FF and not planned.is_fast_forward:
        fork, head = planned.point.fork_snapshot_id, planned.state[0]
        name, parent = planned.sides.branch.name, planned.sides.parent
        what = "The lake" if parent is None else f"The branch {parent.name!r}"
        changed = f"{what} has changed since the branch {name!r} was made (snapshot {fork}, now {head})"
        if planned.sides.is_rebase:
            changed = f"The branch {name!r} has changes of its own"
        raise MergeConflicts(f"{changed}, so this is no fast-forward; nothing was written. Merge with the strategy three-way.")
    conflicts = planned.decision.conflicts
    if conflicts:
        told = "; ".join(f"{each.object_kind} {each.name}: {each.kind}: {each.reason} {each.remedy}." for each in conflicts[:10])
        more = "" if len(conflicts) <= 10 else f"; and {len(conflicts) - 10} more"
        raise MergeConflicts(f"Nothing was merged, {len(conflicts)} conflicts: {told}{more}", conflicts)


def preview(planned: PlannedMerge) -> MergeResult:
    """Return what a planned merge would do."""
    tables, others = list_table_words(planned.changes, planned.decision.plan)
    decision, sides = planned.decision, planned.sides
    named = (sides.branch.name, sides.name, sides.into)
    return MergeResult(*named, None, planned.is_fast_forward, tables, others, decision.left_out, decision.overruled)


def merge_branch(conn: psycopg.Connection, lake_schema: str, request: MergeRequest, tries: int = LOCK_TRIES) -> MergeResult:
    """Merge a branch on a connection that is in no transaction.

    Raises: MergeConflicts: something stands against it; nothing was written. ServiceUnavailable: the lake is never idle
    """
    for _ in range(tries):
        try:
            planned = plan_merge(conn, lake_schema, request)
            check_plan(planned, request)
            if planned.has_nothing:
                return preview(planned)
            with conn.transaction():
                return merge_locked(conn, lake_schema, request, planned)
        except LakeBusy:
            time.sleep(LOCK_PAUSE_S)
    raise ServiceUnavailable(NEVER_IDLE)


# Branches show rows of the lake, which its maintenance may be deleting.
LOCK_BOTH = sql.SQL("LOCK TABLE {r}.ducklake_snapshot, {p}.ducklake_snapshot, {b}.ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")


def merge_locked(conn: psycopg.Connection, lake_schema: str, request: MergeRequest, planned: PlannedMerge) -> MergeResult:
    """Merge in the caller's transaction, which commits.

    Raises: MergeConflicts: something stands against it by now. LakeBusy: others hold a lock that is needed
    """
    try:
        # Shorter than Postgres' deadlock timeout: in a circle of waiting sessions this one gives way.
        conn.execute("SET LOCAL lock_timeout = '500ms'")
        conn.execute(LOCK_BOTH.format(**planned.point.names))
        sides = [each for each in (planned.sides.parent, planned.sides.branch) if each is not None]
        is_same = all([lock_branch(conn, each) == each.number for each in sides])
        state = conn.execute(SELECT_STATE.format(**planned.point.names)).fetchone()
        has_children = bool(list_children(conn, planned.sides.branch))
        if state is None or tuple(state) != planned.state or not is_same or has_children:
            locked = {planned.point.source, planned.point.target}
            planned = plan_merge(conn, lake_schema, request)
            if {planned.point.source, planned.point.target} != locked:
                raise LakeBusy("A branch was renamed meanwhile; nothing was merged. Try again.")
            check_plan(planned, request)
        if planned.has_nothing:
            return preview(planned)
        return (_rebase if planned.sides.is_rebase else _write)(conn, request, planned)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise LakeBusy("The lake or the branch is busy with other commits; nothing was merged. Try again.") from error
    except psycopg.errors.UndefinedTable as error:
        raise LakeBusy(VANISHED) from error


def _write(conn: psycopg.Connection, request: MergeRequest, planned: PlannedMerge) -> MergeResult:
    point, plan = planned.point, planned.decision.plan
    main, head = read_head(conn, point.target), read_head(conn, point.source)
    writer = MergeWriter(conn, point, plan, main, head)
    writer.write()
    copy_merged_notes(conn, point, plan, writer.snapshot_id)
    _check_written(conn, point, plan)
    tokens = list_tokens(planned.changes, plan)
    done = replace(preview(planned), snapshot_id=writer.snapshot_id)
    lake = Head(
        writer.snapshot_id,
        writer.schema_version,
        max(main.next_catalog_id, head.next_catalog_id),
        max(main.next_file_id, head.next_file_id) + 1,
    )
    branch, numbers = planned.sides.branch, sorted(_read_numbers(conn, point, planned.sides.branch))
    conn.execute(format_search_path(point.target))
    _write_snapshots(conn, request, (main, lake), tokens, done)
    conn.execute(LOCK_CHANGES.format(s=sql.Identifier(point.source)))
    _note_histories(conn, point.target, sorted(plan.files))
    conn.execute(NOTE_MERGED, {"numbers": numbers, "snapshot_id": writer.snapshot_id})
    conn.execute(format_search_path(point.repository))
    refork(conn, point, branch, Restart(head, lake, list_main_tokens(planned.changes)))
    return done


def _rebase(conn: psycopg.Connection, request: MergeRequest, planned: PlannedMerge) -> MergeResult:
    point, plan, branch = planned.point, planned.decision.plan, planned.sides.branch
    copy, lake = copy_changes(conn, point, plan), read_head(conn, point.target)
    tokens = [*list_main_tokens(planned.changes), *list_branch_tokens(planned.changes)]
    refork(conn, point, branch, Restart(copy.head, lake, tokens, keeps_files=True))
    done = replace(preview(planned), snapshot_id=read_head(conn, point.source).snapshot_id)
    if not plan.is_empty:
        heads = merge_copy(conn, copy, plan)
        _check_written(conn, copy.point, plan)
        done = replace(done, snapshot_id=heads[1].snapshot_id)
        conn.execute(format_search_path(point.source))
        _write_snapshots(conn, request, heads, list_tokens(planned.changes, plan), done)
        conn.execute(format_search_path(point.repository))
    restore_views(conn, copy)
    _note_histories(conn, point.source, sorted(plan.files))
    drop_copy(conn, copy)
    forget_rest(conn, point, branch)
    return done


SELECT_UNSOUND = sql.SQL("""
SELECT 'namespace ' || s.schema_name || ' is in a namespace that is dropped' FROM {p}.ducklake_schema s
 WHERE s.end_snapshot IS NULL
   AND NOT EXISTS (SELECT FROM {p}.ducklake_schema o
                    -- DuckLake 1.0 has no such column
                    WHERE o.schema_id = coalesce((to_jsonb(s) ->> 'parent_schema_id')::bigint, s.schema_id) AND o.end_snapshot IS NULL)
 UNION ALL
SELECT 'table ' || t.table_name || ' is in a namespace that is dropped' FROM {p}.ducklake_table t
 WHERE t.end_snapshot IS NULL
   AND NOT EXISTS (SELECT FROM {p}.ducklake_schema s WHERE s.schema_id = t.schema_id AND s.end_snapshot IS NULL)
 UNION ALL
SELECT 'view ' || v.view_name || ' is in a namespace that is dropped' FROM {p}.ducklake_view v
 WHERE v.end_snapshot IS NULL
   AND NOT EXISTS (SELECT FROM {p}.ducklake_schema s WHERE s.schema_id = v.schema_id AND s.end_snapshot IS NULL)
 UNION ALL
SELECT 'macro ' || m.macro_name || ' is in a namespace that is dropped' FROM {p}.ducklake_macro m
 WHERE m.end_snapshot IS NULL
   AND NOT EXISTS (SELECT FROM {p}.ducklake_schema s WHERE s.schema_id = m.schema_id AND s.end_snapshot IS NULL)
 UNION ALL
SELECT 'tables ' || string_agg(t.table_name, ', ') || ' have one uuid' FROM {p}.ducklake_table t
 WHERE t.end_snapshot IS NULL GROUP BY t.table_uuid HAVING count(*) > 1
 UNION ALL
SELECT 'tables ' || t.table_name || ' and ' || o.table_name || ' have one location'
  FROM {p}.iceberg_table n
  JOIN {p}.ducklake_table t ON t.table_id = n.table_id AND t.end_snapshot IS NULL
  JOIN {p}.iceberg_table m ON m.table_id <> n.table_id
   -- one of them, or one inside of the other
   AND (starts_with(rtrim(m.location, '/') || '/', rtrim(n.location, '/') || '/')
        OR starts_with(rtrim(n.location, '/') || '/', rtrim(m.location, '/') || '/'))
  JOIN {p}.ducklake_table o ON o.table_id = m.table_id AND o.end_snapshot IS NULL
 WHERE n.table_id = ANY(%(new)s)
 UNION ALL
SELECT 'table ' || t.table_name || ' is partitioned by a column that is dropped' FROM {p}.ducklake_partition_info i
  JOIN {p}.ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
  JOIN {p}.ducklake_partition_column c ON c.partition_id = i.partition_id AND c.table_id = i.table_id
 WHERE i.end_snapshot IS NULL
   AND NOT EXISTS (SELECT FROM {p}.ducklake_column k
                    WHERE k.table_id = c.table_id AND k.column_id = c.column_id AND k.end_snapshot IS NULL)
 LIMIT 10
""")


def _check_written(conn: psycopg.Connection, point: MergePoint, plan: MergePlan) -> None:
    """Raise MergeConflicts if the rows that were written would leave a lake that DuckDB cannot attach, or two tables in one."""
    found = [row[0] for row in conn.execute(SELECT_UNSOUND.format(**point.names), {"new": sorted(plan.new_tables)}).fetchall()]
    if found:
        raise MergeConflicts(f"Nothing was merged, because what both sides did does not go together: {'; '.join(found)}.")


INSERT_SNAPSHOT = """
WITH made AS (
    INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
    SELECT %(snapshot_id)s::bigint, greatest(clock_timestamp(), max(snapshot_time) + interval '1 microsecond'),
           %(schema_version)s::bigint, %(next_catalog_id)s::bigint, %(next_file_id)s::bigint
      FROM ducklake_snapshot WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)
 RETURNING snapshot_id
)
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made, author, commit_message, commit_extra_info)
SELECT snapshot_id, %(changes)s::text, %(author)s::text, %(message)s::text, %(extra)s::text FROM made
"""


def _write_snapshots(
    conn: psycopg.Connection, request: MergeRequest, heads: tuple[Head, Head], tokens: Iterable[Change], done: MergeResult
) -> None:
    """Write the merge's lake snapshot, and an empty one if its id jumps: an open transaction of DuckDB finds the next id taken.

    The search path is the metadata schema that it is written to. `heads`: before and after.
    """
    what = f"rebase onto {done.name}" if done.into == done.branch else f"merge branch {done.name}"
    said = {"author": request.author or "duckicelake", "message": request.message or what}
    before, after = heads
    extra = json.dumps({"merge": describe_result(done)})
    written: list[tuple[int, Head, str | None, str | None]] = [(after.snapshot_id, after, format_changes(tokens), extra)]
    if after.snapshot_id > before.snapshot_id + 1:
        written.insert(0, (before.snapshot_id + 1, before, None, None))
    for snapshot_id, head, changes, text in written:
        conn.execute(INSERT_SNAPSHOT, {**asdict(head), "snapshot_id": snapshot_id, **said, "changes": changes, "extra": text})


LOCK_CHANGES = sql.SQL("LOCK TABLE {s}.iceberg_change IN EXCLUSIVE MODE")
NOTE_HISTORIES = sql.SQL("INSERT INTO {s}.iceberg_change (kind, table_id) SELECT 'hide', unnest(%(tables)s::bigint[])")


def _note_histories(conn: psycopg.Connection, schema: str, tables: Sequence[int]) -> None:
    """Let servers read the tables' files from the beginning: files of a merge may have smaller ids than those read before."""
    names = {"s": sql.Identifier(schema)}
    conn.execute(LOCK_CHANGES.format(**names))
    conn.execute(NOTE_HISTORIES.format(**names), {"tables": tables})


CUTTING_KINDS = ("inserted_into_table", "deleted_from_table", "inlined_delete")
"""Entries with which every open delete and insert of DuckDB conflicts."""


def list_main_tokens(changes: Changes) -> list[Change]:
    """Return entries for everything that the lake changed since the fork point, for sessions that are open on the branch."""
    kinds: dict[int, set[str]] = {table_id: set(found) for table_id, found in changes.main_history.kinds.items()}
    for table_id, words in changes.main_data.items():
        is_append = words == {"append"} and changes.main_history.is_whole
        kinds.setdefault(table_id, set()).update(("inserted_into_table",) if is_append else CUTTING_KINDS)
    for kind in ("table", "view", "column", "partition_info"):
        for key in changes.main[kind].list_keys():
            kinds.setdefault(int(key[0]), set()).add("altered_view" if kind == "view" else "altered_table")
    return [Change(kind, str(object_id)) for object_id, found in sorted(kinds.items()) for kind in sorted(found)]


def list_branch_tokens(changes: Changes) -> list[Change]:
    """Return entries for everything that the branch changed, with which sessions of DuckDB that are open on it conflict."""
    changed = {*changes.files, *(int(key[0]) for kind in ("column", "partition_info") for key in changes.branch[kind].list_keys())}
    tokens = [Change(kind, str(table_id)) for table_id in sorted(changed) for kind in (*CUTTING_KINDS, "altered_table")]
    side = Side(changes.branch)
    for kind in ("table", "view", "schema"):
        tokens += [Change(f"dropped_{kind}", str(object_id)) for object_id in sorted(side.made(kind))]
    return tokens


def _check_numbers(conn: psycopg.Connection, point: MergePoint, branch: Branch) -> None:
    """Raise Unsupported if part of the branch has been merged already: it was made from a branch that was merged since."""
    numbers = _read_numbers(conn, point, branch)
    keys = conn.execute(SELECT_MERGED.format(**point.names, prefix=sql.Literal(MERGED_KEY))).fetchall()
    if numbers & {int(key.removeprefix(MERGED_KEY)) for (key,) in keys}:
        raise Unsupported(
            f"Branch {branch.name!r} was made from a branch that has been merged since, so part of it is in the lake already. "
            "Make a new branch of the lake, and repeat there what this one changed."
        )


def _read_numbers(conn: psycopg.Connection, point: MergePoint, branch: Branch) -> set[int]:
    """Return the numbers of the branches whose ids the branch's own rows have: its own, and those of the branches it was made from."""
    names = [("own_" if kind.is_viewed else "ducklake_") + kind.name for kind in list_kinds(point.lake_format)]
    names += ["own_data_file", "own_delete_file"]
    queries = [(SELECT_NUMBERS, name) for name in names]
    for name, has_deletes in conn.execute(SELECT_INLINED, {"schema": point.source}).fetchall():
        queries.append((SELECT_NUMBERS_OF_DELETES if has_deletes else SELECT_NUMBERS_OF_INLINED, name))
    queries.append((SELECT_NUMBERS_OF_FILES, ""))
    found = {branch.number}
    for query, name in queries:
        parts = {"t": point.relation(name, on_branch=True), "placeholder": sql.Literal(PLACEHOLDER)}
        found |= {row[0] for row in conn.execute(query.format(**point.names, **parts)).fetchall()}
    return found


NOTE_MERGED = """
INSERT INTO iceberg_setting (key, value)
SELECT 'merged_branch_' || n, %(snapshot_id)s::text FROM unnest(%(numbers)s::bigint[]) AS n ON CONFLICT (key) DO NOTHING
"""


def describe_result(result: MergeResult) -> dict[str, Any]:
    """Return a merge as JSON."""
    return {
        "branch": result.branch,
        "from": result.name,
        "into": result.into,
        "snapshot-id": result.snapshot_id,
        "fast-forward": result.is_fast_forward,
        "tables": {name: list(words) for name, words in result.tables.items()},
        "others": list(result.others),
        "left-out": [describe_conflict(each) for each in result.left_out],
        "overruled": [describe_conflict(each) for each in result.overruled],
    }


def describe_conflict(conflict: Conflict) -> dict[str, Any]:
    """Return a conflict as JSON."""
    return {
        "kind": conflict.kind,
        conflict.object_kind: conflict.name,
        "branch": list(conflict.branch),
        "main": list(conflict.main),
        "reason": conflict.reason,
        "remedy": conflict.remedy,
    }
