"""Postgres' infinite days and moments, which Spark takes for others, or fails at: rows are looked at where they lie."""

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, DateType, StructField, StructType, TimestampNTZType, TimestampType

from duckicelake.pipeline.ingest.sources.guards import Guard, ValueCheck, quote_literal, quote_name
from duckicelake.pipeline.ingest.sources.reading import RAW, WRONG

_TIMES = (DateType, TimestampType, TimestampNTZType)
_FINITE = ("date", "timestamp", "timestamptz")
"""What Spark 4.1 says that Postgres calls a column which may be asked whether it is finite."""


def guard_postgres(table: str, columns: StructType, bare: Sequence[str]) -> Guard | None:
    """A table with checks, None where no column has days or moments; `columns` are what Spark makes of it.

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
    # Of lists, times of day, and what is only said to be a date, nobody can ask this: their texts tell.
    holds = f"isfinite({name})" if one.metadata.get("jdbcClientType") in _FINITE else f"strpos({name}::text, 'infinity') = 0"
    what = "dates or moments" if isinstance(one.dataType, ArrayType) else "a date" if isinstance(one.dataType, DateType) else "a moment"
    return ValueCheck(holds, f"column {one.name} must have {what}, and no infinity")
