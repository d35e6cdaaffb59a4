"""JSON schemas of request bodies, for the OpenAPI page only: the parsers in `iceberg.requests`, `request_bodies` and the routes decide.

Tests compare both. Columns of nested types are shown one level deep. Keys that are not shown are ignored, as the specification says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from duckicelake.access.policy import PRIVILEGES

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
    """Return the schema of an enumeration of strings."""
    return {"type": "string", "enum": list(values)}


def nullable(shape: JsonSchema) -> JsonSchema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [shape, {"type": "null"}]}


def object_of(required: Mapping[str, JsonSchema], more: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """Return the schema of an object. The keys of `more` may be missing or null."""
    others = {key: nullable(shape) for key, shape in (more or {}).items()}
    return {"type": "object", "required": list(required), "properties": {**required, **others}}


def array_of(items: JsonSchema) -> JsonSchema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


MERGE = object_of(
    {"from": NAME},
    {
        "into": NAME,
        "strategy": one_of(["auto", "ff", "three-way"]),
        "dry-run": FLAG,
        "on-conflict": one_of(["cancel", "ours", "theirs"]),
        "except": TEXT_MAP,
        "message": TEXT,
    },
)
REVERT = object_of({"snapshot-id": LONG}, {"ref": NAME, "dry-run": FLAG, "message": TEXT})
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


REF = object_of(
    {"ref-name": NAME, "type": one_of(["branch", "tag"]), "snapshot-id": LONG},
    {"max-ref-age-ms": LONG, "max-snapshot-age-ms": LONG, "min-snapshots-to-keep": INT},
)
COMMON_ACTIONS: Mapping[str, JsonSchema] = {
    "assign-uuid": object_of({"uuid": UUID_TEXT}),
    "upgrade-format-version": object_of({"format-version": INT}),
    "add-schema": object_of({"schema": SCHEMA}, {"last-column-id": INT}),
    "set-location": object_of({"location": NAME}),
    "set-properties": object_of({"updates": TEXT_MAP}),
    "remove-properties": object_of({"removals": TEXTS}),
}
TABLE_ACTIONS: Mapping[str, JsonSchema] = {
    **COMMON_ACTIONS,
    "set-current-schema": object_of({"schema-id": INT}),
    "add-spec": object_of({"spec": SPEC}),
    "set-default-spec": object_of({"spec-id": INT}),
    "add-sort-order": object_of({"sort-order": SORT_ORDER}),
    "set-default-sort-order": object_of({"sort-order-id": INT}),
    "add-snapshot": object_of({"snapshot": SNAPSHOT}),
    "set-snapshot-ref": REF,
    "remove-snapshots": object_of({"snapshot-ids": LONGS}),
    "remove-snapshot-ref": object_of({"ref-name": NAME}),
    "set-statistics": object_of({"statistics": STATISTICS}, {"snapshot-id": LONG}),
    "remove-statistics": object_of({"snapshot-id": LONG}),
    "set-partition-statistics": object_of({"partition-statistics": PARTITION_STATISTICS}),
    "remove-partition-statistics": object_of({"snapshot-id": LONG}),
    "remove-partition-specs": object_of({"spec-ids": INTS}),
    "remove-schemas": object_of({"schema-ids": INTS}),
}
VIEW_ACTIONS: Mapping[str, JsonSchema] = {
    **COMMON_ACTIONS,
    "add-view-version": object_of({"view-version": VIEW_VERSION}),
    "set-current-view-version": object_of({"view-version-id": INT}),
}
TABLE_REQUIREMENTS: Mapping[str, JsonSchema] = {
    "assert-create": OBJECT,
    "assert-table-uuid": object_of({"uuid": TEXT}),
    "assert-ref-snapshot-id": object_of({"ref": TEXT}, {"snapshot-id": LONG}),
    "assert-last-assigned-field-id": object_of({"last-assigned-field-id": INT}),
    "assert-current-schema-id": object_of({"current-schema-id": INT}),
    "assert-last-assigned-partition-id": object_of({"last-assigned-partition-id": INT}),
    "assert-default-spec-id": object_of({"default-spec-id": INT}),
    "assert-default-sort-order-id": object_of({"default-sort-order-id": INT}),
}
VIEW_REQUIREMENTS: Mapping[str, JsonSchema] = {"assert-view-uuid": object_of({"uuid": TEXT})}


def tagged_union(key: str, choices: Mapping[str, JsonSchema]) -> JsonSchema:
    """Return the schema of a union of objects that the string under `key` distinguishes."""
    return {
        "anyOf": [
            {
                **shape,
                "required": [key, *shape.get("required", ())],
                "properties": {key: one_of([name]), **shape.get("properties", {})},
            }
            for name, shape in choices.items()
        ]
    }


TABLE_COMMIT = object_of(
    {"updates": array_of(tagged_union("action", TABLE_ACTIONS))},
    {"identifier": IDENTIFIER, "requirements": array_of(tagged_union("type", TABLE_REQUIREMENTS))},
)
VIEW_COMMIT = object_of(
    {"updates": array_of(tagged_union("action", VIEW_ACTIONS))},
    {"identifier": IDENTIFIER, "requirements": array_of(tagged_union("type", VIEW_REQUIREMENTS))},
)
TRANSACTION = object_of({"table-changes": array_of({**TABLE_COMMIT, "required": ["identifier", "updates"]})})
RENAME = object_of({"source": IDENTIFIER, "destination": IDENTIFIER})
REPORT: JsonSchema = {"type": "object", "required": ["report-type"], "properties": {"report-type": TEXT}}
CREATE_NAMESPACE = object_of({"namespace": {"type": "array", "items": NAME, "minItems": 1}}, {"properties": TEXT_MAP})
UPDATE_PROPERTIES = object_of({}, {"removals": TEXTS, "updates": TEXT_MAP})
CREATE_TABLE = object_of(
    {"name": NAME, "schema": SCHEMA},
    {"location": TEXT, "partition-spec": SPEC, "write-order": SORT_ORDER, "stage-create": FLAG, "properties": TEXT_MAP},
)
REGISTER_TABLE = object_of({"name": NAME, "metadata-location": TEXT}, {"overwrite": FLAG})
CREATE_VIEW = object_of({"name": NAME, "schema": SCHEMA, "view-version": VIEW_VERSION}, {"location": TEXT, "properties": TEXT_MAP})
REGISTER_VIEW = object_of({"name": NAME, "metadata-location": TEXT})
SIGN_REQUEST = object_of(
    {
        "region": TEXT,
        "uri": TEXT,
        "method": one_of(["PUT", "GET", "HEAD", "POST", "DELETE", "PATCH", "OPTIONS"]),
        "headers": {"type": "object", "additionalProperties": TEXTS},
    },
    {"properties": TEXT_MAP, "body": TEXT, "provider": TEXT},
)


MANIFEST_SUBMISSION = object_of(
    {
        "lake-snapshot-id": LONG,
        "change-id": LONG,
        "version": NAME,
        "manifests": array_of(object_of({"digest": NAME, "name": NAME, "told": OBJECT})),
    },
    {"more-to-come": FLAG},
)


UNDROP = object_of(
    {"namespace": {"type": "array", "items": NAME, "minItems": 1}},
    {
        "name": NAME,
        "uuid": UUID_TEXT,
        "lake-snapshot-id": LONG,
        "to": object_of({"namespace": {"type": "array", "items": NAME, "minItems": 1}}, {"name": NAME}),
        "with-namespace": FLAG,
    },
)
ROLE = object_of({"name": NAME})
PRINCIPAL = object_of({"name": NAME}, {"has-secret": FLAG})
GRANT = object_of({"privileges": array_of(one_of(list(PRIVILEGES))), "on": NAME, "to": NAME})


BRANCH = object_of({"name": NAME}, {"from": NAME, "at": {"anyOf": [{"type": "integer"}, TEXT]}})
NEW_NAME = object_of({"name": NAME})

VALUE: JsonSchema = {"anyOf": [{"type": "boolean"}, {"type": "number"}, TEXT]}
TERM: JsonSchema = {"anyOf": [TEXT, object_of({"type": one_of(["transform"]), "transform": TEXT, "term": TEXT})]}
COMPARISON_TYPES = ("lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "starts-with", "not-starts-with")
UNARY: JsonSchema = object_of({"type": one_of(["is-null", "not-null", "is-nan", "not-nan"]), "term": TERM})
COMPARISON: JsonSchema = object_of({"type": one_of(COMPARISON_TYPES), "term": TERM, "value": VALUE})
MEMBERSHIP: JsonSchema = object_of({"type": one_of(["in", "not-in"]), "term": TERM, "values": array_of(VALUE)})
PREDICATES = ({"type": "boolean"}, UNARY, COMPARISON, MEMBERSHIP)


def nest_filter(shape: JsonSchema) -> JsonSchema:
    """Return the schema of a filter whose AND, OR and NOT have operands of the given schema."""
    joined = object_of({"type": one_of(["and", "or"]), "left": shape, "right": shape})
    return {"anyOf": [*PREDICATES, joined, object_of({"type": one_of(["not"]), "child": shape})]}


FILTER: JsonSchema = nest_filter(nest_filter({"anyOf": list(PREDICATES)}))
"""A filter expression, shown three levels deep."""
PLAN_SCAN: JsonSchema = object_of(
    {},
    {
        "snapshot-id": LONG,
        "start-snapshot-id": LONG,
        "end-snapshot-id": LONG,
        "select": TEXTS,
        "filter": FILTER,
        "case-sensitive": FLAG,
        "use-snapshot-schema": FLAG,
        "stats-fields": TEXTS,
        "min-rows-requested": nullable({**LONG, "minimum": 0}),
    },
)
FETCH_TASKS: JsonSchema = object_of({"plan-task": NAME})
