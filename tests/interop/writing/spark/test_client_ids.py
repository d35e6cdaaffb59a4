"""Iceberg's Java library finds the snapshots that it made under its own ids, and shows readers the lake's ids alone."""

import pytest

from tests.interop.writing.spark.story import Story
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
REPORTS = "duckicelake_client_reports_total"


def test_java_finds_its_snapshots(served: Served, spark: Spark) -> None:
    """A rewrite of manifests reports its commit, for which it looks its snapshot up; a loaded table shows history alone, in order."""
    story = Story(served, spark, "", "'commit.manifest-merge.enabled' = 'false'")
    for number in range(3):
        story.run(f"INSERT INTO {{t}} VALUES ({number}, 'n')")
    # Java sends its reports beside the commits.
    wait_for(lambda: served.server.count(REPORTS, type="commit-report") == 3, "the reports of the inserts", 120.0)
    story.call("rewrite_manifests('ns.t')")
    wait_for(lambda: served.server.count(REPORTS, type="commit-report") == 4, "the report of the rewrite", 120.0)
    story.run("REFRESH TABLE {t}")
    shown = [row[0] for row in story.run("SELECT snapshot_id FROM {t}.snapshots")]
    head = served.server.get("namespaces/ns/tables/t").json["metadata"]
    assert shown == sorted(shown) == [snapshot["snapshot-id"] for snapshot in head["snapshots"]]
    assert shown[-1] == head["current-snapshot-id"]
