"""Which columns a source brings: those given, else its own."""

from collections.abc import Sequence

from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.evolution import adopt, fits
from duckicelake.pipeline.ingest.options import Evolve, Format
from duckicelake.pipeline.ingest.sources.reading import Reading


def choose_columns(reading: Reading, given: StructType | None, target: StructType | None, evolve: Evolve) -> StructType:
    """The columns that the files bring: given, else their own; text that the table knows is read as the table has it.

    Raises: BadRequest: the files or their paths have columns that the given ones do not hold
    """
    if reading.form.is_text:
        if given is None:
            return adopt(_find_text_columns(reading, target, evolve), target, evolve)
        _check_paths(reading.path_columns, given)
        return given
    own = reading.find_columns()
    if given is not None:
        _check_given(own, given)
        return given
    return own


def _find_text_columns(reading: Reading, target: StructType | None, evolve: Evolve) -> StructType:
    if reading.form is Format.csv and target is not None and evolve is not Evolve.widen:
        named, known = reading.find_columns(looks_at_values=False), {name.lower() for name in target.names}
        if all(name.lower() in known for name in named.names):
            return named
    return reading.find_columns()


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
