"""Manifests are made of plans and files; what is told of one gives back what a list says of it."""

import json
from typing import Any

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import EncodedFile, encode_files
from duckicelake.translate.bulk_manifests import BuiltManifest, ManifestBuilder, format_submission, normalize_submission, parse_submission
from duckicelake.translate.manifests import ManifestPlan
from tests.translate.bulk.test_recipe import NOTE, PLAN, RECIPE

STATUSES = (1, 0, 2)


def make() -> tuple[ManifestPlan, BuiltManifest, ManifestBuilder]:
    """A manifest with entries of every status, in partitions."""
    entries = tuple(entry._replace(status=STATUSES[entry.key % 3], since=5 + entry.key % 3) for entry in PLAN.entries)
    plan = ManifestPlan(PLAN.content, PLAN.number, PLAN.spec_id, PLAN.snapshot_id, entries)
    plain = [EncodedFile(f"s3://b/{entry.key}", (entry.key % 4,), entry.key, 10 + entry.key, 100 * entry.key) for entry in entries]
    maker = ManifestBuilder(RECIPE.schemas, RECIPE.partitioning, NOTE)
    return plan, maker.make(plan, encode_files(plain, [b"\0" * 8] * len(plain), 2)), maker


def test_what_is_told_is_what_a_list_says() -> None:
    """Counts, numbers and partitions come from the plan and from what is told."""
    plan, made, _ = make()
    name = made.uri.rpartition("/")[2].removesuffix("-m0.avro")
    found = parse_submission(json.loads(json.dumps(format_submission(made))), plan, NOTE, name)
    assert found.described == made.described
    assert (found.tally.added(), found.tally.removed()) == (made.tally.added(), made.tally.removed())
    assert (
        parse_submission(json.loads(normalize_submission({**format_submission(made), "more": 1})), plan, NOTE, name).described
        == made.described
    )
    assert "more" not in normalize_submission({**format_submission(made), "more": 1})
    assert found.tally.added().records > 0 < found.tally.removed().files_size


def test_entries_are_counted_by_blocks() -> None:
    """What is torn, has another header or another plan's schema, is no manifest of the plan."""
    plan, made, maker = make()
    assert maker.count_entries(plan, made.content) == len(plan.entries)
    for length in (0, 3, 100, len(made.content) - 1, len(made.content) - 17):
        assert maker.count_entries(plan, made.content[:length]) == -1
    other = ManifestPlan(plan.content, plan.number, 0, plan.snapshot_id, plan.entries)
    assert maker.count_entries(other, made.content) == -1


@pytest.mark.parametrize(
    "change",
    [
        {"length": -1},
        {"length": None},
        {"rows": [1, 2]},
        {"rows": None},
        {"bytes": [1.5, 2]},
        {"partitions": [[1]]},
        {"partitions": None},
        {"partitions": [[True, "x", None, None]]},
    ],
    ids=["negative", "no length", "two", "no rows", "fraction", "short", "no partitions", "no flag"],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    """By the name of the manifest."""
    plan, made, _ = make()
    with pytest.raises(BadRequest, match="manifest n"):
        parse_submission({**format_submission(made), **change}, plan, NOTE, "n")
    with pytest.raises(BadRequest, match="is not a JSON object"):
        parse_submission([], plan, NOTE, "n")
