"""Request bodies as JSON, read strictly: what two readers could take for two different things is refused."""

from json import loads
from typing import NoReturn

from duckicelake.errors import BadRequest


def decode_json(content: bytes, what: str = "request body") -> object:
    """The value that UTF-8 JSON spells.

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
