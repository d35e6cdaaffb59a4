"""The demo on a part of its data: what it prints and how it ends."""

import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from demo.compare import find_difference
from demo.server import start_server
from tests.rest.serving import WAREHOUSE
from tests.support.commands import Done, environment
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.shared_stack import ROOT

ROWS = ("--rows", "1000")


def run_demo(settings: dict[str, str], *arguments: str) -> Done:
    """Run it to its end."""
    command = [sys.executable, "-m", "demo", *ROWS, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(settings), capture_output=True, text=True, timeout=300, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def name_settings(lake: FreshLake, home: Path) -> dict[str, str]:
    """The settings of a lake, for a process of its own."""
    store = lake.store
    named = {
        "HOME": str(home),
        "WAREHOUSE": WAREHOUSE,
        "POSTGRES_DSN": lake.dsn,
        "METADATA_SCHEMA": lake.metadata_schema,
        "S3_ENDPOINT": store.endpoint,
        "S3_REGION": store.region,
        "S3_ACCESS_KEY_ID": store.access_key_id,
        "S3_SECRET_ACCESS_KEY": store.secret_access_key,
    }
    return {f"DUCKICELAKE_{name}": text for name, text in named.items()}


@pytest.mark.whole
def test_it_runs_on_a_server_of_its_own() -> None:
    """Nothing given, nothing left out but Spark: all agree."""
    done = run_demo({}, "--no-spark")
    assert done.status == 0, done.out + done.err
    assert re.search(r"All \d+ comparisons agree", done.out)
    assert "✗" not in done.out


@pytest.mark.long
def test_a_port_that_a_program_took_meanwhile_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's server starts on another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first: list[int] = [taken.getsockname()[1]]

        def choose(free: list[int]) -> int:
            return first.pop() if first else free[-1]

        monkeypatch.setattr(secrets, "choice", choose)
        with start_server() as (facts, _):
            assert not first
            assert not facts.catalog_uri.endswith(f":{taken.getsockname()[1]}")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_agrees_on_a_server_that_runs(served: Served, tmp_path: Path) -> None:
    """Given a catalog's address, it loads that lake, and does not touch what is there at the second time."""
    settings = name_settings(served.lake, tmp_path)
    done = run_demo(settings, "--uri", served.server.uri)
    assert done.status == 0, done.out + done.err
    assert "Spark" in done.out
    again = run_demo(settings, "--uri", served.server.uri, "--no-spark")
    assert again.status == 2
    assert "exists" in again.err


@pytest.mark.long
def test_a_difference_is_shown_and_fails(served: Served, other_lake: FreshLake, tmp_path: Path) -> None:
    """A catalog in front of another lake does not have the tables: every line says so, and the status is 1."""
    done = run_demo(name_settings(other_lake, tmp_path), "--uri", served.server.uri, "--no-spark")
    assert done.status == 1, done.out + done.err
    assert "NoSuchTableError" in done.out
    assert re.search(r"42 of 42 comparisons differ", done.out)


@pytest.mark.whole
def test_a_catalog_that_does_not_answer_is_named(lake: FreshLake, tmp_path: Path) -> None:
    """Nothing is loaded then."""
    done = run_demo(name_settings(lake, tmp_path), "--uri", "http://127.0.0.1:1")
    assert done.status == 2
    assert "http://127.0.0.1:1" in done.err
    assert len(done.err.splitlines()) == 1


def test_rows_are_compared_with_their_number() -> None:
    """A row that comes twice is another answer than a row that comes once; the order is none."""
    truth = pa.table({"i": [1, 2, 2, None]})
    with duckdb.connect() as judge:
        assert find_difference(judge, truth, pa.table({"i": [None, 2, 1, 2]})) is None
        assert find_difference(judge, truth, pa.table({"i": [1, 1, 2, None]})) == "1 of 4 rows missing, 1 too many"
        assert find_difference(judge, truth, pa.table({"j": [1, 2, 2, None]})) == "columns j instead of i"
