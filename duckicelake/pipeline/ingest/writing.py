"""What each mode writes to the target's branch, and that it wrote what was counted."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.ingest import merging, versions
from duckicelake.pipeline.ingest.options import IngestOptions, Mode
from duckicelake.pipeline.ingest.rows import Checked
from duckicelake.pipeline.ingest.staging import Stage, Staged
from duckicelake.pipeline.ingest.target import quote_ident
from duckicelake.pipeline.older import TELLS_MERGED

_MERGED = "spark.merge-into.num-target-rows-"


class RowsLeftOut(CatalogError):
    """Rows that nobody had looked at before are bad."""


def write_target(stage: Stage, options: IngestOptions, opened: Staged, checked: Checked, good: int) -> tuple[Staged, int]:
    """Write the good rows; the branch after that, and how many rows others of the same key stand for.

    Raises: RowsLeftOut: some were bad, of those that were not looked at before
        BadRequest: what was written is not what was counted, or the rows contradict each other
    """
    table, rows = options.table, checked.good()
    if options.mode is Mode.upsert:
        return _write_latest(stage, options, opened, checked, good)
    if options.mode is Mode.scd2:
        return _write_versions(stage, options, opened, checked, good)
    if options.mode is Mode.overwrite_partitions:
        _replace_partitions(stage, options, rows)
    else:
        stage.append(table, rows)
    written = stage.look_after(opened)
    if checked.is_sifted and not checked.may_be_bad and written.added < good:
        raise RowsLeftOut(f"{good - written.added} rows have texts that are not in UTF-8")
    check_count(written, good)
    return written, 0


def _write_latest(stage: Stage, options: IngestOptions, opened: Staged, checked: Checked, good: int) -> tuple[Staged, int]:
    keyed = merging.Keyed(stage.name(options.table), options.key, options.order_by)
    latest = merging.find_latest(checked.marked(), options.key, options.order_by, checked.coverage.marks)
    applied = latest.count()
    if options.order_by is not None and opened.base is not None:
        applied -= merging.count_older(latest, _read_held(stage, options, opened), options.key, options.order_by)
    if not TELLS_MERGED:
        merging.check_held(_read_held(stage, options, opened), latest, options.key)
    _merge(stage, options, latest, merging.format_merge(_name_view(stage), keyed, checked.target, checked.coverage))
    written = stage.look_after(opened)
    check_merged(written, applied, "inserted", "updated")
    return written, good - applied


def _write_versions(stage: Stage, options: IngestOptions, opened: Staged, checked: Checked, good: int) -> tuple[Staged, int]:
    table, history = options.table, versions.History(checked.target, options.key, options.order_by or "")
    held = _read_held(stage, options, opened)
    current = versions.fill_columns(held.where(versions.CURRENT), checked.target)
    inserted, ended = versions.find_versions(checked.marked(), current, history, checked.coverage)
    applied = inserted.count()
    source = versions.format_source(inserted, ended, options.key)
    _merge(stage, options, source, versions.format_merge(stage.name(table), _name_view(stage), history))
    written = stage.look_after(opened)
    check_merged(written, applied, "inserted")
    return written, good - applied


def _replace_partitions(stage: Stage, options: IngestOptions, rows: DataFrame) -> None:
    """Write rows in place of all those of the same partitions, wherever these lie."""
    name, head = quote_ident(stage.catalog, options.table), stage.load(options.table)
    data = stage.spark.table(f"{name}.manifests").where(f"content = 0 AND partition_spec_id != {head.spec_id}")
    if data.where("added_data_files_count + existing_data_files_count > 0").isEmpty():
        stage.overwrite_partitions(options.table, rows)
        return
    if head.has_uuid_partitions:
        # Spark has them as texts: other buckets, and capital letters make other values.
        raise BadRequest(
            f"{options.table} has rows that lie in no partition or in earlier ones, which Spark cannot tell by a UUID; delete them first"
        )
    # Iceberg's own overwrite leaves files of other specs, such as inlined rows, which lie in no partition.
    theirs, ours = (merging.format_partitions(stage.catalog, head.partitions, alias) for alias in ("r", "t"))
    values = [F.expr(value).alias(f"p{place}") for place, value in enumerate(theirs)]
    source = rows.alias("r").select(*values).distinct()
    _merge(stage, options, source, merging.format_removal(stage.name(options.table), _name_view(stage), ours))
    stage.append(options.table, rows)


def _read_held(stage: Stage, options: IngestOptions, opened: Staged) -> DataFrame:
    # Spark 4.1 finds no plan for a view that reads the table it is merged into, unless a snapshot is named.
    return stage.spark.read.option("versionAsOf", opened.head).table(quote_ident(stage.catalog, options.table))


def _merge(stage: Stage, options: IngestOptions, source: DataFrame, statement: str) -> None:
    view = _name_view(stage)
    source.createOrReplaceTempView(view)
    try:
        stage.run(options.table, statement)
    finally:
        stage.spark.catalog.dropTempView(view)


def _name_view(stage: Stage) -> str:
    return f"merged_{stage.branch}"


def check_count(written: Staged, expected: int) -> None:
    """Raises: BadRequest: what was written is not what was counted in the files."""
    if written.added != expected:
        raise BadRequest(f"{written.ident}: {written.added} rows were written and {expected} counted in the files; nothing was taken")


def check_merged(written: Staged, expected: int, *kinds: str) -> None:
    """Raises: BadRequest: a merge did not touch as many rows as it was given, where Spark says how many it touched."""
    told = [int(written.summary.get(_MERGED + kind, "-1")) for kind in kinds]
    if min(told) >= 0 and sum(told) != expected:
        raise BadRequest(
            f"{written.ident}: {sum(told)} rows for {expected} keys; does the table have several rows of one key? Nothing was taken"
        )
