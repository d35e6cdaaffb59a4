"""`ingest --follow`: one run after another for the files that arrive at the source, until it is asked to end."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, CommitStateUnknown, ServiceUnavailable
from duckicelake.pipeline.common.failures import SparkFailed
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.common.staging import make_run_id
from duckicelake.pipeline.common.storage import NoSource
from duckicelake.pipeline.ingest.job import ingest
from duckicelake.pipeline.ingest.options import Batch, IngestOptions, IngestReport, Status
from duckicelake.pipeline.ingest.source import SourceMoved

PASSING = (ServiceUnavailable, CommitFailed, CommitStateUnknown, NoSource, SourceMoved)
"""Errors after which the next batch may succeed. The ledger says whether a commit landed whose answer was lost."""

BREAKDOWNS = 3
"""Spark does not say whether what broke it passes (a catalog that is started again) or stays (a file that cannot be read)."""

_OPTIONS = {
    "poll": "poll_seconds",
    "batch_files": "batch_files",
    "settle": "settle_seconds",
    "max_batches": "max_batches",
    "follow_for": "seconds",
}
"""The command's options that mean something with `--follow` alone."""

COUNTS = ("files", "bytes", "rows_in", "rows_out", "rows_quarantined", "rows_superseded")


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Limits by which a source is followed. None: without an end.

    `settle_seconds` is how long a file must not have changed: a writer may not have closed it yet.
    """

    poll_seconds: float = 10.0
    batch_files: int = 1000
    settle_seconds: float = 2.0
    max_batches: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        limits = {"--poll": self.poll_seconds, "--batch-files": self.batch_files, "--max-batches": self.max_batches}
        wrong = next((name for name, limit in limits.items() if limit is not None and limit <= 0), None)
        if wrong is not None:
            raise BadRequest(f"{wrong} must be more than 0")
        if self.settle_seconds < 0 or (self.seconds is not None and self.seconds < 0):
            raise BadRequest("--settle and --follow-for are no less than 0 seconds")


@dataclass(frozen=True, slots=True)
class FollowReport:
    """The sums of all batches. `last` is the newest batch, `message` says why the newest look at the source failed."""

    follow_id: str
    table: str
    source: str
    mode: str
    status: Status = Status.nothing_new
    batches: int = 0
    files: int = 0
    bytes: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    rows_superseded: int = 0
    failures: int = 0
    last: IngestReport | None = None
    message: str = ""

    def add(self, done: IngestReport) -> "FollowReport":
        """Return the report after a look that did not fail."""
        told = replace(self, message="", status=Status.done if self.batches else done.status)
        if done.status is not Status.done:
            return told
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(done, name) for name in COUNTS}
        return replace(told, batches=self.batches + 1, last=done, **sums)

    def fail(self, error: CatalogError) -> "FollowReport":
        """Return the report after a look that failed."""
        status = Status.unknown if isinstance(error, CommitStateUnknown) else Status.failed
        return replace(self, status=status, failures=self.failures + 1, message=error.message)

    def format_json(self) -> str:
        """Return the report for machines."""
        fields: Mapping[str, Any] = {"job": "ingest", **asdict(self)}
        return json.dumps(fields, indent=2) + "\n"


class FollowBroken(Exception):
    """An unexpected error ended the run; the cause says which. `report` covers the batches until then."""

    def __init__(self, report: FollowReport) -> None:
        super().__init__(report.message)
        self.report = report


def follow(
    context: JobContext, options: IngestOptions, how: FollowOptions, wait: Callable[[float], bool], heard: Callable[[FollowReport], None]
) -> FollowReport:
    """Take what comes, batch by batch; `heard` is given the report after each look that took something or failed.

    `wait` waits so many seconds and says whether the end is asked for; it is not called during a batch.
    What does not pass by itself (a file that has changed, columns that do not fit) ends the run with its message, and so does what
    breaks Spark again and again. Raises: FollowBroken
    """
    began, breakdowns = monotonic(), 0
    report = begin_follow(options)
    try:
        while True:
            before = report
            try:
                report = report.add(ingest(context, replace(options, batch=_make_batch(report, how))))
                breakdowns = 0
            except PASSING as error:
                report = report.fail(error)
            except SparkFailed as error:
                report, breakdowns = report.fail(error), breakdowns + 1
                if breakdowns == BREAKDOWNS:
                    return report
            except CatalogError as error:
                return report.fail(error)
            if report.batches > before.batches or report.message:
                heard(report)
            left = None if how.seconds is None else began + how.seconds - monotonic()
            if report.batches == how.max_batches or (left is not None and left <= 0):
                return report
            # After a batch there may be more already.
            pause = 0.0 if report.batches > before.batches else how.poll_seconds
            if wait(pause if left is None else min(pause, left)):
                return report
    except Exception as error:
        raise FollowBroken(replace(report, failures=report.failures + 1)) from error


def begin_follow(options: IngestOptions) -> FollowReport:
    """Return the report of a source before its first batch."""
    return FollowReport(make_run_id(datetime.now(UTC)), str(options.table), options.source, options.mode)


def check_followed(options: IngestOptions) -> None:
    """Raises: BadRequest: such a run cannot be one batch of many"""
    replace(options, batch=Batch("", 1, 1, 0))


def _make_batch(report: FollowReport, how: FollowOptions) -> Batch:
    now = datetime.now(UTC).timestamp()
    return Batch(report.follow_id, report.batches + 1, how.batch_files, int((now - how.settle_seconds) * 1000))


def read_follow(given: Mapping[str, Any]) -> FollowOptions | None:
    """Return how the command is to follow its source, None when it is not to.

    Raises: BadRequest: an option is given that means nothing without `--follow`, or cannot be meant
    """
    asked = {name: given[name] for name in _OPTIONS if given[name] is not None}
    if not given["follow"]:
        if asked:
            raise BadRequest(f"{', '.join(f'--{name}'.replace('_', '-') for name in asked)} belongs to --follow")
        return None
    if given["dry_run"]:
        raise BadRequest("--dry-run plans once, --follow goes on: choose one")
    return FollowOptions(**{_OPTIONS[name]: limit for name, limit in asked.items()})
