"""The grammar of `ducklake_snapshot_changes.changes_made`; no other module parses or writes it. No I/O.

`lake` calls it to find changes of a table and to write the changes of a commit; `catalog`, `translate` and the job `maintain` read kinds of
changes with it.

Shape:  entry ("," entry)* ; entry = kind ":" value ; a comma inside double quotes is text, `""` is one quote
Source: DuckLake 1.0, ParseChangesMade
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import LiteralString

_ENTRY = re.compile(r'([A-Za-z_]+):((?:"[^"]*"|[^",])*)(?:,|$)')

DATA_KINDS = frozenset(
    {
        "inserted_into_table",
        "deleted_from_table",
        "inlined_insert",
        "inlined_delete",
        "inline_flush",
        "flushed_inlined",
        "merge_adjacent",
        "rewrite_delete",
        "compacted_table",
    }
)
"""Kinds of changes to a table's rows or files; their value is the table id."""

REWRITE_KINDS = frozenset({"inline_flush", "flushed_inlined", "merge_adjacent", "rewrite_delete", "compacted_table"})
"""Kinds that rewrite files and leave every row unchanged."""

INSERT_KINDS = frozenset({"inserted_into_table", "inlined_insert"})
"""Kinds that add rows. There is no set for deletes: their kinds also stand for a flush of inlined deletes, which changes no row."""

NOTES_KIND = "altered_view"
"""Kind of a change to a table's properties, statistics or notes alone; its value is the table id.

`altered_table` would abort each INSERT, UPDATE and DELETE of DuckDB that began before, though none depends on these. DuckDB compares this
kind only with views that it alters or drops, and no view has the id of a table: both ids come from `next_catalog_id`.
"""

TABLE_KINDS = DATA_KINDS | {"altered_table", "dropped_table", NOTES_KIND}
"""Kinds whose value is a table id, or (`NOTES_KIND`) may be one."""


TOKENS_SINCE: LiteralString = """
    -- Scan the next hundred lake snapshots directly: a frequently written table may have thousands of entries in the index.
    SELECT c.snapshot_id, c.changes_made
      FROM (SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes
             WHERE snapshot_id > {since} AND snapshot_id <= {since} + 100 OFFSET 0) c
     WHERE iceberg_change_tokens(c.changes_made) && %({tokens})s
     UNION ALL
    SELECT c.snapshot_id, c.changes_made FROM ducklake_snapshot_changes c
     WHERE iceberg_change_tokens(c.changes_made) && %({tokens})s AND c.snapshot_id > {since} + 100
       AND (SELECT max(snapshot_id) FROM ducklake_snapshot) > {since} + 100
"""
"""A query for the lake snapshots after `since` with one of the tokens. Format it with an SQL expression and a parameter's name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry, its kind in lower case and its value as written."""

    kind: str
    value: str


def parse_changes(text: str | None) -> Iterator[Change]:
    """Yield the entries of one `changes_made`; text outside the grammar is skipped."""
    for match in _ENTRY.finditer(text or ""):
        yield Change(match.group(1).lower(), match.group(2))


def format_changes(changes: Iterable[Change]) -> str | None:
    """Return the text of the entries; None for no entries, because DuckLake expects NULL instead of an empty text."""
    return ",".join(f"{change.kind}:{change.value}" for change in changes) or None


def quote_names(*names: str) -> str:
    """Return a name, or a schema and a name, as the value of an entry for an object without an id."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def kinds_of_table(text: str | None, table_id: int) -> frozenset[str]:
    """Return the kinds of change that one `changes_made` names for a table."""
    wanted = str(table_id)
    return frozenset(c.kind for c in parse_changes(text) if c.kind in TABLE_KINDS and c.value == wanted)


def touched_tables(text: str | None) -> frozenset[int]:
    """Return the ids of the tables that one `changes_made` names by id."""
    return frozenset(int(c.value) for c in parse_changes(text) if c.kind in TABLE_KINDS and c.value.isdecimal())


def format_tokens(table_id: int, kinds: frozenset[str]) -> list[str]:
    """Return the entries that name a table with any of these kinds, for an index look-up."""
    return [f"{kind}:{table_id}" for kind in sorted(kinds)]
