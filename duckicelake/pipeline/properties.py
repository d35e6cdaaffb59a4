"""Properties that nobody else may see: read from a file, never from a command's arguments."""

import re
import tomllib
from pathlib import Path

from duckicelake.errors import BadRequest

SECRET = re.compile("passw|pwd|secret|credential|token|authorization|cookie|(?:private|api|shared|account|sse).?key", re.IGNORECASE)
"""In the names of what nobody else may see."""


def read_properties(path: Path | None) -> dict[str, str]:
    """The properties of a TOML file; none without one. Raises: BadRequest: it cannot be read, or one is no text."""
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
