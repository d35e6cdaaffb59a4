"""The last plan of large manifests: Spark executors write manifests by it and submit them, so the server keeps it to verify them.

`manifest_import.operations` uses it on worker threads. A warehouse keeps one plan at most, because it holds all rows of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from duckicelake.catalog.manifest_import.imported import VerifiedManifests
from duckicelake.catalog.snapshot_building import TableReading
from duckicelake.lake.rows import Position, TableNote
from duckicelake.translate.manifests import ManifestPlan


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A table read at a position, its manifest layout, and its large manifests by digest.

    `lock` is held while its manifests are verified.
    """

    table_id: int
    position: Position
    reading: TableReading
    note: TableNote
    manifests: Mapping[str, ManifestPlan]
    verified: VerifiedManifests
    lock: Lock = field(default_factory=Lock)


@dataclass(slots=True)
class PlanCache:
    """A cache of one plan at most: a plan is as large as the cache of a loaded table. Safe to share between threads."""

    _plan: CachedPlan | None = None
    _lock: Lock = field(default_factory=Lock)

    def keep(self, plan: CachedPlan) -> None:
        """Keep a plan in the place of any other."""
        with self._lock:
            self._plan = plan

    def find(self, table_id: int, position: Position) -> CachedPlan | None:
        """Return the plan of that table at that position, if it is kept."""
        with self._lock:
            plan = self._plan
        return plan if plan is not None and (plan.table_id, plan.position) == (table_id, position) else None

    def forget(self, table_id: int) -> None:
        """Keep no plan of that table any more."""
        with self._lock:
            if self._plan is not None and self._plan.table_id == table_id:
                self._plan = None
