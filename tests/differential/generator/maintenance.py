"""What DuckDB can do to a lake's files and old snapshots without changing any row."""

from dataclasses import dataclass

from tests.differential.generator.kinds import Scalar
from tests.differential.generator.literals import format_literal
from tests.differential.generator.model import Lake


@dataclass(frozen=True, slots=True)
class FlushInlined:
    """Inlined rows and deletes of the whole lake become files."""

    def sql(self, lake: Lake) -> str:
        return "CALL ducklake_flush_inlined_data('lake')"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class MergeAdjacent:
    """Small files of the whole lake become bigger ones; the sources vanish from history."""

    def sql(self, lake: Lake) -> str:
        return "CALL ducklake_merge_adjacent_files('lake')"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Files of one table with any delete are written again without the deleted rows."""

    table_id: int

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        names = f"{_text(table.name)}, schema => {_text(table.namespace)}"
        return f"CALL ducklake_rewrite_data_files('lake', {names}, delete_threshold => 0)"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """All lake snapshots but the newest are forgotten."""

    def sql(self, lake: Lake) -> str:
        return "CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMPTZ + INTERVAL 1 DAY)"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """CHECKPOINT: flush, expire, merge, rewrite, clean up."""

    def sql(self, lake: Lake) -> str:
        return "CHECKPOINT"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class ForgetEverything:
    """CHECKPOINT with every age set to 0: nothing but the newest snapshot and its files is left."""

    def sql(self, lake: Lake) -> str:
        ages = (f"CALL lake.set_option('{name}', '0 seconds')" for name in ("expire_older_than", "delete_older_than"))
        return "; ".join((*ages, "CHECKPOINT"))

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Files that no snapshot needs, and files that the lake does not know, are deleted at once."""

    def sql(self, lake: Lake) -> str:
        calls = ("ducklake_cleanup_old_files", "ducklake_delete_orphaned_files")
        return "; ".join(f"CALL {name}('lake', cleanup_all => true)" for name in calls)

    def apply(self, lake: Lake) -> Lake:
        return lake


def _text(value: str) -> str:
    return format_literal(Scalar("varchar"), value)
