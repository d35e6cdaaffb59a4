"""Parts of bodies: names, columns, specs, orders, snapshots, views.

Columns of nested types are shown one level deep. Keys that are not shown are ignored, as the specification says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

JsonSchema = Mapping[str, Any]

TEXT: JsonSchema = {"type": "string"}
NAME: JsonSchema = {"type": "string", "minLength": 1}
TEXTS: JsonSchema = {"type": "array", "items": TEXT}
OBJECT: JsonSchema = {"type": "object"}
FLAG: JsonSchema = {"type": "boolean"}
TEXT_MAP: JsonSchema = {"type": "object", "additionalProperties": TEXT}
INT: JsonSchema = {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1}
LONG: JsonSchema = {"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1}
INTS: JsonSchema = {"type": "array", "items": INT}
LONGS: JsonSchema = {"type": "array", "items": LONG}
UUID_TEXT: JsonSchema = {"type": "string", "format": "uuid"}


def one_of(values: Sequence[str]) -> JsonSchema:
    """Return the shape of one of these texts."""
    return {"type": "string", "enum": list(values)}


def nullable(shape: JsonSchema) -> JsonSchema:
    """Return the shape of a value that may be null."""
    return {"anyOf": [shape, {"type": "null"}]}


def object_of(required: Mapping[str, JsonSchema], more: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """Return the shape of an object with these keys; those of `more` may be missing or null."""
    others = {key: nullable(shape) for key, shape in (more or {}).items()}
    return {"type": "object", "required": list(required), "properties": {**required, **others}}


def array_of(items: JsonSchema) -> JsonSchema:
    """Return the shape of an array."""
    return {"type": "array", "items": items}


IDENTIFIER = object_of({"namespace": {"type": "array", "items": NAME, "minItems": 1}, "name": NAME})
NESTED: JsonSchema = {"type": "object", "required": ["type"], "properties": {"type": one_of(["struct", "list", "map"])}}
TYPE: JsonSchema = {"anyOf": [TEXT, NESTED]}
COLUMN = object_of({"id": INT, "name": TEXT, "type": TYPE, "required": FLAG}, {"doc": TEXT, "initial-default": {}, "write-default": {}})
SCHEMA = object_of({"type": one_of(["struct"]), "fields": array_of(COLUMN)}, {"schema-id": INT, "identifier-field-ids": INTS})
PARTITION_FIELD = object_of({"source-id": INT, "name": TEXT, "transform": TEXT}, {"field-id": INT})
SPEC = object_of({"fields": array_of(PARTITION_FIELD)}, {"spec-id": INT})
SORT_FIELD = object_of(
    {
        "source-id": INT,
        "transform": TEXT,
        "direction": one_of(["asc", "desc"]),
        "null-order": one_of(["nulls-first", "nulls-last"]),
    }
)
SORT_ORDER = object_of({"order-id": INT, "fields": array_of(SORT_FIELD)})
SNAPSHOT = object_of(
    {"snapshot-id": LONG, "timestamp-ms": LONG, "summary": {**TEXT_MAP, "required": ["operation"]}, "manifest-list": TEXT},
    {"parent-snapshot-id": LONG, "sequence-number": LONG, "schema-id": INT, "first-row-id": LONG, "added-rows": LONG, "key-id": TEXT},
)
BLOB = object_of({"type": TEXT, "snapshot-id": LONG, "sequence-number": LONG, "fields": INTS}, {"properties": TEXT_MAP})
STATISTICS = object_of(
    {
        "snapshot-id": LONG,
        "statistics-path": TEXT,
        "file-size-in-bytes": LONG,
        "file-footer-size-in-bytes": LONG,
        "blob-metadata": array_of(BLOB),
    },
    {"key-metadata": TEXT},
)
PARTITION_STATISTICS = object_of({"snapshot-id": LONG, "statistics-path": TEXT, "file-size-in-bytes": LONG})
REPRESENTATION = object_of({"type": one_of(["sql"]), "sql": TEXT, "dialect": TEXT})
VIEW_VERSION = object_of(
    {
        "version-id": INT,
        "timestamp-ms": LONG,
        "schema-id": INT,
        "summary": TEXT_MAP,
        "representations": array_of(REPRESENTATION),
        "default-namespace": TEXTS,
    },
    {"default-catalog": TEXT},
)
