"""What can be asked of `profile`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.rest import TableIdent, parse_ident


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """One call of the job. No tables: all of them.

    `again` True: tables whose current snapshot has statistics get new ones. `partitions` True: partitioned tables get statistics of
    their partitions too.
    """

    tables: tuple[TableIdent, ...] = ()
    again: bool = False
    partitions: bool = False


def read_options(tables: Sequence[str] | None, given: Mapping[str, Any]) -> ProfileOptions:
    """The command's arguments as options.

    Raises: BadRequest: a name is no table's, or one file would be two
    """
    report, page = given["report"], given["html"]
    if report is not None and page is not None and Path(report).absolute() == Path(page).absolute():
        raise BadRequest(f"--report and --html are both {report}: name two files")
    return ProfileOptions(tuple(map(parse_ident, tables or ())), given["again"], given["partitions"])
