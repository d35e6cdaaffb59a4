"""Requests as stock clients sent them, recorded between them and this server, with names for what differs from lake to lake."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"

Words = Mapping[str, Any]
"""What the names in braces stand for: ids, places, files."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request; its body is None or JSON with names in braces."""

    client: str
    method: str
    path: str
    body: Any


def read_recorded() -> list[Recorded]:
    """All recorded requests, client by client."""
    return [Recorded(file.stem, **item) for file in sorted(GOLDEN.glob("*.json")) for item in json.loads(file.read_text())]


def fill(node: Any, words: Words) -> Any:
    """The JSON with words in the place of names; within a text only places are replaced."""
    match node:
        case dict():
            return {key: fill(value, words) for key, value in node.items()}
        case list():
            return [fill(value, words) for value in node]
        case str() if node.startswith("{") and node[1:].partition("}")[0] in words:
            name, _, rest = node[1:].partition("}")
            return words[name] if not rest else f"{words[name]}{rest}"
        case _:
            return node
