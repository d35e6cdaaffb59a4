"""Scans of what others wrote: lists that miscount, deletes of other specs, and filters that are a lot of work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duckicelake.catalog.scanning.scans import ENTRIES_MIN, WORK_MAX, Scan, ScanLimits
from duckicelake.catalog.scanning.sources import ScanInput
from duckicelake.iceberg.manifest import DATA, EQUALITY_DELETES, DataFile
from duckicelake.iceberg.manifest_list import FieldSummary, ManifestFile
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.scan_filters import BoundExpression, bind, build_schema_columns, parse_expression
from duckicelake.iceberg.scan_tasks import WHOLE_SCAN, DeleteIndex, ScanFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType

SCHEMA = Schema(0, (NestedField(1, "k", PrimitiveType("int"), False),))
SPECS = (PartitionSpec(0), PartitionSpec(1, (PartitionField(1, 1000, "k", "identity"),)))


@dataclass
class Written:
    """Manifests that nobody has to read from anywhere; `opened` are those that were asked for."""

    entries: Mapping[str, tuple[PartitionSpec, Sequence[ScanFile]]]
    opened: list[str]

    def read_entries(self, listed: ManifestFile) -> tuple[PartitionSpec, Sequence[ScanFile]]:
        """What a manifest holds."""
        self.opened.append(listed.manifest_path)
        return self.entries[listed.manifest_path]


def file(name: str, content: int = DATA, key: int | None = None, number: int = 1) -> ScanFile:
    """A file of ten rows, of the partition `k` if there is one."""
    partition, spec_id = ((), 0) if key is None else ((key,), 1)
    made = DataFile(content=content, file_path=name, file_format="PARQUET", partition=partition, record_count=10, file_size_in_bytes=1)
    return ScanFile(made, spec_id, 1, number, True, key is None)


def scan(
    manifests: Sequence[Sequence[ScanFile]],
    counts: Sequence[int] = (),
    deletes: Sequence[ScanFile] = (),
    bound: BoundExpression = True,
    **more: Any,
) -> tuple[Scan, Written]:
    """A scan of manifests whose list says that they have so many entries."""
    entries = {f"m{place}": (SPECS[files[0].spec_id] if files else SPECS[0], files) for place, files in enumerate(manifests)}
    listed = [
        ManifestFile(
            name, 1, spec.spec_id, DATA, 1, 1, 1, count, 0, 0, 0, 0, 0, (FieldSummary(False, None, None, None),) * len(spec.fields)
        )
        for (name, (spec, _)), count in zip(entries.items(), counts or map(len, manifests), strict=True)
    ]
    written = Written(entries, [])
    metadata = cast("Any", SimpleNamespace(partition_specs=SPECS, schemas=(SCHEMA,), current_schema_id=0))
    return Scan(cast("Any", written), ScanInput("", listed, DeleteIndex(deletes)), metadata, bound, **more), written


def walk(made: Scan) -> list[bytes]:
    """The tasks of all parts."""
    found, waiting = list[bytes](), [WHOLE_SCAN]
    for _ in range(1000):
        if not waiting:
            return found
        part = made.plan(waiting.pop())
        found += part.tasks
        waiting += part.rest
    raise AssertionError("it has no end")


def test_lists_that_miscount_hide_no_file() -> None:
    """Whatever the size of a part: more files, fewer, or none where there are some, at each end."""
    files = [[file(f"{manifest}-{place}") for place in range(5)] for manifest in range(4)]
    for counts in ((5, 5, 5, 5), (1, 1, 1, 1), (0, 0, 0, 0), (0, 5, 0, 0), (5, 0, 0, 5), (50, 0, 2, 9), (-1, -1, -1, -1)):
        for tasks in (1, 2, 3, 7, 100):
            made, _ = scan(files, counts, limits=ScanLimits(tasks=tasks, entries=tasks, spans=2))
            found = walk(made)
            assert len(found) == len(set(found)) == 20, (counts, tasks)


def test_a_part_that_ends_with_its_manifest_has_nothing_left() -> None:
    """No empty part follows."""
    made, _ = scan([[file("a"), file("b")]], limits=ScanLimits(tasks=2, entries=2))
    part = made.plan(WHOLE_SCAN)
    assert (len(part.tasks), part.rest) == (2, [])


def test_equality_deletes_promise_no_rows() -> None:
    """Who wants five rows gets all files that they may be in."""
    files = [[file("a"), file("b"), file("c")]]
    assert len(walk(scan(files, min_rows=5)[0])) == 1
    assert len(walk(scan(files, deletes=[file("d", EQUALITY_DELETES, number=2)], min_rows=5)[0])) == 3


def test_deletes_are_told_with_the_partition_of_their_own_spec() -> None:
    """Those without one delete from files of every partition."""
    part = scan([[file("a", key=7)]], deletes=[file("d", EQUALITY_DELETES, number=2)])[0].plan(WHOLE_SCAN)
    assert len(part.tasks) == 1
    assert b'"partition":[7]' in part.tasks[0]
    assert [b'"partition":[]' in told for told in part.deletes] == [True]


@pytest.mark.whole
def test_a_large_filter_looks_at_fewer_files() -> None:
    """So an answer is about the same work; the parts are the whole all the same."""
    values = range(WORK_MAX // 50)
    ors: Any = {"type": "eq", "term": "k", "value": -1}
    for value in values:
        ors = {"type": "or", "left": ors, "right": {"type": "eq", "term": "k", "value": value}}
    bound = bind(parse_expression(ors), build_schema_columns(SCHEMA, True))
    made, _ = scan([[file(str(key), key=key) for key in range(3 * 50)]], bound=bound)
    first = made.plan(WHOLE_SCAN)
    assert ENTRIES_MIN <= len(first.tasks) <= 50
    assert first.rest
    assert len(walk(made)) == 150


def test_empty_manifests_are_not_opened_without_end() -> None:
    """They count as something."""
    made, written = scan([[] for _ in range(5000)], limits=ScanLimits(entries=1000, tasks=1000))
    made.plan(WHOLE_SCAN)
    assert len(written.opened) <= 100
    assert walk(made) == []
