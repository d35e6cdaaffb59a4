"""Spark's branches, tags, staged writes and procedures; DuckDB has main's rows after every statement."""

from typing import Any

import pytest

from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Ids = list[int]


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_refs_from_first_to_last(served: Served, spark: Spark, format_version: int) -> None:
    """Tag, branch, write to it, fast-forward; stage, pick, publish; roll back; expire: rows are as expected on both sides."""
    story = Story(served, spark)
    story.run(f"CREATE NAMESPACE {story.catalog}.ns")
    mode = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"
    story.run(f"CREATE TABLE {{t}} (id bigint, name string) USING iceberg TBLPROPERTIES ('format-version' = '{format_version}', {mode})")
    story.run("INSERT INTO {t} SELECT id, 'a' FROM range(10)")
    story.duck.execute("INSERT INTO lake.ns.t VALUES (100, 'duck')")
    story.run("ALTER TABLE {t} CREATE TAG v1 RETAIN 7 DAYS")
    story.run("ALTER TABLE {t} CREATE BRANCH dev WITH SNAPSHOT RETENTION 2 SNAPSHOTS")
    story.run("INSERT INTO {t}.branch_dev VALUES (11, 'b'), (12, 'b')")
    story.run("DELETE FROM {t}.branch_dev WHERE id IN (3, 100)")
    story.run("UPDATE {t}.branch_dev SET name = 'c' WHERE id = 11")
    story.check([*range(10), 100])
    assert story.ids("VERSION AS OF 'dev'") == [0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12]
    fast_forward_and_stage(story)
    roll_back_and_expire(story)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)


def fast_forward_and_stage(story: "Story") -> None:
    """Main takes the branch over, then one staged write by its name and one by its id."""
    story.run("CALL {c}.system.fast_forward('ns.t', 'main', 'dev')")
    story.check([0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12])
    expire_everything(story.duck)
    assert story.ids("VERSION AS OF 'v1'") == [*range(10), 100]
    assert story.ids("VERSION AS OF 'dev'") == [0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12]
    story.duck.execute("DELETE FROM lake.ns.t WHERE id = 12")
    story.run("INSERT INTO {t} VALUES (13, 'd')")
    story.before = story.current()
    story.check([0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 13])
    story.run("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    for name, row in (("w1", 21), ("w2", 22)):
        story.run(f"SET spark.wap.id = {name}")
        story.run(f"INSERT INTO {{t}} VALUES ({row}, 'staged')")
        story.run("RESET spark.wap.id")
    story.check([0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 13])
    story.run("CALL {c}.system.publish_changes('ns.t', 'w2')")
    story.check([0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 13, 22])
    (staged,) = story.values("SELECT snapshot_id FROM {t}.snapshots WHERE summary['wap.id'] = 'w1'")
    story.run(f"CALL {{c}}.system.cherrypick_snapshot('ns.t', {staged})")
    story.check([0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 13, 21, 22])


def roll_back_and_expire(story: "Story") -> None:
    """Main goes back to where it was, then to the tag; what no ref names is expired on both sides."""
    story.run(f"CALL {{c}}.system.rollback_to_snapshot('ns.t', {story.before})")
    story.check([0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 13])
    story.run("CALL {c}.system.set_current_snapshot(table => 'ns.t', ref => 'v1')")
    story.check([*range(10), 100])
    story.run("ALTER TABLE {t} DROP BRANCH dev")
    story.run("ALTER TABLE {t} SET TBLPROPERTIES ('gc.enabled' = 'true')")
    story.run("CALL {c}.system.expire_snapshots(table => 'ns.t', older_than => TIMESTAMP '2099-01-01 00:00:00', retain_last => 1)")
    story.check([*range(10), 100])
    story.run("INSERT INTO {t} VALUES (14, 'e')")
    expire_everything(story.duck)
    story.check([*range(10), 14, 100])
    assert story.ids("VERSION AS OF 'v1'") == [*range(10), 100]


class Story:
    """Spark and DuckDB on the table ns.t of one lake."""

    def __init__(self, served: Served, spark: Spark) -> None:
        self.reader, self.duck, self.spark = served.spark(spark), served.lake.duckdb(), spark
        self.catalog = self.reader.catalog
        self.before = 0

    def run(self, statement: str) -> Any:
        """Have Spark run a statement: `{t}` is the table, `{c}` the catalog."""
        return self.spark.arrow(statement.replace("{t}", f"{self.catalog}.ns.t").replace("{c}", self.catalog))

    def values(self, query: str) -> list[Any]:
        """The first column of a query."""
        return self.run(query).column(0).to_pylist()

    def ids(self, travel: str = "") -> Ids:
        """The column `id` as Spark reads it, sorted."""
        return sorted(self.values(f"SELECT id FROM {{t}} {travel}"))

    def current(self) -> int:
        """Main's snapshot."""
        return self.values("SELECT snapshot_id FROM {t}.refs WHERE name = 'main'")[0]

    def check(self, expected: Ids) -> None:
        """Both sides have these rows on main."""
        self.run("REFRESH TABLE {t}")
        assert self.ids() == expected
        assert sorted(row[0] for row in self.duck.execute("SELECT id FROM lake.ns.t").fetchall()) == expected
