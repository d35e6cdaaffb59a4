"""What is said of a file that Spark could not read: which one, and why, where Spark says first which task it was."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import ArrowException, parquet

from duckicelake.pipeline.ingest.sources.files import find_local_path

_UNREADABLE = {"FAILED_READ_FILE": "path", "CANNOT_READ_FILE_FOOTER": "file", "_LEGACY_ERROR_TEMP_2064": "path"}
"""How the names of what Spark says of such a file begin, and where it says which one; the last two are of 3.5."""
_GZIP, _PACKED = b"\x1f\x8b", ".gz"


def explain_unreadable(error: Exception) -> str:
    """What is to be said of the file that was read; "" when it is something else, or is told by another machine's Java."""
    causes = list(_list_causes(error))
    path = next((told for told in (_read_unreadable_path(cause) for cause in causes) if told), "")
    if not path:
        return ""
    here = find_local_path(unquote(path))
    if here is not None and _has_no_column(here):
        return f"{path} has no column: leave it out"
    why = _read_message(causes[-1])
    more = _explain_compression(here) if path.lower().endswith(_PACKED) else ""
    return f"{why if why.startswith(path) else f'{path} cannot be read: {why}'}{more}"


def _list_causes(error: Exception) -> Iterator[Any]:
    """What Java raised, and what each of these was caused by, as long as there is a Java."""
    raised: Any = error
    found: Any = raised.java_exception if isinstance(error, Py4JJavaError) else getattr(raised, "_origin", None)
    try:
        while found is not None:
            yield found
            found = found.getCause()
    except (Py4JError, OSError):
        return


def _read_unreadable_path(java: Any) -> str:
    """The file that Spark says it could not read; "" when it is something else, or not Spark's."""
    try:
        said = str(java.getErrorClass())
        where = next((where for name, where in _UNREADABLE.items() if said.startswith(name)), None)
        told: dict[str, str] = {} if where is None else dict(java.getMessageParameters())
        return "" if where is None else told.get(where, "")
    except (Py4JError, OSError, TypeError):
        return ""


def _read_message(java: Any) -> str:
    """What it says, in a line."""
    try:
        return str(java.getMessage() or java.toString()).strip().partition("\n")[0]
    except (Py4JError, OSError):
        return "Java is gone"


def _has_no_column(path: Path) -> bool:
    """Whether it is a Parquet file, and has none."""
    try:
        return parquet.read_metadata(path).num_columns == 0
    except (OSError, ArrowException):
        return False


def _explain_compression(path: Path | None) -> str:
    """What more there is to say of a file that is packed by its name; None: it is elsewhere."""
    if path is None:
        return ". It is not packed by gzip, as its name says, or was cut"
    with path.open("rb") as source:
        is_packed = source.read(len(_GZIP)) == _GZIP
    return ". It was cut, or is damaged: write it anew" if is_packed else f". It is not packed by gzip: give it a name without {_PACKED}"
