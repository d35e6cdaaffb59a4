"""The parts of `ingest` that need no Spark."""

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest
from pyarrow import ArrowNotImplementedError

from duckicelake.errors import BadRequest, CommitFailed, CommitStateUnknown, NoSuchTable, ServiceUnavailable, Unsupported
from duckicelake.pipeline.common.failures import explain_spark
from duckicelake.pipeline.common.reports import Stopwatch, read_pairs
from duckicelake.pipeline.common.rest import Rest, RestCatalog, TableHead, TableIdent, open_rest, parse_ident
from duckicelake.pipeline.common.spark_session import end_process
from duckicelake.pipeline.common.spark_sql import parse_order
from duckicelake.pipeline.common.staging import (
    BRANCH_PREFIX,
    Staged,
    check_count,
    discard,
    format_identifier,
    is_stale,
    list_own,
    make_branch,
    make_run_id,
)
from duckicelake.pipeline.common.storage import open_objects
from duckicelake.pipeline.ingest import file_source
from duckicelake.pipeline.ingest.file_source import choose_format, choose_reading, list_path_columns
from duckicelake.pipeline.ingest.job import check_pair, check_target
from duckicelake.pipeline.ingest.options import Format, IngestMode, IngestOptions, IngestReport, Status, find_format
from duckicelake.pipeline.ingest.row_checks import ends_at_lines
from duckicelake.pipeline.ingest.source import Taken
from duckicelake.pipeline.ingest.writing import check_growth, check_merged, check_moved, commit_once
from tests.rest.serving import WAREHOUSE
from tests.support.readers import Served
from tests.support.reference.front import Answer, Came, format_answer, listening, refuse
from tests.support.waiting import wait_for

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
NOBODY = RestCatalog("http://127.0.0.1:1", "lake")
STAGED = Staged(TableIdent(("raw",), "t"), "uuid", None, "ingest_x", 7, {"added-records": "3"})


@pytest.mark.parametrize(
    ("branch", "stale"),
    [
        pytest.param(BRANCH_PREFIX + make_run_id(NOW) + "_1", False, id="now"),
        pytest.param(make_branch(make_run_id(NOW - timedelta(days=9)), 2, NOW - timedelta(days=6)), False, id="a later attempt of days"),
        pytest.param(make_branch(make_run_id(NOW - timedelta(days=8)), 1, NOW - timedelta(days=8)), True, id="older"),
        pytest.param("ingest_by_hand", False, id="somebody's"),
        pytest.param("main", False, id="main"),
        pytest.param(make_run_id(NOW - timedelta(days=8)), False, id="no prefix"),
    ],
)
def test_only_branches_of_dead_runs_are_stale(branch: str, stale: bool) -> None:
    """Their names say when they began; others' branches are none of ours."""
    assert is_stale(branch, NOW) is stale


def test_a_change_requires_what_it_builds_on() -> None:
    """The table, where main was, where the branch is; main may be nowhere yet."""
    assert STAGED.added == 3
    change = replace(STAGED, base=5).format_change()
    assert change["requirements"][1:] == [
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
        {"type": "assert-ref-snapshot-id", "ref": "ingest_x", "snapshot-id": 7},
    ]
    assert STAGED.format_change()["requirements"][1]["snapshot-id"] is None
    assert [update["action"] for update in change["updates"]] == ["set-snapshot-ref", "remove-snapshot-ref"]


def test_what_was_written_is_what_was_counted() -> None:
    """Else the run stops; of a merge Spark says how many rows it touched, or nothing."""
    check_count(STAGED, 3)
    with pytest.raises(BadRequest, match="3 rows were written and 4 counted"):
        check_count(STAGED, 4)
    merged = replace(STAGED, summary={f"spark.merge-into.num-target-rows-{kind}": "2" for kind in ("inserted", "updated")})
    check_merged(merged, 4, "inserted", "updated")
    check_merged(STAGED, 4, "inserted")
    with pytest.raises(BadRequest, match="2 rows for 3 keys"):
        check_merged(merged, 3, "inserted")
    check_moved(STAGED, STAGED, 0)
    check_moved(STAGED, replace(STAGED, head=8), 1)
    with pytest.raises(BadRequest, match="1 rows were to be merged, and nothing was written"):
        check_moved(STAGED, STAGED, 1)


def test_a_merge_makes_the_table_larger_by_what_was_counted() -> None:
    """Snapshots say how many rows there are; of files with deleted rows they may not, and then nobody asks."""
    before = replace(STAGED, head=5, summary={"total-records": "10", "total-delete-files": "0"})
    after = replace(STAGED, summary={"total-records": "15", "total-position-deletes": "2", "total-delete-files": "1"})
    check_growth(before, after, 3)
    check_growth(replace(before, summary={"total-records": "10", "total-delete-files": "1"}), after, 7)
    check_growth(replace(before, summary={"total-records": "10"}), after, 7)
    check_growth(before, STAGED, 7)
    with pytest.raises(BadRequest, match="was to have 4 rows more, and would have 3"):
        check_growth(before, after, 4)
    check_growth(STAGED, STAGED, 0)
    with pytest.raises(BadRequest, match="was to have 1 rows more, and would have 0"):
        check_growth(STAGED, replace(STAGED, summary={}), 1)


def test_silence_is_not_taken_for_a_refusal() -> None:
    """Nobody answers: who asked knows nothing; before anything was sent, nothing was done."""
    with pytest.raises(ServiceUnavailable, match=r"no catalog answers at 127\.0\.0\.1:1"):
        open_rest(NOBODY)
    rest = Rest("http://127.0.0.1:1/v1/lake", NOBODY)
    with pytest.raises(CommitStateUnknown, match="^it is unknown whether the commit landed: no catalog answers"):
        commit_once(lambda: rest, [STAGED.format_change()], lambda: False, patience=0.0)


@dataclass
class LostAnswers:
    """A catalog that takes a commit, says nothing of it, and then cannot be reached: its first connection is a real one to nobody."""

    tries: int = 0

    def connect(self) -> Rest:
        """The first connection stands; the others are refused."""
        self.tries += 1
        return Rest("http://127.0.0.1:1/v1/lake", NOBODY) if self.tries == 1 else open_rest(NOBODY)


def test_who_cannot_ask_again_knows_nothing() -> None:
    """Once a request was sent, only a conflict says that it was not done; before, a refusal is one."""
    answers = LostAnswers()
    with pytest.raises(CommitStateUnknown):
        commit_once(answers.connect, [STAGED.format_change()], lambda: False, patience=0.2)
    assert answers.tries > 1
    with pytest.raises(ServiceUnavailable):
        commit_once(lambda: open_rest(NOBODY), [STAGED.format_change()], lambda: False)


@pytest.mark.parametrize("has_landed", [True, False])
def test_the_ledger_is_asked_before_giving_up(has_landed: bool) -> None:
    """What is there is done, though no answer ever came; what is not may still be under way."""
    asked: list[bool] = []

    def look() -> bool:
        asked.append(True)
        return has_landed

    with listening(lambda _: refuse(504, "the gateway waited for too long")) as uri:
        rest = Rest(f"{uri}/v1/lake", NOBODY)
        with nullcontext() if has_landed else pytest.raises(CommitStateUnknown, match="the gateway waited"):
            commit_once(lambda: rest, [STAGED.format_change()], look, patience=0.0)
    assert asked == [True]


def test_patience_begins_with_the_first_answer_that_is_lost() -> None:
    """However long that one was waited for, the catalog is asked again."""
    patience, came = 0.5, list[Came]()

    def answer(request: Came) -> Answer:
        came.append(request)
        over = monotonic() + patience
        wait_for(lambda: len(came) > 1 or monotonic() > over, "the end of the patience")
        return refuse(504, "the gateway waited for too long") if len(came) == 1 else format_answer(200, {})

    with listening(answer) as uri:
        rest = Rest(f"{uri}/v1/lake", NOBODY)
        commit_once(lambda: rest, [STAGED.format_change()], lambda: False, patience=patience)
        assert len(came) == 2


def test_a_ledger_whose_table_is_gone_is_no_reason_to_do_nothing() -> None:
    """It says what to do; a ledger of nothing, which a killed run left, is none."""
    with pytest.raises(BadRequest, match="raw.t is gone and raw.t__ingested is there.*drop it too"):
        check_pair(STAGED.ident, None, 7)
    check_pair(STAGED.ident, None, None)
    check_pair(STAGED.ident, TableHead("u", {}, {}), 7)


def test_a_new_table_may_lack_its_order() -> None:
    """A run that was killed made it; with rows or another order it is somebody's."""
    options = IngestOptions("x", STAGED.ident, sort_by=parse_order("id"))
    check_target(TableHead("u", {}, {}), options)
    for head in (TableHead("u", {"main": 1}, {}), TableHead("u", {}, {}, order=("identity(x) asc",))):
        with pytest.raises(BadRequest, match="alter it yourself"):
            check_target(head, options)


def test_a_conflict_is_asked_of_the_ledger(served: Served) -> None:
    """What landed is done, whatever the last answer was; a table that is not there is another refusal."""
    rest = open_rest(served.rest_catalog())
    conn = served.lake.duckdb()
    conn.execute("CREATE SCHEMA raw")
    conn.execute("CREATE TABLE raw.t AS SELECT 1 AS i")
    ident = parse_ident("raw.t")
    table = rest.load(ident)
    assert table is not None
    stale = [replace(STAGED, uuid=table.uuid, base=10**9).format_change()]
    with pytest.raises(CommitFailed):
        commit_once(lambda: rest, stale, lambda: False)
    commit_once(lambda: rest, stale, lambda: True)
    assert rest.load(TableIdent(("raw",), "none")) is None
    with pytest.raises(NoSuchTable):
        rest.load_whole(TableIdent(("none",), "none"))
    assert rest.base.endswith(f"/v1/{WAREHOUSE}")


def format_branch(ident: TableIdent, branch: str, snapshot_id: int | None) -> dict[str, Any]:
    """A branch put at a snapshot, or removed."""
    moved = {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot_id}
    update = moved if snapshot_id is not None else {"action": "remove-snapshot-ref", "ref-name": branch}
    return {"identifier": format_identifier(ident), "requirements": [], "updates": [update]}


@dataclass(frozen=True, slots=True)
class Overtaken(Rest):
    """A catalog in which others make changes after the first look at a table."""

    changes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def load(self, ident: TableIdent) -> TableHead | None:
        """The table, as it is before the changes."""
        found = Rest.load(self, ident)
        while self.changes:
            self.commit([self.changes.pop()])
        return found


def test_what_runs_made_on_branches_is_known() -> None:
    """By their ids, and the empty snapshot that Iceberg begins a branch with, whether it names the run or not; not what main was at."""
    run = {"duckicelake.run-id": "20200101T000000_dead"}
    start = {"snapshot-id": 1, "summary": {"total-records": "0"}}
    own = {"snapshot-id": 2, "parent-snapshot-id": 1, "summary": run | {"total-records": "3"}}
    other = {"snapshot-id": 3, "summary": {"total-records": "0"}}
    metadata = {"snapshots": [start, own, other], "refs": {"ingest_20200101T000000_dead_1": {"snapshot-id": 2, "type": "branch"}}}
    heads = {"ingest_20200101T000000_dead_1": 2}
    assert list_own(metadata, heads) == [1, 2]
    assert list_own(metadata | {"snapshots": [{**start, "summary": run | start["summary"]}, own, other]}, heads) == [1, 2]
    assert list_own(metadata | {"snapshot-log": [{"snapshot-id": 1}]}, heads) == [2]


def test_branches_that_others_move_stay(served: Served) -> None:
    """Those that others removed are no reason to leave the rest."""
    rest, ident = open_rest(served.rest_catalog()), parse_ident("raw.t")
    conn = served.lake.duckdb()
    conn.execute("CREATE SCHEMA raw")
    conn.execute("CREATE TABLE raw.t AS SELECT 1 AS i")
    first = rest.load(ident)
    assert first is not None
    for branch in ("dead", "alive", "gone"):
        rest.commit([format_branch(ident, branch, first.main)])
    conn.execute("INSERT INTO raw.t VALUES (2)")
    second = rest.load(ident)
    assert second is not None
    changes = [format_branch(ident, "alive", second.main), format_branch(ident, "gone", None)]
    assert discard(Overtaken(rest.base, rest.catalog, changes=changes), ident, ["dead", "alive", "gone", "never"]) == 1
    left = rest.load(ident)
    assert left is not None
    assert left.refs == {"main": second.main, "alive": second.main}


def test_formats_are_known_by_names() -> None:
    """Packed or not; several at once or none are refused."""
    assert find_format("s3://b/x.CSV.gz") is Format.csv
    assert find_format("x.ndjson") is Format.json
    assert find_format("README") is None
    files = [Taken("file:/a.csv", 1, 1), Taken("file:/b.orc", 1, 1)]
    with pytest.raises(BadRequest, match="several formats"):
        choose_format(Format.auto, files)
    with pytest.raises(BadRequest, match="does not say"):
        choose_format(Format.auto, [Taken("file:/a%20b", 1, 1)])
    assert choose_format(Format.json, files) is Format.json
    assert Taken("file:/a%20b", 1, 1).path == "file:/a b"


def test_options_that_contradict_each_other_are_refused() -> None:
    """A key belongs to an upsert, and an upsert to a key."""
    ident = parse_ident("a.b")
    with pytest.raises(BadRequest, match="needs --key"):
        IngestOptions("x", ident, mode=IngestMode.upsert)
    with pytest.raises(BadRequest, match="belong to --mode upsert and scd2"):
        IngestOptions("x", ident, key=("id",))
    with pytest.raises(BadRequest, match="scd2 needs --order-by"):
        IngestOptions("x", ident, mode=IngestMode.scd2, key=("id",))
    with pytest.raises(BadRequest, match="^attempts begin at 1$"):
        IngestOptions("x", ident, attempts=0)
    assert read_pairs(["sep==", "a="]) == {"sep": "=", "a": ""}


def test_the_report_is_json_and_knows_its_time() -> None:
    """Steps that are taken again count together."""
    heard: list[str] = []
    watch = Stopwatch(heard.append)
    for step in ("list", "publish", "list"):
        watch.start_step(step)
    report = IngestReport("r", "a.b", "x", "append", Status.done, rows_in=3, seconds=watch.read())
    told = json.loads(report.format_json())
    assert (told["job"], told["status"], told["rows_in"]) == ("ingest", "done", 3)
    assert list(told["seconds"]) == ["list", "publish"]
    assert heard == ["list", "publish", "list"]


def test_objects_in_folders_are_read_and_written(tmp_path: Path) -> None:
    """By path or URI; what is not there and what is no store is said."""
    objects = open_objects(str(tmp_path), NOBODY, {})
    objects.write(str(tmp_path / "a b"), b"x")
    assert objects.read(f"file://{tmp_path}/a b") == objects.read(f"file:{tmp_path}/a b") == b"x"
    with pytest.raises(ServiceUnavailable, match="cannot read"):
        objects.read(str(tmp_path / "none"))
    with pytest.raises(Unsupported, match="neither on S3 nor in a folder"):
        open_objects("gs://bucket/x", NOBODY, {})


WORKERS = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/a/b.py", line 7, in one
    two(
    ^^^^
  File "/a/c.py", line 9, in two
    raise IndexError("there is none")
IndexError: there is none

"""


def test_traces_of_python_are_left_out() -> None:
    """Those of workers, which end with what is wrong, also within Java's."""
    assert explain_spark(RuntimeError(WORKERS)) == "IndexError: there is none"
    inner = WORKERS[WORKERS.index("Traceback") :]
    trace = f"[FAILED] cannot write\n\tat a.b.C\nCaused by: x.PythonException: {inner}\tat d.e.F\n"
    assert explain_spark(RuntimeError(trace)) == "[FAILED] cannot write\nCaused by: x.PythonException: IndexError: there is none"


def test_javas_traces_are_left_out() -> None:
    """What is wrong is said first, and by the last cause."""
    trace = "[FAILED] cannot read\n\tat a.b.C\nmore\nand\nstill\nmuch\nCaused by: x: one\n\tat d\nCaused by: y: two\n"
    assert explain_spark(RuntimeError(trace)) == "[FAILED] cannot read\nmore\nand\nstill\nCaused by: y: two"
    call = "An error occurred while calling o8.append.\n: a.RESTException: GET\n\tSuppressed: b.Original: trace\nCaused by: c: gone\n"
    assert explain_spark(RuntimeError(call)) == "a.RESTException: GET\nCaused by: c: gone"


@pytest.mark.parametrize(
    "name",
    ["mode", "pathGlobFilter", "modifiedBefore", "modifiedAfter", "ignoreCorruptFiles", "ignoreMissingFiles", "RECURSIVEFILELOOKUP"],
)
def test_options_that_would_let_the_ledger_lie_are_refused(name: str) -> None:
    """Each would take other files, or fewer rows, than the ledger says."""
    with pytest.raises(BadRequest, match=f"--option {name} is set by the job itself"):
        choose_reading(Format.json, [], {name: "x"})


def test_given_options_win_over_ours() -> None:
    """Under whichever of its names; CSV doubles its quotes unless told otherwise."""
    files = [Taken("file:/a.csv", 1, 1)]
    ours = choose_reading(Format.csv, files, {})
    assert (ours["sep"], ours["escape"], ours["header"], ours["enforceSchema"]) == (",", '"', "true", "false")
    assert choose_reading(Format.csv, [Taken("file:/a.tsv", 1, 1)], {})["sep"] == "\t"
    given = choose_reading(Format.csv, files, {"Delimiter": ";", "HEADER": "false", "Escape": "x"})
    assert {"sep", "header", "escape", "enforceSchema"}.isdisjoint(given)
    assert given["Delimiter"] == ";"
    assert choose_reading(Format.json, files, {"a": "b"}) == {"a": "b"}


def test_a_line_is_looked_at_only_where_it_must_end_a_row() -> None:
    """Not with other quotes or escapes, nor where Spark reads on after the line."""
    for given, expected in (({}, True), ({"quote": "'"}, False), ({"multiline": "TRUE"}, False), ({"escape": "\\"}, False)):
        assert ends_at_lines(Format.csv, choose_reading(Format.csv, [], given)) is expected, given
    assert not ends_at_lines(Format.json, {})


def test_names_in_paths_are_columns() -> None:
    """Those of folders, and not of files."""
    assert list_path_columns(["day=1/city=x/a.csv", "day=2/city=y/b=c.csv"]) == ("day", "city")
    with pytest.raises(BadRequest, match=r"b=c.csv has \(\) as columns in its path, day=1/a.csv has \(day\)"):
        list_path_columns(["b=c.csv", "day=1/a.csv"])
    assert list_path_columns(["a=b.csv"]) == ()


def test_a_process_that_does_not_end_is_killed() -> None:
    """After a while; what was done stays done."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        end_process(process, 0.05)
        assert process.returncode < 0


@pytest.mark.parametrize("form", [Format.parquet, Format.orc])
def test_a_footer_that_arrow_does_not_know_is_named(form: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Arrow calls it."""

    def refuse(*_: object) -> NoReturn:
        raise ArrowNotImplementedError("nobody knows that codec")

    monkeypatch.setattr(file_source.parquet, "read_metadata", refuse)
    monkeypatch.setattr(file_source.orc, "ORCFile", refuse)
    path = tmp_path / "a"
    path.touch()
    absent: Any = None
    with pytest.raises(BadRequest, match="a cannot be read: nobody knows that codec"):
        file_source.FileReading(absent, form, [Taken(path.as_uri(), 1, 1)], {}, absent).count()
