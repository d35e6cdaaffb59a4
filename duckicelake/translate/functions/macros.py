"""DuckLake's macros as values, and the versions of a macro."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Literal
from uuid import UUID

from duckicelake.lake.rows import MacroRow
from duckicelake.translate.namespaces import fold_name

UNTYPED = "unknown"
"""DuckLake's word for a parameter without a type, and for the type of a default that is not there."""

MAX_VERSIONS = 20
"""Versions of a macro before its current one that are published."""


@dataclass(frozen=True, slots=True)
class MacroParameter:
    """A parameter; its type is in DuckLake's words. `default_value` is a text of type `default_type`, None if there is no default."""

    name: str
    type: str
    default_value: str | None
    default_type: str


@dataclass(frozen=True, slots=True)
class MacroOverload:
    """One implementation of a macro."""

    impl_id: int
    dialect: str
    sql: str
    kind: Literal["scalar", "table"]
    parameters: tuple[MacroParameter, ...]


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro from its lake snapshot on, until it is replaced or dropped."""

    schema_name: str
    schema_uuid: UUID
    name: str
    macro_id: int
    begin_snapshot: int
    end_snapshot: int | None
    begun_at: datetime
    overloads: tuple[MacroOverload, ...]

    @property
    def kind(self) -> Literal["scalar", "table"]:
        """Scalar and table macros of one name are two macros."""
        return self.overloads[0].kind


def to_macros(rows: Sequence[MacroRow]) -> list[Macro]:
    """Return macros from their rows, which are in order of macro and implementation."""
    return [_to_macro(list(found)) for _, found in groupby(rows, lambda row: row.macro_id)]


def _to_macro(rows: Sequence[MacroRow]) -> Macro:
    first = rows[0]
    overloads = tuple(_to_overload(list(found)) for _, found in groupby(rows, lambda row: row.impl_id))
    return Macro(
        first.schema_name,
        first.schema_uuid,
        first.macro_name,
        first.macro_id,
        first.begin_snapshot,
        first.end_snapshot,
        first.begun_at,
        overloads,
    )


def _to_overload(rows: Sequence[MacroRow]) -> MacroOverload:
    first = rows[0]
    parameters = tuple(
        MacroParameter(
            row.parameter_name,
            (row.parameter_type or UNTYPED).lower(),
            None if row.default_value_type == UNTYPED else row.default_value,
            row.default_value_type,
        )
        for row in rows
        if row.parameter_name is not None
    )
    return MacroOverload(first.impl_id, first.dialect, first.sql, first.kind, parameters)


def list_versions(macro: Macro, macros: Sequence[Macro]) -> list[Macro]:
    """Return the latest `MAX_VERSIONS` macros that a live one has replaced, one after the other, and itself at the end.

    DuckDB replaces a macro by ending it and creating another of its name at the same lake snapshot.
    """
    versions = [macro]
    while len(versions) <= MAX_VERSIONS:
        begin = versions[0].begin_snapshot
        earlier = [other for other in macros if other.end_snapshot == begin and other.begin_snapshot < begin and _is_same(other, macro)]
        if not earlier:
            break
        versions.insert(0, earlier[-1])
    return versions


def _is_same(a: Macro, b: Macro) -> bool:
    return a.kind == b.kind and fold_name(a.schema_name) == fold_name(b.schema_name) and fold_name(a.name) == fold_name(b.name)
