"""Plans of large manifests for Spark executors, and the import of the result: one call imports all manifests or none.

Finished manifests may be verified earlier, while executors write the others. `rest/routes/manifests.py` calls this on worker threads. Plans
and verifications read Postgres and the object store in one read transaction, and write nothing. An import publishes the table with the lock
of its cache, as a load does, and writes a row for each manifest.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import psycopg

from duckicelake.catalog.manifest_import.imported import (
    PACKAGE,
    Submission,
    SubmittedManifest,
    VerifiedManifests,
    build_recipe,
    draw_lot,
    explain_obstacle,
)
from duckicelake.catalog.manifest_import.plan_cache import CachedPlan
from duckicelake.catalog.publish import PublishContext, build_first_note, publish, upgrade_note
from duckicelake.catalog.snapshot_building import ManifestLayout, build_manifest_writer, plan_layout, read_changes
from duckicelake.catalog.table_cache import FileCache, TableCache
from duckicelake.catalog.tables import LOAD_TRIES, Ident, check_cache, read_live_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CommitFailed, LakeMoved
from duckicelake.lake.connect import query_once, reading
from duckicelake.lake.notes import read_notes
from duckicelake.lake.read import is_touched
from duckicelake.lake.rows import Position, TableRow
from duckicelake.translate.bulk_manifests import Recipe, format_plan, format_recipe, is_bulky
from duckicelake.translate.manifests import ManifestPlan
from duckicelake.translate.visibility import build_history


def import_manifests(
    warehouse: Warehouse, ident: Ident, planned: Position, made_by: str, manifests: Mapping[str, SubmittedManifest]
) -> int:
    """Publish a table with manifests that were planned at a position, note them, and return how many they are.

    All of them are verified first, and a sample is built again and compared: see `ImportedManifests`. A load uses only verified manifests.
    Raises: NoSuchTable. CommitFailed: the table has changed since the plan. BadRequest: a manifest is missing, or is not what the plan
    requires; then none is imported. Unsupported: something in the table is not published
    """
    _check_version(made_by)
    for attempt in range(1, LOAD_TRIES + 1):
        try:
            _publish(warehouse, ident, planned, manifests)
        except LakeMoved:
            if attempt == LOAD_TRIES:
                raise
        else:
            return len(manifests)
    raise AssertionError("unreachable")


def verify_manifests(
    warehouse: Warehouse, ident: Ident, planned: Position, made_by: str, manifests: Mapping[str, SubmittedManifest]
) -> int:
    """Verify manifests before the import, and return how many the import need not verify again.

    That number is 0 if this server no longer has the plan. Nothing is published or written to Postgres.
    Raises: as `import_manifests`
    """
    _check_version(made_by)
    with reading(warehouse.lake) as conn:
        table, seen = read_live_table(conn, ident)
        _check_untouched(conn, ident, table.table_id, (planned, seen.position))
        cached_plan = warehouse.plans.find(table.table_id, planned)
        if cached_plan is None:
            return 0
        with cached_plan.lock:
            try:
                _verify(conn, warehouse, cached_plan, manifests)
            except BadRequest:
                # Forget the plan, so that a caller cannot find out by trial which manifests are built again.
                warehouse.plans.forget(table.table_id)
                raise
    return len(manifests)


def _verify(conn: psycopg.Connection, warehouse: Warehouse, cached_plan: CachedPlan, manifests: Mapping[str, SubmittedManifest]) -> None:
    submission = Submission(manifests, cached_plan.verified)
    submission.check_known(cached_plan.manifests.keys())
    reading = replace(cached_plan.reading, submission=submission)
    writer = build_manifest_writer(conn, warehouse.objects, reading, cached_plan.note, FileCache(known_uris=set()))
    with closing(writer.files):
        for digest, submitted in manifests.items():
            cached_plan.verified.found[digest] = submitted, writer.verify(cached_plan.manifests[digest], submission)


def _take_plan(conn: psycopg.Connection, warehouse: Warehouse, table_id: int, position: Position) -> CachedPlan | None:
    """Return the plan of a table as it is now, which is cached for one attempt; None if the table got a metadata version since."""
    cached_plan = warehouse.plans.find(table_id, position)
    warehouse.plans.forget(table_id)
    return cached_plan if cached_plan is not None and read_notes(conn, table_id) == cached_plan.reading.state.notes else None


def _check_version(made_by: str) -> None:
    if made_by != version(PACKAGE):
        raise BadRequest(f"The manifests were made by version {made_by[:64]!r}, and this server is {version(PACKAGE)!r}; use the same.")


def _check_untouched(conn: psycopg.Connection, ident: Ident, table_id: int, positions: tuple[Position, Position]) -> None:
    if is_touched(conn, table_id, *positions):
        raise CommitFailed(f"The table {ident} has changed since its manifests were planned; plan again.")


def _publish(warehouse: Warehouse, ident: Ident, planned: Position, manifests: Mapping[str, SubmittedManifest]) -> None:
    table, _ = query_once(warehouse.lake, lambda conn: read_live_table(conn, ident))
    cache = warehouse.caches.of(table.table_id)
    with cache.lock, ExitStack() as read:
        conn = read.enter_context(reading(warehouse.lake))
        now, seen = check_cache(conn, warehouse, ident, (table, cache))
        _check_untouched(conn, ident, now.table_id, (planned, seen.position))
        cached_plan = _take_plan(conn, warehouse, now.table_id, seen.position)
        # An import does not replace the cache of a table that is published.
        own = cache if cache.table.published is None and cache.table.built is None else TableCache()
        submission = Submission(
            manifests,
            cached_plan.verified if cached_plan else VerifiedManifests(draw_lot(random.choice(sorted(manifests))) if manifests else 0),
        )
        known = cached_plan.reading if cached_plan else read_changes(conn, warehouse.objects, now, own)
        own.table = publish(PublishContext(warehouse, conn, read.close), now, own, replace(known, submission=submission))
        if own is cache:
            warehouse.caches.estimate_size(now.table_id, cache)


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """The manifests to write for a table at a position, by digest.

    `obstacle`: why only the server may write them. `adopted`: how many were made and taken over before.
    """

    position: Position
    recipe: Recipe
    manifests: dict[str, ManifestPlan]
    adopted: int = 0
    obstacle: str = ""


def plan_manifests(warehouse: Warehouse, ident: Ident) -> BulkPlan:
    """Return the manifests that are to be written for a table; nothing is published. The plan is cached for the import.

    Raises: NoSuchTable. Unsupported: something in the table is not published. NotFound: an object that DuckLake names is missing
    """
    with reading(warehouse.lake) as conn:
        table, seen = read_live_table(conn, ident)
        return _plan(conn, warehouse, table, seen.position)


def _plan(conn: psycopg.Connection, warehouse: Warehouse, table: TableRow, position: Position) -> BulkPlan:
    cache, objects = TableCache(), warehouse.objects
    found = read_changes(conn, objects, table, cache)
    state = found.state
    note = upgrade_note(state.notes.table or build_first_note(objects, state), found.schemas.format_version, state.position)
    writer = build_manifest_writer(conn, objects, found, note, cache.files)
    recipe = build_recipe(state, writer.maker)
    obstacle = explain_obstacle(state, recipe)
    adopted = writer.adopted
    assert adopted is not None
    with closing(writer.files):
        laid = plan_layout(build_history(state, found.sources.files, found.sources.visibility), writer.files)
        laid = replace(laid, snapshots=list(laid.snapshots))
    plans = {} if obstacle else {adopted.digest(plan): plan for plan in _list_plans(laid)}
    missing = {digest: plan for digest, plan in plans.items() if adopted.find(plan) is None}
    if missing:
        laid = replace(laid, digests=dict(adopted.digests))
        verified = VerifiedManifests(draw_lot(random.choice(sorted(missing))))
        warehouse.plans.keep(CachedPlan(table.table_id, position, replace(found, layout=laid), note, missing, verified))
    return BulkPlan(position, recipe, missing, len(plans) - len(missing), obstacle)


def _list_plans(laid: ManifestLayout) -> Iterator[ManifestPlan]:
    """Yield the large manifests of all snapshots, each once."""
    seen = set[tuple[int, int]]()
    for snapshot in laid.snapshots:
        fresh = [plan for plan in snapshot.manifests if (plan.content, plan.number) not in seen]
        seen |= {(plan.content, plan.number) for plan in fresh}
        yield from filter(is_bulky, fresh)


def encode_plan(found: BulkPlan) -> Any:
    """Return a plan as JSON."""
    return {
        "lake-snapshot-id": found.position.lake_snapshot_id,
        "change-id": found.position.change_id,
        "obstacle": found.obstacle,
        "adopted": found.adopted,
        "recipe": format_recipe(found.recipe),
        "manifests": [{"digest": digest, **format_plan(plan)} for digest, plan in found.manifests.items()],
    }
