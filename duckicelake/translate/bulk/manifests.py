"""Plans of manifests as bytes, and what a list says of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from duckicelake.iceberg.avro.writer import count_rows
from duckicelake.iceberg.manifest import AnyEntry, AnyFile, EncodedEntry, EncodedFile, ManifestEntry, ManifestHeader, build_manifest_encoder
from duckicelake.iceberg.manifest_list import ManifestFile, WrittenManifest, build_manifest_file
from duckicelake.lake.rows import TableNote
from duckicelake.translate.locations import format_digest, manifest_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan
from duckicelake.translate.partitions import Partitioning, to_spec
from duckicelake.translate.schemas import V3, Schemas
from duckicelake.translate.summaries import FileTally
from duckicelake.translate.visibility import FileKey

Encoder = tuple[ManifestHeader, Callable[[Iterable[AnyEntry]], bytes]]
"""A header, and what encodes the manifests that have it."""


class BuiltManifest(NamedTuple):
    """A manifest: where it goes, its bytes, what a list says of it, and what it adds and removes."""

    uri: str
    content: bytes
    described: ManifestFile
    tally: FileTally


@dataclass(slots=True)
class ManifestBuilder:
    """Makes the manifests of one table. `note` says which sequence numbers its lake snapshots have, and where it lies.

    `told_numbers` are the sequence numbers of files that are older than their rows.
    """

    schemas: Schemas
    partitioning: Partitioning
    note: TableNote
    told_numbers: Mapping[FileKey, int] = field(default_factory=dict[FileKey, int])
    encoders: dict[tuple[int, int, int], Encoder] = field(default_factory=dict[tuple[int, int, int], Encoder])

    def make(self, plan: ManifestPlan, files: Sequence[AnyFile]) -> BuiltManifest:
        """Return the manifest of a plan; `files` are those of its entries, one each."""
        header, encode = self._encoder(plan)
        entries = [self._to_entry(entry, plan, file) for entry, file in zip(plan.entries, files, strict=True)]
        tally = FileTally()
        for entry in entries:
            if entry.status != EXISTING:
                tally.count(entry.status, entry.data_file)
        content = encode(entries)
        uri = manifest_uri(self.note.location, format_digest(content))
        written = WrittenManifest(uri, len(content), plan.snapshot_id, to_sequence_number(self.note, plan.snapshot_id))
        described = build_manifest_file(header, entries, written)
        if self.schemas.format_version >= V3 and plan.content == DATA:
            first = min((entry.data_file.first_row_id or 0 for entry in entries), default=0)
            described = replace(described, first_row_id=first)
        return BuiltManifest(uri, content, described, tally)

    def is_shaped(self, plan: ManifestPlan, described: ManifestFile) -> bool:
        """Tell whether what is said of a manifest of data files has as many partition fields as its spec, and a row id where there are."""
        header, _ = self._encoder(plan)
        has_row_id = described.first_row_id is not None
        return len(described.partitions) == len(header.spec.fields) and has_row_id == (self.schemas.format_version >= V3)

    def count_entries(self, plan: ManifestPlan, content: bytes) -> int:
        """Return how many entries a manifest has, if it has the header that a manifest of this plan has, and is whole; else -1."""
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
        # what the snapshot itself adds inherits its sequence number
        is_inherited = entry.status == ADDED and entry.since == plan.snapshot_id
        number = None if is_inherited else to_sequence_number(self.note, entry.since)
        if isinstance(file, EncodedFile):
            return EncodedEntry(entry.status, entry.snapshot_id, number, number, file)
        # a registered file is as old as its rows are; Iceberg 1.11 takes the file's number for that of its rows
        number = self.told_numbers.get(entry.key, number) if plan.content == DATA else number
        return ManifestEntry(entry.status, entry.snapshot_id, number, number, file)


def to_sequence_number(note: TableNote, lake_snapshot_id: int) -> int:
    """Return the sequence number of a lake snapshot; version 1 knows none."""
    if note.format_version == 1:
        return 0
    is_based = note.numbered_until is None or lake_snapshot_id <= note.numbered_until
    return lake_snapshot_id - note.sequence_base if is_based else lake_snapshot_id
