"""Namespaces as DuckLake schemas: names, folders, case folding as in DuckDB, and the steps that create, change and drop schemas. No I/O.

`catalog` writes the steps under the lake's lock; new schemas get random uuids here. `to_schema_name`, `to_levels` and `fold_name` are used
in the whole package, also by jobs of `pipeline` and by commands.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from duckicelake.errors import BadRequest
from duckicelake.lake.changes import Change, quote_names
from duckicelake.lake.writing.rows import EndedSchema, EndedTag, LakeHead, LakeStep, NewNestedSchema, NewRow, NewSchema, NewTag

PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def to_folder(name: str, uuid: UUID) -> str:
    """Return the folder of a schema: its name if that is plain, as in DuckLake, else its uuid."""
    return f"{name if PLAIN.fullmatch(name) else uuid}/"


def fold_name(name: str) -> str:
    """Return a name with ASCII letters in lower case, as DuckDB compares names."""
    return "".join(c.lower() if c.isascii() else c for c in name)


def check_distinct(names: Iterable[str], what: str) -> None:
    """Refuse names that DuckDB does not distinguish.

    Raises: BadRequest: two of them differ by case alone
    """
    by_folded_name: dict[str, str] = {}
    for name in names:
        other = by_folded_name.setdefault(fold_name(name), name)
        if other is not name:
            raise BadRequest(f"{what} {other!r} and {name!r} differ by case alone, and DuckDB folds case; rename one.")


@dataclass(frozen=True, slots=True)
class ParentSchema:
    """An existing schema, with the names of its own parents, in which a schema is to be created; no id and no names: the top level."""

    schema_id: int | None = None
    schema_names: Sequence[str] = ()


def create_schema(head: LakeHead, parent: ParentSchema, names: Sequence[str], properties: Mapping[str, str]) -> LakeStep:
    """Return the step that creates a schema with these tags; of several names each is in the one before."""
    changes: list[Change] = []
    rows: list[NewRow] = []
    schema_id, parent_id, path = head.next_catalog_id, parent.schema_id, tuple(parent.schema_names)
    for name in names:
        schema_uuid, path = uuid4(), (*path, name)
        changes.append(Change("created_schema", quote_names(*path)))
        if parent_id is None:
            rows.append(NewSchema(schema_id, schema_uuid, name, to_folder(name, schema_uuid)))
        else:
            rows.append(NewNestedSchema(schema_id, schema_uuid, name, f"{schema_uuid}/", parent_id))
        schema_id, parent_id = schema_id + 1, schema_id
    tags = [NewTag(schema_id - 1, key, value) for key, value in properties.items()]
    return LakeStep(tuple(changes), (*rows, *tags), True, schema_id, head.next_file_id)


@dataclass(frozen=True, slots=True)
class SchemaToRestore:
    """A dropped schema that comes back under an id of its own, because DuckLake gives an id one row; its uuid stays."""

    schema_id: int
    schema_uuid: UUID
    path: str | None
    properties: Mapping[str, str]


def restore_schema(schema: SchemaToRestore, parent: ParentSchema, name: str) -> tuple[Change, Sequence[NewRow]]:
    """Return the entry of `changes_made` and the rows that bring a schema back under a name."""
    path = schema.path or to_folder(name, schema.schema_uuid)
    identity = (schema.schema_id, schema.schema_uuid, name, path)
    row = NewSchema(*identity) if parent.schema_id is None else NewNestedSchema(*identity, parent.schema_id)
    tags = [NewTag(schema.schema_id, key, value) for key, value in schema.properties.items()]
    return Change("created_schema", quote_names(*parent.schema_names, name)), (row, *tags)


def drop_schema(head: LakeHead, schema_id: int) -> LakeStep:
    """Return the step that drops an empty schema."""
    change = Change("dropped_schema", str(schema_id))
    return LakeStep((change,), (EndedSchema(schema_id),), True, head.next_catalog_id, head.next_file_id)


def change_tags(object_id: int, live: Mapping[str, str], removals: Iterable[str], updates: Mapping[str, str]) -> Sequence[NewRow]:
    """Return the rows that remove tags from an object and set others; equal ones are left unchanged."""
    changed = {key: value for key, value in updates.items() if live.get(key) != value}
    ended = sorted(live.keys() & {*removals, *changed})
    return [*(EndedTag(object_id, key) for key in ended), *(NewTag(object_id, key, changed[key]) for key in sorted(changed))]


def update_schema(head: LakeHead, rows: Sequence[NewRow]) -> LakeStep:
    """Return the step that changes a schema's tags; DuckLake has no entry of `changes_made` for it, and its readers ignore the tags."""
    return LakeStep((), tuple(rows), False, head.next_catalog_id, head.next_file_id)


LEVEL_SEPARATOR = "\u241f"
"""The visible symbol for a unit separator; Iceberg joins levels with the control character itself."""

Levels = tuple[str, ...]


def to_schema_name(levels: Levels) -> str:
    """Return the DuckLake schema name of a namespace.

    Raises: BadRequest: a level is empty or contains the separator, so that the name would be ambiguous
    """
    if not levels or any(not level for level in levels):
        raise BadRequest("A namespace needs at least one level, and no level may be empty.")
    name = LEVEL_SEPARATOR.join(levels)
    if to_levels(name) != levels:
        raise BadRequest(f"A namespace level may not hold {LEVEL_SEPARATOR!r}: it separates levels. Choose another name.")
    return name


def to_levels(schema_name: str) -> Levels:
    """Return the levels of a DuckLake schema; a name with an empty level between separators is a single level."""
    levels = tuple(schema_name.split(LEVEL_SEPARATOR))
    return levels if all(levels) else (schema_name,)
