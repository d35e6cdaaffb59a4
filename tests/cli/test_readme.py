"""The examples of README.md and docs/own-lake.md, run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import settings_for
from tests.rest.serving import make_settings, serve
from tests.support.commands import environment
from tests.support.lakes import FreshLake
from tests.support.shared_stack import ROOT

README = (ROOT / "README.md").read_text()
OWN_LAKE = (ROOT / "docs" / "own-lake.md").read_text()
OPEN_PYTHON = "-i <(scripts/duckicelake connect --client pyiceberg --show-secrets)"


def get_block(language: str) -> str:
    """Return the only block of code in that language."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return block


def run_shell(script: str, home: Path, settings: dict[str, str], typed: str = "") -> str:
    """Return what a new shell prints that runs a script in the checkout, and gets `typed` on its standard input."""
    named = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PIXI_PROJECT_ROOT": str(ROOT), "DUCKICELAKE_HOME": str(home)}
    command = ["bash", "-euc", script]
    environ = environment(settings) | named
    done = subprocess.run(command, cwd=ROOT, env=environ, input=typed, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.whole
def test_the_first_examples_run(lake: FreshLake, tmp_path: Path) -> None:
    """SQL in the shell, then Python that begins with what `connect` prints: DuckDB sees what PyIceberg appended."""
    assert f"`.venv/bin/python {OPEN_PYTHON}`" in README
    with serve(make_settings(lake)) as server:
        settings = settings_for(lake, port=str(server.port))
        assert "LH6" in run_shell(get_block("bash"), tmp_path / "home", settings)
        typed = f"{get_block('python')}print(table.name(), rows.num_rows)\n"
        assert "('main', 'flights') 880" in run_shell(f"{sys.executable} -q {OPEN_PYTHON}", tmp_path / "home", settings, typed)
        pivoted = run_shell(
            "scripts/duckicelake duckdb 'SELECT 1 AS a; PIVOT flights ON flight USING count(*)'", tmp_path / "home", settings
        )
        assert "LH0" in pivoted
        counted = run_shell("scripts/duckicelake duckdb 'SELECT count(*) AS n FROM flights'", tmp_path / "home", settings)
    assert "890" in counted


@pytest.mark.whole
def test_a_lake_is_made_on_servers_of_yours(lake: FreshLake, tmp_path: Path) -> None:
    """The lines of docs/own-lake.md make one in a schema without a DuckLake, once they name real servers."""
    (block,) = re.findall(r"((?:    export DUCKICELAKE_.*\n)+    scripts/duckicelake init) && scripts/serve\n", OWN_LAKE)
    own = lake.data_path.replace("/data/", "/own/")
    real = {
        "host=db dbname=lake user=lake": lake.dsn,
        "s3://bucket/": own,
        "http://minio:9000": lake.store.endpoint,
        "ACCESS_KEY_ID=…": f"ACCESS_KEY_ID={lake.store.access_key_id}",
        "SECRET_ACCESS_KEY=…": f"SECRET_ACCESS_KEY={lake.store.secret_access_key}",
    }
    for example, value in real.items():
        assert example in block
        block = block.replace(example, value)
    made = run_shell(block, tmp_path / "home", {})
    assert f"lake lake is ready: data in {own}data/, Iceberg files in {own}iceberg/" in made


def test_no_index_is_advised_that_does_not_have_the_package() -> None:
    """The package is on no index: nothing says `pip install duckicelake`."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "duckicelake").rglob("*.py")]
    assert [str(page) for page in pages if re.search(r"pip install [\"']?duckicelake\b", page.read_text())] == []
