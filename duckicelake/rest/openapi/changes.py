"""Updates and requirements: one shape for each action and each type of the specification."""

from collections.abc import Mapping

from duckicelake.rest.openapi.shapes import (
    FLAG,
    IDENTIFIER,
    INT,
    INTS,
    LONG,
    LONGS,
    NAME,
    OBJECT,
    PARTITION_STATISTICS,
    SCHEMA,
    SNAPSHOT,
    SORT_ORDER,
    SPEC,
    STATISTICS,
    TEXT,
    TEXT_MAP,
    TEXTS,
    UUID_TEXT,
    VIEW_VERSION,
    JsonSchema,
    array_of,
    object_of,
    one_of,
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
    """Return the shape of one of several objects, told apart by the text under a key."""
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
