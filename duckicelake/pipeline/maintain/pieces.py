"""What a table's own history says of a compaction that is committed piece by piece; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUN_ID = "duckicelake.run-id"


@dataclass(frozen=True, slots=True)
class Landed:
    """The pieces that are in the table: each is a snapshot, here oldest first."""

    snapshots: tuple[int, ...]
    removed: int
    added: int
    bytes: int


def list_landed(metadata: Mapping[str, Any], run_id: str) -> Landed:
    """The pieces of a run, from all snapshots of the table."""
    summaries = {one["snapshot-id"]: one["summary"] for one in metadata.get("snapshots", ())}
    # Clients see a snapshot by its other name too, which main was never at.
    ours = [one for one in _list_states(metadata) if summaries.get(one, {}).get(RUN_ID) == run_id]
    names = ("deleted-data-files", "added-data-files", "removed-files-size")
    return Landed(tuple(ours), *(sum(int(summaries[one].get(name, 0)) for one in ours) for name in names))


def have_others_moved(before: Mapping[str, Any], after: Mapping[str, Any], run_id: str) -> bool:
    """Whether anybody but the run moved main meanwhile."""
    states, mine = _list_states(after), set(list_landed(after, run_id).snapshots)
    others = [one for one in states if one not in mine]
    return others != [one for one in _list_states(before) if one not in mine]


def _list_states(metadata: Mapping[str, Any]) -> list[int]:
    return list(dict.fromkeys(entry["snapshot-id"] for entry in metadata.get("snapshot-log", ())))
