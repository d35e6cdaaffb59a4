"""Files of a source, and those of them that the ledger does not have."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_compat import get_condition
from duckicelake.pipeline.common.storage import DELTA_LOG, NoSource, check_counted, get_local_path
from duckicelake.pipeline.ingest.options import Batch, Changed
from duckicelake.pipeline.ingest.source import SourceMoved, Taken

Listing = Callable[[], DataFrame]
"""The files that there are now, with the columns LISTED."""

_PATH_NOT_FOUND = "PATH_NOT_FOUND"


def list_files(listed: DataFrame, ledger: DataFrame | None, changed: Changed) -> list[Taken]:
    """Return the files that the ledger does not know, in the order of their names.

    Raises: BadRequest: a file that was taken is another one now
    """
    if ledger is None:
        return _collect(listed)
    # Ledgers of earlier versions have no ETags.
    known = ledger if "etag" in ledger.columns else ledger.withColumn("etag", F.lit(None).cast("string"))
    seen = known.groupBy("uri").agg(F.collect_list(F.struct("size_bytes", "modified_ms", "etag")).alias("seen"))
    found = listed.join(seen, "uri", "left").withColumn("is_same", F.expr(_IS_SAME)).where("seen IS NULL OR NOT is_same")
    rows = found.select("uri", "size_bytes", "modified_ms", "etag", F.col("seen").isNotNull().alias("is_changed")).collect()
    # Spark's own sort would list twice.
    rows.sort(key=lambda row: row.uri)
    others = [row.uri for row in rows if row.is_changed]
    if others and changed is Changed.refuse:
        raise BadRequest(
            f"{others[0]} was taken before and is another file now ({len(others)} such): rows could come twice. "
            "--changed take takes it whole again, --changed skip leaves it"
        )
    return [_to_taken(row) for row in rows if not row.is_changed or changed is Changed.take]


_IS_SAME = (
    "exists(seen, one -> one.size_bytes = size_bytes AND "
    "CASE WHEN one.etag IS NOT NULL AND etag IS NOT NULL THEN one.etag = etag ELSE one.modified_ms = modified_ms END)"
)
"""An object that was put again with the same bytes is the same."""


def _collect(listed: DataFrame) -> list[Taken]:
    return sorted(map(_to_taken, listed.collect()), key=lambda file: file.uri)


def _to_taken(row: Iterable[object]) -> Taken:
    uri, size_bytes, modified_ms, etag, *_ = row
    assert isinstance(uri, str) and isinstance(size_bytes, int) and isinstance(modified_ms, int)
    return Taken(uri, size_bytes, modified_ms, None if etag is None else str(etag))


def choose_files(files: Sequence[Taken], batch: Batch | None) -> list[Taken]:
    """Return the files of a batch: of those that have rested, the ones that changed first."""
    if batch is None:
        return list(files)
    rested = [(file.modified_ms or 0, file.uri, file) for file in files if (file.modified_ms or 0) <= batch.settled_ms]
    return sorted((file for _, _, file in sorted(rested, key=lambda one: one[:2])[: batch.files]), key=lambda file: file.uri)


def check_listed(listing: Listing, files: Iterable[Taken]) -> None:
    """Raises: SourceMoved: one of the files is gone or has changed since it was listed."""
    now = set(_collect(listing()))
    lost = [file.uri for file in files if file not in now]
    if lost:
        raise SourceMoved(f"{lost[0]} changed or vanished while it was read; nothing was taken, run again")


def check_shown(source: str) -> None:
    """Raises: BadRequest: Spark passes over a file of this name, which was meant"""
    name = os.path.basename(source)
    if name.startswith(("_", ".")) and os.path.isfile(source):
        raise BadRequest(f"Spark passes over {source}, because its name begins with {name[0]}: give it another name")


def check_places(files: Sequence[Taken]) -> None:
    """Raises: BadRequest: a file here is a Delta table's, or has a colon in its name, which Hadoop takes for the end of a scheme"""
    logs = _list_delta_logs(files)
    for file in files if logs else ():
        check_counted(get_local_path(file.path), logs)
    stray = next((file.path for file in files if file.uri.startswith("file:") and ":" in os.path.basename(file.path)), None)
    if stray is not None:
        raise BadRequest(f"Spark cannot read {stray}, because its name has a colon, and no file was taken: rename it")


def _list_delta_logs(files: Iterable[Taken]) -> set[str]:
    """Return the folders with logs of Delta in which files of this machine lie, however deep."""
    above = {os.path.dirname(get_local_path(file.path)) for file in files if file.uri.startswith("file:")}
    return {str(folder) for one in above for folder in (Path(one), *Path(one).parents) if (folder / DELTA_LOG).is_dir()}


def list_by_spark(spark: SparkSession, source: str) -> DataFrame:
    """Return the files of a path, folder or pattern, on any file system that Spark knows. Raises: NoSource"""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        found = reader.load(get_root_uri(source))
        # Spark Connect looks no earlier than it has to.
        _ = found.schema
    except AnalysisException as error:
        if get_condition(error) == _PATH_NOT_FOUND:
            raise NoSource(f"there is no {source}") from error
        raise
    meta = F.col("_metadata")
    return found.select(
        meta["file_path"].alias("uri"),
        meta["file_size"].alias("size_bytes"),
        F.unix_millis(meta["file_modification_time"]).alias("modified_ms"),
        F.lit(None).cast("string").alias("etag"),
    )


def get_root_uri(source: str) -> str:
    """Return a source as a URI, or a whole path on this machine."""
    return source if "://" in source or source.startswith("file:") else os.path.abspath(source)
