"""Body of the operation that takes manifests over."""

from duckicelake.rest.openapi.shapes import FLAG, LONG, NAME, OBJECT, array_of, object_of

MANIFEST_SUBMISSION = object_of(
    {
        "lake-snapshot-id": LONG,
        "change-id": LONG,
        "version": NAME,
        "manifests": array_of(object_of({"digest": NAME, "name": NAME, "told": OBJECT})),
    },
    {"more-to-come": FLAG},
)
