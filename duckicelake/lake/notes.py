"""Rows of a table in our `iceberg_*` tables: metadata versions and their log; schema, spec and sort order ids; locations; refs; manifests.

`catalog` calls this in transactions of loads, commits and the clean-up; `assign_and_commit_version` ends the transaction with COMMIT.
`duckicelake check --repair` calls `delete_versions` and `write_repair`, and the Spark job `maintain` only `write_repair`. An id or version
that was assigned is never assigned again.

`iceberg_manifest` has the manifests that Spark executors wrote and the server imported, by the digest of the plan they were made from:
`catalog.publish` writes them in a transaction of their own, with the audit line, a load reads them in its transaction, and `check --repair`
deletes them.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import psycopg

from duckicelake.errors import LakeBusy, LakeMoved
from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.connect import Lake, writing
from duckicelake.lake.note_rows import KeptSnapshotNote, MoveNote, RefNote, RefNotes, RegisteredNote
from duckicelake.lake.read import QueryResults, fetch_queries, fetch_rows
from duckicelake.lake.rows import JsonNote, MetadataLogRow, Position, ShapeNote, TableNote, TableNotes

METADATA_LOG_MAX = 100
"""Iceberg's default of `write.metadata.previous-versions-max`."""

SELECT_TABLE_NOTE = """
SELECT table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id, token, updated_ms,
       last_column_id, last_partition_id, is_native, current_snapshot_id, numbered_until
  FROM iceberg_table
 WHERE table_id = %(table_id)s
"""

SELECT_SCHEMA_NOTES = """
SELECT schema_id AS id, json, is_removed FROM iceberg_schema WHERE table_id = %(table_id)s ORDER BY schema_id
"""

SELECT_SPEC_NOTES = """
SELECT spec_id AS id, json, is_removed FROM iceberg_spec WHERE table_id = %(table_id)s ORDER BY spec_id
"""

SELECT_SORT_ORDER_NOTES = """
SELECT order_id AS id, json FROM iceberg_sort_order WHERE table_id = %(table_id)s ORDER BY order_id
"""

SELECT_METADATA_LOG = """
SELECT g.metadata_version, g.updated_ms,
       (SELECT l.location FROM iceberg_location l
         -- The first location that was left after this version was made.
         WHERE l.table_id = g.table_id AND l.metadata_version >= g.metadata_version
         ORDER BY l.metadata_version LIMIT 1) AS earlier_location
  FROM iceberg_metadata_log g
 WHERE g.table_id = %(table_id)s
 ORDER BY g.metadata_version DESC
 LIMIT %(most)s
"""


SELECT_SHAPES = """
SELECT lake_snapshot_id, schema_id, spec_id, order_id FROM iceberg_shape WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id
"""

SELECT_STATISTICS = """
SELECT kind, json FROM iceberg_statistics WHERE table_id = %(table_id)s ORDER BY snapshot_id, kind
"""


SELECT_REFS = """
SELECT name, snapshot_id, type, max_ref_age_ms, max_snapshot_age_ms, min_snapshots_to_keep
  FROM iceberg_ref WHERE table_id = %(table_id)s ORDER BY name
"""

SELECT_KEPT = """
SELECT snapshot_id, base_snapshot_id, json, manifest_list IS NOT NULL AS is_off_main
  FROM iceberg_kept WHERE table_id = %(table_id)s ORDER BY snapshot_id
"""

SELECT_MOVES = """
SELECT lake_snapshot_id, snapshot_id FROM iceberg_move WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id
"""

SELECT_ROOTS = """
SELECT lake_snapshot_id FROM iceberg_root WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id
"""

SELECT_HIDDEN = """
SELECT snapshot_id FROM iceberg_hidden WHERE table_id = %(table_id)s
"""


SELECT_REGISTERED = """
SELECT lake_snapshot_id, snapshot_id, is_shown, snapshot_log, metadata_log FROM iceberg_registered WHERE table_id = %(table_id)s
"""

REF_QUERIES = (SELECT_REFS, SELECT_KEPT, SELECT_MOVES, SELECT_ROOTS, SELECT_HIDDEN, SELECT_REGISTERED)


def read_ref_notes(conn: psycopg.Connection, table_id: int) -> RefNotes:
    """Return the notes about a table's refs and its registration."""
    return to_ref_notes(fetch_queries(conn, REF_QUERIES, table_id=table_id))


def to_ref_notes(results: QueryResults) -> RefNotes:
    """Return the notes about a table's refs from the results of `REF_QUERIES`; most tables have none."""
    return RefNotes(
        refs=tuple(results.rows(RefNote, SELECT_REFS)),
        kept=tuple(results.rows(KeptSnapshotNote, SELECT_KEPT)),
        moves=tuple(results.rows(MoveNote, SELECT_MOVES)),
        hidden=frozenset(results.column(SELECT_HIDDEN)),
        roots=tuple(results.column(SELECT_ROOTS)),
        registered=next(iter(results.rows(RegisteredNote, SELECT_REGISTERED)), None),
    )


SELECT_KEPT_LIST = """
SELECT manifest_list FROM iceberg_kept WHERE table_id = %(table_id)s AND snapshot_id = %(snapshot_id)s
"""


def read_kept_list(conn: psycopg.Connection, table_id: int, snapshot_id: int) -> bytes:
    """Return the manifest list of a snapshot off main."""
    row = conn.execute(SELECT_KEPT_LIST, {"table_id": table_id, "snapshot_id": snapshot_id}).fetchone()
    return row[0] if row and row[0] else b""


SELECT_HISTORY_ID = """
SELECT greatest((SELECT coalesce(max(id), 0) FROM iceberg_change WHERE table_id IS NULL),
       -- The newest change that may have altered the published history.
                (SELECT coalesce(max(id), 0) FROM iceberg_change WHERE table_id = %(table_id)s AND kind = 'hide'))
"""


UPDATE_KEPT = """
UPDATE iceberg_kept k SET json = n.json
  FROM unnest(%(snapshot_ids)s::bigint[], %(earlier)s::text[], %(jsons)s::text[]) AS n(snapshot_id, earlier, json)
 -- A row that another server has updated since stays.
 WHERE k.table_id = %(table_id)s AND k.snapshot_id = n.snapshot_id AND k.json = n.earlier
"""


def update_kept_snapshots(conn: psycopg.Connection, table_id: int, updates: Sequence[tuple[int, str, str]]) -> None:
    """Replace the JSON of retained snapshots; each update is (snapshot id, JSON as it was read, new JSON)."""
    snapshot_ids, earlier, jsons = ([row[column] for row in updates] for column in range(3))
    conn.execute(UPDATE_KEPT, {"table_id": table_id, "snapshot_ids": snapshot_ids, "earlier": earlier, "jsons": jsons})


NOTE_QUERIES = (
    SELECT_TABLE_NOTE,
    SELECT_SCHEMA_NOTES,
    SELECT_SPEC_NOTES,
    SELECT_SORT_ORDER_NOTES,
    SELECT_METADATA_LOG,
    SELECT_SHAPES,
    SELECT_STATISTICS,
    *REF_QUERIES,
)


def read_notes(conn: psycopg.Connection, table_id: int) -> TableNotes:
    """Return the notes about a table; the metadata log with the oldest version first, the current one last."""
    return to_notes(fetch_queries(conn, NOTE_QUERIES, table_id=table_id, most=METADATA_LOG_MAX + 1))


def to_notes(results: QueryResults) -> TableNotes:
    """Return the notes about a table from the results of `NOTE_QUERIES`."""
    notes = results.rows(TableNote, SELECT_TABLE_NOTE)
    return TableNotes(
        table=notes[0] if notes else None,
        schemas=results.rows(JsonNote, SELECT_SCHEMA_NOTES),
        specs=results.rows(JsonNote, SELECT_SPEC_NOTES),
        sort_orders=results.rows(JsonNote, SELECT_SORT_ORDER_NOTES),
        metadata_log=results.rows(MetadataLogRow, SELECT_METADATA_LOG)[::-1],
        shapes=tuple(results.rows(ShapeNote, SELECT_SHAPES)),
        refs=to_ref_notes(results),
        statistics=tuple((row["kind"], row["json"]) for row in results.rows_by_query[SELECT_STATISTICS]),
    )


@dataclass(frozen=True, slots=True)
class VersionRequest:
    """A table state that needs a metadata version: its content token, and the ids that are new compared with the notes it read."""

    position: Position
    token: str
    note: TableNote
    schemas: Sequence[JsonNote]
    specs: Sequence[JsonNote]
    sort_orders: Sequence[JsonNote]


INSERT_TABLE_NOTE = """
INSERT INTO iceberg_table (table_id, location, format_version, sequence_base, metadata_version,
                           lake_snapshot_id, change_id, token, updated_ms)
VALUES (%(table_id)s, %(location)s, %(format_version)s, %(sequence_base)s, 0, -1, -1, '', 0)
ON CONFLICT (table_id) DO NOTHING
"""

LOCK_TABLE_NOTE = """
SELECT table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id, token, updated_ms,
       last_column_id, last_partition_id, is_native, current_snapshot_id, numbered_until
  FROM iceberg_table
 WHERE table_id = %(table_id)s
   FOR UPDATE
"""

UPDATE_TABLE_NOTE = """
UPDATE iceberg_table
   SET metadata_version = %(metadata_version)s, lake_snapshot_id = %(lake_snapshot_id)s, change_id = %(change_id)s,
       token = %(token)s, updated_ms = %(updated_ms)s, format_version = %(format_version)s,
       current_snapshot_id = %(current_snapshot_id)s, numbered_until = %(numbered_until)s
 WHERE table_id = %(table_id)s
"""

INSERT_METADATA_LOG = """
INSERT INTO iceberg_metadata_log (table_id, metadata_version, updated_ms)
VALUES (%(table_id)s, %(metadata_version)s, %(updated_ms)s)
"""

INSERT_SCHEMA_NOTE = """
INSERT INTO iceberg_schema (table_id, schema_id, json) VALUES (%(table_id)s, %(id)s, %(json)s)
"""

INSERT_SPEC_NOTE = """
INSERT INTO iceberg_spec (table_id, spec_id, json) VALUES (%(table_id)s, %(id)s, %(json)s)
"""


INSERT_SORT_ORDER_NOTE = """
INSERT INTO iceberg_sort_order (table_id, order_id, json) VALUES (%(table_id)s, %(id)s, %(json)s)
"""


ASSIGN_NEXT_VERSION = """
next AS (
    UPDATE iceberg_table
       SET metadata_version = %(metadata_version)s, lake_snapshot_id = %(lake_snapshot_id)s, change_id = %(change_id)s,
           token = %(token)s, updated_ms = %(updated_ms)s, format_version = %(format_version)s,
           current_snapshot_id = %(current_snapshot_id)s, numbered_until = %(numbered_until)s
     -- Only if no version was assigned since the notes were read. SKIP LOCKED: a commit does not wait for another server's assignment.
     WHERE table_id = (SELECT table_id FROM iceberg_table WHERE table_id = %(table_id)s FOR UPDATE SKIP LOCKED)
       AND metadata_version = %(metadata_version)s - 1 AND location = %(location)s
       AND format_version = %(noted_format_version)s AND numbered_until IS NOT DISTINCT FROM %(noted_until)s
 RETURNING table_id, metadata_version, updated_ms
)
INSERT INTO iceberg_metadata_log (table_id, metadata_version, updated_ms) SELECT * FROM next
"""
"""The end of a statement that begins with WITH: it inserts one row, or none if the table's notes are not as they were read."""

INSERT_NEXT_VERSION = "WITH " + ASSIGN_NEXT_VERSION


@dataclass(frozen=True, slots=True)
class NextVersion:
    """The parameters of `ASSIGN_NEXT_VERSION`, and the table's notes after it."""

    parameters: Mapping[str, object]
    notes: TableNotes


def find_next_version(wanted: VersionRequest, noted: TableNotes, now_ms: int) -> NextVersion | None:
    """Return the next metadata version of a state; None if the state needs new ids too, or is older than the notes."""
    last = noted.table
    if last is None or wanted.schemas or wanted.specs or wanted.sort_orders or last.location != wanted.note.location:
        return None
    if Position(last.lake_snapshot_id, last.change_id) > wanted.position or not noted.metadata_log:
        return None
    if last.format_version > wanted.note.format_version or last.numbered_until not in (None, wanted.note.numbered_until):
        return None
    expected = {"location": last.location, "noted_format_version": last.format_version, "noted_until": last.numbered_until}
    entry = MetadataLogRow(last.metadata_version + 1, max(now_ms, last.updated_ms))
    log = [*noted.metadata_log[-METADATA_LOG_MAX:], entry]
    notes = replace(noted, table=_with_version(last, wanted, entry), metadata_log=log)
    return NextVersion(_describe_version(wanted, last, now_ms) | expected, notes)


LOCK_NUMBERING = """
SELECT metadata_version FROM iceberg_metadata_log WHERE table_id = %(table_id)s ORDER BY metadata_version LIMIT 1 FOR UPDATE
"""

# Blocks all who assign versions, but not commits that change the note: those hold the lake's lock.
HOLD_VERSION = """
SELECT table_id FROM iceberg_table WHERE table_id = %(table_id)s FOR KEY SHARE
"""


def lock_numbering(conn: psycopg.Connection, table_id: int) -> None:
    """Block other assignments of metadata versions to the table until the transaction ends, so that no load overtakes its reads.

    Raises: LakeBusy: another server holds the lock for too long
    """
    with _mapped_lock_timeout():
        # Take this lock first: two transactions that both hold FOR KEY SHARE would deadlock when they update the row.
        is_numbered = conn.execute(LOCK_NUMBERING, {"table_id": table_id}).fetchone() is not None
        conn.execute(HOLD_VERSION if is_numbered else LOCK_TABLE_NOTE, {"table_id": table_id})


@contextmanager
def _mapped_lock_timeout() -> Generator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise LakeBusy("Another server takes long to number the table; try again.") from error


def assign_next_version(conn: psycopg.Connection, wanted: VersionRequest, noted: TableNotes, now_ms: int) -> TableNotes | None:
    """Give a state the next metadata version if it needs no new ids and no version was assigned since its notes were read.

    Returns the table's notes after that, or None if it could not; then nothing was changed.
    """
    version = find_next_version(wanted, noted, now_ms)
    if version is None or conn.execute(INSERT_NEXT_VERSION, version.parameters).rowcount != 1:
        return None
    return version.notes


def assign_and_commit_version(conn: psycopg.Connection, wanted: VersionRequest, noted: TableNotes, now_ms: int) -> TableNotes:
    """Give a state a metadata version and commit, so that the metadata file is written under a number that is final.

    Raises: LakeBusy: another server holds the lock for too long. LakeMoved: as `assign_version`
    """
    with _mapped_lock_timeout():
        notes = assign_next_version(conn, wanted, noted, now_ms) or assign_version(conn, wanted, now_ms)
    conn.commit()
    return notes


def _with_version(last: TableNote, wanted: VersionRequest, entry: MetadataLogRow) -> TableNote:
    """Return a table's note as it is after `_describe_version` was written to it."""
    return replace(
        last,
        metadata_version=entry.metadata_version,
        lake_snapshot_id=wanted.position.lake_snapshot_id,
        change_id=wanted.position.change_id,
        token=wanted.token,
        updated_ms=entry.updated_ms,
        format_version=wanted.note.format_version,
        current_snapshot_id=wanted.note.current_snapshot_id,
        numbered_until=wanted.note.numbered_until,
    )


def assign_version(conn: psycopg.Connection, wanted: VersionRequest, now_ms: int) -> TableNotes:
    """Give a state its metadata version and ids, or return the ones it already has.

    A state that is older than the last numbered one gets no version, so that a higher version is never an older state.
    Raises: LakeMoved: another server numbered a newer state meanwhile, or assigned the same ids; read again
    """
    table_id = wanted.note.table_id
    conn.execute(
        INSERT_TABLE_NOTE,
        {
            "table_id": table_id,
            "location": wanted.note.location,
            "format_version": wanted.note.format_version,
            "sequence_base": wanted.note.sequence_base,
        },
    )
    last = fetch_rows(conn, TableNote, LOCK_TABLE_NOTE, table_id=table_id)[0]
    last_position = Position(last.lake_snapshot_id, last.change_id)
    if last.location != wanted.note.location or (last_position > wanted.position and last.token != wanted.token):
        raise LakeMoved("Another server published a newer state of the table meanwhile; try again.")
    if last.token != wanted.token:
        if last.format_version > wanted.note.format_version:
            raise LakeMoved("Another server raised the table's format version meanwhile; try again.")
        if last.numbered_until not in (None, wanted.note.numbered_until):
            raise LakeMoved("Another server renumbered the table's snapshots meanwhile; try again.")
        _append_version(conn, wanted, last, now_ms)
    return read_notes(conn, table_id)


DELETE_VERSIONS = """
DELETE FROM iceberg_metadata_log g
 USING iceberg_table n
 WHERE n.location = %(location)s AND g.table_id = n.table_id
   AND g.metadata_version = ANY(%(versions)s) AND g.metadata_version < n.metadata_version
"""


def delete_versions(conn: psycopg.Connection, location: str, versions: Sequence[int]) -> None:
    """Delete metadata versions from the log of the table at a location; the newest one stays, and no number is assigned again."""
    conn.execute(DELETE_VERSIONS, {"location": location, "versions": list(versions)})


def _list_new(wanted: Sequence[JsonNote], noted: Sequence[JsonNote]) -> list[JsonNote]:
    known_notes = {note.id: note.json for note in noted}
    for note in wanted:
        is_taken = note.json in known_notes.values() if note.id not in known_notes else note.json != known_notes[note.id]
        if is_taken:
            raise LakeMoved("Another server assigned ids to the table meanwhile; try again.")
    return [note for note in wanted if note.id not in known_notes]


def _append_version(conn: psycopg.Connection, wanted: VersionRequest, last: TableNote, now_ms: int) -> None:
    version = _describe_version(wanted, last, now_ms)
    noted = read_notes(conn, last.table_id)
    conn.execute(UPDATE_TABLE_NOTE, version)
    conn.execute(INSERT_METADATA_LOG, {key: version[key] for key in ("table_id", "metadata_version", "updated_ms")})
    for note in _list_new(wanted.schemas, noted.schemas):
        conn.execute(INSERT_SCHEMA_NOTE, {"table_id": last.table_id, "id": note.id, "json": note.json})
    for note in _list_new(wanted.specs, noted.specs):
        conn.execute(INSERT_SPEC_NOTE, {"table_id": last.table_id, "id": note.id, "json": note.json})
    for note in _list_new(wanted.sort_orders, noted.sort_orders):
        conn.execute(INSERT_SORT_ORDER_NOTE, {"table_id": last.table_id, "id": note.id, "json": note.json})


def _describe_version(wanted: VersionRequest, last: TableNote, now_ms: int) -> dict[str, object]:
    return {
        "table_id": last.table_id,
        "metadata_version": last.metadata_version + 1,
        "lake_snapshot_id": wanted.position.lake_snapshot_id,
        "change_id": wanted.position.change_id,
        "token": wanted.token,
        "updated_ms": max(now_ms, last.updated_ms),
        "format_version": wanted.note.format_version,
        "current_snapshot_id": wanted.note.current_snapshot_id,
        "numbered_until": wanted.note.numbered_until,
    }


LOCK_CHANGES = """
LOCK TABLE iceberg_change IN EXCLUSIVE MODE
"""

INSERT_REPAIR = """
INSERT INTO iceberg_change (kind) VALUES ('repair')
"""


def write_repair(conn: psycopg.Connection) -> None:
    """Make every server drop its caches: its next load of a table reads all rows and checks the objects in the store."""
    with conn.transaction():
        conn.execute(LOCK_CHANGES)
        conn.execute(INSERT_REPAIR)


@dataclass(frozen=True, slots=True)
class ImportedManifestRow:
    """`iceberg_manifest`: `digest` identifies the inputs of the manifest, `name` its bytes; `json` is its entry for manifest lists."""

    digest: str
    name: str
    json: str


SELECT_IMPORTED = """
SELECT digest, name, json FROM iceberg_manifest WHERE table_id = %(table_id)s
"""


def read_imported_manifests(conn: psycopg.Connection, table_id: int) -> list[ImportedManifestRow]:
    """Return the imported manifests of a table, in no order."""
    return fetch_rows(conn, ImportedManifestRow, SELECT_IMPORTED, table_id=table_id)


DELETE_UNUSED = """
DELETE FROM iceberg_manifest m
 WHERE m.table_id = %(table_id)s AND m.digest <> ALL(%(digests)s::text[])
    OR NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = m.table_id AND t.end_snapshot IS NULL)
"""

UPSERT_IMPORTED = """
INSERT INTO iceberg_manifest (table_id, digest, name, json)
VALUES (%(table_id)s, %(digest)s, %(name)s, %(json)s)
ON CONFLICT (table_id, digest) DO UPDATE SET name = excluded.name, json = excluded.json
"""


def write_imported_manifests(lake: Lake, table_id: int, rows: Sequence[ImportedManifestRow], needed: Sequence[str]) -> None:
    """Write the rows of imported manifests; delete the table's rows that are not in `needed`, and the rows of dropped tables."""
    with writing(lake) as conn:
        conn.execute(DELETE_UNUSED, {"table_id": table_id, "digests": list(needed)})
        with conn.cursor() as cursor:
            cursor.executemany(UPSERT_IMPORTED, [{"table_id": table_id, **asdict(row)} for row in rows])
        if lake.audit_context is not None:
            write_line(conn, lake.audit_context, None)
    if lake.audit_context is not None:
        log_line(AuditLine(lake.audit_context, DONE))


DELETE_IMPORTED = """
DELETE FROM iceberg_manifest
"""


def delete_imported_manifests(conn: psycopg.Connection) -> None:
    """Delete all rows of imported manifests: an operator may have corrected the rows that they were made from."""
    conn.execute(DELETE_IMPORTED)
