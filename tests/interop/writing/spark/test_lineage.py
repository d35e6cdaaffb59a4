"""Row lineage of version 3 over the writes of both sides: a row keeps its id, and the number of the change that it last had."""

from dataclasses import dataclass

import pytest

from tests.interop.writing.spark.story import MERGE_ON_READ, Story
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.long]

Lineage = dict[int, tuple[int, int]]
"""By the column `id`: the row's id, and the sequence number of its last change."""

MERGE = (
    "MERGE INTO {t} t USING (SELECT id, concat('m', id) AS name FROM VALUES (7), (107), (207), (300) AS v(id)) s ON t.id = s.id"
    " WHEN MATCHED AND t.id = 7 THEN DELETE WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
)
CHANGES: tuple[tuple[str, str, set[int] | None], ...] = (
    ("spark", "INSERT INTO {t} SELECT id, concat('n', id) FROM range(20)", set(range(20))),
    ("duck", "INSERT INTO {t} SELECT range, 'duck' FROM range(100, 120)", set(range(100, 120))),
    ("duck", "INSERT INTO {t} SELECT range, 'inlined' FROM range(200, 208)", set(range(200, 208))),
    ("spark", "UPDATE {t} SET name = 's' WHERE id IN (3, 103, 203)", {3, 103, 203}),
    ("duck", "UPDATE {t} SET name = 'd' WHERE id IN (3, 4, 104, 204)", {3, 4, 104, 204}),
    ("spark", MERGE, {107, 207, 300}),
    ("spark", "DELETE FROM {t} WHERE id IN (4, 105, 205)", set()),
    ("duck", "DELETE FROM {t} WHERE id IN (6, 106, 206)", set()),
    ("duck", "CALL ducklake_flush_inlined_data('lake')", set()),
    ("spark", "CALL {c}.system.rewrite_data_files(table => 'ns.t', options => map('rewrite-all', 'true'))", set()),
    ("duck", "UPDATE {t} SET name = 'd2' WHERE id IN (3, 108, 208)", {3, 108}),
    ("spark", "UPDATE {t} SET name = 's2' WHERE id IN (3, 109)", {3, 109}),
    ("duck", "CALL ducklake_merge_adjacent_files('lake')", set()),
    ("duck", "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)", None),
    ("spark", "UPDATE {t} SET name = 's3' WHERE id IN (10, 110)", {10, 110}),
)
"""Who runs what, and the rows that it changes or adds; None: DuckDB keeps no numbers of the rows that it writes again."""


@dataclass
class Lines:
    """The lineage that both sides must agree on."""

    story: Story
    known: Lineage

    def check(self, statement: str, changed: set[int] | None) -> None:
        """Both have each row's id and number; only rows that were changed have another number, a new one, and none another id.

        Numbers that Spark leaves to be inherited, DuckDB does not know.
        """
        found = {row[0]: row[1:] for row in self.story.run("SELECT id, _row_id, _last_updated_sequence_number FROM {t}")}
        duck = {row[0]: row[1:] for row in self.story.duck.execute("SELECT id, rowid, snapshot_id FROM lake.ns.t").fetchall()}
        assert found.keys() == duck.keys(), statement
        for id_, mine in found.items():
            assert duck[id_][0] == mine[0], f"{statement}: {id_}"
            assert duck[id_][1] in (None, mine[1]), f"{statement}: {id_}"
        assert len({row_id for row_id, _ in found.values()}) == len(found), statement
        head = self.story.served.server.get("namespaces/ns/tables/t").json["metadata"]["last-sequence-number"]
        for id_, (row_id, number) in found.items():
            was = self.known.get(id_)
            assert was is None or was[0] == row_id, f"{statement}: {id_}"
            is_new = was is None or (changed is not None and id_ in changed)
            assert number == head if is_new else number in (was[1], *([head] if changed is None else [])), f"{statement}: {id_}"
        self.known = found


@pytest.mark.parametrize("mode", [pytest.param(f", {MERGE_ON_READ}", id="deletion vectors"), pytest.param("", id="copy-on-write")])
def test_rows_keep_their_ids(served: Served, spark: Spark, mode: str) -> None:
    """Whoever inserts, updates, merges, deletes and maintains next; Spark's deletes of rows are one vector for each data file."""
    story = Story(served, spark, "", f"'format-version' = '3'{mode}")
    lines = Lines(story, {})
    for writer, statement, changed in CHANGES:
        if writer == "spark":
            story.run(statement)
        else:
            story.duck.execute(statement.replace("{t}", "lake.ns.t"))
        lines.check(statement, changed)
        deletes = story.run("SELECT file_format, content, referenced_data_file FROM {t}.delete_files")
        assert {row[:2] for row in deletes} <= {("PUFFIN", 1)}, statement
        assert len({row[2] for row in deletes}) == len(deletes), statement
    assert len(lines.known) == 20 + 20 + 8 + 1 - 7
    check_going_on(served, ("ns", "t"), travels_after_merge=False)


MERGED = (
    "MERGE INTO {t} t USING (SELECT id, '{w}' AS name FROM VALUES (1), ({n}) AS v(id)) s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
)


WITHOUT_COUNTS = ", 'write.metadata.metrics.default' = 'none'"


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(f", {MERGE_ON_READ}", id="deletion vectors"),
        pytest.param("", id="copy-on-write"),
        pytest.param(WITHOUT_COUNTS, id="no counts"),
    ],
)
def test_duckdb_knows_the_rows_that_a_merge_added(served: Served, spark: Spark, mode: str) -> None:
    """Spark leaves their ids to be inherited: both sides have the same ones, DuckDB's MERGE finds the rows, and Spark goes on."""
    story = Story(served, spark, "", f"'format-version' = '3'{mode}")
    story.run("INSERT INTO {t} SELECT id, 'n' FROM range(5)")

    def check(count: int) -> None:
        story.check(count)
        mine = story.run("SELECT id, _row_id FROM {t} ORDER BY id")
        assert mine == story.duck.execute("SELECT id, rowid FROM lake.ns.t ORDER BY id").fetchall()
        assert len({row_id for _, row_id in mine}) == count

    for new in (5, 6):
        story.run(MERGED.replace("{w}", "spark").replace("{n}", str(new)))
        check(new + 1)
        story.duck.execute(MERGED.replace("{t}", "lake.ns.t").replace("{w}", "duck").replace("{n}", str(new)))
        check(new + 1)
    story.run("UPDATE {t} SET name = 'later' WHERE id IN (0, 5, 6)")
    story.duck.execute("UPDATE lake.ns.t SET name = 'duck' WHERE id IN (3, 6)")
    story.run("DELETE FROM {t} WHERE id IN (2, 5)")
    story.run(MERGED.replace("{w}", "again").replace("{n}", "7"))
    check(6)
    story.call("rewrite_data_files(table => 'ns.t', options => map('rewrite-all', 'true'))")
    check(6)
    story.run(MERGED.replace("{w}", "end").replace("{n}", "8"))
    check(7)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)
