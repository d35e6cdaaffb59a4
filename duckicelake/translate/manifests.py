"""The growth of a table's manifests with its snapshots: a fold over the changes of each snapshot.

A snapshot writes manifests for the files it added and removed, with the remaining entries of the manifests it removed from, and
keeps all others. MERGE_FAN manifests of similar size are merged, so a list has few manifests and an entry is rewritten only
once per size class. Full manifests are never merged.

`catalog.snapshot_building` calls this for loads and commits; the table's cache keeps the `ManifestSets` from one load to the next. Spark
executors of `publish` get some of the plans. No I/O.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from duckicelake.translate.visibility import FileKey, SnapshotStep, TableHistory
from duckicelake.values import tuple_maker

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, DELETES = 0, 1

MERGE_FAN = 16
ENTRIES_MAX = 4000


class EntryPlan(NamedTuple):
    """One manifest entry. `since` is the lake snapshot of its sequence number.

    A delete file is identified by its data file and `since`; a data file by its key alone.
    """

    status: int
    snapshot_id: int
    since: int
    key: FileKey


to_entry = tuple_maker(EntryPlan)
KEY_OF = attrgetter("key")


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """One manifest of data files (`content` DATA) or delete files, written by the snapshot `snapshot_id`.

    Content and number together identify a manifest of a table.
    """

    content: int
    number: int
    spec_id: int
    snapshot_id: int
    entries: tuple[EntryPlan, ...]

    def live(self) -> list[EntryPlan]:
        """Return the entries whose files are live."""
        return [entry for entry in self.entries if entry.status != DELETED]


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The manifests of one snapshot, data manifests first, and of each content the newest first, as Java's writers list them.

    `replaced_count`: how many manifests of its parent were rewritten. `is_root`: it has no parent and refers to no earlier file.
    """

    step: SnapshotStep
    manifests: tuple[ManifestPlan, ...]
    replaced_count: int = 0
    is_root: bool = False


@dataclass(slots=True)
class ManifestSet:
    """The manifests of one content, oldest first by number, and for each live file the number of its manifest."""

    content: int
    plans: dict[int, ManifestPlan] = field(default_factory=dict[int, ManifestPlan])
    where: dict[FileKey, int] = field(default_factory=dict[FileKey, int])
    next_number: int = 0

    def put(self, spec_id: int, snapshot_id: int, entries: tuple[EntryPlan, ...]) -> None:
        plan = ManifestPlan(self.content, self.next_number, spec_id, snapshot_id, entries)
        self.where |= dict.fromkeys(map(KEY_OF, plan.live()), plan.number)
        self.plans[plan.number] = plan
        self.next_number += 1

    def take(self, keys: Iterable[FileKey]) -> list[tuple[int, EntryPlan]]:
        """Remove the manifests that contain any of these files, and return their live entries with their spec ids."""
        numbers = sorted({self.where[key] for key in keys if key in self.where})
        plans = [self.plans.pop(number) for number in numbers]
        return [(plan.spec_id, entry._replace(status=EXISTING)) for plan in plans for entry in plan.live()]

    def take_size_class(self, spec_id: int, tier: int) -> list[EntryPlan]:
        """Remove all manifests of one size class if they are due to merge, and return their live entries."""
        numbers = [n for n, p in self.plans.items() if p.spec_id == spec_id and size_class(len(p.entries)) == tier]
        if len(numbers) < MERGE_FAN - 1:
            return []
        return [entry._replace(status=EXISTING) for number in numbers for entry in self.plans.pop(number).live()]

    def clear(self) -> None:
        self.plans.clear()
        self.where.clear()

    def drop_empty(self) -> None:
        for number in [n for n, p in self.plans.items() if all(e.status == DELETED for e in p.entries)]:
            del self.plans[number]


ManifestSets = tuple[ManifestSet, ManifestSet]
"""Data manifests and delete manifests after the last snapshot."""


def new_manifest_sets(history: TableHistory, spec_of: Callable[[FileKey], int]) -> ManifestSets:
    """Return manifest sets with the files from before the first snapshot, whose manifests that snapshot writes."""
    manifest_sets = (ManifestSet(DATA), ManifestSet(DELETES))
    for manifest_set in manifest_sets:
        if history.steps:
            _put_base(manifest_set, history.base, history.steps[0].snapshot_id, spec_of)
    return manifest_sets


def plan_manifests(steps: Iterable[SnapshotStep], manifest_sets: ManifestSets, spec_of: Callable[[FileKey], int]) -> Iterator[SnapshotPlan]:
    """Yield the manifests of each snapshot in order, and update the manifest sets.

    `spec_of` returns the spec id that a data file is published under.
    """
    for step in steps:
        replaced_count = 0
        is_root = step.is_root and _removes_all(step, manifest_sets)
        for manifest_set in manifest_sets:
            manifest_set.drop_empty()
            if is_root:
                manifest_set.clear()
            before = [number for number, plan in manifest_set.plans.items() if plan.snapshot_id != step.snapshot_id]
            _apply_step(manifest_set, step, spec_of)
            replaced_count += sum(number not in manifest_set.plans for number in before)
        plans = tuple(plan for manifest_set in manifest_sets for plan in reversed(manifest_set.plans.values()))
        yield SnapshotPlan(step, plans, replaced_count, is_root)


def _removes_all(step: SnapshotStep, manifest_sets: ManifestSets) -> bool:
    """Return True if the step removes every live file, so that a snapshot without a parent refers only to files that it added."""
    removed = {file.key for file in step.removed}
    return all(manifest_set.where.keys() <= removed for manifest_set in manifest_sets)


def _put_base(manifest_set: ManifestSet, base: SnapshotStep, snapshot_id: int, spec_of: Callable[[FileKey], int]) -> None:
    entries = [to_entry((EXISTING, since, since, key)) for _, _, since, key in _added(manifest_set.content, base)]
    for spec_id, own in sorted(_by_spec(entries, spec_of).items()):
        _put_all(manifest_set, spec_id, snapshot_id, own)


def _added(content: int, step: SnapshotStep) -> list[EntryPlan]:
    if content == DATA:
        begins = map(attrgetter("begin_snapshot"), step.added)
        return list(map(to_entry, zip(repeat(ADDED), repeat(step.snapshot_id), begins, map(KEY_OF, step.added), strict=False)))
    return [EntryPlan(ADDED, step.snapshot_id, step.snapshot_id, key) for key, has_any in step.deletes.items() if has_any]


def _apply_step(manifest_set: ManifestSet, step: SnapshotStep, spec_of: Callable[[FileKey], int]) -> None:
    removed_keys = {file.key for file in step.removed}
    if manifest_set.content == DELETES:
        removed_keys |= step.deletes.keys()
    touched = manifest_set.take(removed_keys)
    by_spec = _by_spec(_added(manifest_set.content, step), spec_of)
    for spec_id, entry in touched:
        own = by_spec.setdefault(spec_id, [])
        if entry.key in removed_keys:
            own.append(entry._replace(status=DELETED, snapshot_id=step.snapshot_id))
            manifest_set.where.pop(entry.key, None)
        else:
            own.append(entry)
    for spec_id, own in sorted(by_spec.items()):
        full = len(own) - len(own) % ENTRIES_MAX
        _put_all(manifest_set, spec_id, step.snapshot_id, [*own[:full], *_merge_size_classes(manifest_set, spec_id, own[full:])])


def _by_spec(entries: list[EntryPlan], spec_of: Callable[[FileKey], int]) -> dict[int, list[EntryPlan]]:
    specs = list(map(spec_of, map(KEY_OF, entries)))
    if len(set(specs)) == 1:
        return {specs[0]: entries}
    by_spec: dict[int, list[EntryPlan]] = {}
    for spec_id, entry in zip(specs, entries, strict=True):
        by_spec.setdefault(spec_id, []).append(entry)
    return by_spec


def _merge_size_classes(manifest_set: ManifestSet, spec_id: int, own: list[EntryPlan]) -> list[EntryPlan]:
    while 0 < len(own) < ENTRIES_MAX and (more := manifest_set.take_size_class(spec_id, size_class(len(own)))):
        own = [*more, *own]
    return own


def size_class(count: int) -> int:
    """Return 0 below MERGE_FAN entries, 1 below its square, and so on; -1 for a full manifest, which is never merged."""
    if count >= ENTRIES_MAX:
        return -1
    tier = 0
    while count >= MERGE_FAN:
        count //= MERGE_FAN
        tier += 1
    return tier


def _put_all(manifest_set: ManifestSet, spec_id: int, snapshot_id: int, entries: Sequence[EntryPlan]) -> None:
    for start in range(0, len(entries), ENTRIES_MAX):
        manifest_set.put(spec_id, snapshot_id, tuple(entries[start : start + ENTRIES_MAX]))
