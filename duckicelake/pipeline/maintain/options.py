"""What can be asked of `maintain`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.maintain.policy import Policies, parse_policies
from duckicelake.pipeline.rest import TableIdent, parse_ident

LONGEST_WATCH = 366 * 86400


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """One call of the job. No tables: all of them, and what concerns the lake as a whole.

    `watch_seconds` None: once, else again that long after each round.
    """

    tables: tuple[TableIdent, ...] = ()
    policies: Policies = field(default_factory=Policies)
    watch_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.watch_seconds is not None and not 1 <= self.watch_seconds <= LONGEST_WATCH:
            raise BadRequest("--watch begins at 1 second and ends at a year")


def read_options(tables: Sequence[str] | None, given: Mapping[str, Any]) -> MaintainOptions:
    """The command's arguments as options.

    Raises: BadRequest: they contradict each other, a name is no table's, or the policy cannot be read
    """
    idents = tuple(map(parse_ident, tables or ()))
    if given["dry_run"] and given["watch"] is not None:
        raise BadRequest("--dry-run plans once, --watch goes on: choose one")
    return MaintainOptions(idents, _read_policies(given["policy"]), given["watch"])


def _read_policies(path: Path | None) -> Policies:
    if path is None:
        return Policies()
    try:
        return parse_policies(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"--policy {path} cannot be read: {error}") from error
