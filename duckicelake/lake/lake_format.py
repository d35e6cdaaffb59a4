"""The supported versions of DuckLake and the differences between them.

Each transaction of a pool reads the version when it begins, and refuses others (`connect.open_transaction`). Commits pass its `LakeFormat`
on in `LakeHead`; `catalog` asks again where it needs it (`connect.read_format`), as `branches` does for members of a repository
(`layout.read_format`), and what has connections of its own reads the version itself. Only `writing.migrate` and `pipeline.maintain`
(DuckDB 1.5 flushes inlined rows) compare versions.
Source: DuckLake specification 1.0 and 1.1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import LiteralString

from duckicelake.errors import Unsupported

SCHEMA_NAMES: LiteralString = """
CASE WHEN to_jsonb(s) ->> 'parent_schema_id' IS NULL THEN ARRAY[s.schema_name::text] ELSE (
    WITH RECURSIVE parents(parent_id, names) AS (
        SELECT (to_jsonb(s) ->> 'parent_schema_id')::bigint, ARRAY[s.schema_name::text]
         UNION ALL
        SELECT (to_jsonb(p) ->> 'parent_schema_id')::bigint, p.schema_name::text || c.names
          FROM parents c JOIN {lake}ducklake_schema p ON p.schema_id = c.parent_id AND p.end_snapshot IS NULL
         -- Damaged rows may form a circle.
         WHERE cardinality(c.names) < 64
    )
    SELECT c.names FROM parents c WHERE c.parent_id IS NULL) END
"""
"""The names of a schema `s` and its parents, outermost first, as an SQL expression; NULL if a parent is dropped.

`to_jsonb` reads the column `parent_schema_id`, which only DuckLake 1.1 has. Format it with the qualifier of the lake's tables.
"""

SCHEMA_NAME: LiteralString = "array_to_string(" + SCHEMA_NAMES + ", '\u241f')"
"""The same names joined by `translate.namespaces.LEVEL_SEPARATOR`."""

SHOWN_SCHEMA_NAME: LiteralString = "array_to_string(" + SCHEMA_NAMES.replace(" AND p.end_snapshot IS NULL", "") + ", '.')"
"""The names with dots between them, for people. Parents that are dropped by now are named too."""

NAMED_SCHEMA: LiteralString = "".join(
    (
        "JOIN ducklake_schema s ON s.schema_id = {0}.schema_id AND s.end_snapshot IS NULL\n  CROSS JOIN LATERAL (SELECT ",
        SCHEMA_NAMES.format(lake=""),
        " AS schema_names) names\n  CROSS JOIN LATERAL (SELECT array_to_string(names.schema_names, '\u241f') AS schema_name) n",
    )
)
"""A join of the live schema `s` of a row, with its names in `names.schema_names` and `n.schema_name`. Format it with the row's alias."""

HAS_SCHEMA_NAME: LiteralString = """
       lower(n.schema_name COLLATE "C") = lower(%(schema_name)s COLLATE "C")
   -- An index finds the few schemas whose own name is the last level. DuckLake 1.0 has nested namespaces as one name with all levels.
   AND lower(s.schema_name COLLATE "C")
     = ANY (ARRAY[lower(split_part(%(schema_name)s, '\u241f', -1) COLLATE "C"), lower(%(schema_name)s COLLATE "C")])
"""
"""The condition that the schema of `NAMED_SCHEMA` has the name `schema_name`. DuckDB folds the case of ASCII letters alone."""


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """The properties of a version of DuckLake.

    `inlined_columns`: the first three columns of a table of inlined rows, the row id first. `column_types`: those that the version adds.
    `transforms`: Iceberg's transforms, by the partition transforms that the version adds. `nests_schemas`: schemas have parents, and the
    columns of views have tags of their own. `reserved_names` and `reserved_prefix`, in lower case: top-level columns may not have these
    names.
    """

    version: str
    inlined_columns: tuple[LiteralString, LiteralString, LiteralString]
    reserved_names: frozenset[str]
    reserved_prefix: str
    column_types: frozenset[str]
    transforms: Mapping[str, str]
    nests_schemas: bool


V1_0 = LakeFormat(
    version="1.0",
    inlined_columns=("row_id", "begin_snapshot", "end_snapshot"),
    reserved_names=frozenset({"row_id", "begin_snapshot", "end_snapshot"}),
    reserved_prefix="_ducklake_internal_",
    column_types=frozenset(),
    transforms={},
    nests_schemas=False,
)
V1_1 = LakeFormat(
    version="1.1",
    inlined_columns=("_ducklake_row_id", "_ducklake_begin_snapshot", "_ducklake_end_snapshot"),
    reserved_names=frozenset(),
    reserved_prefix="_ducklake_",
    column_types=frozenset({"null", "timestamptz_ns"}),
    transforms={"epoch_year": "year", "epoch_month": "month", "epoch_day": "day", "epoch_hour": "hour"},
    nests_schemas=True,
)
FORMATS: Mapping[str, LakeFormat] = {item.version: item for item in (V1_0, V1_1)}


def get_format(version: str | None) -> LakeFormat:
    """Return the format of a lake by its version. Raises: Unsupported: this catalog does not serve that version"""
    found = FORMATS.get(version or "")
    if found is None:
        raise Unsupported(
            f"The lake's DuckLake version is {version!r}; this catalog serves {' and '.join(FORMATS)}. "
            "Attach it with the matching DuckDB release, or copy it into a new lake."
        )
    return found
