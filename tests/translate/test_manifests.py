"""Manifests against a brute-force reading of the same life."""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.translate.manifests import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    ENTRIES_MAX,
    EXISTING,
    MERGE_FAN,
    ManifestPlan,
    SnapshotPlan,
    new_manifest_sets,
    plan_manifests,
    size_class,
)
from duckicelake.translate.summaries import count_manifests
from duckicelake.translate.visibility import SnapshotStep, TableHistory, TrackedFile, build_history
from tests.support.examples import examples
from tests.translate.support.states import Life, make_life

lives = st.builds(
    lambda seed, count, each: make_life(Random(seed), count, each), st.integers(0, 2**32), st.integers(0, 60), st.sampled_from([1, 2, 8])
)


def write(life: Life) -> tuple[TableHistory, list[SnapshotPlan]]:
    """The snapshots of a life."""
    history = build_history(life.state(), life.files, life.visibility)
    return history, list(plan_manifests(history.steps, new_manifest_sets(history, life.specs.__getitem__), life.specs.__getitem__))


def fold(steps: list[SnapshotStep]) -> list[SnapshotPlan]:
    """The snapshots of an unpartitioned table that begins with these steps."""
    history = TableHistory(SnapshotStep(0, 0), tuple(steps))
    return list(plan_manifests(steps, new_manifest_sets(history, lambda _: 0), lambda _: 0))


def own(plan: SnapshotPlan) -> list[ManifestPlan]:
    """The manifests that a snapshot wrote itself."""
    return [manifest for manifest in plan.manifests if manifest.snapshot_id == plan.step.snapshot_id]


@settings(max_examples=examples(60), deadline=None)
@given(lives)
def test_every_snapshot_lists_exactly_the_live_files(life: Life) -> None:
    """Each live file once, each deleted position once, none of another file; under the spec of the file."""
    _, plans = write(life)
    for plan in plans:
        entries = [(m, entry) for m in plan.manifests for entry in m.live()]
        expected = life.live_at(plan.step.snapshot_id)
        assert Counter(entry.key for m, entry in entries if m.content == DATA) == Counter(list(expected))
        deletes = {entry.key: entry.since for m, entry in entries if m.content == DELETES}
        assert len(deletes) == sum(m.content == DELETES for m, _ in entries)
        found = {key: tuple(life.visibility[key].deleted_at(since).tolist()) for key, since in deletes.items()}
        assert found == {key: positions for key, positions in expected.items() if positions}
        assert all(m.spec_id == life.specs[entry.key] for m, entry in entries)


@settings(max_examples=examples(60), deadline=None)
@given(lives)
def test_lists_have_the_newest_manifest_first(life: Life) -> None:
    """Those of data before those of deletes; the counts are of what a list has and its parent's had."""
    before: set[tuple[int, int]] = set()
    for plan in write(life)[1]:
        assert [m.content for m in plan.manifests] == sorted(m.content for m in plan.manifests)
        for content in (DATA, DELETES):
            written = [m.snapshot_id for m in plan.manifests if m.content == content]
            assert written == sorted(written, reverse=True)
        names = {(m.content, m.number) for m in plan.manifests}
        counts = {key: int(text) for key, text in count_manifests(plan).items()}
        assert counts["manifests-created"] == len(own(plan)) == len(names - before)
        assert counts["manifests-kept"] == len(names & before)
        assert counts["manifests-replaced"] <= len(before - names)
        before = names


@settings(max_examples=examples(60), deadline=None)
@given(lives)
def test_every_file_is_added_once_and_deleted_once(life: Life) -> None:
    """Where a file comes and goes is written by that snapshot alone; what was there before it all is only existing."""
    history, plans = write(life)
    added, deleted = Counter[int](), Counter[int]()
    for plan in plans:
        for manifest in own(plan):
            for entry in manifest.entries:
                assert (entry.status == EXISTING) or entry.snapshot_id == plan.step.snapshot_id
                if manifest.content == DATA:
                    added[entry.key] += entry.status == ADDED
                    deleted[entry.key] += entry.status == DELETED
    base = {file.key for file in history.base.added}
    seen = {key for plan in plans for key in life.live_at(plan.step.snapshot_id)}
    assert +added == Counter(seen - base)
    ends = {file.key for file in life.files if plans and not any(file.key == key for key in life.live_at(plans[-1].step.snapshot_id))}
    assert +deleted == Counter((seen | base) & ends)


@settings(max_examples=examples(60), deadline=None)
@given(lives)
def test_what_a_snapshot_did_not_touch_is_carried_as_it_is(life: Life) -> None:
    """A carried manifest is the same object; one with nothing live in it is not carried further."""
    _, plans = write(life)
    before: dict[tuple[int, int], ManifestPlan] = {}
    for index, plan in enumerate(plans):
        now = {(manifest.content, manifest.number): manifest for manifest in plan.manifests}
        assert len(now) == len(plan.manifests)
        for key, manifest in now.items():
            if manifest.snapshot_id != plan.step.snapshot_id:
                assert manifest is before[key]
                assert manifest.live()
        assert index == 0 or all(manifest.entries for manifest in plan.manifests)
        before = now


@settings(max_examples=examples(60), deadline=None)
@given(lives)
def test_sequence_numbers_follow_the_lake(life: Life) -> None:
    """A file's number is its first lake snapshot, a delete's is never below that of its file, and none is from the future."""
    _, plans = write(life)
    begins = {file.key: file.begin_snapshot for file in life.files}
    for plan in plans:
        for manifest in plan.manifests:
            for entry in manifest.entries:
                assert begins[entry.key] <= entry.since <= plan.step.snapshot_id
                assert manifest.content == DELETES or entry.since == begins[entry.key]


@settings(max_examples=examples(60), deadline=None)
@given(lives)
def test_lists_stay_short(life: Life) -> None:
    """Per spec and size class there are fewer manifests than are merged at once, one more while one is being written."""
    _, plans = write(life)
    for plan in plans:
        counts = Counter((m.content, m.spec_id, size_class(len(m.entries))) for m in plan.manifests)
        assert all(count <= MERGE_FAN for (_, _, tier), count in counts.items() if tier >= 0)


@settings(max_examples=examples(60), deadline=None)
@given(lives, st.integers(0, 60))
def test_going_on_is_the_same_as_beginning_again(life: Life, at: int) -> None:
    """A fold that stopped anywhere and went on later gives the same manifests."""
    history, plans = write(life)
    manifest_sets = new_manifest_sets(history, life.specs.__getitem__)
    parts = [history.steps[:at], history.steps[at:]]
    assert [plan for part in parts for plan in plan_manifests(part, manifest_sets, life.specs.__getitem__)] == plans


@given(lives)
@settings(max_examples=20, deadline=None)
def test_publishing_twice_gives_the_same(life: Life) -> None:
    """Nothing depends on anything but the rows."""
    assert write(life) == write(life)


def appends(sizes: Iterable[int]) -> Iterator[SnapshotStep]:
    """Snapshots that each add so many files."""
    keys = itertools.count(1)
    for i, size in enumerate(sizes, 1):
        yield SnapshotStep(i, i, added=[TrackedFile(key, i, None, 1) for key in itertools.islice(keys, size)])


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([1] * 5000, id="one by one"),
        pytest.param([17] * 600, id="seventeen"),
        pytest.param([ENTRIES_MAX + 10] * 18, id="more than fit"),
        pytest.param([ENTRIES_MAX] * 18 + [300] * 20, id="full ones and many others"),
    ],
)
def test_full_manifests_are_left_alone(sizes: list[int]) -> None:
    """Only full ones grow in number with the table, and are never written again; the others stay within their size classes."""
    plans = fold(list(appends(sizes)))
    last, full = plans[-1], [m for plan in plans for m in own(plan) if size_class(len(m.entries)) < 0]
    # the newest is listed first
    assert full == [m for m in reversed(last.manifests) if size_class(len(m.entries)) < 0]
    counts = Counter(size_class(len(m.entries)) for m in last.manifests)
    assert sum(len(m.entries) for m in last.manifests) == sum(sizes)
    assert counts.pop(-1, 0) <= sum(sizes) // ENTRIES_MAX
    assert max(counts.values(), default=0) <= MERGE_FAN


def test_an_entry_is_rewritten_once_per_size_class() -> None:
    """What all snapshots write together grows with the entries, not with their square."""
    plans = fold(list(appends([1] * 2000)))
    written = sum(len(manifest.entries) for plan in plans for manifest in own(plan))
    assert written <= 2000 * 4
    assert max(len(plan.manifests) for plan in plans) <= 3 * MERGE_FAN


def test_two_thousand_appends_cost_about_ten_times_two_hundred() -> None:
    """The fold is about linear."""

    def cost(count: int) -> float:
        steps = list(appends([1] * count))
        began = time.process_time()
        fold(steps)
        return time.process_time() - began

    small = min(cost(400) for _ in range(3))
    assert min(cost(4000) for _ in range(3)) < 30 * small


def test_removing_from_a_big_manifest_keeps_the_rest_of_it() -> None:
    """One removal rewrites one manifest: a tombstone, everything else existing; the tombstone is gone once it is rewritten."""
    steps = [
        SnapshotStep(1, 1, added=[TrackedFile(n, 1, None, 1) for n in range(1, 501)]),
        SnapshotStep(2, 2, removed=[TrackedFile(9, 1, 2, 1)]),
        SnapshotStep(3, 3, removed=[TrackedFile(10, 1, 3, 1)]),
    ]
    plans = fold(steps)
    for plan, expected in zip(plans[1:], ({EXISTING: 499, DELETED: 1}, {EXISTING: 498, DELETED: 1}), strict=True):
        (manifest,) = plan.manifests
        assert Counter(entry.status for entry in manifest.entries) == expected
        assert [entry.snapshot_id for entry in manifest.entries if entry.status == DELETED] == [plan.step.snapshot_id]


def test_a_manifest_of_tombstones_is_listed_by_one_snapshot_only() -> None:
    """The snapshot that empties a table says what it removed, the next one says nothing of it."""
    file = TrackedFile(1, 1, 2, 1)
    plans = fold([SnapshotStep(1, 1, added=[file]), SnapshotStep(2, 2, removed=[file]), SnapshotStep(3, 3)])
    assert [[entry.status for m in plan.manifests for entry in m.entries] for plan in plans] == [[ADDED], [DELETED], []]


@pytest.mark.parametrize(("count", "tier"), [(1, 0), (15, 0), (16, 1), (255, 1), (256, 2), (3999, 2), (4000, -1), (9000, -1)])
def test_size_classes(count: int, tier: int) -> None:
    """Powers of the fan, and the full ones."""
    assert size_class(count) == tier
