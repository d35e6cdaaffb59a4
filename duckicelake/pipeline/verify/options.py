"""What can be asked of `verify`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.rest import TableIdent, parse_ident


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """One call of the job. No tables: all of them; neither a snapshot nor every one: as they are now."""

    tables: tuple[TableIdent, ...] = ()
    snapshot_id: int | None = None
    every_snapshot: bool = False
    files: bool = False
    examples: int = 5

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.snapshot_id is not None and (self.every_snapshot or len(self.tables) != 1):
            raise BadRequest("--snapshot needs one table, and not --every-snapshot")
        if self.examples < 0:
            raise BadRequest("--examples begins at 0")


def read_options(tables: Sequence[str] | None, snapshot_id: int | None, given: Mapping[str, Any]) -> VerifyOptions:
    """The command's arguments as options. Raises: BadRequest: they contradict each other, or a name is no table's."""
    idents = tuple(map(parse_ident, tables or ()))
    return VerifyOptions(idents, snapshot_id, given["every_snapshot"], given["files"], given["examples"])
