"""The demo's story, as the notebook tells it, on a part of its data; and how it says that it cannot be told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.test_demo import name_settings
from tests.support.commands import Done, environment
from tests.support.readers import Served
from tests.support.shared_stack import ROOT

NOTEBOOK = ROOT / "demo" / "story" / "story.ipynb"
SIZES = "FLIGHTS, SCALE = 336_776, 0.05"
LITTLE = ("--rows", "3000", "--scale", "0.001")
CALM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}


def run_python(settings: dict[str, str], *arguments: str) -> Done:
    """Run Python to its end."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(settings), capture_output=True, text=True, timeout=500, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def read_cells(kind: str) -> list[str]:
    """The notebook's cells of a kind."""
    return ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_notebook_tells_the_whole_story() -> None:
    """Cell after cell on a server of its own: every reader agrees, a correction outlives the next files, gold comes at once."""
    code = "\n".join(read_cells("code"))
    assert SIZES in code
    done = run_python(CALM, "-c", code.replace(SIZES, "FLIGHTS, SCALE = 3000, 0.001"))
    assert done.status == 0, done.out + done.err
    assert "1 line set aside" in done.out
    assert "2 files are new" in done.out
    assert "Newark's July stays as it was corrected" in done.out
    assert "DuckDB sees 0 rows in gold.airlines, 0 rows in gold.weather" in done.out
    assert "after one commit it sees 1" in done.out
    assert "DuckDB and Spark agree on every one" in done.out
    assert done.out.count("DuckDB says the same") == 2


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_command_tells_it_on_a_server_that_runs(served: Served, tmp_path: Path) -> None:
    """Given a catalog's address, in eight chapters."""
    done = run_python(name_settings(served.lake, tmp_path) | CALM, "-m", "demo.story", "--uri", served.server.uri, *LITTLE)
    assert done.status == 0, done.out + done.err
    assert [line.split()[0] for line in done.out.splitlines() if line.rstrip().endswith("─")] == [str(number) for number in range(1, 9)]
    assert "All readers agree" in done.out


def test_a_namespace_that_is_there_is_left_alone(served: Served, tmp_path: Path) -> None:
    """Before Spark is started: status 2, one line."""
    served.lake.duckdb().execute("CREATE SCHEMA Silver")
    done = run_python(name_settings(served.lake, tmp_path), "-m", "demo.story", "--uri", served.server.uri)
    assert (done.status, "the namespace silver exists" in done.err, len(done.err.splitlines())) == (2, True, 1), done.err


def test_the_notebook_has_no_outputs() -> None:
    """What it says is said when it is run."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert read_cells("markdown")[0].startswith("# ")
