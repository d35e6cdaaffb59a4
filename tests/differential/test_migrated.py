"""Generated histories of DuckLake 1.0, by DuckDB and PyIceberg, that read the same at every snapshot after a migration to DuckLake 1.1."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.exceptions import DuckLakeError
from hypothesis import given, seed

from duckicelake.lake.writing.migrate import migrate
from tests.differential.checks.arrow import Dialect, plain_rows
from tests.differential.checks.blur import blur_rows
from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.clients.writer import PyIcebergWriter
from tests.differential.generation import history_settings
from tests.differential.generator.histories import histories
from tests.differential.generator.literals import Rows
from tests.differential.generator.model import Table
from tests.differential.generator.steps import History
from tests.differential.prove import play
from tests.differential.replay import Past
from tests.differential.sessions import Sessions
from tests.fix_histories import Block
from tests.rest.serving import make_settings, serve
from tests.support.ducklake_1_1 import LOCAL, open_ducklakepy, read_at
from tests.support.lakes import make_lake
from tests.support.readers import Ident, PyIcebergReader, Served


@pytest.mark.whole
def test_histories_read_the_same_after_a_migration(block: Block, sessions: Sessions, tmp_path: Path) -> None:
    """PyIceberg reads what it read before at each of its snapshots, and ducklakepy reads that, too."""

    @seed(block.seed)
    @history_settings(block.count)
    @given(histories(clients=(PYICEBERG,)))
    def reads_the_same(history: History) -> None:
        with (
            TemporaryDirectory(dir=tmp_path) as folder,
            make_lake(sessions.stack, folder) as lake,
            serve(make_settings(lake, **LOCAL)) as server,
        ):
            (Path(folder) / "outside").mkdir()
            check_migration(Served(lake, server), history, sessions)

    reads_the_same()


def check_migration(served: Served, history: History, sessions: Sessions) -> None:
    """Play a history, migrate the lake, and compare the rows of every table at every snapshot that PyIceberg lists."""
    reader = served.pyiceberg()
    with sessions.on_lake(served.lake) as writer:
        past = Past(play(served, history, writer, {PYICEBERG: PyIcebergWriter(reader.catalog)}, reader), {})
    tables = past.head.tables.values()
    before = {table.ident: read_snapshots(reader, table.ident) for table in tables}
    migrate(served.lake.psycopg(), served.lake.metadata_schema)
    with open_ducklakepy(served.lake) as lake:
        for table in tables:
            after = read_snapshots(reader, table.ident)
            assert list(after) == list(before[table.ident]), table.ident
            for snapshot_id, rows in before[table.ident].items():
                where, then = f"{table.ident} at snapshot {snapshot_id}", past.table_at(table.table_id, snapshot_id)
                expected = plain_rows(then.columns, rows)
                assert plain_rows(then.columns, after[snapshot_id]) == expected, where
                theirs = find_rows(lake, then, snapshot_id)
                assert theirs is None or blur_rows(then.columns, theirs) == blur_rows(then.columns, expected), where


def find_rows(lake: DuckLakeCatalog, table: Table, snapshot_id: int) -> Rows | None:
    """The rows that ducklakepy reads at a snapshot; None if the table is inlined under names in capital letters, which it does not find.

    DuckDB makes the columns of inlined tables in small letters.
    """
    try:
        return plain_rows(table.columns, read_at(lake, table.ident, snapshot_id), Dialect.WIDENED)
    except DuckLakeError as error:
        if "was created with other columns" not in str(error) or all(column.name.islower() for column in table.columns):
            raise
        return None


def read_snapshots(reader: PyIcebergReader, ident: Ident) -> dict[int, pa.Table]:
    """The rows of a table at each snapshot, by the ids of the lake's snapshots."""
    snapshots = reader.catalog.load_table(ident).snapshots()
    ids = {int((item.summary or {})["ducklake.snapshot-id"] or 0): item.snapshot_id for item in snapshots}
    return {lake_id: reader.read(ident, snapshot_id) for lake_id, snapshot_id in ids.items()}
