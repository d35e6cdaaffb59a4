"""Compaction that fails in Spark: what passes is tried again, and what lasts is told at once."""

from collections.abc import Callable

import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.maintain import compaction
from duckicelake.pipeline.maintain.planning import StepKind
from duckicelake.store.objects import StoreSettings, open_objects
from tests.pipeline.maintain.keeper import Keeper
from tests.pipeline.maintain.overtaking import meeting_commits
from tests.rest.serving import Answer
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


def remove_file(keeper: Keeper) -> str:
    """Take one of them out of the store; returns its name."""
    path: str = keeper.ask("SELECT data_file FROM ducklake_list_files('lake', 't')")[0][0]
    keys = keeper.checker.served.lake.store
    open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)).delete(path)
    return path.rpartition("/")[2]


def fill(keeper: Keeper, files: int = 5) -> None:
    """Small files."""
    inserts = (f"INSERT INTO t SELECT range FROM range({40 * i}, {40 * i + 40})" for i in range(files))
    keeper.checker.run("CREATE TABLE t (id BIGINT)", *inserts)


def test_a_file_that_is_gone_is_asked_for_once(keeper: Keeper) -> None:
    """It will not come back: the table is not read again, and the file is named."""
    fill(keeper)
    name = remove_file(keeper)
    [done] = keeper.run("main.t").steps
    assert (done.verdict, name in done.message, keeper.told.count("compact main.t")) == (Verdict.failed, True, 1), done


@pytest.mark.long
def test_a_file_that_is_gone_from_a_large_table_is_asked_for_once(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a table is committed piece by piece: what can be written again is, and of the rest it is told that it was not."""
    monkeypatch.setattr(compaction, "GROUP_BYTES", 900)
    # Two in each piece, and none that is alone and stays.
    fill(keeper, 6)
    name = remove_file(keeper)
    [done] = keeper.run("main.t", min_files=2).steps
    assert (done.verdict, "could not rewrite 2 files of main.t" in done.message) == (Verdict.failed, True), done
    assert name in done.message
    head = keeper.checker.served.server.get("namespaces/main/tables/t").json["metadata"]["current-snapshot-id"]
    assert (done.removed, done.added, done.snapshot_id) == (4, 2, head)
    assert done.describe().endswith(f" bytes became 2 at snapshot {head})")
    assert (keeper.told.count("compact main.t"), keeper.count_files("t")) == (1, 4)


@pytest.mark.parametrize("change", long_but(["DROP TABLE t", "ALTER TABLE t RENAME TO u"], "DROP TABLE t"))
def test_a_table_that_goes_meanwhile_is_passed_over(keeper: Keeper, change: str) -> None:
    """Nothing has failed, and nothing was done; other tables have their turn."""
    fill(keeper)
    keeper.checker.run("CREATE TABLE z AS SELECT 1 AS id", "INSERT INTO z VALUES (2)")

    def tell(step: str) -> None:
        if step == "compact main.t":
            keeper.checker.run(change)

    report = keeper.run(tell=tell)
    assert (report.status, [(step.subject, step.rows) for step in report.steps if step.rows or step.removed]) == (0, [("main.z", 2)])


@pytest.mark.long
def test_an_order_that_iceberg_refuses_is_tried_once(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells it by the same class as commits that others overtook."""
    fill(keeper)
    monkeypatch.setattr(compaction, "check_possible", lambda *_: None)
    monkeypatch.setattr(compaction, "spell_order", lambda policy, _: policy)
    [done] = keeper.run("main.t", strategy="sort", order="nobody").steps
    assert (done.verdict, "nobody" in done.message, keeper.told.count("compact main.t")) == (Verdict.failed, True, 1), done


@pytest.mark.parametrize(
    "group_bytes", long_but([pytest.param(compaction.GROUP_BYTES, id="at once"), pytest.param(900, id="piece by piece")], "piece by piece")
)
def test_commits_that_duckdb_overtook_are_made_again(keeper: Keeper, monkeypatch: pytest.MonkeyPatch, group_bytes: int) -> None:
    """Somebody deletes rows of all that was rewritten, just before the first commit."""
    monkeypatch.setattr(compaction, "GROUP_BYTES", group_bytes)
    fill(keeper)

    def meet(send: Callable[[], Answer]) -> Answer:
        keeper.checker.run("DELETE FROM t WHERE id % 40 = 3")
        return send()

    with meeting_commits(keeper, "t", meet) as meeting:
        steps = meeting.run("main.t", min_files=2).steps
    assert [(step.kind, step.verdict, step.attempts) for step in steps] == [(StepKind.compact, Verdict.done, 2)], steps
    assert keeper.told.count("compact main.t") == 2
    assert keeper.count_files("t") == (1 if group_bytes > 900 else 3)
    assert keeper.ask("SELECT count(*) FROM t") == [(195,)]
