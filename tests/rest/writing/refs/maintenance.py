"""DuckDB's maintenance at its hardest: whatever may go, goes at once."""

from duckdb import DuckDBPyConnection
from pyiceberg.table import Table

EVERYTHING = (
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
    "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
)


def expire_everything(session: DuckDBPyConnection) -> None:
    """Flush, merge and rewrite, expire all but the newest lake snapshot, and remove every file that has become useless."""
    for statement in EVERYTHING:
        session.execute(statement)


def ids_at(table: Table, ref: str | None = None) -> list[int]:
    """The column `id` at a branch or tag, or at main, sorted."""
    found = table.snapshot_by_name(ref) if ref is not None else None
    assert ref is None or found is not None
    return sorted(table.scan(snapshot_id=None if found is None else found.snapshot_id).to_arrow()["id"].to_pylist())
