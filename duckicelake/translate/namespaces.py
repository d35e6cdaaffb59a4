"""Nested namespaces on flat DuckLake schemas, both ways and without a note.

Shape:  the levels ("a", "b") are the schema `a␟b`; every other schema name is one level, dots, slashes and all.
"""

from duckicelake.errors import BadRequest

LEVEL_SEPARATOR = "\u241f"
"""The visible symbol for a unit separator: Iceberg joins levels with the control character itself."""

Levels = tuple[str, ...]


def to_schema_name(levels: Levels) -> str:
    """Return the DuckLake schema name of a namespace.

    Raises: BadRequest: a level that is empty or holds the separator, so that it could not be told apart
    """
    if not levels or any(not level for level in levels):
        raise BadRequest("A namespace needs at least one level, and no level may be empty.")
    name = LEVEL_SEPARATOR.join(levels)
    if to_levels(name) != levels:
        raise BadRequest(f"A namespace level may not hold {LEVEL_SEPARATOR!r}: it separates levels. Choose another name.")
    return name


def to_levels(schema_name: str) -> Levels:
    """Return the levels of a DuckLake schema; a name with an empty level between separators stays whole."""
    levels = tuple(schema_name.split(LEVEL_SEPARATOR))
    return levels if all(levels) else (schema_name,)
