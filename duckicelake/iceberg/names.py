"""Names that a request can have."""

import re

from duckicelake.errors import BadRequest

MAX_NAME_BYTES = 1024
"""An S3 key has at most 1,024 bytes, and DuckLake puts the table's name into its files' keys."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_name(name: str, what: str) -> str:
    """Return the name as it is.

    Raises: BadRequest: it is empty, too long, or holds a control character
    """
    if not name:
        raise BadRequest(f"The {what} is empty.")
    if CONTROL.search(name):
        raise BadRequest(f"The {what} {name[:64]!r} holds a control character.")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise BadRequest(f"The {what} {name[:64]!r}… is longer than {MAX_NAME_BYTES} bytes.")
    return name
