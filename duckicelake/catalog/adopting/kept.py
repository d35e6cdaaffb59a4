"""The plan of a table's manifests that was made last, kept for those who come back with what they made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from duckicelake.catalog.adopting.offers import Looks
from duckicelake.catalog.fold import Reading
from duckicelake.lake.rows import Position, TableNote
from duckicelake.translate.manifests import ManifestPlan


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """What was read of a table at a position, with its layout, and its large manifests by what tells them apart.

    `lock` is held by who looks at manifests of it.
    """

    table_id: int
    position: Position
    reading: Reading
    note: TableNote
    manifests: Mapping[str, ManifestPlan]
    looks: Looks
    lock: Lock = field(default_factory=Lock)


@dataclass(slots=True)
class PlanMemory:
    """One plan at most: it is as large as what is remembered of a table that was loaded. Safe to share between threads."""

    _kept: KeptPlan | None = None
    _lock: Lock = field(default_factory=Lock)

    def keep(self, plan: KeptPlan) -> None:
        """Keep a plan in the place of any other."""
        with self._lock:
            self._kept = plan

    def find(self, table_id: int, position: Position) -> KeptPlan | None:
        """Return the plan of that table at that position, if it is kept."""
        with self._lock:
            kept = self._kept
        return kept if kept is not None and (kept.table_id, kept.position) == (table_id, position) else None

    def forget(self, table_id: int) -> None:
        """Keep no plan of that table any more."""
        with self._lock:
            if self._kept is not None and self._kept.table_id == table_id:
                self._kept = None
