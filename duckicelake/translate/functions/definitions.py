"""A function's metadata from the macros of its name and the result types that DuckDB's binder tells."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, cast
from uuid import uuid5

from duckicelake.iceberg.function_metadata import (
    FunctionDefinition,
    FunctionLogEntry,
    FunctionMetadata,
    FunctionParameter,
    FunctionVersion,
    format_signature,
)
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from duckicelake.translate.functions.environment import NESTED
from duckicelake.translate.functions.macros import UNTYPED, Macro, MacroOverload
from duckicelake.translate.leaf_types import WHOLE_DOUBLES, find_primitive
from duckicelake.translate.namespaces import fold_name
from duckicelake.translate.views.columns import DUCKLAKE_NAMES

RESULT_NAMES: Mapping[str, str] = {
    **DUCKLAKE_NAMES,
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "TIMESTAMP_S": "timestamp_s",
    "TIMESTAMP_MS": "timestamp_ms",
    "TIMESTAMP_NS": "timestamp_ns",
    "JSON": "json",
    "GEOMETRY": "geometry",
}
"""DuckLake's names of the types that DuckDB's binder tells, as far as Iceberg has them."""

INEXACT = WHOLE_DOUBLES | {"timetz"}
"""DuckLake types that stand in tables as types which do not hold all their values; a function would return them."""


class NotExpressible(Exception):
    """Why an implementation is left out."""


@dataclass(frozen=True, slots=True)
class BoundOverload:
    """An implementation with its texts by dialect and the binder's answer, `{"columns": [[name, type], …]}` or `{"error": text}`."""

    macro: Macro
    overload: MacroOverload
    texts: Mapping[str, str]
    answer: Mapping[str, Any]


class _Candidate(NamedTuple):
    """A version of a definition that is not built yet."""

    macro: Macro
    kind: Literal["scalar", "table"]
    parameters: tuple[FunctionParameter, ...]
    return_type: IcebergType
    version: FunctionVersion

    @property
    def definition_id(self) -> str:
        return format_signature([parameter.type for parameter in self.parameters])


@dataclass(frozen=True, slots=True)
class TranslatedFunction:
    """A function's metadata, and each current implementation that is left out with the reason. No metadata: all are left out."""

    metadata: FunctionMetadata | None
    left_out: tuple[str, ...]


def translate_function(bound: Sequence[BoundOverload]) -> TranslatedFunction:
    """Return the function of all live macros of one name, with the versions that they replaced.

    An earlier implementation is a version of the definition with its parameter types if it returns the same type.
    """
    candidates: list[_Candidate] = []
    left_out: list[str] = []
    for item in sorted(bound, key=lambda item: (item.macro.end_snapshot is not None, item.macro.begin_snapshot, item.overload.impl_id)):
        try:
            candidates.append(_check_against(_to_candidate(item), candidates, is_live=item.macro.end_snapshot is None))
        except NotExpressible as error:
            if item.macro.end_snapshot is None:
                left_out.append(f"{_format_call(item)}: {error}")
    if not candidates:
        return TranslatedFunction(None, tuple(left_out))
    macro = candidates[0].macro
    properties = {"left-out": "; ".join(left_out)} if left_out else {}
    definitions = tuple(_build_definitions(candidates))
    # DuckLake gives macros no uuid: the function of a name in a schema is one, also after it was dropped and created again
    metadata = FunctionMetadata(
        uuid5(macro.schema_uuid, f"function {fold_name(macro.name)}"), definitions, tuple(_build_log(candidates)), properties
    )
    return TranslatedFunction(metadata, tuple(left_out))


def _format_call(item: BoundOverload) -> str:
    return f"{item.macro.name}({', '.join(f'{parameter.name} {parameter.type}' for parameter in item.overload.parameters)})"


def _to_candidate(item: BoundOverload) -> _Candidate:
    """Return an implementation as a version. Raises: NotExpressible: Iceberg cannot have it"""
    parameters = tuple(FunctionParameter(parameter.name, _to_parameter_type(parameter.type)) for parameter in item.overload.parameters)
    if item.overload.dialect != "duckdb":
        raise NotExpressible(f"its dialect is {item.overload.dialect!r}")
    if "error" in item.answer:
        raise NotExpressible(item.answer["error"])
    columns = [(name, _to_result_type(told)) for name, told in cast("list[tuple[str, Any]]", item.answer["columns"])]
    return_type = _to_struct(columns) if item.overload.kind == "table" else columns[0][1]
    version = FunctionVersion(item.macro.begin_snapshot, item.macro.begun_at, dict(item.texts))
    return _Candidate(item.macro, item.overload.kind, parameters, return_type, version)


def _to_parameter_type(column_type: str) -> IcebergType:
    if column_type == UNTYPED:
        raise NotExpressible("a parameter has no type; declare it, as in (a INTEGER)")
    if column_type in NESTED:
        raise NotExpressible(f"DuckLake does not keep what a parameter of type {column_type} consists of")
    found = None if column_type in INEXACT else find_primitive(column_type)
    if found is None:
        raise NotExpressible(f"Iceberg has no type for a parameter of type {column_type}")
    return found


def _to_result_type(told: Any) -> IcebergType:
    """Return the Iceberg type of a result, from the binder's words."""
    match told:
        case {"list": element}:
            return ListType(0, _to_result_type(element), False)
        case {"map": [key, value]}:
            return MapType(0, _to_result_type(key), 0, _to_result_type(value), False)
        case {"struct": fields}:
            return _to_struct([(name, _to_result_type(kind)) for name, kind in cast("list[tuple[str, Any]]", fields)])
        case _:
            name = RESULT_NAMES.get(told, "")
            found = find_primitive(told.lower() if told.startswith("DECIMAL(") else name)
            if found is None:
                raise NotExpressible(f"Iceberg has no type for a result of type {told}; cast it")
            return found


def _to_struct(columns: Sequence[tuple[str, IcebergType]]) -> StructType:
    return StructType(tuple(NestedField(0, name, kind, False) for name, kind in columns))


def _check_against(found: _Candidate, candidates: Sequence[_Candidate], *, is_live: bool) -> _Candidate:
    """Return a version that fits the ones before it. Raises: NotExpressible: it does not"""
    others = [other for other in candidates if other.definition_id == found.definition_id]
    if is_live and others:
        raise NotExpressible("another implementation has the same parameter types in Iceberg")
    if not is_live and not (others and (others[0].kind, others[0].return_type) == (found.kind, found.return_type)):
        raise NotExpressible("it is no version of a definition that is left")
    return found


def _order(candidates: Sequence[_Candidate], key: Callable[[_Candidate], Any]) -> Iterator[tuple[Any, list[_Candidate]]]:
    for value, group in groupby(sorted(candidates, key=key), key):
        yield value, list(group)


def _build_definitions(candidates: Sequence[_Candidate]) -> Iterator[FunctionDefinition]:
    positions = {found.definition_id: position for position, found in reversed(list(enumerate(candidates)))}
    for _, group in _order(candidates, lambda found: positions[found.definition_id]):
        versions = sorted(group, key=lambda found: found.version.version_id)
        newest = versions[-1]
        kind: Literal["udf", "udtf"] = "udtf" if newest.kind == "table" else "udf"
        yield FunctionDefinition(newest.parameters, newest.return_type, kind, tuple(found.version for found in versions))


def _build_log(candidates: Sequence[_Candidate]) -> Iterator[FunctionLogEntry]:
    for snapshot, begun in _order(candidates, lambda found: found.macro.begin_snapshot):
        current = [found for found in candidates if _is_live_at(found.macro, snapshot)]
        pairs = sorted((found.definition_id, found.version.version_id) for found in current)
        yield FunctionLogEntry(begun[0].version.created_at, tuple(pairs))


def _is_live_at(macro: Macro, snapshot: int) -> bool:
    return macro.begin_snapshot <= snapshot and (macro.end_snapshot is None or snapshot < macro.end_snapshot)
