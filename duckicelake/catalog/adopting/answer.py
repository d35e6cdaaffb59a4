"""What there is to make, as executors are told."""

from typing import Any

from duckicelake.catalog.adopting.plan import BulkPlan
from duckicelake.translate.bulk.recipe import format_plan, format_recipe


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
