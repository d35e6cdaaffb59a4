"""Checked reading of JSON from clients and files: a value of the expected type, or BadRequest that names the key.

`what` names the object in the message. `find_` returns None for an absent or null key, `get_` raises. Request bodies are decoded
strictly: JSON that two readers could understand differently is refused. No I/O: `rest` reads bodies with it on the event loop and on worker
threads, `catalog` files of clients, and jobs of `pipeline` the responses of catalogs.
"""

from collections.abc import Mapping
from json import loads
from typing import NoReturn, cast

from duckicelake.errors import BadRequest

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def refuse(what: str, key: str, wanted: str) -> NoReturn:
    """Raise BadRequest for a key that is missing or malformed."""
    raise BadRequest(f"Cannot read {what}: {key!r} is missing or malformed; send {wanted}")


def as_object(value: object, what: str) -> Mapping[str, object]:
    """Return the value as a JSON object."""
    if not isinstance(value, dict):
        raise BadRequest(f"Cannot read {what}: it is not a JSON object; send an object")
    return cast("dict[str, object]", value)


def as_list(value: object, what: str) -> list[object]:
    """Return the value as a JSON array."""
    if not isinstance(value, list):
        raise BadRequest(f"Cannot read {what}: it is not a JSON array; send an array")
    return cast("list[object]", value)


def is_whole(value: object, limit: int) -> bool:
    """True if the value is a JSON integer in the range of a signed number whose maximum is `limit`."""
    return isinstance(value, int) and not isinstance(value, bool) and -limit - 1 <= value <= limit


def is_text(value: object) -> bool:
    """True if the value is a string that UTF-8 can encode. JSON escapes can spell half a surrogate pair, which UTF-8 cannot."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def find_int(node: Mapping[str, object], key: str, what: str) -> int | None:
    """Return a 32-bit integer, or None."""
    value = node.get(key)
    if value is not None and not is_whole(value, INT_MAX):
        refuse(what, key, "a 32-bit integer")
    return cast("int | None", value)


def get_int(node: Mapping[str, object], key: str, what: str) -> int:
    """Return a 32-bit integer."""
    value = find_int(node, key, what)
    return refuse(what, key, "a 32-bit integer") if value is None else value


def find_long(node: Mapping[str, object], key: str, what: str) -> int | None:
    """Return a 64-bit integer, or None."""
    value = node.get(key)
    if value is not None and not is_whole(value, LONG_MAX):
        refuse(what, key, "a 64-bit integer")
    return cast("int | None", value)


def get_long(node: Mapping[str, object], key: str, what: str) -> int:
    """Return a 64-bit integer."""
    value = find_long(node, key, what)
    return refuse(what, key, "a 64-bit integer") if value is None else value


def find_text(node: Mapping[str, object], key: str, what: str) -> str | None:
    """Return a string, or None."""
    value = node.get(key)
    if value is not None and not is_text(value):
        refuse(what, key, "a string")
    return cast("str | None", value)


def get_text(node: Mapping[str, object], key: str, what: str) -> str:
    """Return a string."""
    value = find_text(node, key, what)
    return refuse(what, key, "a string") if value is None else value


def get_flag(node: Mapping[str, object], key: str, what: str) -> bool:
    """Return a boolean."""
    value = node.get(key)
    return value if isinstance(value, bool) else refuse(what, key, "true or false")


def find_list(node: Mapping[str, object], key: str, what: str) -> list[object] | None:
    """Return an array, or None."""
    value = node.get(key)
    return None if value is None else as_list(value, f"{key!r} of {what}")


def get_list(node: Mapping[str, object], key: str, what: str) -> list[object]:
    """Return an array."""
    value = find_list(node, key, what)
    return refuse(what, key, "an array") if value is None else value


def list_objects(node: Mapping[str, object], key: str, what: str) -> list[Mapping[str, object]]:
    """Return the objects of an array; none when the key is absent."""
    return [as_object(item, f"an item of {key!r} of {what}") for item in find_list(node, key, what) or []]


def list_ints(node: Mapping[str, object], key: str, what: str) -> tuple[int, ...]:
    """Return the 32-bit integers of an array; none when the key is absent."""
    items = find_list(node, key, what) or []
    if not all(is_whole(item, INT_MAX) for item in items):
        refuse(what, key, "an array of 32-bit integers")
    return tuple(cast("list[int]", items))


def find_text_map(node: Mapping[str, object], key: str, what: str) -> dict[str, str] | None:
    """Return an object whose values are strings, or None."""
    value = node.get(key)
    if value is None:
        return None
    found = as_object(value, f"{key!r} of {what}")
    if not all(is_text(name) and is_text(text) for name, text in found.items()):
        refuse(what, key, "an object whose values are strings")
    return cast("dict[str, str]", found)


def decode_json(content: bytes, what: str = "request body") -> object:
    """Return the value of a JSON text in UTF-8.

    Raises: BadRequest — no JSON, a key given twice, NaN or Infinity, a number of thousands of digits, nested too deep
    """
    try:
        return loads(content.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(f"Cannot read {what}: byte {error.start} is no UTF-8; send JSON in UTF-8") from error
    except RecursionError as error:
        raise BadRequest(f"Cannot read {what}: it is nested too deep; flatten it") from error
    except ValueError as error:
        raise BadRequest(f"Cannot read {what}: it is no valid JSON ({error}); send a JSON object") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    node = dict(pairs)
    if len(node) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:100]!r} is given twice in one object")
    return node


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
