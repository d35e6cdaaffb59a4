"""What can be asked of `publish`."""

from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.pipeline.rest import TableIdent, parse_ident


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """One call of the job. No tables: all of them."""

    tables: tuple[TableIdent, ...] = ()


def read_options(tables: Sequence[str] | None) -> PublishOptions:
    """The command's arguments as options. Raises: BadRequest: a name is no table's"""
    return PublishOptions(tuple(map(parse_ident, tables or ())))
