"""Body of the operation that takes manifests over."""

from duckicelake.rest.page.shapes import FLAG, LONG, NAME, OBJECT, an_array, an_object

OFFER = an_object(
    {
        "lake-snapshot-id": LONG,
        "change-id": LONG,
        "version": NAME,
        "manifests": an_array(an_object({"digest": NAME, "name": NAME, "told": OBJECT})),
    },
    {"more-to-come": FLAG},
)
