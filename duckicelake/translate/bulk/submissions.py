"""Submissions of manifests that Spark executors wrote, as JSON; values that follow from the manifest's plan are not submitted.

The publishing job formats them, the server parses them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import LONG_MAX, is_whole
from duckicelake.iceberg.manifest_list import FieldSummary, ManifestFile
from duckicelake.lake.rows import TableNote
from duckicelake.translate.bulk.manifests import BuiltManifest, to_sequence_number
from duckicelake.translate.locations import manifest_uri
from duckicelake.translate.manifests import ADDED, DELETED, EXISTING, ManifestPlan
from duckicelake.translate.summaries import FileTally
from duckicelake.translate.visibility import FileKey, Longs, TrackedFile

STATUSES = (EXISTING, ADDED, DELETED)
SUBMITTED_KEYS = ("length", "rows", "bytes", "next-row-id", "first-row-id", "partitions")


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """A manifest that an executor wrote: its entry for manifest lists, and counts of what it adds and removes."""

    described: ManifestFile
    tally: FileTally


def format_submission(built: BuiltManifest) -> dict[str, Any]:
    """Return the submission of a manifest: `rows` by status, `bytes` of the files that it adds and removes."""
    described, added, removed = built.described, built.tally.added(), built.tally.removed()
    return {
        "length": described.manifest_length,
        "rows": [described.existing_rows_count, described.added_rows_count, described.deleted_rows_count],
        "bytes": [added.files_size, removed.files_size],
        "next-row-id": added.next_row_id,
        "first-row-id": described.first_row_id,
        "partitions": [
            [item.contains_null, item.contains_nan, _to_hex(item.lower_bound), _to_hex(item.upper_bound)] for item in described.partitions
        ],
    }


def parse_submission(submitted: object, plan: ManifestPlan, note: TableNote, name: str) -> ParsedManifest:
    """Return the submitted manifest of a plan. Raises: BadRequest: the submission is malformed"""
    if not isinstance(submitted, dict):
        raise BadRequest(f"The submission of the manifest {name} is not a JSON object.")
    node = cast("Mapping[str, object]", submitted)
    length, next_row_id = _read_number(node.get("length"), name), _read_number(node.get("next-row-id"), name)
    first_row_id = None if node.get("first-row-id") is None else _read_number(node.get("first-row-id"), name)
    rows, sizes = _read_numbers(node.get("rows"), len(STATUSES), name), _read_numbers(node.get("bytes"), 2, name)
    counted = Counter(map(attrgetter("status", "since"), plan.entries))
    files = [sum(count for (entry_status, _), count in counted.items() if entry_status == status) for status in STATUSES]
    numbers = {to_sequence_number(note, since) for status, since in counted if status != DELETED}
    own = to_sequence_number(note, plan.snapshot_id)
    described = ManifestFile(
        manifest_path=manifest_uri(note.location, name),
        manifest_length=length,
        partition_spec_id=plan.spec_id,
        content=plan.content,
        sequence_number=own,
        min_sequence_number=min(numbers, default=own),
        added_snapshot_id=plan.snapshot_id,
        existing_files_count=files[EXISTING],
        added_files_count=files[ADDED],
        deleted_files_count=files[DELETED],
        existing_rows_count=rows[EXISTING],
        added_rows_count=rows[ADDED],
        deleted_rows_count=rows[DELETED],
        partitions=_parse_partitions(node.get("partitions"), name),
        first_row_id=first_row_id,
    )
    tally = FileTally()
    tally.count_data(ADDED, (files[ADDED], rows[ADDED], sizes[0]), next_row_id)
    tally.count_data(DELETED, (files[DELETED], rows[DELETED], sizes[1]))
    return ParsedManifest(described, tally)


def normalize_submission(submitted: object) -> str:
    """Return a valid submission as JSON, without unknown keys."""
    node = cast("Mapping[str, object]", submitted)
    return json.dumps({key: node.get(key) for key in SUBMITTED_KEYS}, separators=(",", ":"))


def _read_number(value: object, name: str) -> int:
    if not is_whole(value, LONG_MAX) or cast("int", value) < 0:
        raise BadRequest(f"The submission of the manifest {name} has {str(value)[:64]!r} in the place of a count.")
    return cast("int", value)


def _read_numbers(value: object, count: int, name: str) -> Sequence[int]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    if len(items) != count:
        raise BadRequest(f"The submission of the manifest {name} lacks a list of {count} counts.")
    return [_read_number(item, name) for item in items]


def _parse_partitions(value: object, name: str) -> tuple[FieldSummary, ...]:
    try:
        summaries = [tuple(item) for item in cast("list[list[Any]]", value)]
        if not all(isinstance(null, bool) and isinstance(nan, bool | None) for null, nan, _, _ in summaries):
            raise ValueError("no flags")
        return tuple(FieldSummary(null, nan, _from_hex(lower), _from_hex(upper)) for null, nan, lower, upper in summaries)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"The submission of the manifest {name} has malformed partitions.") from error


def _to_hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The row counts of files; the keys ascend."""

    keys: Longs
    counts: Longs

    def sum(self, keys: Iterable[FileKey]) -> int:
        """Return the total row count of these files. Raises: IndexError: one of them is unknown"""
        wanted = np.fromiter(keys, dtype=np.int64)
        indexes = np.searchsorted(self.keys, wanted)
        if not np.array_equal(self.keys[indexes], wanted):
            raise IndexError("a file that is not the table's")
        return int(self.counts[indexes].sum())


def count_rows(files: Iterable[TrackedFile]) -> RowCounts:
    """Return the row counts of those of these files that have a data file in DuckLake."""
    real = [file for file in files if file.key >= 0]
    keys = np.fromiter(map(attrgetter("key"), real), dtype=np.int64, count=len(real))
    counts = np.fromiter(map(attrgetter("record_count"), real), dtype=np.int64, count=len(real))
    order = np.argsort(keys, kind="stable")
    return RowCounts(keys[order], counts[order])
