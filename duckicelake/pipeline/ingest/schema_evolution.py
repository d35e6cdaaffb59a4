"""Changes that a table needs before it can take rows of other columns.

`ingest.job`, `plan`, `merging` and `file_checks` call this in the driver. It runs no query and changes no table. `apply_changes` uses
Spark's own parser, so it needs an open session; everything else is pure.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_connect import parse_ddl
from duckicelake.pipeline.common.spark_sql import format_type, quote
from duckicelake.pipeline.ingest.options import Evolve, IngestOptions

METADATA_COLUMN = "_metadata"

_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_FITS: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
_PROMOTIONS: dict[type[DataType], type[DataType]] = {IntegerType: LongType, FloatType: DoubleType}


class EvolutionRefused(BadRequest):
    """The files have columns that the table may not take; the message names the first one."""


@dataclass(frozen=True, slots=True)
class ColumnEvolution:
    """One change of the table's columns: a new one, or a wider type."""

    path: tuple[str, ...]
    type: str
    is_new: bool

    def format_alter(self, table: str) -> str:
        """Return the statement that makes it."""
        column = ".".join(map(quote, self.path))
        return f"ALTER TABLE {table} " + (f"ADD COLUMN {column} {self.type}" if self.is_new else f"ALTER COLUMN {column} TYPE {self.type}")

    def __str__(self) -> str:
        return f"{'add' if self.is_new else 'widen'} {'.'.join(self.path)} {self.type}"


def plan_evolution(current: StructType, incoming: StructType, policy: Evolve) -> tuple[ColumnEvolution, ...]:
    """Return the changes that let a table of the columns `current` take rows of the columns `incoming`, by name, without losing a value.

    Raises: EvolutionRefused: the policy does not allow it, or no change would do
    """
    missing = [field.name for field in current.fields if not field.nullable and _find(incoming, field.name) is None]
    if missing:
        raise EvolutionRefused(f"column {missing[0]} must have a value, and the files do not have it: every row would be refused")
    return tuple(_compare_structs(current, incoming, policy, ()))


def apply_changes(columns: StructType, changes: Sequence[ColumnEvolution]) -> StructType:
    """Return the columns of a table after changes, without those that it does not have and that are not new."""
    for change in changes:
        columns = _apply(columns, change.path, change)
    return columns


def _apply(columns: StructType, path: Sequence[str], change: ColumnEvolution) -> StructType:
    name, *inner = path
    known = _find(columns, name)
    if known is None:
        new = [StructField(name, parse_ddl(change.type))] if change.is_new and not inner else []
        return StructType([*columns.fields, *new])
    form = _apply(known.dataType, inner, change) if inner and isinstance(known.dataType, StructType) else parse_ddl(change.type)
    changed = StructField(known.name, form, known.nullable, known.metadata)
    return StructType([changed if field is known else field for field in columns.fields])


def _compare_structs(current: StructType, incoming: StructType, policy: Evolve, path: tuple[str, ...]) -> Iterator[ColumnEvolution]:
    _check_distinct(incoming, path)
    for field in incoming.fields:
        here = (*path, field.name)
        known = _find(current, field.name)
        if known is not None:
            yield from _compare(known.dataType, field.dataType, policy, (*path, known.name))
        elif policy is Evolve.fail:
            raise EvolutionRefused(f"column {_join(here)} is not in the table; --evolve add adds it")
        elif not isinstance(field.dataType, NullType):
            yield ColumnEvolution(here, format_type(field.dataType), is_new=True)


def _compare(current: DataType, incoming: DataType, policy: Evolve, path: tuple[str, ...]) -> Iterator[ColumnEvolution]:
    if isinstance(current, StructType) and isinstance(incoming, StructType):
        yield from _compare_structs(current, incoming, policy, path)
    elif isinstance(current, ArrayType) and isinstance(incoming, ArrayType):
        yield from _compare_inner(current.elementType, incoming.elementType, (*path, "element"))
    elif isinstance(current, MapType) and isinstance(incoming, MapType):
        yield from _compare_inner(current.keyType, incoming.keyType, (*path, "key"))
        yield from _compare_inner(current.valueType, incoming.valueType, (*path, "value"))
    elif not fits(incoming, current):
        yield _widen(current, incoming, policy, path)


def _compare_inner(current: DataType, incoming: DataType, path: tuple[str, ...]) -> Iterator[ColumnEvolution]:
    changes = list(_compare(current, incoming, Evolve.widen, path))
    if changes:
        raise EvolutionRefused(f"column {_join(path)}: what is inside lists and maps is not changed; alter the table yourself")
    yield from ()


def _widen(current: DataType, incoming: DataType, policy: Evolve, path: tuple[str, ...]) -> ColumnEvolution:
    difference = f"column {_join(path)}: the files have {incoming.simpleString()}, the table has {current.simpleString()}"
    if not is_promotion(current, incoming):
        raise EvolutionRefused(f"{difference}, and neither holds all values of the other; give --schema, or another table")
    if policy is not Evolve.widen:
        raise EvolutionRefused(f"{difference}; --evolve widen makes it wider")
    return ColumnEvolution(path, incoming.simpleString(), is_new=False)


def fits(incoming: DataType, current: DataType) -> bool:
    """Return True if every value of the one type is one of the other; inside too, where a struct may have more fields, and not less."""
    if isinstance(incoming, StructType) and isinstance(current, StructType):
        pairs = [(field.dataType, _find(current, field.name)) for field in incoming.fields]
        return all(own is not None and fits(form, own.dataType) for form, own in pairs)
    if isinstance(incoming, ArrayType) and isinstance(current, ArrayType):
        return fits(incoming.elementType, current.elementType)
    if isinstance(incoming, MapType) and isinstance(current, MapType):
        return fits(incoming.keyType, current.keyType) and fits(incoming.valueType, current.valueType)
    if isinstance(incoming, NullType) or (type(incoming) is type(current) and not isinstance(current, DecimalType)):
        return True
    if isinstance(current, DecimalType):
        digits = _DIGITS.get(type(incoming))
        if isinstance(incoming, DecimalType):
            return current.scale >= incoming.scale and current.precision - current.scale >= incoming.precision - incoming.scale
        return digits is not None and current.precision - current.scale >= digits
    return type(current) in _FITS.get(type(incoming), ())


def is_promotion(current: DataType, incoming: DataType) -> bool:
    """Return True if Iceberg lets a column of the first type become one of the second."""
    if isinstance(current, DecimalType) and isinstance(incoming, DecimalType):
        return current.scale == incoming.scale and incoming.precision > current.precision
    return _PROMOTIONS.get(type(current)) is type(incoming)


def adopt(found: StructType, target: StructType | None, policy: Evolve) -> StructType:
    """Return the columns of text, as they look, with the types that the table has for those that it knows; also inside."""
    if target is None:
        return found
    fields: list[StructField] = []
    for field in found.fields:
        own = _find(target, field.name)
        fields.append(field if own is None else StructField(field.name, _adopt_type(field.dataType, own.dataType, policy)))
    return StructType(fields)


def _adopt_type(found: DataType, own: DataType, policy: Evolve) -> DataType:
    if isinstance(found, StructType) and isinstance(own, StructType):
        # Values of structs are written whole, so what the files lack of one is there too.
        lacking = [field for field in own.fields if _find(found, field.name) is None]
        return StructType([*adopt(found, own, policy).fields, *lacking])
    if isinstance(found, ArrayType) and isinstance(own, ArrayType):
        return ArrayType(_adopt_type(found.elementType, own.elementType, policy), own.containsNull)
    return found if policy is Evolve.widen and is_promotion(own, found) else own


def _check_distinct(columns: StructType, path: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in columns.names:
        if name.lower() in seen:
            raise EvolutionRefused(f"the files have two columns {_join((*path, name))} that differ at most by case")
        seen.add(name.lower())


def _find(columns: StructType, name: str) -> StructField | None:
    return next((field for field in columns.fields if field.name.lower() == name.lower()), None)


def _join(path: tuple[str, ...]) -> str:
    return ".".join(path)


def check_metadata_name(columns: StructType, options: IngestOptions) -> None:
    """Raises: BadRequest: a column of files has the name under which Spark says where their rows are from."""
    taken = next((name for name in columns.names if name.lower() == METADATA_COLUMN), None)
    if taken is not None and not options.is_database:
        raise BadRequest(f"column {taken} has the name under which Spark says where rows are from; give it another one; nothing was taken")


def check_names(options: IngestOptions, known: Collection[str], kept: Collection[str]) -> None:
    """Raises: BadRequest: an option names a column that there is not.

    `known` are those that files and table have, `kept` those that the table is going to have, in small letters.
    """
    partitions, order = ([field.column for field in fields] for fields in (options.partition_by, options.sort_by))
    later = [options.order_by] if options.order_by is not None else []
    asked = (("key", options.key, known), ("order-by", later, known), ("partition-by", partitions, kept), ("sort-by", order, kept))
    for option, names, there in asked:
        wrong = next((name for name in names if name.lower() not in there), None)
        if wrong is not None:
            form = "; write a column, and asc or desc after it, where NULLs come is not chosen" if option == "sort-by" else ""
            raise BadRequest(f"--{option}: there is no column {wrong}{form}")


def spell_names(options: IngestOptions, names: Iterable[str]) -> IngestOptions:
    """Return the options with columns as the table spells them: Spark's SQL finds them in any case, and its rows and schemas do not."""
    spelled = {name.lower(): name for name in names}

    def spell(name: str) -> str:
        return spelled.get(name.lower(), name)

    return replace(
        options,
        key=tuple(map(spell, options.key)),
        order_by=None if options.order_by is None else spell(options.order_by),
        partition_by=tuple(replace(field, column=spell(field.column)) for field in options.partition_by),
        sort_by=tuple(replace(field, column=spell(field.column)) for field in options.sort_by),
    )
