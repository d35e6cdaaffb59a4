"""Each job with something to do on two tables, run behind wires; what it tells of both, and what must be so before and after."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection

from duckicelake.commands.jobs.reports import run_or_report
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import DuckLake
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from tests.pipeline.limits.wired import Wired, open_wired
from tests.pipeline.maintain.keeper import AT_ONCE, DEAD, grow_branch, make_desk
from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.publish.press import MANIFESTS, Press
from tests.pipeline.transfer.ferry import Ferry, open_ferry
from tests.pipeline.transfer.test_rest import make_given
from tests.pipeline.verify.checker import Checker
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark, letting_go

ROWS = 240
FILES = 6


class Said(NamedTuple):
    """What a report says of one part of a run: what it is about, how it ended, and why it was not done."""

    subject: str
    verdict: str
    message: str


@dataclass(frozen=True, slots=True)
class Told:
    """How a run ended: its status for the shell, and all that was said."""

    status: int
    said: tuple[Said, ...]

    def list_messages(self) -> list[str]:
        """Why things were not done."""
        return [one.message for one in self.said if one.message]

    def list_verdicts(self, subject: str) -> set[str]:
        """How all that was about that ended."""
        return {str(one.verdict) for one in self.said if one.subject == subject}


def nowhere() -> Any:
    """What commands find of a lake, which the jobs here know already."""
    return None, None


class Job(ABC):
    """A job, and a lake in which it has something to do."""

    def __init__(self, wired: Wired, spark: Spark, home: Path) -> None:
        self.wired, self.spark, self.home = wired, spark, home
        self.duck = wired.whole.lake.duckdb()

    @abstractmethod
    def fill(self) -> None:
        """Make two tables on which there is something to do."""

    @abstractmethod
    def do(self, tell: Progress) -> Any:
        """Run the job behind the wires; returns its report."""

    @abstractmethod
    def list_said(self, report: Any) -> Iterable[Said]:
        """What the report says."""

    @abstractmethod
    def check_whole(self) -> None:
        """Nothing is half done, however far the job came."""

    @abstractmethod
    def check_done(self) -> None:
        """All is done."""

    def run(self, tell: Progress = lambda _: None) -> Told:
        """Run the job behind the wires. What it raises is told as its command tells it."""
        report = run_or_report(nowhere, lambda *_: self.do(tell), lambda message: message)
        if isinstance(report, str):
            return Told(1, (Said("", "failed", report),))
        return Told(report.status, tuple(self.list_said(report)))

    def make_checker(self) -> Checker:
        """A checker behind the wires."""
        served = self.wired.served
        return Checker(served, self.spark, self.spark.add(served.rest_catalog()), self.duck)

    def make_tables(self) -> None:
        """Two tables of several files."""
        for name in "ab":
            self.duck.execute(f"CREATE TABLE {name} (id BIGINT, name VARCHAR)")
            for start in range(0, ROWS, ROWS // FILES):
                self.duck.execute(f"INSERT INTO {name} SELECT i, 'n' || i FROM range({start}, {start + ROWS // FILES}) r(i)")

    def check_rows(self) -> None:
        """Everybody sees every row once."""
        catalog = self.spark.add(self.wired.whole.rest_catalog())
        for name in "ab":
            assert self.duck.execute(f"SELECT count(*), count(DISTINCT id) FROM {name}").fetchall() == [(ROWS, ROWS)]
            found = self.spark.arrow(f"SELECT count(*) AS n, count(DISTINCT id) AS ids FROM {catalog}.main.{name}")
            assert found.to_pylist() == [{"n": ROWS, "ids": ROWS}]


class Maintaining(Job):
    """`maintain` with branches to drop, files to put together, rows to flush, snapshots and files to remove; of `b` one to forget."""

    def fill(self) -> None:
        self.make_tables()
        for name in "ab":
            table = self.wired.whole.pyiceberg().catalog.load_table(f"main.{name}")
            grow_branch(table, DEAD)
            if name == "b":
                table.append(table.schema().as_arrow().empty_table(), branch=None)
            self.duck.execute(f"DELETE FROM {name} WHERE id = 1")
            self.duck.execute(f"INSERT INTO {name} VALUES (1, 'inlined')")

    def do(self, tell: Progress) -> Any:
        checker = self.make_checker()
        lake = DuckLake(partial(self.wired.open_duckdb, self.home, read_only=False))
        desk = replace(make_desk(checker.served, tell), lake=lake, catalog=checker.catalog)
        desk = replace(desk, open_spark=lambda: nullcontext(self.spark.session))
        with letting_go():
            return maintain(desk, MaintainOptions(policies=MaintainPolicies(AT_ONCE)))

    def list_said(self, report: Any) -> Iterable[Said]:
        return [Said(one.subject, one.verdict, one.message) for one in report.steps]

    def check_whole(self) -> None:
        self.check_rows()

    def check_done(self) -> None:
        for name in "ab":
            assert len(self.duck.execute(f"FROM ducklake_list_files('lake', '{name}')").fetchall()) == 1
        assert self.duck.execute("SELECT count(*) FROM ducklake_snapshots('lake')").fetchall() == [(1,)]


class Profiling(Job):
    """`profile` with sketches to compute."""

    def fill(self) -> None:
        self.make_tables()

    def do(self, tell: Progress) -> Any:
        return Measurer(self.make_checker()).run(tell=tell)

    def list_said(self, report: Any) -> Iterable[Said]:
        return [Said(one.table, one.verdict, one.message) for one in report.tables]

    def _list_statistics(self) -> list[list[int]]:
        loaded = [self.wired.whole.server.get(f"namespaces/main/tables/{name}").json["metadata"] for name in "ab"]
        return [[one["snapshot-id"] - metadata["current-snapshot-id"] for one in metadata.get("statistics", ())] for metadata in loaded]

    def check_whole(self) -> None:
        self.check_rows()
        assert all(found in ([], [0]) for found in self._list_statistics())

    def check_done(self) -> None:
        assert self._list_statistics() == [[0], [0]]


class Publishing(Job):
    """`publish` of a table that has large manifests to make, `t`, and a small one before it."""

    def fill(self) -> None:
        Press(self.wired.whole, self.spark).fill()
        self.duck.execute("CREATE TABLE a AS SELECT 1 AS id")

    def do(self, tell: Progress) -> Any:
        return Press(self.wired.served, self.spark).run(tell=tell)

    def list_said(self, report: Any) -> Iterable[Said]:
        return [Said(one.table, one.verdict, one.message) for one in report.tables]

    def _count_manifests(self) -> int:
        [(count,)] = self.wired.whole.lake.psycopg().execute("SELECT count(*) FROM iceberg_manifest").fetchall()
        return count

    def check_whole(self) -> None:
        assert self._count_manifests() in (0, MANIFESTS)

    def check_done(self) -> None:
        assert self._count_manifests() == MANIFESTS


class Verifying(Job):
    """`verify` of two tables."""

    def fill(self) -> None:
        self.make_tables()

    def do(self, tell: Progress) -> Any:
        return self.make_checker().verify(tell=tell, open_lake=partial(self.wired.open_duckdb, self.home, read_only=True))

    def list_said(self, report: Any) -> Iterable[Said]:
        return [Said(one.table, one.verdict, one.message) for one in report.findings]

    def check_whole(self) -> None:
        self.check_rows()

    def check_done(self) -> None:
        """Nothing is left to be seen of it."""


class Ferrying(Job):
    """A transfer of two tables, in `ns`."""

    def __init__(self, wired: Wired, spark: Spark, ferry: Ferry) -> None:
        super().__init__(wired, spark, ferry.folder.parent)
        self.ferry, self.behind = ferry, replace(ferry, served=wired.served)

    def list_said(self, report: Any) -> Iterable[Said]:
        return [Said(one.subject, one.verdict, one.message) for one in report.moved]

    def list_there(self) -> Mapping[str, int]:
        """The tables of the target, with their rows."""
        raise AssertionError("each kind of transfer says it itself")

    def check_whole(self) -> None:
        assert all(rows == ROWS for rows in self.list_there().values())

    def check_done(self) -> None:
        assert self.list_there() == {"a": ROWS, "b": ROWS}


class Importing(Ferrying):
    """`import` of a Hadoop warehouse."""

    mode = "copy"

    def fill(self) -> None:
        self.ferry.run(*(f"CREATE TABLE {{t}}.ns.{name} USING iceberg AS SELECT id FROM range({ROWS})" for name in "ab"))

    def do(self, tell: Progress) -> Any:
        return self.behind.take(mode=self.mode, tell=tell)

    def list_there(self) -> Mapping[str, int]:
        found = self.ferry.list_here("ns")
        return {name: self.duck.execute(f"SELECT count(*) FROM ns.{name}").fetchall()[0][0] for name in found}


class ImportingFromRest(Importing):
    """`import` from another lake's catalog; `theirs` are the wires to that one."""

    def __init__(self, wired: Wired, spark: Spark, ferry: Ferry, theirs: Wired) -> None:
        super().__init__(wired, spark, ferry)
        self.theirs = theirs

    def fill(self) -> None:
        make_namespace(self.theirs.whole.lake.duckdb())

    def do(self, tell: Progress) -> Any:
        given = make_given(self.theirs.whole, self.home)
        return self.behind.bring("import", self.theirs.served.server.uri, mode=self.mode, tell=tell, **given)


class Registering(Importing):
    """The same, where the tables stay where they are."""

    mode = "register"


class Exporting(Ferrying):
    """`export` to a Hadoop warehouse."""

    def fill(self) -> None:
        make_namespace(self.duck)

    def do(self, tell: Progress) -> Any:
        return self.behind.bring("export", str(self.ferry.folder), tell=tell)

    def list_there(self) -> Mapping[str, int]:
        found = self.ferry.list_there("ns")
        return {name: self.ferry.run(f"SELECT count(*) AS n FROM {{t}}.ns.{name}")[0]["n"] for name in found}


class ExportingToRest(Exporting):
    """`export` to another lake's catalog; `theirs` are the wires to that one."""

    def __init__(self, wired: Wired, spark: Spark, ferry: Ferry, theirs: Wired) -> None:
        super().__init__(wired, spark, ferry)
        self.theirs = theirs

    def do(self, tell: Progress) -> Any:
        return self.behind.bring("export", self.theirs.served.server.uri, tell=tell, **make_given(self.theirs.whole, self.home))

    def list_there(self) -> Mapping[str, int]:
        served = self.theirs.whole
        answer = served.server.get("namespaces/ns/tables")
        names = [item["name"] for item in answer.json["identifiers"]] if answer.status == 200 else []
        return {name: served.lake.duckdb().execute(f"SELECT count(*) FROM ns.{name}").fetchall()[0][0] for name in names}


def make_namespace(duck: DuckDBPyConnection) -> None:
    """Two tables in `ns`."""
    duck.execute("CREATE SCHEMA ns")
    for name in "ab":
        duck.execute(f"CREATE TABLE ns.{name} AS SELECT range AS id FROM range({ROWS})")


@contextmanager
def _open_in_lake(job: Callable[[Wired, Spark, Path], Job], stack: SharedStack, spark: Spark, folder: Path) -> Generator[Job]:
    with make_lake(stack) as lake, serve(make_settings(lake)) as server, open_wired(Served(lake, server)) as wired:
        yield job(wired, spark, folder)


@contextmanager
def _open_ferrying(job: Callable[[Wired, Spark, Ferry], Job], stack: SharedStack, spark: Spark, folder: Path) -> Generator[Job]:
    with open_ferry(stack, spark, folder) as ferry, open_wired(ferry.served) as wired:
        yield job(wired, spark, ferry)


@contextmanager
def _open_between(job: Callable[[Wired, Spark, Ferry, Wired], Job], stack: SharedStack, spark: Spark, folder: Path) -> Generator[Job]:
    with ExitStack() as opened:
        lake = opened.enter_context(make_lake(stack))
        server = opened.enter_context(serve(make_settings(lake)))
        theirs = opened.enter_context(open_wired(Served(lake, server)))
        ferry = opened.enter_context(open_ferry(stack, spark, folder))
        yield job(opened.enter_context(open_wired(ferry.served)), spark, ferry, theirs)


OPENERS: Mapping[str, Callable[[SharedStack, Spark, Path], AbstractContextManager[Job]]] = {
    "maintain": partial(_open_in_lake, Maintaining),
    "profile": partial(_open_in_lake, Profiling),
    "publish": partial(_open_in_lake, Publishing),
    "verify": partial(_open_in_lake, Verifying),
    "import": partial(_open_ferrying, Importing),
    "register": partial(_open_ferrying, Registering),
    "export": partial(_open_ferrying, Exporting),
    "export to REST": partial(_open_between, ExportingToRest),
    "import from REST": partial(_open_between, ImportingFromRest),
}
