"""Options that several commands share: properties from a file, `NAME=VALUE` pairs, and words of an enumeration.

Secrets come from a file or the environment only, because other users of the machine see the arguments of commands.
"""

import re
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from duckicelake.errors import BadRequest

SECRET = re.compile("passw|pwd|secret|credential|token|authorization|cookie|(?:private|api|shared|account|sse).?key", re.IGNORECASE)
"""Matches names of properties that hold secrets."""


def read_properties(path: Path | None) -> dict[str, str]:
    """Return the properties of a TOML file; none without one. Raises: BadRequest: it cannot be read, or one is no text."""
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"--properties {path} cannot be read: {error}") from error
    wrong = next((name for name, text in found.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise BadRequest(f'--properties {path}: {wrong} must be a text; write names with dots in quotes: "s3.endpoint" = "…"')
    return found


Word = TypeVar("Word", bound=StrEnum)


def read_pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Return `name=value` texts as a mapping. Raises: BadRequest: one has no `=`."""
    pairs = [text.partition("=") for text in texts or ()]
    wrong = next((name for name, equals, _ in pairs if not equals or not name), None)
    if wrong is not None:
        raise BadRequest(f"{wrong!r} is no NAME=VALUE")
    return {name: value for name, _, value in pairs}


def read_word(words: type[Word], option: str, text: str) -> Word:
    try:
        return words(text)
    except ValueError as error:
        raise BadRequest(f"--{option} {text} is none of {', '.join(words)}") from error
