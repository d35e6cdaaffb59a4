"""The columns that a source brings: those of --schema, else its own."""

from collections.abc import Sequence
from functools import partial
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.file_source import FileReading, find_option
from duckicelake.pipeline.ingest.footers import list_taken, refusing_unread_types
from duckicelake.pipeline.ingest.options import Evolve, Format
from duckicelake.pipeline.ingest.schema_evolution import adopt, fits
from duckicelake.pipeline.ingest.source import FILE, Reading
from duckicelake.pipeline.ingest.text_inference import NO_VALUE, list_path_values, name_column

_SHOWN = 100


def choose_columns(reading: Reading, given: StructType | None, target: StructType | None, evolve: Evolve) -> StructType:
    """Return the columns that the files bring: given, else their own; text that the table knows is read as the table has it.

    Raises: BadRequest: the files or their paths have columns that the given ones do not hold, or one that Spark does not read, or none
    """
    if not isinstance(reading, FileReading):
        return _choose_columns(reading, given, target, evolve)
    with refusing_unread_types(reading.spark, reading.form, partial(list_taken, reading.files, reading.store)):
        return _choose_columns(reading, given, target, evolve)


def _choose_columns(reading: Reading, given: StructType | None, target: StructType | None, evolve: Evolve) -> StructType:
    _check_path_values(reading)
    _check_path_conflicts(reading)
    if reading.form.is_text:
        if given is not None:
            _check_paths(reading.path_columns, given)
        columns = _choose_text_columns(reading, target, evolve) if given is None else given
        if reading.form is Format.json:
            _check_capitals(columns if given is None else _read_own_columns(reading), columns)
        _check_header(reading, columns)
        if given is not None or target is not None:
            _check_times(reading, columns)
        return columns
    own = reading.read_columns()
    if isinstance(reading, FileReading):
        if {*own.names} <= {*reading.path_columns}:
            raise BadRequest(f"{reading.files[0].path} has no column, and so have all of the files: leave them out")
        own = reading.adopt_paths(own, given or target)
    if given is not None:
        _check_given(own, given)
        return given
    return own


def _check_header(reading: Reading, columns: StructType) -> None:
    """Raises: BadRequest: columns have no names or twice the same, and are not the same in all files"""
    if not isinstance(reading, FileReading) or not reading.has_odd_header:
        return
    (first, header), *others = reading.read_headers()
    other = next((file for file, names in others if names != header), None)
    if other is not None:
        raise BadRequest(
            f"the headers of {first.path} and {other.path} differ, and have columns without a name or twice the same: take them apart"
        )
    named = [name for name in reading.read_columns(looks_at_values=False).names if name not in reading.path_columns]
    asked = [name for name in columns.names if name not in reading.path_columns]
    if [name.lower() for name in named] != [name.lower() for name in asked]:
        shown = f"the header of {first.path} has columns without a name or twice the same, which are named ({', '.join(named)})"
        raise BadRequest(f"{shown}: the columns asked for are ({', '.join(asked)})")


def _read_own_columns(reading: Reading) -> StructType:
    """Return the columns of the files; none where Spark cannot say, as of an object with a name twice, which the reader refuses later."""
    try:
        return reading.read_columns(looks_at_values=False)
    except AnalysisException:
        return StructType([])


def _check_capitals(own: StructType, columns: StructType, above: tuple[str, ...] = ()) -> None:
    """Raises: BadRequest: files have a name that is a column's but for its capitals: Spark would read no value there"""
    spelled = {field.name.lower(): field for field in columns.fields}
    for field in own.fields:
        column = spelled.get(field.name.lower())
        if column is None:
            continue
        if column.name != field.name:
            one, other = sorted(".".join((*above, name)) for name in (field.name, column.name))
            raise BadRequest(
                f"the names {one} and {other} differ by their capitals alone, and in JSON values are found by the one or the other: "
                "write it alike in all files, and in --schema as they have it; nothing was taken"
            )
        inner = _strip_lists(field.dataType), _strip_lists(column.dataType)
        if isinstance(inner[0], StructType) and isinstance(inner[1], StructType):
            _check_capitals(inner[0], inner[1], (*above, field.name))


def _strip_lists(form: DataType) -> DataType:
    while isinstance(form, ArrayType):
        form = form.elementType
    return form


def _check_times(reading: Reading, columns: StructType) -> None:
    found = reading.find_times(columns) if isinstance(reading, FileReading) else None
    if found is not None:
        raise BadRequest(
            f"{unquote(found[FILE])} has a time without a day where the columns say timestamp: {found['row'][:_SHOWN]}. Spark would "
            "take it for one of today; make the column a text by --schema, or say how times are written by --option timestampFormat=…"
        )


def _check_path_values(reading: Reading) -> None:
    """Raises: BadRequest: a path says that there is a column and not what is in it, or has no name of it"""
    for file in reading.files:
        parts = [part.partition("=") for part in file.path.split("/")[:-1]]
        empty = next((name for name, equals, value in parts if name in reading.path_columns and equals and not (name and value)), None)
        if empty is not None:
            said = f"{file.path} lies in a folder {empty}=, of which Spark makes no value"
            raise BadRequest(f"{said}: give it one (NULL is {empty}={NO_VALUE}); nothing was taken")


def _check_path_conflicts(reading: Reading) -> None:
    """Raises: BadRequest: a column is in the paths and in the files too, and they do not say the same."""
    if not isinstance(reading, FileReading) or not reading.path_columns:
        return
    names = {name.lower(): name for name in reading.path_columns}
    asked = StructType([StructField(name, StringType()) for name in names.values()]) if reading.form is Format.json else None
    rows = reading.read_alone(asked)
    found = reading.list_own_names() if reading.form is Format.avro else rows.columns
    both = {name: names[name.lower()] for name in found if name.lower() in names}
    if not both:
        return
    remedy = "which would stand in place of the rows' own values: take the files one by one, or without one of the two"
    other = reading.find_other_case() if reading.form is Format.json else None
    if other is not None or reading.form in (Format.csv, Format.avro):
        name = other or next(iter(both))
        raise BadRequest(f"column {name} is in the files and in their paths ({names[name.lower()]}=…), {remedy}")
    told = [(file.uri, *(_get_path_value(file.path, name) for name in both.values())) for file in reading.files]
    said = reading.spark.createDataFrame(told, ", ".join([f"{FILE} string", *(f"p{place} string" for place, _ in enumerate(both))]))
    differs = F.lit(False)
    for place, name in enumerate(both):
        own, path = name_column(name), F.col(f"p{place}")
        is_same = own.eqNullSafe(F.expr(f"try_cast(p{place} AS {rows.schema[name].dataType.simpleString()})"))
        # A value of JSON may leave out what its path says.
        differs = differs | ~(is_same | (own.isNull() & path.isNotNull() if reading.form is Format.json else F.lit(False)))
    known = rows.select(*map(name_column, both), F.col("_metadata.file_path").alias(FILE)).join(F.broadcast(said), FILE)
    wrong = known.where(differs).select(FILE, F.to_json(F.struct(*map(name_column, both))).alias("row")).first()
    if wrong is not None:
        raise BadRequest(f"{unquote(wrong[FILE])} has a row of {wrong['row'][:_SHOWN]}, and its path says otherwise, {remedy}")


def _get_path_value(path: str, column: str) -> str | None:
    values = list_path_values([path], [column])[column]
    value = next(iter(values), None)
    return None if value in (None, NO_VALUE) else unquote(value)


def _choose_text_columns(reading: Reading, target: StructType | None, evolve: Evolve) -> StructType:
    found = _read_text_columns(reading, target, evolve)
    if not {*found.names} <= {*reading.path_columns}:
        return adopt(found, target, evolve)
    if target is None:
        is_lines = reading.form is Format.json and find_option(reading.options, "multiLine") != "true"
        more = "; where a value of JSON goes on over several lines, --option multiLine=true reads files whole" if is_lines else ""
        raise BadRequest(f"nothing in the files says what columns they have; give --schema{more}")
    # Blank lines alone, or objects without a name: rows, if there are any, have no value.
    return target


def _read_text_columns(reading: Reading, target: StructType | None, evolve: Evolve) -> StructType:
    if reading.form is Format.csv and target is not None and evolve is not Evolve.widen:
        named, known = reading.read_columns(looks_at_values=False), {name.lower() for name in target.names}
        if all(name.lower() in known for name in named.names):
            return named
    # Where new columns are refused, the table says what values are.
    is_said = reading.form is Format.json and target is not None and evolve is Evolve.fail
    return reading.read_columns(looks_at_values=not is_said)


def _check_paths(columns: Sequence[str], given: StructType) -> None:
    names = {name.lower() for name in given.names}
    missing = next((name for name in columns if name.lower() not in names), None)
    if missing is not None:
        raise BadRequest(f"column {missing} of the paths ({missing}=…) is not in --schema")


def _check_given(own: StructType, given: StructType) -> None:
    wanted = {field.name.lower(): field for field in given.fields}
    for field in own.fields:
        column = wanted.get(field.name.lower())
        if column is None:
            raise BadRequest(f"column {field.name} of the files is not in --schema")
        if not fits(field.dataType, column.dataType):
            raise BadRequest(
                f"column {field.name}: the files have {field.dataType.simpleString()}, which does not fit {column.dataType.simpleString()}"
            )
