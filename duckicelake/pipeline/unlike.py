"""Files that have one column under several types, which Spark does not read together."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.older import get_condition, parse_ddl

_CANNOT_MERGE = "CANNOT_MERGE_SCHEMAS"


@contextmanager
def refusing_mixed_types(remedy: str) -> Generator[None]:
    """Raises: BadRequest: the files that are looked at inside have such a column; names it, and says what to do."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        condition, told = _read(error)
        if condition != _CANNOT_MERGE:
            raise
        raise BadRequest(f"{_describe(told)}, which Spark does not read together: {remedy}") from error


def _read(error: PySparkException | Py4JJavaError) -> tuple[str | None, Mapping[str, str]]:
    """The name of what went wrong, and what Spark says of it by name. Not all errors of its Java become PySpark's own."""
    if isinstance(error, PySparkException):
        return get_condition(error), error.getMessageParameters() or {}
    told: Any = error
    java = told.java_exception
    try:
        return java.getErrorClass(), dict(java.getMessageParameters())
    except (Py4JError, TypeError):
        return None, {}


def _describe(told: Mapping[str, str]) -> str:
    try:
        one, other = (parse_ddl(told[side].strip('"')) for side in ("left", "right"))
    except (PySparkException, KeyError):
        one = other = None
    if isinstance(one, StructType) and isinstance(other, StructType):
        types = {field.name.lower(): field.dataType for field in other.fields}
        for field in one.fields:
            its = types.get(field.name.lower(), field.dataType)
            if its != field.dataType:
                return f"column {field.name} is {field.dataType.simpleString()} in some files and {its.simpleString()} in others"
    return "the files have a column under several types"
