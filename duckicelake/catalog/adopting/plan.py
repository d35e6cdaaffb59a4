"""What executors have to make of a table: the plans of its large manifests, and what they are made of."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psycopg

from duckicelake.catalog.adopting.adopted import draw, find_obstacle, make_recipe
from duckicelake.catalog.adopting.kept import KeptPlan
from duckicelake.catalog.adopting.layout import Layout
from duckicelake.catalog.adopting.offers import Looks
from duckicelake.catalog.fold import lay_out, make_writer, read
from duckicelake.catalog.memory import TableMemory
from duckicelake.catalog.publish import new_note, raise_note
from duckicelake.catalog.tables import Ident, see
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.connect import reading
from duckicelake.lake.rows import Position, TableRow
from duckicelake.translate.bulk.recipe import Recipe, is_bulky
from duckicelake.translate.history import to_history
from duckicelake.translate.manifests import ManifestPlan
from duckicelake.values import replace


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
    """Return what there is to make of a table; nothing is published. The plan is kept for who comes back with what was made.

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
        laid = lay_out(to_history(state, found.sources.files, found.sources.visibility), writer.files)
        laid = replace(laid, snapshots=list(laid.snapshots))
    plans = {} if obstacle else {adopted.digest(plan): plan for plan in _list_plans(laid)}
    missing = {digest: plan for digest, plan in plans.items() if adopted.find(plan) is None}
    if missing:
        laid = replace(laid, digests=dict(adopted.digests))
        looks = Looks(draw(random.choice(sorted(missing))))
        warehouse.plans.keep(KeptPlan(table.table_id, position, replace(found, layout=laid), note, missing, looks))
    return BulkPlan(position, recipe, missing, len(plans) - len(missing), obstacle)


def _list_plans(laid: Layout) -> Iterator[ManifestPlan]:
    """Yield the large manifests of all snapshots, each once."""
    seen = set[tuple[int, int]]()
    for snapshot in laid.snapshots:
        fresh = [plan for plan in snapshot.manifests if (plan.content, plan.number) not in seen]
        seen |= {(plan.content, plan.number) for plan in fresh}
        yield from filter(is_bulky, fresh)
