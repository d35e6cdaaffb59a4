"""Manifests encoded as Avro bytes from their plans, with their entries for manifest lists. No I/O.

`catalog.manifests` builds every published manifest with it; Spark executors (`pipeline.publish.executor`) build large ones and
`manifest_import` verifies these. Better name: `translate/bulk/manifest_builder.py`; `is_shaped` → `has_expected_fields`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from duckicelake.iceberg.avro.writer import count_rows
from duckicelake.iceberg.manifest import AnyEntry, AnyFile, EncodedEntry, EncodedFile, ManifestEntry, ManifestHeader, build_manifest_encoder
from duckicelake.iceberg.manifest_list import ManifestFile, WrittenManifest, build_manifest_file
from duckicelake.lake.rows import TableNote
from duckicelake.translate.locations import format_manifest_name, manifest_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan
from duckicelake.translate.partitions import Partitioning, to_spec
from duckicelake.translate.schemas import V3, Schemas
from duckicelake.translate.summaries import FileTally
from duckicelake.translate.visibility import FileKey

Encoder = tuple[ManifestHeader, Callable[[Iterable[AnyEntry]], bytes]]
"""A header, and the encoder of the manifests that have it."""


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
        header, encode = self._encoder(plan)
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
        header, _ = self._encoder(plan)
        has_row_id = described.first_row_id is not None
        return len(described.partitions) == len(header.spec.fields) and has_row_id == (self.schemas.format_version >= V3)

    def count_entries(self, plan: ManifestPlan, content: bytes) -> int:
        """Return the number of entries of a manifest, or -1 unless it is complete and has the header that the plan requires."""
        _, encode = self._encoder(plan)
        return count_rows(content, encode(()))

    def _encoder(self, plan: ManifestPlan) -> Encoder:
        schema = self.schemas.at(plan.snapshot_id)
        key = (schema.schema_id, plan.spec_id, plan.content)
        if key not in self.encoders:
            spec = next(spec for spec in self.partitioning.specs if spec.spec_id == plan.spec_id)
            header = ManifestHeader(schema, to_spec(spec, schema), self.schemas.format_version, plan.content)
            self.encoders[key] = header, build_manifest_encoder(header)
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
