"""`duckicelake lake migrate`, `check`, and commands that attach a lake with DuckDB 1.5."""

from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from duckicelake.cli import build_cli
from duckicelake.commands.check import list_findings
from duckicelake.commands.prepare import migrate_lake
from duckicelake.config import Settings
from duckicelake.embedded.home import open_home
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake


def read_version(lake: FreshLake) -> str:
    """The lake's version of DuckLake."""
    row = lake.psycopg().execute("SELECT value FROM ducklake_metadata WHERE key = 'version'").fetchone()
    assert row is not None
    return row[0]


def run_migration(settings: Settings, *, is_dry_run: bool = False) -> tuple[bool, str]:
    """Run the command's function, and return its result with what it prints."""
    console = Console(record=True, width=400)
    [lake] = settings.lakes()
    is_well = migrate_lake(lake, console, is_dry_run=is_dry_run)
    return is_well, console.export_text()


def test_a_lake_is_migrated_once(lake: FreshLake, tmp_path: Path) -> None:
    """A dry run changes nothing; a second run says that it is done; `check` finds nothing wrong, and DuckDB 1.5 is told why it fails."""
    duck = lake.duckdb()
    duck.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    duck.execute("INSERT INTO t VALUES (1000)")
    duck.close()
    settings = make_settings(lake)
    is_well, text = run_migration(settings, is_dry_run=True)
    assert (is_well, read_version(lake)) == (True, "1.0")
    assert "nothing stands against the migration" in text
    assert "1 tables of inlined rows" in text
    is_well, text = run_migration(settings)
    assert (is_well, read_version(lake)) == (True, "1.1")
    assert "migrated to DuckLake 1.1" in text
    assert run_migration(settings) == (True, "lake lake: it has DuckLake 1.1 already; nothing was changed\n")
    home = open_home(tmp_path / "home")
    [served] = settings.lakes()
    assert [finding for finding in list_findings(served, home) if finding.severity == "error"] == []
    environment = {
        "DUCKICELAKE_POSTGRES_DSN": lake.dsn,
        "DUCKICELAKE_METADATA_SCHEMA": lake.metadata_schema,
        "DUCKICELAKE_S3_ENDPOINT": lake.store.endpoint,
        "DUCKICELAKE_HOME": str(tmp_path / "home"),
    }
    done = CliRunner().invoke(build_cli(), ["connect", "--client", "ducklake"], env=environment)
    assert done.stdout.startswith("-- The lake has DuckLake 1.1: attach it with DuckDB 2.0 or newer")
    done = CliRunner().invoke(build_cli(), ["duckdb", "SELECT 1"], env=environment)
    assert "which has DuckLake 1.1: use a DuckDB from 2.0 on" in str(done.exception)


def test_obstacles_are_listed(lake: FreshLake) -> None:
    """And nothing is changed; the command's status is 1 then."""
    lake.psycopg().execute("INSERT INTO ducklake_inlined_data_tables VALUES (99, 'ducklake_inlined_data_99_1', 1)")
    is_well, text = run_migration(make_settings(lake))
    assert (is_well, read_version(lake)) == (False, "1.0")
    assert "ducklake_inlined_data_99_1 is registered but does not exist" in text
