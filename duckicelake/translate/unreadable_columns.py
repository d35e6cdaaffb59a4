"""The table property `iceberg.unreadable-columns`: with `hide`, a column that Iceberg cannot represent is left out of the schemas.

A column is left out whole, also if only a nested field cannot be represented. DuckDB has all columns. Pure functions: `schemas`,
`catalog.snapshot_building` and `catalog.row_files` call them for loads, `to_ducklake` and `catalog.commits.look_up` for commits.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import PrimitiveType, walk_fields
from duckicelake.lake.rows import ColumnRow, TagRow
from duckicelake.translate.namespaces import fold_name
from duckicelake.translate.types import HIDE, NESTED_TYPES, PROPERTY, REFUSE, VARIANT, ColumnTree, find_primitive, is_live, is_placeholder


def hides_columns(tags: Iterable[TagRow]) -> bool:
    """Return True if a table leaves out the columns that Iceberg cannot represent."""
    return any(tag.key == PROPERTY and tag.value == HIDE for tag in tags)


def check_property(properties: Mapping[str, str]) -> None:
    """Raise BadRequest if the property has another value than the two that there are."""
    value = properties.get(PROPERTY, REFUSE)
    if value not in (REFUSE, HIDE):
        raise BadRequest(f"The property {PROPERTY!r} is {value[:100]!r}; it must be {REFUSE!r} or {HIDE!r}.")


def list_left_out(tree: ColumnTree, never_shown: Collection[int]) -> frozenset[int]:
    """Return the columns with a leaf whose type is not published, each with all its fields, unless that leaf is `never_shown`."""
    found: set[int] = set()
    for root in tree.children.get(None, ()):
        rows = list(_walk(root, tree))
        leaves = [row for row in rows if row.column_type.lower() not in NESTED_TYPES and row.column_id not in never_shown]
        if any(row.column_type.lower() == VARIANT or _is_unpublished(row) for row in leaves):
            found.update(row.column_id for row in rows)
    return frozenset(found)


def _is_unpublished(row: ColumnRow) -> bool:
    column_type = row.column_type.lower()
    return column_type not in NESTED_TYPES and find_primitive(column_type) is None


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """The versions that are left of the columns of a table, and the one of them that is not seen. `oldest` is the lake's oldest snapshot:
    of what ended before it, nothing is left.
    """

    columns: Sequence[ColumnRow]
    root: ColumnRow
    oldest: int

    def may_have_values(self, begin_snapshot: int, is_noted: bool, is_own: bool) -> bool:
        """Return True unless it is proven that a data file has no value of the column: see `FileOrigin`.

        A file has none from before the column, and a client's own has none if no version of the column until then could be published.
        """
        if not is_noted:
            return True
        first = min(row.begin_snapshot for row in self.columns if row.column_id == self.root.column_id)
        if first > max(begin_snapshot, self.oldest):
            return False
        parts = self._list_parts()
        moments = {at for row in parts for at in (row.begin_snapshot, row.end_snapshot) if at is not None and first <= at <= begin_snapshot}
        return not is_own or not all(any(is_live(row, at) and _is_unpublished(row) for row in parts) for at in (*moments, begin_snapshot))

    def _list_parts(self) -> list[ColumnRow]:
        """Return all versions of the column and of the fields within it."""
        known = {self.root.column_id}
        while found := {row.column_id for row in self.columns if row.parent_column in known} - known:
            known |= found
        return [row for row in self.columns if row.column_id in known]


def is_any_within(column_ids: Collection[int], root: ColumnRow, tree: ColumnTree) -> bool:
    """Return True if a column, or a field within it, is one of these."""
    return bool(column_ids) and any(row.column_id in column_ids for row in _walk(root, tree))


def _walk(row: ColumnRow, tree: ColumnTree) -> Iterable[ColumnRow]:
    yield row
    for child in tree.children.get(row.column_id, ()):
        yield from _walk(child, tree)


def list_unseen(columns: Iterable[ColumnRow], shown: Schema) -> list[ColumnRow]:
    """Return the live columns of a table that its published schema leaves out, without placeholders, which hold nothing."""
    known = {field.field_id for field in shown.fields}
    live = (row for row in columns if row.end_snapshot is None and row.parent_column is None)
    return [row for row in live if row.column_id not in known and not is_placeholder(row)]


def select_seen(columns: Iterable[ColumnRow], shown: Schema) -> list[ColumnRow]:
    """Return the columns and nested fields that a table's published schema has."""
    known = {item.field_id for _, item in walk_fields(shown.fields)}
    return [row for row in columns if row.column_id in known]


def check_names_free(unseen: Sequence[ColumnRow], after: Schema) -> None:
    """Raise BadRequest if a client gives a column the name of one that it does not see."""
    taken = {fold_name(row.column_name): row for row in unseen}
    for field in after.fields:
        row = taken.get(fold_name(field.name))
        if row is not None:
            raise BadRequest(
                f"Column {field.name!r} has the name of a column of the type {row.column_type} that DuckDB has, and that {PROPERTY}={HIDE} "
                "leaves out; choose another name."
            )


def check_variants(before: Schema | None, after: Schema, properties: Mapping[str, str]) -> None:
    """Raise BadRequest if a client adds a column of the type `variant` to a table that leaves out such columns."""
    if properties.get(PROPERTY) != HIDE:
        return
    known = () if before is None else [item.field_id for _, item in walk_fields(before.fields)]
    added = [path for path, item in walk_fields(after.fields) if item.type == PrimitiveType(VARIANT) and item.field_id not in known]
    if added:
        raise BadRequest(f"Column {added[0]!r} has the type {VARIANT}, and {PROPERTY}={HIDE} leaves out such columns; choose another type.")


def check_stays_readable(unseen: Sequence[ColumnRow], before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise BadRequest if the table would no longer leave out columns, and so become unreadable, by a client's change."""
    if unseen and before.get(PROPERTY) == HIDE and after.get(PROPERTY) != HIDE:
        names = ", ".join(repr(row.column_name) for row in unseen)
        raise BadRequest(
            f"Without {PROPERTY}={HIDE}, no Iceberg client could read the table, because of {names}; replace or drop what it hides with "
            "DuckDB first."
        )


def check_appendable(unseen: Sequence[ColumnRow]) -> None:
    """Raise BadRequest if a column that a client's files cannot have needs a value in each row."""
    for row in unseen:
        if not row.nulls_allowed and row.initial_default is None:
            raise BadRequest(
                f"Iceberg clients cannot add rows: the column {row.column_name!r} of the type {row.column_type} is NOT NULL, and "
                f"{PROPERTY}={HIDE} leaves it out. Drop NOT NULL with DuckDB, or add the rows with DuckDB."
            )


def build_rewrite_refusal(unseen: Sequence[ColumnRow]) -> BadRequest:
    """Return the refusal of a snapshot that writes rows again that may have values in columns that the client does not see."""
    names = ", ".join(repr(row.column_name) for row in unseen)
    return BadRequest(
        f"The commit replaces rows with new files, and would lose their values of {names}, which {PROPERTY}={HIDE} leaves out. "
        "Change these rows with DuckDB, or delete rows in a commit of its own."
    )
