"""The SQL by which DuckDB gives a column a type that is published; to be pasted as it stands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.lake.rows import ColumnRow, TableRow
from duckicelake.translate.shape.leaf_types import format_sql_leaf

FindLeaf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ColumnTree:
    """The columns live at one lake snapshot, by parent (None: the table) in column order."""

    children: Mapping[int | None, Sequence[ColumnRow]]
    comments: Mapping[int, str]


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def format_remedy(table: TableRow, root: ColumnRow, tree: ColumnTree) -> str:
    """Return what to tell DuckDB so that a column gets a published type and keeps its name and values.

    Older snapshots do not have the column any more afterwards.
    """
    return f"Replace it with DuckDB, going on only as long as nothing fails: {format_replacement(table, root, tree)}"


def format_replacement(table: TableRow, root: ColumnRow, tree: ColumnTree, find_leaf: FindLeaf = format_sql_leaf) -> str:
    """Return the SQL by which DuckDB replaces a column by one of another type, with its name and values.

    `find_leaf` returns the SQL type that takes the place of a DuckLake leaf type.
    """
    taken = {row.column_name.lower() for row in tree.children.get(None, ())}
    spare = f"{root.column_name}_"
    while spare.lower() in taken:
        spare += "_"
    kind = format_sql_type(root, tree, find_leaf)
    name, old, new = f"{quote(table.schema_name)}.{quote(table.table_name)}", quote(root.column_name), quote(spare)
    steps = (
        ("ALTER TABLE", name, "ADD COLUMN", new, kind),
        ("UPDATE", name, "SET", new, "=", f"CAST({old} AS {kind})"),
        ("ALTER TABLE", name, "DROP COLUMN", old),
        ("ALTER TABLE", name, "RENAME COLUMN", new, "TO", old),
    )
    return f"{'; '.join(' '.join(words) for words in steps)};"


def format_sql_type(row: ColumnRow, tree: ColumnTree, find_leaf: FindLeaf = format_sql_leaf) -> str:
    """Return a column's type in SQL, leaves that are not published by what can take their place."""
    parts = [(child, format_sql_type(child, tree, find_leaf)) for child in tree.children.get(row.column_id, ())]
    match row.column_type.lower():
        case "struct":
            return f"STRUCT({', '.join(f'{quote(child.column_name)} {kind}' for child, kind in parts)})"
        case "list":
            return f"{parts[0][1]}[]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
        case leaf:
            return find_leaf(leaf)
