"""The metadata of SQL functions as JSON. No I/O.

`translate.functions` builds these values from DuckDB's macros, and `catalog.functions` encodes them for a load.
Source: Iceberg format/udf-spec.md, d6aa0bf5 (1 Jul 2026)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from duckicelake.iceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FunctionParameter:
    """A parameter, by its position."""

    name: str
    type: IcebergType


@dataclass(frozen=True, slots=True)
class FunctionVersion:
    """An implementation of a definition. `texts` has the SQL by dialect."""

    version_id: int
    created_at: datetime
    texts: dict[str, str]


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """The function for one list of parameter types. `versions` are in order; the last is the current one.

    `function_type`: a `udtf` returns the rows of `return_type`, a struct of its columns.
    """

    parameters: tuple[FunctionParameter, ...]
    return_type: IcebergType
    function_type: Literal["udf", "udtf"]
    versions: tuple[FunctionVersion, ...]

    @property
    def definition_id(self) -> str:
        """The parameter types, as the specification spells them."""
        return format_signature([parameter.type for parameter in self.parameters])


@dataclass(frozen=True, slots=True)
class FunctionLogEntry:
    """The versions that were current from a time on, as (definition id, version id)."""

    at: datetime
    versions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class FunctionMetadata:
    """A function with all its definitions."""

    uuid: UUID
    definitions: tuple[FunctionDefinition, ...]
    log: tuple[FunctionLogEntry, ...]
    properties: dict[str, str] = field(default_factory=dict[str, str])


def format_signature(types: Sequence[IcebergType]) -> str:
    """Return parameter types as a definition id: `int,list<string>`."""
    return ",".join(_format_type(item) for item in types)


def _format_type(type_: IcebergType) -> str:
    match type_:
        case PrimitiveType(name):
            return name.replace(" ", "")
        case ListType():
            return f"list<{_format_type(type_.element_type)}>"
        case MapType():
            return f"map<{_format_type(type_.key_type)},{_format_type(type_.value_type)}>"
        case StructType(fields):
            return f"struct<{','.join(f'{item.name}:{_format_type(item.type)}' for item in fields)}>"


def _encode_type(type_: IcebergType) -> str | dict[str, Any]:
    match type_:
        case PrimitiveType(name):
            return name.replace(" ", "")
        case ListType():
            return {"type": "list", "element": _encode_type(type_.element_type)}
        case MapType():
            return {"type": "map", "key": _encode_type(type_.key_type), "value": _encode_type(type_.value_type)}
        case StructType(fields):
            return {"type": "struct", "fields": [{"name": item.name, "type": _encode_type(item.type)} for item in fields]}


def _to_millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def encode_function(function: FunctionMetadata) -> dict[str, Any]:
    """Return a function's metadata as the JSON object that clients load."""
    return {
        "function-uuid": str(function.uuid),
        "format-version": FORMAT_VERSION,
        "definitions": [_encode_definition(definition) for definition in function.definitions],
        "definition-log": [
            {
                "timestamp-ms": _to_millis(entry.at),
                "definition-versions": [{"definition-id": name, "version-id": version} for name, version in entry.versions],
            }
            for entry in function.log
        ],
        "properties": function.properties,
        "secure": False,
    }


def _encode_definition(definition: FunctionDefinition) -> dict[str, Any]:
    return {
        "definition-id": definition.definition_id,
        "parameters": [{"name": parameter.name, "type": _encode_type(parameter.type)} for parameter in definition.parameters],
        "return-type": _encode_type(definition.return_type),
        "function-type": definition.function_type,
        "versions": [
            {
                "version-id": version.version_id,
                "representations": [{"type": "sql", "dialect": dialect, "sql": sql} for dialect, sql in version.texts.items()],
                "timestamp-ms": _to_millis(version.created_at),
            }
            for version in definition.versions
        ],
        "current-version-id": definition.versions[-1].version_id,
    }
