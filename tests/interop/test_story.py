"""The demo's story, as the notebook tells it, on a part of its data; and how it says that it cannot be told."""

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from time import perf_counter

import pytest
from rich.console import Console

from demo.story.chapters import keep_house, tell
from demo.story.house import House
from demo.story.telling import Teller
from duckicelake.commands.facts import format_facts
from duckicelake.embedded.home import open_home
from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.maintain.planning import MaintainReport, StepKind
from duckicelake.pipeline.maintain.planning import StepResult as Step
from tests.interop.test_demo import name_settings
from tests.rest.serving import make_settings
from tests.support.commands import Done, environment
from tests.support.readers import Served
from tests.support.shared_stack import ROOT
from tests.support.spark import Spark

NOTEBOOK = ROOT / "demo" / "story" / "story.ipynb"
SIZES = "FLIGHTS, SCALE = 336_776, 0.05"
WHOLE_SECONDS = 300
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


class Forgetful(House):
    """One in which the next MERGE takes back what people have corrected."""

    def run(self, statement: str) -> None:
        """Have Spark run a statement, and after MERGE of the later months DuckDB another one."""
        super().run(statement)
        if "month > 10" in statement:
            self.duck.execute("UPDATE silver.flights SET dep_delay = dep_delay + 5 WHERE origin = 'EWR' AND month(scheduled) = 7")


def make_house(kind: type[House], served: Served, spark: Spark, folder: Path, said: StringIO) -> House:
    """A house that tells its story to `said`."""
    catalog = served.rest_catalog()
    [lake] = make_settings(served.lake).lakes()
    tools = spark.session, served.lake.duckdb(), served.pyiceberg().catalog, Teller(Console(file=said, width=120))
    (folder / "raw").mkdir()
    return kind(format_facts(lake, catalog.uri), open_home(folder), folder / "raw", *tools, spark.add(catalog))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_story_holds(served: Served, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a part of its data: every reader agrees, a correction outlives the next files, gold comes at once, and the house is kept.

    It is not when there was nothing to put together, or when not all of it was done.
    """
    said = StringIO()
    house = make_house(House, served, spark, tmp_path, said)
    assert tell(house, 2000, 0.001), said.getvalue()
    check_told(said.getvalue())
    assert re.findall(r"^(\d) .*─$", said.getvalue(), re.MULTILINE) == [str(number) for number in range(1, 10)]
    assert not keep_house(house)
    compacted = Step("silver.flights", StepKind.compact, Verdict.done, removed=2, added=1)
    halves = MaintainReport(steps=(compacted, Step("gold.airlines", StepKind.flush, Verdict.failed, message="no")))
    monkeypatch.setattr(House, "maintain", lambda *_: halves)
    assert not keep_house(house)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_correction_that_is_lost_is_no_story_that_holds(served: Served, spark: Spark, tmp_path: Path) -> None:
    """Also when all readers agree that it is."""
    said = StringIO()
    assert not tell(make_house(Forgetful, served, spark, tmp_path, said), 2000, 0.001), said.getvalue()
    assert "Newark's July IS LOST" in said.getvalue()
    assert "DuckDB and Spark agree on every one" in said.getvalue()


def check_told(said: str) -> None:
    """What the story claims is what happened."""
    assert re.search(r"^ +silver\.flights +\d+ +\d+ *$", said, re.MULTILINE), said
    assert "1 line set aside" in said
    assert "2 files are new" in said
    assert "Newark's July stays as it was corrected" in said
    assert "DuckDB sees 0 rows in gold.airlines, 0 rows in gold.weather, 0 rows in gold.revenue" in said
    assert "after one commit it sees 1" in said
    assert "0 with 'Inc.'; the lake has" in said and "as before" in said
    assert "DuckDB finds 0 names with 'Inc.'" in said
    assert "DuckDB and Spark agree on every one" in said
    assert said.count("DuckDB says the same") == 2


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_notebook_tells_the_whole_story() -> None:
    """Cell after cell, on a server of its own."""
    code = "\n".join(read_cells("code"))
    assert SIZES in code
    done = run_python(CALM, "-c", code.replace(SIZES, "FLIGHTS, SCALE = 3000, 0.001"))
    assert done.status == 0, done.out + done.err
    check_told(done.out)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_whole_story_takes_less_than_five_minutes(tmp_path: Path) -> None:
    """From the command to its end, on all of its data and with a server of its own."""
    began = perf_counter()
    command = ["bash", str(ROOT / "scripts" / "demo")]
    done = subprocess.run(command, cwd=tmp_path, env=environment({}), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_told(done.stdout)
    assert perf_counter() - began < WHOLE_SECONDS


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_command_tells_it_on_a_server_that_runs(served: Served, tmp_path: Path) -> None:
    """Given a catalog's address."""
    done = run_python(name_settings(served.lake, tmp_path) | CALM, "-m", "demo.story", "--uri", served.server.uri, *LITTLE)
    assert done.status == 0, done.out + done.err
    check_told(done.out)
    assert "All readers agree" in done.out


@pytest.mark.whole
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
