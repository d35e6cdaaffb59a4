"""The lake's tables exported to Hadoop warehouses: on a disk for Spark's own catalog, on S3 and in again."""

import json
from pathlib import Path
from typing import Any

import pytest

from duckicelake.pipeline.common.reports import Interrupted
from duckicelake.pipeline.transfer import job
from tests.pipeline.transfer.ferry import Ferry, check_compared, check_signed, describe, write_properties
from tests.support.shared_stack import SharedStack
from tests.support.sts import assume

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


def fill(ferry: Ferry) -> None:
    """Rows in files and inlined ones, some deleted again."""
    duck = ferry.served.lake.duckdb()
    duck.execute("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT i AS id, 'n' || i AS name FROM range(100) r(i)")
    duck.execute("DELETE FROM s.t WHERE id < 10")
    duck.execute("INSERT INTO s.t VALUES (1000, NULL)")
    duck.execute("CREATE TABLE s.seen (clock TIME)")
    duck.close()


@pytest.mark.long
def test_sparks_own_catalog_reads_an_export_and_goes_on(ferry: Ferry) -> None:
    """A Hadoop table like any other; one that Spark cannot read is told, and a copy that went on is left alone."""
    fill(ferry)
    report = ferry.bring("export", str(ferry.folder))
    assert [(subject, verdict) for subject, verdict, _ in describe(report)] == [("s.seen", "failed"), ("s.t", "done")]
    assert "which Spark does not read" in report.moved[0].message
    assert ferry.run("SELECT count(*) AS n, max(id) AS m FROM {t}.s.t") == [{"n": 91, "m": 1000}]
    assert sorted(path.name for path in ferry.metadata_folder("s", "t").glob("v*")) == ["v1.metadata.json", "version-hint.text"]
    assert describe(ferry.bring("export", str(ferry.folder), "s.t")) == [("s.t", "already-there", 91)]
    ferry.run("DELETE FROM {t}.s.t WHERE id = 1000", "ALTER TABLE {t}.s.t ADD COLUMN more int")
    assert ferry.run("SELECT count(*) AS n FROM {t}.s.t") == [{"n": 90}]
    again = ferry.bring("export", str(ferry.folder), "s.t")
    assert [(one.verdict, one.message) for one in again.moved] == [("already-there", "written to since, so not compared")]


def test_what_is_exported_comes_in_again(ferry: Ferry, tmp_path: Path) -> None:
    """Registered under another name, where it lies."""
    fill(ferry)
    planned = ferry.bring("export", str(ferry.folder), "S.T", "s.Seen", "s.gone", dry_run=True)
    assert describe(planned) == [("s.seen", "failed", None), ("s.t", "planned", 91), ("s.gone", "failed", None)]
    assert "which Spark does not read" in planned.moved[0].message
    exported = ferry.bring("export", str(ferry.folder), "S.t")
    assert describe(exported) == [("s.t", "done", 91)], exported.describe()
    check_signed(exported, json.loads((ferry.metadata_folder("s", "t") / "v1.metadata.json").read_text()))
    report = ferry.take(mode="register", into="again")
    assert describe(report) == [("again.s.t", "done", 91)], report.describe()
    assert check_compared(report, "snapshots", "rows", "checksums") == check_compared(exported, "rows", "checksums")
    assert ferry.ask_duckdb('SELECT count(*) FROM lake."again␟s".t') == [(91,)]


@pytest.mark.long
def test_a_warehouse_on_s3(ferry: Ferry, stack: SharedStack, tmp_path: Path) -> None:
    """Out and in again, with keys of another store than the lake's, lent for a time."""
    fill(ferry)
    store = stack.store
    lent = assume(store, {"RoleArn": store.role_arn, "RoleSessionName": "export", "DurationSeconds": "900"})
    keys = {"s3.endpoint": store.endpoint, "client.region": store.region, "s3.access-key-id": lent["AccessKeyId"]}
    keys |= {"s3.secret-access-key": lent["SecretAccessKey"], "s3.session-token": lent["SessionToken"]}
    given = write_properties(tmp_path, keys)
    place = f"s3://{store.bucket}/{ferry.served.lake.name}/warehouse"
    assert describe(ferry.bring("export", place, "s.t", **given)) == [("s.t", "done", 91)]
    assert describe(ferry.bring("export", place, "s.t", **given)) == [("s.t", "already-there", 91)]
    report = ferry.bring("import", place, mode="copy", into="back", **given)
    assert describe(report) == [("back.s.t", "done", 91)], report.describe()


@pytest.mark.long
def test_a_copy_that_was_not_compared_is_told_as_there(ferry: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether somebody stopped the run before that, or it failed in the midst."""
    ferry.served.lake.duckdb().execute("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT range AS id FROM range(10)")

    def stop(step: str) -> None:
        if step.startswith("compare"):
            raise Interrupted(f"stopped by Ctrl-C before: {step}")

    [moved] = ferry.bring("export", str(ferry.folder), tell=stop).moved
    assert (moved.verdict, moved.message) == ("done", "not compared: stopped by Ctrl-C before: compare s.t")
    assert (moved.rows, moved.checked, moved.source_checksum) == (None, (), "")
    assert ferry.run("SELECT count(*) AS n FROM {t}.s.t") == [{"n": 10}]

    def lose(*_: Any) -> Any:
        raise OSError("lost")

    monkeypatch.setattr(job, "compare_rows", lose)
    [failed] = ferry.bring("export", str(ferry.folder)).moved
    assert (failed.verdict, failed.message.startswith("it is there, and was not compared: ")) == ("failed", True), failed
