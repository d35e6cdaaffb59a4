"""Notes about branches, tags and the snapshots they keep as frozen rows: as they are read, and as commits write them."""

from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.lake.registered.rows import RegisteredNote

UNPUBLISHED = ""
"""The JSON of a kept snapshot of main that has not been published yet."""


@dataclass(frozen=True, slots=True)
class RefNote:
    """`iceberg_ref`: a branch or tag; main without a snapshot id is where DuckLake's head is."""

    name: str
    snapshot_id: int | None
    type: str
    max_ref_age_ms: int | None
    max_snapshot_age_ms: int | None
    min_snapshots_to_keep: int | None


@dataclass(frozen=True, slots=True)
class KeptSnapshotNote:
    """`iceberg_kept`: a snapshot as JSON. `is_off_main`: it was made beside main, and is there for nobody but Iceberg clients.

    Files that were live at `base_snapshot_id` are kept for it.
    """

    snapshot_id: int
    base_snapshot_id: int
    json: str
    is_off_main: bool


@dataclass(frozen=True, slots=True)
class MoveNote:
    """`iceberg_move`: a lake snapshot that gave main the rows of another snapshot, which clients see in its place."""

    lake_snapshot_id: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class RefNotes:
    """Everything noted about one table's refs. `hidden` are snapshots that clients removed, `registered` is how it came here.

    `roots` are the lake snapshots at which a client replaced the table, ascending.
    """

    refs: Sequence[RefNote] = ()
    kept: Sequence[KeptSnapshotNote] = ()
    moves: Sequence[MoveNote] = ()
    hidden: frozenset[int] = frozenset()
    registered: RegisteredNote | None = None
    roots: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NewRef:
    """A branch or tag made, or changed."""

    table_id: int
    name: str
    target_id: int | None
    type: str
    max_ref_age_ms: int | None
    max_snapshot_age_ms: int | None
    min_snapshots_to_keep: int | None


@dataclass(frozen=True, slots=True)
class EndedRef:
    """A branch or tag that goes."""

    table_id: int
    name: str


@dataclass(frozen=True, slots=True)
class NewKeptSnapshot:
    """A snapshot to keep; `manifest_list` of those made beside main."""

    table_id: int
    target_id: int
    base_snapshot_id: int
    json: str
    manifest_list: bytes | None


@dataclass(frozen=True, slots=True)
class EndedKeptSnapshot:
    """A snapshot that need not be kept any more; with the last one made beside main go the files added there."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewKeptFile:
    """A data file that a client added beside main, by its full path as DuckLake would write it."""

    table_id: int
    path: str


@dataclass(frozen=True, slots=True)
class NewMove:
    """The step gives main the rows of that snapshot."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewRoot:
    """The step's lake snapshot starts the table's history, because a client replaced the table."""

    table_id: int


@dataclass(frozen=True, slots=True)
class NewHiddenSnapshot:
    """A snapshot that a client removed."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewChange:
    """`iceberg_change`: something about a table changed that makes no lake snapshot. `kind`: 'refs', or 'hide' for its history."""

    table_id: int
    kind: str


@dataclass(frozen=True, slots=True)
class ReturnedFile:
    """A file of the table that comes back: everything is as with the row it had, `source_id`."""

    data_file_id: int
    table_id: int
    source_id: int


@dataclass(frozen=True, slots=True)
class ReservedRowIds:
    """Row ids given out to rows that DuckLake does not have."""

    table_id: int
    count: int


NewRefRow = ReturnedFile | ReservedRowIds | NewRef | EndedRef | NewKeptSnapshot | EndedKeptSnapshot | NewKeptFile | NewMove | NewRoot | NewHiddenSnapshot | NewChange
