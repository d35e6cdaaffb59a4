"""Data files written anew by Spark: Iceberg's own procedure, committed over REST, with the run's name in every snapshot."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from duckicelake.errors import CommitFailed
from duckicelake.pipeline.connect import is_gone
from duckicelake.pipeline.ingest.job import shorten
from duckicelake.pipeline.ingest.target import quote, quote_ident, quote_text
from duckicelake.pipeline.maintain.overheard import COMMITTING, WRITING, capturing_logs
from duckicelake.pipeline.maintain.planning import Step, TableFacts
from duckicelake.pipeline.maintain.policy import Policy, Strategy
from duckicelake.pipeline.rest import TableIdent
from duckicelake.pipeline.spark import jobs_tagged_as_pieces

GROUP_BYTES = 10 << 30
"""More than that is committed piece by piece, so that what is done stays done."""
_OVER_TARGET = 1.8
_PIECEMEAL = "partial-progress.enabled"
_OF_COMMITS = {"org.apache.iceberg.exceptions.CommitFailedException", "org.apache.iceberg.exceptions.CommitStateUnknownException"}
_OF_CONFLICTS = "org.apache.iceberg.exceptions.ValidationException"
_TOLD_OF_COMMITS = ("Cannot commit rewrite because of a ValidationException or CommitFailedException", "CommitStateUnknownException")
"""By these words a server of Spark Connect tells of them, whose exceptions stay there."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewriting did, and files that it did not; why each piece was not written that was not, and not committed."""

    removed: int
    added: int
    bytes: int
    unwritten_files: int = 0
    unwritten: tuple[str, ...] = ()
    uncommitted: tuple[str, ...] = ()


def rewrite(spark: SparkSession, catalog: str, ident: TableIdent, call: tuple[Policy, TableFacts, Step]) -> Rewritten:
    """Put small files together and leave deleted rows out. Raises: what Spark raises; of a large table it is told what went wrong."""
    policy, facts, step = call
    statement = format_call(catalog, ident, policy, format_options(policy, facts, step))
    if not is_piecemeal(step):
        return _read(spark.sql(statement).collect()[0])
    with capturing_logs() as hear, jobs_tagged_as_pieces(spark):
        done = _read(spark.sql(statement).collect()[0])
        unwritten, uncommitted = (tuple(map(shorten, hear(name))) for name in (WRITING, COMMITTING))
        return replace(done, unwritten=unwritten, uncommitted=uncommitted)


def _read(row: Any) -> Rewritten:
    # Iceberg counts what failed before any commit, and passes over what was not committed.
    counts = ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count", "failed_data_files_count")
    return Rewritten(*(row[name] for name in counts))


def is_piecemeal(step: Step) -> bool:
    """Whether it is committed piece by piece; what became of each is heard of in Java alone."""
    return step.bytes > GROUP_BYTES and not is_remote()


def is_passing(error: Exception) -> bool:
    """Whether it may be over by now: others overtook a commit, nobody knows what became of it, or the session's Java is gone."""
    if isinstance(error, CommitFailed) or is_gone(error):
        return True
    if is_remote():
        return any(words in str(error) for words in _TOLD_OF_COMMITS)
    names = list(_list_classes(error))
    # Bare, it is no conflict: Iceberg says so too of an order by a column that there is not.
    return not _OF_COMMITS.isdisjoint(names) or _OF_CONFLICTS in names[1:]


def is_commit_failure(trace: str) -> bool:
    """Whether it is of a commit that somebody else's overtook, or of which nobody knows."""
    return any(name in trace for name in _OF_COMMITS)


def _list_classes(error: Exception) -> Iterator[str]:
    """The names of the classes of what went wrong in Java, each before its cause."""
    told: Any = error
    java = told.java_exception if isinstance(error, Py4JJavaError) else None
    with suppress(Py4JError, OSError):
        while java is not None:
            yield str(java.getClass().getName())
            java = java.getCause()


def format_options(policy: Policy, facts: TableFacts, step: Step) -> dict[str, str]:
    """The procedure's options, so that it chooses the files that were planned."""
    options = {
        "target-file-size-bytes": policy.target_size,
        "min-file-size-bytes": min(facts.small_bytes or policy.small_bytes, policy.target_size - 1),
        # Files above the target stay: to split them is much work for nothing.
        "max-file-size-bytes": max(int(policy.target_size * _OVER_TARGET), facts.largest_bytes) + 1,
        "min-input-files": policy.min_files,
        "delete-ratio-threshold": policy.delete_ratio,
    }
    if is_piecemeal(step):
        options |= {_PIECEMEAL: "true", "max-file-group-size-bytes": GROUP_BYTES}
    return {name: str(value) for name, value in options.items()}


def format_call(catalog: str, ident: TableIdent, policy: Policy, options: Mapping[str, str]) -> str:
    """The statement that rewrites; sorted by the order given, else by the table's own."""
    # Without the catalog, a namespace of a catalog's name would be taken for that one.
    arguments = [f"table => {quote_text(quote_ident(catalog, ident))}"]
    if policy.strategy is not Strategy.binpack:
        arguments.append("strategy => 'sort'")
        columns = ", ".join(quote(field.column) for field in policy.order)
        terms = f"zorder({columns})" if policy.strategy is Strategy.zorder else ", ".join(field.sql for field in policy.order)
        if terms:
            arguments.append(f"sort_order => {quote_text(terms)}")
    pairs = ", ".join(f"{quote_text(name)}, {quote_text(value)}" for name, value in options.items())
    return f"CALL {quote(catalog)}.system.rewrite_data_files({', '.join(arguments)}, options => map({pairs}))"
