"""Good and bad rows: rows of a source under the table's columns, the reason why a row is bad, counts of both, and the quarantine table.

The quarantine has bad rows as they were, the reason, and the file, row and, in text, line they come from.

`ingest.job` and `writing` call this in the driver; executors compute the reasons and counts. Bad rows are written to the run's branch of
the quarantine table, which is made if it is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_connect import is_valid_utf8
from duckicelake.pipeline.common.spark_sql import format_create, quote, quote_ident
from duckicelake.pipeline.common.staging import Stage, Staged, check_count
from duckicelake.pipeline.ingest.file_source import LETTERS, WHOLE_BYTES, FileReading, find_option, get_decodable
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.ingest.source import FILE, RAW, ROW, WRONG, Coverage, Reading, build_row_position, fit_columns

SHOWN, REASON = "__duckicelake_shown", "__duckicelake_reason"
"""The columns that say what a bad row is, as it was, and why it is bad."""
MALFORMED = "the line is malformed: its values do not have the types of the columns, or there are too many or too few"

_ASCII = ("us-ascii", "ascii")
_WIDE_ENCODINGS = ("utf-16", "utf-32", "utf16", "utf32", "iso-2022")
"""Encodings in which the byte of a quote is not always one."""

_OF_BYTES = ("encoding", "charset", "linesep")
"""Options that say nothing of letters."""

_UUID = "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_SHOWN = 100
_WHOLE = ", or, where a value goes on over several lines, have files read whole: --option multiLine=true"


@dataclass(frozen=True, slots=True)
class RowCount:
    """The number of rows of a file, and how many of them are bad."""

    rows: int
    bad: int


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Every row of the files once: the table's columns, where it comes from, and why it is bad, if it is.

    `may_be_bad` False: no row is expected to be bad, so rows are written unchecked. `is_sifted`: bad ones are left out then, and
    lacking afterwards. `coverage`: what of the table's columns the files lack, where that counts. `uuids` are texts that stand for UUIDs.
    """

    rows: DataFrame
    target: StructType
    may_be_bad: bool
    coverage: Coverage = field(default_factory=lambda: Coverage((), ()))
    is_sifted: bool = False
    uuids: Sequence[str] = ()

    @property
    def columns(self) -> Sequence[str]:
        return self.target.names

    def good(self) -> DataFrame:
        """Return what goes to the table."""
        rows = self.rows.where(F.col(REASON).isNull()) if self.may_be_bad or self.is_sifted else self.rows
        return rows.select(*self._list_values())

    def marked(self) -> DataFrame:
        """Return the same, with the marks of what their files have."""
        rows = self.rows.where(F.col(REASON).isNull()) if self.may_be_bad or self.is_sifted else self.rows
        return self.coverage.mark(rows.select(*self._list_values(), FILE), FILE)

    def _list_values(self) -> list[Column]:
        # Iceberg shows UUIDs in small letters, by which rows of one key are known.
        columns = {name: F.col(quote(name)) for name in self.columns}
        return [F.lower(column).alias(name) if name in self.uuids else column for name, column in columns.items()]

    def describe_bad(self) -> DataFrame:
        """Return every row by where it comes from, with its content and reason if it is bad, else NULLs."""
        own = self.rows.schema.fields[: len(self.columns)]
        shown = [_show_octets(field) if self.is_sifted else F.col(quote(field.name)) for field in own]
        row = F.to_json(F.struct(*shown), {"ignoreNullFields": "false"})
        is_bad = F.col(REASON).isNotNull()
        return self.rows.select(F.when(is_bad, F.coalesce(F.col(RAW), row)).alias(SHOWN), REASON, FILE, ROW)


def _show_octets(field: StructField) -> Column:
    """Return a column, whose texts that are not in UTF-8 are shown by their octets: JSON would have others in their place."""
    value = F.col(quote(field.name))
    if not isinstance(field.dataType, StringType):
        return value
    return F.when(is_valid_utf8(value) | value.isNull(), value).otherwise(F.concat(F.lit("\\x"), F.hex(value))).alias(field.name)


@dataclass(frozen=True, slots=True)
class RowRules:
    """Requirements of rows in addition to their types: values in the columns of the key, and UUIDs where the table has such.

    `looks_at_texts`: each row of files that may hold texts in no UTF-8 is looked at before any is written, and not only then.
    """

    key: Sequence[str] = ()
    uuids: Sequence[str] = ()
    looks_at_texts: bool = True


def check_rows(reading: Reading, incoming: StructType, target: StructType, demands: RowRules) -> CheckedRows:
    """The rows under the table's names and types; those that are malformed, or have a wrong value or none that they must have, are bad."""
    read = reading.read(incoming)
    names = {field.name.lower(): field for field in (incoming if reading.form.is_text else read.schema).fields}
    keys = {name.lower() for name in demands.key}
    required = [field.name for field in target.fields if not field.nullable or field.name.lower() in keys]
    uuids = [field.name for field in target.fields if field.name in demands.uuids and field.name.lower() in names]
    columns = fit_columns(StructType([*names.values()]), target, lambda name: F.col(quote(name)))
    is_told = WRONG in read.columns
    nothing = F.lit(None).cast("string")
    raw = F.col(RAW) if reading.form.is_text or is_told else nothing.alias(RAW)
    rows = read.select(*columns, raw, FILE, ROW, F.col(WRONG) if is_told else nothing.alias(WRONG))
    own = StructType([field for field in rows.schema.fields if field.name in target.names])
    texts = list_texts(own) if reading.form in (Format.parquet, Format.orc, Format.avro) else {}
    told = rows.withColumn(REASON, _build_reason(own.names, required, uuids, texts))
    may_be_bad = reading.form.is_text or is_told or bool(required or uuids) or (demands.looks_at_texts and bool(texts))
    return CheckedRows(told, target, may_be_bad, is_sifted=bool(texts), uuids=uuids)


def list_texts(columns: StructType) -> dict[str, Column]:
    """Return whether each column that has texts, also inside, has them in UTF-8."""
    found = {field.name: _is_utf8(F.col(quote(field.name)), field.dataType) for field in columns.fields}
    return {name: is_utf8 for name, is_utf8 in found.items() if is_utf8 is not None}


def _is_utf8(value: Column, form: DataType) -> Column | None:
    """Return whether all texts of a value are UTF-8; NULL for what is NULL, None when it has none."""
    if isinstance(form, StringType):
        return is_valid_utf8(value)
    if isinstance(form, StructType):
        return _are_all([_is_utf8(value[field.name], field.dataType) for field in form.fields])
    if isinstance(form, ArrayType):
        return _are_utf8(value, form.elementType)
    if isinstance(form, MapType):
        return _are_all([_are_utf8(F.map_keys(value), form.keyType), _are_utf8(F.map_values(value), form.valueType)])
    return None


def _are_all(found: Sequence[Column | None]) -> Column | None:
    every = [F.coalesce(one, F.lit(True)) for one in found if one is not None]
    return ~F.array_contains(F.array(*every), False) if every else None


def _are_utf8(values: Column, form: DataType) -> Column | None:
    if _is_utf8(F.lit(None), form) is None:
        return None
    return F.forall(values, lambda one: F.coalesce(cast(Column, _is_utf8(one, form)), F.lit(True)))


def _build_reason(columns: Sequence[str], required: Sequence[str], uuids: Sequence[str], texts: Mapping[str, Column]) -> Column:
    # Spark finds a malformed line only if it needs the columns, so the condition names all; Spark does not see that it is always true.
    needs_all = F.greatest(F.lit(True), *(F.col(quote(name)).isNull() for name in columns))
    reason = F.when(F.col(WRONG).isNotNull(), F.col(WRONG)).when(F.col(RAW).isNotNull() & needs_all, MALFORMED)
    for name in required:
        reason = reason.when(F.col(quote(name)).isNull(), f"column {name} must have a value")
    for name in uuids:
        reason = reason.when(~F.col(quote(name)).rlike(_UUID), f"column {name} must have a UUID")
    for name, is_utf8 in texts.items():
        reason = reason.when(~is_utf8, f"column {name} has a text that is not in UTF-8")
    return reason


def count_by_file(checked: CheckedRows, reading: Reading) -> Mapping[str, RowCount]:
    """Return row counts by path of file; files without rows may be missing. Footers are used if no row can be bad.

    Raises: BadRequest: a file is not what it seems to be
    """
    told = None if checked.may_be_bad else reading.count()
    if told is not None:
        return {unquote(uri): RowCount(rows, 0) for uri, rows in told.items()}
    if not checked.may_be_bad:
        counted = checked.rows.groupBy(FILE).agg(F.count("*").alias("n"), F.lit(0).alias("bad"))
    else:
        # A value that cannot be one of the table is found only if it is needed, so they are all needed.
        every = F.to_json(F.struct(*map(quote, checked.columns)))
        counted = checked.rows.groupBy(FILE).agg(
            F.count("*").alias("n"),
            F.count_if(F.col(REASON).isNotNull()).alias("bad"),
            F.bit_xor(F.xxhash64(every)).alias("all"),
        )
    return {unquote(row[FILE]): RowCount(row["n"], row["bad"]) for row in counted.collect()}


def check_lines(reading: Reading) -> None:
    """Raises: BadRequest: of a file Spark would silently read something else than what is there.

    It is not in UTF-8 and no option says what it is in, a value of CSV goes on in the next line, or one of JSON is not alone in its line.
    """
    encoding = find_option(reading.options, "encoding") or find_option(reading.options, "charset") or "utf-8"
    is_utf8, is_ascii = encoding in ("utf-8", "utf8"), encoding in _ASCII
    _check_wide(reading, encoding)
    looks_at_quotes = ends_at_lines(reading.form, reading.options) and not encoding.startswith(_WIDE_ENCODINGS)
    is_looked_at = reading.form is Format.json or (reading.form.is_text and (is_utf8 or is_ascii or looks_at_quotes))
    if not isinstance(reading, FileReading) or not is_looked_at:
        return
    line, is_json = F.col("value"), F.lit(reading.form is Format.json)
    # Octets: what is not UTF-8 has no letters to count.
    quotes = F.octet_length(line) - F.octet_length(F.replace(line, F.lit('"'), F.lit("")))
    is_wrong = ~is_valid_utf8(line) if is_utf8 else F.lit(is_ascii) & line.rlike(r"[^\x00-\x7f]")
    is_open = F.lit(looks_at_quotes) & (quotes % 2 == 1)
    is_multi = reading.form is Format.json and find_option(reading.options, "multiLine") == "true"
    is_whole = is_multi and all((file.size_bytes or 0) <= WHOLE_BYTES for file in reading.files)
    letters = line if is_utf8 else F.decode(line.cast("binary"), get_decodable(encoding))
    is_more = is_json & goes_on(letters, reading.options) if is_whole == is_multi else F.lit(False)
    lines = reading.read_texts(whole=is_whole).select(
        F.col("_metadata.file_path").alias(FILE), line, is_wrong.alias("wrong"), is_open.alias("open")
    )
    wrong = lines.where(is_wrong | is_open | is_more).limit(1).collect()
    if wrong and wrong[0]["wrong"]:
        raise BadRequest(f"{wrong[0][FILE]} is not in {encoding.upper()}; say what it is in: --option encoding=ISO-8859-1")
    if wrong and wrong[0]["open"]:
        raise BadRequest(
            f"{wrong[0][FILE]} has a line with an odd number of quotes: {wrong[0]['value'][:_SHOWN]!r}. "
            "A value that goes on in the next line would be cut; --option multiLine=true reads it whole"
        )
    if wrong:
        place = "is read whole, by multiLine, and" if is_whole else "has a line that"
        raise BadRequest(
            f"{wrong[0][FILE]} {place} goes on after its first JSON value: {wrong[0]['value'][:_SHOWN]!r}. "
            f"What follows would be lost; write every value on a line of its own{'' if is_multi else _WHOLE}"
        )


def _check_wide(reading: Reading, encoding: str) -> None:
    is_whole = find_option(reading.options, "multiLine") == "true"
    if reading.form is Format.csv and encoding.startswith(_WIDE_ENCODINGS[:-1]) and not is_whole:
        raise BadRequest(f"lines of CSV do not end at a byte in {encoding.upper()}; --option multiLine=true reads files whole")


def goes_on(line: Column, options: Mapping[str, Any]) -> Column:
    """Build the condition that there is more in a line of JSON than its first value, after which Spark stops reading, and a comma."""
    how = {name: str(text) for name, text in options.items() if not name.startswith("fs.") and name.lower() not in _OF_BYTES}
    bare = F.regexp_replace(line, "^\ufeff", "")
    whole = F.concat(F.lit('{"v":['), F.regexp_replace(bare, r",\s*$", ""), F.lit("\n]}"))
    one = F.from_json(whole, "v array<string>, c string", {**how, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "c"})
    is_one = F.coalesce((F.size(one["v"]) == 1) & one["c"].isNull(), F.lit(False))
    has_first = F.from_json(bare, "map<string,string>", how).isNotNull() | F.from_json(bare, "array<string>", how).isNotNull()
    # Most lines end where their first bracket does, and need not be parsed for this.
    return line.rlike(r"[}\]]\s*\S") & has_first & ~is_one


def ends_at_lines(form: Format, options: Mapping[str, Any]) -> bool:
    """Return True if files are CSV by RFC 4180 that Spark reads line by line: then each line has an even number of quotes."""
    is_ours = find_option(options, "escape") == '"' and find_option(options, "quote") in (None, '"')
    return form is Format.csv and is_ours and find_option(options, "multiLine") != "true"


LINE = "line"
"""The column that quarantines of earlier versions lack."""
QUARANTINE_COLUMNS = (
    f"raw string, reason string, source_file string, row_index bigint, run_id string, quarantined_at timestamp, {LINE} bigint"
)

_BLOCK, _ID, _FIRST, _COUNT, _NUMBER = (f"__duckicelake_{name}" for name in ("block", "id", "first", "count", "number"))
_KEY, _RECORDS, _KEPT, _DOUBT, _SKIPPED, _IS_ROW = (
    f"__duckicelake_{name}" for name in ("key", "records", "kept", "doubt", "skipped", "is_row")
)

_ROW_LIKE = {Format.csv: r"[^\x00-\x20]", Format.json: r"[^ \t\r]"}
"""What a line must have to be one for Spark."""


def keep_bad_files(reading: Reading, counts: Mapping[str, RowCount]) -> Reading:
    """Return the files that have bad rows, alone; what does not number its rows by itself has Spark number them."""
    if not isinstance(reading, FileReading):
        return reading
    bad = [file for file in reading.files if file.path in counts and counts[file.path].bad]
    return replace(reading, files=bad, is_numbered=reading.form is not Format.parquet)


def select_bad(checked: CheckedRows, reading: Reading, run_id: str) -> DataFrame:
    """Return the bad rows of what was read apart, as the quarantine has them."""
    rows, nowhere = checked.describe_bad(), F.lit(None).cast("bigint")
    is_bad = F.col(REASON).isNotNull()
    if not isinstance(reading, FileReading) or not reading.is_numbered:
        placed = rows.where(is_bad).withColumns({_NUMBER: F.col(ROW), LINE: nowhere})
    else:
        numbered = _number(rows, is_bad, SHOWN, REASON)
        placed = _add_lines(numbered, reading) if _has_lines(reading) else numbered.where(is_bad).withColumn(LINE, nowhere)
    return placed.select(
        F.col(SHOWN).alias("raw"),
        F.col(REASON).alias("reason"),
        F.col(FILE).alias("source_file"),
        F.col(_NUMBER).alias("row_index"),
        F.lit(run_id).alias("run_id"),
        F.current_timestamp().alias("quarantined_at"),
        LINE,
    )


def write_quarantine(stage: Stage, ident: TableIdent, rows: DataFrame, count: int) -> Staged:
    """Write bad rows to a branch of the quarantine, which is made first, or gets the column that it lacks.

    Raises: BadRequest: what was written is not what was counted
    """
    name = quote_ident(stage.catalog, ident)
    stage.spark.sql(format_create(name, QUARANTINE_COLUMNS))
    if LINE not in stage.spark.table(name).columns:
        stage.spark.sql(f"ALTER TABLE {name} ADD COLUMN {LINE} bigint")
    opened = stage.open(ident)
    stage.append(ident, rows)
    written = stage.look_after(opened)
    check_count(written, count)
    return written


def _number(rows: DataFrame, is_apart: Column, *kept: str) -> DataFrame:
    """Rows that are apart by their number in the file, from 0; the others of each of its blocks as one row that says how many they are.

    ROW has the block, and numbers that grow by one within it. They and where a block begins are of one look at the files: another one may
    be of other blocks, or number them otherwise.
    """
    of_block = rows.groupBy(FILE, F.col(ROW)["block"].alias(_BLOCK), F.when(is_apart, F.col(ROW)["id"]).alias(_ID), *kept).agg(
        F.min(F.col(ROW)["id"]).alias(_FIRST), F.count("*").alias(_COUNT)
    )
    begin = F.min(_FIRST).over(Window.partitionBy(FILE, _BLOCK))
    earlier = F.sum(_COUNT).over(Window.partitionBy(FILE).orderBy(_BLOCK).rangeBetween(Window.unboundedPreceding, -1))
    return of_block.withColumn(_NUMBER, F.col(_ID) - begin + F.coalesce(earlier, F.lit(0)))


def _add_lines(numbered: DataFrame, reading: FileReading) -> DataFrame:
    """Numbered rows by their lines, from 1: as many further down as there are lines before that are no rows.

    NULL for files in which what seems to be rows is not as many as Spark reads, or in which that may be by chance.
    """
    headers = 1 if reading.form is Format.csv and find_option(reading.options, "header") == "true" else 0
    in_file = Window.partitionBy(FILE)
    is_skipped = F.col(_ID).isNotNull()
    nth = F.count_if(is_skipped).over(in_file.orderBy(_NUMBER).rowsBetween(Window.unboundedPreceding, Window.currentRow))
    lines = _read_lines(reading).select(
        FILE,
        (F.col(_NUMBER) + 1 - nth).alias(_KEY),
        F.when(is_skipped, 0).otherwise(F.col(_COUNT)).alias(_KEPT),
        _DOUBT,
        F.lit(False).alias(_IS_ROW),
    )
    rows = numbered.withColumns({_KEY: F.col(_NUMBER) + headers, _RECORDS: F.col(_COUNT), _IS_ROW: F.lit(True)})
    is_before = ~F.col(_IS_ROW) & F.col(_KEY).isNotNull()
    before = F.count_if(is_before).over(in_file.orderBy(_KEY, _IS_ROW).rowsBetween(Window.unboundedPreceding, Window.currentRow))
    is_known = (F.sum(_KEPT).over(in_file) - headers == F.sum(_RECORDS).over(in_file)) & ~F.max(_DOUBT).over(in_file)
    both = rows.unionByName(lines, allowMissingColumns=True)
    return both.withColumn(LINE, F.when(is_known, F.col(_KEY) + 1 + before)).where(F.col(REASON).isNotNull())


def _read_lines(reading: FileReading) -> DataFrame:
    """Return the lines of text that Spark passes over by their number in the file, and how many others each block has."""
    value, comment = F.col("value"), _get_comment(reading)
    is_skipped, doubt = ~value.rlike(_ROW_LIKE[reading.form]), F.lit(False)
    if reading.form is Format.json:
        # A list is as many rows as it has elements; before it, or alone, there may be a comment.
        doubt = value.rlike(r"^[\x00-\x20\ufeff]*" + (r"[\[/]" if find_option(reading.options, "allowComments") == "true" else r"\["))
    elif comment:
        is_skipped |= value.startswith(comment)
    lines = reading.read_texts().select(
        F.col("_metadata.file_path").alias(FILE),
        build_row_position().alias(ROW),
        is_skipped.alias(_SKIPPED),
        (doubt & ~is_skipped).alias(_DOUBT),
    )
    return _number(lines, F.col(_SKIPPED), _DOUBT)


def _has_lines(reading: FileReading) -> bool:
    """Return True if rows are lines as editors have them, and it can be said which lines Spark passes over."""
    encoding = find_option(reading.options, "encoding") or find_option(reading.options, "charset") or "utf-8"
    is_known = encoding in ("utf-8", "utf8") or get_decodable(encoding) == LETTERS
    is_line = find_option(reading.options, "multiLine") != "true" and find_option(reading.options, "lineSep") in (None, "\n")
    return reading.form.is_text and is_known and is_line and _get_comment(reading).isascii()


def _get_comment(reading: FileReading) -> str:
    return next((str(text) for name, text in reading.options.items() if name.lower() == "comment"), "")
