"""Checks of values in the database itself, for values of SQLite and Postgres that Spark would misread or fail at.

Any SQLite column may hold values of any type; Postgres has infinite dates and timestamps. `database_source` calls this in the driver. The
checks are part of the query that Spark sends to the database, and nothing is written there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.ingest.source import RAW, WRONG

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """A condition on a value as SQL, the reason why a row that fails it is bad, and the remedy if such a row stops the run."""

    holds: str
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A table or query of a database with checks of each row: `table` stands behind FROM, and has WRONG and RAW too.

    `columns` are those it has in the end; `checks` are by column, where there are any.
    """

    table: str
    columns: StructType
    checks: Mapping[str, Sequence[ValueCheck]] = field(repr=False)

    def list_reasons(self, column: str) -> list[str]:
        """Return what is said of rows that are bad for this column, if they are for no other that was looked at before."""
        return [check.reason for check in self.checks.get(column, ())]

    def convert(self, rows: DataFrame) -> DataFrame:
        """Return the rows as they are read, under their types."""
        return rows

    def sift(self, rows: DataFrame, name: str) -> DataFrame:
        """Return the checkpointed rows, without the columns of reasons if no row is bad. Raises: BadRequest: a bad row stops the run"""
        found = rows.where(F.col(WRONG).isNotNull()).groupBy(WRONG).agg(F.count("*").alias("n"), F.first(RAW).alias("example")).collect()
        told = {row[WRONG]: row for row in found}
        every = [check for checks in self.checks.values() for check in checks]
        stopping = next((check for check in every if check.remedy and check.reason in told), None)
        if stopping is not None:
            row = told[stopping.reason]
            raise BadRequest(
                f"{name}: {stopping.reason}, and {row['n']} rows have none, such as {row['example'][:_SHOWN]}. {stopping.remedy}"
            )
        return rows if told else rows.drop(WRONG, RAW)


def quote_name(name: str) -> str:
    """Return a name in a database's SQL; Spark's is `target.quote`."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Return a text in a database's SQL."""
    return "'" + text.replace("'", "''") + "'"


_TIMES = (DateType, TimestampType, TimestampNTZType)
_FINITE = ("date", "timestamp", "timestamptz")
"""What Spark 4.1 says that Postgres calls a column which may be asked whether it is finite."""


def guard_postgres(table: str, columns: StructType, bare: Sequence[str]) -> Guard | None:
    """Return a table with checks, None where no column has days or moments; `columns` are what Spark makes of it.

    The columns `bare`, in small letters, by which the database chooses rows, are looked at first, and stay as they are, for its indexes.
    """
    ordered = sorted(columns.fields, key=lambda one: [*bare, one.name.lower()].index(one.name.lower()))
    checks = {one.name: (_check_finite(one),) for one in ordered if _has_times(one.dataType)}
    if not checks:
        return None
    whens = " ".join(f"WHEN NOT ({check.holds}) THEN {quote_literal(check.reason)}" for (check,) in checks.values())
    is_wrong = " OR ".join(f"NOT ({check.holds})" for (check,) in checks.values())
    values = ", ".join(
        f"CASE WHEN {checks[one.name][0].holds} THEN {quote_name(one.name)} END AS {quote_name(one.name)}"
        if one.name in checks and one.name.lower() not in bare
        else quote_name(one.name)
        for one in columns.fields
    )
    raw = f"CASE WHEN {is_wrong} THEN row_to_json(duckicelake_source.*)::text END AS {quote_name(RAW)}"
    told = f"CASE {whens} END AS {quote_name(WRONG)}, {raw}"
    return Guard(
        f"(SELECT {told}, {values} FROM (SELECT * FROM {table}) duckicelake_source) duckicelake_checked",  # noqa: S608  names are quoted, and the query is the caller's
        columns,
        checks,
    )


def _has_times(form: DataType) -> bool:
    return _has_times(form.elementType) if isinstance(form, ArrayType) else isinstance(form, _TIMES)


def _check_finite(one: StructField) -> ValueCheck:
    name = quote_name(one.name)
    # isfinite() takes neither lists nor times of day, so their text is searched.
    holds = f"isfinite({name})" if one.metadata.get("jdbcClientType") in _FINITE else f"strpos({name}::text, 'infinity') = 0"
    what = "dates or moments" if isinstance(one.dataType, ArrayType) else "a date" if isinstance(one.dataType, DateType) else "a moment"
    return ValueCheck(holds, f"column {one.name} must have {what}, and no infinity")


WHOLE = (ByteType, ShortType, IntegerType, LongType)
TIMES = (DateType, TimestampType, TimestampNTZType)

_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_ANY_NUMBER = DecimalType(38, 18)
"""What Spark makes of every column whose type it does not know."""

_DAY_MS = 86_400_000
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999."""
_FIRST_DAY, _LAST_DAY = 1_721_425.5, 5_373_484.5
"""The same as Julian days."""

_DIGIT = "[0-9]"
_DAY = f"{_DIGIT * 4}-{_DIGIT * 2}-{_DIGIT * 2}"


@dataclass(frozen=True, slots=True)
class SqliteGuard(Guard):
    """A guard of which `schema` is how Spark reads its table."""

    schema: str

    def convert(self, rows: DataFrame) -> DataFrame:
        """Return the rows as they are read, with moments for texts."""
        # WRONG first: the driver fails at a decimal without a value that is the first of a row.
        named = [(one, F.col(quote(one.name))) for one in self.columns.fields]
        own = [_read_time(column, one.dataType).alias(one.name) if isinstance(one.dataType, TIMES) else column for one, column in named]
        return rows.select(WRONG, RAW, *own)


def guard_sqlite(table: str, columns: StructType, said: Mapping[str, DataType], first: str | None) -> SqliteGuard:
    """A table with checks; `columns` are what Spark makes of it, `said` the types that were asked for; `first` is looked at first."""
    typed = [replace_type(one, said) for one in columns.fields]
    checks = {one.name: _list_checks(one, is_said=one.name.lower() in said) for one in typed}
    names = sorted(checks, key=lambda name: name.lower() != (first or "").lower())
    whens = [
        f"WHEN {quote_name(name)} IS NOT NULL AND NOT ({check.holds}) THEN {quote_literal(check.reason)}"
        for name in names
        for check in checks[name]
    ]
    wrong = f"CASE {' '.join(whens)} END" if whens else "NULL"
    values = ", ".join(f"{_format_value(one, checks[one.name])} AS {quote_name(one.name)}" for one in typed)
    raw = f"CASE WHEN ({wrong}) IS NOT NULL THEN {_format_row(list(checks))} END AS {quote_name(RAW)}"
    schema = ", ".join(f"{quote(one.name)} {_get_read_type(one.dataType).simpleString()}" for one in typed)
    return SqliteGuard(
        f"(SELECT {wrong} AS {quote_name(WRONG)}, {raw}, {values} FROM {table}) duckicelake_checked",  # noqa: S608  names are quoted, and the query is the caller's
        StructType([StructField(one.name, one.dataType) for one in typed]),
        checks,
        f"{quote(WRONG)} STRING, {quote(RAW)} STRING, {schema}",
    )


def replace_type(one: StructField, said: Mapping[str, DataType]) -> StructField:
    """Return a column with the type that was asked for, or one that holds what SQLite may have there: 64 bits, and a time of day."""
    form = said.get(one.name.lower(), one.dataType)
    if one.name.lower() in said:
        return StructField(one.name, form)
    if isinstance(form, WHOLE):
        form = LongType()
    elif isinstance(form, FloatType):
        form = DoubleType()
    elif isinstance(form, DateType) and one.metadata.get("jdbcClientType") == "DATETIME":
        form = TimestampNTZType() if one.metadata.get("isTimestampNTZ") else TimestampType()
    return StructField(one.name, form)


def _list_checks(one: StructField, *, is_said: bool) -> list[ValueCheck]:
    name, form = quote_name(one.name), one.dataType
    must = f"column {one.name} must have"
    if isinstance(form, WHOLE):
        bound = 1 << (_BITS[type(form)] - 1)
        within = "" if isinstance(form, LongType) else f" AND CAST({name} AS INTEGER) BETWEEN {-bound} AND {bound - 1}"
        return [ValueCheck(f"CAST({name} AS INTEGER) = {name}{within}", f"{must} a whole number ({form.simpleString()})")]
    if isinstance(form, DoubleType | FloatType):
        return [ValueCheck(f"CAST({name} AS REAL) = {name}", f"{must} a number")]
    if isinstance(form, DecimalType):
        guessed = form == _ANY_NUMBER and not is_said
        remedy = f"If it is none of numbers, say what it is: --option customSchema='{quote(one.name)} STRING'" if guessed else None
        return [ValueCheck(_is_decimal(name, form), f"{must} a number that is {form.simpleString()}", remedy)]
    if isinstance(form, BooleanType):
        return [ValueCheck(f"{name} IN (0, 1) OR lower({name}) IN ('true', 'false')", f"{must} 0, 1, true or false")]
    if isinstance(form, StringType):
        return [ValueCheck(f"typeof({name}) <> 'blob'", f"{must} a text, and no BLOB")]
    if isinstance(form, BinaryType):
        return [ValueCheck(f"typeof({name}) IN ('blob', 'text')", f"{must} a BLOB or a text")]
    if isinstance(form, DateType):
        moment = f"--option customSchema='{quote(one.name)} TIMESTAMP_NTZ' reads it with its time, a query with date(…) without"
        is_day = ValueCheck(_is_midnight(name), f"{must} a date without a time of day", None if is_said else moment)
        return [ValueCheck(_is_moment(name), f"{must} a date (YYYY-MM-DD)"), is_day]
    if isinstance(form, TIMES):
        return [ValueCheck(_is_moment(name), f"{must} a moment (YYYY-MM-DD HH:MM:SS)")]
    return []


def _is_decimal(name: str, form: DecimalType) -> str:
    # Sums of binary fractions have more digits than anybody wrote; those are cut, and no others.
    fits = f"abs({name} - round({name}, {form.scale})) <= abs({name}) * 1e-14"
    digits = f"(instr({name}, '.') = 0 OR length(rtrim({name}, '0')) - instr({name}, '.') <= {form.scale})"
    is_exact = "1" if form == _ANY_NUMBER else f"CASE typeof({name}) WHEN 'text' THEN {digits} ELSE {fits} END"
    is_number = f"(typeof({name}) <> 'text' OR {name} NOT GLOB '*[^0-9.+-]*')"
    return f"CAST({name} AS NUMERIC) = {name} AND {is_number} AND abs({name}) < 1e{form.precision - form.scale} AND {is_exact}"


def _is_moment(name: str) -> str:
    """Return whether a value is a moment: in a text of ISO 8601, in milliseconds since 1970, or as a Julian day, by how it is stored."""
    day, rest = f"substr({name}, 1, 10)", f"substr({name}, 11)"
    is_time = f"{rest} GLOB '[ T]{_DIGIT * 2}:{_DIGIT * 2}*' AND substr({name}, 12) NOT GLOB '*[^0-9:.Z+-]*'"
    is_kept = f"{rest} NOT GLOB '?24*' AND {rest} NOT GLOB '*.{_DIGIT * 7}*'"
    is_text = (
        f"{day} GLOB '{_DAY}' AND {day} >= '0001' AND date(julianday({day})) = {day} AND julianday({name}) IS NOT NULL"
        f" AND (length({name}) = 10 OR {is_time} AND {is_kept})"
    )
    return (
        f"CASE typeof({name}) WHEN 'text' THEN {is_text} WHEN 'integer' THEN {name} BETWEEN {_FIRST_MS} AND {_LAST_MS}"
        f" WHEN 'real' THEN {name} >= {_FIRST_DAY} AND {name} < {_LAST_DAY} ELSE 0 END"
    )


def _is_midnight(name: str) -> str:
    return (
        f"CASE typeof({name}) WHEN 'text' THEN substr({name}, 12) NOT GLOB '*[1-9]*' WHEN 'integer' THEN {name} % {_DAY_MS} = 0"
        f" ELSE strftime('%H:%M:%f', {name}) = '00:00:00.000' END"
    )


def _format_value(one: StructField, checks: Sequence[ValueCheck]) -> str:
    """A column as Spark is to read it; whole numbers as they are, so that indexes still serve, and NULL where the driver would fail."""
    name, form = quote_name(one.name), one.dataType
    holds = " AND ".join(f"({check.holds})" for check in checks)
    if isinstance(form, TIMES):
        ms = f"(({name} % 1000) + 1000) % 1000"
        seconds = f"strftime('%Y-%m-%d %H:%M:%S', ({name} - {ms}) / 1000, 'unixepoch')"
        return (
            f"CASE WHEN {holds} THEN CASE typeof({name}) WHEN 'text' THEN {name}"
            f" WHEN 'integer' THEN {seconds} || printf('.%03d', {ms}) ELSE strftime('%Y-%m-%d %H:%M:%f', {name}) END END"
        )
    if isinstance(form, DecimalType):
        return f"CASE WHEN {holds} THEN {name} END"
    if isinstance(form, BooleanType):
        return f"CASE lower({name}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE {name} END"
    if isinstance(form, StringType):
        # As SQLite shows numbers, they have 15 digits.
        is_cut = f"typeof({name}) = 'real' AND CAST(CAST({name} AS TEXT) AS REAL) <> {name}"
        return f"CASE WHEN {is_cut} THEN printf('%!.17g', {name}) ELSE {name} END"
    return name


def _format_row(names: Sequence[str]) -> str:
    """Return a row as JSON, with the octets of its BLOBs."""
    values = [
        f"CASE typeof({name}) WHEN 'blob' THEN json_quote('\\x' || hex({name})) ELSE json_quote({name}) END"
        for name in map(quote_name, names)
    ]
    pairs = [f"json_quote({quote_literal(name)}) || ':' || {value}" for name, value in zip(names, values, strict=True)]
    return f"'{{' || {_join(pairs)} || '}}'"


def _join(parts: Sequence[str]) -> str:
    """Return parts with commas between them, in brackets by halves: SQLite bounds how deep an expression is."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return f"({_join(parts[:half])} || ',' || {_join(parts[half:])})"


def _get_read_type(form: DataType) -> DataType:
    return StringType() if isinstance(form, TIMES) else form


def _read_time(text: Column, form: DataType) -> Column:
    """Return a moment of a text that SQLite found to be one; zones are offsets from UTC."""
    read = F.substring(text, 1, 10).cast(form) if isinstance(form, DateType) else text.cast(TimestampType()).cast(form)
    # By Spark 3.5 what is none would be NULL.
    return F.coalesce(read, F.when(text.isNotNull(), F.raise_error(F.concat(F.lit("no moment: "), text))))
