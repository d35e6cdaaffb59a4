"""Recipes and plans of manifests go to executors as JSON and come as they went; digests tell apart what gives other bytes."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import ListType, NestedField, PrimitiveType, StructType
from duckicelake.lake.rows import TableNote
from duckicelake.translate.bulk_manifests import (
    ENTRIES_MIN,
    Recipe,
    digest_plan,
    format_plan,
    format_recipe,
    is_bulky,
    parse_plan,
    parse_recipe,
    survives_json,
)
from duckicelake.translate.manifests import DATA, DELETES, EntryPlan, ManifestPlan
from duckicelake.translate.partitions import UNPARTITIONED, Partitioning, PartitionKey, PublishedSpec
from duckicelake.translate.schemas import Schemas

LONG, TEXT = PrimitiveType("long"), PrimitiveType("string")
NESTED = StructType((NestedField(3, "a", TEXT, False), NestedField(4, "b", ListType(5, LONG, False), False)))
FIRST = Schema(0, (NestedField(1, "id", LONG, True), NestedField(2, 'ü "x"', NESTED, False)))
LATER = Schema(1, (*FIRST.fields, NestedField(6, "n", PrimitiveType("decimal(9, 2)"), False)))
SPEC = PublishedSpec(1, (1000,), (PartitionKey(1, "bucket[4]", (0, 1)),), ("told",))
YEAR, EPOCH_YEAR = (PublishedSpec(2, (1001,), (PartitionKey(1, "year", (0,), ordinal),), ("y",)) for ordinal in (False, True))
PARTITIONING = Partitioning((UNPARTITIONED, SPEC, EPOCH_YEAR), {7: SPEC, 8: EPOCH_YEAR}, 1, ())
NOTE = TableNote(5, "s3://b/i/t", 2, 3, 0, -1, -1, "", 0)
RECIPE = Recipe("1.0", "s3://b/data/t/", Schemas(((1, FIRST), (9, LATER)), (), 0, 2), PARTITIONING, NOTE)
PLAN = ManifestPlan(DATA, 4, 1, 8, tuple(EntryPlan(1, 8, 8, key) for key in range(ENTRIES_MIN)))

entries = st.lists(st.builds(EntryPlan, st.integers(0, 2), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**62)), max_size=40)


@given(entries)
def test_plans_come_as_they_went(found: list[EntryPlan]) -> None:
    """In any order, with gaps and repeated files."""
    plan = ManifestPlan(DATA, 1, 2, 3, tuple(found))
    assert parse_plan(json.loads(json.dumps(format_plan(plan)))) == plan


def test_files_that_follow_each_other_are_one_run() -> None:
    """A plan of thousands of files is a line."""
    assert format_plan(PLAN)["runs"] == [[ENTRIES_MIN, 1, 8, 8, 0]]


def test_recipes_come_as_they_went() -> None:
    """Names, nested columns, specs and numbers."""
    found = parse_recipe(json.loads(json.dumps(format_recipe(RECIPE))))
    assert found.schemas.timeline == RECIPE.schemas.timeline
    assert (found.partitioning.specs, found.partitioning.by_partition_id) == (PARTITIONING.specs, PARTITIONING.by_partition_id)
    assert (found.note, found.folder, found.version) == (NOTE, RECIPE.folder, RECIPE.version)
    assert survives_json(RECIPE)
    twins = replace(LATER, fields=(*LATER.fields, NestedField(7, "id", LONG, False)))
    assert not survives_json(replace(RECIPE, schemas=replace(RECIPE.schemas, timeline=((1, twins),))))


@pytest.mark.parametrize("broken", [None, {}, {"schemas": 1}, {**format_recipe(RECIPE), "specs": []}], ids=["null", "empty", "no", "specs"])
def test_what_is_no_recipe_is_refused(broken: object) -> None:
    """An executor says so."""
    with pytest.raises(BadRequest, match="Cannot read a recipe"):
        parse_recipe(broken)
    with pytest.raises(BadRequest, match="Cannot read a plan"):
        parse_plan(broken)


def test_only_large_manifests_of_files_with_rows_go_to_executors() -> None:
    """Derived files have keys below zero."""
    assert is_bulky(PLAN)
    assert not is_bulky(replace(PLAN, entries=PLAN.entries[1:]))
    assert not is_bulky(replace(PLAN, content=DELETES))
    assert not is_bulky(replace(PLAN, entries=(*PLAN.entries, EntryPlan(1, 8, 8, -1))))


OTHERS = {
    "version": (replace(RECIPE, version="1.1"), PLAN),
    "folder": (replace(RECIPE, folder="s3://b/data/u/"), PLAN),
    "location": (replace(RECIPE, note=replace(NOTE, location="s3://b/i/u")), PLAN),
    "table": (replace(RECIPE, note=replace(NOTE, table_id=6)), PLAN),
    "sequence base": (replace(RECIPE, note=replace(NOTE, sequence_base=4)), PLAN),
    "numbered until": (replace(RECIPE, note=replace(NOTE, numbered_until=4)), PLAN),
    "format version": (replace(RECIPE, schemas=replace(RECIPE.schemas, format_version=3)), PLAN),
    "schema": (replace(RECIPE, schemas=replace(RECIPE.schemas, timeline=((1, replace(FIRST, schema_id=5)),))), PLAN),
    "since when": (replace(RECIPE, schemas=replace(RECIPE.schemas, timeline=((1, FIRST), (8, LATER)))), PLAN),
    "spec": (replace(RECIPE, partitioning=replace(PARTITIONING, specs=(UNPARTITIONED, replace(SPEC, names=("other",))))), PLAN),
    "spec of the plan": (RECIPE, replace(PLAN, spec_id=0)),
    "snapshot": (RECIPE, replace(PLAN, snapshot_id=9)),
    "entries": (RECIPE, replace(PLAN, entries=PLAN.entries[1:])),
    "status": (RECIPE, replace(PLAN, entries=(PLAN.entries[0]._replace(status=0), *PLAN.entries[1:]))),
}
SAME = {
    "a later column": (replace(RECIPE, schemas=replace(RECIPE.schemas, timeline=(*RECIPE.schemas.timeline, (12, FIRST)))), PLAN),
    "a later spec": (replace(RECIPE, partitioning=replace(PARTITIONING, specs=(*PARTITIONING.specs, replace(SPEC, spec_id=2)))), PLAN),
    "a partitioning of the same spec": (replace(RECIPE, partitioning=replace(PARTITIONING, by_partition_id={7: SPEC, 8: SPEC})), PLAN),
    "a number": (RECIPE, replace(PLAN, number=5)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_bytes_have_another_digest(other: str) -> None:
    """Everything that decides them changes it."""
    assert digest_plan(*OTHERS[other]) != digest_plan(RECIPE, PLAN)


def test_the_kind_of_year_changes_the_digest() -> None:
    """DuckLake 1.1 has `year`, a calendar component, and `epoch_year`; both are Iceberg's `year`."""
    plan = replace(PLAN, spec_id=EPOCH_YEAR.spec_id)
    calendar = replace(RECIPE, partitioning=replace(PARTITIONING, specs=(UNPARTITIONED, SPEC, YEAR)))
    assert digest_plan(calendar, plan) != digest_plan(RECIPE, plan)


@pytest.mark.parametrize("same", SAME)
def test_what_comes_later_changes_no_digest(same: str) -> None:
    """What was taken over stays so while the table goes on."""
    assert digest_plan(*SAME[same]) == digest_plan(RECIPE, PLAN)
