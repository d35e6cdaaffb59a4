"""Updates and requirements: one shape for each action and each type of the specification."""

from collections.abc import Mapping

from duckicelake.rest.page.shapes import (
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
    Shape,
    an_array,
    an_object,
    one_of,
)

REF = an_object(
    {"ref-name": NAME, "type": one_of(["branch", "tag"]), "snapshot-id": LONG},
    {"max-ref-age-ms": LONG, "max-snapshot-age-ms": LONG, "min-snapshots-to-keep": INT},
)
COMMON_ACTIONS: Mapping[str, Shape] = {
    "assign-uuid": an_object({"uuid": UUID_TEXT}),
    "upgrade-format-version": an_object({"format-version": INT}),
    "add-schema": an_object({"schema": SCHEMA}, {"last-column-id": INT}),
    "set-location": an_object({"location": NAME}),
    "set-properties": an_object({"updates": TEXT_MAP}),
    "remove-properties": an_object({"removals": TEXTS}),
}
TABLE_ACTIONS: Mapping[str, Shape] = {
    **COMMON_ACTIONS,
    "set-current-schema": an_object({"schema-id": INT}),
    "add-spec": an_object({"spec": SPEC}),
    "set-default-spec": an_object({"spec-id": INT}),
    "add-sort-order": an_object({"sort-order": SORT_ORDER}),
    "set-default-sort-order": an_object({"sort-order-id": INT}),
    "add-snapshot": an_object({"snapshot": SNAPSHOT}),
    "set-snapshot-ref": REF,
    "remove-snapshots": an_object({"snapshot-ids": LONGS}),
    "remove-snapshot-ref": an_object({"ref-name": NAME}),
    "set-statistics": an_object({"statistics": STATISTICS}, {"snapshot-id": LONG}),
    "remove-statistics": an_object({"snapshot-id": LONG}),
    "set-partition-statistics": an_object({"partition-statistics": PARTITION_STATISTICS}),
    "remove-partition-statistics": an_object({"snapshot-id": LONG}),
    "remove-partition-specs": an_object({"spec-ids": INTS}),
    "remove-schemas": an_object({"schema-ids": INTS}),
}
VIEW_ACTIONS: Mapping[str, Shape] = {
    **COMMON_ACTIONS,
    "add-view-version": an_object({"view-version": VIEW_VERSION}),
    "set-current-view-version": an_object({"view-version-id": INT}),
}
TABLE_REQUIREMENTS: Mapping[str, Shape] = {
    "assert-create": OBJECT,
    "assert-table-uuid": an_object({"uuid": TEXT}),
    "assert-ref-snapshot-id": an_object({"ref": TEXT}, {"snapshot-id": LONG}),
    "assert-last-assigned-field-id": an_object({"last-assigned-field-id": INT}),
    "assert-current-schema-id": an_object({"current-schema-id": INT}),
    "assert-last-assigned-partition-id": an_object({"last-assigned-partition-id": INT}),
    "assert-default-spec-id": an_object({"default-spec-id": INT}),
    "assert-default-sort-order-id": an_object({"default-sort-order-id": INT}),
}
VIEW_REQUIREMENTS: Mapping[str, Shape] = {"assert-view-uuid": an_object({"uuid": TEXT})}


def name_choices(key: str, choices: Mapping[str, Shape]) -> Shape:
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


TABLE_COMMIT = an_object(
    {"updates": an_array(name_choices("action", TABLE_ACTIONS))},
    {"identifier": IDENTIFIER, "requirements": an_array(name_choices("type", TABLE_REQUIREMENTS))},
)
VIEW_COMMIT = an_object(
    {"updates": an_array(name_choices("action", VIEW_ACTIONS))},
    {"identifier": IDENTIFIER, "requirements": an_array(name_choices("type", VIEW_REQUIREMENTS))},
)
TRANSACTION = an_object({"table-changes": an_array({**TABLE_COMMIT, "required": ["identifier", "updates"]})})
RENAME = an_object({"source": IDENTIFIER, "destination": IDENTIFIER})
REPORT: Shape = {"type": "object", "required": ["report-type"], "properties": {"report-type": TEXT}}
CREATE_NAMESPACE = an_object({"namespace": {"type": "array", "items": NAME, "minItems": 1}}, {"properties": TEXT_MAP})
UPDATE_PROPERTIES = an_object({}, {"removals": TEXTS, "updates": TEXT_MAP})
CREATE_TABLE = an_object(
    {"name": NAME, "schema": SCHEMA},
    {"location": TEXT, "partition-spec": SPEC, "write-order": SORT_ORDER, "stage-create": FLAG, "properties": TEXT_MAP},
)
REGISTER_TABLE = an_object({"name": NAME, "metadata-location": TEXT}, {"overwrite": FLAG})
CREATE_VIEW = an_object({"name": NAME, "schema": SCHEMA, "view-version": VIEW_VERSION}, {"location": TEXT, "properties": TEXT_MAP})
REGISTER_VIEW = an_object({"name": NAME, "metadata-location": TEXT})
SIGN_REQUEST = an_object(
    {
        "region": TEXT,
        "uri": TEXT,
        "method": one_of(["PUT", "GET", "HEAD", "POST", "DELETE", "PATCH", "OPTIONS"]),
        "headers": {"type": "object", "additionalProperties": TEXTS},
    },
    {"properties": TEXT_MAP, "body": TEXT, "provider": TEXT},
)
