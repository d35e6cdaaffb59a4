"""Histories of a lake and its branches: which member does what, in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.differential.clients.draws.pyiceberg import APPENDABLE_SCALARS
from tests.differential.clients.ref_operations import DropRef, MakeRef, MoveMain, WriteToBranch
from tests.differential.clients.shape_operations import Refused
from tests.differential.clients.table_operations import ChangeNamespace, HideSnapshots, PurgeTable, SetView, TakeBack, TellStatistics
from tests.differential.generator.draw import tables
from tests.differential.generator.histories import Draw, draw_client_commit, draw_steps
from tests.differential.generator.kinds import SCALARS
from tests.differential.generator.layout import SetDeletionVectors
from tests.differential.generator.model import Lake
from tests.differential.generator.steps import Printer, Step

MAIN = "main"
MOST_BRANCHES = 3

NOT_ON_BRANCHES = (
    *(MakeRef, DropRef, MoveMain, WriteToBranch, TellStatistics, TakeBack, HideSnapshots),
    *(PurgeTable, SetView, ChangeNamespace, Refused),
)
"""What clients say that a branch does not copy, or that lets files go."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A branch is made of a member as it is then."""

    name: str
    parent: str


@dataclass(frozen=True, slots=True)
class Deletion:
    """A branch is deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """A step of one member; `before` is the member as it was."""

    member: str
    step: Step
    before: Lake


Event = Fork | Deletion | Change


@dataclass(frozen=True, slots=True, repr=False)
class RepositoryHistory:
    """Events of all members, in order, and the tables with deletion vectors."""

    events: tuple[Event, ...]
    vector_tables: frozenset[int]

    def __repr__(self) -> str:
        return "".join(f"{_format_event(event)}\n" for event in self.events)

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        printer.text(repr(self))


def _format_event(event: Event) -> str:
    match event:
        case Fork(name, parent):
            return f"-- branch {name} from {parent}"
        case Deletion(name):
            return f"-- branch {name} is deleted"
        case Change(member, step, before):
            return f"/* {member} */ {'; '.join(step.run(before)[0])};"


@dataclass(slots=True)
class _Member:
    lake: Lake
    steps: list[Step] = field(default_factory=list[Step])


@st.composite
def repository_histories(draw: Draw, *, clients: tuple[str, ...] = ()) -> RepositoryHistory:
    """Histories of a lake with up to three branches: a few steps before the first branch, some fifteen after it."""
    types = tuple(name for name in SCALARS if name in APPENDABLE_SCALARS or not clients)
    members = {MAIN: _Member(Lake(column_types=types, has_clients=bool(clients)))}
    events: list[Event] = []

    def take(name: str, drawn: Sequence[Step]) -> None:
        if any(isinstance(operation, NOT_ON_BRANCHES) for step in drawn for operation in step.operations):
            return
        member = members[name]
        for step in drawn:
            events.append(Change(name, step, member.lake))
            _, member.lake = step.run(member.lake)
            member.steps.append(step)

    def fork(parent: str) -> None:
        name = f"b{1 + sum(isinstance(event, Fork) for event in events)}"
        events.append(Fork(name, parent))
        members[name] = _Member(members[parent].lake, list(members[parent].steps))

    take(MAIN, tables.draw_new_table(draw, members[MAIN].lake))
    for _ in range(draw(st.integers(1, 6))):
        take(MAIN, _draw_next(draw, members[MAIN], clients))
    fork(MAIN)
    for _ in range(draw(st.integers(6, 16))):
        shape, name = draw(st.integers(0, 15)), draw(st.sampled_from(sorted(members)))
        if shape == 0 and len(members) <= MOST_BRANCHES:
            fork(name)
        elif shape == 1 and name != MAIN:
            events.append(Deletion(name))
            del members[name]
        else:
            take(name, _draw_next(draw, members[name], clients))
    operations = (operation for event in events if isinstance(event, Change) for operation in event.step.operations)
    return RepositoryHistory(tuple(events), frozenset(each.table_id for each in operations if isinstance(each, SetDeletionVectors)))


def _draw_next(draw: Draw, member: _Member, clients: tuple[str, ...]) -> list[Step]:
    if clients and member.lake.tables and draw(st.booleans()):
        return draw_client_commit(draw, member.lake, member.steps, clients)
    return draw_steps(draw, member.lake, member.steps, wide=True)
