"""Columns that stand in a data file's path alone, in names of folders like `day=2026-03-01`, as Hive and Spark leave them.

DuckDB reads the value from the path each time, and Iceberg's readers from the partition tuple. So a file is taken when both are the same.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_values import parse_value
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.lake.writing.rows import NewColumnStats
from duckicelake.translate.shape.name_mapping import NamePath
from duckicelake.translate.to_ducklake.texts import find_text

HIVE_NULL, NULL = "__HIVE_DEFAULT_PARTITION__", "null"
_SEPARATORS = re.compile(r"[/\\]")
_FOLDER = re.compile(r"([^=?\n]+)=([^=?\n]*)")
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


class Untold(NamedTuple):
    """A column that a file has in its partition alone, and its place in the tuple."""

    place: int
    column: NestedField


Names = tuple[tuple[str, int], ...]
"""Names, each with the id of the column that it means."""


def list_folder_texts(path: str) -> dict[str, str]:
    """Return the values in names of folders by name, as they are written; without names that come twice.

    Source: DuckDB 1.5, HivePartitioning::Parse
    """
    found: dict[str, list[str]] = {}
    for folder in _SEPARATORS.split(path)[:-1]:
        match = _FOLDER.fullmatch(folder)
        if match is not None:
            found.setdefault(match[1], []).append(match[2])
    return {name: texts[0] for name, texts in found.items() if len(texts) == 1}


def reads_value(type_: PrimitiveType, text: str, value: object) -> bool:
    """Tell whether DuckDB takes the name of a folder for exactly this value, whatever its session is set to."""
    try:
        return parse_text(type_, text) == value
    except (ValueError, BadRequest):
        return False


def parse_text(type_: PrimitiveType, text: str) -> object:
    """Return the value that DuckDB takes the name of a folder for.

    Raises: ValueError, BadRequest: it takes it for none, or for one or another
    Source: DuckDB 1.5, HivePartitioning::GetValue
    """
    if text == HIVE_NULL or text.lower() == NULL:
        return None
    plain = unquote_to_bytes(text).decode()
    if "\0" in plain:
        raise ValueError("not to be kept")
    if type_.name == "string":
        return plain
    parse = _PARSERS.get(type_.name.partition("(")[0])
    if parse is None:
        raise ValueError("not of a type that has one spelling")
    return parse(type_, plain)


def _match(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError("spelled otherwise")
    return text


def _parse_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError("spelled otherwise")
    return _BOOLEANS[text]


# PyIceberg rounds doubles of partitions, a float's text is that of another double, and a timestamptz is read in the session's zone.
_PARSERS: Mapping[str, Callable[[PrimitiveType, str], object]] = {
    "boolean": lambda _, text: _parse_boolean(text),
    "int": lambda _, text: int(_match(_INTEGER, text)),
    "long": lambda _, text: int(_match(_INTEGER, text)),
    "decimal": lambda _, text: Decimal(_match(_DECIMAL, text)),
    "date": lambda type_, text: parse_value(type_, _match(_DATE, text)),
    "timestamp": lambda type_, text: parse_value(type_, _match(_TIMESTAMP, text).replace(" ", "T")),
}


def find_folders(file: DataFile, untold: Sequence[Untold], known: Mapping[NamePath, int]) -> Names:
    """Return the names of the folders in which a file has these columns, by the names that are `known`.

    Raises: BadRequest: one is in none, or would be read from there as another value than the file's partition has
    """
    texts = list_folder_texts(file.file_path)
    return tuple(sorted(_find_folder(file, each, texts, known) for each in untold))


def _find_folder(file: DataFile, untold: Untold, texts: Mapping[str, str], known: Mapping[NamePath, int]) -> tuple[str, int]:
    column = untold.column
    if untold.place >= len(file.partition):
        raise BadRequest(f"Data file {file.file_path!r} has {len(file.partition)} partition values, and its spec more fields; rewrite it.")
    value = file.partition[untold.place]
    names = [name for name in texts if known.get((name,)) == column.field_id]
    if len(names) != 1:
        raise BadRequest(
            f"Data file {file.file_path!r} has the column {column.name!r} in its partition alone, and in no name of a folder like "
            f"'{column.name}=…' where DuckLake would look for it; rewrite it."
        )
    [name] = names
    if not isinstance(column.type, PrimitiveType) or not reads_value(column.type, texts[name], value):
        raise BadRequest(
            f"Data file {file.file_path!r} has the column {column.name!r} in its path alone, and DuckDB may take '{name}={texts[name]}' "
            f"for another {column.type} than {str(value)[:100]!r}, which its partition says; rewrite it."
        )
    return name, column.field_id


def tell_stats(table_id: int, data_file_id: int, file: DataFile, untold: Sequence[Untold]) -> list[NewColumnStats]:
    """Return what DuckDB passes a file over by: its only value in each of these columns, of which manifests need not tell."""
    told = [file.column_sizes, file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds]
    found: list[NewColumnStats] = []
    for place, column in untold:
        if isinstance(column.type, PrimitiveType) and not any(column.field_id in (each or {}) for each in told):
            value, count = file.partition[place], file.record_count
            text, counts = find_text(column.type, value), (0, count) if value is None else (count, 0)
            found.append(NewColumnStats(data_file_id, table_id, column.field_id, None, *counts, text, text, None))
    return found
