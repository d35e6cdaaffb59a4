"""DuckLake's name mappings (`ducklake_add_data_files`) as Iceberg's `schema.name-mapping.default`.

DuckLake has a mapping for each added file, Iceberg one for all files without field ids. So the mappings of a
table are merged, and a file is published only if the merged mapping reads it exactly as its own does.
`catalog` calls this for loads, commits and registrations, with columns that it has read from the files' footers, and the
job `import` uses its values. No I/O.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.lake.rows import ColumnRow, NameMappingRow
from duckicelake.translate.types import reads_as_stored

PROPERTY = "schema.name-mapping.default"

NARROW_INT = re.compile("u?int(8|16|32)")

NamePath = tuple[str, ...]
"""Names from the root column down; a list's element is `element`, a map's are `key` and `value`."""


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of a Parquet file at every level, each with its field id, or None.

    `kinds` are the Arrow types of the leaves.
    """

    field_ids: Mapping[NamePath, int | None]
    kinds: Mapping[NamePath, str] = field(default_factory=dict[NamePath, str])


@dataclass(slots=True)
class _Node:
    names: set[str] = field(default_factory=set[str])
    children: dict[int, "_Node"] = field(default_factory=dict[int, "_Node"])


@dataclass(frozen=True, slots=True)
class NameMapping:
    """The merged mapping of a table: `by_mapping` has the paths of each DuckLake mapping, `merged` all of them.

    `field_ids` are those of all columns that the table has ever had, `types` all DuckLake types of each.
    """

    by_mapping: Mapping[int, Mapping[NamePath, int]]
    merged: Mapping[NamePath, int]
    hive_columns: Mapping[int, frozenset[int]]
    field_ids: frozenset[int]
    types: Mapping[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])

    def format(self) -> str | None:
        """Return the value of the table property, or None if there is nothing to map."""
        root = _Node()
        for path, field_id in sorted(self.merged.items(), key=lambda item: len(item[0])):
            node = root
            for depth in range(1, len(path)):
                node = node.children[self.merged[path[:depth]]]
            node.children.setdefault(field_id, _Node()).names.add(path[-1])
        return json.dumps(_format(root), separators=(",", ":"), ensure_ascii=False) if root.children else None


def _format(node: _Node) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for field_id, child in sorted(node.children.items()):
        entry: dict[str, object] = {"field-id": field_id, "names": sorted(child.names)}
        entries.append(entry | ({"fields": _format(child)} if child.children else {}))
    return entries


def parse_name_mapping(text: str) -> dict[NamePath, int]:
    """Return the field ids of columns by their names from the value of the table property; empty for an empty text.

    Raises: BadRequest: it is no name mapping
    """
    try:
        return dict(_walk(json.loads(text), ())) if text else {}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadRequest(f"The property {PROPERTY!r} holds no name mapping: {error!r}; set it right or remove it.") from error


def _walk(nodes: Iterable[Mapping[str, Any]], above: NamePath) -> Iterator[tuple[NamePath, int]]:
    for node in nodes:
        for name in node["names"]:
            if node.get("field-id") is not None:
                yield (*above, name), int(node["field-id"])
            yield from _walk(node.get("fields") or (), (*above, name))


def to_name_mapping(rows: Sequence[NameMappingRow], columns: Sequence[ColumnRow]) -> NameMapping:
    """Return the merged mapping of a table with these columns.

    Mappings whose files belong only to retained snapshots are merged too, except names that live files use for other columns.
    Raises: Unsupported: two mappings give one name to different columns
    """
    retained = {row.mapping_id for row in rows if not row.has_files}
    lists = frozenset(row.column_id for row in columns if row.column_type.lower() == "list")
    by_mapping: dict[int, dict[NamePath, int]] = {}
    hive: dict[int, set[int]] = {}
    for mapping_id in sorted({row.mapping_id for row in rows}):
        own = [row for row in rows if row.mapping_id == mapping_id]
        by_mapping[mapping_id] = _to_paths(own, lists)
        hive[mapping_id] = {row.target_field_id for row in own if row.is_partition}
    merged: dict[NamePath, int] = {}
    for paths in (paths for mapping_id, paths in by_mapping.items() if mapping_id not in retained):
        for path, field_id in paths.items():
            if merged.setdefault(path, field_id) != field_id:
                both = " and ".join(_format_column(columns, mapped_id) for mapped_id in (merged[path], field_id))
                raise Unsupported(
                    f"Files added with ducklake_add_data_files use the name {'.'.join(path)!r} for two columns, {both}, "
                    "which Iceberg cannot represent. Copy the table with CREATE TABLE … AS SELECT."
                )
    for mapping_id in sorted(retained, reverse=True):
        _merge_retained(merged, by_mapping[mapping_id])
    hive_columns = {key: frozenset(ids) for key, ids in hive.items()}
    types: dict[int, set[str]] = {}
    for row in columns:
        types.setdefault(row.column_id, set()).add(row.column_type.lower())
    by_id = {column_id: frozenset(found) for column_id, found in types.items()}
    return NameMapping(by_mapping, merged, hive_columns, frozenset(by_id), by_id)


def _merge_retained(merged: dict[NamePath, int], paths: Mapping[NamePath, int]) -> None:
    """Merge the mapping of files that belong only to retained snapshots, as far as its paths do not contradict others."""
    for path, field_id in sorted(paths.items(), key=lambda item: len(item[0])):
        parents = [path[:depth] for depth in range(1, len(path))]
        if all(merged.get(parent) == paths[parent] for parent in parents):
            merged.setdefault(path, field_id)


def _format_column(columns: Sequence[ColumnRow], field_id: int) -> str:
    """Return a column's name, type and field id; of a dropped column only the id."""
    rows = [f"{row.column_name!r} ({row.column_type})" for row in columns if row.column_id == field_id]
    return f"{rows[-1] if rows else 'a dropped one'} of field id {field_id}"


def _to_paths(rows: Iterable[NameMappingRow], lists: frozenset[int]) -> dict[NamePath, int]:
    by_column = {row.column_id: row for row in rows}
    paths: dict[int, NamePath] = {}

    def path_of(row: NameMappingRow) -> NamePath:
        if row.column_id not in paths:
            parent = None if row.parent_column is None else by_column[row.parent_column]
            is_element = parent is not None and parent.target_field_id in lists
            name = "element" if is_element else row.source_name
            paths[row.column_id] = (*(path_of(parent) if parent else ()), name)
        return paths[row.column_id]

    return {path_of(row): row.target_field_id for row in by_column.values() if not row.is_partition}


def check_mapped_file(path: str, mapping_id: int, columns: FileColumns, mapping: NameMapping) -> None:
    """Refuse a file whose columns Iceberg readers would map differently than DuckLake does.

    Readers use the field ids in the file if there is any, otherwise the merged mapping.
    Raises: Unsupported: names file, column and remedy
    """
    own = mapping.by_mapping.get(mapping_id, {})
    has_ids = any(field_id is not None for field_id in columns.field_ids.values())
    for name, carried in columns.field_ids.items():
        read_as = carried if has_ids else mapping.merged.get(name)
        if read_as not in mapping.field_ids:
            read_as = None
        if read_as != own.get(name):
            raise Unsupported(
                f"Data file {path!r}, added with ducklake_add_data_files, has a column {'.'.join(name)!r} that Iceberg would read "
                f"as field {read_as} and DuckLake as {own.get(name)}. Copy the table with CREATE TABLE … AS SELECT."
            )
        kind, types = columns.kinds.get(name), mapping.types.get(read_as or -1, frozenset())
        if kind is not None and types and not any(reads_as_stored(type_, kind) for type_ in types):
            raise Unsupported(
                f"Data file {path!r}, added with ducklake_add_data_files, holds {kind} in the column {'.'.join(name)!r} of the "
                f"DuckLake type {' or '.join(sorted(types))}; Iceberg readers would not show what DuckDB does. "
                "Copy the table with CREATE TABLE … AS SELECT."
            )


def breaks_vectors(columns: FileColumns, paths: Mapping[NamePath, int], types: Mapping[int, frozenset[str]]) -> bool:
    """Return True if Spark's vectorised reader (Iceberg 1.11) fails on a file or returns wrong values.

    It takes milliseconds in a dictionary for microseconds, and cannot read 32-bit integers for a 64-bit column.
    `paths` are the columns DuckLake maps by name, `types` all DuckLake types of each by field id.
    """
    for path, kind in columns.kinds.items():
        column = types.get(paths.get(path, -1), frozenset())
        if column and (kind.startswith("timestamp[ms") or ("int64" in column and NARROW_INT.fullmatch(kind))):
            return True
    return False
