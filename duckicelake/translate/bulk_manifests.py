"""Manifests as bytes: built from their plans, and the JSON by which executors of Spark make large ones. No I/O.

`catalog.manifests` builds the manifests of loads and commits with `ManifestBuilder`. For large tables `catalog.manifest_import` sends a
recipe for the table and a plan for each manifest; `pipeline.publish` builds these on executors and submits what does not follow from the
plan; the server parses the submissions. `unproven` is the spec of files whose partition values are not proven.

The digest of a plan covers everything that decides the manifest's bytes except the rows of its files, which never change.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.writer import count_rows
from duckicelake.iceberg.json_reader import LONG_MAX, is_whole
from duckicelake.iceberg.manifest import (
    AnyEntry,
    AnyFile,
    EncodedEntry,
    EncodedFile,
    ManifestEntry,
    ManifestHeader,
    build_manifest_encoder,
    widen_bounds,
)
from duckicelake.iceberg.manifest_list import FieldSummary, ManifestFile, WrittenManifest, build_manifest_file
from duckicelake.iceberg.schema import format_schema, parse_schema
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.rows import TableNote
from duckicelake.translate.locations import format_manifest_name, manifest_uri
from duckicelake.translate.manifests import ADDED, DATA, DELETED, EXISTING, KEY_OF, EntryPlan, ManifestPlan, to_entry
from duckicelake.translate.partitions import Partitioning, PartitionKey, PublishedSpec, to_spec
from duckicelake.translate.schemas import V3, Schemas
from duckicelake.translate.summaries import FileTally
from duckicelake.translate.visibility import FileKey, Longs, TrackedFile

Encoder = tuple[ManifestHeader, Callable[[Iterable[AnyEntry]], bytes], Mapping[int, PrimitiveType]]
"""A header, the encoder of the manifests that have it, and the types of columns that files before a promotion have narrower bounds of."""


class BuiltManifest(NamedTuple):
    """A manifest: its URI, its bytes, its entry for manifest lists, and counts of what it adds and removes."""

    uri: str
    content: bytes
    described: ManifestFile
    tally: FileTally


@dataclass(slots=True)
class ManifestBuilder:
    """Builds the manifests of one table. `note` gives the sequence numbers of its lake snapshots, and its location.

    `registered_numbers` are the sequence numbers of registered data files, which are older than their rows in the lake.
    """

    schemas: Schemas
    partitioning: Partitioning
    note: TableNote
    registered_numbers: Mapping[FileKey, int] = field(default_factory=dict[FileKey, int])
    encoders: dict[tuple[int, int, int], Encoder] = field(default_factory=dict[tuple[int, int, int], Encoder])

    def make(self, plan: ManifestPlan, files: Sequence[AnyFile]) -> BuiltManifest:
        """Return the manifest of a plan; `files` are the files of its entries, in the same order."""
        header, encode, widened = self._encoder(plan)
        if widened:
            files = [widen_bounds(file, self.schemas.format_version, widened) for file in files]
        entries = [self._to_entry(entry, plan, file) for entry, file in zip(plan.entries, files, strict=True)]
        tally = FileTally()
        for entry in entries:
            if entry.status != EXISTING:
                tally.count(entry.status, entry.data_file)
        content = encode(entries)
        uri = manifest_uri(self.note.location, format_manifest_name(content))
        written = WrittenManifest(uri, len(content), plan.snapshot_id, to_sequence_number(self.note, plan.snapshot_id))
        described = build_manifest_file(header, entries, written)
        if self.schemas.format_version >= V3 and plan.content == DATA:
            first = min((entry.data_file.first_row_id or 0 for entry in entries), default=0)
            described = replace(described, first_row_id=first)
        return BuiltManifest(uri, content, described, tally)

    def is_shaped(self, plan: ManifestPlan, described: ManifestFile) -> bool:
        """Return True if the description of a data manifest has a summary for each partition field, and a first row id exactly in v3."""
        header, _, _ = self._encoder(plan)
        has_row_id = described.first_row_id is not None
        return len(described.partitions) == len(header.spec.fields) and has_row_id == (self.schemas.format_version >= V3)

    def count_entries(self, plan: ManifestPlan, content: bytes) -> int:
        """Return the number of entries of a manifest, or -1 unless it is complete and has the header that the plan requires."""
        _, encode, _ = self._encoder(plan)
        return count_rows(content, encode(()))

    def _encoder(self, plan: ManifestPlan) -> Encoder:
        schema = self.schemas.at(plan.snapshot_id)
        key = (schema.schema_id, plan.spec_id, plan.content)
        if key not in self.encoders:
            spec = next(spec for spec in self.partitioning.specs if spec.spec_id == plan.spec_id)
            header = ManifestHeader(schema, to_spec(spec, schema), self.schemas.format_version, plan.content)
            self.encoders[key] = header, build_manifest_encoder(header), self.schemas.list_widened(plan.snapshot_id)
        return self.encoders[key]

    def _to_entry(self, entry: EntryPlan, plan: ManifestPlan, file: AnyFile) -> AnyEntry:
        # A file that the manifest's own snapshot adds inherits the sequence number.
        is_inherited = entry.status == ADDED and entry.since == plan.snapshot_id
        number = None if is_inherited else to_sequence_number(self.note, entry.since)
        if isinstance(file, EncodedFile):
            return EncodedEntry(entry.status, entry.snapshot_id, number, number, file)
        # A registered file keeps its number, because Iceberg 1.11 uses the file's number for its rows.
        number = self.registered_numbers.get(entry.key, number) if plan.content == DATA else number
        return ManifestEntry(entry.status, entry.snapshot_id, number, number, file)


def to_sequence_number(note: TableNote, lake_snapshot_id: int) -> int:
    """Return the sequence number of a lake snapshot; always 0 in format version 1."""
    if note.format_version == 1:
        return 0
    is_based = note.numbered_until is None or lake_snapshot_id <= note.numbered_until
    return lake_snapshot_id - note.sequence_base if is_based else lake_snapshot_id


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


def count_file_rows(files: Iterable[TrackedFile]) -> RowCounts:
    """Return the row counts of those of these files that have a data file in DuckLake."""
    real = [file for file in files if file.key >= 0]
    keys = np.fromiter(map(attrgetter("key"), real), dtype=np.int64, count=len(real))
    counts = np.fromiter(map(attrgetter("record_count"), real), dtype=np.int64, count=len(real))
    order = np.argsort(keys, kind="stable")
    return RowCounts(keys[order], counts[order])
