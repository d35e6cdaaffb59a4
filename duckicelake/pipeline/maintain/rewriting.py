"""Data files written anew by Spark: Iceberg's own procedure, committed over REST, with the run's name in every snapshot."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from duckicelake.errors import CommitFailed
from duckicelake.pipeline.connect import is_gone
from duckicelake.pipeline.ingest.job import SparkFailed
from duckicelake.pipeline.ingest.target import quote, quote_ident, quote_text
from duckicelake.pipeline.maintain.planning import Step, TableFacts
from duckicelake.pipeline.maintain.policy import Policy, Strategy
from duckicelake.pipeline.rest import Ident

GROUP_BYTES = 10 << 30
"""More than that is committed piece by piece, so that what is done stays done."""
_OVER_TARGET = 1.8
_PIECEMEAL = "partial-progress.enabled"
_OF_COMMITS = {"org.apache.iceberg.exceptions.CommitFailedException", "org.apache.iceberg.exceptions.CommitStateUnknownException"}
_OF_CONFLICTS = "org.apache.iceberg.exceptions.ValidationException"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewriting did."""

    removed: int
    added: int
    bytes: int


def rewrite(spark: SparkSession, catalog: str, ident: Ident, call: tuple[Policy, TableFacts, Step]) -> Rewritten:
    """Put small files together and leave deleted rows out.

    Raises: SparkFailed: some of a large table could not be read or written; CommitFailed: nothing of one was committed; what Spark raises
    """
    policy, facts, step = call
    options = format_options(policy, facts, step)
    row: Any = spark.sql(format_call(catalog, ident, policy, options)).collect()[0]
    if row["failed_data_files_count"]:
        # Iceberg counts what failed before any commit, and keeps the reason to its log.
        raise SparkFailed(
            f"Spark could not write {row['failed_data_files_count']} files of {ident} anew, for the reason that its log gives"
        )
    if _PIECEMEAL in options and not row["rewritten_data_files_count"]:
        # Iceberg passes over what others overtook.
        raise CommitFailed(f"others changed all that was written anew of {ident}")
    return Rewritten(row["rewritten_data_files_count"], row["added_data_files_count"], row["rewritten_bytes_count"])


def is_passing(error: Exception) -> bool:
    """Whether it may be over by now: others overtook a commit, nobody knows what became of it, or the session's Java is gone."""
    if isinstance(error, CommitFailed) or is_gone(error):
        return True
    names = list(_list_classes(error))
    # Bare, it is no conflict: Iceberg says so too of an order by a column that there is not.
    return not _OF_COMMITS.isdisjoint(names) or _OF_CONFLICTS in names[1:]


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
    if step.bytes > GROUP_BYTES:
        options |= {_PIECEMEAL: "true", "max-file-group-size-bytes": GROUP_BYTES}
    return {name: str(value) for name, value in options.items()}


def format_call(catalog: str, ident: Ident, policy: Policy, options: Mapping[str, str]) -> str:
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
