"""Parts of bodies: names, columns, specs, orders, snapshots, views.

Columns of nested types are shown one level deep. Keys that are not shown are ignored, as the specification says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Shape = Mapping[str, Any]

TEXT: Shape = {"type": "string"}
NAME: Shape = {"type": "string", "minLength": 1}
TEXTS: Shape = {"type": "array", "items": TEXT}
OBJECT: Shape = {"type": "object"}
FLAG: Shape = {"type": "boolean"}
TEXT_MAP: Shape = {"type": "object", "additionalProperties": TEXT}
INT: Shape = {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1}
LONG: Shape = {"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1}
INTS: Shape = {"type": "array", "items": INT}
LONGS: Shape = {"type": "array", "items": LONG}
UUID_TEXT: Shape = {"type": "string", "format": "uuid"}


def one_of(values: Sequence[str]) -> Shape:
    """Return the shape of one of these texts."""
    return {"type": "string", "enum": list(values)}


def maybe(shape: Shape) -> Shape:
    """Return the shape of a value that may be null."""
    return {"anyOf": [shape, {"type": "null"}]}


def an_object(required: Mapping[str, Shape], more: Mapping[str, Shape] | None = None) -> Shape:
    """Return the shape of an object with these keys; those of `more` may be missing or null."""
    others = {key: maybe(shape) for key, shape in (more or {}).items()}
    return {"type": "object", "required": list(required), "properties": {**required, **others}}


def an_array(items: Shape) -> Shape:
    """Return the shape of an array."""
    return {"type": "array", "items": items}


IDENTIFIER = an_object({"namespace": {"type": "array", "items": NAME, "minItems": 1}, "name": NAME})
NESTED: Shape = {"type": "object", "required": ["type"], "properties": {"type": one_of(["struct", "list", "map"])}}
TYPE: Shape = {"anyOf": [TEXT, NESTED]}
COLUMN = an_object({"id": INT, "name": TEXT, "type": TYPE, "required": FLAG}, {"doc": TEXT, "initial-default": {}, "write-default": {}})
SCHEMA = an_object({"type": one_of(["struct"]), "fields": an_array(COLUMN)}, {"schema-id": INT, "identifier-field-ids": INTS})
PARTITION_FIELD = an_object({"source-id": INT, "name": TEXT, "transform": TEXT}, {"field-id": INT})
SPEC = an_object({"fields": an_array(PARTITION_FIELD)}, {"spec-id": INT})
SORT_FIELD = an_object(
    {
        "source-id": INT,
        "transform": TEXT,
        "direction": one_of(["asc", "desc"]),
        "null-order": one_of(["nulls-first", "nulls-last"]),
    }
)
SORT_ORDER = an_object({"order-id": INT, "fields": an_array(SORT_FIELD)})
SNAPSHOT = an_object(
    {"snapshot-id": LONG, "timestamp-ms": LONG, "summary": {**TEXT_MAP, "required": ["operation"]}, "manifest-list": TEXT},
    {"parent-snapshot-id": LONG, "sequence-number": LONG, "schema-id": INT, "first-row-id": LONG, "added-rows": LONG, "key-id": TEXT},
)
BLOB = an_object({"type": TEXT, "snapshot-id": LONG, "sequence-number": LONG, "fields": INTS}, {"properties": TEXT_MAP})
STATISTICS = an_object(
    {
        "snapshot-id": LONG,
        "statistics-path": TEXT,
        "file-size-in-bytes": LONG,
        "file-footer-size-in-bytes": LONG,
        "blob-metadata": an_array(BLOB),
    },
    {"key-metadata": TEXT},
)
PARTITION_STATISTICS = an_object({"snapshot-id": LONG, "statistics-path": TEXT, "file-size-in-bytes": LONG})
REPRESENTATION = an_object({"type": one_of(["sql"]), "sql": TEXT, "dialect": TEXT})
VIEW_VERSION = an_object(
    {
        "version-id": INT,
        "timestamp-ms": LONG,
        "schema-id": INT,
        "summary": TEXT_MAP,
        "representations": an_array(REPRESENTATION),
        "default-namespace": TEXTS,
    },
    {"default-catalog": TEXT},
)
