"""Which manifests a table's snapshots have: found while they are written, or planned before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from duckicelake.translate.history import History
from duckicelake.translate.manifests import Shelves, SnapshotPlan


@dataclass(frozen=True, slots=True)
class Layout:
    """The manifests of a history. `shelves` are as the last snapshot leaves them, when all `snapshots` have been asked for.

    `has_unproven`: some file is under a spec that claims nothing. `digests` tell large manifests from all others, by content and number.
    """

    history: History
    shelves: Shelves
    snapshots: Iterable[SnapshotPlan]
    has_unproven: bool
    digests: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
