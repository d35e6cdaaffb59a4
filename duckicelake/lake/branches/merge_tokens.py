"""The entries of `changes_made` for the lake snapshot of a merge, and words for its report. No I/O.

`lake.branches.merge` calls it for merges and rebases, under the locks of both, after the rows and before the lake snapshot are written; the
words also for a preview. The entries make open transactions of DuckDB conflict where they must: an entry for an insert and one for a delete
together also conflict with inlined deletes, which neither of them does by itself.
"""

from collections.abc import Iterator, Sequence

from duckicelake.lake.branches.changes import Changes, LiveObject
from duckicelake.lake.branches.merge_rules import MergePlan, Side
from duckicelake.lake.changes import Change, quote_names

PROPERTIES = ("sort_info", "tag", "column_tag")


def list_tokens(changes: Changes, plan: MergePlan) -> list[Change]:
    """Return the entries for the lake snapshot of a merge, those of objects before those of rows."""
    return list(dict.fromkeys([*_list_object_tokens(changes, plan), *_list_data_tokens(plan)]))


def _list_object_tokens(changes: Changes, plan: MergePlan) -> Iterator[Change]:
    side, names = Side(plan.versions), _Names(changes, plan)
    for schema_id in sorted(side.made("schema")):
        yield Change("created_schema", quote_names(names.branch[schema_id].name))
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
        """Return the namespace and the name that an object has after the merge."""
        known: LiveObject = self.branch.get(object_id) or self.main[object_id]
        schema_id = self._schemas.get(known.schema_id, known.schema_id)
        parent = self.branch.get(known.schema_id) or self.main.get(schema_id)
        return ("" if parent is None else parent.name, known.name)


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
        f"{word} {'namespace' if kind == 'schema' else kind} {_format_name(names, kind, object_id)}"
        for kind in ("schema", "view", "macro")
        for word, ids in (("create", side.made(kind)), ("drop", side.dropped(kind)), ("change", side.renamed(kind)))
        for object_id in sorted(ids)
    ]
    return tables, others


def _format_name(names: _Names, kind: str, object_id: int) -> str:
    return names.split(object_id)[1] if kind == "schema" else ".".join(names.split(object_id))
