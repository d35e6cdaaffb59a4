"""Revert of one lake snapshot, or of a merge: a new lake snapshot takes back what it changed. All or nothing.

For the lake or a branch, `catalog.repositories` calls `revert_locked` in its commit's transaction, and `commands.branches` calls
`revert_snapshot`, which begins one for each try. Both call `preview_revert` outside of a transaction: it rolls its own back.
The rows say what the snapshot did: those that begin with it are ended, and those that it ended begin again. A data file that comes back, or
of which deleted rows come back, gets a new row with a new id for the same object, because a row has one span of snapshots.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest, LakeBusy, MergeConflicts, NoSuchRef, ServiceUnavailable
from duckicelake.lake.branches.changes import PLACEHOLDER, get_table_id
from duckicelake.lake.branches.layout import (
    KINDS,
    OF_TABLES,
    SELECT_INLINED,
    VersionedKind,
    list_kinds,
    name_inlined,
    read_columns,
    read_format,
)
from duckicelake.lake.branches.merge import CUTTING_KINDS, INSERT_SNAPSHOT, SELECT_UNSOUND
from duckicelake.lake.branches.merge_rules import Conflict
from duckicelake.lake.branches.merge_write import CREATE_ROWS, FILE_PARTS, STOP_INLINING, Head, read_head
from duckicelake.lake.branches.registry import MAIN, check_installed, get_branch
from duckicelake.lake.branches.revert_rules import (
    find_revert,
    list_dead,
    list_narrowed,
    list_tables_back,
    list_unsound_columns,
    read_name,
    read_table_names,
    take_back_purges,
)
from duckicelake.lake.changes import INSERT_KINDS, REWRITE_KINDS, Change, format_changes, parse_changes, quote_names
from duckicelake.lake.install import LOCK_PAUSE_S, LOCK_TRIES, NEVER_IDLE, format_search_path
from duckicelake.lake.notes import LOCK_CHANGES
from duckicelake.lake.writing.dropped import PROTECTION

DELETE_KINDS = frozenset({"deleted_from_table", "inlined_delete"})
ONE_ROW = ("schema", "macro")
"""Kinds of which DuckLake keeps one row for each id, so what was dropped does not begin again."""
REPEAT = "Undo it by statements of your own"


@dataclass(frozen=True, slots=True)
class RevertRequest:
    """A lake snapshot to revert, of the lake or of the branch `ref`."""

    snapshot_id: int
    ref: str = MAIN
    author: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class RevertResult:
    """The effect of a revert. `snapshot_id`: the lake snapshot that it made. `tables`: words for the changes, by table."""

    reverted: int
    snapshot_id: int
    tables: Mapping[str, Sequence[str]]


def revert_snapshot(conn: psycopg.Connection, lake_schema: str, request: RevertRequest, tries: int = LOCK_TRIES) -> RevertResult:
    """Revert a lake snapshot on a connection that is in no transaction.

    Raises: MergeConflicts: something stands against it; nothing was written. ServiceUnavailable: the member is never idle
    """
    for _ in range(tries):
        try:
            with conn.transaction():
                return revert_locked(conn, lake_schema, request)
        except LakeBusy:
            time.sleep(LOCK_PAUSE_S)
    raise ServiceUnavailable(NEVER_IDLE)


def preview_revert(conn: psycopg.Connection, lake_schema: str, request: RevertRequest) -> RevertResult:
    """Return what a revert would do: it is written, and rolled back. Raises: what `revert_snapshot` raises."""
    with conn.transaction(force_rollback=True):
        return revert_locked(conn, lake_schema, request)


LOCK_MEMBER = "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE"
# Before a merge, whose id jumps, is an empty snapshot.
SELECT_REVERTED = """
SELECT c.changes_made,
       EXISTS (SELECT FROM ducklake_snapshot p WHERE p.snapshot_id = s.snapshot_id - 1)
       OR starts_with(c.commit_extra_info, '{"merge":')
          AND EXISTS (SELECT FROM ducklake_snapshot p LEFT JOIN ducklake_snapshot_changes n ON n.snapshot_id = p.snapshot_id
                       WHERE p.snapshot_id = (SELECT max(m.snapshot_id) FROM ducklake_snapshot m WHERE m.snapshot_id < s.snapshot_id)
                         AND coalesce(n.changes_made, '') = '')
  FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
 WHERE s.snapshot_id = %(reverted)s
"""


def revert_locked(conn: psycopg.Connection, lake_schema: str, request: RevertRequest) -> RevertResult:
    """Revert a lake snapshot in the caller's transaction, which commits; the search path is the lake's afterwards.

    Raises: MergeConflicts: something stands against it. LakeBusy: others hold a lock that is needed
            NoSuchRef: there is no such branch or snapshot. BadRequest: it changed nothing, or `ref` is a tag
    """
    conn.execute(format_search_path(lake_schema))
    member = lake_schema
    if request.ref != MAIN:
        branch = get_branch(conn, request.ref)
        check_installed(conn, branch)
        member = branch.schema_name
    conn.execute(format_search_path(member))
    try:
        # Shorter than Postgres' deadlock timeout: in a circle of waiting sessions this one gives way.
        conn.execute("SET LOCAL lock_timeout = '500ms'")
        conn.execute(LOCK_MEMBER)
        done = _Reverting(conn, member, request).revert()
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.UndefinedTable) as error:
        raise LakeBusy(f"{request.ref!r} is busy with other commits; nothing was reverted. Try again.") from error
    conn.execute(format_search_path(lake_schema))
    return done


@dataclass(slots=True)
class _Data:
    """What the snapshot did to the rows of one table. `restored`: files that come back, or of which rows come back."""

    added: list[int] = field(default_factory=list[int])
    removed: list[int] = field(default_factory=list[int])
    cut: list[int] = field(default_factory=list[int])
    inlined: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def restored(self) -> list[int]:
        """The files that get new rows."""
        return sorted({*self.removed, *self.cut})


# The files that the snapshot added, removed, and deleted rows of.
SELECT_FILES = """
SELECT table_id, 'added', data_file_id FROM ducklake_data_file WHERE begin_snapshot = %(reverted)s
 UNION ALL
SELECT table_id, 'removed', data_file_id FROM ducklake_data_file WHERE end_snapshot = %(reverted)s AND begin_snapshot < %(reverted)s
 UNION ALL
SELECT d.table_id, 'cut', d.data_file_id FROM ducklake_delete_file d
  JOIN ducklake_data_file f ON f.data_file_id = d.data_file_id
 WHERE d.begin_snapshot = %(reverted)s AND f.begin_snapshot < %(reverted)s AND f.end_snapshot IS DISTINCT FROM %(reverted)s
"""
# Those of them that are not as the snapshot left them.
SELECT_CHANGED_FILES = """
SELECT f.data_file_id FROM ducklake_data_file f
 WHERE f.data_file_id = ANY(%(live)s::bigint[])
   AND (f.end_snapshot IS NOT NULL
        OR EXISTS (SELECT FROM ducklake_delete_file d WHERE d.data_file_id = f.data_file_id AND d.begin_snapshot > %(reverted)s))
"""
SELECT_COMPACTED = """
SELECT DISTINCT table_id FROM ducklake_data_file
 WHERE begin_snapshot < %(reverted)s AND partial_max >= %(reverted)s OR begin_snapshot = %(reverted)s AND partial_max > %(reverted)s
 UNION
SELECT DISTINCT table_id FROM ducklake_delete_file
 WHERE begin_snapshot < %(reverted)s AND partial_max >= %(reverted)s OR begin_snapshot = %(reverted)s AND partial_max > %(reverted)s
"""
SELECT_IS_PROTECTED = """
SELECT EXISTS (SELECT FROM ducklake_tag WHERE object_id = ANY(%(ids)s::bigint[]) AND key = %(key)s AND lower(value) = 'true'
                  AND end_snapshot IS NULL)
"""
SELECT_IS_USED = """
WITH later AS (
    SELECT table_id, begin_snapshot, end_snapshot FROM ducklake_data_file
     UNION ALL SELECT table_id, begin_snapshot, NULL FROM ducklake_delete_file
     UNION ALL SELECT table_id, begin_snapshot, end_snapshot FROM ducklake_table
     UNION ALL SELECT table_id, begin_snapshot, end_snapshot FROM ducklake_column
     UNION ALL SELECT table_id, begin_snapshot, end_snapshot FROM ducklake_partition_info
     UNION ALL SELECT table_id, begin_snapshot, end_snapshot FROM ducklake_sort_info
     UNION ALL SELECT table_id, begin_snapshot, end_snapshot FROM ducklake_column_tag
     UNION ALL SELECT object_id, begin_snapshot, end_snapshot FROM ducklake_tag
)
SELECT EXISTS (SELECT FROM later WHERE table_id = %(table_id)s AND (begin_snapshot > %(reverted)s OR end_snapshot > %(reverted)s))
"""
SELECT_TWICE = """
SELECT min(n.name) FROM (SELECT schema_id, table_name AS name FROM ducklake_table WHERE end_snapshot IS NULL
                          UNION ALL SELECT schema_id, view_name FROM ducklake_view WHERE end_snapshot IS NULL) n
 GROUP BY n.schema_id, lower(n.name) HAVING count(*) > 1
"""
DELETE_BOUNDS = "DELETE FROM ducklake_table_column_stats WHERE table_id = ANY(%(tables)s::bigint[])"
ADD_SCHEMA_VERSIONS = """
INSERT INTO ducklake_schema_versions (begin_snapshot, schema_version, table_id)
SELECT %(made)s::bigint, %(version)s::bigint, unnest(%(tables)s::bigint[])
"""
END_FILES = """
UPDATE ducklake_data_file SET end_snapshot = %(made)s WHERE data_file_id = ANY(%(ids)s::bigint[]) AND end_snapshot IS NULL
"""
END_DELETE_FILES = """
UPDATE ducklake_delete_file SET end_snapshot = %(made)s WHERE data_file_id = ANY(%(ids)s::bigint[]) AND end_snapshot IS NULL
"""
SELECT_DELETE_FILES = """
SELECT DISTINCT ON (d.data_file_id) d.delete_file_id, n.new_id FROM ducklake_delete_file d
  JOIN unnest(%(ids)s::bigint[], %(new_ids)s::bigint[]) AS n(id, new_id) ON n.id = d.data_file_id
 WHERE d.begin_snapshot < %(reverted)s AND (d.end_snapshot IS NULL OR d.end_snapshot >= %(reverted)s)
 ORDER BY d.data_file_id, d.begin_snapshot DESC
"""
COPY_NOTES = """
INSERT INTO iceberg_file (data_file_id, table_id, spec_id, partition, sort_order_id, split_offsets, sequence_number)
SELECT n.new_id, f.table_id, f.spec_id, f.partition, f.sort_order_id, f.split_offsets, f.sequence_number
  FROM iceberg_file f JOIN unnest(%(ids)s::bigint[], %(new_ids)s::bigint[]) AS n(id, new_id) ON n.id = f.data_file_id
"""
NOTE_HISTORIES = "INSERT INTO iceberg_change (kind, table_id) SELECT 'hide', unnest(%(tables)s::bigint[])"

SELECT_INLINED_SHAPE = """
SELECT r.table_name FROM ducklake_inlined_data_tables r
 WHERE r.table_id = %(table_id)s
   AND r.schema_version >= (SELECT max(v.schema_version) FROM ducklake_schema_versions v
                             WHERE v.table_id = %(table_id)s AND v.begin_snapshot < %(until)s)
   AND r.schema_version < coalesce((SELECT min(v.schema_version) FROM ducklake_schema_versions v
                                     WHERE v.table_id = %(table_id)s AND v.begin_snapshot >= %(until)s), 9223372036854775807)
 ORDER BY r.schema_version DESC LIMIT 1
"""

# Text of statements whose tables have no fixed name or columns.
SPAN: Mapping[str, sql.Composable] = {"begin": sql.Identifier("begin_snapshot"), "end": sql.Identifier("end_snapshot")}
"""The columns of versioned rows that say when they begin and end; those of inlined rows have other names."""
BEGINS: Mapping[str, sql.Composable] = {"begin_snapshot": sql.SQL("%(made)s"), "end_snapshot": sql.SQL("NULL")}
NEW_ID = sql.SQL("n.new_id")
OF_FILE: Mapping[str, sql.Composable] = {"key": sql.Identifier("data_file_id")}
COPY_ROWS = sql.SQL("""
INSERT INTO {t} ({columns}) SELECT {values} FROM {t} f
  JOIN unnest(%(ids)s::bigint[], %(new_ids)s::bigint[]) AS n(id, new_id) ON n.id = f.{key}
""")
SELECT_VERSIONS = sql.SQL("""
SELECT {keys}, bool_or(t.begin_snapshot = %(reverted)s) AS is_added, bool_or(t.end_snapshot = %(reverted)s) AS is_ended,
       bool_or(t.end_snapshot IS NULL AND t.begin_snapshot = %(reverted)s) AS is_as_added, bool_or(t.end_snapshot IS NULL) AS is_live
  FROM {t} t WHERE t.begin_snapshot < {placeholder} GROUP BY {keys}
HAVING bool_or(t.begin_snapshot = %(reverted)s) OR bool_or(t.end_snapshot = %(reverted)s)
""")
END_ADDED = sql.SQL("UPDATE {t} SET {end} = %(made)s WHERE {begin} = %(reverted)s AND {end} IS NULL")
ADD_ENDED = sql.SQL("INSERT INTO {t} ({columns}) SELECT {values} FROM {t} f WHERE f.{end} = %(reverted)s AND f.{begin} < %(reverted)s")
COUNT_INLINED = sql.SQL("""
SELECT count(*) FILTER (WHERE {begin} = %(reverted)s AND {end} IS DISTINCT FROM %(reverted)s),
       count(*) FILTER (WHERE {end} = %(reverted)s AND {begin} < %(reverted)s),
       count(*) FILTER (WHERE {begin} = %(reverted)s AND {end} > %(reverted)s)
  FROM {t}
""")
HAS_LATER = sql.SQL("SELECT EXISTS (SELECT FROM {t} WHERE {begin} > %(reverted)s OR {end} > %(reverted)s)")
SELECT_CUT_INLINED = sql.SQL("SELECT DISTINCT file_id FROM {t} WHERE begin_snapshot = %(reverted)s")
SELECT_CHANGED_INLINED = sql.SQL("SELECT DISTINCT file_id FROM {t} WHERE begin_snapshot > %(reverted)s")
COPY_INLINED_DELETES = sql.SQL("""
INSERT INTO {t} (file_id, row_id, begin_snapshot) SELECT n.new_id, d.row_id, %(made)s FROM {t} d
  JOIN unnest(%(ids)s::bigint[], %(new_ids)s::bigint[]) AS n(id, new_id) ON n.id = d.file_id WHERE d.begin_snapshot < %(reverted)s
""")


class _Reverting:
    """A revert in a transaction that holds the member's lock; the search path is the member's."""

    def __init__(self, conn: psycopg.Connection, member: str, request: RevertRequest) -> None:
        self._conn, self._member, self._request = conn, member, request
        self._head = read_head(conn, member)
        self._ids: dict[str, int] = {"reverted": request.snapshot_id, "made": self._head.snapshot_id + 1}
        self._next_file_id = self._head.next_file_id
        self._kinds = self._read_kinds()
        self._inlined = sorted(row[0] for row in conn.execute(SELECT_INLINED, {"schema": member}).fetchall())
        lake_format = read_format(conn, member)
        self._rows = name_inlined(lake_format)
        self._begins: Mapping[str, sql.Composable] = dict(zip(lake_format.inlined_columns[1:], BEGINS.values(), strict=True))
        kinds = list_kinds(lake_format)
        self._versions = {kind.name: self._read_versions(kind) if kind in kinds else [] for kind in KINDS}
        self._data = self._read_data()
        self._names: dict[int, str] = read_table_names(conn)

    def revert(self) -> RevertResult:
        """Write the revert. Raises: MergeConflicts: something stands against it. BadRequest: there is nothing to revert"""
        if not self._data and not any(self._versions.values()):
            if any(kinds & REWRITE_KINDS for kinds in self._kinds.values()):
                raise BadRequest(
                    f"Snapshot {self._request.snapshot_id} put files together and changed no rows; there is nothing to revert."
                )
            if not self._kinds:
                raise BadRequest(f"Snapshot {self._request.snapshot_id} changed nothing that a revert takes back.")
        conflicts = [*self._check_objects(), *self._check_drops(), *self._check_columns(), *self._check_data()]
        if conflicts:
            raise _build_refusal(self._request, conflicts)
        self._write_objects()
        for table_id, found in sorted(self._data.items()):
            self._write_data(table_id, found)
        self._check_written()
        return self._finish()

    def _read_kinds(self) -> dict[int, set[str]]:
        row = self._conn.execute(SELECT_REVERTED, self._ids).fetchone()
        if row is None:
            raise NoSuchRef(
                f"Snapshot does not exist on {self._request.ref!r}: {self._request.snapshot_id}; it has expired, or was never made."
            )
        if not row[1]:
            raise BadRequest(f"Snapshot {self._request.snapshot_id} of {self._request.ref!r} has no snapshot before it: that has expired.")
        kinds: dict[int, set[str]] = {}
        for change in parse_changes(row[0]):
            if change.value.isdecimal():
                kinds.setdefault(int(change.value), set()).add(change.kind)
        return kinds

    def _read_versions(self, kind: VersionedKind) -> list[tuple[tuple[int | str, ...], bool, bool, bool, bool]]:
        """Return the changed keys: if rows were added and ended, if the added one is live, and if any is."""
        keys = sql.SQL(", ").join(sql.Identifier("t", name) for name in kind.key)
        query = SELECT_VERSIONS.format(t=_table(kind), keys=keys, placeholder=sql.Literal(PLACEHOLDER))
        rows = self._conn.execute(query, self._ids).fetchall()
        return [(tuple(key), bool(added), bool(ended), bool(as_added), bool(live)) for *key, added, ended, as_added, live in rows]

    @property
    def _made_tables(self) -> set[int]:
        return {int(key[0]) for key, is_added, is_ended, *_ in self._versions["table"] if is_added and not is_ended}

    def _read_data(self) -> dict[int, _Data]:
        found: dict[int, _Data] = {}
        for table_id, what, file_id in self._conn.execute(SELECT_FILES, self._ids).fetchall():
            each = found.setdefault(table_id, _Data())
            {"added": each.added, "removed": each.removed, "cut": each.cut}[what].append(file_id)
        for name in self._inlined:
            table, each = sql.Identifier(name), found.get(get_table_id(name)) or _Data()
            if name.startswith("ducklake_inlined_delete_"):
                files = [row[0] for row in self._conn.execute(SELECT_CUT_INLINED.format(t=table), self._ids).fetchall()]
                each.cut += [file_id for file_id in files if file_id not in each.removed and file_id not in each.added]
            else:
                row = self._conn.execute(COUNT_INLINED.format(**self._rows, t=table), self._ids).fetchone()
                assert row is not None
                if row[0] or row[1]:
                    each.inlined[name] = (row[0] + row[1], row[2])
            if each.added or each.restored or each.inlined:
                found[get_table_id(name)] = each
        return found

    def _check_objects(self) -> Iterable[Conflict]:
        for kind in KINDS:
            for key, is_added, is_ended, is_as_added, is_live in self._versions[kind.name]:
                object_id = int(key[0])
                if kind.name in ONE_ROW and is_ended and not is_added:
                    reason = f"DuckLake brings back no {_call(kind.name)} that was dropped."
                    yield self._conflict("drop/any", object_id, reason, "Create it again", kind.name)
                elif (is_added and not is_as_added) or (is_ended and not is_added and is_live):
                    yield self._conflict("change/change", object_id, "It was changed again since.", REPEAT, kind.name)
        for table_id in sorted(self._made_tables):
            row = self._conn.execute(SELECT_IS_USED, {**self._ids, "table_id": table_id}).fetchone()
            if (row and row[0]) or self._has_later_inlined(table_id):
                yield self._conflict(
                    "create/change", table_id, "The table was made by the snapshot, and was changed since.", "Drop it yourself"
                )
        made = sorted(
            int(key[0]) for kind in ("table", "schema") for key, is_added, is_ended, *_ in self._versions[kind] if is_added > is_ended
        )
        row = self._conn.execute(SELECT_IS_PROTECTED, {"ids": made, "key": PROTECTION}).fetchone()
        if row and row[0]:
            yield self._conflict(
                "drop/protected", made[0], f"The property {PROTECTION!r} protects what it made.", "Remove the property first"
            )

    @property
    def _dropped_tables(self) -> set[int]:
        return {int(key[0]) for key, is_added, is_ended, _, is_live in self._versions["table"] if is_ended and not is_added and not is_live}

    def _check_drops(self) -> Iterable[Conflict]:
        """Yield conflicts about objects that are dropped by now, and about files that a drop deleted."""
        own = {int(key[0]) for kind in ("schema", "table", "view", "macro") for key, *_ in self._versions[kind]}
        changed = {int(key[0]) for kind in (*OF_TABLES, "tag", "view_column_tag") for key, *_ in self._versions[kind]} | self._data.keys()
        for object_id in list_dead(self._conn, changed - own):
            yield self._conflict("change/drop", object_id, "It was dropped since.", "Revert the snapshot that dropped it first")
        for table_id in take_back_purges(self._conn, self._dropped_tables):
            reason = "It was dropped with its files (purgeRequested), which are being deleted."
            yield self._conflict("drop/any", table_id, reason, "Create it again")

    def _check_columns(self) -> Iterable[Conflict]:
        """Yield conflicts about rows that a column would not take any more."""
        for table_id, has_files in list_narrowed(self._conn, self._ids):
            if has_files or self._has_later_inlined(table_id):
                reason = "The snapshot widened a column, or dropped a required one, and rows were written since."
                yield self._conflict("change/append", table_id, reason, REPEAT)

    def _has_later_inlined(self, table_id: int) -> bool:
        for name in self._inlined:
            if get_table_id(name) == table_id and name.startswith("ducklake_inlined_data_"):
                row = self._conn.execute(HAS_LATER.format(**self._rows, t=sql.Identifier(name)), self._ids).fetchone()
                if row and row[0]:
                    return True
        return False

    def _check_data(self) -> Iterable[Conflict]:
        compacted = {row[0] for row in self._conn.execute(SELECT_COMPACTED, self._ids).fetchall()}
        back = list_tables_back(self._conn, self._ids, self._inlined, self._rows)
        revert = find_revert(self._conn, self._ids)
        for table_id in sorted({*self._data, *(each for each, kinds in self._kinds.items() if kinds & (INSERT_KINDS | DELETE_KINDS))}):
            found, kinds = self._data.get(table_id, _Data()), self._kinds.get(table_id, set[str]())
            if table_id in self._made_tables:
                continue
            # A merge names more kinds than it has, so that open transactions conflict.
            if table_id in compacted or table_id not in self._data or kinds & REWRITE_KINDS:
                reason = (
                    "The rows that the snapshot added or deleted lie together with others since a flush or compaction, or have expired."
                )
                yield self._conflict("change/compaction", table_id, reason, REPEAT)
                continue
            changed = self._list_changed(table_id, found)
            if changed or any(ended for _, ended in found.inlined.values()):
                reason = "Rows that the snapshot added, or of files in which it deleted rows, were deleted, changed or compacted since."
                yield self._conflict("change/delete", table_id, reason, REPEAT)
            elif revert is not None or table_id in back:
                reason = "Rows that the snapshot deleted are there again" + (f": snapshot {revert} reverted it." if revert else ".")
                yield self._conflict("change/change", table_id, reason, "Revert the snapshot that brought them back first")

    def _list_changed(self, table_id: int, found: _Data) -> set[int]:
        live = {*found.added, *found.cut}
        changed = {row[0] for row in self._conn.execute(SELECT_CHANGED_FILES, {**self._ids, "live": sorted(live)}).fetchall()}
        name = f"ducklake_inlined_delete_{table_id}"
        if name in self._inlined:
            later = self._conn.execute(SELECT_CHANGED_INLINED.format(t=sql.Identifier(name)), self._ids).fetchall()
            changed |= live & {row[0] for row in later}
        return changed

    def _conflict(self, kind: str, object_id: int, reason: str, remedy: str, object_kind: str = "table") -> Conflict:
        name = self._names.get(object_id, f"#{object_id}")
        shown = "table" if object_id in self._names else _call(object_kind)
        mine, _, since = kind.partition("/")
        return Conflict(kind, shown, name, (mine,), (since,), reason, remedy, object_id)

    def _write_objects(self) -> None:
        """End what the snapshot added, and let what it ended begin again."""
        for kind in KINDS:
            ended = any(is_ended for _, _, is_ended, *_ in self._versions[kind.name])
            added = any(is_added for _, is_added, *_ in self._versions[kind.name])
            if added:
                self._conn.execute(END_ADDED.format(**SPAN, t=_table(kind)), self._ids)
            if ended and kind.name not in ONE_ROW:
                self._copy(ADD_ENDED, "ducklake_" + kind.name, self._ids, BEGINS, SPAN)
        for table_id in self._made_tables & self._data.keys():
            self._data[table_id].inlined.clear()
        reshaped = {int(key[0]) for kind in ("table", "column", "partition_info") for key, *_ in self._versions[kind]}
        tables = sorted(reshaped - self._made_tables)
        for table_id in tables:
            self._prepare_inlining(table_id)
        self._conn.execute(ADD_SCHEMA_VERSIONS, {"made": self._ids["made"], "version": self._head.schema_version + 1, "tables": tables})

    def _prepare_inlining(self, table_id: int) -> None:
        """Make a table for inlined rows with the columns that a table has from the revert on, or let its rows go to files.

        DuckDB would make one itself, and read its rows by the columns that the table had first.
        """
        is_altered = any(int(key[0]) == table_id for key, *_ in self._versions["column"])
        until = self._ids["reverted" if is_altered else "made"]
        row = self._conn.execute(SELECT_INLINED_SHAPE, {"table_id": table_id, "until": until}).fetchone()
        names = {"p": sql.Identifier(self._member), "table_id": sql.Literal(table_id)}
        if row is None:
            self._conn.execute(STOP_INLINING.format(**names))
            return
        target = f"ducklake_inlined_data_{table_id}_{self._head.schema_version + 1}"
        relations = {"relation": sql.Identifier(self._member, target), "source": sql.Identifier(self._member, row[0])}
        version = sql.Literal(self._head.schema_version + 1)
        self._conn.execute(CREATE_ROWS.format(**names, **relations, name=sql.Literal(target), version=version))

    def _write_data(self, table_id: int, found: _Data) -> None:
        restored = found.restored
        new_ids = self._take_ids(len(restored))
        ended = {**self._ids, "ids": [*found.added, *found.cut]}
        pairs = {**self._ids, "ids": restored, "new_ids": new_ids}
        # The positions of deleted rows are read before their files end.
        deletes = self._conn.execute(SELECT_DELETE_FILES, pairs).fetchall()
        self._conn.execute(END_FILES, ended)
        self._conn.execute(END_DELETE_FILES, ended)
        if restored:
            self._copy_files(table_id, pairs, deletes)
        for name, (count, _) in found.inlined.items():
            if count:
                self._conn.execute(END_ADDED.format(**self._rows, t=sql.Identifier(name)), self._ids)
                self._copy(ADD_ENDED, name, self._ids, self._begins, self._rows)
        self._conn.execute(DELETE_BOUNDS, {"tables": [table_id]})

    def _copy_files(self, table_id: int, pairs: Mapping[str, object], deletes: Sequence[tuple[int, int]]) -> None:
        """Give files new rows, with the rows deleted that were deleted before the snapshot."""
        renewed: dict[str, sql.Composable] = {**BEGINS, "partial_max": sql.SQL("NULL"), "data_file_id": NEW_ID}
        self._copy(COPY_ROWS, "ducklake_data_file", pairs, renewed, OF_FILE)
        for name in FILE_PARTS:
            self._copy(COPY_ROWS, "ducklake_" + name, pairs, {"data_file_id": NEW_ID}, OF_FILE)
        self._conn.execute(COPY_NOTES, pairs)
        files = {row[0]: row[1] for row in deletes}
        ids = self._take_ids(len(files))
        owners = sql.SQL("(SELECT x.owner FROM unnest({}::bigint[], {}::bigint[]) AS x(id, owner) WHERE x.id = f.delete_file_id)")
        owner = owners.format(sql.Literal(list(files)), sql.Literal(list(files.values())))
        renewed |= {"delete_file_id": NEW_ID, "data_file_id": owner}
        parameters = {**self._ids, "ids": list(files), "new_ids": ids}
        self._copy(COPY_ROWS, "ducklake_delete_file", parameters, renewed, {"key": sql.Identifier("delete_file_id")})
        name = f"ducklake_inlined_delete_{table_id}"
        if name in self._inlined:
            self._conn.execute(COPY_INLINED_DELETES.format(t=sql.Identifier(name)), pairs)

    def _copy(
        self,
        query: sql.SQL,
        table: str,
        parameters: Mapping[str, object],
        values: Mapping[str, sql.Composable],
        names: Mapping[str, sql.Composable],
    ) -> None:
        """Copy rows of a table into it. `values`: those of columns that change; a row of the table is `f`."""
        columns = read_columns(self._conn, self._member, table)
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        shown = sql.SQL(", ").join(values.get(column, sql.Identifier("f", column)) for column in columns)
        parts = {"t": sql.Identifier(table), "columns": listed, "values": shown}
        self._conn.execute(query.format(**names, **parts), parameters)

    def _take_ids(self, count: int) -> list[int]:
        first = self._next_file_id
        self._next_file_id += count
        return list(range(first, self._next_file_id))

    def _check_written(self) -> None:
        """Raise MergeConflicts if what is left does not go together."""
        unsound = SELECT_UNSOUND.format(p=sql.Identifier(self._member))
        found = [row[0] for row in self._conn.execute(unsound, {"new": sorted(self._dropped_tables)}).fetchall()]
        reshaped = {int(key[0]) for kind in ("column", "sort_info") for key, *_ in self._versions[kind]}
        found += list_unsound_columns(self._conn, reshaped)
        found += [f"there are two tables or views {row[0]}" for row in self._conn.execute(SELECT_TWICE).fetchall()]
        if found:
            raise MergeConflicts(f"Nothing was reverted, because what is left does not go together: {'; '.join(found)}.")

    def _finish(self) -> RevertResult:
        words = self._list_words()
        done = RevertResult(self._request.snapshot_id, self._ids["made"], {self._names.get(key, f"#{key}"): words[key] for key in words})
        is_reshaped = any(self._versions.values())
        after = Head(self._ids["made"], self._head.schema_version + is_reshaped, self._head.next_catalog_id, self._next_file_id)
        said = {
            "author": self._request.author or "duckicelake",
            "message": self._request.message or f"revert snapshot {self._request.snapshot_id}",
            "changes": format_changes(dict.fromkeys(self._list_tokens())),
            "extra": json.dumps({"revert": describe_revert(done)}),
        }
        self._conn.execute(INSERT_SNAPSHOT, {**asdict(after), **said})
        self._conn.execute(LOCK_CHANGES)
        self._conn.execute(NOTE_HISTORIES, {"tables": sorted(words)})
        return done

    def _list_words(self) -> dict[int, list[str]]:
        words: dict[int, list[str]] = {}
        for kind, word in (("column", "schema"), ("partition_info", "partitioning"), ("sort_info", "sorting"), ("column_tag", "comment")):
            for key, *_ in self._versions[kind]:
                words.setdefault(int(key[0]), []).append(word)
        for key, is_added, is_ended, *_ in self._versions["table"]:
            words[int(key[0])] = ["rename" if is_added and is_ended else "drop" if is_added else "create"]
        for key, *_ in self._versions["tag"]:
            if int(key[0]) in self._names:
                words.setdefault(int(key[0]), []).append("properties")
        for table_id, found in self._data.items():
            has_inlined = bool(found.inlined)
            words.setdefault(table_id, []).extend(
                [*(["delete"] if found.added or has_inlined else []), *(["append"] if found.restored or has_inlined else [])]
            )
        return {table_id: list(dict.fromkeys(each)) for table_id, each in sorted(words.items())}

    def _list_tokens(self) -> Iterable[Change]:
        for kind in ("schema", "table", "view", "macro"):
            for key, is_added, is_ended, *_ in self._versions[kind]:
                if is_added and not is_ended:
                    yield Change("dropped_scalar_macro" if kind == "macro" else f"dropped_{kind}", str(key[0]))
                elif kind in ("table", "view"):
                    yield Change(f"created_{kind}", quote_names(*read_name(self._conn, kind, int(key[0]))))
                    yield Change(f"altered_{kind}", str(key[0]))
        changed = {int(key[0]) for kind in OF_TABLES for key, *_ in self._versions[kind]}
        changed |= {int(key[0]) for key, *_ in self._versions["tag"] if int(key[0]) in self._names}
        yield from (Change("altered_table", str(table_id)) for table_id in sorted(changed - self._made_tables))
        yield from (Change("altered_view", str(key[0])) for key, *_ in self._versions["view_column_tag"])
        for table_id in self._data.keys() - self._made_tables:
            yield from (Change(kind, str(table_id)) for kind in (*CUTTING_KINDS, "inlined_insert"))


def _table(kind: VersionedKind) -> sql.Identifier:
    return sql.Identifier("ducklake_" + kind.name)


def _call(kind: str) -> str:
    return "namespace" if kind == "schema" else kind


def _build_refusal(request: RevertRequest, conflicts: Sequence[Conflict]) -> MergeConflicts:
    shown = "; ".join(f"{each.object_kind} {each.name}: {each.kind}: {each.reason} {each.remedy}." for each in conflicts[:10])
    more = "" if len(conflicts) <= 10 else f"; and {len(conflicts) - 10} more"
    return MergeConflicts(f"Snapshot {request.snapshot_id} was not reverted, {len(conflicts)} conflicts: {shown}{more}", conflicts)


def describe_revert(result: RevertResult, *, is_planned: bool = False) -> dict[str, Any]:
    """Return a revert as JSON; one that is only planned has no snapshot."""
    return {
        "reverted": result.reverted,
        "snapshot-id": None if is_planned else result.snapshot_id,
        "tables": {name: list(each) for name, each in result.tables.items()},
    }
