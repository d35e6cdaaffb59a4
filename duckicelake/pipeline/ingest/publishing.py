"""The commit that publishes a run: all its tables at once, or none.

Rows that were appended are moved onto the current main when others committed meanwhile: the same data files in new manifests.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import Any

from duckicelake.errors import CatalogError, CommitFailed, CommitStateUnknown
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import ADDED, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import UNKNOWN, Rest
from duckicelake.pipeline.common.staging import Staged, format_identifier
from duckicelake.pipeline.common.storage import StoredFiles, open_objects

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
