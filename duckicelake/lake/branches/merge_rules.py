"""The rules of a merge: which changes of the branch are applied to the lake, and which conflicts stop the merge. No I/O.

`merge` passes the `Changes` that `changes` has read; the rules copy its lists (`_without`) and remove versions from the copies only.
A merge with a conflict writes nothing. A rebase is decided by the same rules, and its plan is then written into the branch.
The rules, by what the branch did (rows) and what the lake did since the fork point (columns):

    branch        untouched  append  delete          compaction  schema  rename     drop
    append        take       union   union           union       union   union      conflict
    delete        take       apply   same file: conflict, conflict apply  apply      conflict
    overwrite,
    compaction    take       apply   same file: conflict, conflict apply  apply      conflict
    schema        take       apply   apply           apply       equal: fine, else conflict, apply, conflict
    rename        take       apply   apply           apply       apply   equal: fine, else conflict, conflict
    drop          drop       conflict conflict       drop        conflict conflict   fine
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.errors import BadRequest
from duckicelake.lake.branches.changes import Changes, FileChanges, LiveObject, SideVersions
from duckicelake.lake.branches.layout import OF_TABLES
from duckicelake.lake.changes import REWRITE_KINDS
from duckicelake.lake.writing.dropped import PROTECTION

TAGS = ("tag", "column_tag", "view_column_tag")
FLUSH = "CALL ducklake_flush_inlined_data"
REBASE = "Make a new branch of the present state and repeat the change there, or leave the object out with ours"

CANCEL, OURS, THEIRS = "cancel", "ours", "theirs"
CHOICES = (CANCEL, OURS, THEIRS)
TAKEN_ROWS: Mapping[str, tuple[str, ...]] = {
    "property/property": ("tag", "column_tag"),
    "rename/rename": ("table",),
    "view/view": ("view",),
    "partitioning/partitioning": ("partition_info",),
    "sorting/sorting": ("sort_info",),
    "drop/change": (),
}
"""The kinds of conflicts of which a merge can take the branch's side (`theirs`), and the rows of the lake that end then.

The others are about rows and columns: files of both sides were written for what the lake has, and cannot be taken back by ending rows.
"""
NOT_THEIRS = "`theirs` decides conflicts of names, properties, views, partitionings, sort orders and dropped tables alone"


@dataclass(frozen=True, slots=True)
class Conflict:
    """An obstacle to a merge: the object, the changes of each side, why both cannot stand, and what to do.

    `kind` has the branch's change first: `delete/compaction`. `object_id` identifies the object in the rules, `key` one property of it.
    """

    kind: str
    object_kind: str
    name: str
    branch: Sequence[str]
    main: Sequence[str]
    reason: str
    remedy: str
    object_id: int = -1
    key: tuple[int | str, ...] = ()


@dataclass(slots=True)
class MergePlan:
    """The rows that a merge writes: versions of rows to add and to end, by kind, and the data of tables.

    `schemas`: namespaces of the branch that are others of the lake. `new_tables`, `dropped_tables`, `reshaped`: tables that are made and
    dropped, and those whose columns, partitioning or name change. `shaped_on_main`: tables that have the columns of the lake.
    `noted`: tables of which Iceberg clients changed what DuckLake has no rows for: definitions and the format version.
    """

    versions: dict[str, SideVersions]
    files: dict[int, FileChanges]
    schemas: dict[int, int] = field(default_factory=dict[int, int])
    new_tables: set[int] = field(default_factory=set[int])
    dropped_tables: set[int] = field(default_factory=set[int])
    reshaped: set[int] = field(default_factory=set[int])
    shaped_on_main: set[int] = field(default_factory=set[int])
    noted: set[int] = field(default_factory=set[int])

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return not self.files and not self.noted and not any(side.added or side.ended for side in self.versions.values())


@dataclass(frozen=True, slots=True)
class Resolution:
    """The choices for conflicts, for the whole merge and by object: `cancel` it, keep the lake's side (`ours`), or take the branch's."""

    default: str = CANCEL
    by_name: Mapping[str, str] = field(default_factory=dict[str, str])

    def choose(self, name: str) -> str:
        """Return the choice for an object."""
        return self.by_name.get(name, self.default)


def build_resolution(default: str, by_name: Mapping[str, str]) -> Resolution:
    """Return what to do about conflicts. Raises: BadRequest: one of the texts is no choice, or names no object."""
    for name, choice in {"on_conflict": default, **by_name}.items():
        if choice not in CHOICES or not name:
            raise BadRequest(f"{choice[:64]!r} is no choice for {name[:64]!r}; conflicts have the choices {', '.join(CHOICES)}.")
    return Resolution(default, by_name)


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan of a merge, the conflicts that stand against it, and those that were resolved.

    `left_out`: the branch's change is left out. `overruled`: the lake's change ends.
    """

    plan: MergePlan
    conflicts: Sequence[Conflict]
    left_out: Sequence[Conflict]
    overruled: Sequence[Conflict] = ()


def decide(changes: Changes, resolution: Resolution | None = None) -> Decision:
    """Return what a merge does. Objects whose lake's side is kept are left out, and the rules are applied again to the rest."""
    wanted, left_out, excluded = resolution or Resolution(), list[Conflict](), set[int]()
    while True:
        rules = _Rules(changes, excluded, {each.key for each in left_out})
        found = list(rules.list_conflicts())
        overruled = [each for each in found if wanted.choose(each.name) == THEIRS and each.kind in TAKEN_ROWS]
        conflicts = [each for each in found if each not in overruled]
        resolved = [each for each in conflicts if wanted.choose(each.name) == OURS and each not in left_out]
        if len(resolved) < len(conflicts) or not conflicts:
            for each in overruled:
                _overrule(rules.plan, changes, each)
            return Decision(rules.plan, [_explain(each, wanted) for each in conflicts], left_out, overruled)
        left_out += resolved
        excluded |= {each.object_id for each in resolved if not each.key}


def _explain(conflict: Conflict, wanted: Resolution) -> Conflict:
    """Return a conflict that stands, with the reason if the branch's side was to be taken."""
    return replace(conflict, remedy=f"{conflict.remedy}. {NOT_THEIRS}") if wanted.choose(conflict.name) == THEIRS else conflict


def _overrule(plan: MergePlan, changes: Changes, conflict: Conflict) -> None:
    """Let the versions of rows end that the lake has of an object, or of one property of it, in place of those that it has ended itself."""
    for kind in TAKEN_ROWS[conflict.kind]:
        side, lake = plan.versions[kind], changes.main[kind]
        if conflict.key:
            side.ended = [version for version in side.ended if version[:-1] != conflict.key]
            # A namespace that both sides made has the lake's id.
            key = (plan.schemas.get(int(conflict.key[0]), conflict.key[0]), *conflict.key[1:])
            side.ended += [version for version in lake.added if version[:-1] == key]
        else:
            side.ended = [version for version in side.ended if version[0] != conflict.object_id]
            side.ended += [version for version in lake.added if version[0] == conflict.object_id]


class _Rules:
    """The rules, applied to the branch's changes without those of excluded objects."""

    def __init__(self, changes: Changes, excluded: set[int], excluded_keys: set[tuple[int | str, ...]]) -> None:
        self._changes = changes
        self._excluded = excluded
        point = changes.point
        self._lake = f"the branch {point.parent_name!r}" if point.has_parent_branch else "the lake"
        self._main_live = {each.object_id: each for each in changes.main_objects}
        self._branch_live = {each.object_id: each for each in changes.branch_objects}
        versions = {kind: _without(side, excluded) for kind, side in changes.branch.items()}
        for kind in TAGS:
            for key in excluded_keys:
                _forget_key(versions[kind], key)
        files = {table_id: found for table_id, found in changes.files.items() if table_id not in excluded}
        self.plan = MergePlan(versions, files)
        self._branch, self._main = Side(versions), Side(changes.main)
        self.plan.new_tables = self._branch.made("table")
        gone = self._main.dropped("table")
        self.plan.dropped_tables = self._branch.dropped("table") - gone
        for kind in ("schema", "table", "view", "macro"):
            for object_id in self._branch.dropped(kind) & self._main.dropped(kind):
                for side in versions.values():
                    _forget(side, object_id)
        for table_id in [each for each in files if each not in self._branch_live]:
            del files[table_id]
        changed = {*self._branch.tables_of("column", "partition_info"), *self._branch.renamed("table")}
        self.plan.reshaped = changed - self.plan.new_tables - self._branch.dropped("table")
        self.plan.shaped_on_main = self._main.tables_of("column")
        self._tables = self._branch.tables_of("table", *OF_TABLES) | set(files)
        self._tables |= {int(key[0]) for key in versions["tag"].list_keys() if self._is_table(int(key[0]))}
        noted = {each for each in changes.definitions[changes.point.source] if self._list_noted(each)} | changes.upgraded
        noted = {each for each in noted - excluded - self.plan.new_tables if each in self._branch_live}
        self._tables |= noted
        self.plan.noted = {each for each in noted if each in self._main_live}

    def _list_noted(self, table_id: int) -> set[str]:
        """Return what clients of the branch changed in notes alone; DuckLake has rows for changes of columns."""
        found = self._changes.definitions[self._changes.point.source].get(table_id)
        carried = {"column"} if table_id in self._branch.tables_of("column") else set[str]()
        return set() if found is None else set(found.changed) - carried

    def list_conflicts(self) -> Iterator[Conflict]:
        """Yield what stands against the merge."""
        for table_id in sorted(self._tables):
            yield from self._check_table(table_id)
        yield from self._check_refs()
        yield from self._check_views()
        yield from self._check_tags()
        yield from self._check_namespaces()
        yield from self._check_names()

    def _check_table(self, table_id: int) -> Iterator[Conflict]:
        if table_id in self.plan.new_tables:
            yield from self._check_inlined(table_id)
            return
        if table_id in self._branch.dropped("table"):
            if table_id not in self.plan.dropped_tables:
                return
            yield from self._check_protection(table_id, "table")
            kinds = self._describe_main(table_id)
            if set(kinds) - {"compaction"}:
                yield self._conflict(
                    "drop/change", table_id, f"The table is dropped on the branch, and was changed on {self._lake}.", REBASE
                )
            return
        if table_id in self._main.dropped("table"):
            yield self._conflict("change/drop", table_id, f"The table was dropped on {self._lake}.", REBASE)
            return
        yield from self._check_name(table_id)
        yield from self._check_shape(table_id)
        yield from self._check_definition(table_id)
        yield from self._check_files(table_id)
        yield from self._check_inlined(table_id)

    def _check_refs(self) -> Iterator[Conflict]:
        """Refs and staged snapshots are notes alone: the table may have no other change."""
        for table_id in sorted(self._changes.tables_with_refs - self._excluded):
            if table_id in self._branch_live:
                reason = f"The table has branches, tags or staged snapshots of its own on the branch, which {self._lake} will not have."
                remedy = "Remove these refs of the table on the branch, and publish or remove its staged snapshots."
                yield self._conflict("refs/any", table_id, reason, remedy)

    def _check_name(self, table_id: int) -> Iterator[Conflict]:
        if table_id in self._branch.renamed("table") and self._branch_live[table_id].schema_id != self._main_live[table_id].schema_id:
            yield from self._check_protection(self._main_live[table_id].schema_id, "schema")
        if table_id not in self._branch.renamed("table") or table_id not in self._main.renamed("table"):
            return
        mine, theirs = self._branch_live[table_id], self._main_live[table_id]
        if (mine.schema_id, mine.name) == (theirs.schema_id, theirs.name):
            _forget(self.plan.versions["table"], table_id)
        else:
            reason = f"The table is called {mine.name!r} on the branch and {theirs.name!r} on {self._lake}."
            yield self._conflict("rename/rename", table_id, reason, f"Give it {self._lake}'s name on the branch too.")

    def _check_shape(self, table_id: int) -> Iterator[Conflict]:
        for kind, word in (("column", "schema"), ("partition_info", "partitioning"), ("sort_info", "sorting")):
            if table_id not in self._branch.tables_of(kind) or table_id not in self._main.tables_of(kind):
                continue
            if kind == "column" and (table_id,) in self._changes.equal["column"]:
                _forget(self.plan.versions["column"], table_id)
            else:
                reason = f"Its {word} was changed on both sides, differently."
                yield self._conflict(
                    f"{word}/{word}", table_id, reason, f"Make the same change on the branch as on {self._lake}, or undo it there."
                )
        yield from self._check_named_columns(table_id)
        buckets = self._changes.bucketed
        added = table_id in self.plan.files and self.plan.files[table_id].added_count
        theirs = "append" in self._changes.main_data.get(table_id, ())
        if (table_id in buckets[self._changes.point.source] and theirs) or (table_id in buckets[self._changes.point.target] and added):
            reason = "One side partitioned the table into buckets, and the other one added files that are in no bucket."
            yield self._conflict("partitioning/append", table_id, reason, REBASE)

    def _check_definition(self, table_id: int) -> Iterator[Conflict]:
        """A definition of the branch's clients becomes the lake's as a whole, so the lake must not have another one since."""
        mine, theirs = (self._changes.definitions[side].get(table_id) for side in (self._changes.point.source, self._changes.point.target))
        is_changed = theirs is not None or table_id in self._main.tables_of("column", "partition_info", "sort_info")
        if not self._list_noted(table_id) or not is_changed or (mine and theirs and mine.values == theirs.values):
            return
        reason = f"Iceberg clients changed its schema, spec or sort order on the branch, and one of these was changed on {self._lake}."
        yield self._conflict("definition/definition", table_id, reason, REBASE)

    def _check_named_columns(self, table_id: int) -> Iterator[Conflict]:
        """A new partitioning or sorting on one side, and a change of a column that it names on the other."""
        point, unfit = self._changes.point, self._changes.unfit
        for kind, word in (("partition_info", "partitioning"), ("sort_info", "sorting")):
            reason = f"The {word} of one side names a column that the other side changed."
            if table_id in unfit[kind, point.source] & self._branch.tables_of(kind):
                yield self._conflict(f"{word}/schema", table_id, reason, "Make the same change of the column on the branch.")
            elif table_id in unfit[kind, point.target] & self._branch.tables_of("column"):
                yield self._conflict(f"schema/{word}", table_id, reason, "Undo the change of the column on the branch.")

    def _check_protection(self, object_id: int, kind: str) -> Iterator[Conflict]:
        """Yield a conflict if the lake protects an object that the branch dropped or moved away."""
        ids = {object_id} if kind == "schema" else {object_id, self._main_live[object_id].schema_id}
        if ids & self._changes.protected:
            reason = f"The property {PROTECTION!r} on {self._lake} protects it, or its namespace, from being dropped."
            remedy = f"Remove the property on {self._lake} first, or keep the object with ours."
            yield self._conflict("drop/protected", object_id, reason, remedy, kind)

    def _check_files(self, table_id: int) -> Iterator[Conflict]:
        found = self.plan.files.get(table_id)
        if found is None:
            return
        if self._may_be_compacted(table_id, on_branch=True) and self._may_be_compacted(table_id, on_branch=False):
            yield self._conflict("compaction/compaction", table_id, "Both sides have, or may have, put its files together.", REBASE)
            return
        removed = set(found.removed)
        what = "compaction" if self._may_be_compacted(table_id, on_branch=False) else "delete"
        if found.lost:
            mine = "overwrite" if found.lost & removed else "delete"
            reason = f"{len(found.lost)} of the files in which the branch changed rows are no longer on {self._lake}: {_show(found.lost)}."
            yield self._conflict(f"{mine}/{what}", table_id, reason, REBASE)
        elif found.met:
            mine = "overwrite" if found.met & removed else "delete"
            reason = f"Both sides deleted or changed rows of {len(found.met)} files: {_show(found.met)}."
            yield self._conflict(f"{mine}/delete", table_id, reason, REBASE)
        elif found.unflushed:
            reason = f"The branch has flushed deletes of {len(found.unflushed)} files that are inlined on {self._lake} still."
            yield self._conflict(
                "compaction/any", table_id, reason, f"{REBASE}. Flush inlined deletes on {self._lake} before a branch is made."
            )
        if found.lost_rows:
            reason = f"{found.lost_rows} inlined rows that the branch deleted, changed or flushed are not as before on {self._lake} either."
            yield self._conflict(f"delete/{what}", table_id, reason, REBASE)

    def _check_inlined(self, table_id: int) -> Iterator[Conflict]:
        found = self.plan.files.get(table_id)
        if found is None:
            return
        if found.has_old_shapes:
            reason = "Inlined rows of the branch have columns that the table had only for a time on the branch."
            yield self._conflict("append/any", table_id, reason, f"Flush them on the branch ({FLUSH}), and merge again.")

    def _check_views(self) -> Iterator[Conflict]:
        both = {int(key[0]) for key in self._branch.keys("view")} & {int(key[0]) for key in self._main.keys("view")}
        for view_id in sorted(both):
            if view_id not in self._branch_live and view_id not in self._main_live:
                continue
            if (view_id,) in self._changes.equal["view"]:
                _forget(self.plan.versions["view"], view_id)
            else:
                yield self._conflict("view/view", view_id, "The view was changed or dropped on both sides.", REBASE, "view")

    def _check_tags(self) -> Iterator[Conflict]:
        for kind in TAGS:
            for key in sorted(self._branch.keys(kind) & self._main.keys(kind), key=str):
                object_id = int(key[0])
                if self._is_dropped(object_id):
                    continue
                live = {version[:-1] for each in (self.plan.versions[kind], self._changes.main[kind]) for version in each.added}
                if key in self._changes.equal[kind] or key not in live:
                    _forget_key(self.plan.versions[kind], key)
                else:
                    reason = f"The property {key[-1]!r} was changed on both sides, differently."
                    found = self._conflict("property/property", object_id, reason, f"Set it on the branch to {self._lake}'s value.", None)
                    yield replace(found, key=key)

    def _check_namespaces(self) -> Iterator[Conflict]:
        by_name = {(each.schema_id, each.name.lower()): each for each in self._changes.main_objects if each.kind == "schema"}
        # A parent is made before the namespaces in it, and has a smaller id.
        for schema_id in sorted(self._branch.made("schema")):
            mine = self._branch_live[schema_id]
            theirs = by_name.get((self.plan.schemas.get(mine.schema_id, mine.schema_id), mine.name.lower()))
            if theirs is None:
                continue
            self.plan.schemas[schema_id] = theirs.object_id
            _forget(self.plan.versions["schema"], schema_id)
            if mine.name != theirs.name:
                reason = f"There is a namespace {theirs.name!r} on {self._lake}, whose name differs by case alone."
                yield self._conflict("create/create", schema_id, reason, "Rename one of them.", "schema")
            yield from self._check_namespace_tags(schema_id)
        gone = self._main.dropped("schema")
        for each in self._changes.branch_objects:
            if each.schema_id in gone and (each.object_id,) in self._branch.added_keys(each.kind):
                reason = f"Its namespace was dropped on {self._lake}."
                yield self._conflict(
                    "create/drop", each.object_id, reason, f"Create the namespace on {self._lake} again, under the same name.", each.kind
                )
        for schema_id in sorted(self._branch.dropped("schema") - gone):
            yield from self._check_protection(schema_id, "schema")
            left = [
                each
                for each in self._changes.main_objects
                if each.schema_id == schema_id and (each.object_id,) not in self._branch.ended_keys(each.kind)
            ]
            if left:
                reason = f"The branch dropped the namespace; {left[0].name!r} is in it on {self._lake}."
                yield self._conflict("drop/create", schema_id, reason, f"Move or drop what is in it on {self._lake}.", "schema")

    def _check_namespace_tags(self, schema_id: int) -> Iterator[Conflict]:
        """Properties of a namespace that both sides made: what the lake's has not is added to it."""
        for (object_id, key), is_equal in self._changes.namespace_tags.items():
            tag = (object_id, key)
            if object_id != schema_id or is_equal is None or tag not in self._branch.added_keys("tag"):
                continue
            if is_equal:
                _forget_key(self.plan.versions["tag"], tag)
            else:
                reason = f"Both sides made the namespace, with different values of the property {key!r}."
                found = self._conflict("property/property", object_id, reason, f"Set it on the branch to {self._lake}'s value.", "schema")
                yield replace(found, key=tag)

    def _check_names(self) -> Iterator[Conflict]:
        """Tables and views share their names, which differ by more than case; macros have names of their own."""
        taken: dict[tuple[int, str, bool], LiveObject] = {}
        for each in self._changes.main_objects:
            if each.kind != "schema" and (each.object_id,) not in self._branch.ended_keys(each.kind):
                taken[each.schema_id, each.name.lower(), each.kind == "macro"] = each
        for each in self._changes.branch_objects:
            if each.kind == "schema" or (each.object_id,) not in self._branch.added_keys(each.kind):
                continue
            schema_id = self.plan.schemas.get(each.schema_id, each.schema_id)
            other = taken.get((schema_id, each.name.lower(), each.kind == "macro"))
            if other is not None and other.object_id != each.object_id:
                reason = f"A {other.kind} {other.name!r} is there on {self._lake}, made since the branch was."
                yield self._conflict("create/create", each.object_id, reason, "Rename one of them.", each.kind)

    def _may_be_compacted(self, table_id: int, *, on_branch: bool) -> bool:
        """True if a side has put files of a table together, or may have: entries of its history have expired."""
        history = self._changes.branch_history if on_branch else self._changes.main_history
        if history.kinds.get(table_id, set()) & REWRITE_KINDS:
            return True
        found = self.plan.files.get(table_id)
        has_files = bool(found and found.added_count) if on_branch else "append" in self._changes.main_data.get(table_id, ())
        return not history.is_whole and has_files

    def _describe_branch(self, table_id: int) -> list[str]:
        words = self._describe_versions(table_id, self._branch)
        words += ["definition"] if self._list_noted(table_id) or table_id in self._changes.upgraded else []
        words += ["refs"] if table_id in self._changes.tables_with_refs else []
        found = self.plan.files.get(table_id)
        if found is not None:
            is_compacted = bool(self._changes.branch_history.kinds.get(table_id, set()) & REWRITE_KINDS)
            words += ["append"] if found.added_count or found.new_inlined else []
            words += ["delete"] if found.cut or found.ended_rows else []
            words += ["compaction" if is_compacted else "overwrite"] if found.removed else []
        return words

    def _describe_main(self, table_id: int) -> list[str]:
        words = self._describe_versions(table_id, self._main)
        defined = self._changes.definitions[self._changes.point.target].get(table_id)
        words += ["definition"] if defined is not None and defined.changed else []
        shown, said = self._changes.main_data.get(table_id, set[str]()), self._changes.main_history.kinds.get(table_id, set[str]())
        if said & REWRITE_KINDS:
            # The rows of a compaction look like appends and deletes; the entries say which it was, if there are all of them.
            said_words = {word for word, kinds in DATA_WORDS.items() if said & kinds}
            shown = said_words if self._changes.main_history.is_whole else shown | said_words
            return [*words, "compaction", *sorted(shown)]
        return [*words, *sorted(shown)]

    def _describe_versions(self, table_id: int, side: "Side") -> list[str]:
        words = [word for word, is_so in (("drop", side.dropped("table")), ("rename", side.renamed("table"))) if table_id in is_so]
        kinds = {"column": "schema", "partition_info": "partitioning", "sort_info": "sorting", "column_tag": "comment"}
        words += [word for kind, word in kinds.items() if table_id in side.tables_of(kind) and "drop" not in words]
        has_tags = any(int(key[0]) == table_id for key in side.keys("tag"))
        return [*words, *(["properties"] if has_tags and "drop" not in words else [])]

    def _is_table(self, object_id: int) -> bool:
        return any(live.get(object_id) is not None and live[object_id].kind == "table" for live in (self._branch_live, self._main_live))

    def _is_dropped(self, object_id: int) -> bool:
        return object_id not in self._branch_live or object_id not in self._main_live

    def _conflict(self, kind: str, object_id: int, reason: str, remedy: str, object_kind: str | None = "table") -> Conflict:
        known = self._main_live.get(object_id) or self._branch_live.get(object_id)
        shown = object_kind or ("table" if known is None else known.kind)
        if shown != "table":
            words = kind.split("/")
            return Conflict(kind, _call(shown), self._name(known, object_id), words[:1], words[1:], reason, remedy, object_id)
        mine, theirs = self._describe_branch(object_id), self._describe_main(object_id)
        return Conflict(kind, "table", self._name(known, object_id), mine, theirs, reason, remedy, object_id)

    def _name(self, known: LiveObject | None, object_id: int) -> str:
        if known is None:
            return f"#{object_id}"
        parent = self._main_live.get(known.schema_id) or self._branch_live.get(known.schema_id)
        return known.name if parent is None else f"{self._name(parent, parent.object_id)}.{known.name}"


DATA_WORDS: Mapping[str, frozenset[str]] = {
    "append": frozenset({"inserted_into_table", "inlined_insert"}),
    "delete": frozenset({"deleted_from_table", "inlined_delete"}),
}


class Side:
    """The changes of objects by one side, looked up by kind."""

    def __init__(self, versions: Mapping[str, SideVersions]) -> None:
        self._added = {kind: {version[:-1] for version in side.added} for kind, side in versions.items()}
        self._ended = {kind: {version[:-1] for version in side.ended} for kind, side in versions.items()}

    def keys(self, kind: str) -> set[tuple[int | str, ...]]:
        """Return the keys of changed rows."""
        return self._added[kind] | self._ended[kind]

    def added_keys(self, kind: str) -> set[tuple[int | str, ...]]:
        """Return the keys of rows with a new version."""
        return self._added[kind]

    def ended_keys(self, kind: str) -> set[tuple[int | str, ...]]:
        """Return the keys of rows of which a version ended."""
        return self._ended[kind]

    def made(self, kind: str) -> set[int]:
        """Return the objects that the side made."""
        return {int(key[0]) for key in self._added[kind] - self._ended[kind]}

    def dropped(self, kind: str) -> set[int]:
        """Return the objects that the side dropped."""
        return {int(key[0]) for key in self._ended[kind] - self._added[kind]}

    def renamed(self, kind: str) -> set[int]:
        """Return the objects that the side renamed or moved."""
        return {int(key[0]) for key in self._added[kind] & self._ended[kind]}

    def tables_of(self, *kinds: str) -> set[int]:
        """Return the tables with changed rows of these kinds."""
        return {int(key[0]) for kind in kinds for key in self.keys(kind)}


def _without(side: SideVersions, excluded: set[int]) -> SideVersions:
    added, ended = ([version for version in each if version[0] not in excluded] for each in (side.added, side.ended))
    return SideVersions(added, ended)


def _forget(side: SideVersions, object_id: int) -> None:
    """Leave out the versions of an object: the lake has the same."""
    side.added = [version for version in side.added if version[0] != object_id]
    side.ended = [version for version in side.ended if version[0] != object_id]


def _forget_key(side: SideVersions, key: tuple[int | str, ...]) -> None:
    side.added = [version for version in side.added if version[:-1] != key]
    side.ended = [version for version in side.ended if version[:-1] != key]


def _show(ids: Iterable[int]) -> str:
    shown = sorted(ids)
    return ", ".join(map(str, shown[:5])) + (" and more" if len(shown) > 5 else "")


def _call(kind: str) -> str:
    return "namespace" if kind == "schema" else kind
