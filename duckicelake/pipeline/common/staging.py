"""Branches on which a run writes before it publishes, and the removal of branches that dead runs left.

`ingest` writes with a `Stage`, and `ingest` and `maintain` remove branches that dead runs left. All of it runs in the driver: Spark commits
to a branch, and requests over REST read and remove it. Each step is a commit of its own.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from duckicelake.errors import BadRequest, CommitFailed, NoSuchTable
from duckicelake.pipeline.common.reports import RUN_ID, Progress
from duckicelake.pipeline.common.rest import Rest, TableHead, TableIdent
from duckicelake.pipeline.common.spark_session import statements_with_properties
from duckicelake.pipeline.common.spark_sql import quote, quote_ident

BRANCH_PREFIX = "ingest_"
STALE = timedelta(days=7)
"""So long an attempt may take: a branch that is older was left by a run that is dead."""
DISCARDS = 3
_TIME = "%Y%m%dT%H%M%S"


def make_run_id(now: datetime) -> str:
    """Return a new run's id, which says when it began."""
    return f"{now:{_TIME}}_{secrets.token_hex(4)}"


def make_branch(run_id: str, attempt: int, now: datetime) -> str:
    """Return the branch of an attempt of a run, which says when the attempt began."""
    return f"{BRANCH_PREFIX}{now:{_TIME}}_{run_id.rpartition('_')[2]}_{attempt}"


def is_stale(branch: str, now: datetime) -> bool:
    """Return True if a branch was left by an attempt that began so long ago that it cannot be at work any more."""
    began = branch.removeprefix(BRANCH_PREFIX).partition("_")[0]
    try:
        return branch.startswith(BRANCH_PREFIX) and datetime.strptime(began, _TIME).replace(tzinfo=UTC) < now - STALE
    except ValueError:
        return False


def list_stale(branches: Iterable[str], now: datetime) -> list[str]:
    """Return those of these branches that such runs left."""
    return [branch for branch in branches if is_stale(branch, now)]


@dataclass(frozen=True, slots=True)
class Staged:
    """A table, the snapshot of main that the branch grew from, and where the branch is now."""

    ident: TableIdent
    uuid: str
    base: int | None
    branch: str
    head: int
    summary: Mapping[str, str]
    schema_id: int = 0

    @property
    def added(self) -> int:
        """Return how many rows the last write added."""
        return int(self.summary.get("added-records", "0"))

    @property
    def rows(self) -> int | None:
        """Return how many rows the table has there, if the snapshot says it."""
        total = self.summary.get("total-records")
        return None if total is None else int(total) - int(self.summary.get("total-position-deletes", "0"))

    @property
    def is_whole(self) -> bool:
        """Return True if the snapshot says that no row of a file is deleted."""
        return self.summary.get("total-delete-files") == "0"

    def format_change(self) -> dict[str, Any]:
        """Main goes where the branch is, if it is still where it was; the branch goes."""
        return {
            "identifier": format_identifier(self.ident),
            "requirements": [
                {"type": "assert-table-uuid", "uuid": self.uuid},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self.base},
                {"type": "assert-ref-snapshot-id", "ref": self.branch, "snapshot-id": self.head},
            ],
            "updates": [
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": self.head},
                {"action": "remove-snapshot-ref", "ref-name": self.branch},
            ],
        }


def format_identifier(ident: TableIdent) -> dict[str, Any]:
    """Return a table as REST names it."""
    return {"namespace": list(ident.namespace), "name": ident.name}


@dataclass(frozen=True, slots=True)
class Stage:
    """The branch that a run writes to; `progress` hears of each step beforehand. Tokens expire during long runs, so each step connects."""

    spark: SparkSession
    catalog: str
    connect: Callable[[], Rest]
    branch: str
    properties: Mapping[str, str]
    progress: Progress

    def name(self, ident: TableIdent) -> str:
        """Return the branch in Spark's SQL."""
        return quote_ident(self.catalog, ident, self.branch)

    def open(self, ident: TableIdent) -> Staged:
        """Grow the branch from main as it is.

        Raises: CommitFailed: main moved meanwhile
        """
        self.progress(f"branch {ident}")
        before = self.load(ident)
        # A table without snapshots gets an empty one for it.
        with statements_with_properties(self.spark, self.properties):
            self.spark.sql(f"ALTER TABLE {quote_ident(self.catalog, ident)} CREATE BRANCH {quote(self.branch)}")
        opened = self.look(ident, before.main)
        if before.main is not None and opened.head != before.main:
            raise CommitFailed(f"{ident} changed while a branch was made")
        return opened

    def append(self, ident: TableIdent, rows: DataFrame) -> None:
        """Write rows to the branch."""
        self.progress(f"write {ident}")
        self._writer(ident, rows).append()

    def overwrite_partitions(self, ident: TableIdent, rows: DataFrame) -> None:
        """Write rows to the branch in place of those of the same partitions."""
        self.progress(f"write {ident}")
        self._writer(ident, rows).overwritePartitions()

    def run(self, ident: TableIdent, statement: str) -> None:
        """Change the branch by a statement."""
        self.progress(f"write {ident}")
        with statements_with_properties(self.spark, self.properties):
            self.spark.sql(statement)

    def look(self, ident: TableIdent, base: int | None) -> Staged:
        """Return the branch as it is now. Raises: CommitFailed: another client removed it."""
        table = self.load(ident)
        head = table.refs.get(self.branch)
        if head is None:
            raise CommitFailed(f"the branch {self.branch} of {ident} was removed")
        return Staged(ident, table.uuid, base, self.branch, head, table.summaries.get(head, {}), table.schema_id)

    def look_after(self, opened: Staged) -> Staged:
        """The branch after a write; where nothing was to be written, nothing was added. Raises: CommitFailed: another client removed it."""
        written = self.look(opened.ident, opened.base)
        # The summary of the branch's first snapshot is about other rows.
        return replace(written, summary={}) if written.head == opened.head else written

    def load(self, ident: TableIdent) -> TableHead:
        """Return the table as it is now. Raises: CommitFailed: another client dropped it."""
        table = self.connect().load(ident)
        if table is None:
            raise CommitFailed(f"{ident} was dropped")
        return table

    def _writer(self, ident: TableIdent, rows: DataFrame) -> Any:
        writer = rows.writeTo(self.name(ident))
        for name, value in self.properties.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        return writer


def discard(rest: Rest, ident: TableIdent, branches: Iterable[str]) -> int:
    """Remove branches of a table, those that exist and that no other writer moves meanwhile, with the snapshots that their runs made there.

    Returns how many went.

    Raises: CommitFailed: it is not left alone; ServiceUnavailable: no answer; running again finds out what became of it
    """
    wanted, heads = list(branches), dict[str, int]()
    for attempt in range(1, DISCARDS + 1):
        table = rest.load(ident)
        refs: Mapping[str, int] = {} if table is None else table.refs
        found = {branch: refs[branch] for branch in wanted if branch in refs and heads.get(branch, refs[branch]) == refs[branch]}
        if table is None or not found:
            return 0
        try:
            rest.change([_format_removal(ident, table.uuid, found, list_own(rest.load_every(ident), found))])
        except NoSuchTable:
            return 0
        except CommitFailed:
            if attempt == DISCARDS:
                raise
            heads = found | heads
        else:
            return len(found)
    raise AssertionError("unreachable")


def list_own(metadata: Mapping[str, Any], heads: Mapping[str, int]) -> list[int]:
    """Return the snapshots of branches that their runs made and that lead nowhere else: to no other ref, and main was never there.

    So is the one without rows that Spark has a branch of an empty table begin with.
    """
    named, own = list_named(metadata, heads) | {entry["snapshot-id"] for entry in metadata.get("snapshot-log", ())}, set[int]()
    named |= {one["snapshot-id"] for one in walk(metadata, metadata.get("current-snapshot-id"))}
    for branch, head in heads.items():
        run = f"_{branch.rpartition('_')[0].rpartition('_')[2]}"
        made = takewhile(lambda one: one["summary"].get(RUN_ID, "").endswith(run), walk(metadata, head))  # noqa: B023
        own.update(one["snapshot-id"] for one in made)
        own.update(one["snapshot-id"] for one in walk(metadata, head) if is_start(one))
    return sorted(own - named)


def is_start(snapshot: Mapping[str, Any]) -> bool:
    """Return True if a snapshot is the empty one that Iceberg makes for a branch of a table without any."""
    return snapshot.get("parent-snapshot-id") is None and snapshot["summary"].get("total-records") == "0"


def _format_removal(ident: TableIdent, uuid: str, heads: Mapping[str, int], own: Sequence[int]) -> dict[str, Any]:
    at = [{"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": head} for branch, head in heads.items()]
    return {
        "identifier": format_identifier(ident),
        "requirements": [{"type": "assert-table-uuid", "uuid": uuid}, *at],
        "updates": [
            *({"action": "remove-snapshot-ref", "ref-name": branch} for branch in heads),
            *([{"action": "remove-snapshots", "snapshot-ids": own}] if own else []),
        ],
    }


def discard_stale(rest: Rest, ident: TableIdent, now: datetime) -> None:
    """Remove what runs left behind that were killed long ago."""
    table = rest.load(ident)
    if table is not None:
        discard(rest, ident, list_stale(table.refs, now))


def check_count(written: Staged, expected: int) -> None:
    """Raises: BadRequest: what was written is not what was counted in the files."""
    if written.added != expected:
        raise BadRequest(f"{written.ident}: {written.added} rows were written and {expected} counted in the files; nothing was taken")


MAIN = "main"


def walk(metadata: Mapping[str, Any], snapshot_id: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield a snapshot and those that it came from, as far as they are still there."""
    known = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    while snapshot_id in known:
        found = known.pop(snapshot_id)
        yield found
        snapshot_id = found.get("parent-snapshot-id")


def list_named(metadata: Mapping[str, Any], without: Mapping[str, Any]) -> set[int]:
    """Return those that refs lead to, but for some refs: all that branches and tags come from, and where main is."""
    refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items() if name not in without}
    named = {refs.get(MAIN, metadata.get("current-snapshot-id") or -1)}
    return named | {one["snapshot-id"] for name, head in refs.items() if name != MAIN for one in walk(metadata, head)}
