"""The quarantine table: bad rows as they were, the reason, and the file, row and, in text, line they come from."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_sql import format_create, quote_ident
from duckicelake.pipeline.common.staging import Stage, Staged, check_count
from duckicelake.pipeline.ingest.file_source import LETTERS, FileReading, find_option, get_decodable
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.ingest.row_checks import REASON, SHOWN, CheckedRows, RowCount
from duckicelake.pipeline.ingest.source import FILE, ROW, Reading, build_row_position

LINE = "line"
"""The column that quarantines of earlier versions lack."""
COLUMNS = f"raw string, reason string, source_file string, row_index bigint, run_id string, quarantined_at timestamp, {LINE} bigint"

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
    stage.spark.sql(format_create(name, COLUMNS))
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
