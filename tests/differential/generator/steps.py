"""A history: what is done to a lake, step by step, each step one transaction."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tests.differential.clients.operations import AddWritten, DynamicOverwrite, Overwrite, Upsert
from tests.differential.clients.ref_operations import DropRef, MakeRef, MoveMain, WriteToBranch
from tests.differential.clients.shape_operations import ChangeProperties, Refused, TellPartitioning, TellSorting
from tests.differential.clients.table_operations import (
    ChangeNamespace,
    HideSnapshots,
    MoveColumn,
    MoveTable,
    PurgeTable,
    SetView,
    TakeBack,
    TellIdentifier,
    TellStatistics,
)
from tests.differential.generator.added_files import AddFile
from tests.differential.generator.definitions import (
    AddColumn,
    CreateNamespace,
    CreateTable,
    CreateTableAs,
    DropColumn,
    DropNamespace,
    DropTable,
    PromoteColumn,
    RenameColumn,
    RenameTable,
    SetComment,
    SetDefault,
    SetRequired,
)
from tests.differential.generator.layout import SetDeletionVectors, SetInlining, SetPartitioning, SetSorting
from tests.differential.generator.maintenance import (
    Checkpoint,
    CleanUp,
    ExpireSnapshots,
    FlushInlined,
    ForgetEverything,
    MergeAdjacent,
    RewriteFiles,
)
from tests.differential.generator.model import Lake
from tests.differential.generator.nested import AddField, DropField, PromoteField, RenameField
from tests.differential.generator.operations import Delete, Insert, Merge, Truncate, Update


class Printer(Protocol):
    """What hypothesis prints with."""

    def text(self, text: str) -> None: ...


OfTables = CreateNamespace | DropNamespace | CreateTable | DropTable | RenameTable | SetComment
OfColumns = AddColumn | DropColumn | RenameColumn | PromoteColumn | SetRequired | SetDefault
OfFields = AddField | DropField | RenameField | PromoteField
OfLayout = SetInlining | SetDeletionVectors | SetPartitioning | SetSorting
Maintenance = FlushInlined | MergeAdjacent | RewriteFiles | ExpireSnapshots | Checkpoint | ForgetEverything | CleanUp
OnlyAdding = Insert | AddFile | CreateTableAs | AddWritten
RowOperation = OnlyAdding | Delete | Truncate | Update | Merge | Overwrite | DynamicOverwrite | Upsert
OfRefs = MakeRef | DropRef | WriteToBranch | MoveMain
Told = TellPartitioning | TellSorting | TellIdentifier | TellStatistics | ChangeProperties | ChangeNamespace | SetView | Refused
OfWholes = MoveTable | PurgeTable | TakeBack | HideSnapshots | MoveColumn
Operation = RowOperation | OfRefs | Told | OfWholes | OfTables | OfColumns | OfFields | OfLayout | Maintenance


@dataclass(frozen=True, slots=True)
class Step:
    """Operations that are committed together, `by` an Iceberg client or by DuckDB."""

    operations: tuple[Operation, ...]
    by: str | None = None

    def run(self, lake: Lake) -> tuple[list[str], Lake]:
        """The SQL statements of this step, and the lake after it; of a client's step, what DuckDB would do to the same end."""
        statements: list[str] = []
        for operation in self.operations:
            statements.append(operation.sql(lake))
            lake = operation.apply(lake)
            if self.by is not None and isinstance(operation, RowOperation) and operation.table_id in lake.tables:
                lake = lake.with_table(replace(lake.tables[operation.table_id], may_be_wide=True))
        if self.by is not None:
            return [f"/* {self.by} */ {statement}" for statement in statements], lake
        return (statements if len(statements) == 1 else ["BEGIN", *statements, "COMMIT"]), lake

    @property
    def touched(self) -> frozenset[int]:
        """The tables whose rows this step is about."""
        return frozenset(operation.table_id for operation in self.operations if isinstance(operation, RowOperation))

    @property
    def is_maintenance(self) -> bool:
        """Nothing but files and snapshots is changed, of any table."""
        return any(isinstance(operation, Maintenance) for operation in self.operations)

    @property
    def beside(self) -> frozenset[int]:
        """The tables that it writes to beside main."""
        return frozenset(operation.table_id for operation in self.operations if isinstance(operation, WriteToBranch))

    @property
    def moved(self) -> frozenset[int]:
        """The tables whose main it lets go elsewhere."""
        return frozenset(operation.table_id for operation in self.operations if isinstance(operation, MoveMain))

    @property
    def is_refused(self) -> bool:
        """The catalog must refuse it."""
        return any(isinstance(operation, Refused) for operation in self.operations)

    @property
    def inserted(self) -> frozenset[int]:
        """Those of them that it does nothing to but INSERT."""
        others = (operation for operation in self.operations if isinstance(operation, RowOperation))
        return self.touched - {operation.table_id for operation in others if not isinstance(operation, OnlyAdding)}


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """Steps in order, by a DuckDB session in one time zone and by Iceberg clients."""

    time_zone: str
    steps: tuple[Step, ...]

    def run(self) -> Iterator[tuple[Step, list[str], Lake]]:
        """Each step, its statements and the lake after them; nothing is executed."""
        lake = Lake()
        for step in self.steps:
            statements, lake = step.run(lake)
            yield step, statements, lake

    @property
    def vector_tables(self) -> frozenset[int]:
        """Tables with deletion vectors: DuckDB 1.5.5 replaces one by the next, and the lake forgets what was deleted when."""
        operations = (operation for step in self.steps for operation in step.operations)
        return frozenset(operation.table_id for operation in operations if isinstance(operation, SetDeletionVectors))

    def __repr__(self) -> str:
        # What hypothesis prints of a failing history is what replays it.
        return f"a history of {len(self.steps)} steps:\n{self.script()}"

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        printer.text(repr(self))

    def script(self, outside: str = "outside/") -> str:
        """The history as SQL for a session whose current catalog is a fresh lake called `lake`.

        `outside` is a folder that is not the lake's, for files that it takes in.
        """
        lines = [f"SET TimeZone = '{self.time_zone}'", f"SET VARIABLE outside = '{outside}'"]
        for _, statements, _ in self.run():
            lines.extend(statements)
        return "".join(f"{line};\n" for line in lines)
