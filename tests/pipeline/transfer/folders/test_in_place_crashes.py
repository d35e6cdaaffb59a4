"""A job that registers folders, killed (-9) anywhere and run again: tables are whole or not there, and no file is touched."""

import random
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.pipeline.ingest.doomed import run_module
from tests.pipeline.transfer.ferry import Ferry, describe, format_given, list_files

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261126
STEPS = ("list", "register ns.a", "publish ns.a", "compare ns.a", "register ns.b", "publish ns.b", "compare ns.b")
"""What a run tells of two tables."""
LONG_KILLS = 20
LONGEST_DELAY = 6.0
ROWS = 60


def write_folders(root: Path, form: str) -> dict[str, bytes]:
    """Two tables of two files; each file and what is in it."""
    for name in "ab":
        place = root / "ns" / name
        if form == "delta":
            write_deltalake(place, pa.table({"id": range(ROWS), "part": ["x", None] * (ROWS // 2)}), partition_by=["part"])
            continue
        for part in ("1", "__HIVE_DEFAULT_PARTITION__"):
            place.joinpath(f"part={part}").mkdir(parents=True)
            pq.write_table(pa.table({"id": range(ROWS // 2)}), place / f"part={part}" / "rows.parquet")
    return {path: Path(path).read_bytes() for path in list_files(root)}


def check_import(ferry: Ferry, home: Path, form: str, step: int, delay_seconds: float) -> None:
    """Kill, look, clear up, run again, clear up again."""
    files = write_folders(ferry.folder, form)
    doom = {"job": "import", "catalog": asdict(ferry.served.rest_catalog()), "home": str(home), "step": step}
    given = {"form": form, "mode": "register"}
    asked = format_given(**{"place": str(ferry.folder), "tables": (), **given})
    told = run_module("tests.pipeline.transfer.doomed", doom | {"given": asked, "delay_seconds": delay_seconds})
    assert len(told) > step, "it ended before"
    ferry.sweep()
    assert {path: Path(path).read_bytes() for path in list_files(ferry.folder)} == files
    for name in ferry.list_here("ns"):
        assert ferry.ask_duckdb(f"SELECT count(*), count(part) FROM lake.ns.{name}") == [(ROWS, ROWS // 2)]
    report = ferry.bring("import", str(ferry.folder), **given)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    assert [ferry.load_here("ns", name)["snapshots"][0]["summary"]["total-records"] for name in "ab"] == [str(ROWS)] * 2
    ferry.sweep()
    assert {path: Path(path).read_bytes() for path in list_files(ferry.folder)} == files
    left = list_files(Path(ferry.served.lake.iceberg_path))
    assert not [path for path in left if "staged.metadata.json" in path or path.endswith("/publishing")]
    assert ferry.served.lake.psycopg().execute("SELECT count(*) FROM iceberg_staged").fetchone() == (0,)
    for name in "ab":
        assert ferry.ask_duckdb(f"SELECT count(*), count(part) FROM lake.ns.{name}") == [(ROWS, ROWS // 2)]
        assert ferry.run(f"SELECT count(*) AS n, count(part) AS m FROM {{h}}.ns.{name}") == [{"n": ROWS, "m": ROWS // 2}]


@pytest.mark.parametrize("form", ["hive", "delta"])
def test_a_killed_registration_is_run_again(ferry: Ferry, tmp_path: Path, form: str) -> None:
    """At a step chosen by lot, when the first table is begun and the second one is not done."""
    step = random.Random(SEED + len(form)).randrange(STEPS.index("register ns.a"), STEPS.index("compare ns.b"))
    check_import(ferry, tmp_path, form, step, 0.0)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
@pytest.mark.parametrize("form", ["hive", "delta"])
def test_a_registration_may_be_killed_anywhere(ferry: Ferry, tmp_path: Path, form: str, number: int) -> None:
    """At each step, and some time after it."""
    delay = 0.0 if number < len(STEPS) else random.Random(SEED + number).uniform(0.0, LONGEST_DELAY)
    check_import(ferry, tmp_path, form, number % len(STEPS), delay)
