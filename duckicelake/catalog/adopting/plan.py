"""What executors have to make of a table: the plans of its large manifests, and what they are made of."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import psycopg

from duckicelake.catalog.adopting.adopted import find_obstacle, make_recipe
from duckicelake.catalog.data_files import DataFiles
from duckicelake.catalog.fold import Reading, make_writer, read
from duckicelake.catalog.memory import TableMemory
from duckicelake.catalog.publish import new_note, raise_note
from duckicelake.catalog.tables import Ident, see
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.connect import reading
from duckicelake.lake.rows import Position, TableRow
from duckicelake.translate.bulk.recipe import Recipe, is_bulky
from duckicelake.translate.history import to_history
from duckicelake.translate.manifests import KEY_OF, ManifestPlan, new_shelves, to_manifests


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """What there is to make of a table as it is at a position: manifests by what tells them apart.

    `obstacle`: why nobody but the server may make them. `adopted`: how many were made and taken over before.
    """

    position: Position
    recipe: Recipe
    manifests: dict[str, ManifestPlan]
    adopted: int = 0
    obstacle: str = ""


def plan_manifests(warehouse: Warehouse, ident: Ident) -> BulkPlan:
    """Return what there is to make of a table; nothing is published, nor remembered.

    Raises: NoSuchTable. Unsupported: something in the table is not published. NotFound: an object that DuckLake names is missing
    """
    with reading(warehouse.lake) as conn:
        table, seen = see(conn, ident)
        return _plan(conn, warehouse, table, seen.position)


def _plan(conn: psycopg.Connection, warehouse: Warehouse, table: TableRow, position: Position) -> BulkPlan:
    memory, objects = TableMemory(), warehouse.objects
    found = read(conn, objects, table, memory)
    state = found.state
    note = raise_note(state.notes.table or new_note(objects, state), found.schemas.format_version, state.position)
    writer = make_writer(conn, objects, found, note, memory)
    recipe = make_recipe(state, writer.maker)
    obstacle = find_obstacle(state, recipe)
    adopted = writer.adopted
    assert adopted is not None
    with closing(writer.files):
        plans = {} if obstacle else {adopted.digest(plan): plan for plan in _list_plans(found, writer.files)}
    missing = {digest: plan for digest, plan in plans.items() if adopted.find(plan) is None}
    return BulkPlan(position, recipe, missing, len(plans) - len(missing), obstacle)


def _list_plans(found: Reading, files: DataFiles) -> Iterator[ManifestPlan]:
    """Yield the large manifests of all snapshots, each once."""
    history = to_history(found.state, found.sources.files, found.sources.visibility)
    seen = set[tuple[int, int]]()
    files.place(map(KEY_OF, chain(history.base.added, *(step.added for step in history.steps))))
    for snapshot in to_manifests(history.steps, new_shelves(history, files.spec_of), files.spec_of):
        fresh = [plan for plan in snapshot.manifests if (plan.content, plan.number) not in seen]
        seen |= {(plan.content, plan.number) for plan in fresh}
        yield from filter(is_bulky, fresh)
