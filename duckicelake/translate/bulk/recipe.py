"""The inputs of Spark executors that write manifests: a recipe for the table, and a plan for each manifest. No I/O.

`catalog.manifest_import` formats both and computes digests; `pipeline.publish.executor` parses them. `unproven` is the spec of files whose
partition values are not proven.

The digest of a plan covers everything that decides the manifest's bytes except the rows of its files, which never change.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import format_schema, parse_schema
from duckicelake.lake.rows import TableNote
from duckicelake.translate.manifests import DATA, KEY_OF, EntryPlan, ManifestPlan, to_entry
from duckicelake.translate.partitions import Partitioning, PartitionKey, PublishedSpec
from duckicelake.translate.schemas import Schemas

ENTRIES_MIN = 256
"""The fewest entries of a manifest that is worth sending to a Spark executor."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The inputs of all manifests of a table. `version` is the version of this package. Relative paths start at `folder`."""

    version: str
    folder: str
    schemas: Schemas
    partitioning: Partitioning
    note: TableNote


def is_bulky(plan: ManifestPlan) -> bool:
    """Return True if executors may write the manifest: it is large, and every file in it has a row in DuckLake."""
    return plan.content == DATA and len(plan.entries) >= ENTRIES_MIN and min(map(KEY_OF, plan.entries)) >= 0


def digest_plan(recipe: Recipe, plan: ManifestPlan) -> str:
    """Return the digest that identifies a manifest; later columns, specs and snapshots of the table do not change it."""
    spec = next(spec for spec in recipe.partitioning.specs if spec.spec_id == plan.spec_id)
    timeline = tuple(item for item in recipe.schemas.timeline if item[0] <= plan.snapshot_id) or recipe.schemas.timeline[:1]
    own = {
        **format_recipe(replace(recipe, schemas=replace(recipe.schemas, timeline=timeline))),
        "specs": [_format_spec(spec)],
        "spec-ids": {},
        "unproven": plan.spec_id == recipe.partitioning.unproven.spec_id,
        "plan": {**format_plan(plan), "number": None},
    }
    return hashlib.sha256(json.dumps(own, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def format_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as JSON."""
    note, partitioning = recipe.note, recipe.partitioning
    return {
        "version": recipe.version,
        "folder": recipe.folder,
        "table-id": note.table_id,
        "location": note.location,
        "format-versions": [recipe.schemas.format_version, note.format_version],
        "sequence-base": note.sequence_base,
        "numbered-until": note.numbered_until,
        "schemas": [[since, format_schema(schema)] for since, schema in recipe.schemas.timeline],
        "specs": [_format_spec(spec) for spec in partitioning.specs],
        "spec-ids": {str(partition_id): spec.spec_id for partition_id, spec in partitioning.by_partition_id.items()},
        "unproven": partitioning.unproven.spec_id,
    }


def parse_recipe(node: Any) -> Recipe:
    """Return the recipe of its JSON. Raises: BadRequest: it is malformed"""
    try:
        timeline = tuple((int(since), parse_schema(schema)) for since, schema in node["schemas"])
        specs = {spec.spec_id: spec for spec in map(_parse_spec, node["specs"])}
        by_partition_id = {int(key): specs[spec_id] for key, spec_id in node["spec-ids"].items()}
        version, noted = node["format-versions"]
        note = TableNote(node["table-id"], node["location"], noted, node["sequence-base"], 0, -1, -1, "", 0)
        note = replace(note, numbered_until=node["numbered-until"])
        partitioning = Partitioning(tuple(specs.values()), by_partition_id, 0, (), specs[node["unproven"]])
        return Recipe(node["version"], node["folder"], Schemas(timeline, (), 0, version), partitioning, note)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadRequest(f"Cannot read a recipe of manifests ({error!r}): the catalog is of another version") from error


def survives_json(recipe: Recipe) -> bool:
    """Return True if a recipe is unchanged after a round trip through JSON, which cannot represent every schema."""
    try:
        parsed = parse_recipe(json.loads(json.dumps(format_recipe(recipe))))
    except BadRequest:
        return False
    same_schemas = parsed.schemas.timeline == recipe.schemas.timeline
    return same_schemas and parsed.partitioning.specs == recipe.partitioning.specs and format_recipe(parsed) == format_recipe(recipe)


def _format_spec(spec: PublishedSpec) -> dict[str, Any]:
    keys = [[key.source_id, key.transform, list(key.key_indexes), *([True] if key.is_ordinal else ())] for key in spec.keys]
    return {"id": spec.spec_id, "field-ids": list(spec.field_ids), "keys": keys, "names": list(spec.names)}


def _parse_spec(node: Mapping[str, Any]) -> PublishedSpec:
    keys = tuple(
        PartitionKey(source_id, transform, tuple(indexes), is_ordinal=ordinal == [True])
        for source_id, transform, indexes, *ordinal in node["keys"]
    )
    return PublishedSpec(node["id"], tuple(node["field-ids"]), keys, tuple(node["names"]))


def format_plan(plan: ManifestPlan) -> dict[str, Any]:
    """Return a plan as JSON; entries with consecutive file ids form one run: its length, and its first entry."""
    return {
        "number": plan.number,
        "content": plan.content,
        "spec-id": plan.spec_id,
        "snapshot-id": plan.snapshot_id,
        "runs": list(_format_runs(plan.entries)),
    }


def parse_plan(node: Any) -> ManifestPlan:
    """Return the plan of its JSON. Raises: BadRequest: it is malformed"""
    try:
        entries = tuple(
            to_entry((status, snapshot_id, since, key))
            for count, status, snapshot_id, since, first in node["runs"]
            for key in range(first, first + count)
        )
        return ManifestPlan(node["content"], node["number"], node["spec-id"], node["snapshot-id"], entries)
    except (LookupError, TypeError, ValueError) as error:
        raise BadRequest(f"Cannot read a plan of a manifest ({error!r}): the catalog is of another version") from error


def _format_runs(entries: Sequence[EntryPlan]) -> Iterator[list[int]]:
    for _, alike in groupby(entries, itemgetter(0, 1, 2)):
        entries_alike = list(alike)
        keys = np.fromiter(map(KEY_OF, entries_alike), dtype=np.int64)
        begins = [0, *(np.flatnonzero(np.diff(keys) != 1) + 1).tolist(), len(entries_alike)]
        yield from ([end - begin, *entries_alike[begin]] for begin, end in pairwise(begins))
