"""The rows that each mode writes to the target's branch, checked before anything is created and counted afterwards, and their publication.

One commit publishes all tables of a run, or none. Rows that were appended are moved onto the current main when others committed
meanwhile: the same data files in new manifests, which the driver writes to the store. `ingest.job` calls this in the driver.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, CommitStateUnknown
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import ADDED, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import UNKNOWN, Rest, TableHead
from duckicelake.pipeline.common.spark_connect import SUMMARIZES_MERGES, checkpoint_rows
from duckicelake.pipeline.common.spark_sql import quote_ident
from duckicelake.pipeline.common.staging import Stage, Staged, check_count, format_identifier
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.pipeline.ingest import merging
from duckicelake.pipeline.ingest.options import IngestMode, IngestOptions
from duckicelake.pipeline.ingest.row_checks import CheckedRows, RowCount, RowRules, check_rows, count_by_file
from duckicelake.pipeline.ingest.source import Reading, check_order, compute_coverage

_MERGED = "spark.merge-into.num-target-rows-"


class RowsLeftOut(CatalogError):
    """Rows that were not checked before they were written are bad."""


@dataclass(frozen=True, slots=True)
class DraftBasis:
    """The state of the table that a draft is for: its columns that come from files, which of them are UUIDs, and for merges its snapshot.

    `reads_otherwise`: these are others by the names and defaults of now than by those of their snapshot.
    `is_planned`: something of the table has yet to be made, so what is there is looked at too, if it could be in the way.
    """

    columns: StructType
    uuids: Sequence[str]
    base: int | None
    reads_otherwise: bool = False
    is_planned: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class WriteDraft:
    """The rows that are going to be written, counted by file; `merged` are those of a merge, which changes `applied` rows of the table.

    `grown`: how many rows the table is going to have more by a merge, if that was counted.
    """

    basis: DraftBasis
    checked: CheckedRows
    counts: Mapping[str, RowCount]
    merged: DataFrame | None = None
    applied: int = 0
    grown: int | None = None

    @property
    def rows_in(self) -> int:
        return sum(count.rows for count in self.counts.values())

    @property
    def bad(self) -> int:
        return sum(count.bad for count in self.counts.values())

    @property
    def good(self) -> int:
        return self.rows_in - self.bad

    @property
    def superseded(self) -> int:
        """Return how many rows others of the same key stand for."""
        return 0 if self.merged is None else self.good - self.applied

    @property
    def counted(self) -> Mapping[str, int]:
        """The rows by their names in the report."""
        rows_out = self.good - self.superseded
        return {"rows_in": self.rows_in, "rows_out": rows_out, "rows_quarantined": self.bad, "rows_superseded": self.superseded}


def get_basis(options: IngestOptions, columns: StructType, head: TableHead | None) -> DraftBasis:
    """Return what a draft goes by, of a table that has these columns, or is going to have them."""
    if head is None:
        return DraftBasis(columns, (), None)
    return DraftBasis(columns, head.uuids, head.main, head.reads_otherwise) if options.key else DraftBasis(columns, head.uuids, None)


def draft_rows(stage: Stage, options: IngestOptions, reading: Reading, checked: CheckedRows, basis: DraftBasis) -> WriteDraft:
    """Return the rows that were checked, counted, with all that can be wrong with them; nothing is changed.

    Raises: BadRequest: they are not what they seem to be, or contradict each other or what the table has, or too many are bad
    """
    stage.progress("count rows")
    draft = WriteDraft(basis, checked, count_by_file(checked, reading))
    if options.max_quarantined is not None and draft.bad > options.max_quarantined:
        raise BadRequest(f"{draft.bad} rows are bad, more than --max-quarantined {options.max_quarantined}; nothing was taken")
    if options.mode is IngestMode.upsert:
        return _draft_latest(stage, options, draft)
    if options.mode is IngestMode.scd2:
        return _draft_versions(stage, options, draft)
    if options.mode is IngestMode.overwrite_partitions and basis.is_planned and stage.connect().load(options.table) is not None:
        _format_unpartitioned(stage, options)
    return draft


def check_values(options: IngestOptions, reading: Reading, incoming: StructType, basis: DraftBasis, *, looks_at_texts: bool) -> CheckedRows:
    """Return the rows as those of the table, not yet read, by what each of them has."""
    needed = options.key if options.mode is not IngestMode.scd2 else (*options.key, options.order_by or "")
    return check_rows(reading, incoming, basis.columns, RowRules(needed, basis.uuids, looks_at_texts))


def check_source(options: IngestOptions, reading: Reading, incoming: StructType, basis: DraftBasis, *, looks_at_texts: bool) -> CheckedRows:
    """Return the rows of the source as rows of the table, not yet read. Raises: BadRequest: there is nothing to order some of them by"""
    checked = check_values(options, reading, incoming, basis, looks_at_texts=looks_at_texts)
    if not options.key:
        return checked
    coverage = compute_coverage(basis.columns, reading.list_column_sets(incoming))
    check_order(coverage, options.order_by)
    return replace(checked, coverage=coverage)


def _draft_latest(stage: Stage, options: IngestOptions, draft: WriteDraft) -> WriteDraft:
    checked, base = draft.checked, draft.basis.base
    latest = merging.select_latest(checked.marked(), options.key, options.order_by, checked.coverage.marks)
    applied = grown = latest.count()
    if base is not None:
        held = _read_held(stage, options, draft.basis, base)
        if options.order_by is not None:
            applied -= merging.count_older(latest, held, options.key, options.order_by)
        is_asked = draft.basis.is_planned or not SUMMARIZES_MERGES
        grown = grown - merging.count_known(held, latest, options.key) if is_asked else None
    return replace(draft, merged=latest, applied=applied, grown=grown)


def _draft_versions(stage: Stage, options: IngestOptions, draft: WriteDraft) -> WriteDraft:
    checked, base = draft.checked, draft.basis.base
    history = merging.History(checked.target, options.key, options.order_by or "")
    if base is None:
        current = checked.good().where(F.lit(False))
    else:
        held = _read_held(stage, options, draft.basis, base).where(merging.CURRENT)
        current = merging.fill_columns(checkpoint_rows(held) if draft.basis.reads_otherwise else held, checked.target)
    inserted, ended = merging.build_versions(checked.marked(), current, history, checked.coverage)
    applied = inserted.count()
    return replace(draft, merged=merging.format_source(inserted, ended, options.key), applied=applied, grown=applied)


def write_target(stage: Stage, options: IngestOptions, opened: Staged, draft: WriteDraft) -> Staged:
    """Write the good rows; the branch after that.

    Raises: RowsLeftOut: some were bad, of those that were not looked at before
        BadRequest: what was written is not what was counted
    """
    table, checked = options.table, draft.checked
    if draft.merged is not None:
        return _write_merged(stage, options, opened, draft, draft.merged)
    if options.mode is IngestMode.overwrite_partitions:
        _replace_partitions(stage, options, checked.good())
    else:
        stage.append(table, checked.good())
    written = stage.look_after(opened)
    if checked.is_sifted and not checked.may_be_bad and written.added < draft.good:
        raise RowsLeftOut(f"{draft.good - written.added} rows have texts that are not in UTF-8")
    check_count(written, draft.good)
    return written


def _write_merged(stage: Stage, options: IngestOptions, opened: Staged, draft: WriteDraft, source: DataFrame) -> Staged:
    name, checked = stage.name(options.table), draft.checked
    if options.mode is IngestMode.upsert:
        keyed = merging.MergeTarget(name, options.key, options.order_by)
        statement, kinds = merging.format_merge(_name_view(stage), keyed, checked.target, checked.coverage), ("inserted", "updated")
    else:
        history = merging.History(checked.target, options.key, options.order_by or "")
        statement, kinds = merging.format_versions_merge(name, _name_view(stage), history), ("inserted",)
    _merge(stage, options, source, statement)
    written = stage.look_after(opened)
    check_moved(opened, written, draft.applied)
    check_merged(written, draft.applied, *kinds)
    if draft.grown is not None:
        check_growth(opened, written, draft.grown)
    return written


def _replace_partitions(stage: Stage, options: IngestOptions, rows: DataFrame) -> None:
    """Write rows in place of all those of the same partitions, wherever these lie."""
    elsewhere = _format_unpartitioned(stage, options)
    if elsewhere is None:
        stage.overwrite_partitions(options.table, rows)
        return
    # Iceberg's own overwrite leaves files of other specs, such as inlined rows, which lie in no partition.
    theirs, ours = elsewhere
    values = [F.expr(value).alias(f"p{place}") for place, value in enumerate(theirs)]
    source = rows.alias("r").select(*values).distinct()
    _merge(stage, options, source, merging.format_removal(stage.name(options.table), _name_view(stage), ours))
    stage.append(options.table, rows)


def _format_unpartitioned(stage: Stage, options: IngestOptions) -> tuple[list[str], list[str]] | None:
    """Return the values of partitions of the files' rows and of the table's, as SQL, if some of the table's lie in none such.

    Raises: BadRequest: Spark cannot find these rows by their values
    """
    name, head = quote_ident(stage.catalog, options.table), stage.load(options.table)
    data = stage.spark.table(f"{name}.manifests").where(f"content = 0 AND partition_spec_id != {head.spec_id}")
    if data.where("added_data_files_count + existing_data_files_count > 0").isEmpty():
        return None
    if head.has_uuid_partitions:
        # Spark has them as texts: other buckets, and capital letters make other values.
        raise BadRequest(
            f"{options.table} has rows that lie in no partition or in earlier ones, which Spark cannot tell by a UUID; delete them first"
        )
    theirs, ours = (merging.format_partitions(stage.catalog, head.partitions, alias) for alias in ("r", "t"))
    return theirs, ours


def _read_held(stage: Stage, options: IngestOptions, basis: DraftBasis, base: int) -> DataFrame:
    name = quote_ident(stage.catalog, options.table)
    if basis.reads_otherwise:
        # A snapshot is read under the columns that it had, and main under those of now. Who moves it meanwhile fails the commit.
        return stage.spark.table(name)
    # Spark 4.1 finds no plan for a view that reads the table it is merged into, unless a snapshot is named, or its rows are held.
    return stage.spark.read.option("versionAsOf", base).table(name)


def _merge(stage: Stage, options: IngestOptions, source: DataFrame, statement: str) -> None:
    view = _name_view(stage)
    source.createOrReplaceTempView(view)
    try:
        stage.run(options.table, statement)
    finally:
        stage.spark.catalog.dropTempView(view)


def _name_view(stage: Stage) -> str:
    return f"merged_{stage.branch}"


def check_moved(opened: Staged, written: Staged, expected: int) -> None:
    """Raises: BadRequest: a merge that was given rows wrote nothing at all."""
    if expected and written.head == opened.head:
        raise BadRequest(f"{written.ident}: {expected} rows were to be merged, and nothing was written; nothing was taken")


def check_merged(written: Staged, expected: int, *kinds: str) -> None:
    """Raises: BadRequest: a merge did not touch as many rows as it was given, where Spark says how many it touched."""
    told = [int(written.summary.get(_MERGED + kind, "-1")) for kind in kinds]
    if min(told) >= 0 and sum(told) != expected:
        raise BadRequest(
            f"{written.ident}: {sum(told)} rows for {expected} keys; does the table have several rows of one key? Nothing was taken"
        )


def check_growth(opened: Staged, written: Staged, expected: int) -> None:
    """Raises: BadRequest: a merge left more or less rows than were counted, where the snapshots say how many there were and are."""
    if written.head == opened.head:
        grown = 0
    elif opened.is_whole and opened.rows is not None and written.rows is not None:
        grown = written.rows - opened.rows
    else:
        # Not all releases say in the summary what became of deletes of rewritten files.
        return
    if grown != expected:
        raise BadRequest(f"{written.ident}: it was to have {expected} rows more, and would have {grown}; nothing was taken")


REBASES = 10
PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RunPublisher:
    """Publishes staged branches, the target's first; `has_landed` asks the ledger whether the run is in it.

    `appends` True: the target's rows may be added after commits of others.
    """

    connect: Callable[[], Rest]
    staged: Sequence[Staged]
    has_landed: Callable[[], bool]
    appends: bool
    progress: Progress

    def publish(self) -> bool:
        """Move main of every table to its branch; whether the target's rows followed others', in a snapshot of their own.

        Raises: CommitFailed: another writer moved one of them, and nothing was done;
            CommitStateUnknown: no answer within the time limit
        """
        first, *others = [one.format_change() for one in self.staged]
        for attempt in range(REBASES if self.appends else 1):
            self.progress("publish")
            try:
                commit_once(self.connect, [first, *others], self.has_landed, PATIENCE_SECONDS)
            except CommitFailed:
                first = self._follow()
            else:
                return attempt > 0
        raise CommitFailed(f"{self.staged[0].ident} is written to all the time")

    def _follow(self) -> dict[str, Any]:
        try:
            return self._rebase()
        except CatalogError as error:
            # The run may succeed when it starts again from the current main.
            raise CommitFailed(error.message) from error

    def _rebase(self) -> dict[str, Any]:
        rest, target = self.connect(), self.staged[0]
        moved = next((one.ident for one in self.staged[1:] if _read_main(rest, one) != one.base), None)
        if moved is not None or not self.appends:
            raise CommitFailed(f"others wrote to {moved or target.ident}")
        self.progress(f"follow {target.ident}")
        answer = rest.load_whole(target.ident)
        given = dict(answer.get("config") or {})
        for keys in answer.get("storage-credentials") or ():
            given |= keys["config"]
        location = answer["metadata"]["location"]
        return rebase(RebaseTarget(answer["metadata"], open_objects(location, rest.catalog, given)), target)


def _read_main(rest: Rest, staged: Staged) -> int | None:
    table = rest.load(staged.ident)
    return None if table is None else table.main


def commit_once(
    connect: Callable[[], Rest], changes: Sequence[dict[str, Any]], has_landed: Callable[[], bool], patience: float = PATIENCE_SECONDS
) -> None:
    """Send a commit until it is known what became of it.

    The patience begins with the first answer that is lost: an answer may be waited for longer than that.
    Raises: CommitFailed: it was refused and nothing was done; CommitStateUnknown: no answer within the time limit
    """
    until: float | None = None
    while True:
        try:
            connect().commit(changes)
        except CommitFailed:
            # An earlier request of ours may have done it, its answer lost.
            if has_landed():
                return
            raise
        except CatalogError as error:
            if until is None and not isinstance(error, CommitStateUnknown):
                raise
            # What is refused or cannot be reached now says nothing of the request before.
            until = monotonic() + patience if until is None else until
            if monotonic() >= until:
                # What is there is done; what is not may still be under way, so that it is not there is no refusal.
                if has_landed():
                    return
                told = error.message.removeprefix(UNKNOWN)
                raise CommitStateUnknown(f"{UNKNOWN}{told}") from error
            sleep(_PAUSE_SECONDS)
        else:
            return


_FIRST_WITH_ROW_IDS = 3
_FILES_PER_MANIFEST = 10_000
_NOT_CARRIED = ("total-", "ducklake.", "operation", "manifests-")


@dataclass(frozen=True, slots=True)
class RebaseTarget:
    """A table as REST shows it, and its store."""

    metadata: Mapping[str, Any]
    objects: StoredFiles

    def get_snapshot(self, ref: str) -> Mapping[str, Any]:
        """Return the snapshot that a ref names. Raises: CommitFailed: there is none."""
        snapshot_id = self.metadata.get("refs", {}).get(ref, {}).get("snapshot-id")
        found = next((one for one in self.metadata.get("snapshots", ()) if one["snapshot-id"] == snapshot_id), None)
        if found is None:
            raise CommitFailed(f"there is no {ref} any more")
        return found

    def read_list(self, snapshot: Mapping[str, Any]) -> list[ManifestFile]:
        """Return the manifests of a snapshot."""
        return decode_manifest_list(self.objects.read(snapshot["manifest-list"]), snapshot["manifest-list"])


def rebase(target: RebaseTarget, staged: Staged) -> dict[str, Any]:
    """Return the change that appends the staged files to main as it is now, and drops the branch. Manifests are written for it.

    Raises: CommitFailed: the table is another one, has other columns, or the branch is not what was staged
    """
    metadata = target.metadata
    if (metadata["table-uuid"], metadata["current-schema-id"]) != (staged.uuid, staged.schema_id):
        raise CommitFailed(f"the columns of {staged.ident} changed")
    main, branch = target.get_snapshot("main"), target.get_snapshot(staged.branch)
    added = _read_added(target, branch)
    if sum(file.record_count for _, files in added for file in files) != staged.added:
        raise CommitFailed(f"the branch {staged.branch} of {staged.ident} is not what was staged")
    snapshot = _write_snapshot(target, main, branch, added)
    return {
        "identifier": format_identifier(staged.ident),
        "requirements": [
            {"type": "assert-table-uuid", "uuid": staged.uuid},
            {"type": "assert-current-schema-id", "current-schema-id": staged.schema_id},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": main["snapshot-id"]},
            {"type": "assert-ref-snapshot-id", "ref": staged.branch, "snapshot-id": staged.head},
        ],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]},
            {"action": "remove-snapshot-ref", "ref-name": staged.branch},
        ],
    }


def _read_added(target: RebaseTarget, branch: Mapping[str, Any]) -> list[tuple[ManifestHeader, list[DataFile]]]:
    """Return the files that the staged snapshot added, by what their manifests share."""
    by_spec: dict[int, tuple[ManifestHeader, list[DataFile]]] = {}
    for listed in target.read_list(branch):
        if listed.added_snapshot_id != branch["snapshot-id"] or not listed.added_files_count:
            continue
        header, entries = decode_manifest(target.objects.read(listed.manifest_path), listed.manifest_path)
        _, files = by_spec.setdefault(header.spec.spec_id, (header, []))
        files += [entry.data_file for entry in entries if entry.status == ADDED]
    return list(by_spec.values())


def _write_snapshot(
    target: RebaseTarget, main: Mapping[str, Any], branch: Mapping[str, Any], added: list[tuple[ManifestHeader, list[DataFile]]]
) -> dict[str, Any]:
    metadata = target.metadata
    version, first_row_id = metadata["format-version"], metadata.get("next-row-id")
    snapshot_id, number = secrets.randbits(62), metadata["last-sequence-number"] + 1
    manifests: list[ManifestFile] = []
    for header, files in added:
        for start in range(0, len(files), _FILES_PER_MANIFEST):
            entries = [ManifestEntry(ADDED, snapshot_id, None, None, file) for file in files[start : start + _FILES_PER_MANIFEST]]
            content = encode_manifest(header, entries)
            path = _format_metadata_path(metadata, f"{secrets.token_hex(16)}-m{len(manifests)}.avro")
            target.objects.write(path, content)
            manifests.append(build_manifest_file(header, entries, WrittenManifest(path, len(content), snapshot_id, number)))
    rows = sum(manifest.added_rows_count for manifest in manifests)
    path = _format_metadata_path(metadata, f"snap-{snapshot_id}-{secrets.token_hex(16)}.avro")
    listed = ManifestListHeader(snapshot_id, main["snapshot-id"], number, version, first_row_id)
    target.objects.write(path, encode_manifest_list(listed, [*manifests, *target.read_list(main)]))
    summary = {name: text for name, text in branch["summary"].items() if not name.startswith(_NOT_CARRIED)}
    lineage = {"first-row-id": first_row_id, "added-rows": rows} if version >= _FIRST_WITH_ROW_IDS else {}
    return lineage | {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": main["snapshot-id"],
        "sequence-number": number,
        "timestamp-ms": int(datetime.now(UTC).timestamp() * 1000),
        "manifest-list": path,
        "summary": {"operation": "append", **summary},
        "schema-id": metadata["current-schema-id"],
    }


def _format_metadata_path(metadata: Mapping[str, Any], name: str) -> str:
    return f"{metadata['location'].rstrip('/')}/metadata/{name}"
